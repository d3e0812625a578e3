"""Grants: what a principal holds is never above its grant, in total or on any day; who may do
what; what a refusal says."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plans import a_candidate, errand_json, plan_json
from tests.present import present
from tests.reasons import quoted
from trmcloud.core.clock import UnknownSince
from trmcloud.core.control import bookkeeping
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import LedgerState, fold_ledger, grant_line, overdrawn
from trmcloud.core.control.grants import (
    MOST_A_DAY,
    MOST_OPEN,
    allows_less,
    day_of,
    is_principal,
    left_in,
    live_runs,
    money_of,
    month_of,
    raised,
    refuse_bucket,
)
from trmcloud.core.control.ledger_facts import Grant, LostRecord
from trmcloud.core.control.ledger_records import fold_damaged
from trmcloud.core.control.reason import ReasonKind, make_reason
from trmcloud.core.control.run_state import IllegalTransition, Payer
from trmcloud.core.errors import (
    BudgetRefused,
    ConflictError,
    GrantRefused,
    NotFoundError,
    TrmcloudError,
    UsageError,
)
from trmcloud.core.money import ZERO, Usd, total
from trmcloud.core.values import replace

AT = dt.datetime(2026, 11, 27, 9, tzinfo=dt.timezone.utc).timestamp()
MIDNIGHT = dt.datetime(2026, 11, 28, tzinfo=dt.timezone.utc).timestamp()
HOUR = 3600.0


@dataclass
class Book:
    """A ledger that keeps its records, as the real ones do."""

    state: LedgerState = field(default_factory=lambda: LedgerState("abcd1234"))
    records: list[ev.Record] = field(default_factory=list)

    def grant(self, event: ev.GrantEvent, at: float = AT) -> None:
        self.state, record = bookkeeping.add_grant(self.state, len(self.records), event, at)
        self.records.append(record)

    def run(self, run_id: str, *events: ev.RunEvent, at: float = AT) -> None:
        seq = len(self.records)
        self.state, records = bookkeeping.add_events(self.state, seq, run_id, 1, events, at)
        self.records += records

    def open(
        self, run_id: str, amount: str, principal: str = "agent", at: float = AT, cap: str = "100"
    ) -> None:
        planned = ev.RunPlanned(
            plan_json(a_candidate("c1")), Usd(cap), "thesis", principal=principal
        )
        self.run(run_id, planned, ev.Reserved(Usd(amount)), at=at)

    def settle(self, run_id: str, amount: str, at: float, *, close: bool = True) -> None:
        run = self.state.runs[run_id]
        number = len(run.generations) + 1
        self.run(run_id, *_trained(number, Usd(amount), run.reserved_at, at), at=at)
        if close:
            self.run(run_id, ev.Closed("stopped"), at=at)


def _trained(number: int, amount: Usd, since: float, at: float) -> Iterator[ev.RunEvent]:
    yield ev.PodIntended(number, f"pod-{number}", "runpod", "c1", Usd(1), at + 50, at + 90)
    yield ev.PodUp(number, f"id-{number}", Usd(1))
    yield ev.PodGone(number, at)
    yield ev.Settled(number, amount, None)


def a_book(**terms: object) -> Book:
    book = Book()
    given_terms = ev.GrantTerms(**{"total": Usd(10), **terms})  # type: ignore[arg-type]
    book.grant(ev.GrantGiven("agent", given_terms, "me"))
    return book


# -- whatever is done in whatever order, no grant holds more than it allows ---------------------

cents = st.integers(0, 600).map(lambda n: Usd.from_micros(n * 10_000))


@dataclass(frozen=True)
class Step:
    what: str
    run_id: str
    principal: str
    amount: Usd
    other: Usd
    later_h: float


STEPS = (
    *("open", "open", "open", "train", "train", "train", "end", "end", "refuse", "reserve"),
    *("bill", "bill", "reopen", "reopen", "reopen", "errand", "raise", "ask", "answer", "sweep"),
)
RARE = ("give", "revoke")


def a_step(rng: random.Random) -> Step:
    return Step(
        rng.choice(RARE if rng.random() < 0.06 else STEPS),
        rng.choice(["r1", "r2", "r3", "r4"]),
        rng.choice(["", "a", "a", "b"]),
        Usd.from_micros(rng.randrange(0, 300) * 10_000),
        Usd.from_micros(rng.randrange(0, 900) * 10_000),
        rng.choice([0.0, 0.1, 2.0, 5.0, 13.0]),
    )


@dataclass
class Machine:
    """A machine, or a charge, as the test itself accounts for it."""

    payer: tuple[str, int]
    since: float
    until: float | None = None
    cost: Usd = ZERO
    most: Usd = ZERO


@dataclass
class Books:
    """The test's own accounts: kept without any function of the ledger's."""

    grants: dict[str, int] = field(default_factory=dict)
    standing: set[str] = field(default_factory=set)
    payer: dict[str, tuple[str, int]] = field(default_factory=dict)
    held: dict[str, tuple[Usd, float]] = field(default_factory=dict)
    machines: dict[str, list[Machine]] = field(default_factory=dict)

    def now(self, principal: str) -> tuple[str, int]:
        return principal, self.grants.get(principal, 0)

    def whole(self, payer: tuple[str, int]) -> Usd:
        spent = total(m.cost for ms in self.machines.values() for m in ms if m.payer == payer)
        return spent + total(
            amount for run_id, (amount, _) in self.held.items() if self.payer[run_id] == payer
        )

    def on_day(self, payer: tuple[str, int], day: str, now: float) -> Usd:
        """Everything that may have been spent on a day, or can be still."""
        return self._when(payer, day, now, day_of)

    def in_month(self, payer: tuple[str, int], month: str, now: float) -> Usd:
        """The same of a month."""
        return self._when(payer, month, now, month_of)

    def _when(
        self, payer: tuple[str, int], when: str, now: float, name: Callable[[float], str]
    ) -> Usd:
        spent = ZERO
        for machine in (m for ms in self.machines.values() for m in ms if m.payer == payer):
            last = machine.until if machine.until is not None else now
            if name(machine.since) <= when <= name(last):
                spent += machine.cost
        for run_id, (amount, since) in self.held.items():
            if self.payer[run_id] == payer and name(since) <= when:
                spent += amount
        return spent


def carry_out(book: Book, mine: Books, step: Step, at: float) -> None:
    """Do one step in the ledger, then in the test's own accounts; raise what the ledger does."""
    run = book.state.runs.get(step.run_id)
    name, number = step.run_id, len(run.generations) + 1 if run else 1
    payer = mine.now(step.principal)
    intended = ev.PodIntended(number, f"p{number}", "runpod", "c1", Usd(1), at + 5, at + 9)
    machines = mine.machines.setdefault(name, [])
    held = mine.held.get(name, (ZERO, at))[0]
    if step.what == "open":
        planned = ev.RunPlanned(
            plan_json(a_candidate("c1")), step.other, "p", principal=step.principal
        )
        book.run(name, planned, ev.Reserved(step.amount), at=at)
        mine.payer[name], mine.held[name] = payer, (step.amount, at)
    elif step.what == "reserve":
        book.run(name, ev.Reserved(step.amount), at=at)
        mine.held[name] = step.amount, at
    elif step.what in ("train", "refuse"):
        if step.what == "refuse":
            book.run(name, intended, ev.PodNotMade(number, quoted("none left")), at=at)
            return
        ends_at = at + step.later_h * HOUR
        amount = min(step.amount, held)
        gone = (ev.PodUp(number, f"{name}-{number}", Usd(1)), ev.PodGone(number, ends_at))
        book.run(name, intended, *gone, ev.Settled(number, amount, None), at=at)
        machines.append(Machine(mine.payer[name], at, ends_at, amount, amount))
        mine.held.pop(name)
    elif step.what == "bill":
        open_ = [m for m in machines if m.cost]
        if run is None or not open_:
            return
        machine = open_[-1]
        index = machines.index(machine) + 1
        numbers = [g.number for g in run.generations if g.settled is not None]
        billed = min(step.amount, machine.most)
        book.run(name, ev.Billed(numbers[index - 1], billed), at=at)
        machine.cost = billed
    elif step.what == "end":
        book.run(name, ev.Closed("stopped"), at=at)
        mine.held.pop(name, None)
    elif step.what in ("reopen", "errand"):
        errand = errand_json() if step.what == "errand" else None
        opened = ev.Reopened(step.other, errand, principal=step.principal)
        book.run(name, opened, ev.Reserved(step.amount), at=at)
        mine.payer[name], mine.held[name] = payer, (step.amount, at)
    elif step.what == "sweep":
        if run is None or not run.generations or not machines:
            return
        machine = machines[-1]
        kept = [g.number for g in run.generations if g.settled is not None]
        less = min(step.amount, machine.most - machine.cost)
        book.run(name, ev.BucketSwept(kept[-1], 7, less), at=at)
    else:
        carry_out_grant(book, mine, step, at)


