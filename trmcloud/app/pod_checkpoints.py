"""Checkpoints that lie on a run's rented pod while it lives: seen, brought here, deleted there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from trmcloud.app.jobs import LaunchData, disk_gb, read_launch_note
from trmcloud.app.watching import is_rented
from trmcloud.app.world import World
from trmcloud.core.candidates import HOURS_PER_MONTH, VOLUME_MICROS_PER_GB_MONTH
from trmcloud.core.errors import CheckpointError, LinkError, NotSupported
from trmcloud.core.manifest import CheckpointManifest, Pruning
from trmcloud.core.money import Usd, cost
from trmcloud.core.offers import DAY_S
from trmcloud.core.plan import plan_from_json
from trmcloud.core.run_state import Generation, RunState, State
from trmcloud.ports.link import DeletingLink

_UP = (State.BOOTING, State.RUNNING, State.ENDING)


@dataclass(frozen=True)
class OnPod:
    """``manifests``: checkpoints that are whole there. ``silent``: the pod lives, as far as is
    known, and could not be asked."""

    manifests: tuple[CheckpointManifest, ...] = ()
    silent: bool = False


def live_pod(run: RunState) -> Generation | None:
    """The run's rented pod, where files may still be had from it."""
    generation = run.generation
    up = run.state in _UP and is_rented(run)
    if not up or generation is None or not generation.open or generation.missed_at is not None:
        return None
    return generation


def on_pod(world: World, run: RunState) -> OnPod:
    """What the run's pod has, asked now."""
    generation = live_pod(run)
    if generation is None:
        return OnPod()
    link = world.links[generation.provider]
    report = link.report(generation.pod_name)
    if report is None:
        return OnPod(silent=True)
    found = []
    for kept in report.kept:
        with suppress(CheckpointError):  # pruned there meanwhile
            found.append(link.manifest(generation.pod_name, run.run_id, kept))
    return OnPod(tuple(found))


def lacking_here(
    world: World, run: RunState, there: Sequence[CheckpointManifest], *, weights_only: bool = False
) -> tuple[CheckpointManifest, ...]:
    """Those of ``there`` of which not every wanted file is on this machine."""
    here: dict[tuple[str, str], set[str]] = {}
    for manifest in world.files.manifests(run.run_id):
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


def bring(
    world: World,
    run: RunState,
    manifest: CheckpointManifest,
    names: Collection[str],
    progress: Callable[[int, int], None],
) -> None:
    """Pull files of a checkpoint from the run's pod, every hash verified; what is here already is
    not asked for again.

    Raises:
        CheckpointError: the pod is gone, or a file is not what it should be. LinkError: it is out
            of reach. DoesNotFit: too little room here.
    """
    generation = live_pod(run)
    if generation is None:
        raise CheckpointError(f"{manifest.label} was on a pod that is gone")
    link = world.links[generation.provider]
    link.pull(generation.pod_name, run.run_id, manifest, sorted(names), progress)


def prune_there(world: World, run: RunState, pruning: Pruning) -> None:
    """
    Raises:
        LinkError: the pod is gone, or out of reach.
    """
    generation = live_pod(run)
    if generation is None:
        raise LinkError(f"{run.run_id}'s pod is gone")
    link = world.links[generation.provider]
    if not isinstance(link, DeletingLink):
        raise NotSupported(f"checkpoints on {generation.provider} cannot be deleted from here")
    for manifest in pruning.checkpoints:
        link.delete(generation.pod_name, run.run_id, manifest)


def what_keeping_costs(world: World, run: RunState, pruning: Pruning) -> str:
    """What stays on the pod, and what that costs by the day; in words."""
    size_mb = sum(manifest.size_bytes for manifest in pruning.kept) / 1e6
    plan = plan_from_json(run.plan)
    generation = run.generation
    if generation is None or not plan.spec.volume:
        return f"{size_mb:,.1f} MB stay on the pod's own disk, which ends with it"
    data = LaunchData.of_note(read_launch_note(world.home, run.run_id))
    size_gb = disk_gb(plan.candidate(generation.candidate_id), data)
    per_hour = Usd.from_micros(-(-size_gb * VOLUME_MICROS_PER_GB_MONTH // HOURS_PER_MONTH))
    per_day = cost(per_hour, DAY_S)
    return (
        f"{size_mb:,.1f} MB stay on its network volume of {size_gb} GB: {per_day} a day, "
        "however much is on it, until it is deleted"
    )
