"""Money that a working run does not need, for another one: how much, from when on, and what must be
seen before it moves."""

from __future__ import annotations

from typing import Any

import pytest

from tests.plans import a_candidate, plan_json
from tests.unit.core.runs import AT, TRAITS, a_report, apply, ask, running, the_pod
from trmcloud.core.contract.pod_contract import AgentReport
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import LAND, LOWER
from trmcloud.core.control.bookkeeping import add_events
from trmcloud.core.control.budget import LedgerState
from trmcloud.core.control.reason import Reason, ReasonKind
from trmcloud.core.control.room import (
    Lowering,
    Room,
    find_room,
    lowering_of,
    most_until,
    reaper_late_s,
)
from trmcloud.core.control.run_state import IllegalTransition, RunState
from trmcloud.core.money import Usd, cost
from trmcloud.core.spec.plan import Interval
from trmcloud.core.values import replace

HOUR_S = 3600.0
GUARDED = {"runpod": 330.0}
"""By a reaper that comes every five minutes."""
NOW = AT + 1000.0


def working(*, spec: dict[str, Any] | None = None, **changes: Any) -> RunState:
    """It holds $100 at $1/h for four hours of work, of which P90 takes five."""
    candidate = a_candidate(**{"hours": Interval(3.5, 4.0, 5.0), **changes})
    run = RunState("r-1")
    planned = ev.RunPlanned(plan_json(candidate, **(spec or {})), Usd(100), "thesis")
    stop_at = AT + 99 * HOUR_S
    name = f"trmc-abcd1234-r1-g1-{int(stop_at)}"
    intent = ev.PodIntended(1, name, candidate.provider, "c1", Usd(1), stop_at - 600, stop_at)
    began = ev.PodUp(1, "id-1", Usd(1)), ev.AgentUp(1)
    return apply(run, planned, ev.Reserved(Usd(100)), intent, *began, at=AT)


def ledger_of(*runs: RunState, cap: str = "120") -> LedgerState:
    caps = {("account", ""): Usd(cap)}
    return LedgerState("abcd1234", {run.run_id: run for run in runs}, caps)


def room(ledger: LedgerState, asked: str = "50", enforced: dict[str, float] | None = None) -> Room:
    found = find_room(ledger, "other", Usd(asked), NOW, GUARDED if enforced is None else enforced)
    assert found is not None
    return found


def test_no_room_is_needed_where_no_cap_is_in_the_way() -> None:
    assert find_room(ledger_of(working(), cap="150"), "other", Usd(50), NOW, GUARDED) is None


def test_it_keeps_what_p95_of_its_plan_and_its_landing_cost_and_what_a_late_reaper_does() -> None:
    [lowering] = room(ledger_of(working())).lowerings
    p95_h = 4.0 * (5.0 / 4.0) ** (1.6449 / 1.2816)
    assert 5.0 < p95_h < 5.4
    assert lowering.hard_stop_at == pytest.approx(AT + p95_h * HOUR_S + 600)
    least = cost(Usd(1), lowering.hard_stop_at - AT)
    assert least < lowering.keeps < least + Usd("0.25")
    assert lowering.frees == Usd(100) - lowering.keeps
    assert (lowering.is_asked, lowering.is_known) == (False, False)


def test_a_stop_is_never_so_near_that_no_layer_could_act() -> None:
    late = AT + 6 * HOUR_S
    found = lowering_of(working(), late, GUARDED)
    assert isinstance(found, Lowering)
    assert found.hard_stop_at == late + 900 + 600


@pytest.mark.parametrize(
    ("run", "enforced", "kind"),
    [
        (working(), {}, ReasonKind.NO_LAYER_APART),
        (working(provider="local"), GUARDED, ReasonKind.NO_LAYER_APART),
        (working(spec={"fill": True}), GUARDED, ReasonKind.TRAINS_TO_ITS_STOP),
        (working(spec={"hours": 3.0}), GUARDED, ReasonKind.TRAINS_TO_ITS_STOP),
        (working(within_budget=False), GUARDED, ReasonKind.TRAINS_TO_ITS_STOP),
        (working(nodes=2), GUARDED, ReasonKind.STOP_CANNOT_BE_LOWERED),
        (working(volume_rate=Usd(1)), GUARDED, ReasonKind.STOP_CANNOT_BE_LOWERED),
        (
            apply(working(), ev.StopRequested("user", Reason(ReasonKind.STOP_COMMAND)), at=NOW),
            GUARDED,
            ReasonKind.STOP_CANNOT_BE_LOWERED,
        ),
    ],
)
def test_where_it_cannot_give_anything_the_reason_is_told(
    run: RunState, enforced: dict[str, float], kind: ReasonKind
) -> None:
    found = room(ledger_of(run), enforced=enforced)
    assert found.lowerings == ()
    assert found.why["r-1"].kind is kind


