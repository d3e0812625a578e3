"""A lease of a pod, and a job of it that trains almost nothing."""

from __future__ import annotations

from pathlib import Path

from tests.settings import settings_of
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.trainer_contract import PhaseJob

HARD_STOP_S = 600.0


def pod_name_until(hard_stop_at: float) -> str:
    return str(contract.PodName("0badcafe", "r1", 1, int(hard_stop_at)))


def a_lease(granted_at: float, hard_stop_s: float = HARD_STOP_S, epoch: int = 1) -> contract.Lease:
    hard_stop_at = granted_at + hard_stop_s
    return contract.Lease(
        run_id="r1",
        pod_name=pod_name_until(hard_stop_at),
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
    settings = settings_of(
        "trm",
        recipe="t",
        depth=1,
        width=32,
        head_dim=16,
        supervision_steps=3,
        loops=1,
        vocab_size=300,
        sequence=16,
        validation_fraction=0.1,
        batch=2,
        steps=steps,
        matrix_lr=5e-3,
        embedding_lr=5e-2,
        warmup_steps=3,
        dtype="float32",
        compile=False,
        log_every=1000,
        eval_every=1000,
        eval_tokens=128,
        save_every=1000,
    )
    return PhaseJob(
        run_id=lease.run_id,
        phase="fast",
        settings=settings.to_json(),
        data_dir=str(root / "data"),
        out_dir=str(root / contract.RUNS_DIR / lease.run_id / "fast"),
        processes=1,
    )
