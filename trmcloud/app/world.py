"""Everything a use case may touch: the ports, filled in by ``wiring``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trmcloud.core.errors import NotFoundError
from trmcloud.core.run_state import RunState
from trmcloud.ports import Clock, Compute, ControllerId, Ledger, PodLink, RunFiles


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
    """None where it cannot be told: the process is on another machine."""
    project: str

    def wall(self) -> float:
        return self.clock.now().wall


def find_run(world: World, name: str | None) -> RunState:
    """The run of that id, or the newest one where no id is given.

    Raises:
        NotFoundError: naming what there is.
    """
    runs = world.ledger.read().runs
    if name is None:
        newest = max(runs.values(), key=lambda run: run.created_at, default=None)
        if newest is None:
            raise NotFoundError("there are no runs yet", next_step="trmcloud launch local")
        return newest
    if name in runs:
        return runs[name]
    known = ", ".join(sorted(runs)[-5:]) or "none"
    raise NotFoundError(f"no run {name!r}", next_step=f"trmcloud status (runs: {known})")
