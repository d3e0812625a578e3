"""What a move saves, what is held for it, and which machine is asked for: in figures.

Of the work, 36,000 s at P50 on either machine, a tenth is uploaded. With 4 USD/h where the run is:

    stays   32,400 s, less the 1,800 s that were trained since the last upload  = 8.5 h   34.00 USD
    before  300 s boot, 100 s for the checkpoint, 390 s landing and end         = 790 s    0.88 USD
    hours   these 790 s, 100 s for the last checkpoint, 32,000 s, 60 s to end   = 32,950 s
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.core.test_moving import (
    AT,
    CHEAP,
    DEAR,
    HOUR_S,
    MINE,
    MUCH,
    PLAN,
    READY,
    SHA,
    STARTED,
    apply,
    candidate,
    granted,
    handed_over,
    landed,
    left,
    plan,
    report,
    standing,
    up,
    working,
)
from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.contract.bucket_layout import BUCKET_BYTES_PER_S
from trmcloud.core.contract.pod_contract import AgentReport, CheckpointRef, parse_pod_name
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import CREATE
from trmcloud.core.control.events import FailureKind
from trmcloud.core.control.moving import (
    Saving,
    handover,
    is_ready,
    lacks_final_grants,
    may_move,
    move_events,
    moved,
    saving_by,
    shares_left,
    stands_by_s,
    why_end_standby,
)
from trmcloud.core.control.reason import Reason, ReasonKind, make_reason
from trmcloud.core.control.run_state import GRANT, RunState, State
from trmcloud.core.control.waiting import pause_left_s
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.spec.plan import Candidate, Interval, PhasePlan, Plan, plan_to_json

PACED = AT + 3900.0
"""A tenth of the work and a start take so long as they were planned to."""
FETCH_100_S = int(100 * BUCKET_BYTES_PER_S)


def stored(step: int = 100, phase: str = "fast", size_bytes: int = FETCH_100_S) -> CheckpointRef:
    return CheckpointRef(phase, step, SHA, size_bytes)


def with_phase(made: Candidate, **changes: Any) -> Candidate:
    return replace(made, phases=tuple(replace(phase, **changes) for phase in made.phases))


def p50(seconds: float) -> Interval:
    return Interval(0.9 * seconds, seconds, 1.2 * seconds)


def works(of: Plan = PLAN, cap: Usd = MUCH, **changes: Any) -> RunState:
    """A run at work by that plan; ``changes``: of its machine."""
    planned = ev.RunPlanned(plan_to_json(of), cap, "thesis")
    run = apply(RunState("r1"), planned, ev.Reserved(Usd(60)), at=AT)
    run = apply(run, *up(1, "runpod", "dear", DEAR), at=AT)
    return replace(run, generations=(replace(run.generations[0], **changes),))


# -- what it saves ---------------------------------------------------------------------------------


def saving(
    here: Candidate | None = None,
    there: Candidate | None = None,
    *,
    now: float = PACED,
    step: int = 100,
    size_bytes: int = FETCH_100_S,
    boots: bool = True,
    **changes: Any,
) -> tuple[str, str, float] | None:
    """USD that stays and that goes before, to the cent, and the new machine's seconds."""
    here, there = here or candidate("dear", DEAR), there or candidate("cheap", CHEAP, "vast")
    of = plan(0.25, here, there)
    run = works(of, **changes)
    heard = report(1, stored(step, size_bytes=size_bytes), stored(step - 1, size_bytes=7))
    found = saving_by(run, of, there, heard, now, boots=boots)
    if found is None:
        return None
    return f"{float(found.stays):.2f}", f"{float(found.before):.2f}", round(found.hours * HOUR_S, 2)


HERE, THERE = candidate("dear", DEAR), candidate("cheap", CHEAP, "vast")


