"""Letting checkpoints go, wherever they lie: never the best of a phase, nor its latest, nor, until
the run's storage week ends, what was saved before the cooldown that the latest is in."""

from __future__ import annotations

from collections.abc import Sequence

from trmcloud.app.checkpoints.fetching import what_to_prune
from trmcloud.app.checkpoints.sources import CheckpointSource, sources_of
from trmcloud.app.context import Context
from trmcloud.core.catalog.offers import DAY_S
from trmcloud.core.contract.manifest import CheckpointManifest, Pruning
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import ConflictError
from trmcloud.core.values import dataclass


@dataclass(frozen=True)
class SourcePruning:
    """What goes and what stays in one place. ``dropped``: of what stays, those that lose the
    optimizer's state."""

    source: CheckpointSource
    pruning: Pruning
    dropped: tuple[CheckpointManifest, ...]

    @property
    def freed_bytes(self) -> int:
        return self.source.freed_bytes(self.pruning)

    @property
    def empty(self) -> bool:
        return not self.pruning.checkpoints and not self.dropped


def plan(context: Context, run: RunState, keep_best: int | None) -> tuple[SourcePruning, ...]:
    """For each place of the run's, this machine first. ``keep_best`` None: as many as its recipe
    keeps.

    Raises:
        ConflictError: the run prunes by itself. LinkError, ProviderError: a place cannot be asked.
    """
    sources = sources_of(context, run)
    if run.live and (run.bucket or all(source.durable for source in sources)):
        raise ConflictError(
            f"{run.run_id} is running, and prunes by itself",
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


def carry_out(planned: Sequence[SourcePruning]) -> None:
    """
    Raises:
        LinkError, ProviderError: a place is out of reach by now; those before it are pruned.
    """
    for each in planned:
        if not each.empty:
            each.source.prune(each.pruning)
