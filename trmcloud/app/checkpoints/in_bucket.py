"""Checkpoints that lie in a run's bucket, whether or not its pod is still there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from trmcloud.app.checkpoints.bucket_limits import granted_file_bytes, rent
from trmcloud.app.context import Context, bucket_at
from trmcloud.app.run_queries import as_told, told_uploaded
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.bucket import free_slot
from trmcloud.core.contract.bucket_layout import slots_of
from trmcloud.core.contract.manifest import CheckpointManifest, Pruning, is_before_cooldown
from trmcloud.core.contract.pod_contract import Kept
from trmcloud.core.control.run_state import Generation, RunState
from trmcloud.core.errors import ConflictError, TrmcloudError
from trmcloud.core.spec.plan import Plan
from trmcloud.core.values import dataclass
from trmcloud.io.files import read_small, write_atomic
from trmcloud.ports.bucket import Shelf, Stored
from trmcloud.ports.work import Progress

NOTHING = Shelf()
_NOTE_NAME = "bucket.json"


@dataclass(frozen=True)
class InBucket:
    """``place`` is '' where the run has no bucket; ``trouble``: it could not be asked."""

    place: str = ""
    shelf: Shelf = NOTHING
    trouble: TrmcloudError | None = None

    def stored(self, manifest: CheckpointManifest) -> Stored | None:
        wanted = (manifest.label, manifest.sha256)
        for one in self.shelf.whole:
            if (one.manifest.label, one.manifest.sha256) == wanted:
                return one
        return None


def in_bucket(context: Context, run: RunState) -> InBucket:
    """What the run's bucket holds, asked now."""
    place = run.bucket
    if not place:
        return InBucket()
    try:
        most = granted_file_bytes(run.plan)
        return InBucket(place, bucket_at(context, place).checkpoints(run.run_id, most))
    except TrmcloudError as error:
        return InBucket(place, trouble=error)


def known_there(context: Context, run: RunState) -> tuple[CheckpointManifest, ...]:
    """What lies in the bucket, as far as this home knows: while the run lives by its agents' own
    words, then by the bucket's, which is asked once."""
    told = told_uploaded(context, run)
    if not run.bucket or run.live or not any(g.up_at is not None for g in run.generations):
        return told
    path = context.home / contract.RUNS_DIR / run.run_id / _NOTE_NAME
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        note = json.loads(read_small(path) or "null")
        if note["generations"] == len(run.generations):
            return tuple(as_told(run.run_id, Kept(**kept)) for kept in note["kept"])
    found = in_bucket(context, run)
    if found.trouble is not None:
        return told
    return _note_down(path, run, [one.manifest for one in found.shelf.whole])


def _note_down(
    path: Path, run: RunState, manifests: Sequence[CheckpointManifest]
) -> tuple[CheckpointManifest, ...]:
    kept = [manifest.kept for manifest in manifests]
    note = {"generations": len(run.generations), "kept": [asdict(one) for one in kept]}
    with suppress(OSError):
        write_atomic(path, json.dumps(note))
    return tuple(as_told(run.run_id, one) for one in kept)


# -- pruning ----------------------------------------------------------------------------------
def optimizers_to_drop(pruning: Pruning) -> tuple[CheckpointManifest, ...]:
    """Of what stays, those that nothing goes on from: their optimizer's state may go first."""
    latest: dict[str, CheckpointManifest] = {}
    for manifest in pruning.kept:
        known = latest.get(manifest.phase)
        if known is None or manifest.step > known.step:
            latest[manifest.phase] = manifest
    return tuple(
        manifest
        for manifest in pruning.kept
        if manifest is not latest[manifest.phase]
        and not is_before_cooldown(manifest, latest[manifest.phase])
        and _optimizer_names(manifest)
    )


def freed_bytes(pruning: Pruning) -> int:
    dropped = (
        file.size_bytes
        for manifest in optimizers_to_drop(pruning)
        for file in manifest.files
        if file.kind == "optimizer"
    )
    return pruning.freed_bytes + sum(dropped)


def prune_there(context: Context, run: RunState, found: InBucket, pruning: Pruning) -> None:
    """
    Raises:
        ConflictError: the run lives, or is somebody else's there.
    """
    if run.live:
        raise ConflictError(f"{run.run_id} is running, and uses its slots again by itself")
    bucket = bucket_at(context, found.place)
    bucket.claim(run.run_id, context.ledger.ledger_id)
    for manifest in optimizers_to_drop(pruning):
        stored = found.stored(manifest)
        if stored is not None:
            bucket.delete(stored, _optimizer_names(manifest))
    for manifest in pruning.checkpoints:
        stored = found.stored(manifest)
        if stored is not None:
            bucket.delete(stored)
    path = context.home / contract.RUNS_DIR / run.run_id / _NOTE_NAME
    _note_down(path, run, pruning.kept)


def what_keeping_costs(found: InBucket, pruning: Pruning) -> str:
    size = sum(manifest.size_bytes for manifest in pruning.kept)
    size -= freed_bytes(pruning) - pruning.freed_bytes
    return f"{size / 1e6:,.1f} MB stay in {found.place}: {rent(size, 24.0)} a day"


def _optimizer_names(manifest: CheckpointManifest) -> tuple[str, ...]:
    return tuple(file.name for file in manifest.files if file.kind == "optimizer")


# -- bringing here ----------------------------------------------------------------------------
def pull(
    context: Context,
    run: RunState,
    plan: Plan,
    generation: Generation,
    kept: Kept,
    progress: Progress,
) -> None:
    """A checkpoint from the run's pod; on to a bucket that pods cannot write to themselves."""
    link, pod_name = context.links[generation.provider], generation.pod_name
    manifest = link.manifest(pod_name, run.run_id, kept)
    names = [file.name for file in manifest.files]
    link.pull(pod_name, run.run_id, manifest, names, progress)
    if plan.spec.bucket_relayed:
        _relay(context, run, plan, generation, manifest, progress)


def _relay(
    context: Context,
    run: RunState,
    plan: Plan,
    generation: Generation,
    manifest: CheckpointManifest,
    progress: Progress,
) -> None:
    bucket = bucket_at(context, plan.spec.bucket)
    bucket.claim(run.run_id, context.ledger.ledger_id)
    shelf = bucket.checkpoints(run.run_id)
    there = InBucket(plan.spec.bucket, shelf).stored(manifest)
    if there is not None:
        if there.manifest.val_bpb is None and manifest.val_bpb is not None:
            bucket.add_metric(there, manifest.val_bpb, manifest.step_losses)
        return
    phases = {p.name: p for p in plan.candidate(generation.candidate_id).phases}
    keep_best = phases[manifest.phase].settings.keep_best
    held: dict[str, Kept | None] = dict.fromkeys(slots_of(generation.number, keep_best))
    for stored in shelf.whole:
        slot = stored.at.rpartition("/")[2]
        m = stored.manifest
        if m.phase == manifest.phase and slot in held:
            held[slot] = m.kept
    slot = free_slot(held, keep_best)
    folder = Path(context.files.folder_of(manifest))
    bucket.store(folder, manifest, slot, progress)