@pytest.mark.parametrize(
    ("changes", "stays", "before", "seconds"),
    [
        ({}, "34.00", "0.88", 32_950),
        # One that is up has no boot before it; the work is the same.
        ({"boots": False}, "34.00", "0.54", 32_950),
        # What the machine here really costs: its bill, and its disks.
        ({"billed_rate": Usd(3)}, "25.50", "0.66", 32_950),
        ({"billed_rate": None}, "34.00", "0.88", 32_950),
        ({"here": replace(HERE, disk_rate=Usd("0.5"))}, "38.25", "0.99", 32_950),
        ({"there": replace(THERE, storage=Usd(1))}, "34.00", "1.88", 32_950),
        ({"there": replace(THERE, disk_rate=Usd(9))}, "34.00", "0.88", 32_950),
        # A trainer that is started anew compiles, and waits for data.
        ({"there": with_phase(THERE, parts_s={"compile": 120.0, "data": 60.0, "training": 9e9})},
         "34.00", "0.88", 33_130),
        ({"here": with_phase(HERE, parts_s={"compile": 120.0})}, "34.00", "0.88", 32_950),
        # A machine of half the speed; one without its provider's traits; a longer landing.
        ({"there": with_phase(THERE, seconds=p50(72_000.0))}, "34.00", "0.88", 64_950),
        ({"there": replace(THERE, provider="new")}, "34.00", "0.88", 32_890),
        ({"here": replace(HERE, provider="new")}, "34.00", "0.78", 32_860),
        ({"here": replace(HERE, landing_s=660.0)}, "34.00", "1.28", 33_310),
        ({"there": replace(THERE, landing_s=660.0)}, "34.00", "0.88", 32_950),
        # A checkpoint that takes 1,000 s to bring.
        ({"size_bytes": 10 * FETCH_100_S}, "34.00", "1.88", 33_850),
    ],
)  # fmt: skip
def test_what_a_move_saves(
    changes: dict[str, Any], stays: str, before: str, seconds: float
) -> None:
    assert saving(**changes) == (stays, before, seconds)


@pytest.mark.parametrize(
    ("save_every", "save_minutes", "stays"),
    [(50, 0.0, "34.00"), (50, 10.0, "35.33"), (50, 60.0, "34.00"), (0, 10.0, "35.33"),
     (0, 0.0, None)],
)  # fmt: skip
def test_what_was_trained_since_the_last_upload_would_be_lost(
    save_every: int, save_minutes: float, stays: str | None
) -> None:
    """By steps or by minutes, whichever comes first; where nothing is saved all of it."""
    settings = replace(HERE.phases[0].settings, save_every=save_every, save_minutes=save_minutes)
    found = saving(with_phase(HERE, settings=settings))
    assert (found[0] if found is not None else None) == stays


@pytest.mark.parametrize(
    ("now_s", "step", "stays_s", "seconds"),
    [
        # 3,600 s of work and a start of 300 s took so long.
        (3900, 100, 30_600, 32_950),
        (3120, 100, 24_120, 32_850),  # 0.8 of it: the new machine is not believed to be faster
        (1000, 100, 14_400, 32_550),  # no less than half
        (5850, 100, 44_251, 49_150),  # 1.5, on either machine; here its soft stop comes first
        (9000, 100, 41_101, 65_350),  # no more than twice
        # Of one in twenty steps nothing is concluded.
        (4200, 49, 32_436, 34_786),
        (4200, 50, 45_901, 68_950),
    ],
)
def test_a_measured_pace_counts_for_both_machines(
    now_s: float, step: int, stays_s: float, seconds: float
) -> None:
    found = saving(now=AT + now_s, step=step)
    assert found is not None
    assert found[0] == f"{stays_s * 4 / 3600:.2f}"
    assert found[2] == seconds


def test_a_pace_is_measured_only_where_one_machine_has_made_all_steps() -> None:
    of, slow = plan(), AT + 7800.0
    run = works(of)
    heard = report(1, stored())

    def stays(run: RunState) -> Usd:
        found = saving_by(run, of, THERE, heard, slow, boots=True)
        assert found is not None
        return found.stays

    (mine,) = run.generations
    planned_pace, measured = Usd(34), cost(DEAR, 42_301.0)
    assert stays(run) == measured
    before = replace(mine, number=1, agent_at=AT - 9000.0)
    second = replace(run, generations=(before, replace(mine, number=2)))
    assert stays(second) == planned_pace
    never = replace(second, generations=(replace(before, agent_at=None), second.generations[1]))
    assert stays(never) == measured
    beside = replace(second, generations=(replace(before, stands_by=True), second.generations[1]))
    assert stays(beside) == measured
    assert stays(replace(run, generations=(replace(mine, agent_at=None),))) == planned_pace


def test_no_move_is_judged_that_would_be_ready_after_the_work() -> None:
    ready_s = 300.0  # and what the checkpoint takes
    for fetch_s, found in ((2399.0, True), (2400.0, False), (2401.0, False)):
        made = saving(
            step=875, size_bytes=int(fetch_s * BUCKET_BYTES_PER_S), agent_at=None
        )  # an eighth is left: 4,500 s, of which 1,800 s would be lost
        assert (made is not None) is found, (ready_s, fetch_s)


