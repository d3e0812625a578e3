"""Ports for what leaves this machine to people and boards: notifications and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import field
from typing import Protocol

from trmcloud.core.values import Value

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


# Destinations of notifications, the ways to them, and what each was sent.


class Destination(Value):
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


class DeliveryResult(Value):
    """The result of one try. ``again_in_s``: when the receiver says that it may be asked again;
    None where it says nothing of that. ``is_final``: it would refuse the same notice again."""

    taken: bool
    why: str = ""
    again_in_s: float | None = None
    is_final: bool = False


class QueuedNotice(Value):
    """A notice that a destination has not accepted yet. ``body`` is its JSON, ``since`` when it was
    queued, ``tries`` how often it failed, ``next_at`` when it is tried again. Until ``held_until``
    one process is sending it. Times are epoch s."""

    notice_id: str
    body: str
    since: float
    tries: int = 0
    next_at: float = 0.0
    held_until: float = 0.0
    why: str = ""


class DeliveryState(Value):
    """What one destination was sent. ``cursor``: the number of the last ledger record whose notices
    it was sent or are in ``waiting``; ``looked_at``: when that record was read, epoch s.
    ``standing``: the ids of notices that would follow again although they were sent.
    ``gave_up``: the last notice that was dropped, and why; empty after one was accepted."""

    cursor: int
    looked_at: float
    standing: tuple[str, ...] = ()
    waiting: tuple[QueuedNotice, ...] = ()
    last_told_at: float | None = None
    gave_up: str = ""


Send = Callable[[str, str], DeliveryResult]
"""Tells one destination, by a notice's id and its body: see ``core.contract.notices.body_of``. It
returns within a deadline of its own, and raises nothing."""


class Deliveries(Protocol):
    """The durable states of deliveries, by the names of destinations, for any number of
    processes."""

    def change(self) -> AbstractContextManager[dict[str, DeliveryState]]:
        """Return the states to be changed; no other process changes them meanwhile. They are
        written, all or none, when the block ends without an error.

        Raises:
            NotifyError: they cannot be read or written, or another process holds them.
        """


class BackgroundNotifier(Protocol):
    """A background sender of notices."""

    def start(self) -> None: ...

    def finish(self, within_s: float) -> bool:
        """Look once more and tell what is due, for at most so long; whether all was tried."""
