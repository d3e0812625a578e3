"""Checkpoints that lie on a run's rented pod while it lives: which of them lack here, what keeping
them costs."""

from __future__ import annotations

from collections.abc import Sequence

from trmcloud.app.context import Context
from trmcloud.app.pod_request import LaunchData, disk_gb, read_launch_note
from trmcloud.app.run_queries import is_rented
from trmcloud.core.catalog.offers import DAY_S
from trmcloud.core.contract.manifest import CheckpointManifest, Pruning
from trmcloud.core.control.run_state import Generation, RunState, State
from trmcloud.core.money import cost
from trmcloud.core.storage import price_per_hour

_UP = (State.BOOTING, State.RUNNING, State.ENDING)


def live_pod(run: RunState) -> Generation | None:
    """The run's rented pod, where files may still be had from it."""
    generation = run.generation
    up = run.state in _UP and is_rented(run)
    if not up or generation is None or not generation.open or generation.missed_at is not None:
        return None
    return generation


def lacking_here(
    context: Context,
    run: RunState,
    there: Sequence[CheckpointManifest],
    *,
    weights_only: bool = False,
) -> tuple[CheckpointManifest, ...]:
    """Those of ``there`` of which not every wanted file is on this machine."""
    here: dict[tuple[str, str], set[str]] = {}
    for manifest in context.files.manifests(run.run_id):
        names = here.setdefault((manifest.label, manifest.sha256), set())
        names.update(file.name for file in manifest.files)
    return tuple(
        manifest
        for manifest in there
        if not wanted_names(manifest, weights_only=weights_only)
        <= here.get((manifest.label, manifest.sha256), set())
    )


def wanted_names(manifest: CheckpointManifest, *, weights_only: bool) -> set[str]:
    return {f.name for f in manifest.files if not weights_only or f.kind != "optimizer"}


def what_keeping_costs(context: Context, run: RunState, pruning: Pruning) -> str:
    """What stays on the pod, and what that costs by the day; in words."""
    size_mb = sum(manifest.size_bytes for manifest in pruning.kept) / 1e6
    plan = run.plan
    generation = run.generation
    if generation is None or not plan.spec.volume:
        return f"{size_mb:,.1f} MB stay on the pod's own disk, which ends with it"
    data = LaunchData.of_note(read_launch_note(context.home, run.run_id))
    size_gb = disk_gb(plan.candidate(generation.candidate_id), data)
    per_day = cost(price_per_hour(generation.provider, "kept", size_gb), DAY_S)
    return (
        f"{size_mb:,.1f} MB stay on its network volume of {size_gb} GB: {per_day} a day, "
        "however much is on it, until it is deleted"
    )
