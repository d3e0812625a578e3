"""SkyPilot's table of clusters: how often it is asked for, and what its rows are taken for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.skypilot.said import SaidSky
from trmcloud.core.errors import ProviderError, ProviderRefused
from trmcloud.providers.skypilot.clusters import BUSY_AT_MOST_S, LIST_FRESH_S, Clusters, is_new

NAME = "trmc-0a5bffcd-r54aa48-g1-1795258139"
EXITED = f"  {NAME}: Failed to query RunPod cluster '{NAME}' status: [KeyError] 'EXITED'"


class SlowSky:
    """Takes ``took_s`` for each list, by the clock that ``Clusters`` measures itself with."""

    def __init__(self, took_s: float) -> None:
        self.at, self.took_s, self.asked, self.said = 0.0, took_s, 0, ""
        self.rows: list[dict[str, Any]] = [{"name": NAME, "status": "UP"}]

    def read_and_said(self, *words: str) -> tuple[list[dict[str, Any]], str]:
        self.asked += 1
        self.at += self.took_s
        return self.rows, self.said


@pytest.fixture
def sky(monkeypatch: pytest.MonkeyPatch) -> SlowSky:
    made = SlowSky(took_s=30.0)
    monkeypatch.setattr("time.monotonic", lambda: made.at)
    return made


def asked_after(sky: SlowSky, wait_s: float) -> bool:
    """Whether rows that are wanted so much later are asked for anew."""
    table = Clusters(sky, now=lambda: sky.at)  # type: ignore[arg-type]
    table.rows()
    before = sky.asked
    sky.at += wait_s
    table.rows()
    return sky.asked > before


def test_a_busy_machine_is_asked_less_often_yet_within_bounds(sky: SlowSky) -> None:
    assert not asked_after(sky, LIST_FRESH_S + 1)
    assert asked_after(sky, BUSY_AT_MOST_S)
    sky.took_s = 1.0
    assert asked_after(sky, LIST_FRESH_S)


def test_what_has_exited_is_looked_at_again_however_busy_the_machine_is(sky: SlowSky) -> None:
    sky.said = EXITED
    assert asked_after(sky, LIST_FRESH_S)


# -- what it says ------------------------------------------------------------------------------
ROW = {"name": NAME, "status": "UP"}
LAUNCHING = {"name": NAME, "status": "INIT", "init_kind": "launching"}
ASKED = (
    "status", "--no-show-managed-jobs", "--no-show-services", "--no-show-pools", "trmc-*",
)  # fmt: skip


class At:
    def __init__(self, *rows: Any, said: str = "") -> None:
        self.sky, self.now = SaidSky(list(rows), said), 1000.0
        self.table = Clusters(self.sky, now=lambda: self.now)

    def asks_after(self, wait_s: float) -> bool:
        before = len(self.sky.asked)
        self.now += wait_s
        self.table.rows()
        return len(self.sky.asked) > before


def test_rows_of_ours_are_asked_for_afresh_and_others_left_out() -> None:
    at = At(ROW, {"name": "somebody-elses"}, {"name": None}, {})
    assert at.table.known() == ()
    assert at.table.listed_at is None
    assert not at.table.is_unreadable(NAME)
    assert at.table.rows() == at.table.known() == [ROW]
    assert at.table.listed_at == 1000.0
    assert at.sky.asked == [(*ASKED, "-r", "-o", "json")]
    assert not at.table.is_unreadable(NAME)
    assert not at.table.has_exited(NAME)


def test_a_list_is_believed_for_a_while_by_a_clock_that_goes_on() -> None:
    at = At(ROW)
    at.table.rows()
    assert not at.asks_after(0.0)
    assert not at.asks_after(19.9)
    assert at.asks_after(0.1)
    assert at.asks_after(-0.1)
    at.table.rows(fresh=True)
    assert len(at.sky.asked) == 4
    at.table.forget()
    assert at.asks_after(0.0)


def test_while_one_is_being_launched_it_is_looked_at_more_often() -> None:
    at = At(ROW, LAUNCHING)
    at.table.rows()
    assert not at.asks_after(4.9)
    assert at.asks_after(0.1)
    assert is_new(LAUNCHING)
    assert not is_new({**LAUNCHING, "status": "UP"})
    assert not is_new({**LAUNCHING, "init_kind": "stopping"})
    assert not is_new({})


def test_one_that_cannot_be_read_is_as_it_was_and_may_have_exited() -> None:
    other = NAME.replace("g1", "g2")
    said = f"  {NAME}: Failed to query AWS cluster '{NAME}' status: [ClientError] slow\n{EXITED}"
    at = At(ROW, said=said.replace(f"  {NAME}: Failed to query AWS", f"  {other}: Failed to query"))
    at.table.rows()
    assert at.table.is_unreadable(NAME)
    assert at.table.is_unreadable(other)
    assert at.table.has_exited(NAME)
    assert not at.table.has_exited(other)
    assert not at.table.is_unreadable(NAME.replace("g1", "g3"))
    at.sky.said = ""
    at.table.rows(fresh=True)
    assert not at.table.is_unreadable(NAME), "it can be read again"


@pytest.mark.parametrize("word", ["EXITED", "TERMINATED", "DEAD"])
def test_every_word_for_an_end_that_skypilot_has_none_for(word: str) -> None:
    at = At(ROW, said=EXITED.replace("EXITED", word))
    at.table.rows()
    assert at.table.has_exited(NAME)
    at = At(ROW, said=EXITED.replace("EXITED", word + "NESS"))
    at.table.rows()
    assert at.table.is_unreadable(NAME)
    assert not at.table.has_exited(NAME)


def test_where_skypilot_trips_over_a_row_what_it_last_knew_is_shown() -> None:
    at = At()
    at.sky.by_words = {(): (0, [ROW], ""), ("-r",): (1, "", "KeyError: 'EXITED'")}
    assert at.table.rows() == [ROW]
    assert at.sky.asked == [(*ASKED, "-r", "-o", "json"), (*ASKED, "-o", "json")]
    assert at.table.is_unreadable(NAME)
    assert at.table.is_unreadable("whatever"), "none of them is believed"


@pytest.mark.parametrize("rows", [{}, [ROW, "odd"], [None], {"name": NAME}])
def test_what_is_no_list_of_clusters_is_an_error(rows: Any) -> None:
    at = At()
    at.sky.out = rows
    with pytest.raises(ProviderError, match="printed no list of clusters"):
        at.table.rows()


def test_a_failure_is_told_to_all_who_ask_until_the_next_try() -> None:
    at = At(ROW)
    at.table.rows()
    at.sky.code, at.sky.said = 1, "ValueError: x"
    for wait_s, asked in ((20.0, 2), (1.0, 2), (19.0, 3)):
        at.now += wait_s
        with pytest.raises(ProviderError, match="sky status failed: ValueError: x"):
            at.table.rows()
        assert len(at.sky.asked) == asked
    assert at.table.known() == [ROW], "what was read before"
    at.sky.code = 0
    assert at.table.rows(fresh=True) == [ROW]


def test_a_command_that_cannot_be_run_is_not_tried_without_refreshing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at, asked = At(ROW), []

    def refuse(*words: Any) -> Any:
        asked.append(words)
        raise ProviderRefused("KeyError, says the system")

    monkeypatch.setattr(at.sky, "read_and_said", refuse)
    with pytest.raises(ProviderRefused):
        at.table.rows()
    assert len(asked) == 1


def test_what_a_list_takes_is_measured_by_a_clock_that_nobody_sets(sky: SlowSky) -> None:
    """10 s each: believed for 30 s."""
    sky.took_s = 10.0
    assert not asked_after(sky, 29.9)
    assert asked_after(sky, 30.0)
    sky.took_s = 6.0
    assert not asked_after(sky, 19.9)
    assert asked_after(sky, 20.0)
    sky.took_s = 100.0
    assert not asked_after(sky, 44.9)
    assert asked_after(sky, 45.0)


def test_one_of_several_that_has_exited_is_enough_to_look_again(sky: SlowSky) -> None:
    other = NAME.replace("g1", "g2")
    sky.said = EXITED.replace(NAME, other)
    sky.rows = [{"name": NAME}, {"name": other}]
    assert asked_after(sky, LIST_FRESH_S)


def test_what_had_exited_by_an_older_list_has_not_by_one_that_tripped() -> None:
    at = At(ROW, said=EXITED)
    at.table.rows()
    assert at.table.has_exited(NAME)
    at.sky.said = ""
    at.sky.by_words = {("-r",): (1, "", "KeyError: 'x'")}
    at.table.rows(fresh=True)
    assert at.table.is_unreadable(NAME)
    assert not at.table.has_exited(NAME)
