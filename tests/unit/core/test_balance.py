"""The free part of an account's balance, how long it lasts, and the runs that land for it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

import pytest

from tests.plans import a_candidate, a_plan, plan_json
from tests.present import present
from tests.unit.core.runs import apply
from tests.unit.core.test_older_moves import AT as MOVE_AT
from tests.unit.core.test_older_moves import read
from trmcloud.core.contract.notices import NoticeKind
from trmcloud.core.control import events as ev
from trmcloud.core.control.balance import (
    BILLED_WITHIN_S,
    LOOK_EVERY_S,
    MARGIN_S,
    AccountBalance,
    BalanceOutlook,
    Funds,
    funds_of,
    held_of,
    holder_of,
    is_watched,
    look_every_s,
    low_balance_event,
    outlook_of,
    require_funds,
    why_land,
    worst_at,
)
from trmcloud.core.control.budget import LedgerState, extend_ledger
from trmcloud.core.control.notices import NoticeInputs
from trmcloud.core.control.reason import ReasonKind, make_reason
from trmcloud.core.control.run_state import Errand, RunState, State
from trmcloud.core.errors import Outcome, PaymentRequired
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.spec.spec import BALANCE_POLICIES, IGNORE, STOP, WARN
from trmcloud.operations.narration import words_of
from trmcloud.operations.notices.notifications import due_notices
from trmcloud.operations.reasons import low_balance, sentence

AT = 1_790_000_000.0
RATE = Usd("3.6")
CAP = Usd("40")
LANDING_S = 100.0


told = partial(apply, at=AT)


def reserved(run_id: str = "r1", policy: str = WARN, provider: str = "runpod") -> RunState:
    made = plan_json(a_candidate(provider=provider), balance=policy)
    return told(RunState(run_id), ev.RunPlanned(made, CAP, "thesis"), ev.Reserved(CAP))


def training(run_id: str = "r1", policy: str = WARN, hours: float = 10.0) -> RunState:
    """It trains since ``AT`` at 3.60 USD/h, and lands ``hours`` later."""
    ends_at = AT + hours * 3600.0
    return told(
        reserved(run_id, policy),
        ev.PodIntended(1, f"pod-{run_id}", "runpod", "c1", RATE, ends_at, ends_at + LANDING_S),
        ev.PodUp(1, f"id-{run_id}", RATE),
        ev.AgentUp(1),
    )


def an_outlook(hours: float, at: float = AT, balance: str = "9") -> BalanceOutlook:
    return BalanceOutlook("runpod", Usd(balance), RATE, at, at + hours * 3600.0)


# -- what is free ---------------------------------------------------------------------------------


def test_a_run_holds_its_reservation_less_the_rent_that_was_billed() -> None:
    assert held_of(reserved(), AT) == CAP
    run = training()
    assert held_of(run, AT + BILLED_WITHIN_S) == CAP, "it may not be in the balance yet"
    an_hour_on = AT + BILLED_WITHIN_S + 3600.0
    assert held_of(run, an_hour_on) == CAP - RATE
    assert held_of(run, AT + 1e6) == ZERO


def test_only_the_latest_machine_counts_and_nothing_of_a_run_that_has_ended() -> None:
    run = training()
    gone = told(run, ev.PodGone(1, AT + 600.0), ev.Settled(1, Usd(1), None), at=AT + 600.0)
    again = told(gone, ev.Reserved(Usd(39)), at=AT + 700.0)
    assert (again.state, held_of(again, AT + 7000.0)) == (State.RESERVED, Usd(39))
    closed = told(gone, ev.Closed(Outcome.STOPPED.value))
    assert held_of(closed, AT + 700.0) == ZERO
    assert holder_of(closed) == ""


def test_rent_counts_from_the_pod_on_until_its_end_by_the_lower_of_both_rates() -> None:
    """What is taken off is in the balance already; too much of it would leave a run unpaid."""
    hour_s = BILLED_WITHIN_S + 3600.0
    run = training()
    billed = {"lower": Usd("1.8"), "higher": Usd("7.2")}
    for rate, off in ((billed["lower"], Usd("1.8")), (billed["higher"], RATE), (None, RATE)):
        (generation,) = run.generations
        other = replace(run, generations=(replace(generation, billed_rate=rate),))
        assert held_of(other, AT + hour_s) == CAP - off
    ended = told(run, ev.PodGone(1, AT + hour_s), at=AT + hour_s)
    assert (ended.state, held_of(ended, AT + 5 * hour_s)) == (State.SETTLING, CAP - RATE)
    (generation,) = run.generations
    coming = replace(run, generations=(replace(generation, up_at=None),), state=State.RENTING)
    assert held_of(coming, AT + hour_s) == CAP, "whether it is there is not known"
    for state, held in ((State.RESERVED, CAP), (State.CLOSED, ZERO), (State.NEW, ZERO)):
        assert held_of(replace(run, state=state), AT + hour_s) == held
    assert held_of(replace(run, generations=()), AT + hour_s) == CAP
    small = replace(run, reserved=Usd("0.1"))
    assert held_of(small, AT + hour_s) == ZERO


@pytest.mark.parametrize(
    ("state", "provider"),
    [(State.PLANNED, "vast"), (State.RESERVED, "vast"), (State.RENTING, "runpod"),
     (State.RUNNING, "runpod"), (State.SETTLING, "runpod"), (State.CLOSED, "")],
)  # fmt: skip
def test_a_reservation_is_held_where_its_machine_is_or_will_be(state: State, provider: str) -> None:
    """Its first machine was at RunPod; the next candidate is one of vast.ai's."""
    run = replace(training(), state=state)
    made = plan_json(a_candidate("c2", provider="vast"))
    planned = told(RunState("r2"), ev.RunPlanned(made, CAP, "thesis")).recorded_plan
    run = replace(run, recorded_plan=planned, candidate_id="c2")
    assert holder_of(run) == provider
    assert holder_of(replace(run, generations=())) == (provider and "vast")
    assert holder_of(replace(run, reserved=ZERO)) == ""
    assert holder_of(replace(run, reserved=Usd("0.000001"))) == provider


