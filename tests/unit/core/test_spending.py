"""What a run has cost: what is proven, and what it is at most."""

from __future__ import annotations

from dataclasses import replace

from tests.plans import a_candidate, a_phase, recorded
from tests.unit.core.runs import AT, RESERVATION, apply, booting, ending, renting, settling
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import LedgerState
from trmcloud.core.control.ledger_facts import Stray
from trmcloud.core.control.report import Spending, report_on, spending_of
from trmcloud.core.control.run_state import RunState
from trmcloud.core.money import ZERO, Usd, cost

RATE = Usd("3.6")


def a_stray(amount: str, billed: str | None = None) -> Stray:
    bill = Usd(billed) if billed is not None else None
    return Stray("test", "id-9", "name", "r1", AT, AT, Usd(amount), bill)


def estimated() -> RunState:
    return apply(settling(), ev.Settled(1, Usd("0.61"), None), at=AT + 600)


def test_what_was_never_listed_is_not_proven() -> None:
    assert spending_of(renting(), AT + 100) == Spending(ZERO, cost(RATE, 100))


def test_a_pod_is_proven_to_cost_from_its_first_list_until_it_was_seen_last() -> None:
    run = booting()
    assert spending_of(run, AT + 100) == Spending(cost(RATE, 90), cost(RATE, 100))
    silent = spending_of(run, AT + 100, shown_at=AT + 40)
    assert silent == Spending(cost(RATE, 30), cost(RATE, 100))
    assert spending_of(run, AT + 100, shown_at=AT).proven == ZERO


def test_of_one_that_is_missed_only_what_was_done_there_proves_that_it_lived() -> None:
    missed = apply(ending(), ev.PodMissed(1), at=AT + 510)
    assert spending_of(missed, AT + 900) == Spending(cost(RATE, 10), cost(RATE, 900))
    pull = "r1/g1/pull-fast-9-abc/1"
    pulled = apply(missed, ev.ActionStarted(pull, "pull"), at=AT + 420)
    assert spending_of(pulled, AT + 900).proven == cost(RATE, 10)
    pulled = apply(pulled, ev.ActionFinished(pull, "pull"), at=AT + 480)
    assert spending_of(pulled, AT + 900).proven == cost(RATE, 470)
    for verb, number in (("terminate", 1), ("pull", 2)):
        other = f"r1/g{number}/{verb}/1"
        later = apply(pulled, ev.ActionFinished(other, verb), at=AT + 500)
        assert spending_of(later, AT + 900).proven == cost(RATE, 470)


def test_one_that_is_missed_costs_no_more_after_its_hard_stop() -> None:
    hard_stop_at = booting().generations[-1].hard_stop_at
    early = apply(ending(), ev.PodMissed(1), at=hard_stop_at - 60)
    late = apply(ending(), ev.PodMissed(1), at=hard_stop_at + 25)
    assert spending_of(early, hard_stop_at - 10).at_most == cost(RATE, hard_stop_at - 10 - AT)
    assert spending_of(early, hard_stop_at + 900).at_most == cost(RATE, hard_stop_at - AT)
    assert spending_of(late, hard_stop_at + 900).at_most == cost(RATE, hard_stop_at + 25 - AT)


def test_one_that_was_found_dearer_than_planned_may_cost_that_since_its_order() -> None:
    run = renting()
    run = apply(run, ev.PodUp(1, "id-1", Usd("7.2")), at=AT + 10)
    assert spending_of(run, AT + 100) == Spending(cost(RATE, 90), cost(Usd("7.2"), 100))


def test_without_a_final_bill_an_estimate_is_what_it_is_at_most() -> None:
    assert spending_of(settling(), AT + 900) == Spending(cost(RATE, 10), RESERVATION)
    assert spending_of(estimated(), AT + 900) == Spending(cost(RATE, 10), Usd("0.61"))
    small = apply(settling(), ev.Settled(1, Usd("0.002"), None), at=AT + 600)
    assert spending_of(small, AT + 900) == Spending(Usd("0.002"), Usd("0.002"))
    billed = apply(estimated(), ev.Billed(1, Usd("0.55")), at=AT + 700)
    assert spending_of(billed, AT + 900) == Spending(Usd("0.55"), Usd("0.55"))


def test_a_pod_that_nobody_asked_for_is_proven_by_its_bill_alone() -> None:
    run = apply(settling(), ev.Settled(1, Usd("0.5"), Usd("0.5")), at=AT + 600)
    held = spending_of(run, AT + 900, strays=[a_stray("1345")])
    assert (held, held.unproven) == (Spending(Usd("0.5"), Usd("1345.5")), Usd(1345))
    billed = spending_of(run, AT + 900, strays=[a_stray("1345", "0.13")])
    assert billed == Spending(Usd("0.63"), Usd("0.63"))


def test_a_report_tells_them_apart_too() -> None:
    run = apply(settling(), ev.Settled(1, Usd("0.5"), Usd("0.5")), at=AT + 600)
    strays = [a_stray("1345"), replace(a_stray("9", "0.13"), pod_id="id-8")]
    report = report_on(run, (), AT + 900, strays=strays)
    assert report.accrued == cost(RATE, 510) + Usd("0.13")
    assert report.at_most == report.accrued + Usd(1345)
    assert report.billed is None
    assert report.to_json()["at_most_usd"] == float(report.at_most)


def test_a_budget_says_what_it_holds_at_most() -> None:
    run = estimated()
    book = LedgerState("ab", {"r1": run}, strays={("test", "id-9"): a_stray("3")})
    assert book.line("account", "").unproven == Usd("3.61")
    assert book.line("run", "r1").unproven == Usd("3.61")
    billed = apply(run, ev.Billed(1, Usd("0.55")), at=AT + 700)
    known = LedgerState("ab", {"r1": billed}, strays={("test", "id-9"): a_stray("3", "1")})
    assert known.line("account", "").unproven == ZERO


def test_what_the_wait_for_data_came_to_stands_beside_what_was_planned() -> None:
    run = estimated()
    phases = a_phase("fast", data=30.0), a_phase("extreme")
    chosen = a_candidate(str(run.candidate_id), phases=phases)
    run = replace(run, recorded_plan=recorded(chosen))
    seconds = {"training": 300.0, "data": 50.0}
    report = report_on(run, (), AT + 900, live_seconds=seconds, data_told="done · 3 of 3 shards")
    assert report.seconds["data"] == 50.0
    assert sum(report.seconds.values()) == report.paid_s, "none of it is counted twice"
    assert report.data_usd == cost(RATE, 50.0)
    assert report.planned_data_usd == cost(RATE, 30.0)
    assert report.to_json()["data"]["told"] == "done · 3 of 3 shards"
