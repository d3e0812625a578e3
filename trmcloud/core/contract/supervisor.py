"""The agent's own decisions: one pure function from lease, trainer and time to the next act.

The agent knows its death time from birth. It starts phases, judges the gate between them, lands
the trainer at the soft stop, kills it at the hard stop, restarts it after a crash while that is
worth the money, and then ends the pod. It decides alone: the laptop may be shut.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from trmcloud.core.contract.gate import why_stop
from trmcloud.core.contract.phase_account import is_worth_it, lease_of, next_level, next_try
from trmcloud.core.contract.pod_contract import HOURS, Lease, PhaseReport, PhaseState
from trmcloud.core.contract.recovery import MENDED, overrides_of
from trmcloud.core.contract.trainer_contract import CLEAN, DONE, RETRYABLE, Heartbeat
from trmcloud.core.errors import Outcome
from trmcloud.core.values import Value

_LAND_REPEAT_S = 15.0
REPRICED_P90 = 1.1
"""P90 ÷ P50 of a phase that was repriced by a measured one: what steps of one machine scatter."""
_GRANTS_WITHIN_S = 300.0
"""The time that a machine with its files waits for the right to upload."""
_LAST_WORD_S = 3.0
"""Before the hard stop, for the result to be told at all."""
_TEARDOWN_S = 30.0
"""The time that a trainer has to exit after its last heartbeat."""


class TrainerView(Value):
    """The trainer as the agent sees it now. Seconds left are by the earlier of both clocks.

    ``heartbeat`` is this attempt's, None before its first; ``heartbeat_age_s`` is the time since it
    last changed, or since the start where there is none.
    """

    heartbeat: Heartbeat | None
    heartbeat_age_s: float
    soft_left_s: float
    hard_left_s: float
    told_to_land_s: float | None = None
    """Seconds since the trainer was last asked to stop; None if it was not."""
    land_ordered: bool = False
    """The controller, or the user through it, asks for an early landing."""
    land_reason: str = ""
    save_owed: bool = False
    """A checkpoint is asked for that this trainer was not told of yet."""
    finish_told: bool = False
    """It was told that it no longer pays."""
    share_left_s: float = math.inf
    """Of what its phase may take, by the wall clock."""
    memory_share: float | None = None
    """The used share of the fullest GPU's memory, where that is known well enough."""
    waiting: str = ""
    """The steps to be done before a phase can start: see ``AgentReport.waiting``."""
    refusal: str = ""
    """Why this machine is not the one that was rented."""
    age_s: float = 0.0
    """Seconds since the agent was first started on this pod."""
    unstored: bool = False
    """The best or the latest of some phase is not where it survives yet, and could still be."""
    upload_idle_s: float = 0.0
    """Seconds since an upload last got on, or since there was something to upload."""


class Act(Value):
    """The agent's next act."""


class StartPhase(Act):
    phase: str
    attempt: int
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Settings that take the place of the job's: see ``recovery``."""


class LandTrainer(Act):
    reason: str


class SaveNow(Act):
    """The trainer is told to save, and to go on."""


class FinishTrainer(Act):
    """It no longer pays: the trainer is told to cool down, and to come to an end."""

    reason: str


class ClimbTrainer(Act):
    """Memory is to spare: the trainer is asked to stop, and goes on with the micro-batch of
    ``level``."""

    level: str


class KillTrainer(Act):
    reason: str


class JudgeGate(Act):
    phase: str


class EndPod(Act):
    """Nothing more will happen here; ``result`` is an ``Outcome``."""

    result: str
    message: str


class AwaitUploads(Act):
    """Its work is done, and what came of it is still on its way to where it survives."""


class Wait(Act):
    """Nothing is to be done now."""


def supervise(lease: Lease, phases: tuple[PhaseReport, ...], trainer: TrainerView) -> Act:
    """The one next thing to do: see ``_decide``; a result waits for uploads that get on.

    Money first: one that does not get on for as long as landing may take is not waited for, nor
    is any beyond the hard stop.
    """
    act = _decide(lease, phases, trainer)
    if not isinstance(act, EndPod) or not (lease.uploads and trainer.unstored):
        return act
    patience_s = max(lease.landing_s, _LAST_WORD_S)
    if trainer.hard_left_s > _LAST_WORD_S and trainer.upload_idle_s < patience_s:
        return AwaitUploads()
    why = "not everything could be uploaded"
    return EndPod(act.result, f"{act.message}; {why}" if act.message else why)