def test_nothing_is_judged_without_a_machine_or_an_upload_of_the_phase_that_is_trained() -> None:
    run = works()
    assert saving_by(run, PLAN, THERE, report(1), PACED, boots=True) is None
    other = report(1, stored(phase="extreme"))
    assert saving_by(run, PLAN, THERE, other, PACED, boots=True) is None
    ended = apply(run, ev.PhaseEnded(1, "fast", "finished", 1000, 1.0, {}), at=PACED)
    assert saving_by(ended, PLAN, THERE, report(1, stored()), PACED, boots=True) is None
    none = replace(run, generations=())
    assert saving_by(none, PLAN, THERE, report(1, stored()), PACED, boots=True) is None


def two_phases(made: Candidate) -> Candidate:
    """Half as much work again in a second phase."""
    (fast,) = made.phases
    extreme: PhasePlan = replace(fast, name="extreme", seconds=p50(18_000.0))
    return replace(made, phases=(fast, replace(extreme, parts_s={"compile": 30.0})))


def test_of_each_phase_what_no_upload_has_is_left() -> None:
    here, there = two_phases(HERE), two_phases(THERE)
    of = plan(0.25, here, there)
    run = works(of)
    half = report(1, stored(500), stored(450), stored(9999, "other"))
    assert shares_left(run, here, half) == {"fast": 0.5, "extreme": 1.0}
    assert shares_left(run, here, report(1)) == {"fast": 1.0, "extreme": 1.0}
    assert shares_left(run, here, report(1, stored(2000)))["fast"] == 0.0
    for steps in (1, 0):
        few = with_phase(HERE, settings=replace(HERE.phases[0].settings, steps=steps))
        assert shares_left(run, few, report(1, stored(1))) == {"fast": 0.0}
    ended = apply(run, ev.PhaseEnded(1, "fast", "finished", 1000, 1.0, {}), at=PACED)
    heard = report(1, stored(1000), stored(200, "extreme"))
    assert shares_left(ended, here, heard) == {"extreme": 0.8}
    # 14,400 s of the second phase are left, and its own start.
    ended = replace(ended, generations=(replace(ended.generations[0], agent_at=None),))
    found = saving_by(ended, of, there, heard, PACED, boots=True)
    assert found is not None
    assert found.stays == cost(DEAR, 14_400.0 - 1800.0)
    assert round(found.hours * HOUR_S, 2) == 400 + 390 + 100 + 14_000 + 30 + 60


