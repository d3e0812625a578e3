"""Sources of a run's checkpoints: this machine, its bucket, its pod, and a network volume."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from trmcloud.core.catalog.offers import DAY_S
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.bucket import free_slot
from trmcloud.core.contract.bucket_layout import slots_of
from trmcloud.core.contract.manifest import (
    CheckpointFile,
    CheckpointManifest,
    Pruning,
    is_before_cooldown,
)
from trmcloud.core.contract.pod_contract import CheckpointRef
from trmcloud.core.control.run_state import Generation, RunState, State
from trmcloud.core.errors import CheckpointError, ConflictError, LinkError, TrmcloudError
from trmcloud.core.money import cost
from trmcloud.core.spec.plan import Plan
from trmcloud.core.storage import price_per_hour
from trmcloud.core.values import Value
from trmcloud.io.files import read_small, write_atomic
from trmcloud.operations.checkpoints.bucket_grants import granted_file_bytes, storage_rent
from trmcloud.operations.context import Context
from trmcloud.operations.pod_request import LaunchData, disk_gb
from trmcloud.operations.run_queries import is_rented, reported_uploads
from trmcloud.ports.bucket import BucketCheckpoints, StoredCheckpoint
from trmcloud.ports.machine import Progress

# Checkpoints that lie on a run's rented pod while it lives: which of them lack here, what keeping
# them costs.

_UP = (State.BOOTING, State.RUNNING, State.ENDING)


def live_pod(run: RunState) -> Generation | None:
    """The run's rented pod, where files may still be had from it."""
    generation = run.generation
    up = run.state in _UP and is_rented(run)
    if not up or generation is None or not generation.open or generation.absence is not None:
        return None
    return generation


