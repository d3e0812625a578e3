"""What `sky` says of clusters, costs and launches, taken apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.present import present
from tests.unit.skypilot.rig import NAME
from tests.unit.skypilot.said import SaidSky
from trmcloud.adapters.pod_history import Sightings
from trmcloud.core.control.observation import Bill
from trmcloud.core.errors import ProviderError, ProviderRefused
from trmcloud.core.money import Usd
from trmcloud.providers.skypilot.clusters import (
    ASK_EVERY_S,
    LIST_FRESH_S,
    Biller,
    Clusters,
    Launches,
    is_new,
)

# -- clusters -----------------------------------------------------------------------------------
# SkyPilot's table of clusters: how often it is asked for, and what its rows are taken for.


CLUSTER = "trmc-0a5bffcd-r54aa48-g1-1795258139"
EXITED = f"  {CLUSTER}: Failed to query RunPod cluster '{CLUSTER}' status: [KeyError] 'EXITED'"


class SlowSky:
    """Takes ``took_s`` for each list, by the clock that ``Clusters`` measures itself with."""

    def __init__(self, took_s: float) -> None:
        self.at, self.took_s, self.asked, self.said = 0.0, took_s, 0, ""
        self.rows: list[dict[str, Any]] = [{"name": CLUSTER, "status": "UP"}]

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


# -- what it says ------------------------------------------------------------------------------
ROW = {"name": CLUSTER, "status": "UP"}
LAUNCHING = {"name": CLUSTER, "status": "INIT", "init_kind": "launching"}
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
    assert not at.table.is_unreadable(CLUSTER)
    assert at.table.rows() == at.table.known() == [ROW]
    assert at.table.listed_at == 1000.0
    assert at.sky.asked == [(*ASKED, "-r", "-o", "json")]
    assert not at.table.is_unreadable(CLUSTER)
    assert not at.table.has_exited(CLUSTER)


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
    other = CLUSTER.replace("g1", "g2")
    said = (
        f"  {CLUSTER}: Failed to query AWS cluster '{CLUSTER}' status: [ClientError] slow\n{EXITED}"
    )
    at = At(
        ROW, said=said.replace(f"  {CLUSTER}: Failed to query AWS", f"  {other}: Failed to query")
    )
    at.table.rows()
    assert at.table.is_unreadable(CLUSTER)
    assert at.table.is_unreadable(other)
    assert at.table.has_exited(CLUSTER)
    assert not at.table.has_exited(other)
    assert not at.table.is_unreadable(CLUSTER.replace("g1", "g3"))
    at.sky.said = ""
    at.table.rows(fresh=True)
    assert not at.table.is_unreadable(CLUSTER), "it can be read again"


def test_a_stopped_cluster_is_one_that_has_exited() -> None:
    at = At({**ROW, "status": "STOPPED"}, {**ROW, "name": CLUSTER.replace("g1", "g2")})
    at.table.rows()
    assert at.table.has_exited(CLUSTER)
    assert not at.table.has_exited(CLUSTER.replace("g1", "g2"))
    assert at.asks_after(LIST_FRESH_S), "it is paid for until it is looked at again"


@pytest.mark.parametrize("word", ["EXITED", "TERMINATED", "DEAD"])
def test_every_word_for_an_end_that_skypilot_has_none_for(word: str) -> None:
    at = At(ROW, said=EXITED.replace("EXITED", word))
    at.table.rows()
    assert at.table.has_exited(CLUSTER)
    at = At(ROW, said=EXITED.replace("EXITED", word + "NESS"))
    at.table.rows()
    assert at.table.is_unreadable(CLUSTER)
    assert not at.table.has_exited(CLUSTER)


def test_where_skypilot_trips_over_a_row_what_it_last_knew_is_shown() -> None:
    at = At()
    at.sky.by_words = {(): (0, [ROW], ""), ("-r",): (1, "", "KeyError: 'EXITED'")}
    assert at.table.rows() == [ROW]
    assert at.sky.asked == [(*ASKED, "-r", "-o", "json"), (*ASKED, "-o", "json")]
    assert at.table.is_unreadable(CLUSTER)
    assert at.table.is_unreadable("whatever"), "none of them is believed"


@pytest.mark.parametrize("rows", [{}, [ROW, "odd"], [None], {"name": CLUSTER}])
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
    other = CLUSTER.replace("g1", "g2")
    sky.said = EXITED.replace(CLUSTER, other)
    sky.rows = [{"name": CLUSTER}, {"name": other}]
    assert asked_after(sky, LIST_FRESH_S)


def test_what_had_exited_by_an_older_list_has_not_by_one_that_tripped() -> None:
    at = At(ROW, said=EXITED)
    at.table.rows()
    assert at.table.has_exited(CLUSTER)
    at.sky.said = ""
    at.sky.by_words = {("-r",): (1, "", "KeyError: 'x'")}
    at.table.rows(fresh=True)
    assert at.table.is_unreadable(CLUSTER)
    assert not at.table.has_exited(CLUSTER)


# -- What ``sky cost-report`` says, taken apart -------------------------------------------------


class Reported:
    def __init__(self, folder: Path, rows: Any) -> None:
        self.sky = SaidSky(rows)
        self.now = 1_795_000_000.0
        self.biller = Biller("aws", self.sky, Sightings(folder), lambda: self.now)

    def of(self, name: str = "n") -> Usd | None:
        """What is reported of a cluster that nothing else is known of."""
        bill = self.biller.bill(name)
        assert bill is None or bill == Bill(name, bill.amount, final=False)
        return bill.amount if bill is not None else None


def test_a_cluster_costs_what_is_reported_and_a_name_used_twice_both(tmp_path: Path) -> None:
    rows = [{"name": "n", "total_cost": 12.5}, {"name": "m", "total_cost": 3},
            {"name": "n", "total_cost": 0.25}]  # fmt: skip
    reported = Reported(tmp_path, rows)
    assert (reported.of(), reported.of("m"), reported.of("o")) == (Usd("12.75"), Usd(3), None)
    assert reported.sky.asked == [("cost-report", "--days", "30", "-o", "json")]


def test_a_report_is_kept_for_a_while_and_a_clock_set_back_ends_it(tmp_path: Path) -> None:
    reported = Reported(tmp_path, [])
    asked = []
    for later_s in (0.0, 0.0, ASK_EVERY_S - 1, 1.0, ASK_EVERY_S, -1.0, 0.0):
        reported.now += later_s
        reported.of()
        asked.append(len(reported.sky.asked))
    assert asked == [1, 1, 1, 2, 3, 4, 4]


@pytest.mark.parametrize(
    "total", [None, "12.5", True, 0, -0.5, float("nan"), float("inf"), 1e7, 1e300, [1.0]]
)
def test_a_cost_that_none_can_be_is_nothing(tmp_path: Path, total: Any) -> None:
    rows = [{"name": "n", "total_cost": total}, {"name": "m", "total_cost": 1.0}]
    reported = Reported(tmp_path, rows)
    assert (reported.of(), reported.of("m")) == (Usd(0), Usd(1))


def test_the_most_and_the_least_that_are_believed(tmp_path: Path) -> None:
    rows = [{"name": "n", "total_cost": 9_999_999.5}, {"name": "m", "total_cost": 0.0000012}]
    reported = Reported(tmp_path, rows)
    assert (reported.of(), reported.of("m")) == (Usd("9999999.5"), Usd("0.000001"))


def test_a_row_that_is_none_costs_no_other(tmp_path: Path) -> None:
    reported = Reported(tmp_path, ["odd", None, [], {"total_cost": 5.0}, {"name": "n"}])
    assert reported.of() == Usd(0)


@pytest.mark.parametrize("rows", [{}, {"name": "n"}])
def test_what_is_no_list_is_an_error(tmp_path: Path, rows: Any) -> None:
    with pytest.raises(ProviderError, match="cost-report printed no list"):
        Reported(tmp_path, rows).of()


# -- What ``sky api status`` and ``sky api logs`` say of a launch, taken apart ------------------


NONE_LEFT = "sky.exceptions.ResourcesUnavailableError: Failed to acquire resources for {'H100': 8}."
FIRST, SECOND = "0a1b2c3d-0000", "ffffffff-1111"


def launch(state: str, request: Any = FIRST, **more: Any) -> dict[str, Any]:
    return {"request_id": request, "name": "sky.launch", "status": state, **more}


def asked(*rows: Any, logs: str = "", code: int = 1) -> tuple[SaidSky, Launches]:
    sky = SaidSky(list(rows))
    sky.by_words = {("api", "logs"): (code, "", logs)}
    return sky, Launches(sky)


def test_what_goes_on_is_in_any_state_that_is_no_end() -> None:
    sky, launches = asked(
        launch("RUNNING"), launch("PENDING", SECOND), launch("SUCCEEDED", "c" * 8)
    )
    assert launches.active(NAME) == [FIRST, SECOND]
    assert sky.asked == [("api", "status", "-c", NAME, "-o", "json")]
    assert launches.ended(NAME) == {"SUCCEEDED"}
    assert sky.asked[1] == ("api", "status", "-a", "-c", NAME, "-o", "json")
    assert launches.are_known(NAME)
    _, none = asked()
    assert not none.are_known(NAME)
    assert (none.active(NAME), none.ended(NAME)) == ([], set())


@pytest.mark.parametrize(
    "row",
    ["odd", None, launch("RUNNING", name="sky.down"), launch("RUNNING", "$(x)"),
     launch("RUNNING", None), launch("RUNNING", "abc"), {"status": "RUNNING"},
     launch("RUNNING", "a" * 37)],
)  # fmt: skip
def test_what_is_no_launch_is_passed_over(row: Any) -> None:
    _, launches = asked(row, launch("RUNNING", SECOND))
    assert launches.active(NAME) == [SECOND]


@pytest.mark.parametrize("rows", [{}, launch("RUNNING")])
def test_what_is_no_list_of_requests_is_an_error(rows: Any) -> None:
    with pytest.raises(ProviderError, match="printed no list"):
        Launches(SaidSky(rows)).active(NAME)


def test_nothing_to_rent_is_told_with_where_to_look_it_up() -> None:
    said = "warning\n" + NONE_LEFT + "\nReason: no capacity for {'L4': 1}.\nTo fix: x\n"
    sky, launches = asked(launch("FAILED"), launch("FAILED", SECOND), logs=said)
    assert launches.why_none(NAME) == "Reason: no capacity (sky api logs 0a1b2c3d)"
    assert sky.asked[1:] == [("api", "logs", FIRST), ("api", "logs", SECOND)]


def test_a_reason_is_cut_and_what_was_asked_for_is_left_out() -> None:
    _, launches = asked(launch("FAILED"), logs=f"  {NONE_LEFT} {'x' * 500}")
    why = present(launches.why_none(NAME))
    assert why.startswith(
        "sky.exceptions.ResourcesUnavailableError: Failed to acquire resources. x"
    )
    assert why.endswith("x (sky api logs 0a1b2c3d)")
    assert len(why) == 160 + len(" (sky api logs 0a1b2c3d)")


@pytest.mark.parametrize("states", [(), ("RUNNING",), ("FAILED", "PENDING"), ("odd",)])
def test_while_it_may_still_come_through_nothing_is_known(states: tuple[str, ...]) -> None:
    _, launches = asked(*map(launch, states), logs=NONE_LEFT)
    assert launches.why_none(NAME) is None


@pytest.mark.parametrize("states", [("SUCCEEDED",), ("FAILED", "CANCELLED")])
def test_what_succeeded_or_was_called_off_may_have_made_a_machine(states: tuple[str, ...]) -> None:
    _, launches = asked(*map(launch, states), logs=NONE_LEFT)
    assert launches.why_none(NAME) == ""


@pytest.mark.parametrize(
    ("logs", "code"), [("ValueError: x", 1), ("", 1), (f"as in {NONE_LEFT}", 1), (NONE_LEFT, 0)]
)
def test_what_failed_otherwise_may_have_made_one_too(logs: str, code: int) -> None:
    _, launches = asked(launch("FAILED"), logs=logs, code=code)
    assert launches.why_none(NAME) == ""


def test_one_of_several_that_failed_otherwise_is_enough() -> None:
    sky, launches = asked(launch("FAILED"), launch("FAILED", SECOND), logs=NONE_LEFT)
    sky.by_words[("api", "logs", SECOND)] = (1, "", "ValueError: x")
    assert launches.why_none(NAME) == ""


def test_of_more_requests_than_a_pod_has_no_logs_are_asked_for() -> None:
    rows = [launch("FAILED", f"{n:08x}") for n in range(9)]
    sky, launches = asked(*rows[:8], logs=NONE_LEFT)
    assert launches.why_none(NAME)
    assert len(sky.asked) == 9
    sky, launches = asked(*rows, logs=NONE_LEFT)
    assert launches.why_none(NAME) == ""
    assert len(sky.asked) == 1
