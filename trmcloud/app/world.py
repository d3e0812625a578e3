"""Everything a use case may touch: the ports, filled in by ``wiring``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trmcloud.core.errors import NotFoundError

if TYPE_CHECKING:
    from trmcloud.core.plan import Plan
    from trmcloud.core.run_state import Generation, RunState
    from trmcloud.ports import (
        Clock,
        Compute,
        ControllerId,
        Ledger,
        PodLink,
        RunFiles,
        StageItem,
        Workers,
    )


@dataclass(frozen=True)
class World:
    """The ports of one trmcloud home. ``is_alive`` says whether a controller's process lives."""

    home: Path
    clock: Clock
    ledger: Ledger
    computes: Mapping[str, Compute]
    links: Mapping[str, PodLink]
    files: RunFiles
    who: ControllerId
    is_alive: Callable[[ControllerId], bool | None]
    """None where it cannot be told: the process is on another machine, or is stopped."""
    project: str
    workers: Workers
    stage_items: Callable[[RunState, Plan, Generation], Sequence[StageItem]]
    """What a generation's pod needs of this machine before it can train."""
    read_note: Callable[[str], Mapping[str, Any]] | None = None
    """A run's launch note by its id, where it is not kept below ``home``."""

    def wall(self) -> float:
        return self.clock.now().wall


def is_quiet(world: World) -> bool:
    """Whether nothing is live: no run to drive, no pod to end. Reconciling would find nothing."""
    if any(run.live for run in world.ledger.read().runs.values()):
        return False
    return all(
        pod.status == "gone" for compute in world.computes.values() for pod in compute.list_pods()
    )


def find_run(world: World, name: str | None) -> RunState:
    """The run of that id, or the newest one where no id is given.

    Raises:
        NotFoundError: naming what there is.
    """
    runs = world.ledger.read().runs
    if name is None:
        newest = max(runs.values(), key=lambda run: run.created_at, default=None)
        if newest is None:
            raise NotFoundError(
                "there are no runs yet",
                next_step="trmcloud launch local --recipe trm-tiny --budget 1 --rate 3.60",
            )
        return newest
    if name in runs:
        return runs[name]
    known = ", ".join(sorted(runs)[-5:]) or "none"
    raise NotFoundError(f"no run {name!r}", next_step=f"trmcloud status (runs: {known})")
