"""Where a run's checkpoints lie: this machine, its bucket, its pod with its disk or network volume.

Each is asked the same things in the same order, by ``fetch-best`` and ``prune``. A volume is
reached through a pod alone: while the run's own lives, or one that is rented for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from trmcloud.app.checkpoints import in_bucket, on_pod
from trmcloud.app.context import Context, bucket_at
from trmcloud.core.contract.manifest import CheckpointManifest, Pruning
from trmcloud.core.control.run_state import Generation, RunState
from trmcloud.core.errors import CheckpointError, LinkError, TrmcloudError
from trmcloud.core.values import dataclass
from trmcloud.ports.work import Progress


@dataclass(frozen=True)
class Listing:
    """What a source has: ``whole`` checkpoints, and (where, why) of what is ``half`` a one.

    ``trouble``: it could not be asked; ``missed`` says that to somebody who goes on without it.
    """

    whole: tuple[CheckpointManifest, ...] = ()
    half: tuple[tuple[str, str], ...] = ()
    trouble: TrmcloudError | None = None
    missed: str = ""


class CheckpointSource(Protocol):
    """One place. ``name`` is its key in JSON, '' of this machine; ``place`` its words behind a
    checkpoint. ``durable``: it outlives the run's pod."""

    @property
    def name(self) -> str: ...

    @property
    def place(self) -> str: ...

    @property
    def durable(self) -> bool: ...

    def list(self) -> Listing:
        """Asked once; the same answer from then on."""

    def fetch(
        self, manifest: CheckpointManifest, names: Sequence[str], into: str, progress: Progress
    ) -> None:
        """Bring files of a checkpoint into a folder, resuming what is there, every hash verified;
        the manifest is the caller's to write.

        Raises:
            CheckpointError: a file is missing, or not what its hash says. LinkError: out of reach.
            DoesNotFit: too little room here.
        """

    def dropped(self, pruning: Pruning) -> tuple[CheckpointManifest, ...]:
        """Of what stays, those that lose the optimizer's state by ``prune``."""

    def freed_bytes(self, pruning: Pruning) -> int: ...

    def prune(self, pruning: Pruning) -> None:
        """
        Raises:
            LinkError: out of reach. ConflictError: the run is somebody else's there.
        """

    def daily_cost(self, pruning: Pruning) -> str:
        """What stays, and what that costs by the day, in words; empty where it costs nothing."""


def sources_of(context: Context, run: RunState) -> tuple[CheckpointSource, ...]:
    """Those that the run has, in the order in which they are asked: what is here costs nothing, a
    bucket's line is faster than a pod's."""
    found: list[CheckpointSource] = [ThisMachine(context, run)]
    if run.bucket:
        found.append(ItsBucket(context, run))
    generation = on_pod.live_pod(run)
    if generation is not None:
        found.append(ItsPod(context, run, generation))
    return tuple(found)


class ThisMachine:
    """The home of whoever drove the run."""

    name, place, durable = "", "", True

    def __init__(self, context: Context, run: RunState) -> None:
        self._files, self._run = context.files, run

    def list(self) -> Listing:
        run_id = self._run.run_id
        return Listing(tuple(self._files.manifests(run_id)), tuple(self._files.damaged(run_id)))

    def fetch(
        self, manifest: CheckpointManifest, names: Sequence[str], into: str, progress: Progress
    ) -> None:
        self._files.fetch(manifest, names, into, progress)

    def dropped(self, pruning: Pruning) -> tuple[CheckpointManifest, ...]:
        return ()

    def freed_bytes(self, pruning: Pruning) -> int:
        return pruning.freed_bytes

    def prune(self, pruning: Pruning) -> None:
        for manifest in pruning.checkpoints:
            self._files.delete(manifest)

    def daily_cost(self, pruning: Pruning) -> str:
        return ""


class ItsPod:
    """The run's rented pod while it lives: its own disk, or the network volume that it has."""

    name, place, durable = "pod", " on its pod", False

    def __init__(self, context: Context, run: RunState, generation: Generation) -> None:
        self._context, self._run = context, run
        self._pod_name = generation.pod_name
        self._link = context.links[generation.provider]
        self._listing: Listing | None = None

    def list(self) -> Listing:
        self._listing = self._listing or self._ask()
        return self._listing

    def _ask(self) -> Listing:
        report = self._link.report(self._pod_name)
        if report is None:
            trouble = LinkError(
                f"{self._run.run_id}'s pod does not answer now", next_step="try again later"
            )
            missed = "its pod does not answer now; this is what is here of its checkpoints"
            return Listing(trouble=trouble, missed=missed)
        found = []
        for kept in report.kept:
            with suppress(CheckpointError):  # pruned there meanwhile
                found.append(self._link.manifest(self._pod_name, self._run.run_id, kept))
        return Listing(tuple(found))

    def fetch(
        self, manifest: CheckpointManifest, names: Sequence[str], into: str, progress: Progress
    ) -> None:
        self._link.fetch(self._pod_name, self._run.run_id, manifest, names, into, progress)

    def dropped(self, pruning: Pruning) -> tuple[CheckpointManifest, ...]:
        return ()

    def freed_bytes(self, pruning: Pruning) -> int:
        return pruning.freed_bytes

    def prune(self, pruning: Pruning) -> None:
        for manifest in pruning.checkpoints:
            self._link.delete(self._pod_name, self._run.run_id, manifest)

    def daily_cost(self, pruning: Pruning) -> str:
        return on_pod.what_keeping_costs(self._context, self._run, pruning)


class ItsBucket:
    """The run's bucket, with or without a pod."""

    name, durable = "bucket", True

    def __init__(self, context: Context, run: RunState) -> None:
        self._context, self._run = context, run
        self.place = f" in {run.bucket}"
        self._found: in_bucket.InBucket | None = None

    def _asked(self) -> in_bucket.InBucket:
        self._found = self._found or in_bucket.in_bucket(self._context, self._run)
        return self._found

    def list(self) -> Listing:
        found = self._asked()
        missed = f"{found.trouble}; this is what is to be had without it"
        return Listing(
            tuple(one.manifest for one in found.shelf.whole),
            found.shelf.half,
            found.trouble,
            missed if found.trouble is not None else "",
        )

    def fetch(
        self, manifest: CheckpointManifest, names: Sequence[str], into: str, progress: Progress
    ) -> None:
        stored = self._asked().stored(manifest)
        if stored is None:
            raise CheckpointError(f"{manifest.label} is not in {self._run.bucket}")
        bucket_at(self._context, self._run.bucket).fetch(stored, names, Path(into), progress)

    def dropped(self, pruning: Pruning) -> tuple[CheckpointManifest, ...]:
        return in_bucket.optimizers_to_drop(pruning)

    def freed_bytes(self, pruning: Pruning) -> int:
        return in_bucket.freed_bytes(pruning)

    def prune(self, pruning: Pruning) -> None:
        in_bucket.prune_there(self._context, self._run, self._asked(), pruning)

    def daily_cost(self, pruning: Pruning) -> str:
        return in_bucket.what_keeping_costs(self._asked(), pruning)