def carry_out_grant(book: Book, mine: Books, step: Step, at: float) -> None:
    name = step.principal or "a"
    known = book.state.grants.get(name)
    if step.what == "give":
        per_run = step.other if step.amount.micros % 20_000 else None
        per_month = step.other + step.amount if step.amount.micros % 30_000 else None
        terms = ev.GrantTerms(
            step.amount + step.other, per_run=per_run, per_day=step.other, runs_at_once=2,
            per_month=per_month,
        )  # fmt: skip
        book.grant(ev.GrantGiven(name, terms), at)
        mine.grants[name] = mine.grants.get(name, 0) + 1
        mine.standing.add(name)
    elif step.what == "raise" and known is not None:
        terms = ev.GrantTerms(step.amount, per_day=step.other, per_month=step.amount + step.other)
        book.grant(ev.GrantRaised(name, terms), at)
    elif step.what == "revoke":
        book.grant(ev.GrantRevoked(name, at_once=bool(step.amount)), at)
        mine.standing.discard(name)
    elif step.what == "ask":
        asked = ev.ApprovalAsked(f"a-{len(book.records)}", name, more=step.amount)
        book.grant(asked, at)
    elif step.what == "answer":
        waiting = [a.id for a in book.state.approvals.values() if a.is_given is None]
        if waiting:
            given_ = step.amount > Usd(2)
            answer = ev.ApprovalGiven if given_ else ev.ApprovalDenied
            book.grant(answer(waiting[0]), at)


