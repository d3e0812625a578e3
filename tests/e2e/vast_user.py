"""A user who rents from vast.ai: the stand-in, containers that run, and the clock of both."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.rented import image, path_of, skip_without_pods
from tests.e2e.runpod_user import ACCEPT, LAUNCH, RentedUser, TestClock
from tests.standins.vast.standin import StandIn, running

VAST_LAUNCH = (*LAUNCH, "--provider", "vast", *ACCEPT)


@dataclass
class VastUser(RentedUser):
    """``vast`` is the only seller that this user knows."""

    @property
    def vast(self) -> StandIn:
        made: Any = self.standin
        assert isinstance(made, StandIn)
        return made

    def live(self) -> list[Any]:
        return self.vast.live()

    def truth(self) -> list[dict[str, Any]]:
        return self.vast.world.truth()


@contextlib.contextmanager
def renting_from_vast(folder: Path) -> Iterator[VastUser]:
    skip_without_pods()
    inside = image(folder / "image")
    clock = TestClock(folder / "clock")
    with running(folder / "vast", clock=clock, keep=[inside], image_env=path_of(inside)) as standin:
        same: Any = standin
        made = VastUser(folder, standin=same, clock=clock)
        made.environment["TRMCLOUD_VAST_IMAGE"] = "an/image:with-this-machines-torch"
        yield made
        made.end_everything()
