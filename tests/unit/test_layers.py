"""A guard on another machine counts for as long as it keeps coming by, and reached the provider."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from trmcloud.app.kill_layers import verified_layers
from trmcloud.app.reap import Found, last_visit, note_visit
from trmcloud.core.control.events import LayerVerified
from trmcloud.wiring import build_context

ELSEWHERE = ("runpod", "guard-elsewhere")


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path))
    return tmp_path


def visit(home: Path, **changes: Any) -> None:
    note = {"at": time.time(), "host": "a-server:boot", "every_s": 300.0, "reached": ["runpod"]}
    (home / "guard.json").write_text(json.dumps(note | changes))


def test_a_fresh_visit_from_another_machine_counts_beside_what_is_on_record(home: Path) -> None:
    visit(home)
    world = build_context()
    at = world.wall()
    world.ledger.verify_layer(LayerVerified("runpod", "agent", "smoke"), at)
    found = verified_layers(world, "runpod")
    assert set(found) == {ELSEWHERE, ("runpod", "agent")}
    assert at - found[ELSEWHERE] < 60


@pytest.mark.parametrize(
    "changes",
    [
        {"host": os.uname().nodename + ":another-boot"},
        {"at": 1_000_000_000.0},
        {"reached": []},
        {"reached": ["local"]},
        {"every_s": "often"},
        {"host": None, "at": None},
    ],
)
def test_any_other_visit_does_not(home: Path, changes: dict[str, Any]) -> None:
    visit(home, **changes)
    assert ELSEWHERE not in verified_layers(build_context(), "runpod")


def test_a_visit_says_whom_it_did_not_reach(home: Path) -> None:
    (home / "runpod").mkdir(parents=True)
    world = build_context()
    note_visit(world, 300.0, Found((), (("runpod", "HTTP 503"),)))
    seen = last_visit(world)
    assert seen is not None
    assert seen.reached == ("local",)
    note_visit(world, 300.0, Found((), ()))
    seen = last_visit(world)
    assert seen is not None
    assert seen.reached == ("local", "runpod")