@pytest.mark.parametrize("seed", range(40))
def test_no_sequence_of_writes_holds_more_than_a_grant(seed: int) -> None:
    rng = random.Random(seed)
    book, mine, at, done = Book(), Books(), AT, 0
    for name in ("a", "b"):
        opening = Step("give", "r1", name, Usd(rng.randrange(4, 12)), Usd(rng.randrange(2, 8)), 0.0)
        carry_out_grant(book, mine, opening, at)
    for step in (a_step(rng) for _ in range(120)):
        at += step.later_h * HOUR
        before = book.state
        try:
            carry_out(book, mine, step, at)
        except (TrmcloudError, IllegalTransition):
            assert book.state is before, "a refused write changes nothing"
            continue
        done += 1
        for name, grant in book.state.grants.items():
            payer = mine.now(name)
            assert grant.number == payer[1]
            assert mine.whole(payer) <= money_of(book.state, grant).whole
            assert money_of(book.state, grant).whole <= grant.terms.total
            per_day, per_run = grant.terms.per_day, grant.terms.per_run
            days = [day_of(AT + hours * HOUR) for hours in range(0, int((at - AT) / HOUR) + 1, 12)]
            for day in {*days, day_of(at)}:
                assert per_day is None or mine.on_day(payer, day, at) <= per_day, (day, step)
            per_month = grant.terms.per_month
            for month in {month_of(AT), month_of(at)}:
                held_then = mine.in_month(payer, month, at)
                assert per_month is None or held_then <= per_month, (month, step)
            live = live_runs(book.state, grant)
            if grant.terms.runs_at_once:
                assert len(live) <= grant.terms.runs_at_once
            for run in live:
                held = run.settled + run.reserved
                assert per_run is None or held <= per_run or step.what == "sweep"
        for run in book.state.runs.values():
            if run.live and run.payer.principal:
                assert run.payer.principal in book.state.grants, "it was never without a grant"
    assert done > 20, "most of what is tried is refused"
    assert fold_ledger("abcd1234", book.records) == book.state


# -- money ---------------------------------------------------------------------------------------


