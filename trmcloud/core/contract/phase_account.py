"""The agent's account of a phase: how an attempt ended, what is done about that, and what it cost.

Pure, as the decisions of ``supervisor`` are, which read it.
"""

from __future__ import annotations

from typing import Any

from trmcloud.core.contract.climbing import climbed
from trmcloud.core.contract.pod_contract import Lease, PhaseLease, PhaseReport, PhaseState
from trmcloud.core.contract.recovery import (
    AGAIN,
    MENDED,
    SKIPPED,
    SPARE,
    Recovery,
    next_rung,
    noted,
)
from trmcloud.core.contract.trainer_contract import RETRYABLE, Heartbeat
from trmcloud.core.values import replace


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
    return noted(recoveries, skips)


def next_try(lease: Lease, last: PhaseReport) -> Recovery | None:
    """What to do about an attempt that ended badly; None: nothing helps, or was tried enough.

    A phase on several machines is not started again: the others' trainers are gone by then.
    """
    outcome = last.outcome or "lost"
    rung: tuple[str, dict[str, Any]] | None = None
    settings = lease_of(lease, last.name).settings
    if outcome in RETRYABLE and last.fruitless <= lease.max_restarts:
        rung = AGAIN, {}
    elif outcome in MENDED and lease.max_restarts >= 0:
        saved = last.saved_step is not None
        rung = next_rung(settings, last.recoveries, outcome, saved=saved)
    elif outcome == "landed_signal" and last.climbing:
        changed = climbed(settings, last.recoveries, last.climbing)
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


def started(lease: Lease, before: PhaseReport, attempt: int, at: float) -> PhaseReport:
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
        recoveries=before.recoveries if mended is None else noted(before.recoveries, mended),
    )


def lease_of(lease: Lease, name: str) -> PhaseLease:
    return next(p for p in lease.phases if p.name == name)
