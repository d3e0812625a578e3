"""Notes of what a person had done while the ledger could not be written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trmcloud.core.values import dataclass

MOST_PODS = 16


@dataclass(frozen=True)
class Intent:
    """A person named a run, and its pods are ended.

    ``ledger`` is the ledger's id, empty where it could not be read; ``pods`` those that are known,
    at most ``MOST_PODS``; ``at`` epoch seconds.
    """

    run_id: str
    ledger: str
    at: float
    pods: tuple[str, ...] = ()


class Intents(Protocol):
    """Intents of this home that no ledger has yet. None of the methods raises for a full disk."""

    def keep(self, intent: Intent) -> str:
        """Where it is kept now, in place of an earlier one of its run; empty where it cannot be."""

    def kept(self) -> Sequence[Intent]: ...

    def drop(self, intent: Intent) -> None:
        """The ledger has it, or nothing will come of it."""
