"""From a run and its plan to what a pod is asked for: lease, jobs, folders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trmcloud.app.world import World
from trmcloud.core import pod_contract as contract
from trmcloud.core.errors import DataError
from trmcloud.core.lease import make_lease, phases_to_run
from trmcloud.core.plan import Plan
from trmcloud.core.run_state import Generation, RunState
from trmcloud.core.safekeeping import is_pulled
from trmcloud.pod.files import write_atomic
from trmcloud.ports import PodRequest

LAUNCH_NAME = "launch.json"


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
    now: float,
) -> PodRequest:
    """All that a provider and the pod's agent need for this generation."""
    candidate = plan.candidate(generation.candidate_id)
    note: Mapping[str, Any]
    if world.read_note is not None:
        note = world.read_note(run.run_id)
    else:
        note = read_launch_note(world.home, run.run_id)
    first = candidate.phases[0].name
    jobs = tuple(
        contract.PhaseJob(
            run_id=run.run_id,
            phase=phase.name,
            settings=phase.settings.to_json(),
            data_dir=note["data_dir"],
            out_dir=str(world.home / contract.RUNS_DIR / run.run_id / phase.name),
            processes=candidate.gpus,
            initial_weights=note["initial_weights"] if phase.name == first else "",
        )
        for phase in phases_to_run(run, candidate)
    )
    lease = make_lease(
        run,
        candidate,
        generation,
        epoch=epoch,
        granted_at=now,
        strict_gate=plan.spec.strict_gate,
        hold=is_pulled(plan, generation) and not run.detached,
    )
    return PodRequest(
        name=generation.pod_name,
        sku=candidate.sku,
        gpus=candidate.gpus,
        rate=candidate.rate,
        lease=lease,
        jobs=jobs,
    )
