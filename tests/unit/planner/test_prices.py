"""Prices: where they come from, what newer quotes change, and what can be charged."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.documents import document_in
from tests.standins.loopback import Handler, serving_at
from tests.unit.skypilot.rig import KEYS, request
from trmcloud import wiring_plans
from trmcloud.adapters.files import load_recipe
from trmcloud.adapters.prices import downloads, tables
from trmcloud.adapters.prices.tables import load_offers
from trmcloud.cli.commands.prices import app
from trmcloud.core.catalog.offers import DAY_S, Offer, moves, with_newer_quotes
from trmcloud.core.catalog.providers import TRAITS, traits_of
from trmcloud.core.control.renting import hard_stop_within
from trmcloud.core.control.run_state import RunState
from trmcloud.core.money import Usd, cost
from trmcloud.core.planner.candidates import kill_latency_s
from trmcloud.core.planner.planning import make_plan
from trmcloud.core.spec.plan import Candidate, Plan, plan_from_json, plan_to_json
from trmcloud.core.spec.spec import RunSpec
from trmcloud.providers.huggingface.secrets import ENV_ENDPOINT as ENV_HUB
from trmcloud.providers.runpod import offers, secrets
from trmcloud.providers.skypilot import offers as sky_offers
from trmcloud.providers.skypilot.offers import ENV_CATALOGUES, ENV_CHANGES, read_catalogue
from trmcloud.providers.skypilot.task import make_task

# -- prices -------------------------------------------------------------------------------------


NOW = 1_795_000_000.0
CATALOGUE = {
    "gpus": [
        {
            "id": "NVIDIA H100 80GB HBM3",
            "secure": True,
            "community": True,
            "price": {"secure": 4.5, "community": 2.69},
            "maxCount": {"secure": 8, "community": 2},
            "availability": "LOW",
        },
        {"id": "AMD Instinct MI300X OAM", "secure": True, "price": {"secure": 3.0}},
        {"id": "NVIDIA L4", "secure": False, "price": {"secure": 0.4}, "maxCount": {"secure": 8}},
    ]
}


@pytest.fixture
def runpod() -> Iterator[tuple[str, dict[str, Any]]]:
    """A stand-in for RunPod's catalogue, on this machine."""
    state: dict[str, Any] = {"status": 200, "body": json.dumps(CATALOGUE), "headers": {}}

    class Asked(Handler):
        def do_POST(self) -> None:
            state["asked"] = json.loads(self.read_body())
            self.do_GET()

        def do_GET(self) -> None:
            state["headers"] = dict(self.headers)
            state["path"] = self.path
            state["paths"] = [*state.get("paths", ()), self.path]
            elsewhere = {"Location": "/elsewhere"} if state["status"] == 302 else {}
            self.answer(state["status"], state["body"].encode(), headers=elsewhere)

    with serving_at(Asked) as port:
        yield f"http://127.0.0.1:{port}/v2", state


NOBODY = "http://127.0.0.1:9"


def environ(url: str, home: Path, **more: str) -> dict[str, str]:
    """RunPod alone: the prices of others are out of reach."""
    elsewhere = {ENV_CATALOGUES: NOBODY, ENV_CHANGES: NOBODY, ENV_HUB: NOBODY}
    return {secrets.ENV_API: url, "HOME": str(home), **elsewhere, **more}


def test_runpods_catalogue_becomes_a_table(runpod: tuple[str, dict[str, Any]], home: Path) -> None:
    url, state = runpod
    before = tables.load_offers(NOW, home)
    outcome = tables.refresh(
        home, NOW, wiring_plans.price_sources(environ(url, home, RUNPOD_API_KEY="k"))
    )
    assert outcome.path is not None
    assert outcome.offers == 6, "secure 1, 2, 4, 8 and community 1, 2"
    assert state["headers"]["Authorization"] == "Bearer k"
    assert state["path"].startswith("/v2/catalog/gpus?")
    after = tables.load_offers(NOW, home)
    mine = [o for o in after if o.provider == "runpod"]
    assert len(mine) == 6, "a snapshot replaces all that was known of its provider"
    assert all(o.age_days(NOW) == 0 for o in mine)
    moved = {(o.instance, old) for o, old in moves(before, after)}
    assert ("8x_H100-SXM_SECURE", Usd("31.92")) in moved
    assert len([o for o in after if o.provider != "runpod"]) == len(
        [o for o in before if o.provider != "runpod"]
    )


