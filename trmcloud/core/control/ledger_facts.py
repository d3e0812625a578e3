"""What a ledger says, as data: its runs, caps and charges. What follows from it for a budget stands
in ``budget``, for volumes in ``kept_volumes``, for pods that no run owns in ``orphan_costs``. Pure.
"""

from __future__ import annotations

from dataclasses import field
from typing import Mapping

from trmcloud.core.contract.bucket import CachedFile
from trmcloud.core.control import events as ev
from trmcloud.core.control.run_state import RunState
from trmcloud.core.money import Usd
from trmcloud.core.values import dataclass


@dataclass(frozen=True)
class Stray:
    """What one such pod is charged with. ``run_id`` is empty where no run here is of its name;
    ``since`` is the earliest that it can have been made, ``at`` when it was first charged and
    ``charged_at`` when last."""

    provider: str
    pod_id: str
    pod_name: str
    run_id: str
    since: float
    at: float
    amount: Usd
    billed: Usd | None = None
    charged_at: float = 0.0

    @property
    def cost(self) -> Usd:
        return self.amount if self.billed is None else self.billed


@dataclass(frozen=True)
class Restored:
    """An older copy of the ledger was accepted at ``at``: it knows nothing after ``since``. Until
    ``reconciled_at`` nothing is reserved."""

    at: float
    since: float
    reconciled_at: float | None = None


@dataclass(frozen=True)
class Lost:
    """Record ``seq`` is not what was written. ``run_id`` is empty where it is of the whole ledger,
    ``kind`` where it cannot be told."""

    seq: int
    kind: str
    run_id: str

    @property
    def name(self) -> str:
        return f"#{self.seq}"


@dataclass(frozen=True)
class Quarantine:
    """A run of whose records ``read`` are whole and those numbered ``lost`` are not.

    ``most``: what it may have cost at the most, None where that is not known. ``project`` and
    ``reserved_at`` are None where they are not known: then every project, every month bears it.
    ``settled``: what a user has said that it cost, at ``settled_at``.
    """

    run_id: str
    read: int
    lost: tuple[int, ...]
    most: Usd | None
    project: str | None = None
    reserved_at: float | None = None
    settled: Usd | None = None
    settled_at: float = 0.0

    @property
    def is_open(self) -> bool:
        """Whether nothing can be reserved before somebody says what it cost."""
        return self.most is None and self.settled is None

    @property
    def words(self) -> str:
        return f"its records are damaged; {self.read} of {self.read + len(self.lost)} could be read"


@dataclass(frozen=True)
class LedgerFacts:
    """Everything that the records of a ledger add up to."""

    ledger_id: str
    runs: Mapping[str, RunState] = field(default_factory=dict)
    caps: Mapping[tuple[str, str], Usd] = field(default_factory=dict)
    cap_history: tuple[ev.Record, ...] = ()
    verified: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """(provider, kill layer) → when it was last seen to work, epoch s."""
    strays: Mapping[tuple[str, str], Stray] = field(default_factory=dict)
    """By (provider, pod id)."""
    restored: Restored | None = None
    deleted_volumes: Mapping[tuple[str, str], tuple[float, ...]] = field(default_factory=dict)
    """By (provider, place): when the ledger's network volume there was deleted, epoch s."""
    tokens: Mapping[tuple[str, str], tuple[CachedFile, ...]] = field(default_factory=dict)
    """By (bucket, key): files of token caches as they were first seen, oldest first."""
    data: Mapping[str, ev.DataPinned] = field(default_factory=dict)
    """By source: the revision of a data set that was pinned last."""
    quarantined: Mapping[str, Quarantine] = field(default_factory=dict)
    """Runs with damaged records, which are not among ``runs``."""
    unread: tuple[Lost, ...] = ()
    """Damaged records of the whole ledger that stop reservations."""