def test_nothing_is_lowered_where_that_would_not_be_enough() -> None:
    assert room(ledger_of(working()), asked="119").lowerings == ()


def test_the_run_with_most_to_give_gives_first() -> None:
    small = replace(working(hours=Interval(80.0, 85.0, 88.0)), run_id="r-2")
    ledger = ledger_of(working(), small, cap="210")
    assert [each.run_id for each in room(ledger).lowerings] == ["r-1"]


def test_the_money_moves_in_three_steps_and_only_as_much_as_the_earlier_stop_leaves() -> None:
    run = working()
    before = ledger_of(run)
    [lowering] = room(before).lowerings
    asked, _ = add_events(before, 9, "r-1", 1, (lowering.event,), NOW)
    run = asked.runs["r-1"]
    assert run.reserved == Usd(100)
    assert run.generation is not None
    assert run.generation.hard_stop_at == lowering.was_at, "its machine does not know yet"
    [waits] = room(asked).lowerings
    assert (waits.is_asked, waits.is_known, waits.hard_stop_at) == (
        True,
        False,
        lowering.hard_stop_at,
    )

    known, _ = add_events(asked, 10, "r-1", 1, (ev.StopKnown(1),), NOW)
    generation = known.runs["r-1"].generation
    assert generation is not None
    assert generation.hard_stop_at == lowering.hard_stop_at
    assert generation.hard_stop_at - generation.soft_stop_at == 600
    assert generation.granted_until == lowering.was_at
    [told] = room(known).lowerings
    assert told.is_known
    assert told.keeps == lowering.keeps

    least = most_until(known.runs["r-1"], generation, generation.hard_stop_at)
    for amount in (least - Usd("0.01"), Usd(101)):
        with pytest.raises(IllegalTransition):
            add_events(known, 11, "r-1", 1, (ev.StopLowered(1, amount, "x"),), NOW)
    free, _ = add_events(known, 11, "r-1", 1, (told.lowered("guard-elsewhere"),), NOW)
    assert free.runs["r-1"].reserved == lowering.keeps
    assert find_room(free, "other", Usd(50), NOW, GUARDED) is None


def test_a_stop_that_was_lowered_is_not_lowered_again() -> None:
    known = apply(working(), ev.StopLowering(1, AT + 9000, "x"), ev.StopKnown(1), at=NOW)
    with pytest.raises(IllegalTransition):
        apply(known, ev.StopLowering(1, AT + 8000, "x"), at=NOW)
    with pytest.raises(IllegalTransition):
        apply(known, ev.StopKnown(1), at=NOW)
    with pytest.raises(IllegalTransition):
        apply(working(), ev.StopLowering(1, AT + 1e6, "later"), at=NOW)


# -- the machine receives its earlier stop and reports it -----------------------------------------


def lowering(run: RunState, early_s: float = 1000.0) -> RunState:
    assert run.generation is not None
    return apply(run, ev.StopLowering(1, run.generation.hard_stop_at - early_s, "x"), at=AT + 30)


def actions_of(run: RunState, now: float, report: AgentReport) -> list[str]:
    decided = ask(run, now, pods=[the_pod(run)], report=report)
    assert not decided.events
    return [action.verb for action in decided.actions]


def test_the_machine_is_told_until_it_says_that_it_knows() -> None:
    run = lowering(running())
    report = a_report(run)
    assert actions_of(run, AT + 31, report) == [LOWER]
    assert run.generation is not None
    told = a_report(run, hard_stop_at=run.generation.lower_to)
    assert ask(run, AT + 32, pods=[the_pod(run)], report=told).events == (ev.StopKnown(1),)
    run = apply(run, ev.StopKnown(1), at=AT + 32)
    assert actions_of(run, AT + 33, told) == []
    # Its container began anew: it believes in the stop that it was made with.
    assert actions_of(run, AT + 34, report) == [LOWER]


def test_it_is_not_told_once_it_would_have_no_time_to_land() -> None:
    run = lowering(running())
    assert run.generation is not None
    assert run.generation.lower_to is not None
    landing_s = run.generation.hard_stop_at - run.generation.soft_stop_at
    too_late = run.generation.lower_to - landing_s - 60
    assert actions_of(run, too_late, a_report(run)) == []


def test_one_that_forgot_its_earlier_stop_is_told_to_land_by_the_controller() -> None:
    run = lowering(running())
    report = a_report(run)
    run = apply(run, ev.StopKnown(1), at=AT + 32)
    assert run.generation is not None
    soft = run.generation.soft_stop_at
    assert actions_of(run, soft - 60, report) == []
    assert actions_of(run, soft + 1, report) == [LAND]
    told = a_report(run)
    assert actions_of(run, soft + 1, told) == [], "its own agent lands it"


def test_a_reapers_delay_is_part_of_what_stays_reserved() -> None:
    assert reaper_late_s(TRAITS, 300.0) == 300.0 + TRAITS.kill_latency_s + TRAITS.end_grace_s
