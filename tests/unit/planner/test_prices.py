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

from trmcloud import wiring_plans
from trmcloud.adapters.prices import tables
from trmcloud.cli.commands.prices import app
from trmcloud.core.catalog.offers import moves
from trmcloud.core.money import Usd
from trmcloud.providers.runpod import offers, secrets
from trmcloud.providers.skypilot.offers import ENV_CATALOGUES, ENV_CHANGES

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
        def do_POST(self) -> None:
            state["asked"] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.do_GET()

        def do_GET(self) -> None:
            state["headers"] = dict(self.headers)
            state["path"] = self.path
            state["paths"] = [*state.get("paths", ()), self.path]
            self.send_response(state["status"])
            if state["status"] == 302:
                self.send_header("Location", "/elsewhere")
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


NOBODY = "http://127.0.0.1:9"


def environ(url: str, home: Path, **more: str) -> dict[str, str]:
    """RunPod alone: SkyPilot's catalogues are out of reach."""
    elsewhere = {ENV_CATALOGUES: NOBODY, ENV_CHANGES: NOBODY}
    return {secrets.ENV_API: url, "HOME": str(home), **elsewhere, **more}


def test_runpods_catalogue_becomes_a_dated_snapshot(
    runpod: tuple[str, dict[str, Any]], home: Path
) -> None:
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
    assert "kept what there was: prices" in result.stdout
    assert "days old" in result.stdout


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
        (429, "", "unavailable: asked too often"),
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
    assert "not https" in notes[0]


def test_list_show_and_diff(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv("TRMCLOUD_HOME", str(home))
    runner = CliRunner()
    assert "8 × H100-SXM" in runner.invoke(app, ["list"]).stdout
    assert "historic" in runner.invoke(app, ["list", "--guides"]).stdout
    assert json.loads(runner.invoke(app, ["list", "--json"]).stdout)
    assert "989 dense" in runner.invoke(app, ["show", "h100-sxm"]).stdout
    assert "no snapshot yet" in runner.invoke(app, ["diff"]).stdout
    assert os.environ["TRMCLOUD_HOME"] == str(home)
