"""The agent's account of a phase: how attempts ended, their cost, and a growing micro-batch.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trmcloud.core.contract.pod_contract import Lease, PhaseLease, PhaseReport, PhaseState
from trmcloud.core.contract.recovery import (
    AGAIN,
    MENDED,
    NEEDED,
    SKIPPED,
    SPARE,
    Recovery,
    next_rung,
    note_recovery,
    overrides_of,
)
from trmcloud.core.contract.trainer_contract import RETRYABLE, Heartbeat
from trmcloud.core.values import replace

# A micro-batch that climbs where memory is to spare: by whose names, how far, and when.
#
# The names and bounds are those of the training guide for one H200: of its 141 GB, 80 is where
# more is worth trying, 110 and 130 are what an aggressive and an extreme batch fill, one and a
# half times and twice the recommended one. As many sequences a step stay: a larger batch is fewer
# passes.

CLIMBS = "climbs"
"""Of a phase's settings in its lease: whether its micro-batch may climb. It is absent where the
user has set it."""
SPARE_BELOW = 80 / 141
"""Of the fullest GPU's memory."""


class Level(NamedTuple):
    """``factor``: of the batch that was planned, at most; ``fills``: of a GPU's memory, at most."""

    name: str
    factor: float
    fills: float


LEVELS = (Level("aggressive", 1.5, 110 / 141), Level("extreme", 2.0, 130 / 141))
"""The levels above the plan, which is the guide's ``recommended``; half of it, where memory runs
out, is ``conservative``."""
_TRUSTED_GAIN = 0.01
"""Of the time that is left, what fewer passes are trusted to save: the planner's own threshold."""
_TIMES_ITS_COST = 2.0
_LEAST_RESTART_S = 60.0


def next_level(
    settings: Mapping[str, Any], recoveries: Sequence[Recovery], memory_share: float | None
) -> str:
    """The level to climb to, empty for none.

    Args:
        settings: the phase's own, as its lease has them.
        recoveries: the phase's account. Where anything went wrong nothing climbs: a batch that ran
            out of memory is not tried again.
        memory_share: what is in use of the fullest GPU's memory; None where that is not known.
    """
    if memory_share is None or not settings.get(CLIMBS) or any(k not in settings for k in NEEDED):
        return ""
    if memory_share >= SPARE_BELOW or any(
        r.what != SPARE and r.rung != SKIPPED for r in recoveries
    ):
        return ""
    batch = int({**settings, **overrides_of(recoveries)}["batch"])
    for level in LEVELS:
        changed = climb_settings(settings, recoveries, level.name)
        # All of what is in use is taken to grow with the batch: weights do not.
        if changed and memory_share * changed["batch"] / batch <= level.fills:
            return level.name
    return ""


