"""Time, and what takes long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from trmcloud.core.values import dataclass

if TYPE_CHECKING:
    from trmcloud.core.clock import Instant
    from trmcloud.core.control.events import ActionKey
    from trmcloud.core.errors import TrmcloudError


class Clock(Protocol):
    def now(self) -> Instant: ...

    def sleep(self, seconds: float) -> None: ...


Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all) during a copy; raises where the copy is not wanted."""


@dataclass(frozen=True)
class WorkDone:
    """A piece of work that has ended: ``error`` is None where it was done."""

    key: ActionKey
    error: TrmcloudError | None


class Workers(Protocol):
    """Workers for long actions, while the controller continues to look and decide."""

    def start(self, key: ActionKey, work: Callable[[Progress], None]) -> None: ...

    def running(self) -> frozenset[ActionKey]: ...

    def finished(self) -> Sequence[WorkDone]:
        """Return the work that has ended since the last call."""

    def progress(self, key: ActionKey) -> tuple[int, int] | None:
        """(bytes done, bytes in all) of work that is going on."""

    def cancel(self) -> None:
        """Nothing that is going on is wanted any more; it ends soon, and is not told of."""