def test_a_principal_without_a_grant_spends_nothing() -> None:
    book = Book()
    with pytest.raises(GrantRefused, match="agent has no grant") as caught:
        book.open("r1", "0")
    assert caught.value.next_step == "the owner gives one: trmcloud grant give agent USD"
    book.open("r2", "50", principal="")
    assert book.state.runs["r2"].creator == ""


def test_what_is_settled_and_reserved_is_within_the_grant_and_the_rest_is_said() -> None:
    book = a_book()
    book.open("r1", "4")
    book.settle("r1", "3", AT + HOUR)
    book.open("r2", "6", at=AT + HOUR)
    with pytest.raises(GrantRefused) as caught:
        book.open("r3", "2", at=AT + HOUR)
    assert str(caught.value) == (
        "$2.00 does not fit the grant of agent: $10.00 in total, $3.00 spent, $6.00 reserved, "
        "$1.00 left"
    )
    assert caught.value.next_step == "a reservation of up to 1 USD is allowed now"
    assert isinstance(caught.value, BudgetRefused)
    book.open("r3", "1", at=AT + HOUR)
    assert left_in(book.state, book.state.grants["agent"], AT + HOUR) == ZERO


def test_a_run_across_midnight_burdens_both_days() -> None:
    book = a_book(per_day=Usd(5))
    book.open("r1", "4", at=MIDNIGHT - HOUR)
    with pytest.raises(GrantRefused, match="on 2026-11-28") as caught:
        book.open("r2", "2", at=MIDNIGHT + HOUR)
    assert caught.value.next_step.startswith("a reservation of up to 1 USD")
    book.settle("r1", "4", MIDNIGHT + 2 * HOUR)
    grant = book.state.grants["agent"]
    assert money_of(book.state, grant, "2026-11-27").whole == ZERO, "its machine was intended later"
    assert money_of(book.state, grant, "2026-11-28").whole == Usd(4)
    assert left_in(book.state, grant, MIDNIGHT + 3 * HOUR) == Usd(1)
    assert left_in(book.state, grant, MIDNIGHT + 25 * HOUR) == Usd(5)


def test_a_month_has_a_limit_of_its_own_and_the_next_one_begins_anew() -> None:
    december = dt.datetime(2026, 12, 1, tzinfo=dt.timezone.utc).timestamp()
    book = a_book(total=Usd(50), per_month=Usd(5))
    book.open("r1", "3")
    book.settle("r1", "3", AT + HOUR)
    with pytest.raises(GrantRefused, match=r"\$5\.00 in 2026-11 \(UTC\)") as caught:
        book.open("r2", "3", at=AT + 2 * HOUR)
    assert caught.value.next_step.startswith("a reservation of up to 2 USD")
    book.open("r2", "2", at=AT + 2 * HOUR)
    grant = book.state.grants["agent"]
    assert left_in(book.state, grant, december) == Usd(3), "what is reserved may be spent then"
    book.settle("r2", "2", AT + 3 * HOUR)
    assert money_of(book.state, grant, "2026-11").whole == Usd(5)
    assert left_in(book.state, grant, december) == Usd(5)
    book.open("r3", "5", at=december)


def test_a_bill_below_the_estimate_gives_back_the_difference() -> None:
    book = a_book()
    book.open("r1", "9")
    book.settle("r1", "9", AT + HOUR)
    with pytest.raises(GrantRefused):
        book.open("r2", "2")
    book.run("r1", ev.Billed(1, Usd(5)), at=AT + 2 * HOUR)
    book.open("r2", "2")


def test_a_resumed_run_is_paid_by_who_resumes_it() -> None:
    book = a_book()
    book.open("r1", "4")
    book.settle("r1", "3", AT + HOUR)
    book.run("r1", ev.Reopened(Usd(100)), ev.Reserved(Usd(50)), at=AT + HOUR)
    book.settle("r1", "40", AT + 2 * HOUR)
    line = present(grant_line(book.state, "agent"))
    assert (line.settled, line.reserved) == (Usd(3), ZERO)
    with pytest.raises(GrantRefused, match=r"\$7\.00 left"):
        book.run(
            "r1", ev.Reopened(Usd(100), principal="agent"), ev.Reserved(Usd(8)), at=AT + 2 * HOUR
        )
    book.run("r1", ev.Reopened(Usd(100), principal="agent"), ev.Reserved(Usd(7)), at=AT + 2 * HOUR)
    run = book.state.runs["r1"]
    assert (run.creator, run.payer) == ("agent", Payer("agent", 1))
    assert [g.payer.principal for g in run.generations] == ["agent", ""]


