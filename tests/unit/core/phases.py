"""Phases and leases in every situation, as an agent on its pod sees them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trmcloud.core.contract.gate import Verdict
from trmcloud.core.contract.pod_contract import Lease, PhaseLease, PhaseReport, PhaseState
from trmcloud.core.contract.supervisor import Act, TrainerView, supervise
from trmcloud.core.contract.trainer_contract import Heartbeat

LEASE = Lease(
    run_id="r1",
    pod_name="trmc-abcd1234-r1-g1-1790003000",
    epoch=1,
    granted_at=0.0,
    soft_stop_at=2900.0,
    hard_stop_at=3000.0,
    landing_s=100.0,
    phases=(PhaseLease("fast", 0.0, 900.0, 1e15), PhaseLease("extreme", 0.0, 1000.0, 1e15)),
    fits_budget=True,
    min_useful_s=60.0,
    hang_after_s=300.0,
    max_restarts=3,
)
ONE = replace(LEASE, phases=LEASE.phases[:1])
BEAT = Heartbeat("r1", "fast", 1, 77, "boot-1", 100.0, "training", 5, 90, step_seconds=1.0)
FAST, EXTREME = PhaseReport("fast"), PhaseReport("extreme")
RUNNING = PhaseReport("fast", state=PhaseState.RUNNING, attempts=1)
PASSED, FAILED = Verdict("fast", True, ()), Verdict("fast", False, ())


def view(**changes: Any) -> TrainerView:
    seen = TrainerView(heartbeat=None, heartbeat_age_s=0.0, soft_left_s=2000.0, hard_left_s=2100.0)
    return replace(seen, **changes)


def watching(beat: Heartbeat | None = BEAT, **changes: Any) -> Act:
    """What is done about a trainer that runs."""
    return supervise(LEASE, (RUNNING, EXTREME), view(heartbeat=beat, **changes))


def ended(outcome: str | None, **changes: Any) -> PhaseReport:
    report = PhaseReport("fast", state=PhaseState.ENDED, outcome=outcome, attempts=1, saved_step=5)
    return replace(report, **changes)


def after(report: PhaseReport, lease: Lease = ONE, **changes: Any) -> Act:
    """What follows once the only process is gone; ``LEASE`` has a second phase waiting."""
    phases = (report, EXTREME) if lease is not ONE else (report,)
    return supervise(lease, phases, view(**changes))


def measured(seconds: float) -> PhaseReport:
    return ended("finished", gate=PASSED, seconds={"training": seconds - 10, "saving": 10.0})
