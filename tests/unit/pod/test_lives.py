"""A run's time is given once, however often its script is started."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.errors import ConflictError
from trmcloud.pod.agent.attempts import (
    PAID,
    RECORD_NAME,
    WALL,
    Life,
    Lives,
    ended_at,
    read_lives,
    report_of,
    used_s,
    write_lives,
)

T = 1_795_000_000.0


def lives(*starts: float, again: int = 0) -> Lives:
    rows = tuple(Life(n, f"pod{n}", T + at, again=n == again) for n, at in enumerate(starts, 1))
    return Lives("r-0a1b2c", "0a1b2c3d", "trm", rows)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_lives(tmp_path) is None
    made = lives(0, 50).gave_up("no room")
    write_lives(tmp_path, made)
    assert read_lives(tmp_path) == made
    assert made.last is not None
    assert made.last.gave_up == "no room"
    assert made.lives[0].gave_up == ""


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"lives": [{}]}', '{"lives": 3}', '{"lives": [], "version": 2}']
)
def test_a_damaged_record_gives_no_time_anew(text: str, tmp_path: Path) -> None:
    (tmp_path / RECORD_NAME).write_text(text)
    with pytest.raises(ConflictError, match="cannot be read"):
        read_lives(tmp_path)


@pytest.mark.parametrize(
    ("clock", "now", "seconds"),
    [
        (WALL, 500.0, 500.0),  # what lies between two starts is rented, too
        (PAID, 500.0, 30.0 + 20.0),
        (WALL, -100.0, 220.0),  # a clock that was set back gives nothing back
    ],
)
def test_what_is_used_by_each_clock(clock: str, now: float, seconds: float) -> None:
    ends = {1: T + 30, 2: T + 220}
    assert used_s(lives(0, 200), ends, clock, T + now) == seconds


@pytest.mark.parametrize("clock", [WALL, PAID])
def test_time_given_anew_counts_from_there(clock: str) -> None:
    ends = {1: T + 30, 2: T + 220, 3: T + 320}
    assert used_s(lives(0, 200, 300, again=2), ends, clock, T + 320) == (
        120.0 if clock == WALL else 40.0
    )
    assert used_s(lives(), {}, clock, T) == 0.0


def test_an_end_is_what_the_watchdog_noted_or_a_moment_after_the_last_sign(tmp_path: Path) -> None:
    made = lives(0)
    life = made.lives[0]
    pod_dir = tmp_path / contract.PODS_DIR / life.pod
    pod_dir.mkdir(parents=True)
    assert ended_at(tmp_path, made, life) == T + 2.0
    beat = tmp_path / contract.RUNS_DIR / made.run_id / "fast" / contract.HEARTBEAT_NAME
    beat.parent.mkdir(parents=True)
    for path, at in ((pod_dir / "agent.json", T + 40), (beat, T + 60)):
        path.write_text("{}")
        os.utime(path, (at, at))
    assert ended_at(tmp_path, made, life) == T + 62.0
    (pod_dir / contract.ENDED_NAME).write_text(json.dumps({"at": T + 55, "reason": "done"}))
    assert ended_at(tmp_path, made, life) == T + 55


def test_a_report_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    life = lives(0).lives[0]
    assert report_of(tmp_path, life) is None
    pod_dir = tmp_path / contract.PODS_DIR / life.pod
    pod_dir.mkdir(parents=True)
    (pod_dir / contract.REPORT_NAME).write_text("{]")
    assert report_of(tmp_path, life) is None