def test_per_run_counts_the_whole_run() -> None:
    book = a_book(per_run=Usd(3))
    with pytest.raises(GrantRefused, match=r"\$3\.00 per run"):
        book.open("r1", "4")
    book.open("r1", "3")
    book.settle("r1", "2", AT + HOUR)
    with pytest.raises(GrantRefused, match=r"\$1\.00 left"):
        book.run("r1", ev.Reopened(Usd(9), principal="agent"), ev.Reserved(Usd(2)))
    book.run("r1", ev.Reopened(Usd(9), principal="agent"), ev.Reserved(Usd(1)))


def test_an_account_without_money_refuses_a_grant_with_some() -> None:
    book = a_book()
    book.state, record = bookkeeping.add_cap(
        book.state, len(book.records), ev.CapSet("account", "", Usd(2)), AT
    )
    book.records.append(record)
    with pytest.raises(BudgetRefused, match="account budget"):
        book.open("r1", "3")


# -- terms that are no money -----------------------------------------------------------------------


def test_runs_at_once_names_the_run_that_has_not_ended() -> None:
    book = a_book(runs_at_once=1)
    book.open("r1", "1")
    with pytest.raises(GrantRefused, match="allows 1 run at once, and r1 has not ended") as caught:
        book.open("r2", "1")
    assert caught.value.next_step == "wait for it, or land it: r1"
    book.settle("r1", "1", AT + HOUR)
    book.open("r2", "1")


@pytest.mark.parametrize(
    ("terms", "said", "allowed"),
    [
        ({"providers": ("vast",)}, "does not allow runpod", "allowed providers: vast"),
        ({"hardware": ("1xL4",)}, "does not allow 1xH100", "allowed hardware: 1xL4"),
    ],
)
def test_other_machines_are_refused(terms: dict[str, object], said: str, allowed: str) -> None:
    book = a_book(**terms)
    with pytest.raises(GrantRefused, match=said) as caught:
        book.open("r1", "1")
    assert caught.value.next_step == allowed


def test_a_machine_for_an_errand_is_judged_as_well() -> None:
    book = a_book(hardware=("1xH100",))
    book.open("r1", "1")
    book.settle("r1", "1", AT + HOUR)
    errand = ev.Reopened(Usd(9), errand_json(hardware="1xL4"), principal="agent")
    with pytest.raises(GrantRefused, match="does not allow 1xL4"):
        book.run("r1", errand, ev.Reserved(Usd(1)))


def test_nothing_is_reserved_after_the_expiry_not_even_for_a_run_that_lost_its_machine() -> None:
    book = a_book(expires_at=AT + 2 * HOUR)
    book.open("r1", "4")
    book.settle("r1", "1", AT + 3 * HOUR, close=False)
    with pytest.raises(GrantRefused, match=r"expired at 2026-11-27 11:00 UTC"):
        book.run("r1", ev.Reserved(Usd(3)), at=AT + 3 * HOUR)
    book.run("r1", ev.Closed("stopped"), at=AT + 3 * HOUR)


# -- revoked ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [False, True])
def test_a_revoked_grants_runs_land_or_end(at_once: bool) -> None:
    book = a_book()
    book.open("r1", "4")
    book.open("r2", "4", principal="")
    book.grant(ev.GrantRevoked("agent", "me", at_once), AT + 60)
    kind = ReasonKind.GRANT_REVOKED_NOW if at_once else ReasonKind.GRANT_REVOKED
    why = make_reason(kind, principal="agent")
    demands = bookkeeping.govern(book.state, UnknownSince(AT), AT + 60)
    assert demands.land == (("r1", why),)
    stop = ev.StopRequested("budget", why)
    assert stop.at_once is at_once
    book.run("r1", stop)
    assert bookkeeping.govern(book.state, UnknownSince(AT), AT + 60).land == ()
    with pytest.raises(GrantRefused, match="is revoked"):
        book.open("r3", "1")


