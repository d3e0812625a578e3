"""A lease of a pod, and a job of it that trains almost nothing."""

from __future__ import annotations

import os
from pathlib import Path

from tests.plans import small_recipe
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.trainer_contract import PhaseJob

HARD_STOP_S = 600.0


def a_lease(granted_at: float, hard_stop_s: float = HARD_STOP_S, epoch: int = 1) -> contract.Lease:
    """Grant a lease to a pod whose name no other process of tests gives: a pod ends all that bear
    its own."""
    hard_stop_at = granted_at + hard_stop_s
    pod = contract.PodName(f"{os.getpid():08x}", "r1", 1, int(hard_stop_at))
    return contract.Lease(
        run_id="r1",
        pod_name=str(pod),
        epoch=epoch,
        granted_at=granted_at,
        soft_stop_at=hard_stop_at - 0.1 * hard_stop_s,
        hard_stop_at=hard_stop_at,
        landing_s=0.1 * hard_stop_s,
        phases=(contract.PhaseLease("fast", 0.0, 1e6, 1e9),),
        fits_budget=False,
        min_useful_s=0.0,
    )


def job_of(lease: contract.Lease, root: Path, steps: int = 100_000) -> PhaseJob:
    seldom = {"log_every": 1000, "eval_every": 1000, "save_every": 1000}
    settings = small_recipe(recipe="t", steps=steps, **seldom)
    return PhaseJob(
        run_id=lease.run_id,
        phase="fast",
        settings=settings.to_json(),
        data_dir=str(root / "data"),
        out_dir=str(root / contract.RUNS_DIR / lease.run_id / "fast"),
        processes=1,
    )
