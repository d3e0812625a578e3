"""SkyPilot's public catalogues, served on loopback in the layouts that they have."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trmcloud import wiring_plans
from trmcloud.adapters.prices import download, tables
from trmcloud.cli.commands.prices import app
from trmcloud.core.catalog.offers import Offer
from trmcloud.core.money import Usd
from trmcloud.providers.skypilot import offers as sky_offers
from trmcloud.providers.skypilot.offers import NotACatalogue, read_catalogue

NOW = 1_795_000_000.0  # 2026-11-18
DAY = "2026-11-18"

FOLDER = Path(__file__).resolve().parents[2] / "standins" / "sky_catalogues"
FILES = {path.stem: path.read_text() for path in FOLDER.glob("*.csv")}
MARCH = "2026-03-01T09:00:00Z"


class Served:
    """What a loopback server answers: by path (status, body), and when each file last changed."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[int, bytes]] = {
            f"/v8/{cloud}/vms.csv": (200, text.encode()) for cloud, text in FILES.items()
        }
        self.changed = {f"catalogs/v8/{cloud}/vms.csv": "2026-11-18T06:00:00Z" for cloud in FILES}
        self.asked: list[str] = []
        self.drips = False
        self.endless = False


@pytest.fixture
def served() -> Iterator[tuple[Served, dict[str, str]]]:
    """The catalogues, and the environment that leads to them; RunPod's own list is out of reach."""
    state = Served()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(self.path)
            path, _, query = self.path.partition("?")
            if path == "/commits":
                asked = dict(part.split("=") for part in query.split("&"))
                date = state.changed.get(asked["path"])
                found = [{"sha": "0", "commit": {"committer": {"date": date}}}] if date else []
                self._answer(200, json.dumps(found).encode())
                return
            self._answer(*state.files.get(path, (404, b"404: Not Found")))

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.end_headers()
            try:
                while state.endless:
                    self.wfile.write(b"x" * 65_536)
                for part in [body[n : n + 8] for n in range(0, len(body), 8)] * state.drips:
                    self.wfile.write(part)
                    self.wfile.flush()
                    time.sleep(0.05)
                self.wfile.write(body)
            except OSError:
                pass

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}"
    yield (
        state,
        {
            sky_offers.ENV_CATALOGUES: base,
            sky_offers.ENV_CHANGES: f"{base}/commits",
            "TRMCLOUD_RUNPOD_API": "http://127.0.0.1:9/v2",
            "HOME": "/nonexistent",
        },
    )
    server.shutdown()
    server.server_close()


def rates(cloud: str, text: str) -> set[tuple[str, str, str, str, str]]:
    names = ("sku", "gpus", "region", "usd_per_hour", "spot_usd_per_hour")
    rows = read_catalogue(cloud, text, DAY).rows
    return {tuple(row[name] for name in names) for row in rows}  # type: ignore[misc]


def test_aws_dearest_on_demand_and_cheapest_spot_zone() -> None:
    assert rates("aws", FILES["aws"]) == {
        ("H100-SXM", "8", "us-east-1", "55.04", "9.37"),
        ("H100-SXM", "8", "us-west-2", "55.04", ""),
        ("H200", "8", "us-east-2", "", "21.5"),
    }


def test_google_sells_a_gpu_with_its_host() -> None:
    assert rates("gcp", FILES["gcp"]) == {
        ("H100-SXM", "8", "us-central1", "87.96006", "22.88933"),
        ("L4", "1", "us-central1", "0.71", "0.28"),
    }, "without a host in its zone a GPU is not to be had"


def test_one_name_means_other_chips_at_other_clouds() -> None:
    assert rates("runpod", FILES["runpod"]) == {
        ("H100-PCIe", "8", "any", "23.12", ""),
        ("H100-SXM", "8", "any", "31.92", ""),
    }
    assert rates("vast", FILES["vast"]) == {
        ("H100-NVL", "1", "any", "2.08", ""),
        ("H100-SXM", "8", "any", "16", "6.4"),
        ("A100-40GB", "1", "any", "0.76", ""),
        ("A100-80GB-PCIe", "1", "any", "0.87", ""),
    }
    assert {row[0] for row in rates("azure", FILES["azure"])} == {
        "H100-SXM", "H100-NVL", "A100-80GB-PCIe", "A100-80GB-SXM",
    }  # fmt: skip
    assert {row[:2] for row in rates("lambda", FILES["lambda"])} == {
        ("H100-SXM", "8"),
        ("H100-PCIe", "1"),
    }
    assert ("B200", "8", "FIN-03", "", "13.69") in rates("verda", FILES["verda"])


