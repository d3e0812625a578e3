"""Whether a run moves to another machine while its own works, and each step of that. Pure.

The next machine stands by: it is rented beside the one that works, with a reservation of its own
for all that it can cost until its own hard stop, so that no layer has to end it sooner for the
budget to hold. It boots, is checked, gets the files and brings the run's newest checkpoint from the
bucket; it is not let to train. Then the working machine is told to land. Once that is proven gone,
by the list of its provider, and settled, the run moves: the machine that stood by is given what was
uploaded last, and trains. So no two machines of a run ever train at the same time.

A machine that does not come up, is not what was rented, or saves too little by then is ended, its
reservation is free again, and the working machine has never stopped. Where the working machine is
lost meanwhile, the one that stands by takes its place at once.

Each question for such a machine is a create at a price at which the move pays, as a run that waits
for a machine asks: what costs more is refused before it is made. A provider is asked every fifteen
minutes, give or take a fifth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.catalog.providers import find_traits
from trmcloud.core.contract.bucket_layout import BUCKET_BYTES_PER_S
from trmcloud.core.contract.pod_contract import PodName
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import current_generation
from trmcloud.core.control.continuing import continues, has_landed_for_move, keeps_uploads
from trmcloud.core.control.events import FailureKind
from trmcloud.core.control.pace import leaves_slow_machine, slowness
from trmcloud.core.control.reason import Reason, ReasonKind, make_reason
from trmcloud.core.control.renting import phases_to_run, ready_within_s, storage_beside_disks
from trmcloud.core.control.run_state import GRANT, Generation, RunState, State
from trmcloud.core.control.waiting import create_failure, pause_left_s
from trmcloud.core.money import ZERO, Usd, affordable_seconds, cost
from trmcloud.core.spec.plan import Candidate, PhasePlan, Plan

if TYPE_CHECKING:
    from trmcloud.core.contract.pod_contract import AgentReport

ASK_EVERY_S = 900.0
"""So often, give or take a fifth, a provider is asked for a machine to move to."""
_LEAST_SHARE = 0.5
"""A candidate is not asked for where the move would pay only below this share of its quote."""
_MOST_FAILED = 2
"""So many machines of a run may have stood by in vain: each of them has cost money."""
_SLACK = 1.1
"""Hard stop of a machine that stands by, relative to the P90 of what is left for it."""
_PACES = (0.5, 2.0)
"""Within these a measured pace is believed."""
_MEASURED_SHARE = 0.05
"""Of the whole work, before a pace is measured by it."""
_SETTLES_S = 60.0
"""For several looks, between a machine's last word and its settlement."""
_S_PER_HOUR = 3600.0


