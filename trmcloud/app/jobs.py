"""From a run and its plan to what a pod is asked for: lease, jobs, folders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import Any

from trmcloud.app.staging import DATA_DIR, WEIGHTS_DIR
from trmcloud.app.world import World
from trmcloud.core import pod_contract as contract
from trmcloud.core.errors import DataError
from trmcloud.core.hardware import GPUS, LOCAL
from trmcloud.core.lease import make_lease, phases_to_run
from trmcloud.core.memory import checkpoint_bytes
from trmcloud.core.plan import Candidate, Plan
from trmcloud.core.run_state import Generation, RunState
from trmcloud.core.safekeeping import is_held
from trmcloud.pod.files import write_atomic
from trmcloud.ports.compute import MIN_CUDA, PodRequest

LAUNCH_NAME = "launch.json"
SEND_WITHIN_S = 120.0
"""A create that was decided on longer ago is not sent: its controller slept in between, and
another one may have found out by now that there is no pod."""
LEAST_DISK_GB = 30


def write_launch_note(home: Path, run_id: str, *, data_dir: str, initial_weights: str) -> None:
    """What a controller after a crash must know that is not in the plan: where the data lies."""
    folder = home / contract.RUNS_DIR / run_id
    folder.mkdir(parents=True, exist_ok=True)
    note = {"data_dir": data_dir, "initial_weights": initial_weights}
    write_atomic(folder / LAUNCH_NAME, json.dumps(note))


def read_launch_note(home: Path, run_id: str) -> dict[str, Any]:
    path = home / contract.RUNS_DIR / run_id / LAUNCH_NAME
    try:
        note = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        note = None
    if not isinstance(note, dict) or not {"data_dir", "initial_weights"} <= set(note):
        raise DataError(
            f"{run_id}'s own note is missing or damaged: where its data lies is not known",
            where=str(path),
            next_step="launch a new run; --from starts it from these weights",
        )
    return note


def pod_request(
    world: World,
    run: RunState,
    plan: Plan,
    generation: Generation,
    epoch: int,
    decided_at: float,
) -> PodRequest:
    """All that a provider and the pod's agent need for this generation.

    ``decided_at`` (epoch s) is when the create was decided on: until ``SEND_WITHIN_S`` later it may
    be sent, and from then on counts what is granted.
    """
    candidate = plan.candidate(generation.candidate_id)
    note: Mapping[str, Any]
    if world.read_note is not None:
        note = world.read_note(run.run_id)
    else:
        note = read_launch_note(world.home, run.run_id)
    first = candidate.phases[0].name if candidate.phases else ""
    rented = candidate.provider != LOCAL
    data_dir, weights = note["data_dir"], note["initial_weights"]
    runs_dir = world.home / contract.RUNS_DIR
    if rented:
        runs_dir = Path(contract.POD_ROOT) / contract.RUNS_DIR
        # A plan without phases trains on nothing; the empty path would be the working folder.
        data_dir = world.folder_on_pod(DATA_DIR, Path(data_dir)) if data_dir else ""
        weights = world.folder_on_pod(WEIGHTS_DIR, Path(weights)) if weights else ""
    jobs = tuple(
        contract.PhaseJob(
            run_id=run.run_id,
            phase=phase.name,
            settings=phase.settings.to_json(),
            data_dir=data_dir,
            out_dir=str(runs_dir / run.run_id / phase.name),
            processes=candidate.gpus,
            initial_weights=weights if phase.name == first else "",
        )
        for phase in phases_to_run(run, candidate)
    )
    lease = make_lease(
        run,
        candidate,
        generation,
        epoch=epoch,
        granted_at=decided_at,
        strict_gate=plan.spec.strict_gate,
        # One without phases is rented to be looked at: it stays until its hard stop.
        hold=is_held(run, plan, generation) or not candidate.phases,
        uploads=plan.spec.pod_uploads and bool(candidate.phases) and run.errand is None,
    )
    return PodRequest(
        name=generation.pod_name,
        sku=candidate.sku,
        gpus=candidate.gpus,
        rate=candidate.reserved_rate,
        lease=lease,
        jobs=jobs,
        region=candidate.region,
        disk_gb=disk_gb(candidate),
        volume_gb=disk_gb(candidate) if plan.spec.volume else 0,
        community=plan.spec.community,
        check=pod_check(candidate) if rented else {},
        send_by=decided_at + SEND_WITHIN_S,
        nodes=candidate.nodes,
        spot=candidate.spot,
    )


def disk_gb(candidate: Candidate) -> int:
    """Room for what is kept of each phase, the latest and the one being written, twice over."""
    kept = sum(
        checkpoint_bytes(phase.settings) * (phase.settings.keep_best + 2)
        for phase in candidate.phases
    )
    return LEAST_DISK_GB + ceil(2 * kept / 1e9)


def pod_check(candidate: Candidate) -> dict[str, Any]:
    """What the agent must find before it trains: see ``pod.hardware``."""
    check: dict[str, Any] = {"count": candidate.gpus, "idle": True, "min_cuda": MIN_CUDA}
    gpu = GPUS.get(candidate.sku)
    if gpu is None:
        return check
    return {**check, "gpu": _family(candidate.sku), "memory_gb": gpu.memory_gb}


def _family(sku: str) -> str:
    """``RTX4090`` → ``*RTX*4090*``, ``A100-80GB-SXM`` → ``*A100*``: how a driver names its form
    and memory differs."""
    family = sku.partition("-")[0]
    return f"*{family.replace('RTX', 'RTX*')}*"
