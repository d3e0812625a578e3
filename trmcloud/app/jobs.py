"""From a run and its plan to what a pod is asked for: lease, jobs, folders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from trmcloud.app.staging import WEIGHTS_DIR, tokenizer_item
from trmcloud.app.world import World
from trmcloud.core import pod_contract as contract
from trmcloud.core.data_source import DataSource, growing_key
from trmcloud.core.datasets import parse_data_set
from trmcloud.core.errors import DataError
from trmcloud.core.hardware import GPUS, LOCAL
from trmcloud.core.lease import make_lease, phases_to_run
from trmcloud.core.memory import checkpoint_bytes
from trmcloud.core.plan import Candidate, Plan
from trmcloud.core.run_state import Generation, RunState
from trmcloud.core.safekeeping import is_held
from trmcloud.pod.files import write_atomic
from trmcloud.ports.bucket import CacheRequest
from trmcloud.ports.compute import MIN_CUDA, PodRequest

LAUNCH_NAME = "launch.json"
SEND_WITHIN_S = 120.0
"""A create that was decided on longer ago is not sent: its controller slept in between, and
another one may have found out by now that there is no pod."""
LEAST_DISK_GB = 30


@dataclass(frozen=True)
class LaunchData:
    """A run's training data: a folder that is ready here, or what its machine is to make itself.

    ``folder`` is where it lies or grows on this machine; empty where it is made elsewhere.
    """

    folder: str = ""
    source: DataSource | None = None
    """What is made there; None: ``folder`` is brought."""
    hosts: str = ""
    """``TRMCLOUD_DATA_HOSTS`` of the launch."""

    def to_json(self) -> dict[str, Any] | None:
        """What a launch note says of data that is made there; None of data that is brought."""
        if self.source is None:
            return None
        data_set = self.source.data_set
        return {
            "source": self.source.name,
            "data_set": data_set.to_json() if data_set is not None else {},
            "hosts": self.hosts,
        }

    @classmethod
    def of_note(cls, note: Mapping[str, Any]) -> LaunchData:
        """What a launch note says; notes of earlier versions know brought data alone."""
        made = note.get("data")
        if not made:
            return cls(str(note["data_dir"]))
        data_set = parse_data_set(made["data_set"], made["source"]) if made["data_set"] else None
        return cls(str(note["data_dir"]), DataSource(made["source"], data_set), made["hosts"])


def write_launch_note(home: Path, run_id: str, *, data: LaunchData, initial_weights: str) -> None:
    """What a controller after a crash must know that is not in the plan: where the data lies."""
    folder = home / contract.RUNS_DIR / run_id
    folder.mkdir(parents=True, exist_ok=True)
    note: dict[str, Any] = {"data_dir": data.folder, "initial_weights": initial_weights}
    if made := data.to_json():
        note["data"] = made
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
    note = _note(world, run)
    first = candidate.phases[0].name if candidate.phases else ""
    rented = candidate.provider != LOCAL
    weights = note["initial_weights"]
    runs_dir = world.home / contract.RUNS_DIR
    if rented:
        runs_dir = Path(contract.POD_ROOT) / contract.RUNS_DIR
        weights = world.folder_on_pod(WEIGHTS_DIR, Path(weights)) if weights else ""
    data = LaunchData.of_note(note)
    data_dir, making = _data(world, run, candidate, data, weights)
    room_gb = disk_gb(candidate, data)
    jobs = tuple(
        contract.PhaseJob(
            run_id=run.run_id,
            phase=phase.name,
            settings=phase.settings.to_json(),
            data_dir=data_dir,
            out_dir=str(runs_dir / run.run_id / phase.name),
            processes=candidate.gpus,
            initial_weights=weights if phase.name == first else "",
            data=making,
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
        disk_gb=room_gb,
        volume_gb=_volume_gb(candidate, room_gb) if plan.spec.volume else 0,
        community=plan.spec.community,
        check=pod_check(candidate) if rented else {},
        send_by=decided_at + SEND_WITHIN_S,
        nodes=candidate.nodes,
        spot=candidate.spot,
    )


def tokens_of(world: World, run: RunState, candidate: Candidate) -> CacheRequest | None:
    """What a rented machine is to keep in the run's bucket of the tokens it makes; None where it
    makes none, or none that are worth keeping."""
    source = LaunchData.of_note(_note(world, run)).source
    data_set = source.data_set if source is not None else None
    if source is None or data_set is None or not candidate.phases:
        return None
    if not data_set.is_remote or data_set.layout == "gpt2":
        return None  # a formula is quicker, and token files lie at their host as they are
    settings = candidate.phases[0].settings
    return CacheRequest(
        key=growing_key(source, settings),
        folder=f"{contract.POD_ROOT}/{contract.DATA_CACHE_DIR}",
        shards=data_set.shards_for(max(phase.tokens for phase in candidate.phases)),
    )


def _note(world: World, run: RunState) -> Mapping[str, Any]:
    if world.read_note is not None:
        return world.read_note(run.run_id)
    return read_launch_note(world.home, run.run_id)


def _data(
    world: World, run: RunState, candidate: Candidate, data: LaunchData, weights: str
) -> tuple[str, contract.DataJob | None]:
    """Where the trainer finds its data, and what is to be made there, if anything.

    ``weights`` is the folder, there, that the first phase starts from, if any.
    """
    rented = candidate.provider != LOCAL
    if data.source is None or not candidate.phases:
        # A plan without phases trains on nothing; the empty path would be the working folder.
        if rented and data.folder:
            return world.folder_on_pod(contract.DATA_DIR, Path(data.folder)), None
        return data.folder, None
    root = Path(contract.POD_ROOT) if rented else world.home
    tokenizer = f"{weights}/{contract.DATA_TOKENIZER_NAME}" if weights else ""
    if rented and not weights:
        # What was trained so far knows its ids alone, and this machine may not have made them.
        item = tokenizer_item(world.files, run)
        tokenizer = f"{item.remote}/{contract.DATA_TOKENIZER_NAME}" if item is not None else ""
    data_set = data.source.data_set
    making = contract.DataJob(
        source=data.source.name,
        tokens=max(phase.tokens for phase in candidate.phases),
        data_set=data_set.to_json() if data_set is not None else {},
        tokenizer=tokenizer,
        hosts=data.hosts,
    )
    settings = candidate.phases[0].settings
    more = [tokenizer] if tokenizer else []
    folder = root / contract.DATA_DIR / growing_key(data.source, settings, *more)
    return str(folder), making


def disk_gb(candidate: Candidate, data: LaunchData) -> int:
    """Room for what is kept of each phase, the latest and the one being written, twice over, and
    for the data that is made there."""
    kept = sum(
        checkpoint_bytes(phase.settings) * (phase.settings.keep_best + 2)
        for phase in candidate.phases
    )
    made = 0
    if data.source is not None and data.source.data_set is not None and candidate.phases:
        made = data.source.data_set.disk_bytes(max(phase.tokens for phase in candidate.phases))
    return LEAST_DISK_GB + ceil(2 * kept / 1e9) + ceil(made / 1e9)


def _volume_gb(candidate: Candidate, room_gb: int) -> int:
    """No more than its rent is reserved for."""
    return min(room_gb, candidate.volume_gb) if candidate.volume_gb else room_gb


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
