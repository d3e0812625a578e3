"""Ports for what leaves this machine to people and boards: notifications and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Protocol

from trmcloud.core.values import dataclass

if TYPE_CHECKING:
    from trmcloud.core.contract.notices import Notice

# Where a run's figures are drawn by programs that are not ours.


class Board(Protocol):
    """Told one phase after the other, each in the order of its steps."""

    def begin(self, phase: str, step: int) -> None:
        """Begin this phase at this step: for the first time, or again, where its trainer went back
        to a checkpoint."""

    def tell(
        self, phase: str, step: int, on_axis: int, at: float, values: Mapping[str, float]
    ) -> None:
        """Figures by their names, logged at ``at`` (epoch s). ``step`` is the phase's own,
        ``on_axis`` counts on over phases."""

    def flush(self) -> None: ...

    def close(self) -> None: ...


# Destinations of notifications, the ways to them, and the queue of what is to be sent.


@dataclass(frozen=True)
class Destination:
    """Somebody to be told. ``where`` is an address that may itself be a secret, as ``secret`` is;
    ``only``: kinds of notices that are wanted, none: all. ``on_pod``: a run's pod is given both and
    tells by itself, too."""

    name: str
    way: str
    where: str = field(repr=False)
    secret: str = field(default="", repr=False)
    only: tuple[str, ...] = ()
    on_pod: bool = False
    added_at: float = 0.0


@dataclass(frozen=True)
class DeliveryResult:
    """The result of one try. ``again_in_s``: when the receiver says that it may be asked again;
    None where it says nothing of that."""

    taken: bool
    why: str = ""
    again_in_s: float | None = None


@dataclass(frozen=True)
class QueuedNotice:
    """A notice that one destination is still to be told. ``body`` is its JSON, ``tries`` how often
    that failed, ``since`` when it was put there, epoch s."""

    notice_id: str
    destination: str
    body: str
    tries: int
    since: float
    next_at: float = 0.0
    why: str = ""


Send = Callable[[str, str], DeliveryResult]
"""Tells one destination, by a notice's id and its body: see ``core.contract.notices.body_of``. It
returns within a deadline of its own, and raises nothing."""


class Outbox(Protocol):
    """The durable queue of notices: every method is one transaction, and any number of processes
    may use it. All may raise ``OutboxError``."""

    def cursor(self) -> int | None:
        """Up to which of the ledger's records notices were derived; None before the first time."""

    def known(self, prefix: str) -> int:
        """Return the number of notices ever put here whose id begins so."""

    def take(
        self,
        notices: Sequence[tuple[Notice, str]],
        destinations: Sequence[Destination],
        cursor: int,
        at: float,
    ) -> int:
        """Put what is not known by its id yet, with its body, for each destination that wants it,
        and move the cursor. How many were new."""

    def due(self, destination: str, now: float, hold_s: float) -> QueuedNotice | None:
        """The oldest that is due there, held for this process for so long; None where none is."""

    def done(self, waiting: QueuedNotice, at: float) -> None: ...

    def put_off(self, waiting: QueuedNotice, next_at: float, why: str) -> None:
        """It was not taken; it is due again then."""

    def give_up(self, waiting: QueuedNotice, why: str) -> None: ...

    def waiting(self) -> Sequence[QueuedNotice]: ...

    def last_told(self, destination: str) -> tuple[float | None, str]:
        """(when it last took one, why the last one was given up, '' where none was)"""

    def forget(self, destination: str) -> None: ...


class BackgroundNotifier(Protocol):
    """A background sender of notices."""

    def start(self) -> None: ...

    def finish(self, within_s: float) -> bool:
        """Look once more and tell what is due, for at most so long; whether all was tried."""