def test_a_run_without_a_candidate_holds_nothing_anywhere() -> None:
    run = told(RunState("r1"), ev.RunPlanned(plan_json(), CAP, "thesis"), ev.Reserved(CAP))
    assert holder_of(run) == ""
    assert held_of(RunState("r0"), AT) == ZERO


def test_the_worst_case_is_that_of_the_dearest_candidate_of_that_provider() -> None:
    plan = a_plan(
        a_candidate("c1", worst_case=Usd(5)),
        a_candidate("c2", worst_case=Usd(7)),
        a_candidate("c3", worst_case=Usd(9), provider="vast"),
        a_candidate("c4", worst_case=Usd(99)),
    )
    plan = replace(plan, launchable=("c1", "c2", "c3"))
    assert worst_at(plan, "runpod") == Usd(7)
    assert worst_at(plan, "vast") == Usd(9)
    assert worst_at(plan, "local") == ZERO


def test_what_is_held_elsewhere_is_not_held_here() -> None:
    runs = [training("r1"), reserved("r2"), reserved("r3", provider="vast")]
    funds = funds_of("runpod", AccountBalance(Usd(100)), runs, AT)
    assert funds == Funds("runpod", Usd(100), {"r1": CAP, "r2": CAP})
    assert (funds.held_usd, funds.free) == (Usd(80), Usd(20))
    assert (funds.missing(Usd(20)), funds.missing(Usd("20.01"))) == (ZERO, Usd("0.01"))
    assert funds.fitting == Usd("19.6")
    mine = present(funds_of("runpod", AccountBalance(Usd(100)), runs, AT, but="r2"))
    assert mine.free == Usd(60)


