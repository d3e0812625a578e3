"""Ports of the record: the ledger, its writers, and intents noted while it cannot be written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from trmcloud.core.values import Value

if TYPE_CHECKING:
    from trmcloud.core.control import events as ev
    from trmcloud.core.control.budget import LedgerState
    from trmcloud.core.control.ledger_records import Link
    from trmcloud.core.money import Usd

# Notes of what a person had done while the ledger could not be written.

MOST_PODS = 16


class Intent(Value):
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
        """Keep the intent in place of an earlier one of its run, and return its path; empty on
        failure."""

    def kept(self) -> Sequence[Intent]: ...

    def drop(self, intent: Intent) -> None:
        """The ledger has it, or nothing will come of it."""


# Where what happened is kept, and who writes there.


class ControllerId(Value):
    """A process that drives runs: where it lives, and how to tell it from a later one."""

    host: str
    pid: int
    pid_started: str


class Driver(Value):
    """The present driver of a run; ``beat_at`` is the time of its last heartbeat."""

    epoch: int
    controller: ControllerId | None
    beat_at: float


class Backup(Value):
    """A copy that was read in full: up to record ``seq``, written at ``at`` (epoch s). ``why`` says
    what is wrong with one that cannot be used."""

    path: Path
    number: int
    seq: int = 0
    at: float = 0.0
    why: str = ""


class Restoration(Value):
    """A backup was put in the ledger's place at ``at``. ``aside`` is the damaged file's new name,
    None where there was no file; ``newest_seq`` is the newest record that the head named, None
    where the head was lost, too."""

    backup: Backup
    at: float
    aside: Path | None
    newest_seq: int | None
    why: str

    @property
    def is_complete(self) -> bool:
        """Whether the head proves that nothing was written after the backup."""
        return self.newest_seq == self.backup.seq


class Ledger(Protocol):
    """The one record of money and runs. Every write is durable before it returns.

    All methods may raise ``LedgerLocked``, ``LedgerDamaged`` or ``LedgerTooNew``; what names a run
    of which records are damaged raises ``RunQuarantined``, and does nothing.
    """

    @property
    def ledger_id(self) -> str: ...

    def read(self) -> LedgerState: ...

    def records(self, run_id: str | None = None) -> Sequence[ev.Record]: ...

    def last_seq(self) -> int:
        """Return the number of the newest record; 0 where there is none."""

    def records_after(self, seq: int) -> Sequence[ev.Record]:
        """Those after number ``seq``."""

    def driver(self, run_id: str) -> Driver | None: ...

    def open_run(
        self, run_id: str, planned: ev.RunPlanned, amount: Usd, who: ControllerId, at: float
    ) -> int:
        """Under the ledger's lock: check every budget, append plan and reservation, become the
        run's driver. Returns the epoch.

        Raises:
            BudgetRefused: a level lacks the money; nothing was written.
            ConflictError: the run exists.
        """

    def reopen_run(
        self, run_id: str, reopened: ev.Reopened, amount: Usd, who: ControllerId, at: float
    ) -> int:
        """Likewise for a closed run that continues: ``Reopened`` and ``Reserved``."""

    def take_over(self, run_id: str, who: ControllerId, at: float) -> int:
        """Become the run's driver under a new epoch; the earlier driver can write no more."""

    def release(self, run_id: str, epoch: int) -> None:
        """Stop driving; the next command may take over at once."""

    def beat(self, run_id: str, epoch: int, at: float) -> None: ...

    def append(self, run_id: str, epoch: int, events: Sequence[ev.RunEvent], at: float) -> None:
        """Append in one transaction, if ``epoch`` is still the run's newest.

        Raises:
            StaleEpoch: another controller took over; nothing was written.
            IllegalTransition: an event that cannot happen; nothing was written.
        """

    def request(self, run_id: str, event: ev.RunEvent, at: float) -> None:
        """Append a user's wish (stop, fetched) without becoming the driver."""

    def set_cap(self, event: ev.CapSet, at: float) -> None: ...

    def set_grant(self, event: ev.GrantEvent, at: float) -> None:
        """Give, raise or revoke a principal's grant; ask for approval, or answer that.

        Raises:
            UsageError, ConflictError, NotFoundError, GrantRefused: see ``bookkeeping.add_grant``;
                nothing was written.
        """

    def verify_layer(self, event: ev.LayerVerified, at: float) -> None:
        """Record that a kill layer was seen to work for this account."""

    def note(self, event: ev.Note, at: float) -> None:
        """Record what was found out about pods that no run owns.

        Raises:
            IllegalTransition: somebody else has noted it already; nothing was written.
        """

    def accept_restored(self, at: float) -> bool:
        """Accept an older copy of this ledger; nothing is reserved until it is reconciled.

        False where it is no older copy: nothing was written.
        """

    def backup_trouble(self) -> str:
        """Why a loss of the ledger would lose a run that has ended; empty where it would not."""

    def hurried(self) -> Ledger:
        """Return this ledger for one command that ends pods: it is waited for a moment in all, and
        then raises at once."""


class ChainedLedger(Protocol):
    """A ledger whose records can be shown with their places in its chain."""

    @property
    def ledger_id(self) -> str: ...

    def links(self) -> Sequence[Link]:
        """All of them, as they were written, each hash checked."""