def _decide(lease: Lease, phases: tuple[PhaseReport, ...], trainer: TrainerView) -> Act:
    """The one next thing to do. ``phases`` is the agent's account so far, in the lease's order.

    A phase whose state is ``running`` has a process: the caller looks once, and turns one that has
    ended into ``ended`` with ``close_attempt`` before it asks. To look again would find a trainer
    that has ended meanwhile, and whose phase had then neither a process nor an outcome.
    """
    if trainer.refusal:
        return EndPod(Outcome.UNFIT.value, trainer.refusal)
    current = next((p for p in phases if p.state is PhaseState.RUNNING), None)
    if current is not None:
        return _watch(lease, current, trainer)
    ended = [p for p in phases if p.state is PhaseState.ENDED]
    act = _after(lease, phases, ended[-1], trainer) if ended else None
    if isinstance(act, EndPod):
        return act
    if trainer.hard_left_s <= 0:
        return EndPod(Outcome.KILLED.value, "the hard stop came")
    if act is not None:
        return act
    waiting = next((p for p in phases if p.state is PhaseState.WAITING), None)
    if waiting is None:
        if not phases and trainer.waiting == "checking":
            return Wait()  # nothing is to be trained; what was rented is looked at all the same
        return EndPod(Outcome.FINISHED.value, "")
    if trainer.land_ordered:
        return EndPod(Outcome.STOPPED.value, trainer.land_reason)
    if trainer.waiting:
        return _await_files(lease, trainer)
    refusal = _why_not_enter(lease, phases, waiting, trainer)
    if refusal:
        return EndPod(Outcome.NEXT_PHASE_REFUSED.value, refusal)
    overrides = overrides_of(waiting.recoveries)
    return StartPhase(waiting.name, attempt=waiting.attempts + 1, overrides=overrides)


def _await_files(lease: Lease, trainer: TrainerView) -> Act:
    """Nothing can be trained yet: for how long that is worth its rent."""
    within_s = lease.ready_within_s or (_GRANTS_WITHIN_S if lease.uploads else 0.0)
    if within_s and trainer.age_s > within_s:
        why = f"still {trainer.waiting} after {trainer.age_s:.0f} s"
        return EndPod(Outcome.FAILED.value, why)
    if trainer.soft_left_s <= lease.min_useful_s:
        return EndPod(Outcome.FAILED.value, f"no time was left to train in: {trainer.waiting}")
    return Wait()


def _watch(lease: Lease, phase: PhaseReport, trainer: TrainerView) -> Act:
    if trainer.hard_left_s <= 0:
        return KillTrainer("hard stop")
    beat = trainer.heartbeat
    told = trainer.land_ordered or trainer.told_to_land_s is not None
    if trainer.heartbeat_age_s > _patience_s(lease, beat, told=told):
        return KillTrainer(f"no step for {trainer.heartbeat_age_s:.0f} s")
    if beat is not None and beat.state in ("landing", "ended"):
        return Wait()
    fresh = trainer.told_to_land_s is not None and trainer.told_to_land_s < _LAND_REPEAT_S
    if trainer.land_ordered and not fresh:
        return LandTrainer(trainer.land_reason or "asked to")
    # The trainer lands by itself at the soft stop; this is the second layer, a moment later.
    if trainer.soft_left_s < -0.25 * lease.landing_s and not fresh:
        return LandTrainer("soft stop")
    landing = trainer.land_ordered or trainer.told_to_land_s is not None
    if trainer.save_owed and not landing and beat is not None and beat.saves is not None:
        return SaveNow()
    if not landing and not trainer.finish_told and (why := _no_longer_pays(lease, phase, beat)):
        return FinishTrainer(why)
    if not landing and (level := _climbs_to(lease, phase, trainer)):
        return ClimbTrainer(level)
    return Wait()


def _climbs_to(lease: Lease, phase: PhaseReport, trainer: TrainerView) -> str:
    """The level, empty for none; what was decided once is told to the same attempt's trainer by an
    agent that was started anew."""
    beat = trainer.heartbeat
    if beat is None or beat.state != "training" or phase.stopping or lease.max_restarts < 0:
        return ""
    if phase.climbing:
        return phase.climbing
    if not is_worth_it(beat, min(trainer.soft_left_s, trainer.share_left_s)):
        return ""
    settings = lease_of(lease, phase.name).settings
    return next_level(settings, phase.recoveries, trainer.memory_share)


def _no_longer_pays(lease: Lease, phase: PhaseReport, beat: Heartbeat | None) -> str:
    """Why; empty while it pays, or cools down. What was decided once holds for every attempt."""
    if beat is None or beat.curve is None:
        return ""
    rules = lease_of(lease, phase.name).stop
    return phase.stopping or why_stop(rules, beat.curve, beat.steps - beat.step)