def test_what_a_machine_that_stands_by_may_take_is_held_at_its_provider() -> None:
    run, now = read("begun", "handed_over"), MOVE_AT + 3600.0
    for provider, held in (("runpod", Usd(60)), ("vast", Usd(40)), ("lambda", None)):
        funds = present(funds_of(provider, AccountBalance(Usd(100)), [run], now))
        # Of the working machine 50 minutes' rent of 4 USD/h are in the balance already.
        billed = cost(Usd(4), 3000.0) if provider == "runpod" else ZERO
        assert dict(funds.held) == ({"r1": held - billed} if held is not None else {})
    mine = present(funds_of("vast", AccountBalance(Usd(100)), [run], now, but="r1"))
    assert mine.free == Usd(100)


def test_a_balance_that_is_not_told_is_no_limit() -> None:
    assert funds_of("huggingface", AccountBalance(why="no API shows it"), [], AT) is None
    assert outlook_of("huggingface", AccountBalance(), [training()], AT) is None


def test_the_refusal_says_what_is_missing_and_every_way_out() -> None:
    funds = Funds("runpod", Usd(50), {"r-1": Usd(20)})
    require_funds(funds, Usd(30))
    with pytest.raises(
        PaymentRequired,
        match=r"\$30.00 of the runpod balance of \$50.00 are free, \$20.00 are reserved",
    ) as at:
        require_funds(funds, Usd(45))
    assert at.value.next_step.startswith("add $15.00 at runpod; --fit-balance shortens it; ")
    assert "--balance ignore" in at.value.next_step
    assert at.value.exit_code == 14
    with pytest.raises(
        PaymentRequired, match=r"\$0.00 of the runpod balance of -\$3.00 are free"
    ) as caught:
        require_funds(Funds("runpod", Usd("-3"), {}), Usd(1))
    assert "--fit-balance" not in caught.value.next_step, "there is nothing to fit"
    assert "add $4.00" in caught.value.next_step
    with pytest.raises(PaymentRequired) as caught:
        require_funds(Funds("runpod", Usd(20), {"r-1": Usd(20)}), Usd(1))
    assert "--fit-balance" not in caught.value.next_step, "nor here"
    with pytest.raises(PaymentRequired) as caught:
        require_funds(funds, Usd(45), fits="")
    assert caught.value.next_step.startswith("add $15.00 at runpod; --balance ignore")


# -- how long it lasts ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("balance", "spending", "hours"),
    [
        (Usd(36), None, 10.0),  # our own machine's rent
        (Usd(36), Usd("7.2"), 5.0),  # other pods of the account are among it
        (Usd(36), ZERO, 10.0),  # the provider has not counted the new machine yet
        (ZERO, Usd(1), 0.0),
        (ZERO, ZERO, 0.0),
        (Usd(-5), Usd(1), 0.0),
    ],
)
def test_hours_left_are_over_all_that_the_account_spends(
    balance: Usd, spending: Usd | None, hours: float
) -> None:
    outlook = present(outlook_of("runpod", AccountBalance(balance, spending), [training()], AT))
    assert outlook.hours_left(AT) == pytest.approx(hours)
    assert outlook.ends_at == pytest.approx(AT + hours * 3600.0, abs=0.001)
    assert outlook.hours_left(AT + 1e9) == 0.0


def test_what_our_machines_take_is_their_rent_and_disks_at_that_provider() -> None:
    made = plan_json(a_candidate(disk_rate=Usd("0.4")))
    planned = told(RunState("r1"), ev.RunPlanned(made, CAP, "thesis")).recorded_plan
    run = replace(training(), recorded_plan=planned)
    (generation,) = run.generations
    billed = replace(run, generations=(replace(generation, billed_rate=Usd(4)),))
    gone = told(run, ev.PodGone(1, AT), at=AT)
    closed = replace(run, state=State.CLOSED)
    unbilled = replace(run, generations=(replace(generation, billed_rate=None),))
    for runs, hours in (
        ([run], 5.0),
        ([unbilled], 5.0),
        ([billed], 20 / 4.4),
        ([run, billed], 20 / 8.4),
        ([run, gone, closed], 5.0),
    ):
        outlook = present(outlook_of("runpod", AccountBalance(Usd(20)), runs, AT))
        assert outlook.hours_left(AT) == pytest.approx(hours)
    elsewhere = present(outlook_of("vast", AccountBalance(Usd(20)), [run], AT))
    assert (elsewhere.spending, elsewhere.ends_at) == (ZERO, inf)