@pytest.mark.parametrize(("status", "body"), [(500, ""), (401, "{}"), (200, "<html>"), (200, "[]")])
def test_what_cannot_be_read_keeps_the_old_prices(
    runpod: tuple[str, dict[str, Any]], home: Path, status: int, body: str
) -> None:
    url, state = runpod
    state.update(status=status, body=body)
    outcome = tables.refresh(home, NOW, wiring_plans.price_sources(environ(url, home)))
    assert outcome.path is None
    assert any(note.startswith("runpod:") for note in outcome.notes)
    assert tables.snapshots(home) == []


def test_no_network_says_so_and_the_age(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    for key, value in environ("http://127.0.0.1:9/v2", home, TRMCLOUD_HOME=str(home)).items():
        monkeypatch.setenv(key, value)
    result = CliRunner().invoke(app, ["refresh"])
    assert result.exit_code == 11
    assert "kept the old offers: prices" in result.stdout
    assert "days old" in result.stdout
    result = CliRunner().invoke(app, ["refresh", "--json"])
    assert result.exit_code == 11
    told = document_in(result.stdout)
    assert (told["path"], told["moved"], bool(told["notes"])) == (None, [], True)


PUBLIC = {
    "data": {
        "gpuTypes": [
            {
                "id": "NVIDIA H100 80GB HBM3",
                "secureCloud": True,
                "communityCloud": True,
                "securePrice": 3.99,
                "communityPrice": 2.69,
                "maxGpuCountSecureCloud": 8,
                "maxGpuCountCommunityCloud": 2,
            },
            {"id": "NVIDIA H100 PCIe", "secureCloud": True, "securePrice": 2.89,
             "maxGpuCountSecureCloud": 1},
            {"id": "unknown", "secureCloud": True, "securePrice": 0.05},
            "nonsense",
        ]
    }
}  # fmt: skip


def test_without_a_key_runpods_prices_are_read_by_graphql(
    runpod: tuple[str, dict[str, Any]], home: Path
) -> None:
    url, state = runpod
    state["body"] = json.dumps(PUBLIC)
    outcome = tables.refresh(home, NOW, wiring_plans.price_sources(environ(url, home)))
    assert outcome.offers == 7, "secure 1, 2, 4, 8, community 1, 2; one PCIe"
    assert outcome.notes[0] == "runpod: 7 offers of 2026-11-18 (GraphQL, without a key)"
    assert state["path"] == "/graphql"
    assert "Authorization" not in state["headers"]
    assert "gpuTypes" in state["asked"]["query"]
    known = {(o.instance, o.rate) for o in tables.load_offers(NOW, home) if o.provider == "runpod"}
    assert ("8x_H100-SXM_SECURE", Usd("31.92")) in known
    assert ("1x_H100-PCIe_SECURE", Usd("2.89")) in known


@pytest.mark.parametrize(
    ("status", "key", "says"),
    [
        (410, "", "unavailable: gone (HTTP 410); with RUNPOD_API_KEY REST v2 is read instead"),
        (429, "", "unavailable: too many requests"),
        (403, "", "set RUNPOD_API_KEY"),
        (403, "k", "check RUNPOD_API_KEY"),
        (302, "k", "not read: HTTP 302"),
        (302, "", "not read: HTTP 302"),
    ],
)
def test_what_runpod_refuses_is_one_line_and_no_redirect_is_followed(
    runpod: tuple[str, dict[str, Any]], home: Path, status: int, key: str, says: str
) -> None:
    url, state = runpod
    state["status"] = status
    rows, notes = offers.price_rows(environ(url, home, RUNPOD_API_KEY=key), NOW)
    assert not rows
    assert len(notes) == 1
    assert says in notes[0]
    assert "/elsewhere" not in state["paths"]


def test_a_key_is_never_sent_in_the_clear(home: Path) -> None:
    rows, notes = offers.price_rows(environ("http://example.com/v2", home), NOW)
    assert not rows
    assert "neither https" in notes[0]


def test_list_show_and_diff(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv("TRMCLOUD_HOME", str(home))
    runner = CliRunner()
    assert "8 × H100-SXM" in runner.invoke(app, ["list"]).stdout
    assert "historic" in runner.invoke(app, ["list", "--guides"]).stdout
    assert document_in(runner.invoke(app, ["list", "--json"]).stdout)["offers"]
    assert "989 dense" in runner.invoke(app, ["show", "h100-sxm"]).stdout
    assert "no snapshot yet" in runner.invoke(app, ["diff"]).stdout
    assert os.environ["TRMCLOUD_HOME"] == str(home)


# -- SkyPilot's public catalogues, served on loopback in the layouts that they have -------------


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

    class Catalogues(Handler):
        protocol_version = "HTTP/1.0"

        def do_GET(self) -> None:
            state.asked.append(self.path)
            path, _, query = self.path.partition("?")
            if path == "/commits":
                asked = dict(part.split("=") for part in query.split("&"))
                date = state.changed.get(asked["path"])
                found = [{"sha": "0", "commit": {"committer": {"date": date}}}] if date else []
                self._tell(200, json.dumps(found).encode())
                return
            self._tell(*state.files.get(path, (404, b"404: Not Found")))

        def _tell(self, status: int, body: bytes) -> None:
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

    with serving_at(Catalogues) as port:
        base = f"http://127.0.0.1:{port}"
        yield (
            state,
            {
                sky_offers.ENV_CATALOGUES: base,
                sky_offers.ENV_CHANGES: f"{base}/commits",
                "TRMCLOUD_RUNPOD_API": "http://127.0.0.1:9/v2",
                "HOME": "/nonexistent",
            },
        )


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


def refreshed(home: Path, environ: dict[str, str]) -> tuple[tables.RefreshResult, list[Offer]]:
    outcome = tables.refresh(home, NOW, wiring_plans.price_sources(environ))
    return outcome, tables.load_offers(NOW, home)


def test_refresh_reads_every_cloud_alone(served: tuple[Served, dict[str, str]], home: Path) -> None:
    state, environ = served
    outcome, offers = refreshed(home, environ)
    assert outcome.path is not None
    told = dict(note.split(": ", 1) for note in outcome.notes)
    assert told["aws"] == "4 offers of 2026-11-18 (SkyPilot's v8)"
    assert told["digitalocean"].startswith(
        "not read: the date of its SkyPilot catalogue is not known (the answer has no date)"
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
    assert told["aws"] == "not read: the answer is not a table"
    assert told["gcp"] == "not read: HTTP 503"
    assert told["lambda"] == "not read: the answer is not text"
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
def test_a_line_that_drips_or_never_ends(served: tuple[Served, dict[str, str]], how: str) -> None:
    state, environ = served
    setattr(state, how, True)
    url = environ[sky_offers.ENV_CATALOGUES] + "/v8/aws/vms.csv"
    begun = time.monotonic()
    with pytest.raises(downloads.DownloadError, match=r"no answer within|larger than 1 MiB"):
        downloads.fetch(url, most_bytes=1 << 20, within_s=0.5)
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://example.com/x", "neither an https address nor on this machine"),
        ("file:///etc/passwd", "neither an https address nor on this machine"),
        ("http://127.0.0.1:9/x", "refused"),
    ],
)
def test_only_https_or_this_machine_is_asked(url: str, says: str) -> None:
    with pytest.raises(downloads.DownloadError, match=says):
        downloads.fetch(url, most_bytes=10, within_s=2)


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


# -- What newer quotes say of older ones --------------------------------------------------------


def offer(rate: str, days: float, **more: object) -> Offer:
    base = Offer(
        "H100-SXM", 8, "nebius", "eu-north1", "i", Usd(rate), False, NOW - days * DAY_S, "test"
    )
    return base._replace(**more)  # type: ignore[arg-type]


def planned(*offers: Offer) -> list[str]:
    return [o.quoted.plain() for o in with_newer_quotes(offers, NOW)]


def late(*offers: Offer) -> list[str]:
    return [o.late_rate(NOW).plain() for o in with_newer_quotes(offers, NOW)]


def test_the_dearest_newer_quote_is_planned_with() -> None:
    assert planned(offer("23.6", 260), offer("38", 50), offer("36", 20)) == ["38", "38", "36"]
    assert planned(offer("23.6", 260), offer("36", 50)) == ["36", "36"]
    assert late(offer("23.6", 260), offer("36", 50)) == ["46.8", "46.8"], "itself old"
    assert planned(offer("23.6", 260), offer("36", 20)) == ["36", "36"]
    assert late(offer("40", 100), offer("36", 20)) == ["40", "36"], "no margin: it is known"


def test_without_a_newer_one_age_makes_it_dearer_at_p90() -> None:
    assert late(offer("10", 29)) == ["10"]
    assert late(offer("10", 40)) == ["13"]
    assert late(offer("10", 200), offer("9", 200)) == ["16", "14.4"]
    assert planned(offer("10", 200), offer("9", 200)) == ["10", "9"]


@pytest.mark.parametrize(
    "other",
    [
        {"provider": "verda"},
        {"sku": "H200"},
        {"spot": True},
        {"tier": "community"},
        {"own": True},
    ],
)
def test_other_things_tell_nothing(other: dict[str, object]) -> None:
    first, _ = planned(offer("20", 20), offer("36", 1, **other))
    assert first == "20"


def test_any_region_and_any_count_tell_by_gpu_the_same_count_first() -> None:
    assert planned(offer("20", 20), offer("36", 1, region="any"))[0] == "36"
    assert planned(offer("20", 20), offer("4.5", 1, gpus=1, region="us-central1"))[0] == "36"
    assert planned(offer("20", 20), offer("5", 1, gpus=1), offer("36", 1, region="x"))[0] == "36"


def test_own_prices_stay_as_they_are() -> None:
    assert planned(offer("20", 200, own=True), offer("36", 1))[0] == "20"


def test_spot_knows_what_it_costs_on_demand() -> None:
    spot, *_ = with_newer_quotes(
        [offer("9", 5, spot=True), offer("50", 5), offer("60", 5, region="x")], NOW
    )
    assert spot.on_demand == Usd(50), "the very machine"
    assert (spot.planned_rate(NOW), spot.most_rate(NOW)) == (Usd(9), Usd(50))
    spot, *_ = with_newer_quotes([offer("9", 5, spot=True), offer("7", 5, gpus=1)], NOW)
    assert spot.on_demand == Usd(56), "else by GPU"
    spot, *_ = with_newer_quotes(
        [offer("9", 5, spot=True), offer("50", 200), offer("55", 3, gpus=8)], NOW
    )
    assert spot.on_demand == Usd(55)
    (spot,) = with_newer_quotes([offer("9", 5, spot=True)], NOW)
    assert spot.most_rate(NOW) is None
    together = with_newer_quotes([offer("9", 5, spot=True), offer("50", 5)], NOW)[0].on_machines(2)
    assert (together.rate, together.on_demand) == (Usd(18), Usd(100))


@pytest.mark.parametrize(("spot", "community"), [(False, False), (True, False), (False, True)])
def test_what_is_left_out_told_nothing_of_what_stays(spot: bool, community: bool) -> None:
    def stays(one: Offer) -> bool:
        return (spot or not one.spot) and (community or not one.is_community)

    offers = load_offers(NOW)
    assert any(one.spot for one in offers), "else this shows nothing"
    left = with_newer_quotes([one for one in offers if stays(one)], NOW)
    assert left == [one for one in with_newer_quotes(offers, NOW) if stays(one)]


# -- What a plan reserves covers what its provider can charge, and not only what was quoted -----


NEBIUS_H100 = Usd("4.50")
"""Asked for one GPU on 2026-10-24, by public trackers of its price list."""


def planned_charged(budget: int, provider: str, **wish: Any) -> Plan:
    spec = RunSpec(
        recipe="trm", phases=("fast", "extreme"), hardware="8xH100", budget=Usd(budget),
        providers=(provider,), **wish,
    )  # fmt: skip
    return make_plan(spec, load_recipe("trm"), load_offers(NOW), NOW, "p-0000")


def charged(candidate: Candidate, rate: Usd) -> Usd:
    """At ``rate`` (USD/h), from the pod's start until it is killed at the latest."""
    return cost(rate, candidate.hard_stop_s + kill_latency_s(candidate.provider))


def launchable(plan: Plan) -> list[Candidate]:
    found = [plan.candidate(name) for name in plan.launchable]
    assert found
    return found


@pytest.mark.parametrize("budget", [100, 1000])
def test_a_spot_plan_survives_the_price_on_demand(budget: int) -> None:
    # 8 H100 of AWS in the United States cost $55.04 on demand, and some spot zone $9.37: $100 of it
    # could have cost $449.
    plan = planned_charged(budget, "aws", spot=True, bucket="s3://b/x")
    spots = [c for c in launchable(plan) if c.spot]
    assert spots
    for candidate in spots:
        on_demand = max(
            offer.rate
            for offer in load_offers(NOW)
            if (offer.provider, offer.region) == (candidate.provider, candidate.region)
            and (offer.sku, offer.gpus, offer.spot) == (candidate.sku, candidate.gpus, False)
        )
        assert on_demand > candidate.rate
        assert charged(candidate, on_demand) <= Usd(budget)
        assert candidate.worst_case <= plan.reservation <= Usd(budget)
        assert candidate.cost_p50 < charged(candidate, on_demand), "what is expected stays spot's"


def test_an_old_quote_survives_what_is_asked_by_now() -> None:
    # Quoted at $2.95 in March: $1,000 of it could have cost $1,171 at November's price.
    for candidate in launchable(planned_charged(1000, "nebius")):
        assert charged(candidate, NEBIUS_H100 * candidate.gpus) <= Usd(1000)


def test_where_nothing_caps_the_rent_it_says_so_and_by_how_much() -> None:
    (candidate, *_) = launchable(planned_charged(1000, "aws"))
    told = [reason for _, reason in candidate.reasons if "the rent at aws has no cap" in reason]
    assert (
        f"{charged(candidate, candidate.reserved_rate).amount / 10:.2f} more can be spent"
        in (told[0])
    )
    (checked, *_) = launchable(planned_charged(1000, "runpod"))
    assert not any("has no cap" in reason for _, reason in checked.reasons)
    shown = {name for name, traits in TRAITS.items() if traits.prices.shows_rate}
    assert shown == {"local", "runpod", "huggingface", "vast"}


def test_spot_without_a_known_price_on_demand_is_never_launched() -> None:
    offers = [o for o in load_offers(NOW) if o.provider == "aws" and o.spot and o.sku == "H100-SXM"]
    spec = RunSpec(recipe="trm", phases=("fast",), hardware="8xH100", spot=True, bucket="s3://b/x")
    plan = make_plan(spec, load_recipe("trm"), offers, NOW, "p-0000")
    assert plan.candidates
    assert not plan.launchable
    assert plan.recommended is None
    assert any(
        "its on-demand price is not known, so its spot price has no known limit" in reason
        for _, reason in plan.candidates[0].reasons
    )


def test_one_rate_from_the_reservation_to_the_request() -> None:
    plan = planned_charged(100, "aws", spot=True, bucket="s3://b/x")
    candidate = next(c for c in launchable(plan) if c.spot)
    assert candidate.rate < candidate.reserved_rate
    run = RunState("r1", reserved=plan.reservation)
    # What is left of the budget after a failed try buys as little as on demand, too.
    stop_s = hard_stop_within(candidate, run, traits_of("aws"))
    assert stop_s <= candidate.hard_stop_s
    assert charged(replace(candidate, hard_stop_s=stop_s), candidate.reserved_rate) <= Usd(100)
    run = RunState("r1", reserved=Usd(50))
    stop_s = hard_stop_within(candidate, run, traits_of("aws"))
    assert charged(replace(candidate, hard_stop_s=stop_s), candidate.reserved_rate) <= Usd(50)
    asked = replace(request(region=candidate.region), spot=True, rate=candidate.reserved_rate)
    task = json.loads(make_task("aws", asked, KEYS, "boot.tar.gz", NOW, {}))
    assert task["resources"]["max_hourly_cost"] == float(candidate.reserved_rate)
    assert candidate == plan_from_json(plan_to_json(plan)).candidate(candidate.id)
