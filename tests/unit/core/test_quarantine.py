"""Runs and records that are damaged: what they hold in each budget, and what they stop."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest

from tests.plans import a_generation, plan_json
from trmcloud.core.catalog.providers import TRAITS
from trmcloud.core.clock import DatedFact
from trmcloud.core.contract.pod_contract import PodName
from trmcloud.core.control import events as ev
from trmcloud.core.control.bookkeeping import (
    AHEAD_S,
    add_events,
    govern,
    make_charges,
    require_new,
    require_run,
)
from trmcloud.core.control.budget import LedgerState, Line, extend_ledger, overdrawn
from trmcloud.core.control.ledger_facts import LostRecord, Quarantine
from trmcloud.core.control.ledger_records import fold_damaged
from trmcloud.core.control.observation import PodSeen, PodStatus
from trmcloud.core.control.reason import ReasonKind
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.errors import BudgetRefused, RunQuarantined
from trmcloud.core.money import ZERO, Usd, cost

OURS = "abcd1234"
SEPTEMBER = dt.datetime(2026, 9, 15, tzinfo=dt.timezone.utc).timestamp()
HURT = Quarantine("r-7", 3, (9, 12), Usd(5), "thesis", SEPTEMBER)
OPEN = replace(HURT, most=None)


def book(*hurt: Quarantine, **more: Any) -> LedgerState:
    return LedgerState(OURS, quarantined={q.run_id: q for q in hurt}, **more)


def figures(line: Line) -> tuple[Usd, Usd, Usd, Usd]:
    return line.settled, line.reserved, line.unproven, line.quarantined


AT_MOST = (ZERO, Usd(5), Usd(5), Usd(5))
NOTHING = (ZERO, ZERO, ZERO, ZERO)
SETTLED = (Usd(2), ZERO, ZERO, ZERO)


# -- what it holds in each budget --------------------------------------------------------------


@pytest.mark.parametrize(
    ("hurt", "held"),
    [(HURT, AT_MOST), (OPEN, NOTHING), (replace(HURT, settled=Usd(2)), SETTLED)],
    ids=["at most", "not known", "settled"],
)
def test_it_holds_what_it_may_have_cost_until_a_user_says_what_it_did(
    hurt: Quarantine, held: tuple[Usd, ...]
) -> None:
    assert figures(book(hurt).line("account", "")) == held


@pytest.mark.parametrize(
    ("level", "key", "changes", "burdens"),
    [
        ("account", "", {}, True),
        ("run", "r-7", {}, True),
        ("run", "r-8", {}, False),
        ("month", "2026-09", {}, True),
        ("month", "2026-10", {}, False),
        ("month", "2026-10", {"reserved_at": None}, True),
        ("project", "thesis", {}, True),
        ("project", "other", {}, False),
        ("project", "other", {"project": None}, True),
    ],
)
def test_it_burdens_its_own_budgets_and_every_one_that_may_be_its_own(
    level: str, key: str, changes: dict[str, Any], burdens: bool
) -> None:
    line = book(replace(HURT, **changes)).line(level, key)
    assert figures(line) == (AT_MOST if burdens else NOTHING)


def test_one_that_burdens_another_budget_hides_none_that_burdens_this_one() -> None:
    other = replace(HURT, run_id="r-6", project="other")
    more = replace(HURT, run_id="r-8", most=Usd(1))
    told = replace(HURT, run_id="r-9", settled=Usd(2))
    line = book(other, HURT, more, told).line("project", "thesis")
    assert figures(line) == (Usd(2), Usd(6), Usd(6), Usd(6))


@pytest.mark.parametrize(("cap", "ends"), [("5.01", False), ("5", False), ("4.99", True)])
def test_what_it_holds_at_the_most_ends_no_run_that_is_sound(cap: str, ends: bool) -> None:
    sound = RunState(
        "r-1", state=State.RESERVED, cap=Usd(100), project="thesis",
        settled=Usd(3), reserved=Usd(2), reserved_at=SEPTEMBER,
    )  # fmt: skip
    both = book(HURT, runs={"r-1": sound}, caps={("account", ""): Usd(cap)})
    assert both.line("account", "").over > ZERO
    assert bool(overdrawn(both, sound, SEPTEMBER)) is ends


# -- what a user says that it cost -------------------------------------------------------------


def test_what_a_user_says_settles_a_run_or_a_record_and_no_other() -> None:
    lost = LostRecord(4, "CapSet", ""), LostRecord(12, "", "")
    before = book(OPEN, replace(OPEN, run_id="r-8"), unread=lost)
    events = ev.DamageSettled("r-7", Usd(2)), ev.DamageSettled("#12", ZERO)
    records = [ev.Record(n, "", 0, SEPTEMBER + n, e) for n, e in enumerate(events, 20)]
    after = extend_ledger(before, records)
    told = after.quarantined["r-7"]
    assert (told.settled, told.settled_at, told.is_open) == (Usd(2), SEPTEMBER + 20, False)
    assert after.quarantined["r-8"].is_open
    assert after.unread == lost[:1]
    assert before.unread == lost
    assert before.quarantined["r-7"].is_open


# -- what it stops -----------------------------------------------------------------------------

OPENED = ev.RunPlanned(plan_json(), Usd(10), "thesis"), ev.Reserved(Usd(5))


@pytest.mark.parametrize(
    ("ledger", "why", "hint"),
    [
        (
            book(HURT, OPEN),
            "the cost of run r-7 is not known: its records are damaged; 3 of 5 could be read",
            "trmcloud admin ledger settle r-7 USD",
        ),
        (
            book(unread=(LostRecord(4, "CapSet", ""),)),
            "record 4, which sets a cap, is damaged",
            "trmcloud budget show",
        ),
        (
            book(unread=(LostRecord(12, "", ""),)),
            "record 12, of the whole ledger, is damaged",
            "trmcloud admin ledger settle #12 USD",
        ),
    ],
    ids=["a run", "a cap", "another record"],
)
def test_nothing_is_reserved_while_a_cost_is_not_known(
    ledger: LedgerState, why: str, hint: str
) -> None:
    with pytest.raises(BudgetRefused, match=why) as refused:
        add_events(ledger, 0, "r-1", 1, OPENED, SEPTEMBER)
    assert hint in str(refused.value.next_step)


@pytest.mark.parametrize("hurt", [HURT, replace(OPEN, settled=Usd(2))], ids=["at most", "settled"])
def test_once_its_cost_is_bounded_others_reserve(hurt: Quarantine) -> None:
    after, _ = add_events(book(hurt), 0, "r-1", 1, OPENED, SEPTEMBER)
    assert after.runs["r-1"].reserved == Usd(5)


def test_nothing_is_written_to_it() -> None:
    planned = ev.RunPlanned({}, Usd(1), "thesis")
    said = "run r-7 is in quarantine: its records"
    with pytest.raises(RunQuarantined, match=said):
        require_new(book(HURT), "r-7", planned)
    with pytest.raises(RunQuarantined, match=said):
        require_run(book(HURT), "r-7")
    require_new(book(HURT), "r-1", planned)


# -- its pods ----------------------------------------------------------------------------------

HARD_STOP_AT = int(SEPTEMBER) + 7200
LATEST_S = max(traits.kill_latency_s for traits in TRAITS.values())


def its_pod(ledger_id: str = OURS, run_id: str = "r-7") -> PodSeen:
    return PodSeen(
        "id-1", str(PodName(ledger_id, run_id, 1, HARD_STOP_AT)), PodStatus.RUNNING, Usd(36)
    )


def test_its_pods_are_no_strays_since_what_it_holds_is_for_them() -> None:
    assert make_charges(book(HURT), "runpod", (its_pod(),), SEPTEMBER) == ()
    (charge,) = make_charges(book(HURT), "runpod", (its_pod(), its_pod(run_id="r-8")), SEPTEMBER)
    assert "-r8-" in charge.pod_name


def test_one_that_is_ended_is_charged_unless_it_is_known_to_be_its_own() -> None:
    hurt, now = replace(HURT, created_at=SEPTEMBER - 3600), SEPTEMBER
    (charge,) = make_charges(book(hurt), "runpod", (its_pod(),), now, ending={"id-1"})
    spent_s = 3600 + TRAITS["runpod"].kill_latency_s + AHEAD_S
    assert (charge.run_id, charge.since) == ("r-7", now - 3600)
    assert charge.amount == cost(Usd(36), spent_s)
    own = replace(hurt, pods=("id-1",))
    assert make_charges(book(own), "runpod", (its_pod(),), now, ending={"id-1"}) == ()
    unread = replace(hurt, created_at=0.0)
    (charge,) = make_charges(book(unread), "runpod", (its_pod(),), now, ending={"id-1"})
    assert charge.since == now, "when it began cannot be read: not since 1970"


def test_when_it_began_and_which_pods_it_owns_is_known_as_far_as_it_can_be_read() -> None:
    events = [*OPENED, ev.PodUp(1, "id-1", Usd(36)), ev.PodUp(2, "id-2", Usd(36))]
    records = [ev.Record(n, "r-7", 1, SEPTEMBER + n, event) for n, event in enumerate(events, 1)]
    lost = [LostRecord(1, "RunPlanned", "r-7"), LostRecord(4, "PodUp", "r-7")]
    whole = [each for each in records if each.seq not in (1, 4)]
    hurt = fold_damaged(OURS, whole, lost).quarantined["r-7"]
    assert (hurt.created_at, hurt.pods) == (SEPTEMBER + 2, ("id-1",))
    unread = [LostRecord(each.seq, type(each.event).__name__, "r-7") for each in records]
    nothing = fold_damaged(OURS, [], unread).quarantined["r-7"]
    assert (nothing.created_at, nothing.pods) == (0.0, ())


def test_a_charge_for_a_pod_that_proves_to_be_its_own_is_dropped() -> None:
    name = str(PodName(OURS, "r-7", 1, HARD_STOP_AT))
    charge = ev.StrayCharged("runpod", "id-1", name, "r-7", SEPTEMBER, Usd(1))
    notes = [charge, ev.StrayBilled("runpod", "id-1", Usd(1))]
    records = [ev.Record(n, "", 0, SEPTEMBER, note) for n, note in enumerate(notes, 1)]
    assert extend_ledger(book(HURT), records).strays["runpod", "id-1"].billed == Usd(1)
    owner = RunState("r-7", generations=(a_generation(pod_id="id-1"),))
    assert extend_ledger(book(runs={"r-7": owner}), records).strays == {}


@pytest.mark.parametrize(
    ("after_s", "pod", "reason"),
    [
        (LATEST_S, its_pod(), None),
        (LATEST_S + 1, its_pod(), ReasonKind.HARD_STOP_PASSED),
        (-100, its_pod(run_id="r-8"), ReasonKind.NO_OWNER),
        (0, its_pod("99999999"), None),
        (1, its_pod("99999999"), ReasonKind.HARD_STOP_PASSED),
    ],
)
def test_its_pods_have_the_time_that_was_reserved_for_them(
    after_s: float, pod: PodSeen, reason: ReasonKind | None
) -> None:
    found = govern(book(HURT), DatedFact((pod,), SEPTEMBER), HARD_STOP_AT + after_s).orphans
    assert [orphan.reason.kind for orphan in found] == ([reason] if reason else [])