@pytest.mark.parametrize(
    ("hours", "balance", "last", "level"),
    [
        (24.0, "50", None, None), (23.99, "50", None, 24), (6.0, "50", None, 24),
        (5.99, "50", None, 6),
        (20.0, "50", (24, "60"), None), (5.0, "50", (24, "60"), 6),
        (20.0, "50", (6, "60"), None),  # it is low since it was: one warning is enough
        (20.0, "50", (6, "50"), None), (20.0, "50", (6, "49"), 24),  # money came
        (5.0, "50", (6, "49"), 6),
        (30.0, "50", (6, "60"), 0), (30.0, "50", (6, "49"), 0), (30.0, "50", None, None),
    ],
)  # fmt: skip
def test_which_warning_follows_which(
    hours: float, balance: str, last: tuple[int, str] | None, level: int | None
) -> None:
    known = ev.BalanceLow("runpod", last[0], Usd(last[1]), RATE, AT, AT) if last else None
    event = low_balance_event(an_outlook(hours, balance=balance), known, AT)
    assert (event.hours if event is not None else None) == level
    if event is not None:
        ends_at = AT + hours * 3600.0
        assert event == ev.BalanceLow("runpod", event.hours, Usd(balance), RATE, AT, ends_at)


def test_what_spends_nothing_lasts() -> None:
    outlook = present(outlook_of("runpod", AccountBalance(Usd(1), ZERO), [reserved()], AT))
    assert outlook.ends_at == inf
    none = present(outlook_of("runpod", AccountBalance(ZERO, ZERO), [reserved()], AT))
    assert none.ends_at == AT, "of nothing nothing is left, whatever is spent"
    assert low_balance_event(outlook, None, AT) is None
    again = low_balance_event(outlook, ev.BalanceLow("runpod", 6, ZERO, RATE, AT, AT), AT)
    assert again == ev.BalanceLow("runpod", 0, Usd(1), ZERO, AT, 0.0)


def test_a_process_reads_every_five_to_six_minutes() -> None:
    assert look_every_s(0.0) == LOOK_EVERY_S == 300.0
    assert look_every_s(1.0) == 360.0


# -- the landing ----------------------------------------------------------------------------------


def lands(run: RunState, hours: float, now: float = AT) -> bool:
    return why_land(an_outlook(hours, now), run, now, LOOK_EVERY_S) is not None


def test_it_lands_only_if_the_balance_ends_before_the_next_landing_and_half_an_hour() -> None:
    run = training(policy=STOP)
    needed_s = LOOK_EVERY_S + LANDING_S + 1800.0
    assert not lands(run, (needed_s + 1) / 3600.0)
    assert not lands(run, needed_s / 3600.0)
    assert lands(run, (needed_s - 1) / 3600.0)
    assert lands(run, 0.0)
    booting = replace(run, state=State.BOOTING)
    assert lands(booting, 0.0)
    assert not lands(booting, (needed_s + 1) / 3600.0)
    for state in (State.RENTING, State.ENDING, State.SETTLING, State.CLOSED):
        assert not lands(replace(run, state=state), 0.0), state
    assert not lands(replace(run, errand=Errand("fetch1")), 0.0), "nothing: it does not train"
    assert not lands(replace(run, generations=()), 0.0)


def test_past_its_soft_stop_it_lands_by_itself_and_needs_the_time_from_now_on() -> None:
    run = training(policy=STOP, hours=10.0)
    late = AT + 10 * 3600.0 + 50.0
    assert not lands(run, (LANDING_S + MARGIN_S) / 3600.0, late)
    assert lands(run, (LANDING_S + MARGIN_S - 1) / 3600.0, late)


def test_a_run_that_lands_before_the_balance_ends_is_left_alone() -> None:
    run = training(policy=STOP, hours=10.0)
    assert not lands(run, 11.0)
    soon = AT + 10 * 3600.0 - 60.0  # a minute before its own landing
    assert not lands(run, (60.0 + LANDING_S + MARGIN_S + 1) / 3600.0, soon)
    assert lands(run, (60.0 + LANDING_S + MARGIN_S - 1) / 3600.0, soon)