@pytest.mark.parametrize("share", [0.05, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("hours", [0.05, 1.5, 9.152778, 700.0])
@pytest.mark.parametrize("stays", ["34", "0.223457", "9999"])
def test_the_most_that_pays_saves_the_share_and_a_millionth_more_does_not(
    share: float, hours: float, stays: str
) -> None:
    made = Saving(Usd(stays), Usd("0.01"), hours)
    most = made.most_hourly(share)
    assert most > ZERO
    assert made.at(most).micros >= made.stays.micros * share
    assert made.at(most + Usd("0.000001")).micros < made.stays.micros * share


def test_no_price_pays_where_moving_itself_costs_more_or_no_hours_are_left() -> None:
    assert Saving(Usd(10), Usd(9), 1.0).most_hourly(0.25) == ZERO
    assert Saving(Usd(10), Usd("7.5"), 1.0).most_hourly(0.25) == ZERO
    assert Saving(Usd(10), Usd("7.4"), 1.0).most_hourly(0.25) == Usd("0.1")
    assert Saving(Usd(10), Usd("7.499999"), 1.0).most_hourly(0.25) == Usd("0.000001")
    assert Saving(Usd(10), Usd(1), 0.0).most_hourly(0.25) == ZERO
    assert Saving(Usd(10), Usd(1), -1.0).most_hourly(0.25) == ZERO
    assert Saving(Usd(10), Usd(1), 2.0).at(Usd(3)) == Usd(3)
    assert Saving(Usd(10), Usd(1), -1.0).at(Usd(3)) == Usd(9), "no machine works for less than 0 s"


# -- who may move ----------------------------------------------------------------------------------


def beside(run: RunState, **changes: Any) -> RunState:
    """Another machine stood by in vain."""
    number = len(run.generations) + 1
    made = replace(run.generations[0], number=number, stands_by=True, **changes)
    return replace(run, generations=(*run.generations, made), working=1)


REFUSED = make_reason(ReasonKind.PROVIDER_SAID, text="none left")


@pytest.mark.parametrize(
    ("run", "of", "may"),
    [
        (works(), PLAN, True),
        (works(), plan(0.0), False),
        (replace(works(), state=State.BOOTING), PLAN, False),
        (replace(works(), state=State.ENDING), PLAN, False),
        (replace(works(), generations=()), PLAN, False),
        (standing(), PLAN, False),
        (works(hands_over=True), PLAN, False),
        (apply(works(), ev.StopRequested("user", REFUSED), at=AT), PLAN, False),
        (works(provider=LOCAL), PLAN, False),
        (works(), plan(0.25, replace(HERE, nodes=2), THERE), False),
        (works(), replace(PLAN, spec=replace(PLAN.spec, bucket="")), False),
        (beside(works()), PLAN, True),
        (beside(beside(works())), PLAN, False),
        (beside(beside(works(), not_made=REFUSED)), PLAN, True),
        (replace(beside(beside(works())), first_generation=3, working=3), PLAN, True),
    ],
    ids=[
        *("at work", "not wanted", "boots", "ends", "no machine", "moves", "hands over", "stops"),
        *("here", "two nodes", "no bucket", "once in vain", "twice", "once, refused",
          "reopened"),
    ],
)  # fmt: skip
def test_which_run_may_move(run: RunState, of: Plan, may: bool) -> None:
    assert may_move(run, of) is may


# -- what is asked for -----------------------------------------------------------------------------


def asked(
    *candidates: Candidate,
    run: RunState | None = None,
    now: float = PACED,
    heard: AgentReport | None = None,
    share: float = 0.25,
    **spec: Any,
) -> tuple[ev.MoveStarted, ev.PodIntended] | None:
    of = plan(share, *(candidates or (HERE, THERE)))
    others = tuple(each.id for each in of.candidates[1:])
    of = replace(of, spec=replace(of.spec, **spec), launchable=others)
    made = move_events(run or works(), of, "abcd1234", heard or report(1, stored()), now)
    if not made:
        return None
    started, intent = made
    assert isinstance(started, ev.MoveStarted)
    assert isinstance(intent, ev.PodIntended)
    return started, intent


LEAST_S = 600.0 + 780.0 + 300.0
"""P90 of its boot, what it stands by at most, its landing."""
WORK_S = 0.9 * 43_200.0
"""P90 of what is left."""


def test_what_is_asked_for_lasts_for_all_that_and_a_tenth_of_the_work() -> None:
    made = asked()
    assert made is not None
    started, intent = made
    lasts_s = LEAST_S + 1.1 * WORK_S
    assert intent.hard_stop_at == pytest.approx(PACED + lasts_s, abs=0.01)
    assert intent.soft_stop_at == pytest.approx(PACED + lasts_s - 300.0, abs=0.01)
    assert started.amount == cost(CHEAP, lasts_s + 60.0)
    assert (started.candidate_id, started.rate, started.stays) == ("cheap", CHEAP, Usd(34))
    assert started.saves == Usd(34) - cost(DEAR, 790.0) - cost(CHEAP, 32_950.0)
    named = parse_pod_name(intent.pod_name)
    assert named is not None
    assert (named.ledger, named.run_id, named.generation) == ("abcd1234", "r1", 2)
    assert named.hard_stop_at == int(intent.hard_stop_at)
    assert (intent.generation, intent.provider, intent.candidate_id) == (2, "vast", "cheap")


def test_its_disks_and_its_storage_are_held_and_saved_too() -> None:
    with_disks = replace(THERE, disk_rate=Usd("0.3"), storage=Usd(4))
    made = asked(HERE, with_disks)
    assert made is not None
    started, intent = made
    beside_disks = Usd(4) - cost(Usd("0.3"), 10.1 * HOUR_S)
    lasts_s = intent.hard_stop_at - PACED
    assert started.amount == cost(Usd("2.3"), lasts_s + 60.0) + beside_disks
    before = cost(DEAR, 790.0) + beside_disks
    assert started.saves == Usd(34) - before - cost(Usd("2.3"), 32_950.0)
    bound = asked(HERE, with_disks, share=0.4)
    plain = Saving(Usd(34), before, 32_950.0 / HOUR_S).most_hourly(0.4)
    assert bound is not None
    assert bound[0].rate == plain - Usd("0.3") < CHEAP


def test_a_compile_and_a_slow_machine_need_longer() -> None:
    compiled = with_phase(THERE, parts_s={"compile": 500.0})
    made = asked(HERE, compiled)
    assert made is not None
    assert made[1].hard_stop_at == pytest.approx(PACED + LEAST_S + 1.1 * (WORK_S + 500.0), abs=0.01)
    slow = asked(now=AT + 1.5 * 3900.0)
    assert slow is not None
    assert slow[1].hard_stop_at == pytest.approx(
        AT + 1.5 * 3900.0 + LEAST_S + 1.65 * WORK_S, abs=0.01
    )
    fast = asked(now=AT + 0.8 * 3900.0)
    assert fast is not None
    assert fast[1].hard_stop_at == pytest.approx(
        AT + 0.8 * 3900.0 + LEAST_S + 1.1 * WORK_S, abs=0.01
    )


def test_a_deadline_and_the_budget_bound_it_and_less_than_p90_is_no_move() -> None:
    needed_s = LEAST_S + WORK_S
    for spare_s in (0.0, 100.0):
        by_date = asked(deadline_at=PACED + needed_s + 60.0 + spare_s)
        assert by_date is not None
        assert by_date[1].hard_stop_at == pytest.approx(PACED + needed_s + spare_s, abs=0.01)
    assert asked(deadline_at=PACED + needed_s + 60.0 - 1.0) is None
    # 60 USD are held for the machine here, 5 were spent before; a volume costs 3.
    stored_there = replace(THERE, storage=Usd(3))
    for spare, fits in (("0.01", True), ("-0.01", False)):
        room = cost(CHEAP, needed_s + 60.0) + Usd(spare)
        run = replace(works(cap=Usd(68) + room), settled=Usd(5))
        made = asked(HERE, stored_there, run=run)
        assert (made is not None) is fits
        if made is not None:
            started, intent = made
            assert intent.hard_stop_at == pytest.approx(PACED + needed_s + 18.0, abs=0.01)
            assert run.settled + run.reserved + started.amount <= run.cap
    # Disks are rented with it: 2.30 USD/h buy fewer seconds than 2 do.
    with_disks = replace(THERE, disk_rate=Usd("0.3"))
    for spare, fits in (("0.01", True), ("-0.01", False)):
        run = works(cap=Usd(60) + cost(Usd("2.3"), needed_s + 60.0) + Usd(spare))
        assert (asked(HERE, with_disks, run=run) is not None) is fits


@pytest.mark.parametrize(
    ("there", "spec", "rate"),
    [
        (THERE, {}, Usd(2)),
        (THERE, {"max_rate": Usd("1.5")}, Usd("1.5")),
        (replace(THERE, most_rate=Usd("2.4")), {}, Usd("2.4")),
        (replace(THERE, planned_rate=None, most_rate=None), {}, Usd(2)),
        # Half of its quote at least, which its provider will hardly fall below.
        (THERE, {"max_rate": Usd("1")}, Usd("1")),
        (THERE, {"max_rate": Usd("0.999999")}, None),
        (replace(THERE, planned_rate=Usd("1.6")), {"max_rate": Usd("0.8")}, Usd("0.8")),
        (replace(THERE, planned_rate=Usd("2.4")), {"max_rate": Usd("1.1")}, None),
        (replace(THERE, planned_rate=ZERO, most_rate=ZERO, rate=ZERO), {}, None),
        # A provider that does not say what it bills is asked only at its quote.
        (replace(THERE, provider="aws"), {}, Usd(2)),
        (replace(THERE, provider="aws"), {"max_rate": Usd("1.9")}, None),
        (replace(THERE, provider="unheard of"), {}, None),
        (replace(THERE, provider=LOCAL), {}, None),
        (replace(THERE, nodes=2), {}, None),
        (replace(THERE, spot=True), {}, None),
    ],
)
def test_at_which_price_a_candidate_is_asked_for(
    there: Candidate, spec: dict[str, Any], rate: Usd | None
) -> None:
    made = asked(HERE, there, **spec)
    assert (made[0].rate if made is not None else None) == rate


def test_of_several_that_which_saves_most_at_its_quote_is_asked_for() -> None:
    """Disks are part of a quote; which comes first in the plan does not matter."""
    less = replace(candidate("less", Usd("1.2"), "vast"), disk_rate=Usd("0.1"))
    least = replace(candidate("least", Usd("1.25"), "vast"))
    slow = with_phase(candidate("slow", Usd("1.1"), "vast"), seconds=p50(60_000.0))
    for order in ((THERE, less, least, slow), (slow, least, less, THERE)):
        made = asked(HERE, *order)
        assert made is not None
        assert made[0].candidate_id == "least"


def after(
    *kinds: FailureKind | None,
    provider: str = "vast",
    name: str = "cheap",
    retry_s: float = 0.0,
) -> RunState:
    """A run for which machines were asked for in turn, at ``PACED``, and refused so; None: it came
    and went in vain."""
    run = works()
    for number, kind in enumerate(kinds, 2):
        create = f"r1/g{number}/create/1"
        run = apply(run, STARTED, up(number, provider, name, CHEAP)[0], at=PACED)
        run = apply(run, ev.ActionStarted(create, CREATE), at=PACED)
        if kind is None:
            run = apply(run, ev.ActionFinished(create, CREATE, "id"), at=PACED)
            run = apply(run, ev.PodUp(number, "id", CHEAP), ev.PodGone(number, PACED), at=PACED)
            run = apply(run, ev.Settled(number, Usd(1), None), at=PACED)
        else:
            run = apply(run, ev.ActionFailed(create, CREATE, kind, "no", retry_s), at=PACED)
            run = apply(run, ev.PodNotMade(number, REFUSED), at=PACED)
    return run


OTHER = candidate("other", CHEAP, "vast")
ELSEWHERE = candidate("elsewhere", Usd("2.2"))


@pytest.mark.parametrize(
    ("run", "later_s", "asks"),
    [
        # Every quarter of an hour, give or take a fifth.
        (after(FailureKind.NO_CAPACITY), 700.0, "elsewhere"),
        (after(FailureKind.NO_CAPACITY), 1100.0, "cheap"),
        (after(FailureKind.NO_CAPACITY, provider="lambda"), 0.0, "cheap"),
        (after(FailureKind.FINAL), 9999.0, "elsewhere"),
        (after(FailureKind.FINAL, FailureKind.NO_CAPACITY), 9999.0, "elsewhere"),
        (after(FailureKind.FINAL, provider="lambda"), 0.0, "cheap"),
        # One that was paid for in vain is not tried again, another one there is, at once.
        (after(None), 0.0, "other"),
        (after(None, name="other"), 0.0, "cheap"),
        (after(FailureKind.NO_CAPACITY, None), 0.0, "other"),
        # No sooner than a provider says.
        (after(FailureKind.THROTTLED, retry_s=5000.0), 4999.5, "elsewhere"),
        (after(FailureKind.THROTTLED, retry_s=5000.0), 5000.0, "cheap"),
        (after(FailureKind.NO_CAPACITY, name="elsewhere", provider="runpod"), 0.0, "cheap"),
        (replace(after(FailureKind.FINAL, None), first_generation=4), 0.0, "cheap"),
    ],
)
def test_who_is_asked_when(run: RunState, later_s: float, asks: str) -> None:
    now = PACED + later_s
    made = asked(HERE, THERE, OTHER, ELSEWHERE, run=run, now=now)
    assert made is not None
    assert made[0].candidate_id == asks


def test_a_provider_is_asked_every_fifteen_minutes_and_its_own_fifth() -> None:
    run = after(FailureKind.NO_CAPACITY)
    due_s = pause_left_s(run, run.generations[1:], PACED, 900.0)
    assert 720.0 <= due_s <= 1080.0
    for later_s, asks in ((due_s - 0.1, "elsewhere"), (due_s + 0.1, "cheap")):
        made = asked(HERE, THERE, ELSEWHERE, run=run, now=PACED + later_s)
        assert made is not None
        assert made[0].candidate_id == asks


def test_nothing_is_asked_for_while_the_machine_has_not_trained_or_trains_no_more() -> None:
    assert asked() is not None
    for changes in ({"result": "finished"}, {"waiting": "files"}, {"landing": True}):
        assert asked(heard=report(1, stored(), **changes)) is None
    assert asked(run=replace(works(), generations=())) is None


# -- the machine that stands by --------------------------------------------------------------------


def test_what_it_stands_by_at_most_is_the_longest_end_of_any_candidate() -> None:
    assert stands_by_s(PLAN) == 300.0 + 60.0 + 300.0 + 60.0 + 60.0
    slow = replace(HERE, landing_s=900.0)
    assert stands_by_s(plan(0.25, slow, THERE)) == stands_by_s(plan(0.25, THERE, slow)) == 1380.0
    unheard = replace(HERE, provider="unheard of")
    assert stands_by_s(plan(0.25, unheard)) == 300.0 + 60.0
    assert stands_by_s(replace(PLAN, launchable=())) == 0.0
    assert stands_by_s(replace(plan(0.25, slow, THERE), launchable=("cheap",))) == 780.0


@pytest.mark.parametrize(
    ("theirs", "ready"),
    [
        (READY, True),
        (None, False),
        (replace(READY, result="unfit"), False),
        (replace(READY, waiting="files"), False),
        (replace(READY, waiting=""), False),
        (replace(READY, kept=()), False),
        (replace(READY, kept=(stored(phase="extreme"),)), False),
        (replace(READY, kept=(stored(phase="extreme"), stored())), True),
    ],
)
def test_it_is_ready_once_it_waits_for_its_turn_with_a_checkpoint_of_the_run(
    theirs: AgentReport | None, ready: bool
) -> None:
    standby, without = granted(standing()).standby, standing().standby
    assert standby is not None
    assert without is not None
    assert is_ready(standby, MINE, theirs) is ready
    assert not is_ready(without, MINE, theirs), "nothing was granted to it"
    assert not is_ready(standby, report(1), theirs), "nothing is uploaded"
    assert not is_ready(replace(standby, generations=()), MINE, theirs)
    unfinished = apply(standing(), ev.ActionStarted("r1/g2/grant/1", GRANT), at=PACED).standby
    assert unfinished is not None
    assert not is_ready(unfinished, MINE, theirs)


def test_the_working_machine_is_told_to_land_by_that_and_by_nothing_else() -> None:
    run = granted(standing())
    assert handover(run, PLAN, MINE, READY) == (ev.HandedOver(1),)
    stop = apply(run, ev.StopRequested("user", REFUSED), at=PACED)
    boots = apply(works(), STARTED, *up(2, "vast", "cheap", CHEAP)[:-1], at=PACED)
    for other in (works(), stop, handed_over(), replace(run, state=State.ENDING), granted(boots),
                  replace(run, generations=())):  # fmt: skip
        assert handover(other, PLAN, MINE, READY) == ()
    assert handover(run, PLAN, None, READY) == ()
    assert handover(run, PLAN, replace(MINE, result="finished"), READY) == ()
    of = plan(0.25, two_phases(HERE), two_phases(THERE))
    ended = apply(run, ev.PhaseEnded(1, "fast", "finished", 1000, 1.0, {}), at=PACED)
    assert handover(ended, PLAN, MINE, READY) == (), "all is trained"
    assert handover(ended, of, MINE, READY) == (), "its next phase has no checkpoint yet"
    begun = replace(MINE, uploaded=(stored(), stored(50, "extreme")))
    assert handover(ended, of, begun, READY) == (ev.HandedOver(1),)


def why_end(
    run: RunState,
    mine: AgentReport | None = MINE,
    theirs: AgentReport | None = READY,
    now: float = AT + HOUR_S + 60.0,
    *,
    of: Plan = PLAN,
    attended: bool = True,
) -> ReasonKind | None:
    why = why_end_standby(run, of, mine, theirs, now, attended=attended)
    return why.kind if why is not None else None


def test_it_is_needed_until_the_run_stops_ends_or_has_moved() -> None:
    run, called_off = granted(standing()), ReasonKind.MOVE_CALLED_OFF
    assert why_end(run) is None
    assert why_end(works()) is None, "there is none"
    assert why_end(replace(run, working=None, generations=(), result="finished")) is None
    assert why_end(run, attended=False) is called_off
    assert why_end(apply(run, ev.StopRequested("user", REFUSED), at=PACED)) is called_off
    finished = ev.ResultKnown(Outcome.FINISHED.value, None)
    assert why_end(apply(run, finished, at=PACED)) is called_off
    assert why_end(apply(handed_over(), finished, at=PACED)) is called_off
    stopped = ev.ResultKnown(Outcome.STOPPED.value, Reason(ReasonKind.MOVING, {"provider": "vast"}))
    assert why_end(apply(run, stopped, at=PACED)) is called_off, "nobody has told it to land"
    assert why_end(handed_over()) is None
    assert why_end(landed()) is None
    assert why_end(left()) is None
    settling = apply(landed(), ev.PodGone(1, PACED), at=PACED)
    assert why_end(settling) is None
    done = ev.PhaseEnded(1, "fast", "finished", 1000, 1.0, {})
    for over in (apply(landed(), done, at=PACED), apply(left(), done, at=PACED)):
        gone = over if over.state is State.SETTLED else apply(over, ev.PodGone(1, PACED), at=PACED)
        assert why_end(gone) is called_off, "nothing is left to train"
    lost = apply(run, ev.PodGone(1, PACED), at=PACED)
    assert why_end(lost) is None, "it takes its place"


def test_one_that_is_not_ready_in_time_is_ended_while_the_other_works() -> None:
    """A rented machine is ready within half an hour of its agent's start, by P90 of a start; this
    one stands by as long as any end takes."""
    run, up_at = standing(), AT + HOUR_S
    within_s = 1800.0 + 780.0
    assert why_end(run, theirs=None, now=up_at + within_s - 1.0) is None
    why = why_end_standby(run, PLAN, MINE, None, up_at + within_s, attended=True)
    assert why == make_reason(ReasonKind.NOT_READY_IN_TIME, within_s=within_s)
    assert why_end(run, mine=None, theirs=None, now=up_at + within_s) is why.kind
    boots = apply(works(), STARTED, *up(2, "vast", "cheap", CHEAP)[:-1], at=AT + HOUR_S)
    assert why_end(boots, theirs=None, now=up_at + within_s) is None
    assert why_end(handed_over(), theirs=None, now=up_at + within_s) is None


def test_one_that_is_ready_must_still_save_enough() -> None:
    """By what it is billed, and its disks: 34 USD less 25 % at most."""
    now = PACED
    heard = report(1, stored())

    def with_rate(rate: Usd | None, of: Plan = PLAN) -> ReasonKind | None:
        run = granted(apply(works(of), STARTED, *up(2, "vast", "cheap", CHEAP), at=AT + HOUR_S))
        first, second = run.generations
        run = replace(run, generations=(first, replace(second, billed_rate=rate)))
        return why_end(run, heard, now=now, of=of)

    most = Saving(Usd(34), cost(DEAR, 490.0), 32_950.0 / HOUR_S).most_hourly(0.25)
    too_little = ReasonKind.MOVE_SAVES_TOO_LITTLE
    assert with_rate(most) is None
    assert with_rate(most + Usd("0.000001")) is too_little
    assert with_rate(None) is None
    with_disks = plan(0.25, HERE, replace(THERE, disk_rate=Usd("0.5")))
    assert with_rate(most, with_disks) is too_little
    assert with_rate(most - Usd("0.5"), with_disks) is None
    run = granted(apply(works(), STARTED, *up(2, "vast", "cheap", Usd(9)), at=AT + HOUR_S))
    first, second = run.generations
    unbilled = replace(run, generations=(first, replace(second, billed_rate=None)))
    assert why_end(unbilled, heard, now=now) is too_little, "what it may be billed at"
    assert why_end(run, heard, now=now) is too_little
    assert why_end(run, heard, replace(READY, waiting="files"), now) is None, "not ready yet"
    assert why_end(run, None, now=now) is None
    boots = apply(works(), STARTED, *up(2, "vast", "cheap", Usd(9))[:-1], at=AT + HOUR_S)
    assert why_end(granted(boots), heard, now=now) is None, "its agent is not on record yet"
    between = apply(run, ev.PhaseEnded(1, "fast", "finished", 1000, 1.0, {}), at=now)
    of = plan(0.25, two_phases(HERE), two_phases(THERE))
    assert why_end(between, heard, now=now, of=of) is None, "nothing is known of the next phase"
    almost = report(1, stored(970))
    assert why_end(granted(standing()), almost, now=now) is too_little, "the work ends sooner"


def test_the_run_moves_once_its_machine_is_settled_and_the_other_is_heard() -> None:
    assert moved(left(), PLAN, READY) == (ev.Moved(2),)
    assert moved(left(), PLAN, None) == ()
    assert moved(landed(), PLAN, READY) == ()
    assert moved(working(), PLAN, READY) == ()
    alone = apply(working(), ev.PodGone(1, PACED), ev.Settled(1, Usd(4), None), at=PACED)
    assert moved(alone, PLAN, READY) == ()
    boots = apply(works(), STARTED, *up(2, "vast", "cheap", CHEAP)[:-1], at=PACED)
    boots = apply(boots, ev.PodGone(1, PACED), ev.Settled(1, Usd(4), None), at=PACED)
    assert moved(boots, PLAN, READY) == (), "its agent was not heard by the ledger"
    done = ev.PhaseEnded(1, "fast", "finished", 1000, 1.0, {})
    assert moved(apply(left(), done, at=PACED), PLAN, READY) == (), "nothing is left to train"


def test_what_was_granted_for_standing_by_does_not_let_it_train() -> None:
    adopted_at = AT + HOUR_S + 302.0
    run = apply(left(), ev.Moved(2), at=adopted_at)
    assert run.generation is not None
    assert lacks_final_grants(run, run.generation)
    assert not lacks_final_grants(run, replace(run.generation, adopted_at=None))
    started = apply(run, ev.ActionStarted("r1/g2/grant/2", GRANT), at=adopted_at)
    assert lacks_final_grants(started, run.generation)
    done = apply(started, ev.ActionFinished("r1/g2/grant/2", GRANT), at=adopted_at)
    assert not lacks_final_grants(done, run.generation)