def test_what_lands_may_still_be_ended_at_once() -> None:
    book = a_book()
    book.open("r1", "4")
    book.grant(ev.GrantRevoked("agent"), AT)
    book.run("r1", ev.StopRequested("budget", make_reason(ReasonKind.STOP_COMMAND)))
    assert bookkeeping.govern(book.state, UnknownSince(AT), AT).land == ()
    book.grant(ev.GrantRevoked("agent", at_once=True), AT)
    assert [run_id for run_id, _ in bookkeeping.govern(book.state, UnknownSince(AT), AT).land] == [
        "r1"
    ]
    with pytest.raises(ConflictError, match="revoked already"):
        book.grant(ev.GrantRevoked("agent", at_once=True), AT)


def test_a_new_grant_counts_from_itself_and_the_old_ones_runs_do_not_return() -> None:
    book = a_book()
    book.open("r1", "9")
    book.grant(ev.GrantRevoked("agent"), AT)
    book.grant(ev.GrantGiven("agent", ev.GrantTerms(Usd(5))), AT - HOUR)  # a clock was set back
    assert bookkeeping.govern(book.state, UnknownSince(AT), AT).land != ()
    line = present(grant_line(book.state, "agent"))
    assert line.reserved == ZERO
    book.settle("r1", "9", AT + HOUR, close=False)
    with pytest.raises(GrantRefused, match="was launched under is revoked"):
        book.run("r1", ev.Reserved(Usd(1)))
    book.open("r2", "5", at=AT - 2 * HOUR)
    line = present(grant_line(book.state, "agent"))
    assert line.remaining == ZERO


# -- given, raised, asked for ----------------------------------------------------------------------


def test_a_grant_is_given_once_and_only_raised() -> None:
    book = a_book(per_run=Usd(2), hardware=("1xH100",))
    with pytest.raises(ConflictError, match="has a grant of"):
        book.grant(ev.GrantGiven("agent", ev.GrantTerms(Usd(1))))
    terms = book.state.grants["agent"].terms
    lower = ev.GrantTerms(Usd(9), per_run=Usd(2), hardware=("1xH100",))
    with pytest.raises(UsageError, match="total would allow less"):
        book.grant(ev.GrantRaised("agent", lower))
    more = ev.GrantTerms(Usd(11), per_run=Usd(3), hardware=("1xH100", "8xH100"))
    book.grant(ev.GrantRaised("agent", more))
    assert book.state.grants["agent"].terms == more != terms
    with pytest.raises(NotFoundError, match="b has no grant"):
        book.grant(ev.GrantRaised("b", more))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"total": Usd(9)}, "total"),
        ({"per_run": Usd(1)}, "per-run"),
        ({"per_day": Usd(1)}, "per-day"),
        ({"runs_at_once": 1}, "runs-at-once"),
        ({"hardware": ("1xH100",)}, "hardware"),
        ({"providers": ("runpod",)}, "provider"),
        ({"expires_at": AT}, "expires"),
        ({}, ""),
    ],
)
def test_terms_that_allow_less_are_named(change: dict[str, object], name: str) -> None:
    open_ = ev.GrantTerms(Usd(10))
    new = ev.GrantTerms(**{"total": Usd(10), **change})  # type: ignore[arg-type]
    assert allows_less(new, open_) == name


@pytest.mark.parametrize("name", ["", "owner", "Owner", "a b", "a\nb", "-a", "a" * 65, "ä"])
def test_names_that_no_principal_has(name: str) -> None:
    assert not is_principal(name)
    with pytest.raises(UsageError, match="no name of a principal"):
        Book().grant(ev.GrantGiven(name, ev.GrantTerms(Usd(1))))