@pytest.mark.parametrize("policy", [each for each in BALANCE_POLICIES if each != STOP])
def test_no_other_policy_lands(policy: str) -> None:
    assert not lands(training(policy=policy), 0.0)


def test_what_is_landing_has_no_machine_or_is_rented_elsewhere_is_not_asked_to() -> None:
    run = training(policy=STOP)
    stop = ev.StopRequested("user", make_reason(ReasonKind.STOP_COMMAND))
    assert not lands(told(run, stop), 0.0)
    assert not lands(reserved(policy=STOP), 0.0)
    elsewhere = replace(an_outlook(0.0), provider="vast")
    assert why_land(elsewhere, run, AT, LOOK_EVERY_S) is None


def test_the_reason_says_whose_balance_and_how_long_it_lasts() -> None:
    reason = present(why_land(an_outlook(0.25), training(policy=STOP), AT, LOOK_EVERY_S))
    assert sentence(reason) == "the runpod balance of $9.00 lasts 15 min 00 s more at $3.60/h"
    over = present(why_land(an_outlook(0.25), training(policy=STOP), AT + 3600.0, LOOK_EVERY_S))
    assert over.facts["left_s"] == 0.0


def test_a_resume_may_choose_another_policy() -> None:
    run = told(training(), ev.PodGone(1, AT + 600.0), ev.Settled(1, Usd(1), None))
    run = told(run, ev.Closed(Outcome.STOPPED.value))
    assert run.balance_policy == WARN
    assert told(run, ev.Reopened(CAP, balance=STOP)).balance_policy == STOP
    assert told(run, ev.Reopened(CAP)).balance_policy == WARN


def test_a_balance_is_read_only_while_something_is_rented_and_unless_ignored() -> None:
    assert is_watched(training())
    assert is_watched(training(policy=STOP))
    assert not is_watched(training(policy=IGNORE))
    assert not is_watched(reserved())
    gone = told(training(), ev.PodGone(1, AT), at=AT)
    assert not is_watched(gone)
    assert not is_watched(replace(training(), state=State.CLOSED))
    asked_for = ev.PodIntended(1, "pod-r1", "runpod", "c1", RATE, AT + 60.0, AT + 99.0)
    assert not is_watched(told(reserved(), asked_for)), "it may never come"
    assert is_watched(told(reserved(), asked_for, ev.PodUp(1, "id-1", RATE)))


# -- on record ------------------------------------------------------------------------------------


def book(*events: Any) -> tuple[LedgerState, list[ev.Record]]:
    records = [ev.Record(n, "", 0, AT, event) for n, event in enumerate(events, 1)]
    return extend_ledger(LedgerState("0a1b2c3d"), records), records


LOW = ev.BalanceLow("runpod", 24, Usd(50), RATE, AT, AT + 50_000.0)


def test_the_ledger_keeps_the_last_warning_until_the_balance_lasts_again() -> None:
    worse = replace(LOW, hours=6, balance=Usd(20))
    assert book(LOW, worse)[0].low_balances == {"runpod": worse}
    assert book(LOW, replace(LOW, hours=0))[0].low_balances == {}


def test_a_warning_is_a_notification_and_its_end_is_none() -> None:
    ledger, records = book(LOW, replace(LOW, hours=6), replace(LOW, hours=0))
    notices = due_notices(ledger, records, 0, NoticeInputs(), AT)
    assert [(n.kind, n.facts["hours"]) for n in notices] == [
        (NoticeKind.BALANCE, 24),
        (NoticeKind.BALANCE, 6),
    ]
    words = words_of(notices[0])
    assert words["title"] == "the runpod balance lasts less than 24 hours"
    assert words["text"].startswith("$50.00 are left, and the account spends $3.60/h")


def test_a_screen_says_when_it_was_read() -> None:
    line = low_balance(LOW, AT + 60.0)
    assert line.startswith("the runpod balance was $50.00 1 min 00 s ago: it ends in 13 h")
    assert cost(RATE, 50_000.0) == Usd(50)
