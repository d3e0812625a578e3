from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trmcloud import wiring
from trmcloud.adapters import price_sources, prices
from trmcloud.adapters.runpod import offers, settings
from trmcloud.cli.prices import app
from trmcloud.core.money import Usd

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

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state["headers"] = dict(self.headers)
            state["path"] = self.path
            self.send_response(state["status"])
            self.end_headers()
            self.wfile.write(state["body"].encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v2", state
    server.shutdown()
    server.server_close()


def environ(url: str, home: Path, **more: str) -> dict[str, str]:
    return {settings.ENV_API: url, "HOME": str(home), **more}


def test_runpods_catalogue_becomes_a_dated_snapshot(
    runpod: tuple[str, dict[str, Any]], home: Path
) -> None:
    url, state = runpod
    before = prices.load_offers(NOW, home)
    outcome = prices.refresh(
        home, NOW, wiring.price_sources(environ(url, home, RUNPOD_API_KEY="k"))
    )
    assert outcome.path is not None
    assert outcome.offers == 6, "secure 1, 2, 4, 8 and community 1, 2"
    assert state["headers"]["Authorization"] == "Bearer k"
    assert state["path"].startswith("/v2/catalog/gpus?")
    after = prices.load_offers(NOW, home)
    mine = [o for o in after if o.provider == "runpod"]
    assert len(mine) == 6, "a snapshot replaces all that was known of its provider"
    assert all(o.age_days(NOW) == 0 for o in mine)
    moved = {(o.instance, old) for o, old in prices.moves(before, after)}
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
    outcome = prices.refresh(home, NOW, wiring.price_sources(environ(url, home)))
    assert outcome.path is None
    assert any(note.startswith("runpod:") for note in outcome.notes)
    assert prices.snapshots(home) == []


def test_no_network_says_so_and_the_age(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    for key, value in environ("http://127.0.0.1:9/v2", home, TRMCLOUD_HOME=str(home)).items():
        monkeypatch.setenv(key, value)
    result = CliRunner().invoke(app, ["refresh"])
    assert result.exit_code == 11
    assert "kept what there was: prices" in result.stdout
    assert "days old" in result.stdout


def test_a_key_is_never_sent_in_the_clear(home: Path) -> None:
    rows, notes = offers.price_rows(environ("http://example.com/v2", home), NOW)
    assert not rows
    assert "not https" in notes[0]


def test_skypilots_names_mean_other_chips_at_other_clouds(tmp_path: Path) -> None:
    header = (
        "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region\n"
    )
    for cloud, lines in {
        "runpod": "8x_H100_SECURE,H100,8,128,640,23.12,23.12,US\n",
        "aws": "p5.48xlarge,H100,8,192,2048,55.04,14.1,us-east-1\n"
        "p5.48xlarge,H100,8,192,2048,55.04,9.37,us-east-1\n",
    }.items():
        folder = tmp_path / "v8" / cloud
        folder.mkdir(parents=True)
        (folder / "vms.csv").write_text(header + lines)
    rows, notes = price_sources.read_skypilot(tmp_path)
    names = ("sku", "provider", "usd_per_hour", "spot_usd_per_hour")
    found = {tuple(row[name] for name in names) for row in rows}
    assert found == {
        ("H100-PCIe", "runpod", "23.12", ""),
        ("H100-SXM", "aws", "55.04", "9.37"),
    }
    assert len(notes) == 2


def test_list_show_and_diff(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv("TRMCLOUD_HOME", str(home))
    runner = CliRunner()
    assert "8 × H100-SXM" in runner.invoke(app, ["list"]).stdout
    assert "historic" in runner.invoke(app, ["list", "--guides"]).stdout
    assert json.loads(runner.invoke(app, ["list", "--json"]).stdout)
    assert "989 dense" in runner.invoke(app, ["show", "h100-sxm"]).stdout
    assert "no snapshot yet" in runner.invoke(app, ["diff"]).stdout
    assert os.environ["TRMCLOUD_HOME"] == str(home)