def _patience_s(lease: Lease, beat: Heartbeat | None, *, told: bool) -> float:
    """Return the time that a trainer may show no progress: compiling and saving take longer than a
    step.

    One that was ``told`` to land has as long as is reserved for that, as whoever gave the order
    has; one that has come to its own end may take longer, and still save what it was rented for.
    """
    if beat is None or beat.state in ("starting", "compiling"):
        return max(lease.hang_after_s, 900.0)
    if beat.state == "ended":
        return _TEARDOWN_S
    if beat.state == "landing" and told:
        return max(lease.hang_after_s, lease.landing_s)
    if beat.state in ("evaluating", "saving", "landing"):
        return max(lease.hang_after_s, 4 * lease.landing_s)
    return max(lease.hang_after_s, 20 * (beat.step_seconds or 0.0))


def _after(
    lease: Lease, phases: tuple[PhaseReport, ...], last: PhaseReport, trainer: TrainerView
) -> Act | None:
    """Return the act that follows a phase that has ended; None: continue with the next one, if
    any."""
    outcome = last.outcome or "lost"
    mend = next_try(lease, last)
    climbs = outcome == "landed_signal" and mend is not None
    if outcome == "landed_signal" and (trainer.land_ordered or not climbs):
        if trainer.land_ordered:
            return EndPod(Outcome.STOPPED.value, trainer.land_reason or last.message)
        return EndPod(Outcome.LANDED.value, "asked to stop")
    more = any(p.state is PhaseState.WAITING for p in phases)
    if outcome in CLEAN and not climbs:
        if not more:
            if outcome in DONE:
                return EndPod(Outcome.FINISHED.value, last.message)
            limit = "its hours are used" if lease.ends_by == HOURS else "budget reached"
            if lease.limit_at > lease.hard_stop_at:
                limit = "the time that was reserved is used"
            why = f"{limit}; {last.message}"
            return EndPod(Outcome.LANDED.value, why.rstrip("; "))
        if last.gate is None:
            return JudgeGate(last.name)
        if not last.gate.passed:
            return EndPod(Outcome.GATE_FAILED.value, f"the gate after {last.name} failed")
        return None
    may_help = outcome in RETRYABLE or mend is not None
    if may_help and trainer.hard_left_s <= 0:
        return EndPod(Outcome.KILLED.value, "the hard stop came before the trainer had landed")
    if may_help and trainer.land_ordered:
        return EndPod(Outcome.STOPPED.value, trainer.land_reason)
    if mend is not None:
        if trainer.soft_left_s > lease.min_useful_s:
            overrides = overrides_of((*last.recoveries, mend))
            return StartPhase(last.name, attempt=last.attempts + 1, overrides=overrides)
        if last.saved_step is not None:
            why = f"{outcome}, and too little time was left to start again"
            return EndPod(Outcome.LANDED.value, why)
    why = last.message or outcome
    if outcome in MENDED and (tried := overrides_of(last.recoveries)):
        words = ", ".join(f"{key}={value}" for key, value in tried.items())
        why = f"{why}; nothing is left to try: not even {words} helped"
    return EndPod(Outcome.FAILED.value, why)


def _why_not_enter(
    lease: Lease, phases: tuple[PhaseReport, ...], phase: PhaseReport, trainer: TrainerView
) -> str:
    """Why the next phase does not fit what is left; empty where it may be entered."""
    if trainer.soft_left_s <= lease.min_useful_s:
        return f"{max(0.0, trainer.soft_left_s):.0f} s are left, too few to train in"
    if phase.attempts or not any(p.state is PhaseState.ENDED for p in phases):
        return ""
    if not lease.fits_budget:
        return ""
    needed = repriced_s(lease, phases, phase.name) * REPRICED_P90
    if needed > trainer.soft_left_s:
        return f"{phase.name} needs about {needed:.0f} s and {trainer.soft_left_s:.0f} s are left"
    return ""


def repriced_s(lease: Lease, phases: tuple[PhaseReport, ...], name: str) -> float:
    """Seconds a phase is expected to take, measured by what the phases before it took.

    expected × (measured ÷ expected of the ended phases), the ratio taken over training seconds.
    """
    mine = lease_of(lease, name)
    expected = measured = 0.0
    for report in phases:
        part = lease_of(lease, report.name)
        if (
            report.state is PhaseState.ENDED
            and report.outcome == "finished"
            and part.expected_s > 0
        ):
            expected += part.expected_s
            measured += sum(s for state, s in report.seconds.items() if state != "data")
    return mine.expected_s * (measured / expected if expected and measured else 1.0)