class Saving(NamedTuple):
    """What a move saves, as a function of the price: see ``price_that_pays``.

    ``stays`` is what the rest costs where the run is; ``before`` what the machine there still costs
    until it is gone, and what a new one costs but for its hours, which are ``hours``.
    """

    stays: Usd
    before: Usd
    hours: float

    def at(self, hourly: Usd) -> Usd:
        """Return USD that are saved where the new machine and its disks cost ``hourly`` USD/h."""
        return self.stays - self.before - _times(hourly, self.hours)

    def most_hourly(self, share: float) -> Usd:
        """Return the most USD/h, disks included, at which ``share`` of ``stays`` is saved."""
        least = math.ceil(self.stays.micros * share)
        left = self.stays.micros - least - self.before.micros
        millis = math.ceil(self.hours * _S_PER_HOUR * 1000)  # as ``cost`` rounds
        if left <= 0 or millis <= 0:
            return ZERO
        return Usd.from_micros(left * 3_600_000 // millis)


def may_move(run: RunState, plan: Plan) -> bool:
    """Whether the run's user wants it to move where that saves enough, and nothing forbids it."""
    generation = run.generation
    if _least_share(run, plan) is None or run.state is not State.RUNNING or generation is None:
        return False
    if run.move is not None or run.stop is not None or generation.hands_over:
        return False
    rented = generation.provider != LOCAL and plan.candidate(generation.candidate_id).nodes == 1
    in_vain = sum(g.stands_by and g.not_made is None for g in _since_opened(run))
    return rented and keeps_uploads(run, plan) and in_vain < _MOST_FAILED


def move_events(
    run: RunState, plan: Plan, ledger_id: str, report: AgentReport, now: float
) -> tuple[ev.RunEvent, ...]:
    """Return the events by which another machine is reserved and asked for; none where no move
    would save enough, no provider is to be asked now, or too little of the budget is left.

    ``report`` is that of the working machine's agent.
    """
    share = _least_share(run, plan)
    if report.result is not None or report.waiting or report.landing or share is None:
        return ()
    found: list[tuple[Usd, Candidate, ev.MoveStarted, float]] = []
    for candidate in map(plan.candidate, plan.launchable):
        if not _may_be_asked(run, candidate, now):
            continue
        saving = saving_by(run, plan, candidate, report, now, boots=True)
        if saving is None:
            continue
        most = saving.most_hourly(share) - candidate.disk_rate
        rate = min(most, plan.spec.max_rate or candidate.reserved_rate)
        quote = candidate.planned_rate or candidate.rate
        if rate <= ZERO or rate.micros < quote.micros * _LEAST_SHARE:
            continue
        traits = find_traits(candidate.provider)
        if traits is None or (not traits.shows_rate and quote > rate):
            continue  # nothing there would say what it is billed at
        lasts_s = _hard_stop_within(run, plan, candidate, report, rate, now)
        if lasts_s is None:
            continue
        amount = cost(rate + candidate.disk_rate, lasts_s + traits.kill_latency_s)
        amount += storage_beside_disks(candidate)
        hourly = rate + candidate.disk_rate
        started = ev.MoveStarted(candidate.id, rate, amount, saving.stays, saving.at(hourly))
        hoped = saving.at(quote + candidate.disk_rate)
        found.append((hoped, candidate, started, lasts_s))
    if not found:
        return ()
    _, candidate, started, lasts_s = max(found, key=lambda each: each[0])
    number, hard_stop_at = len(run.generations) + 1, now + lasts_s
    intent = ev.PodIntended(
        generation=number,
        pod_name=str(PodName(ledger_id, run.run_id, number, int(hard_stop_at))),
        provider=candidate.provider,
        candidate_id=candidate.id,
        rate=started.rate,
        soft_stop_at=hard_stop_at - candidate.landing_s,
        hard_stop_at=hard_stop_at,
    )
    return (started, intent)


def saving_by(
    run: RunState,
    plan: Plan,
    candidate: Candidate,
    report: AgentReport,
    now: float,
    *,
    boots: bool,
) -> Saving | None:
    """Return what a move to ``candidate`` saves; None where nothing is uploaded that it could
    continue from, or the work is done before it would be ready.

    Both machines are paid for while the new one boots (``boots``: whether it has yet to) and brings
    the checkpoint, and while the old one lands and ends. The steps since the last upload count as
    trained where the run is and as lost by the move.
    """
    generation = run.generation
    if generation is None:
        return None
    here = plan.candidate(generation.candidate_id)
    left = shares_left(run, here, report)
    first = next((phase for phase in here.phases if phase.name in left), None)
    if first is None or not _is_begun(run, here, report):
        return None
    pace = _pace(run, here, generation, left, now)
    rest_s = pace * _work_s(here, left)
    stays_s = min(rest_s - _interval_s(first), generation.soft_stop_at - now)
    fetch_s = max(kept.size_bytes for kept in report.uploaded) / BUCKET_BYTES_PER_S
    boot_s = (candidate.startup_s.p50 if boots else 0.0) + fetch_s
    if stays_s <= boot_s:
        return None
    traits = find_traits(here.provider)
    ends_s = here.landing_s + (traits.kill_latency_s + traits.absent_deleted_s if traits else 0.0)
    trained = boot_s / rest_s  # the old one trains on meanwhile
    there_s = _pace_there(run, pace) * _work_s(candidate, left) * (1 - trained)
    there_s += _starts_s(candidate, left)
    new_s = boot_s + ends_s + fetch_s + there_s + _kill_latency_s(candidate)
    hourly = (generation.billed_rate or generation.rate) + run.disk_rate(generation)
    stays = _times(hourly, stays_s / _S_PER_HOUR)
    before = _times(hourly, (boot_s + ends_s) / _S_PER_HOUR) + storage_beside_disks(candidate)
    return Saving(stays, before, new_s / _S_PER_HOUR)


def shares_left(run: RunState, candidate: Candidate, report: AgentReport) -> Mapping[str, float]:
    """Return the share of each phase's steps that no uploaded checkpoint has; a finished phase is
    not among them."""
    left = {}
    for phase in phases_to_run(run, candidate):
        steps = [kept.step for kept in report.uploaded if kept.phase == phase.name]
        done = max(steps, default=0) / max(1, phase.settings.steps)
        left[phase.name] = max(0.0, 1.0 - done)
    return left


def stands_by_s(plan: Plan) -> float:
    """Return the longest time that a machine which is ready waits until the one before it has
    landed and is proven gone."""
    waits = []
    for candidate in map(plan.candidate, plan.launchable):
        traits = find_traits(candidate.provider)
        ends_s = (traits.end_grace_s + traits.absent_s + traits.kill_latency_s) if traits else 0.0
        waits.append(candidate.landing_s + ends_s + _SETTLES_S)
    return max(waits, default=0.0)


# The machine that stands by.


def handover(
    run: RunState, plan: Plan, mine: AgentReport | None, theirs: AgentReport | None
) -> tuple[ev.HandedOver, ...]:
    """Return the event by which the working machine, whose report is ``mine``, is told to land:
    none before the one that stands by is up, checked, and holds a checkpoint of the run."""
    standby, generation = run.standby, run.generation
    if run.state is not State.RUNNING or standby is None or generation is None:
        return ()
    if generation.hands_over or run.stop is not None or mine is None or mine.result is not None:
        return ()
    if standby.state is not State.RUNNING or not is_ready(standby, mine, theirs):
        return ()
    if not _is_begun(run, plan.candidate(generation.candidate_id), mine):
        return ()
    return (ev.HandedOver(generation.number),)


def is_ready(standby: RunState, mine: AgentReport, theirs: AgentReport | None) -> bool:
    """Whether the machine that stands by has passed its checks, has its files, and holds a
    checkpoint that the working one has uploaded: all that it lacks is to be let to train."""
    if theirs is None or theirs.result is not None or theirs.waiting != "data":
        return False
    here = standby.generation
    granted = here is not None and any(g.finished for g in standby.tries(here, GRANT))
    # It has trained nothing: what it has, it was given.
    stored = {kept.phase for kept in mine.uploaded}
    return granted and any(kept.phase in stored for kept in theirs.kept)


def why_end_standby(
    run: RunState,
    plan: Plan,
    mine: AgentReport | None,
    theirs: AgentReport | None,
    now: float,
    *,
    attended: bool,
) -> Reason | None:
    """Return why the machine that stands by is not needed any more; None while it is.

    ``attended``: see ``decide``. A process that does not stay neither sends it its files nor lets
    it train: the run then stays where it is.
    """
    standby, generation = run.standby, run.generation
    if standby is None or generation is None:
        return None
    called_off = make_reason(ReasonKind.MOVE_CALLED_OFF)
    if run.stop is not None or not attended:
        return called_off
    ended = run.result is not None and not has_landed_for_move(run, generation)
    if ended or (run.state in (State.SETTLING, State.SETTLED) and not continues(run, plan)):
        return called_off
    here = standby.generation
    if here is None or run.state is not State.RUNNING or generation.hands_over:
        return None
    candidate = plan.candidate(here.candidate_id)
    within_s = ready_within_s(candidate) + stands_by_s(plan)
    if here.agent_at is not None and now >= here.agent_at + within_s:
        return make_reason(ReasonKind.NOT_READY_IN_TIME, within_s=float(within_s))
    if mine is None or standby.state is not State.RUNNING or not is_ready(standby, mine, theirs):
        return None
    if not _is_begun(run, plan.candidate(generation.candidate_id), mine):
        return None  # between two phases nothing can be said
    saving = saving_by(run, plan, candidate, mine, now, boots=False)
    hourly = (here.billed_rate or here.rate) + run.disk_rate(here)
    share = _least_share(run, plan)
    if saving is None or share is None or hourly > saving.most_hourly(share):
        return make_reason(ReasonKind.MOVE_SAVES_TOO_LITTLE)
    return None


def moved(run: RunState, plan: Plan, theirs: AgentReport | None) -> tuple[ev.Moved, ...]:
    """Return the event by which a run whose machine is gone and settled moves to the one that
    stands by: none before the agent there is heard, which is not at its end."""
    standby = run.standby
    if run.state is not State.SETTLED or standby is None or standby.generation is None:
        return ()
    if standby.state is not State.RUNNING or theirs is None or not continues(run, plan):
        return ()
    return (ev.Moved(standby.generation.number),)


def lacks_final_grants(run: RunState, generation: Generation) -> bool:
    """Whether a machine that stood by was not yet given what was uploaded last, with which it may
    train."""
    if generation.adopted_at is None:
        return False
    tried = run.tries(generation, GRANT)
    return not any(g.finished and g.started_at >= generation.adopted_at for g in tried)


# -- what is asked for, and when ----------------------------------------------------------------


def _since_opened(run: RunState) -> tuple[Generation, ...]:
    return run.generations[run.first_generation - 1 :]


def _may_be_asked(run: RunState, candidate: Candidate, now: float) -> bool:
    """Whether it is rented, alone, has not stood by in vain, and its provider is due."""
    if candidate.provider == LOCAL or candidate.nodes != 1 or candidate.spot:
        return False
    asked = [g for g in _since_opened(run) if g.stands_by]
    if any(g.candidate_id == candidate.id and g.not_made is None for g in asked):
        return False
    there = [g for g in asked if g.provider == candidate.provider]
    if any(create_failure(run, g) is FailureKind.FINAL for g in there):
        return False
    if not there or there[-1].not_made is None:
        return True
    return pause_left_s(run, there, now, ASK_EVERY_S) <= 0.0


def _hard_stop_within(
    run: RunState,
    plan: Plan,
    candidate: Candidate,
    report: AgentReport,
    rate: Usd,
    now: float,
) -> float | None:
    """Seconds until the hard stop of a machine that stands by first and then does the rest: what
    the run's budget has left beside its other machine, and its deadline, allow; None where P90 of
    all that does not fit."""
    here = current_generation(run)
    left = shares_left(run, candidate, report)
    pace = _pace_there(run, _pace(run, plan.candidate(here.candidate_id), here, left, now))
    least_s = candidate.startup_s.p90 + stands_by_s(plan) + candidate.landing_s
    work_s = pace * _work_s(candidate, left, p90=True) + _starts_s(candidate, left)
    latency_s = _kill_latency_s(candidate)
    room = run.cap - run.settled - run.reserved - storage_beside_disks(candidate)
    allowed_s = affordable_seconds(room, rate + candidate.disk_rate) - latency_s
    if plan.spec.deadline_at is not None:
        allowed_s = min(allowed_s, plan.spec.deadline_at - now - latency_s)
    if allowed_s < least_s + work_s:
        return None
    return min(least_s + _SLACK * work_s, allowed_s)


# -- how long the rest takes ----------------------------------------------------------------------


def _work_s(candidate: Candidate, left: Mapping[str, float], *, p90: bool = False) -> float:
    """Seconds of training that are left on ``candidate``, at P50 or P90."""
    return sum(
        left[phase.name] * (phase.seconds.p90 if p90 else phase.seconds.p50)
        for phase in candidate.phases
        if phase.name in left
    )


def _starts_s(candidate: Candidate, left: Mapping[str, float]) -> float:
    """Seconds that a trainer which is started anew takes before its first step."""
    first = next((phase for phase in candidate.phases if phase.name in left), None)
    parts = first.parts_s if first is not None else {}
    return parts.get("compile", 0.0) + parts.get("data", 0.0)


def _is_begun(run: RunState, here: Candidate, report: AgentReport) -> bool:
    """Whether the phase that is trained now has a checkpoint in the bucket."""
    first = next(iter(phases_to_run(run, here)), None)
    return first is not None and any(kept.phase == first.name for kept in report.uploaded)


def _interval_s(phase: PhasePlan) -> float:
    """Seconds between two checkpoints, the most that was trained since the last one."""
    settings = phase.settings
    by_steps = settings.save_every * phase.step_s.p50 if settings.save_every else phase.seconds.p50
    return min(by_steps, settings.save_minutes * 60.0) if settings.save_minutes else by_steps


def _pace(
    run: RunState, here: Candidate, generation: Generation, left: Mapping[str, float], now: float
) -> float:
    """Return by how much the machine is slower than was planned: as it has measured; else by the
    steps that it has uploaded, 1 where too little is known, or an earlier machine made some."""
    if (measured := slowness(run)) is not None:
        return measured
    whole_s = sum(phase.seconds.p50 for phase in here.phases)
    done_s = whole_s - _work_s(here, left)
    others = (g for g in run.generations if g.number != generation.number and not g.stands_by)
    trained_before = any(g.agent_at is not None for g in others)
    if trained_before or generation.agent_at is None or done_s < _MEASURED_SHARE * whole_s:
        return 1.0
    took_s = now - generation.agent_at
    least, most = _PACES
    return min(most, max(least, took_s / (done_s + here.startup_s.p50)))


def _pace_there(run: RunState, pace: float) -> float:
    """By how much the next machine is expected to be slower than planned, where this one's factor
    is ``pace``. A run that leaves a slow machine expects the next one to be as planned; any other
    counts the plan as wrong where its own machine is slow."""
    return 1.0 if leaves_slow_machine(run) else max(1.0, pace)


def _least_share(run: RunState, plan: Plan) -> float | None:
    """Return the share of what the rest costs that a move must save; None where the run stays. One
    that leaves a slow machine moves wherever anything is saved."""
    if plan.spec.moves_if_slow and leaves_slow_machine(run):
        return 0.0
    return plan.spec.move_if or None


def _kill_latency_s(candidate: Candidate) -> float:
    traits = find_traits(candidate.provider)
    return traits.kill_latency_s if traits is not None else 0.0


def _times(hourly: Usd, hours: float) -> Usd:
    return cost(hourly, hours * _S_PER_HOUR)
