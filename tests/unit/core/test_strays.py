"""Pods that no generation owns and volumes that are kept: who is charged, how much, until when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.plans import a_candidate, a_generation, errand_json, plan_json
from tests.present import present
from tests.reasons import quoted
from trmcloud.core.catalog.offers import DAY_S
from trmcloud.core.clock import UnknownSince
from trmcloud.core.contract.pod_contract import PodName
from trmcloud.core.control import events as ev
from trmcloud.core.control.bookkeeping import (
    AHEAD_S,
    add_note,
    govern,
    is_charge_pending,
    is_orphan_reconciled,
    make_charges,
    orphan_bill,
    orphans_awaiting_bill,
)
from trmcloud.core.control.budget import LedgerState, admit, extend_ledger
from trmcloud.core.control.ledger_facts import RestoredCopy, due_volumes, holds
from trmcloud.core.control.observation import Bill, PodSeen, PodStatus
from trmcloud.core.control.reason import Reason, ReasonKind, make_reason
from trmcloud.core.control.run_state import IllegalTransition, RunState, State
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.spec.spec import DELETE, DELETE_FETCHED, KEEP
from trmcloud.operations.reasons import sentence

# -- Pods of this ledger that no generation owns: who is charged, with how much, until when -----


OURS, AT = "abcd1234", 1_790_000_000.0
NAME = str(PodName(OURS, "r-1", 1, int(AT) + 7200))
RATE = Usd(36)
LATENCY_S = 60.0
LEFT_AT = AT + 5400


def run(state: State = State.RUNNING, pod_id: str | None = "id-1", **more: object) -> RunState:
    generation = a_generation(
        pod_name=NAME, rate=RATE, soft_stop_at=LEFT_AT, hard_stop_at=AT + 7200, intended_at=AT,
        pod_id=pod_id,
    )  # fmt: skip
    made = RunState(
        "r-1", state=state, cap=Usd(100), project="thesis", reserved=Usd(80), reserved_at=AT,
        created_at=AT - 100, generations=(generation,),
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


def ledger(*runs: RunState) -> LedgerState:
    return LedgerState(OURS, {r.run_id: r for r in runs})


def pod(pod_id: str = "id-2", name: str = NAME, status: str = "running", **more: object) -> PodSeen:
    return replace(PodSeen(pod_id, name, status, RATE), **more)  # type: ignore[arg-type]


def charged(book: LedgerState, now: float, *pods: PodSeen) -> list[tuple[str, str, float, Usd]]:
    return [
        (c.pod_id, c.run_id, c.since, c.amount) for c in make_charges(book, "runpod", pods, now)
    ]


def noted(book: LedgerState, *events: ev.LedgerEvent, at: float = AT + 30) -> LedgerState:
    return extend_ledger(book, [ev.Record(n, "", 0, at, e) for n, e in enumerate(events, 1)])


def stray(amount: str, run_id: str = "r-1", pod_id: str = "id-2") -> ev.StrayCharged:
    return ev.StrayCharged("runpod", pod_id, NAME, run_id, AT, Usd(amount))


# -- who is charged ----------------------------------------------------------------------------


def test_a_second_pod_of_a_runs_name_is_charged_to_it_from_its_intent_on() -> None:
    most = cost(RATE, 100 + 60 + 600)
    assert charged(ledger(run()), AT + 100, pod("id-1"), pod()) == [("id-2", "r-1", AT, most)]
    with_disk = charged(ledger(run()), AT + 100, pod(rate=Usd(30), disk_rate=Usd(6)))
    assert with_disk == [("id-2", "r-1", AT, most)], "its disk is billed too"


def test_a_name_that_waits_for_its_pod_is_not_judged_yet() -> None:
    assert charged(ledger(run(State.RENTING, pod_id=None)), AT + 100, pod()) == []
    given_up = run(State.RESERVED, pod_id=None)
    never = replace(given_up.generations[0], not_made=quoted("it never appeared"))
    for over in (run(State.CLOSED, pod_id=None), replace(given_up, generations=(never,))):
        assert [c[0] for c in charged(ledger(over), AT + 100, pod())] == ["id-2"]
    assert [c[0] for c in charged(ledger(replace(given_up, generations=())), AT, pod())] == ["id-2"]


def test_one_of_an_awaited_name_that_is_ended_is_charged_until_its_run_owns_it() -> None:
    """A provider had made two of a name; the run came to own the other, and nobody had this one."""
    waits = ledger(run(State.RENTING, pod_id=None))
    (charge,) = make_charges(waits, "runpod", (pod(), pod("id-3")), AT + 100, ending={"id-2"})
    assert charge.pod_id == "id-2"
    book = noted(waits, charge)
    up = [
        ev.Record(2, "r-1", 1, AT + 110, ev.PodUp(1, pod_id, RATE)) for pod_id in ("id-2", "id-3")
    ]
    assert extend_ledger(book, up[:1]).strays == {}, "it is the run's own, which settles it"
    assert set(extend_ledger(book, up[1:]).strays) == {("runpod", "id-2")}


def test_what_a_run_owns_becomes_no_stray() -> None:
    """As where somebody listed it before, and notes it after, its run has come to know it."""
    owns = ledger(run())
    with pytest.raises(IllegalTransition, match="id-1 is a run's own by now"):
        add_note(owns, 0, stray("1", pod_id="id-1"), AT)
    assert noted(owns, ev.StrayBilled("runpod", "id-1", Usd(1))).strays == {}
    with pytest.raises(IllegalTransition, match="never charged"):
        noted(owns, ev.StrayBilled("runpod", "id-2", Usd(1)))


def test_a_pod_that_a_closed_generation_owned_is_settled_there() -> None:
    assert charged(ledger(run(State.CLOSED)), AT + 100, pod("id-1")) == []


@pytest.mark.parametrize(
    "name", ["mine", str(PodName("ffffffff", "r-1", 1, int(AT) + 7200)), f"{NAME}-x"]
)
def test_what_is_not_this_ledgers_is_never_charged(name: str) -> None:
    assert charged(ledger(run()), AT + 100, pod(name=name)) == []


def test_what_costs_nothing_is_not_charged() -> None:
    assert charged(ledger(run()), AT + 100, pod(rate=ZERO)) == []


def test_one_that_is_gone_is_charged_for_its_life_alone() -> None:
    gone = pod(status=PodStatus.GONE, ended_at=AT + 40)
    assert charged(ledger(run()), AT + 1000, gone)[0][3] == cost(RATE, 40 + LATENCY_S)
    assert charged(ledger(run()), AT + 1000, pod(status=PodStatus.GONE))[0][3] == cost(RATE, 1060)
    skewed = pod(status=PodStatus.GONE, ended_at=AT - 500)
    assert charged(ledger(run()), AT + 1000, skewed)[0][3] == cost(RATE, LATENCY_S)


def test_the_providers_own_word_of_its_making_counts() -> None:
    ((_, _, since, amount),) = charged(ledger(run()), AT + 100, pod(made_at=AT + 70))
    assert (since, amount) == (AT + 70, cost(RATE, 30 + LATENCY_S + AHEAD_S))


def test_a_pod_of_an_unknown_generation_is_charged_since_the_ledger_knows_nothing() -> None:
    other = str(PodName(OURS, "r-1", 7, int(AT) + 7200))
    unknown = str(PodName(OURS, "r-9", 1, int(AT) + 7200))
    book = ledger(run())
    assert charged(book, AT + 100, pod(name=other))[0][1:3] == ("r-1", AT - 100)
    assert charged(book, AT + 100, pod(name=unknown))[0][1:3] == ("", AT + 100)
    restored = replace(book, restored=RestoredCopy(AT + 50, AT - 7))
    assert charged(restored, AT + 100, pod(name=other))[0][1:3] == ("r-1", AT - 7)
    assert charged(restored, AT + 100, pod(name=unknown))[0][1:3] == ("", AT - 7)
    assert charged(restored, AT + 100, pod())[0][1:3] == ("r-1", AT)
    empty = replace(ledger(), restored=RestoredCopy(AT + 50, 0.0))
    assert charged(empty, AT + 100, pod(name=unknown))[0][2] == AT + 100 - 30 * 86_400


def test_it_is_charged_again_only_once_it_may_have_cost_more() -> None:
    first = make_charges(ledger(run()), "runpod", [pod()], AT + 100)
    book = noted(ledger(run()), *first)
    assert charged(book, AT + 100 + AHEAD_S, pod()) == []
    more = make_charges(book, "runpod", [pod()], AT + 101 + AHEAD_S)
    assert more[0].amount == cost(RATE, 101 + LATENCY_S + 2 * AHEAD_S)
    again = noted(book, *more, at=AT + 999)
    assert again.strays["runpod", "id-2"].at == AT + 30
    assert charged(again, AT + 200 + AHEAD_S, pod(status=PodStatus.GONE)) == []
    billed = noted(again, ev.StrayBilled("runpod", "id-2", Usd(2)))
    assert charged(billed, AT + 90_000, pod()) == []


# -- what it is charged to ---------------------------------------------------------------------


def test_every_budget_that_it_belongs_to_holds_it() -> None:
    book = noted(ledger(run()), stray("3"), stray("5", run_id="", pod_id="id-3"))
    held = {
        (level, key): (book.line(level, key).settled, book.line(level, key).reserved)
        for level, key in (
            ("account", ""), ("month", "2026-09"), ("month", "2026-10"), ("project", "thesis"),
            ("project", "other"), ("run", "r-1"),
        )
    }  # fmt: skip
    assert held == {
        ("account", ""): (ZERO, Usd(88)),
        ("month", "2026-09"): (ZERO, Usd(88)),
        ("month", "2026-10"): (ZERO, ZERO),
        ("project", "thesis"): (ZERO, Usd(83)),
        ("project", "other"): (ZERO, ZERO),
        ("run", "r-1"): (ZERO, Usd(83)),
    }
    billed = noted(book, ev.StrayBilled("runpod", "id-2", Usd("1.5"))).line("run", "r-1")
    assert (billed.settled, billed.reserved, billed.strays) == (Usd("1.5"), Usd(80), Usd("1.5"))
    assert billed.remaining == Usd("18.5")


def test_money_that_a_stray_holds_cannot_be_reserved() -> None:
    closed = run(State.CLOSED, reserved=ZERO)
    book = noted(ledger(closed), stray("3"))
    assert admit(book, closed, Usd(97), AT) is None
    refusal = present(admit(book, closed, Usd("97.000001"), AT))
    assert refusal.line.level == "run"


def test_a_run_gives_up_the_end_of_its_time_for_what_strays_cost() -> None:
    """It holds $80 of $100 and the stray $23: $3 too much are 300 s of its rent."""
    book = noted(ledger(run()), stray("23"))
    due = LEFT_AT - 300
    assert govern(book, UnknownSince(due), due - 1).land == ()
    ((run_id, why),) = govern(book, UnknownSince(due), due).land
    assert run_id == "r-1"
    assert why == make_reason(ReasonKind.ORPHANS_COST, level="run", orphans_usd=Usd(23))
    fits = noted(ledger(run()), stray("20"))
    assert govern(fits, UnknownSince(AT), LEFT_AT + 100).land == ()
    waiting = noted(ledger(run(State.RESERVED)), stray("23"))
    assert govern(waiting, UnknownSince(AT), LEFT_AT + 100).land == ()
    unrented = noted(ledger(run(State.RENTING, generations=())), stray("23"))
    assert govern(unrented, UnknownSince(AT), LEFT_AT + 100).land == ()


def test_a_cap_that_was_cut_further_than_strays_cost_lands_at_once() -> None:
    book = replace(noted(ledger(run()), stray("2")), caps={("account", ""): Usd("79.999999")})
    ((_, why),) = govern(book, UnknownSince(AT), AT).land
    assert sentence(why) == "the account budget was cut to $80.00"
    enough = replace(book, caps={("account", ""): Usd(80)})
    assert govern(enough, UnknownSince(AT), AT).land == ()


# -- bills -------------------------------------------------------------------------------------


def test_a_final_bill_of_that_very_pod_is_taken() -> None:
    (waiting,) = orphans_awaiting_bill(noted(ledger(run()), stray("3")))
    assert orphan_bill(waiting, Bill("id-2", Usd(1), True)) == ev.StrayBilled(
        "runpod", "id-2", Usd(1)
    )
    assert orphan_bill(waiting, Bill("id-2", Usd(1), False)) is None
    assert orphan_bill(waiting, Bill("id-1", Usd(1), True)) is None
    assert orphan_bill(waiting, None) is None


def test_what_is_noted_is_noted_once() -> None:
    book = noted(ledger(run()), stray("3"))
    for again in (stray("3"), stray("2")):
        with pytest.raises(IllegalTransition, match="charged with"):
            noted(book, again)
    with pytest.raises(IllegalTransition, match="never charged"):
        noted(book, ev.StrayBilled("runpod", "id-9", Usd(1)))
    billed = noted(book, ev.StrayBilled("runpod", "id-2", Usd(1)))
    assert orphans_awaiting_bill(billed) == ()
    assert billed.strays_of("r-1")[0].cost == Usd(1)
    for late in (ev.StrayBilled("runpod", "id-2", Usd(1)), stray("9")):
        with pytest.raises(IllegalTransition, match="final bill"):
            noted(billed, late)


# -- after a restoration -----------------------------------------------------------------------


def test_a_restored_ledger_is_reconciled_once_nothing_can_be_missing() -> None:
    book = noted(ledger(run()), ev.LedgerRestored(AT - 7), at=AT)
    assert book.restored == RestoredCopy(AT, AT - 7)
    assert is_charge_pending(book)
    rented: dict[str, tuple[PodSeen, ...]] = {"runpod": (), "local": ()}
    assert not is_orphan_reconciled(book, rented, 0, AT + 599)
    assert is_orphan_reconciled(book, rented, 0, AT + 600)
    assert not is_orphan_reconciled(book, rented, 1, AT + 600)
    assert is_orphan_reconciled(book, {"local": ()}, 0, AT + 1)
    assert is_orphan_reconciled(book, {}, 0, AT)
    assert not is_orphan_reconciled(book, {}, 0, AT - 0.5), (
        "a clock that was set back proves nothing"
    )
    done = noted(book, ev.LedgerReconciled(), at=AT + 700)
    assert not is_charge_pending(done)
    assert not is_orphan_reconciled(done, rented, 0, AT + 800)
    with pytest.raises(IllegalTransition, match="not restored"):
        noted(done, ev.LedgerReconciled())
    assert done.restored == RestoredCopy(AT, AT - 7, AT + 700)
    again = noted(done, ev.LedgerRestored(AT + 800), at=AT + 900)
    assert is_charge_pending(again)


def test_a_list_that_lacks_a_stray_does_not_prove_that_it_is_gone() -> None:
    """A provider that knows no such pod may list it again: nothing is reserved before its absence
    has lasted, or its bill is final."""
    book = noted(ledger(run()), ev.LedgerRestored(AT - 7), at=AT)
    lists: dict[str, tuple[PodSeen, ...]] = {"runpod": ()}
    charged_at = AT + 1000
    stood = noted(noted(book, stray("3"), at=AT + 30), stray("4"), at=charged_at)
    assert stood.strays["runpod", "id-2"].charged_at == charged_at
    assert not is_orphan_reconciled(stood, lists, 0, charged_at + AHEAD_S + 299)
    assert is_orphan_reconciled(stood, lists, 0, charged_at + AHEAD_S + 300)
    billed = noted(stood, ev.StrayBilled("runpod", "id-2", Usd(1)))
    assert is_orphan_reconciled(billed, lists, 0, charged_at)
    here = replace(stray("3"), provider="local")
    assert is_orphan_reconciled(noted(book, here, at=charged_at), lists, 0, charged_at)


def test_what_was_not_restored_is_not_reconciled() -> None:
    book = ledger(run())
    assert not is_charge_pending(book)
    assert not is_orphan_reconciled(book, {}, 0, AT)
    with pytest.raises(IllegalTransition, match="not restored"):
        noted(book, ev.LedgerReconciled())


# -- A network volume's rent: held in every budget until its day, and what ends it --------------


VOLUME_RATE = Usd("0.005")
A_DAY = cost(VOLUME_RATE, DAY_S)
ENDED = AT + 3600.0

_SAVED = make_reason(ReasonKind.SAVED_HERE)


class Book:
    """A ledger in which runs that keep a volume are written down."""

    def __init__(self) -> None:
        self.ledger = LedgerState("0a1b2c3d")
        self._seq = 0

    def add(self, run_id: str, at: float, *events: ev.Event) -> None:
        for event in events:
            self._seq += 1
            record = ev.Record(self._seq, run_id, 1, at, event)
            self.ledger = extend_ledger(self.ledger, (record,))

    def begin(self, run_id: str, at: float = AT, *, place: str = "EU-RO-1", **spec: Any) -> None:
        candidate = a_candidate(region=place, volume_rate=VOLUME_RATE, volume_gb=52)
        plan = plan_json(candidate, **{"volume": True, **spec})
        self.add(
            run_id,
            at,
            ev.RunPlanned(plan, Usd(5), "thesis"),
            ev.Reserved(Usd(5)),
            ev.PodIntended(1, f"trmc-{run_id}", "runpod", "c1", Usd(1), at + 3000, at + 3600),
            ev.ActionStarted(f"{run_id}/g1/create/1", "create"),
        )

    def train(self, run_id: str, at: float = AT) -> None:
        self.add(run_id, at, ev.PodUp(1, f"pod-{run_id}", Usd(1)), ev.AgentUp(1))

    def settle(self, run_id: str, at: float = ENDED, amount: str = "1") -> None:
        self.add(
            run_id,
            at,
            ev.ResultKnown("finished"),
            ev.PodGone(1, at),
            ev.Settled(1, Usd(amount), Usd(amount)),
            ev.Closed(Outcome.FINISHED.value),
        )

    def run(self, run_id: str, **spec: Any) -> None:
        self.begin(run_id, **spec)
        self.train(run_id)
        self.settle(run_id)

    def fetch(self, run_id: str, why: Reason = _SAVED, at: float = ENDED + 60.0) -> None:
        """An errand, which brings what was saved home and ends for that reason."""
        errand = errand_json(region="EU-RO-1")
        end = f"{run_id}/g2/terminate/1"
        self.add(
            run_id,
            at,
            ev.Reopened(Usd(6), errand),
            ev.Reserved(Usd("0.1")),
            ev.PodIntended(2, "trmc-2", "runpod", "fetch1", Usd(1), at + 800, at + 900),
            ev.PodUp(2, "pod-2", Usd(1)),
            ev.AgentUp(2),
            ev.Pulled(2, "fast", 100, "0" * 64),
            ev.ActionStarted(end, "terminate"),
            ev.ActionFinished(end, "terminate", taken=True, reason=why),
            ev.PodGone(2, at + 300),
            ev.Settled(2, Usd("0.1"), Usd("0.1")),
            ev.Closed(Outcome.FINISHED.value),
        )


@pytest.fixture
def book() -> Book:
    return Book()


def test_the_rent_is_held_at_every_level_until_its_day(book: Book) -> None:
    book.begin("r1")
    book.train("r1")
    assert holds(book.ledger) == (), "its reservation holds it as long as it runs"
    book.settle("r1")
    (hold,) = holds(book.ledger)
    assert (hold.since, hold.until) == (AT, ENDED + 7 * DAY_S)
    assert hold.amount == cost(VOLUME_RATE, 7 * DAY_S + 3600.0)
    assert hold.accrued(AT + DAY_S) == A_DAY
    assert hold.accrued(AT + 90 * DAY_S) == hold.amount
    for line in (*book.ledger.lines_for("thesis", AT), book.ledger.line("run", "r1")):
        assert (line.settled, line.reserved, line.volumes) == (Usd(1), hold.amount, hold.amount)
    assert book.ledger.line("project", "another").reserved == ZERO


def test_what_is_deleted_is_settled_at_what_it_had_cost(book: Book) -> None:
    book.run("r1")
    book.add("", AT + DAY_S, ev.VolumeDeleted("runpod", "EU-RO-1", "me"))
    line = book.ledger.line("run", "r1")
    assert (line.settled, line.reserved) == (Usd(1) + A_DAY, ZERO)
    assert due_volumes(book.ledger, AT + 100 * DAY_S) == ()


@pytest.mark.parametrize(("seen_gone_s", "until_s"), [(600.0, 600.0), (9000.0, 3600.0)])
def test_a_pod_that_lists_lacked_may_have_lived_until_it_was_seen_to_be_gone(
    book: Book, seen_gone_s: float, until_s: float
) -> None:
    """A list that flickers says nothing of the end, nor does a day that is counted from it."""
    book.begin("a", AT)
    book.train("a")
    book.add("a", AT + 20, ev.PodMissed(1))
    gone = ev.PodGone(1, AT + 20)
    book.add("a", AT + seen_gone_s, gone, ev.Settled(1, Usd(1), Usd(1)), ev.Closed("unreported"))
    assert [hold.until for hold in holds(book.ledger)] == [AT + until_s + 7 * DAY_S]


def test_one_volume_of_two_runs_is_paid_once(book: Book) -> None:
    book.run("r1")
    book.begin("r2", AT + DAY_S)
    book.train("r2", AT + DAY_S)
    book.settle("r2", AT + DAY_S + 3600.0)
    first, second = holds(book.ledger)
    assert second.since == first.until
    whole = cost(VOLUME_RATE, 8 * DAY_S + 3600.0)
    assert first.amount + second.amount - whole <= Usd.from_micros(1)
    book.add("", AT + 2 * DAY_S, ev.VolumeDeleted("runpod", "EU-RO-1", "me"))
    assert book.ledger.line("account", "").volumes == cost(VOLUME_RATE, 2 * DAY_S)
    book.begin("r3", AT + 3 * DAY_S)
    book.train("r3", AT + 3 * DAY_S)
    book.settle("r3", AT + 3 * DAY_S + 3600.0)
    assert holds(book.ledger)[2].since == AT + 3 * DAY_S, "it was made anew"


def test_a_volume_whose_pod_was_never_had_is_held_too(book: Book) -> None:
    book.begin("r1", volume_days=1.0)
    book.add(
        "r1", AT + 5.0, ev.PodNotMade(1, quoted("sold out")), ev.Closed(Outcome.NOT_STARTED.value)
    )  # fmt: skip
    (hold,) = holds(book.ledger)
    assert (hold.since, hold.until, hold.fetched) == (AT, AT + DAY_S, True)


@pytest.mark.parametrize(
    ("then", "fetched", "kept"),
    [
        (KEEP, True, "r1 did not agree to its deletion"),
        (DELETE_FETCHED, False, "the checkpoints of r1 were not fetched"),
        (DELETE_FETCHED, True, ""),
        (DELETE, False, ""),
    ],
)
def test_it_is_deleted_only_as_was_agreed(book: Book, then: str, fetched: bool, kept: str) -> None:
    book.run("r1", volume_then=then, volume_days=2.0)
    if fetched:
        book.fetch("r1")
    day = ENDED + 2 * DAY_S
    assert due_volumes(book.ledger, day - 1.0) == ()
    (over,) = due_volumes(book.ledger, day)
    assert (over.place, sentence(over.why_kept)) == ("EU-RO-1", kept)
    assert over.beyond(day + DAY_S) == A_DAY


def test_an_errand_that_was_cut_off_has_fetched_nothing_for_sure(book: Book) -> None:
    book.run("r1", volume_then=DELETE_FETCHED)
    book.fetch("r1", why=make_reason(ReasonKind.HARD_STOP))
    (over,) = due_volumes(book.ledger, ENDED + 30 * DAY_S)
    assert sentence(over.why_kept) == "the checkpoints of r1 were not fetched"


def test_one_that_did_not_agree_keeps_it_for_all(book: Book) -> None:
    book.run("r1", volume_then=DELETE)
    book.run("r2", volume_then=KEEP)
    (over,) = due_volumes(book.ledger, ENDED + 30 * DAY_S)
    assert sentence(over.why_kept) == "r2 did not agree to its deletion"


def test_the_latest_day_of_all_its_runs_counts_and_a_live_one_keeps_it(book: Book) -> None:
    book.run("r1", volume_then=DELETE, volume_days=1.0)
    book.run("r2", volume_then=DELETE, volume_days=3.0)
    assert due_volumes(book.ledger, ENDED + 2 * DAY_S) == ()
    assert due_volumes(book.ledger, ENDED + 3 * DAY_S)
    book.begin("r3", ENDED + 3 * DAY_S, volume_then=DELETE)
    assert due_volumes(book.ledger, ENDED + 4 * DAY_S) == ()


def test_runs_without_a_volume_hold_nothing(book: Book) -> None:
    book.run("r1", volume=False)
    assert holds(book.ledger) == ()
    assert book.ledger.line("run", "r1").reserved == ZERO


def test_a_run_of_an_earlier_version_has_agreed_to_nothing(book: Book) -> None:
    book.run("r1", volume_then=DELETE)
    plan = plan_json(a_candidate(region="EU-RO-1"), volume=True)
    plan["spec"] = {k: v for k, v in plan["spec"].items() if not k.startswith("volume_")}
    row = plan["candidates"][0]
    plan["candidates"] = [{k: v for k, v in row.items() if not k.startswith("volume_")}]
    book.add(
        "r2",
        AT - DAY_S,
        ev.RunPlanned(plan, Usd(5), "thesis"),
        ev.Reserved(Usd(5)),
        ev.PodIntended(1, "trmc-r2", "runpod", "c1", Usd(1), AT, AT),
        ev.ActionStarted("r2/g1/create/1", "create"),
    )
    book.train("r2", AT - DAY_S)
    book.settle("r2", AT - DAY_S + 60.0)
    assert book.ledger.line("run", "r2").reserved == ZERO
    (over,) = due_volumes(book.ledger, ENDED + 30 * DAY_S)
    assert sentence(over.why_kept) == "r2 did not agree to its deletion"