HEAD = "InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region"


@pytest.mark.parametrize(
    "row",
    [
        "p5.48xlarge,H100,8,1e400,,us-east-1",
        "p5.48xlarge,H100,8,NaN,,us-east-1",
        "p5.48xlarge,H100,8,-55.04,,us-east-1",
        "p5.48xlarge,H100,8,Infinity,,us-east-1",
        "p5.48xlarge,H100,8,0.001,,us-east-1",
        "p5.48xlarge,H100,8,55.04,1e-400,us-east-1",
        "p5.48xlarge,H100,8,[55.04],,us-east-1",
        "p5.48xlarge,H100,8,55.04,,\x1b[2Jus-east-1",
        "$(reboot),H100,8,55.04,,us-east-1",
        "p5.48xlarge,H100,8,55.04,,us/east",
    ],
)
def test_what_no_provider_asks_is_not_believed(row: str) -> None:
    sound = "p5.4xlarge,H100,1,6.88,,us-east-1"
    found = read_catalogue("aws", "\n".join((HEAD, row, sound, "")), DAY)
    assert [(r["gpus"], r["usd_per_hour"]) for r in found.rows] == [("1", "6.88")]
    assert found.doubted == 1


@pytest.mark.parametrize("count", ["0.5", "0", "-8", "1e9", "eight", "NaN", "65"])
def test_odd_counts_are_none_of_ours(count: str) -> None:
    assert read_catalogue("aws", f"{HEAD}\np5,H100,{count},55,,us-east-1\n", DAY).rows == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<!DOCTYPE html><html>502 Bad Gateway", "no table"),
        ('{"message": "rate limit"}', "no table"),
        ("", "no column InstanceType"),
        ("InstanceType,AcceleratorName,AcceleratorCount,Price,Region\n", "no column SpotPrice"),
        (HEAD + ",Price\n", "twice"),
        (HEAD + '\n"' + "x" * 200_000 + '",H100,8,1,1,r\n', "cannot be read"),
    ],
)
def test_what_is_no_catalogue_is_refused_whole(text: str, says: str) -> None:
    with pytest.raises(NotACatalogue, match=says):
        read_catalogue("aws", text, DAY)


def test_a_catalogue_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sky_offers, "MOST_LINES", 3)
    with pytest.raises(NotACatalogue, match="more than 3 lines"):
        read_catalogue("aws", FILES["aws"], DAY)


def refreshed(home: Path, environ: dict[str, str]) -> tuple[tables.Refreshed, list[Offer]]:
    outcome = tables.refresh(home, NOW, wiring_plans.price_sources(environ))
    return outcome, tables.load_offers(NOW, home)


def test_refresh_reads_every_cloud_without_an_account(
    served: tuple[Served, dict[str, str]], home: Path
) -> None:
    state, environ = served
    outcome, offers = refreshed(home, environ)
    assert outcome.path is not None
    told = dict(note.split(": ", 1) for note in outcome.notes)
    assert told["aws"] == "4 offers of 2026-11-18 (SkyPilot's v8)"
    assert told["digitalocean"].startswith(
        "not read: how old SkyPilot's catalogue of it is cannot be had (no date is in the answer)"
    )
    assert told["runpod"] == "2 offers of 2026-11-18 (SkyPilot's v8)"
    live = {o.provider for o in offers if o.source == sky_offers.SOURCE}
    assert live == {"aws", "azure", "gcp", "lambda", "nebius", "runpod", "vast-ai", "verda"}
    assert {o.age_days(NOW) for o in offers if o.provider == "aws"} == {0}
    assert not any("Authorization" in asked for asked in state.asked)


def test_a_catalogue_is_as_old_as_its_last_change(
    served: tuple[Served, dict[str, str]], home: Path
) -> None:
    # Nebius' H100 stood at $2.95 in a file that nobody had changed since March: it asked for $4.50.
    state, environ = served
    state.changed["catalogs/v8/nebius/vms.csv"] = MARCH
    outcome, offers = refreshed(home, environ)
    told = next(note for note in outcome.notes if note.startswith("nebius"))
    assert told == "nebius: 2 offers of 2026-03-01, 262 days ago (SkyPilot's v8)"
    mine = [o for o in offers if (o.provider, o.sku, o.gpus) == ("nebius", "H100-SXM", 8)]
    asked = {(o.rate, o.age_days(NOW)) for o in mine if not o.spot}
    assert asked == {(Usd("23.6"), 262), (Usd(36), 25)}, "what is younger stays beside it"