@pytest.mark.parametrize(
    "terms",
    [
        {"total": Usd(-1)},
        {"per_run": Usd(-1)},
        {"runs_at_once": -1},
        {"providers": ("nobody",)},
        {"expires_at": AT},
        {"idle_s": float("nan")},
    ],
)
def test_terms_that_are_none(terms: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        a_book(**terms)


def test_an_approval_raises_the_grant_by_what_was_asked() -> None:
    book = a_book(per_run=Usd(2), runs_at_once=1, hardware=("1xL4",))
    asked = ev.ApprovalAsked(
        "a-1", "agent", "a longer run", more=Usd(5), per_run=Usd(4), hardware=("1xH100",)
    )
    book.grant(asked)
    with pytest.raises(GrantRefused):
        book.open("r1", "3")
    book.grant(ev.ApprovalGiven("a-1", "me"), AT + 60)
    assert book.state.grants["agent"].terms == ev.GrantTerms(
        Usd(15), per_run=Usd(4), runs_at_once=1, hardware=("1xL4", "1xH100")
    )
    book.open("r1", "3")
    with pytest.raises(ConflictError, match="was approved already"):
        book.grant(ev.ApprovalDenied("a-1"))
    assert book.state.approvals["a-1"].answered_at == AT + 60


def test_a_denied_request_changes_nothing_and_an_unknown_one_is_not_found() -> None:
    book = a_book()
    book.grant(ev.ApprovalAsked("a-1", "agent", more=Usd(5)))
    book.grant(ev.ApprovalDenied("a-1"))
    assert book.state.grants["agent"].terms == ev.GrantTerms(Usd(10))
    with pytest.raises(NotFoundError, match="no request 'a-2'"):
        book.grant(ev.ApprovalGiven("a-2"))


def test_a_request_about_a_revoked_grant_is_not_approved() -> None:
    book = a_book()
    book.grant(ev.ApprovalAsked("a-1", "agent", more=Usd(5)))
    book.grant(ev.GrantRevoked("agent"))
    book.grant(ev.GrantGiven("agent", ev.GrantTerms(Usd(1))))
    with pytest.raises(ConflictError, match="is revoked"):
        book.grant(ev.ApprovalGiven("a-1"))


def test_requests_are_few() -> None:
    book = a_book()
    for number in range(MOST_OPEN):
        book.grant(ev.ApprovalAsked(f"a-{number}", "agent", more=Usd(number + 1)))
    with pytest.raises(GrantRefused, match="3 requests are open"):
        book.grant(ev.ApprovalAsked("a-9", "agent", more=Usd(9)))
    for number in range(MOST_OPEN, MOST_A_DAY):
        book.grant(ev.ApprovalDenied(f"a-{number - MOST_OPEN}"))
        book.grant(ev.ApprovalAsked(f"a-{number}", "agent", more=Usd(number + 1)))
    for number in range(MOST_A_DAY - MOST_OPEN, MOST_A_DAY):
        book.grant(ev.ApprovalDenied(f"a-{number}"))
    with pytest.raises(GrantRefused, match="10 times today") as caught:
        book.grant(ev.ApprovalAsked("a-x", "agent", more=Usd(1)))
    assert caught.value.next_step == "ask again tomorrow"
    book.grant(ev.ApprovalAsked("a-x", "agent", more=Usd(1)), AT + 24 * HOUR)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"per_run": Usd(1)},
        {"hardware": ("1xL4",)},
        {"more": Usd(-1)},
        {"runs_at_once": 2},
    ],
)
def test_a_request_for_nothing_is_none(asked: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        a_book().grant(ev.ApprovalAsked("a-1", "agent", **asked))  # type: ignore[arg-type]


@given(st.builds(ev.GrantTerms, cents, st.none() | cents, st.none() | cents, st.integers(0, 3)))
def test_raising_by_a_request_never_allows_less(terms: ev.GrantTerms) -> None:
    asked = ev.ApprovalAsked("a", "b", more=Usd(1), per_run=Usd(3), runs_at_once=2)
    assert allows_less(raised(terms, asked), terms) == ""


# -- damage ----------------------------------------------------------------------------------------


def test_a_damaged_revocation_stops_reservations_and_a_damaged_grant_allows_nothing() -> None:
    book = a_book()
    book.grant(ev.GrantRevoked("agent"))
    lost = fold_damaged("abcd1234", book.records[:1], [LostRecord(2, "GrantRevoked", "")])
    hurt = Book(lost, list(book.records))
    with pytest.raises(BudgetRefused, match="revokes a grant, is damaged"):
        hurt.open("r1", "1")
    lost = fold_damaged("abcd1234", [], [LostRecord(1, "GrantGiven", "")])
    with pytest.raises(GrantRefused, match="has no grant"):
        Book(lost, list(book.records)).open("r1", "1")
    Book(lost, list(book.records)).open("r1", "1", principal="")


def test_a_run_that_cannot_be_read_burdens_the_grant_that_may_have_paid_for_it() -> None:
    book = a_book()
    book.open("r1", "4")
    last = book.records[-1].seq
    lost = [LostRecord(last, "Reserved", "r1")]
    hurt = fold_damaged("abcd1234", [r for r in book.records if r.seq != last], lost)
    line = present(grant_line(hurt, "agent"))
    assert line.quarantined == line.reserved == Usd(100)
    planned = [LostRecord(last - 1, "RunPlanned", "r1")]
    hurt = fold_damaged("abcd1234", [r for r in book.records if r.seq != last - 1], planned)
    line = present(grant_line(hurt, "agent"))
    assert line.reserved == Usd(4), "whose it was cannot be told"


def without(book: Book, *kinds: str) -> Book:
    """The same with the last record of each of these kinds damaged."""
    lost = [
        max((r for r in book.records if type(r.event).__name__ == kind), key=lambda r: r.seq)
        for kind in kinds
    ]
    whole = [record for record in book.records if record not in lost]
    damaged = [LostRecord(each.seq, type(each.event).__name__, each.run_id) for each in lost]
    return Book(fold_damaged("abcd1234", whole, damaged), list(book.records))


def test_a_run_that_cannot_be_read_counts_as_one_that_has_not_ended() -> None:
    book = a_book(total=Usd(500), runs_at_once=1)
    book.open("r1", "4")
    with pytest.raises(GrantRefused, match="r1 has damaged records and may not") as caught:
        without(book, "Reserved").open("r2", "1")
    assert "trmcloud admin ledger restore" in str(caught.value.next_step)
    without(book, "Reserved").open("r2", "1", principal="")
    book.settle("r1", "4", AT + HOUR)
    with pytest.raises(GrantRefused, match="may not have ended"):
        without(book, "Closed").open("r2", "1")
    without(book, "PodGone").open("r2", "1")  # its end can be read
    book.run("r1", ev.Reopened(Usd(100), principal="agent"), at=AT + 2 * HOUR)
    for kinds in (("Reserved",), ("Reopened",), ("Closed", "Reopened")):
        with pytest.raises(GrantRefused, match="may not have ended"):
            without(book, *kinds).open("r2", "1")


def test_a_grant_that_a_bill_overdraws_lands_its_run() -> None:
    book = a_book()
    book.open("r1", "4")
    book.settle("r1", "4", AT + HOUR)
    book.open("r2", "6", at=AT + HOUR)
    book.run("r1", ev.Billed(1, Usd(5)), at=AT + 2 * HOUR)
    run = book.state.runs["r2"]
    (line,) = overdrawn(book.state, run, AT + 2 * HOUR)
    assert (line.level, line.key, line.over) == ("grant", "agent", Usd(1))


@pytest.mark.parametrize(
    ("bucket", "is_allowed"),
    [
        ("s3://team/runs", True), ("s3://team/runs/a", True), ("s3://own/x", True),
        ("s3://own", False), ("s3://team/runs-of-others", False), ("s3://team", False),
        ("s3://other/runs", False), ("s3://own/xy", False),
    ],
)  # fmt: skip
def test_a_bucket_is_the_configured_one_or_one_of_the_grants(bucket: str, is_allowed: bool) -> None:
    grant = Grant("agent", 1, ev.GrantTerms(Usd(1), buckets=("s3://own/x",)), 0.0)
    assert (refuse_bucket(grant, bucket, "s3://team/runs/") is None) is is_allowed
    refused = present(refuse_bucket(Grant("agent", 1, ev.GrantTerms(Usd(1)), 0.0), bucket, ""))
    assert "trmcloud grant raise agent --bucket" in refused.allowed


def test_a_grant_with_a_bucket_less_allows_less() -> None:
    two = ev.GrantTerms(Usd(1), buckets=("s3://a", "s3://b"))
    assert allows_less(replace(two, buckets=("s3://a",)), two) == "bucket"
    assert allows_less(replace(two, buckets=("s3://b", "s3://a", "s3://c")), two) == ""
