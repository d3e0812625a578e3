"""A restarted container, a rebooted host and a clock that is set win the pod no time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.pod.leases import HARD_STOP_S, a_lease
from trmcloud.core.clock import Instant
from trmcloud.pod.agent.lease_clock import AnchorNote
from trmcloud.pod.agent.lease_clock_file import AnchorFile
from trmcloud.pod.agent.watchdog import HARD_STOP_GRACE_S, Watchdog

GRANTED = 1_700_000_000.0
LEASE = a_lease(GRANTED)


def seconds_left(folder: Path, now: Instant, lease: object = LEASE) -> float:
    """What a watchdog that starts now, in a container started anew, believes to have."""
    guard = Watchdog(AnchorFile(folder))
    look = {"agent_runs": False, "agent_done": False, "told": False, "result": None}
    guard.look(now, lease, **look)  # type: ignore[arg-type]
    left = guard.seconds_left(now)
    assert left is not None
    return left - HARD_STOP_GRACE_S


def test_a_restart_goes_on_where_the_first_start_stood(tmp_path: Path) -> None:
    assert seconds_left(tmp_path, Instant(GRANTED, 50.0, "a")) == pytest.approx(HARD_STOP_S)
    assert seconds_left(tmp_path, Instant(GRANTED + 400, 450.0, "a")) == pytest.approx(200.0)


def test_a_clock_set_back_across_a_restart_does_not_extend_the_deadline(tmp_path: Path) -> None:
    seconds_left(tmp_path, Instant(GRANTED, 50.0, "a"))
    assert seconds_left(tmp_path, Instant(GRANTED - 3600, 450.0, "a")) == pytest.approx(200.0)
    assert seconds_left(tmp_path, Instant(GRANTED - 3600, 700.0, "a")) == pytest.approx(-50.0)


def test_a_watchdog_that_starts_after_the_deadline_ends_the_pod_at_once(tmp_path: Path) -> None:
    seconds_left(tmp_path, Instant(GRANTED, 50.0, "a"))
    guard = Watchdog(AnchorFile(tmp_path))
    late = Instant(GRANTED - 7200, 50.0 + HARD_STOP_S + 2, "a")
    act = guard.look(late, LEASE, agent_runs=False, agent_done=False, told=False, result=None)
    assert (act, guard.why) == (Watchdog.END, "hard stop")


def test_without_its_note_the_clock_set_back_would_have_won(tmp_path: Path) -> None:
    """What the note is for: this is the time that a forgetful watchdog would grant."""
    seconds_left(tmp_path, Instant(GRANTED, 50.0, "a"))
    (tmp_path / "anchor.json").unlink()
    left = seconds_left(tmp_path, Instant(GRANTED - 3600, 450.0, "a"))
    assert left == pytest.approx(HARD_STOP_S)


def test_after_a_reboot_the_deadline_is_no_further_than_when_it_was_first_seen() -> None:
    note = AnchorNote(1, Instant(GRANTED + 500, 50.0, "a"), lost_s=500.0)
    seen_late = note.anchor(GRANTED + 600, GRANTED)
    set_back = Instant(GRANTED, 2.0, "b")
    assert seen_late.seconds_left(set_back) == pytest.approx(100.0)


def test_a_lease_of_a_newer_epoch_is_anchored_anew(tmp_path: Path) -> None:
    guard = Watchdog(AnchorFile(tmp_path))
    look = {"agent_runs": True, "agent_done": False, "told": False, "result": None}
    guard.look(Instant(GRANTED, 50.0, "a"), LEASE, **look)  # type: ignore[arg-type]
    newer = a_lease(GRANTED + 500, epoch=2)
    now = Instant(GRANTED + 500, 550.0, "a")
    guard.look(now, newer, **look)  # type: ignore[arg-type]
    assert guard.seconds_left(now) == pytest.approx(HARD_STOP_S + HARD_STOP_GRACE_S)
    older = a_lease(GRANTED + 5000, epoch=1)
    guard.look(now, older, **look)  # type: ignore[arg-type]
    assert guard.seconds_left(now) == pytest.approx(HARD_STOP_S + HARD_STOP_GRACE_S)


def test_a_damaged_note_is_made_anew(tmp_path: Path) -> None:
    for text in ("", "{", '{"epoch": 1}', '{"epoch":1,"wall":"x","boot":0,"boot_id":""}', "[]"):
        (tmp_path / "anchor.json").write_text(text)
        assert AnchorFile(tmp_path).read_anchor() is None
    now = Instant(GRANTED, 50.0, "a")
    seconds_left(tmp_path, now)
    assert AnchorFile(tmp_path).read_anchor() == AnchorNote(1, now)


def test_a_note_that_cannot_be_written_is_passed_over(tmp_path: Path) -> None:
    now = Instant(GRANTED, 50.0, "a")
    assert seconds_left(tmp_path / "absent", now) == pytest.approx(HARD_STOP_S)


def test_a_machine_started_anew_with_a_clock_set_back_goes_on_where_the_last_look_stood(
    tmp_path: Path,
) -> None:
    guard = Watchdog(AnchorFile(tmp_path))
    look = {"agent_runs": True, "agent_done": False, "told": False, "result": None}
    for passed in (0.0, 100.0, 400.0):
        set_back_s = 3600.0 if passed > 200 else 0.0
        now = Instant(GRANTED + passed - set_back_s, 50.0 + passed, "a")
        guard.look(now, LEASE, **look)  # type: ignore[arg-type]
    once = Instant(GRANTED + 420 - 3600, 2.0, "b")
    assert seconds_left(tmp_path, once) == pytest.approx(HARD_STOP_S - 420)
    twice = Instant(GRANTED + 450 - 3600, 1.0, "c")
    assert seconds_left(tmp_path, twice) == pytest.approx(HARD_STOP_S - 450)
    right_again = Instant(GRANTED + 460, 11.0, "c")
    assert seconds_left(tmp_path, right_again) == pytest.approx(HARD_STOP_S - 460)


def test_a_clock_set_back_after_a_restart_extends_nothing(tmp_path: Path) -> None:
    """From its start on a watchdog counts by this machine's clock since boot, not by that note's
    wall clock."""
    seconds_left(tmp_path, Instant(GRANTED, 50.0, "a"))
    guard = Watchdog(AnchorFile(tmp_path))
    look = {"agent_runs": True, "agent_done": False, "told": False, "result": None}
    guard.look(Instant(GRANTED + 100, 2.0, "b"), LEASE, **look)  # type: ignore[arg-type]
    set_back = Instant(GRANTED + 300 - 3600, 202.0, "b")
    left = guard.seconds_left(set_back)
    assert left == pytest.approx(HARD_STOP_S - 300 + HARD_STOP_GRACE_S)