def test_the_version_that_changed_last_is_read(
    served: tuple[Served, dict[str, str]], home: Path
) -> None:
    state, environ = served
    state.changed["catalogs/v8/nebius/vms.csv"] = MARCH
    state.changed["catalogs/v9/nebius/vms.csv"] = "2026-11-17T00:00:00Z"
    state.files["/v9/nebius/vms.csv"] = (200, FILES["nebius"].replace("23.60", "36.00").encode())
    outcome, offers = refreshed(home, environ)
    assert "nebius: 2 offers of 2026-11-17, 1 day ago (SkyPilot's v9)" in outcome.notes
    (offer,) = [o for o in offers if o.instance.startswith("gpu-h100") and not o.spot]
    assert offer.rate == Usd(36)


def test_what_cannot_be_read_keeps_the_others_and_what_was_known(
    served: tuple[Served, dict[str, str]], home: Path
) -> None:
    state, environ = served
    refreshed(home, environ)
    state.files["/v8/aws/vms.csv"] = (200, b"<html>captive portal</html>")
    state.files["/v8/gcp/vms.csv"] = (503, b"")
    state.files["/v8/lambda/vms.csv"] = (200, b"\xff\xfe\x00")
    state.files["/v8/verda/vms.csv"] = (302, b"")
    state.files["/v8/vast/vms.csv"] = (200, FILES["vast"].replace("16.00", "17.00").encode())
    outcome = tables.refresh(home, NOW + 60, wiring_plans.price_sources(environ))
    told = dict(note.split(": ", 1) for note in outcome.notes)
    assert told["aws"] == "not read: the answer is no table"
    assert told["gcp"] == "not read: HTTP 503"
    assert told["lambda"] == "not read: the answer is no text"
    assert told["verda"] == "not read: HTTP 302"
    offers = tables.load_offers(NOW + 60, home)
    assert len(tables.snapshots(home)) == 2
    assert Usd("55.04") in {o.rate for o in offers if o.source == sky_offers.SOURCE}
    assert Usd(17) in {o.rate for o in offers if o.provider == "vast-ai"}
    assert Usd(16) not in {o.rate for o in offers if o.provider == "vast-ai"}


def test_only_the_newest_snapshots_are_kept(
    served: tuple[Served, dict[str, str]], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, environ = served
    monkeypatch.setattr(tables, "SNAPSHOTS_KEPT", 2)
    for minute in range(4):
        tables.refresh(home, NOW + 60 * minute, wiring_plans.price_sources(environ))
    assert len(tables.snapshots(home)) == 2


@pytest.mark.parametrize("how", ["drips", "endless"])
def test_a_line_that_drips_or_never_ends_is_cut(
    served: tuple[Served, dict[str, str]], how: str
) -> None:
    state, environ = served
    setattr(state, how, True)
    url = environ[sky_offers.ENV_CATALOGUES] + "/v8/aws/vms.csv"
    begun = time.monotonic()
    with pytest.raises(download.Unreadable, match=r"not had within|larger than 1 MiB"):
        download.fetch(url, most_bytes=1 << 20, within_s=0.5)
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://example.com/x", "neither https nor this machine"),
        ("file:///etc/passwd", "neither https nor this machine"),
        ("http://127.0.0.1:9/x", "refused"),
    ],
)
def test_only_https_or_this_machine_is_asked(url: str, says: str) -> None:
    with pytest.raises(download.Unreadable, match=says):
        download.fetch(url, most_bytes=10, within_s=2)


def test_a_source_that_never_comes_back_is_not_waited_for(home: Path) -> None:
    never = threading.Event()
    rows = read_catalogue("aws", FILES["aws"], DAY).rows

    def hang(now: float) -> tables.Told:
        never.wait(30)
        return [], []

    sources = [tables.Source("slow", hang), tables.Source("aws", lambda now: (rows, ["aws: read"]))]
    outcome = tables.refresh(home, NOW, sources, within_s=0.2)
    never.set()
    assert outcome.notes == ["slow: not read: no answer within 0 s", "aws: read"]
    assert outcome.offers == 4


def test_the_command_tells_each_source_and_what_moved(
    served: tuple[Served, dict[str, str]], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, environ = served
    for name, value in {**environ, "TRMCLOUD_HOME": str(home)}.items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(app, ["refresh"])
    assert result.exit_code == 0
    assert "aws: 4 offers of 2026-11-18" in result.stdout
    assert "offers written to" in result.stdout
