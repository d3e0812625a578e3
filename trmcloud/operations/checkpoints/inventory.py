"""The checkpoints of a run that this home knows of, and pruning them."""

from __future__ import annotations

from collections.abc import Sequence

from trmcloud.core.catalog.offers import DAY_S
from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract.command import shown_metric
from trmcloud.core.contract.manifest import CheckpointManifest, KnownCheckpoint, Pruning
from trmcloud.core.contract.pod_contract import CheckpointRef, step_dir_name
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import ConflictError
from trmcloud.core.values import Value
from trmcloud.operations import views
from trmcloud.operations.checkpoints.fetching import best_of, what_to_prune
from trmcloud.operations.checkpoints.sources import CheckpointSource, known_in_bucket, sources_of
from trmcloud.operations.context import Context
from trmcloud.operations.run_queries import last_report

# Every checkpoint of a run that this home knows of, and its places, without any request: the last
# reports of its agents, and the files that are here.

HERE, BUCKET, POD, VOLUME, FETCHED = "here", "bucket", "pod", "volume", "fetched"


class Place(Value):
    """``kind``: here (this home), fetched (a folder that it was copied to), bucket, pod (on that
    alone), volume. ``where``: a path or an address; empty on a pod and a volume."""

    kind: str
    where: str


class Checkpoint(Value):
    """``sha256`` is that of its weights, ``size_bytes`` of all its files."""

    phase: str
    step: int
    val_bpb: float | None
    sha256: str
    size_bytes: int
    places: tuple[Place, ...]
    best: bool = False
    latest: bool = False
    at: float | None = None
    """When it was saved, epoch s, where its manifest is here."""
    trained_here: bool = False
    """On this machine; else ``val_bpb`` is the report of a pod."""
    metric: str | None = None
    """As in ``Training``; ``value`` is that metric."""
    value: float | None = None

    @property
    def label(self) -> str:
        return f"{self.phase}/{step_dir_name(self.step)}"


def checkpoints_of(context: Context, run: RunState) -> tuple[Checkpoint, ...]:
    """By phase and step."""
    found: dict[tuple[str, int, str], tuple[CheckpointRef, list[Place], float | None]] = {}

    def put(kept: CheckpointRef, place: Place, at: float | None = None) -> None:
        before = found.get(kept.bits)
        places = before[1] if before is not None else []
        known = kept if before is None or before[0].val_bpb is None else before[0]
        found[kept.bits] = (known, [*places, place], at or (before[2] if before else None))

    here = list(context.files.manifests(run.run_id))
    for manifest in here:
        place = Place(HERE, context.files.folder_of(manifest))
        put(manifest.ref, place, manifest.created_at)
    there = list(known_in_bucket(context, run)) if run.bucket else []
    for ref in there:
        put(ref, Place(BUCKET, f"{run.bucket}/runs/{run.run_id}"))
    report, generation = last_report(context, run), run.generation
    local = generation is not None and generation.provider == "local"
    if report is not None and not local and generation is not None:
        on_volume = run.spec.volume
        if on_volume or (run.live and generation.open):
            for kept in report.kept:
                put(kept, Place(VOLUME if on_volume else POD, ""))
    for fetched in run.fetched:
        for bits, (kept, places, at) in found.items():
            if (fetched.phase, fetched.step, fetched.sha256) == bits:
                found[bits] = (kept, [*places, Place(FETCHED, fetched.path)], at)
    best, latest = _chosen([*here, *there])
    command = run.spec.command
    return tuple(
        Checkpoint(
            kept.phase, kept.step, kept.val_bpb, kept.sha256, kept.size_bytes, tuple(places),
            best=bits == best, latest=bits == latest, at=at,
            trained_here=run.trained_here,
            metric=command.metric_name if command is not None else None,
            value=shown_metric(command, kept.val_bpb),
        )
        for bits, (kept, places, at) in sorted(found.items(), key=lambda one: one[0][:2])
    )  # fmt: skip


def _chosen(
    every: Sequence[KnownCheckpoint],
) -> tuple[tuple[str, int, str] | None, tuple[str, int, str] | None]:
    best, latest = best_of(every), mf.pick_latest(every)
    return (
        best.bits if best and (best.val_bpb is not None or best.is_named_best) else None,
        latest.bits if latest is not None else None,
    )


# Letting checkpoints go, wherever they lie: never the best of a phase, nor its latest, nor, until
# the run's storage week ends, what was saved before the cooldown that the latest is in.


class SourcePruning(Value):
    """The deletions in one place. ``dropped``: of what stays, those that lose the optimizer's
    state."""

    source: CheckpointSource
    pruning: Pruning
    dropped: tuple[CheckpointManifest, ...]

    @property
    def freed_bytes(self) -> int:
        return self.source.freed_bytes(self.pruning)

    @property
    def empty(self) -> bool:
        return not self.pruning.checkpoints and not self.dropped


def plan_pruning(
    context: Context, run: RunState, keep_best: int | None
) -> tuple[SourcePruning, ...]:
    """For each place of the run's, this machine first. ``keep_best`` None: as many as its recipe
    keeps.

    Raises:
        ConflictError: the run prunes by itself. LinkError, ProviderError: a place cannot be asked.
    """
    sources = sources_of(context, run)
    if run.live and (run.bucket or all(source.durable for source in sources)):
        raise ConflictError(
            f"{run.run_id} is running, and prunes automatically",
            next_step=f"trmcloud stop {run.run_id}, then prune",
        )
    ends = [g.ended_at for g in run.generations if g.ended_at is not None]
    week_over = bool(ends) and context.wall() > max(ends) + run.spec.volume_days * DAY_S
    made = []
    for source in sources:
        listing = source.list()
        if listing.trouble is not None:
            raise listing.trouble
        pruning = what_to_prune(listing.whole, keep_best, week_over=week_over)
        made.append(SourcePruning(source, pruning, source.dropped(pruning)))
    return tuple(made)


def prune(planned: Sequence[SourcePruning]) -> None:
    """
    Raises:
        LinkError, ProviderError: a place is out of reach by now; those before it are pruned.
    """
    for each in planned:
        if not each.empty:
            each.source.prune(each.pruning)


def pruned_view(run_id: str, planned: Sequence[SourcePruning], *, deleted: bool) -> views.Pruned:
    """Return the checkpoints of a run that go and stay."""
    return views.Pruned(
        run=run_id,
        deleted=deleted,
        freed_bytes=sum(each.freed_bytes for each in planned),
        places=tuple(
            views.PrunedPlace(
                place=each.source.name,
                delete=tuple(manifest.label for manifest in each.pruning.checkpoints),
                keep=tuple(manifest.label for manifest in each.pruning.kept),
                drop_optimizer=tuple(manifest.label for manifest in each.dropped),
                freed_bytes=each.freed_bytes,
            )
            for each in planned
        ),
    )
