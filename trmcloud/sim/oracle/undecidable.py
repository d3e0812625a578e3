"""What no controller could have known: the only excuse that the oracles know."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trmcloud.sim.world.account import Rented
    from trmcloud.sim.world.controllers import Process
    from trmcloud.sim.world.world import SimWorld

STOPPED = frozenset({"7", "9", "14", "61"})
"""With these a controller may wake up in the middle of a call and go on with it."""


class Undecidable:
    """What no controller could have known, since the provider or a clock lied beyond what
    ``core.providers`` says that it may."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self.clocks_moved = False

    def look(self) -> None:
        if self._world.laptop.offset_s or self._world.server.offset_s:
            self.clocks_moved = True

    def absence(self, rented: Rented | None) -> bool:
        """Whether a pod's absence may have been misjudged: by a clock that was set meanwhile, or
        since the pod came later than its provider's longest delay."""
        return self.clocks_moved or (rented is not None and rented.came_too_late)

    @property
    def woken(self) -> bool:
        """Whether some controller may have gone on in the middle of a call."""
        return bool(STOPPED & self._world.fired.keys())

    def odd(self, process: Process) -> bool:
        """Whether this controller's time is not to be trusted."""
        return self.woken or self.clocks_moved
