"""What every ledger must do, whatever keeps it; quarantine in the file and in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.ledger_file import AT, WHO, begun, edit, edit_database
from tests.plans import plan_json
from tests.reasons import quoted
from trmcloud.adapters.ledger.postgres import PostgresLedger
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.catalog.providers import TRAITS
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import LedgerState
from trmcloud.core.control.events import ActionKey
from trmcloud.core.control.run_state import IllegalTransition, State
from trmcloud.core.errors import (
    BudgetRefused,
    ConflictError,
    NotFoundError,
    RunQuarantined,
    StaleEpoch,
    UsageError,
)
from trmcloud.core.money import ZERO, Usd
from trmcloud.ports.ledger import ControllerId, Driver, Ledger
from trmcloud.sim.world.ledger_memory import MemoryLedger

# -- What every ledger must do, whatever keeps it -----------------------------------------------


LAPTOP = ControllerId("laptop", 101, "boot-1")
SERVER = ControllerId("server", 202, "boot-2")


@pytest.fixture(params=["sqlite", "postgres", "memory"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    if request.param == "sqlite":
        return SqliteLedger(tmp_path / "home" / "ledger.db")
    if request.param == "postgres":
        return PostgresLedger(request.getfixturevalue("postgres_url"), tmp_path / "home")
    return MemoryLedger("abcd1234")


def planned(cap: str = "10", project: str = "thesis") -> ev.RunPlanned:
    return ev.RunPlanned(plan=plan_json(), cap=Usd(cap), project=project)


def through_to_settled(ledger: Ledger, run_id: str, epoch: int, amount: str) -> None:
    """From reserved to settled, by the shortest legal way."""
    g = len(ledger.read().runs[run_id].generations) + 1
    events: list[ev.RunEvent] = [
        ev.PodIntended(g, f"pod-{g}", "local", "c1", Usd(1), AT + 50, AT + 60),
        ev.PodUp(g, f"id-{g}", Usd(1)),
        ev.PodGone(g, AT + 40),
        ev.Settled(g, Usd(amount), Usd(amount)),
    ]
    ledger.append(run_id, epoch, events, AT + 41)


def test_an_empty_ledger_has_an_id_and_nothing_else(ledger: Ledger) -> None:
    state = ledger.read()
    assert state.ledger_id == ledger.ledger_id
    assert len(ledger.ledger_id) == 8
    int(ledger.ledger_id, 16)
    assert not state.runs
    assert not state.caps
    assert ledger.records() == ()
    assert ledger.driver("r1") is None


def test_opening_a_run_reserves_its_money_and_makes_its_driver(ledger: Ledger) -> None:
    epoch = ledger.open_run("r1", planned(), Usd("7.5"), LAPTOP, AT)
    run = ledger.read().runs["r1"]
    assert (run.state, run.reserved, run.cap) == (State.RESERVED, Usd("7.5"), Usd(10))
    assert list(run.plan.limits) == ["z", "a"], "the order a user reads is kept"
    assert ledger.driver("r1") == Driver(epoch, LAPTOP, AT)
    assert [type(r.event) for r in ledger.records("r1")] == [ev.RunPlanned, ev.Reserved]


def test_a_run_exists_once(ledger: Ledger) -> None:
    ledger.open_run("r1", planned(), Usd(1), LAPTOP, AT)
    with pytest.raises(ConflictError, match="r1"):
        ledger.open_run("r1", planned(), Usd(1), SERVER, AT)
    assert ledger.driver("r1") == Driver(1, LAPTOP, AT)


@pytest.mark.parametrize(
    "cap",
    [
        ev.CapSet("account", "", Usd(5)),
        ev.CapSet("month", "", Usd(5)),
        ev.CapSet("month", "2026-09", Usd(5)),
        ev.CapSet("project", "thesis", Usd(5)),
    ],
    ids=lambda cap: f"{cap.level}-{cap.key}",
)
def test_a_level_without_money_refuses_and_writes_nothing(ledger: Ledger, cap: ev.CapSet) -> None:
    ledger.set_cap(cap, AT)
    before = ledger.records()
    with pytest.raises(BudgetRefused, match=cap.level) as caught:
        ledger.open_run("r1", planned(), Usd("5.000001"), LAPTOP, AT)
    assert f"trmcloud budget raise {cap.level}" in caught.value.next_step
    assert ledger.records() == before
    assert ledger.driver("r1") is None
    ledger.open_run("r1", planned(), Usd(5), LAPTOP, AT)
    with pytest.raises(BudgetRefused):
        ledger.open_run("r2", planned(), Usd("0.000001"), LAPTOP, AT)


def test_a_run_reserves_no_more_than_its_own_cap(ledger: Ledger) -> None:
    with pytest.raises(BudgetRefused, match="run r1") as caught:
        ledger.open_run("r1", planned(cap="2"), Usd(3), LAPTOP, AT)
    assert "--budget 3" in caught.value.next_step


def test_a_refusal_says_what_to_raise_and_to_how_much(ledger: Ledger) -> None:
    ledger.set_cap(ev.CapSet("project", "thesis", Usd(5)), AT)
    epoch = ledger.open_run("r1", planned(), Usd(2), LAPTOP, AT)
    through_to_settled(ledger, "r1", epoch, "1")
    ledger.open_run("r2", planned(), Usd(3), LAPTOP, AT)
    with pytest.raises(BudgetRefused, match="the project thesis budget of ") as caught:
        ledger.open_run("r3", planned(), Usd(7), LAPTOP, AT)
    assert caught.value.next_step == "trmcloud budget raise project 11 --for thesis"


def test_another_months_money_is_not_this_months(ledger: Ledger) -> None:
    ledger.set_cap(ev.CapSet("month", "", Usd(5)), AT)
    ledger.open_run("r1", planned(), Usd(5), LAPTOP, AT)
    ledger.open_run("r2", planned(), Usd(5), LAPTOP, AT + 31 * 86400)


def test_a_cap_can_be_raised_cut_and_removed(ledger: Ledger) -> None:
    for cap in (Usd(5), Usd(1), None):
        ledger.set_cap(ev.CapSet("account", "", cap, by="ada"), AT)
        assert ledger.read().caps.get(("account", "")) == cap
    events = [record.event for record in ledger.read().cap_history]
    assert [e.cap for e in events if isinstance(e, ev.CapSet)] == [Usd(5), Usd(1), None]


@pytest.mark.parametrize(
    "cap",
    [
        ev.CapSet("account", "", Usd("-0.01")),
        ev.CapSet("galaxy", "", Usd(1)),
        ev.CapSet("", "", Usd(1)),
        ev.CapSet("run", "r1", Usd(1)),
        ev.CapSet("account", "mine", Usd(1)),
        ev.CapSet("month", "2026-13", Usd(1)),
        ev.CapSet("project", "", Usd(1)),
    ],
)
def test_a_cap_that_means_nothing_is_refused(ledger: Ledger, cap: ev.CapSet) -> None:
    with pytest.raises(UsageError):
        ledger.set_cap(cap, AT)
    assert ledger.records() == ()


def test_a_kill_layer_that_was_seen_to_work_is_remembered(ledger: Ledger) -> None:
    ledger.set_cap(ev.CapSet("account", "", Usd(5)), AT)
    provider, layer = next(
        (name, layers[0])
        for name, traits in sorted(TRAITS.items())
        if (layers := sorted(traits.layers.independent))
    )
    ledger.verify_layer(ev.LayerVerified(provider, layer, "a smoke run"), AT + 1)
    assert ledger.read().verified == {(provider, layer): AT + 1}
    assert [record.seq for record in ledger.records()] == [1, 2]
    with pytest.raises(UsageError, match="wishful"):
        ledger.verify_layer(ev.LayerVerified(provider, "wishful thinking", "hope"), AT + 2)
    assert len(ledger.records()) == 2


def test_a_pod_that_nobody_owns_is_noted_once(ledger: Ledger) -> None:
    charge = ev.StrayCharged("runpod", "id-9", "trmc-x", "", AT - 5, Usd("1.25"))
    ledger.note(charge, AT)
    with pytest.raises(IllegalTransition):
        ledger.note(charge, AT + 1)
    assert ledger.read().line("account", "").reserved == Usd("1.25")
    ledger.note(ev.StrayBilled("runpod", "id-9", Usd("0.75")), AT + 2)
    assert ledger.read().strays["runpod", "id-9"].billed == Usd("0.75")
    assert ledger.read().line("account", "").settled == Usd("0.75")
    assert len(ledger.records()) == 2


def test_a_stale_controller_cannot_write(ledger: Ledger) -> None:
    old = ledger.open_run("r1", planned(), Usd(1), LAPTOP, AT)
    new = ledger.take_over("r1", SERVER, AT + 1)
    assert new > old
    before = ledger.records()
    with pytest.raises(StaleEpoch, match="r1") as caught:
        ledger.append("r1", old, [begun("a")], AT + 2)
    assert "trmcloud status r1" in caught.value.next_step
    with pytest.raises(StaleEpoch):
        ledger.append("r1", new + 1, [], AT + 2)
    with pytest.raises(StaleEpoch):
        ledger.beat("r1", old, AT + 2)
    ledger.release("r1", old)
    assert ledger.records() == before
    assert ledger.driver("r1") == Driver(new, SERVER, AT + 1)
    ledger.append("r1", new, [begun("a")], AT + 2)
    assert ledger.read().runs["r1"].epoch == new


def test_a_driver_beats_and_lets_go(ledger: Ledger) -> None:
    epoch = ledger.open_run("r1", planned(), Usd(1), LAPTOP, AT)
    ledger.beat("r1", epoch, AT + 9)
    assert ledger.driver("r1") == Driver(epoch, LAPTOP, AT + 9)
    ledger.release("r1", epoch)
    assert ledger.driver("r1") == Driver(epoch, None, AT + 9)
    assert ledger.take_over("r1", SERVER, AT + 10) > epoch


@pytest.mark.parametrize(
    "events",
    [
        [ev.AgentUp(1)],
        [begun("a"), ev.AgentUp(1)],
        [ev.PodIntended(1, "p", "local", "c", Usd(1), AT, AT), ev.PodUp(2, "id", Usd(1))],
        [ev.CapSet("account", "", Usd(1))],
        [ev.Reserved(Usd(1))],
        [ev.RunPlanned(plan_json(), Usd(1), "p")],
    ],
    ids=["early", "second of two", "another generation", "not a run's", "twice", "planned twice"],
)
def test_an_illegal_event_is_refused_unwritten(ledger: Ledger, events: list[ev.RunEvent]) -> None:
    epoch = ledger.open_run("r1", planned(), Usd(1), LAPTOP, AT)
    before, state = ledger.records(), ledger.read()
    with pytest.raises(IllegalTransition):
        ledger.append("r1", epoch, events, AT + 1)
    assert ledger.records() == before
    assert ledger.read() == state


def test_no_way_of_writing_reserves_past_a_cap(ledger: Ledger) -> None:
    ledger.set_cap(ev.CapSet("account", "", Usd(5)), AT)
    epoch = ledger.open_run("r1", planned(), Usd(4), LAPTOP, AT)
    through_to_settled(ledger, "r1", epoch, "3")
    with pytest.raises(BudgetRefused):
        ledger.append("r1", epoch, [ev.Reserved(Usd("2.01"))], AT + 50)
    with pytest.raises(UsageError):
        ledger.append("r1", epoch, [ev.Reserved(Usd(-1))], AT + 50)
    ledger.append("r1", epoch, [ev.Reserved(Usd(2))], AT + 50)
    line = ledger.read().line("account", "")
    assert (line.settled, line.reserved, line.remaining) == (Usd(3), Usd(2), ZERO)


def test_after_a_cut_below_what_is_spent_nothing_more_is_reserved(ledger: Ledger) -> None:
    epoch = ledger.open_run("r1", planned(), Usd(4), LAPTOP, AT)
    through_to_settled(ledger, "r1", epoch, "3")
    ledger.set_cap(ev.CapSet("account", "", Usd(1)), AT)
    for amount in (ZERO, Usd("0.000001")):
        with pytest.raises(BudgetRefused):
            ledger.open_run("r2", planned(), amount, LAPTOP, AT)


def test_a_closed_run_goes_on_within_a_new_cap(ledger: Ledger) -> None:
    epoch = ledger.open_run("r1", planned(cap="4"), Usd(4), LAPTOP, AT)
    with pytest.raises(ConflictError, match="reserved"):
        ledger.reopen_run("r1", ev.Reopened(Usd(9)), Usd(1), LAPTOP, AT)
    through_to_settled(ledger, "r1", epoch, "3")
    ledger.append("r1", epoch, [ev.Closed("stopped")], AT + 60)
    with pytest.raises(BudgetRefused):
        ledger.reopen_run("r1", ev.Reopened(Usd(5)), Usd("2.01"), SERVER, AT + 61)
    assert ledger.read().runs["r1"].state is State.CLOSED
    assert ledger.driver("r1") == Driver(epoch, LAPTOP, AT)
    again = ledger.reopen_run("r1", ev.Reopened(Usd(5)), Usd(2), SERVER, AT + 61)
    run = ledger.read().runs["r1"]
    assert (run.state, run.cap, run.reserved, run.settled) == (
        State.RESERVED, Usd(5), Usd(2), Usd(3),
    )  # fmt: skip
    assert ledger.driver("r1") == Driver(again, SERVER, AT + 61)
    with pytest.raises(StaleEpoch):
        ledger.append("r1", epoch, [ev.Closed("stopped")], AT + 62)


def test_a_wish_needs_no_epoch_and_only_a_wish(ledger: Ledger) -> None:
    epoch = ledger.open_run("r1", planned(), Usd(1), LAPTOP, AT)
    ledger.request("r1", ev.StopRequested("user", quoted("enough")), AT + 1)
    assert ledger.read().runs["r1"].stop == ev.StopRequested("user", quoted("enough"))
    with pytest.raises(IllegalTransition):
        ledger.request("r1", ev.Closed("stopped"), AT + 2)
    assert ledger.driver("r1") == Driver(epoch, LAPTOP, AT)
    ledger.append("r1", epoch, [ev.Closed("stopped")], AT + 3)
    with pytest.raises(IllegalTransition):
        ledger.request("r1", ev.StopRequested("user", quoted("again")), AT + 4)


def test_what_does_not_exist_is_said_to_be_missing(ledger: Ledger) -> None:
    with pytest.raises(NotFoundError, match="r9"):
        ledger.append("r9", 1, [], AT)
    with pytest.raises(NotFoundError, match="r9"):
        ledger.take_over("r9", LAPTOP, AT)
    with pytest.raises(NotFoundError, match="r9"):
        ledger.reopen_run("r9", ev.Reopened(Usd(1)), Usd(1), LAPTOP, AT)
    with pytest.raises(NotFoundError, match="r9"):
        ledger.request("r9", ev.StopRequested("user", quoted("x")), AT)
    assert ledger.records("r9") == ()
    assert ledger.read().runs == {}


def test_records_are_numbered_without_gaps_and_belong_to_runs(ledger: Ledger) -> None:
    ledger.set_cap(ev.CapSet("account", "", Usd(100)), AT)
    for run_id in ("r1", "r2"):
        epoch = ledger.open_run(run_id, planned(), Usd(1), LAPTOP, AT)
        ledger.append(run_id, epoch, [begun("a")], AT)
    assert [r.seq for r in ledger.records()] == list(range(1, 8))
    assert {r.run_id for r in ledger.records("r2")} == {"r2"}
    assert [r.run_id for r in ledger.records()].count("") == 1


# -- ledger quarantine --------------------------------------------------------------------------
# Quarantine, as every ledger keeps it: in the file, in the database, and in the memory of simulated
# worlds.


class InMemory:
    def __init__(self) -> None:
        self.ledger = MemoryLedger()

    def flip(self, seq: int) -> None:
        self.ledger.flip(seq)

    def read(self) -> LedgerState:
        return self.ledger.seen()


class InFile:
    def __init__(self, path: Path) -> None:
        self.ledger = SqliteLedger(path)
        self._path = path

    def flip(self, seq: int) -> None:
        edit(self._path, f"UPDATE events SET body = body || ' ' WHERE seq = {seq}")
        self.ledger = SqliteLedger(self._path)

    def read(self) -> LedgerState:
        return self.ledger.read()


class InPostgres:
    def __init__(self, url: str, home: Path) -> None:
        self.ledger = PostgresLedger(url, home)
        self._url, self._home = url, home

    def flip(self, seq: int) -> None:
        edit_database(self._url, f"UPDATE events SET body = body || ' ' WHERE seq = {seq}")
        self.ledger = PostgresLedger(self._url, self._home)

    def read(self) -> LedgerState:
        return self.ledger.read()


@pytest.fixture(params=["memory", "file", "postgres"])
def ground(request: pytest.FixtureRequest, path: Path) -> InMemory | InFile | InPostgres:
    if request.param == "postgres":
        return InPostgres(request.getfixturevalue("postgres_url"), path.parent)
    return InMemory() if request.param == "memory" else InFile(path)


@pytest.mark.parametrize(("seq", "most"), [(1, Usd(3)), (2, Usd(10)), (3, Usd(3))])
def test_a_damaged_record_costs_its_run_alone(
    ground: InMemory | InFile | InPostgres, seq: int, most: Usd
) -> None:
    planned = ev.RunPlanned(plan_json(), Usd(10), "thesis")
    first = ground.ledger.open_run("r1", planned, Usd(3), WHO, AT)
    ground.ledger.append("r1", first, [begun("a")], AT)
    second = ground.ledger.open_run("r2", planned, Usd(1), WHO, AT)
    before = ground.read().runs["r2"]
    ground.flip(seq)
    state = ground.read()
    assert dict(state.runs) == {"r2": before}
    hurt = state.quarantined["r1"]
    assert (hurt.lost, hurt.read, hurt.most) == ((seq,), 2, most)
    assert state.line("account", "").reserved == most + Usd(1)
    with pytest.raises(RunQuarantined):
        ground.ledger.append("r1", first, [begun("b")], AT)
    with pytest.raises(RunQuarantined):
        ground.ledger.take_over("r1", WHO, AT)
    ground.ledger.append("r2", second, [begun_of_r2()], AT)
    ground.ledger.note(ev.DamageSettled("r1", Usd(2), "me"), AT + 1)
    line = ground.read().line("account", "")
    assert (line.settled, line.reserved) == (Usd(2), Usd(1))
    ground.ledger.open_run("r3", planned, Usd(1), WHO, AT)


def begun_of_r2() -> ev.ActionStarted:
    return ev.ActionStarted(str(ActionKey("r2", 1, "pull", 1, "a")), "pull")