def climb_settings(
    settings: Mapping[str, Any], recoveries: Sequence[Recovery], name: str
) -> dict[str, Any]:
    """The largest batch of that level which divides a step's sequences; empty where there is none
    above the present one, or it was climbed to."""
    level = next((each for each in LEVELS if each.name == name), None)
    if level is None or any(each.rung == name for each in recoveries):
        return {}
    now = {**settings, **overrides_of(recoveries)}
    batch, rows = int(now["batch"]), int(now["batch"]) * int(now["accumulation"])
    most = min(rows, int(level.factor * int(settings["batch"])))
    larger = next((n for n in range(most, batch, -1) if rows % n == 0), 0)
    return {"batch": larger, "accumulation": rows // larger} if larger else {}


def is_worth_it(beat: Heartbeat, deadline_left_s: float) -> bool:
    """Whether what fewer passes save of the time that is left pays for landing and starting anew,
    twice over. Nothing climbs while it cools down.

    Args:
        deadline_left_s: until the trainer is told to land, whatever steps are left.
    """
    if beat.cooldown_from is not None or beat.step_seconds is None:
        return False
    left_s = min(deadline_left_s, (beat.steps - beat.step) * beat.step_seconds)
    began_s = sum(beat.seconds.get(name, 0.0) for name in ("startup", "compile"))
    restart_s = max(_LEAST_RESTART_S, began_s + (beat.landing_seconds or 0.0))
    return left_s * _TRUSTED_GAIN > restart_s * _TIMES_ITS_COST


# The agent's account of a phase: how an attempt ended, what is done about that, and what it cost.
#
# Pure, as the decisions of ``supervisor`` are, which read it.


def close_attempt(
    report: PhaseReport, heartbeat: Heartbeat | None, now_at: float, lost_s: float = 0.0
) -> PhaseReport:
    """The phase's account after its process has ended: what its last heartbeat says, or "lost".

    ``lost_s``: seconds since its last checkpoint, or its start where it saved none.
    """
    outcome = heartbeat.outcome if heartbeat is not None and heartbeat.outcome else "lost"
    if heartbeat is None:
        return replace(
            report,
            state=PhaseState.ENDED,
            ended_at=now_at,
            outcome=outcome,
            fruitless=report.fruitless + 1,
            lost_steps=0,
            lost_s=max(0.0, lost_s),
        )
    saved = heartbeat.saved_step
    progressed = saved is not None and (report.saved_step is None or saved > report.saved_step)
    seconds = dict(report.seconds)
    for name, value in heartbeat.seconds.items():
        seconds[name] = seconds.get(name, 0.0) + value
    return replace(
        report,
        state=PhaseState.ENDED,
        ended_at=now_at,
        outcome=outcome,
        # One that was killed has no last word; why it was is there already.
        message=heartbeat.message
        or (report.stopping if outcome == "stopped_paying" else report.message),
        step=heartbeat.step,
        val_bpb=heartbeat.val_bpb,
        seconds=seconds,
        # The furthest, though it may be damaged since: to come there again is not to get on.
        saved_step=max((s for s in (saved, report.saved_step) if s is not None), default=None),
        fruitless=0 if progressed else report.fruitless + 1,
        # From where it will go on: what another attempt saved beyond that was damaged.
        lost_steps=max(0, heartbeat.step - (saved or 0)),
        lost_s=max(0.0, lost_s),
        recoveries=with_skips(report.recoveries, heartbeat),
    )


def with_skips(recoveries: tuple[Recovery, ...], beat: Heartbeat) -> tuple[Recovery, ...]:
    """The account with the steps that this attempt has left out, at the price of its steps."""
    if not beat.skipped:
        return recoveries
    skips = Recovery(
        what="unsound",
        rung=SKIPPED,
        step=beat.skipped_step or beat.step,
        at=beat.at,
        lost_steps=beat.skipped,
        lost_s=beat.skipped * max(0.0, beat.step_seconds or 0.0),
        times=beat.skipped,
    )
    return note_recovery(recoveries, skips)


def next_try(lease: Lease, last: PhaseReport) -> Recovery | None:
    """Return the recovery for an attempt that ended badly; None if none helps or all were tried.

    A phase on several machines is not started again: the others' trainers are gone by then.
    """
    outcome = last.outcome or "lost"
    rung: tuple[str, dict[str, Any]] | None = None
    settings = lease_of(lease, last.name).settings
    if outcome in RETRYABLE and last.fruitless <= lease.max_restarts:
        rung = AGAIN, {}
    elif outcome in MENDED and lease.max_restarts >= 0:
        rung = next_rung(settings, last.recoveries, outcome)
    elif outcome == "landed_signal" and last.climbing:
        changed = climb_settings(settings, last.recoveries, last.climbing)
        rung = (last.climbing, changed) if changed else None
        outcome = SPARE
    if rung is None:
        return None
    return Recovery(
        what=outcome,
        rung=rung[0],
        step=last.step or 0,
        at=last.ended_at or 0.0,
        changed=rung[1],
        lost_steps=last.lost_steps,
        lost_s=last.lost_s,
        why=last.message,
    )


def start_attempt(lease: Lease, before: PhaseReport, attempt: int, at: float) -> PhaseReport:
    """The phase's account once ``attempt`` runs; one after a bad end has its row.

    What changes settings is another try than those before: its own count begins at none.
    """
    mended = next_try(lease, before) if before.state is PhaseState.ENDED else None
    return replace(
        before,
        state=PhaseState.RUNNING,
        attempts=attempt,
        started_at=before.started_at or at,
        ended_at=None,
        outcome=None,
        message="",
        fruitless=0 if mended is not None and mended.changed else before.fruitless,
        climbing=None,
        recoveries=before.recoveries
        if mended is None
        else note_recovery(before.recoveries, mended),
    )


def lease_of(lease: Lease, name: str) -> PhaseLease:
    return next(p for p in lease.phases if p.name == name)
