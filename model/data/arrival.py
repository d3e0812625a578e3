"""The wait for a folder of data that is still to come: all ranks leave it together."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from model.data.feed import FAILED, READY, WAITING
from model.data.folder import Preparer
from model.distributed import World
from trmcloud.core.contract.pod_contract import DATA_META_NAME
from trmcloud.core.errors import DataError


class Arrival:
    """Whether a folder may be trained on yet. One that is not growing is not waited for.

    ``expected``: it is to grow, though nothing of it may be there yet.
    """

    def __init__(
        self,
        folder: Path,
        *,
        expected: bool = False,
        epoch: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._preparer = Preparer(folder, epoch=epoch, monotonic=monotonic)
        self._grows = expected or self._preparer.progress() is not None
        self._problem: DataError | None = None

    def is_late(self, world: World) -> bool:
        """Whether any rank has to wait for it."""
        return world.largest([self._state()])[0] != READY

    def wait(self, world: World, pause: Callable[[], bool]) -> bool:
        """Waits until every rank has what it may begin with.

        Args:
            pause: waits a moment, and says whether this rank is to wait on.

        Returns:
            Whether all came before any rank was to wait no more.

        Raises:
            DataError: on some rank they cannot come any more.
        """
        goes_on = True
        while True:
            state, ends = world.largest([self._state(), int(not goes_on)])
            if state == FAILED:
                raise self._problem or DataError("another machine's data cannot come any more")
            if state == READY or ends:
                return state == READY
            goes_on = pause()

    def _state(self) -> int:
        if not self._grows or (self._folder / DATA_META_NAME).exists():
            return READY
        self._problem = self._preparer.trouble()
        return FAILED if self._problem is not None else WAITING