def missing_here(
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


# Sources of a run's checkpoints: this machine, its bucket, its pod with its disk or network volume.
#
# ``fetch-best`` and ``prune`` ask each of them the same questions in the same order. A volume is
# reached through a pod alone: while the run's own lives, or one that is rented for it.


class Listing(Value):
    """A source's checkpoints: ``whole`` ones, and (where, why) of each ``half`` one.

    ``trouble``: it could not be asked; ``missed`` tells that to a user who continues without it.
    """

    whole: tuple[CheckpointManifest, ...] = ()
    half: tuple[tuple[str, str], ...] = ()
    trouble: TrmcloudError | None = None
    missed: str = ""


class CheckpointSource(ABC):
    """One place of a run's checkpoints. ``name`` is its key in JSON, '' of this machine; ``place``
    its words behind a checkpoint. ``durable``: it outlives the run's pod."""

    name = place = ""
    durable = True

    def __init__(self, context: Context, run: RunState) -> None:
        self._context, self._run = context, run
        self._listing: Listing | None = None

    def list(self) -> Listing:
        """Return its checkpoints; it is asked once."""
        self._listing = self._listing or self._ask()
        return self._listing

    @abstractmethod
    def _ask(self) -> Listing: ...

    @abstractmethod
    def fetch(
        self, manifest: CheckpointManifest, names: Sequence[str], into: str, progress: Progress
    ) -> None:
        """Bring files of a checkpoint into a folder, resuming what is there, every hash verified;
        the manifest is the caller's to write.

        Raises:
            CheckpointError: a file is missing, or not what its hash says. LinkError: out of reach.
            DoesNotFit: too little room here.
        """

    @abstractmethod
    def prune(self, pruning: Pruning) -> None:
        """
        Raises:
            LinkError: out of reach. ConflictError: the run is another ledger's there.
        """

    def dropped(self, pruning: Pruning) -> tuple[CheckpointManifest, ...]:
        """Of what stays, those that lose the optimizer's state by ``prune``."""
        return ()

    def freed_bytes(self, pruning: Pruning) -> int:
        return pruning.freed_bytes

    def daily_cost(self, pruning: Pruning) -> str:
        """Describe the price by the day of the checkpoints that stay; empty where it costs
        nothing."""
        return ""


def sources_of(context: Context, run: RunState) -> tuple[CheckpointSource, ...]:
    """The run's sources in the order in which they are asked: reading from this machine costs
    nothing, a bucket's line is faster than a pod's."""
    found: list[CheckpointSource] = [LocalSource(context, run)]
    if run.bucket:
        found.append(BucketSource(context, run))
    if (generation := live_pod(run)) is not None:
        found.append(PodSource(context, run, generation))
    return tuple(found)


class LocalSource(CheckpointSource):
    """The home of the run's driver."""

    def _ask(self) -> Listing:
        files, run_id = self._context.files, self._run.run_id
        return Listing(tuple(files.manifests(run_id)), tuple(files.damaged(run_id)))

    def fetch(
        self, manifest: CheckpointManifest, names: Sequence[str], into: str, progress: Progress
    ) -> None:
        self._context.files.fetch(manifest, names, into, progress)

    def prune(self, pruning: Pruning) -> None:
        for manifest in pruning.checkpoints:
            self._context.files.delete(manifest)


class PodSource(CheckpointSource):
    """The run's rented pod while it lives: its own disk, or the network volume that it has."""

    name, place, durable = "pod", " on its pod", False

    def __init__(self, context: Context, run: RunState, generation: Generation) -> None:
        super().__init__(context, run)
        self._generation = generation
        self._link = context.machines.links[generation.provider]

    def _ask(self) -> Listing:
        pod_name, run_id = self._generation.pod_name, self._run.run_id
        report = self._link.report(pod_name)
        if report is None:
            trouble = LinkError(
                f"the pod of {run_id} does not answer now", next_step="try again later"
            )
            missed = "its pod does not answer now; these are the checkpoints on this machine"
            return Listing(trouble=trouble, missed=missed)
        found = []
        for kept in report.kept:
            with suppress(CheckpointError):  # pruned there meanwhile
                found.append(self._link.manifest(pod_name, run_id, kept))
        return Listing(tuple(found))

    def fetch(
        self, manifest: CheckpointManifest, names: Sequence[str], into: str, progress: Progress
    ) -> None:
        pod_name = self._generation.pod_name
        self._link.fetch(pod_name, self._run.run_id, manifest, names, into, progress)

    def prune(self, pruning: Pruning) -> None:
        for manifest in pruning.checkpoints:
            self._link.delete(self._generation.pod_name, self._run.run_id, manifest)

    def daily_cost(self, pruning: Pruning) -> str:
        size_mb = sum(manifest.size_bytes for manifest in pruning.kept) / 1e6
        plan = self._run.plan
        if not plan.spec.volume:
            return f"{size_mb:,.1f} MB stay on the pod's disk, and are deleted with the pod"
        data = LaunchData.of_note(self._context.notes.launch(self._run.run_id))
        size_gb = disk_gb(plan.candidate(self._generation.candidate_id), data)
        per_day = cost(price_per_hour(self._generation.provider, "kept", size_gb), DAY_S)
        return (
            f"{size_mb:,.1f} MB stay on its network volume of {size_gb} GB: it costs {per_day} a "
            "day until it is deleted"
        )


class BucketSource(CheckpointSource):
    """The run's bucket, with or without a pod."""

    name = "bucket"

    def __init__(self, context: Context, run: RunState) -> None:
        super().__init__(context, run)
        self.place = f" in {run.bucket}"
        self.shelf = BucketCheckpoints()

    def _ask(self) -> Listing:
        try:
            bucket = self._context.buckets.at(self._run.bucket)
            self.shelf = bucket.checkpoints(self._run.run_id, granted_file_bytes(self._run.plan))
        except TrmcloudError as error:
            return Listing(
                trouble=error, missed=f"{error}; these are the checkpoints available without it"
            )
        return Listing(tuple(one.manifest for one in self.shelf.whole), self.shelf.half)

    def _stored(self, manifest: CheckpointManifest) -> StoredCheckpoint | None:
        self.list()
        return _stored_in(self.shelf, manifest)

    def fetch(
        self, manifest: CheckpointManifest, names: Sequence[str], into: str, progress: Progress
    ) -> None:
        stored = self._stored(manifest)
        if stored is None:
            raise CheckpointError(f"{manifest.label} is not in {self._run.bucket}")
        self._context.buckets.at(self._run.bucket).fetch(stored, names, Path(into), progress)

    def dropped(self, pruning: Pruning) -> tuple[CheckpointManifest, ...]:
        latest: dict[str, CheckpointManifest] = {}
        for manifest in sorted(pruning.kept, key=lambda manifest: manifest.step, reverse=True):
            latest.setdefault(manifest.phase, manifest)
        return tuple(
            manifest
            for manifest in pruning.kept
            if manifest is not latest[manifest.phase]
            and not is_before_cooldown(manifest, latest[manifest.phase])
            and _optimizer_files(manifest)
        )

    def freed_bytes(self, pruning: Pruning) -> int:
        dropped = self.dropped(pruning)
        freed = sum(file.size_bytes for each in dropped for file in _optimizer_files(each))
        return pruning.freed_bytes + freed

    def prune(self, pruning: Pruning) -> None:
        if self._run.live:
            raise ConflictError(
                f"{self._run.run_id} is running, and uses its slots again automatically"
            )
        bucket = self._context.buckets.at(self._run.bucket)
        bucket.claim(self._run.run_id, self._context.ledger.ledger_id)
        for manifest in self.dropped(pruning):
            if (stored := self._stored(manifest)) is not None:
                bucket.delete(stored, [file.name for file in _optimizer_files(manifest)])
        for manifest in pruning.checkpoints:
            if (stored := self._stored(manifest)) is not None:
                bucket.delete(stored)
        _note_in_bucket(self._context, self._run, pruning.kept)

    def daily_cost(self, pruning: Pruning) -> str:
        size = sum(manifest.size_bytes for manifest in pruning.kept)
        size -= self.freed_bytes(pruning) - pruning.freed_bytes
        return (
            f"{size / 1e6:,.1f} MB stay in {self._run.bucket}: they cost "
            f"{storage_rent(size, 24.0)} a day"
        )


def _stored_in(shelf: BucketCheckpoints, manifest: CheckpointManifest) -> StoredCheckpoint | None:
    wanted = (manifest.label, manifest.sha256)
    return next((s for s in shelf.whole if (s.manifest.label, s.manifest.sha256) == wanted), None)


def _optimizer_files(manifest: CheckpointManifest) -> list[CheckpointFile]:
    return [file for file in manifest.files if file.kind == "optimizer"]


# Checkpoints in a run's bucket, as far as this home knows without a question.

_NOTE_NAME = "bucket.json"


def known_in_bucket(context: Context, run: RunState) -> tuple[CheckpointRef, ...]:
    """Return the checkpoints in the bucket, as far as this home knows: while the run lives by its
    agents' reports, then by the bucket's list, which is asked once."""
    told = reported_uploads(context, run)
    if not run.bucket or run.live or not any(g.up_at is not None for g in run.generations):
        return told
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        note = json.loads(read_small(_note_path(context, run)) or "null")
        if note["generations"] == len(run.generations):
            return tuple(CheckpointRef(**row) for row in note["kept"])
    found = BucketSource(context, run).list()
    if found.trouble is not None:
        return told
    return _note_in_bucket(context, run, found.whole)


def _note_in_bucket(
    context: Context, run: RunState, manifests: Sequence[CheckpointManifest]
) -> tuple[CheckpointRef, ...]:
    kept = tuple(manifest.ref for manifest in manifests)
    note = {"generations": len(run.generations), "kept": [asdict(one) for one in kept]}
    with suppress(OSError):
        write_atomic(_note_path(context, run), json.dumps(note))
    return kept


def _note_path(context: Context, run: RunState) -> Path:
    return context.home / contract.RUNS_DIR / run.run_id / _NOTE_NAME


def pull(
    context: Context,
    run: RunState,
    plan: Plan,
    generation: Generation,
    kept: CheckpointRef,
    progress: Progress,
) -> None:
    """A checkpoint from the run's pod; on to a bucket that pods cannot write to themselves."""
    link, pod_name = context.machines.links[generation.provider], generation.pod_name
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
    bucket = context.buckets.at(plan.spec.bucket)
    bucket.claim(run.run_id, context.ledger.ledger_id)
    shelf = bucket.checkpoints(run.run_id)
    there = _stored_in(shelf, manifest)
    if there is not None:
        if there.manifest.val_bpb is None and manifest.val_bpb is not None:
            bucket.add_metric(there, manifest.val_bpb, manifest.step_losses)
        return
    phases = {p.name: p for p in plan.candidate(generation.candidate_id).phases}
    keep_best = phases[manifest.phase].settings.keep_best
    held: dict[str, CheckpointRef | None] = dict.fromkeys(slots_of(generation.number, keep_best))
    for stored in shelf.whole:
        slot = stored.at.rpartition("/")[2]
        m = stored.manifest
        if m.phase == manifest.phase and slot in held:
            held[slot] = m.ref
    slot = free_slot(held, keep_best)
    folder = Path(context.files.folder_of(manifest))
    bucket.store(folder, manifest, slot, progress)
