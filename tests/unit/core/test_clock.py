"""A deadline is the earlier of two clocks, and nothing moves it later."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trmcloud.core.clock import Anchor, Instant

SEEN = Instant(wall=1000.0, boot=50.0, boot_id="a")
DEADLINE = Anchor(1100.0, SEEN, 100.0)

moments = st.floats(0, 10**6)


def test_both_clocks_running_alike_agree() -> None:
    assert DEADLINE.seconds_left(SEEN) == 100.0
    assert DEADLINE.seconds_left(Instant(1030.0, 80.0, "a")) == 70.0
    assert DEADLINE.seconds_left(Instant(1130.0, 180.0, "a")) == -30.0


@pytest.mark.parametrize(
    ("wall", "boot", "left_s"),
    [
        (500.0, 80.0, 70.0),  # set back: the boot clock still counts
        (-86_400.0, 160.0, -10.0),  # set back by a day
        (1090.0, 51.0, 10.0),  # set forward: the wall clock says sooner
        (4600.0, 51.0, -3500.0),  # set forward by an hour
    ],
)
def test_a_clock_that_is_set_never_extends_a_deadline(
    wall: float, boot: float, left_s: float
) -> None:
    assert DEADLINE.seconds_left(Instant(wall, boot, "a")) == left_s


def test_after_a_reboot_only_the_wall_clock_is_left() -> None:
    assert DEADLINE.seconds_left(Instant(1030.0, 2.0, "b")) == 70.0
    assert DEADLINE.seconds_left(Instant(1030.0, 900.0, "b")) == 70.0


def test_a_reboot_wins_no_time_where_the_setters_clock_was_ahead() -> None:
    ahead = Anchor(5000.0, SEEN, 100.0)
    assert ahead.seconds_left(Instant(1030.0, 80.0, "a")) == 70.0
    assert ahead.seconds_left(Instant(1030.0, 2.0, "b")) == 70.0
    assert ahead.seconds_left(Instant(900.0, 2.0, "b")) == 100.0, "set back, it wins none either"


def test_a_deadline_that_had_passed_when_first_seen_stays_passed() -> None:
    late = Anchor(900.0, SEEN, -100.0)
    assert late.seconds_left(SEEN) == -100.0
    assert late.seconds_left(Instant(100.0, 50.0, "a")) == 0.0
    assert late.seconds_left(Instant(100.0, 60.0, "a")) == -10.0


@given(moments, moments, moments, moments)
def test_seconds_left_never_exceed_what_either_clock_allows(
    deadline_at: float, seen_wall: float, wall: float, passed_s: float
) -> None:
    anchor = Anchor(deadline_at, Instant(seen_wall, 5.0, "a"), deadline_at - seen_wall)
    left = anchor.seconds_left(Instant(wall, 5.0 + passed_s, "a"))
    assert left <= deadline_at - wall
    assert left <= max(0.0, deadline_at - seen_wall) - (5.0 + passed_s - 5.0) + 1e-6
    later = anchor.seconds_left(Instant(wall, 5.0 + passed_s + 1, "a"))
    assert later <= left, "time that passes never adds time"


def test_what_has_passed_is_told_by_the_clock_that_nobody_sets() -> None:
    earlier = Instant(1000.0, 50.0, "a")
    assert Instant(9000.0, 80.0, "a").since(earlier) == 30.0
    assert Instant(1040.0, 10.0, "b").since(earlier) == 40.0
    assert Instant(1040.0, 80.0).since(Instant(1000.0, 0.0)) == 40.0, "one that has no name is none"
