"""The requests that the processes of one home share: limits, priorities, pauses, and the file."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trmcloud.providers.registry  # noqa: F401 (fills the traits)
from trmcloud.adapters.request_budget import Priority, RequestBudget, budget_of
from trmcloud.core.catalog.providers import RequestLimit
from trmcloud.ports.compute import ThrottledError

AT = 1_800_000_000.0
MINUTE = (RequestLimit(60, 60.0),)


class Time:
    def __init__(self) -> None:
        self.at = AT

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "requests" / "runpod-0.json"


def budget(
    path: Path | None, time: Time, limits: tuple[RequestLimit, ...] = MINUTE, told: bool = False
) -> RequestBudget:
    return RequestBudget(
        path,
        limits,
        seller="RunPod",
        unlimited_unless_told=told,
        now=time.now,
        sleep=time.sleep,
    )


def taken(of: RequestBudget, priority: Priority = Priority.ORDINARY, most: int = 1000) -> int:
    """How many can be had at once."""
    for count in range(most):
        try:
            of.take(priority, 0.0)
        except ThrottledError:
            return count
    return most


@given(
    st.lists(
        st.tuples(st.floats(0.0, 40.0), st.integers(1, 40), st.sampled_from(list(Priority)[:2])),
        max_size=30,
    ),
    st.sampled_from([(60, 60.0), (7, 10.0), (1000, 300.0), (2, 1.0)]),
)
def test_no_window_has_more_requests_than_its_limit(
    bursts: list[tuple[float, int, Priority]], limit: tuple[int, float]
) -> None:
    time, sent = Time(), list[float]()
    of = budget(None, time, (RequestLimit(*limit),))
    for pause_s, count, priority in bursts:
        time.at += pause_s
        for _ in range(count):
            of.take(priority, 1e9)
            sent.append(time.at)
    most, window_s = limit
    for first, later in zip(sent, sent[most:], strict=False):
        assert later - first >= window_s - 1e-3


def test_all_processes_of_a_home_take_from_one_budget(path: Path, time: Time) -> None:
    one, other = budget(path, time), budget(path, time)
    assert taken(one) == 18, "an ordinary request leaves two fifths of 30"
    assert taken(other) == 0
    time.at += 10.0
    assert taken(other) == 5


def test_lists_and_ends_have_what_others_must_leave(path: Path, time: Time) -> None:
    of = budget(path, time)
    assert taken(of) == 18
    assert taken(of, Priority.LIST) == 9
    assert taken(of, Priority.END) == 1000, "an end is never kept waiting"
    assert taken(of, Priority.LIST) == 0, "and is counted all the same"


def test_it_waits_no_longer_than_it_may(path: Path, time: Time) -> None:
    of = budget(path, time)
    taken(of)
    with pytest.raises(ThrottledError, match="sent too many requests to RunPod") as told:
        of.take(Priority.ORDINARY, 1.9, "RunPod, GET /v2/pods")
    assert (told.value.where, told.value.sent) == ("RunPod, GET /v2/pods", False)
    assert told.value.retry_after_s == pytest.approx(2.0)
    assert time.at == AT
    assert of.take(Priority.ORDINARY, 2.1) == pytest.approx(2.0)


def test_a_pause_that_one_is_asked_for_is_kept_by_all(path: Path, time: Time) -> None:
    one, other = budget(path, time), budget(path, time)
    one.hold(30.0)
    for priority in (Priority.ORDINARY, Priority.LIST):
        with pytest.raises(ThrottledError) as told:
            other.take(priority, 29.0)
        assert told.value.retry_after_s == pytest.approx(30.0)
    assert other.take(Priority.END, 0.0) == pytest.approx(10.0), "an end is tried after 10 s"
    one.hold(None)
    with pytest.raises(ThrottledError):
        other.take(Priority.LIST, 19.0)
    assert other.take(Priority.LIST, 21.0) == pytest.approx(20.0), "no pause shortens another"


def test_a_pause_of_hours_keeps_no_list_for_longer_than_three_minutes(
    path: Path, time: Time
) -> None:
    of = budget(path, time)
    of.hold(86_400.0)
    with pytest.raises(ThrottledError):
        of.take(Priority.LIST, 179.0)
    time.at += 180.0
    assert of.take(Priority.LIST, 0.0) == 0.0
    with pytest.raises(ThrottledError):
        of.take(Priority.ORDINARY, 119.0)
    time.at += 120.0
    assert of.take(Priority.ORDINARY, 0.0) == 0.0


@pytest.mark.parametrize("named_s", [None, 0.0, 1.0])
@pytest.mark.parametrize(
    ("priority", "longest_s"), [(Priority.ORDINARY, 300.0), (Priority.LIST, 180.0)]
)
def test_each_further_429_doubles_the_pause_whatever_time_it_names(
    path: Path, time: Time, named_s: float | None, priority: Priority, longest_s: float
) -> None:
    one, other = budget(path, time), budget(path, time)
    pauses = []
    for of in (one, other) * 6:
        pauses.append(of.take(priority, 3600.0))
        of.hold(named_s)
    first_s = {None: 2.0, 0.0: 0.0, 1.0: 1.0}[named_s]
    doubled = [first_s]
    while len(doubled) < 11:
        doubled.append(min(max(2.0, 2.0 * doubled[-1]), 300.0))
    assert pauses == pytest.approx([0.0, *(min(each, longest_s) for each in doubled)], abs=0.1)


def test_the_pauses_end_with_a_success_or_after_a_long_silence(path: Path, time: Time) -> None:
    of = budget(path, time)
    for _ in range(10):
        of.take(Priority.LIST, 3600.0)
        of.hold(None)
    of.take(Priority.LIST, 3600.0)
    of.learn(None, None)
    assert of.take(Priority.ORDINARY, 0.0) == 0.0, "what was left of the pause is over"
    of.hold(None)
    assert of.take(Priority.LIST, 3600.0) == pytest.approx(2.0)
    of.hold(None)
    time.at += 4.0 + 4.0 + 900.0
    of.take(Priority.LIST, 0.0)
    of.hold(None)
    assert of.take(Priority.LIST, 3600.0) == pytest.approx(8.0), "that was not long"
    of.hold(None)
    time.at += 16.0 + 16.0 + 901.0
    of.take(Priority.LIST, 0.0)
    of.hold(None)
    assert of.take(Priority.LIST, 3600.0) == pytest.approx(2.0)


def test_a_request_that_was_under_way_neither_doubles_a_pause_nor_ends_it(
    path: Path, time: Time
) -> None:
    one, other, third = (budget(path, time) for _ in range(3))
    for each in (one, other, third):
        each.take(Priority.ORDINARY, 0.0)
    one.hold(30.0)
    other.hold(None)
    third.learn(None, None)
    assert third.take(Priority.ORDINARY, 3600.0) == pytest.approx(30.0)


def test_the_429s_of_ends_keep_no_list_waiting(path: Path, time: Time) -> None:
    """A list must go out while ends are refused for an hour, since a pod may have ended itself."""
    ends, lists = budget(path, time), budget(path, time)
    ends.hold(3600.0)
    for _ in range(17):
        ends.take(Priority.END, 0.0)
        ends.hold(3600.0)
    with pytest.raises(ThrottledError) as told:
        lists.take(Priority.LIST, 0.0)
    assert told.value.retry_after_s == pytest.approx(10.0, abs=0.1)
    ends.learn(None, None)
    with pytest.raises(ThrottledError):
        lists.take(Priority.LIST, 9.0)
    lists.take(Priority.LIST, 11.0)
    lists.learn(None, None)
    assert ends.take(Priority.ORDINARY, 0.0) == 0.0


RUNPODS = '"minute";q=120;w=60,"hour";q=3000;w=3600,"day";q=50000;w=86400'
HUBS = '"fixed window";"api";q=2500;w=300'


@pytest.mark.parametrize(("policy", "most"), [(RUNPODS, 36), (HUBS, 750)])
def test_what_a_provider_states_takes_the_place_of_what_is_documented(
    path: Path, time: Time, policy: str, most: int
) -> None:
    one, other = budget(path, time), budget(path, time)
    one.learn(policy, '"minute";r=9;t=5')
    assert taken(other) == most
    one.learn(policy, '"minute";r=0;t=50')
    with pytest.raises(ThrottledError) as told:
        other.take(Priority.LIST, 0.0)
    assert told.value.retry_after_s == pytest.approx(50.0)


def test_an_answer_without_limits_means_none_where_its_provider_says_so(
    path: Path, time: Time
) -> None:
    strict, free = budget(None, time), budget(path, time, told=True)
    strict.learn(None, None)
    assert taken(strict) == 18
    assert taken(free) == 18
    free.learn(None, None)
    assert taken(free) == 1000
    assert taken(budget(path, time, told=True)) == 1000, "another process knows it too"


@pytest.mark.parametrize(
    "policy", ["", "q=5", '"x";q=0;w=60', '"x";q=5;w=0', '"x";q=-5;w=60', '"x";q=99999999999;w=1']
)
def test_limits_that_cannot_be_are_not_taken_over(path: Path, time: Time, policy: str) -> None:
    of = budget(path, time)
    of.learn(policy, None)
    assert taken(of) == 18


def test_a_clock_that_is_set_neither_adds_requests_nor_holds_them_back(
    path: Path, time: Time
) -> None:
    of = budget(path, time)
    of.hold(30.0)
    taken(of, Priority.END, 30)
    time.at -= 7200.0
    assert taken(of, Priority.LIST) == 0
    time.at += 30.0
    assert taken(of, Priority.LIST) == 12


@pytest.mark.parametrize(
    "text",
    [
        "{", "[]", "\0" * 30, "9" * 5000, '{"version": 1}', '{"version": 2}',
        json.dumps({"version": 1, "at": AT, "limits": [[60, 60]], "levels": [],
                    "held_at": 0, "hold_until": 0, "paused_at": 0}),
        json.dumps({"version": 1, "at": AT, "limits": [[60, 60]], "levels": [-1e9],
                    "held_at": 0, "hold_until": 0, "paused_at": 0}),
        '{"version": 1, "at": NaN, "limits": [], "levels": [],'
        ' "held_at": 0, "hold_until": 0, "paused_at": 0}',
        '{"version": 1, "at": 1, "limits": [], "levels": [],'
        ' "held_at": 0, "hold_until": 0, "paused_at": 1}',
        '{"version": 1, "at": 1, "limits": [[0, 0]], "levels": [0],'
        ' "held_at": 0, "hold_until": 0, "paused_at": 0}',
    ],
)  # fmt: skip
def test_a_damaged_file_is_begun_anew_and_that_is_said_once(
    path: Path, time: Time, text: str
) -> None:
    path.parent.mkdir()
    path.write_text(text)
    of = budget(path, time)
    with pytest.warns(UserWarning, match="it is damaged, and was created again"):
        of.take(Priority.ORDINARY, 0.0)
    path.write_text(text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        of.take(Priority.ORDINARY, 0.0)
    assert json.loads(path.read_text())["levels"] == [29.0]


def test_a_file_that_cannot_be_written_is_done_without(tmp_path: Path, time: Time) -> None:
    (tmp_path / "requests").write_text("a file where the folder would be")
    of = budget(tmp_path / "requests" / "x.json", time)
    with pytest.warns(UserWarning, match="requests are counted only for this command") as said:
        assert taken(of) == 18
    assert len(said) == 1


def test_a_link_is_not_followed(path: Path, time: Time) -> None:
    path.parent.mkdir()
    other = path.with_name("other")
    other.write_text("theirs")
    path.symlink_to(other)
    with pytest.warns(UserWarning, match="requests are counted only for this command"):
        budget(path, time).take(Priority.END, 0.0)
    assert other.read_text() == "theirs"


def test_its_file_says_nothing_of_the_key(tmp_path: Path) -> None:
    of = budget_of(tmp_path, "runpod", "rpa_SECRET")
    of.take(Priority.ORDINARY, 0.0)
    (file,) = (tmp_path / "requests").iterdir()
    assert file.name.startswith("runpod-")
    assert "SECRET" not in file.name + file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    assert budget_of(tmp_path, "runpod", "rpa_OTHER").take(Priority.ORDINARY, 0.0) == 0.0
    assert len(list((tmp_path / "requests").iterdir())) == 2


def test_a_process_that_stands_still_with_the_lock_stops_nobody(path: Path, time: Time) -> None:
    import fcntl

    of = budget(path, time)
    of.take(Priority.ORDINARY, 0.0)
    held = os.open(path, os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert of.take(Priority.END, 0.0) == 0.0
    finally:
        os.close(held)
