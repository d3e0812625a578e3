"""A ledger in memory: the same rules as on disk, for simulated worlds and for tests."""

from __future__ import annotations

from collections.abc import Sequence

from trmcloud.core.control import bookkeeping
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import LedgerState, extend_ledger
from trmcloud.core.control.ledger_facts import LostRecord
from trmcloud.core.control.ledger_records import fold_damaged
from trmcloud.core.money import Usd
from trmcloud.core.values import replace
from trmcloud.ports.ledger import ControllerId, Driver


class MemoryLedger:
    """A ``Ledger`` that dies with its process; for one thread."""

    def __init__(self, ledger_id: str = "00000000") -> None:
        self._state = LedgerState(ledger_id)
        self._records: list[ev.Record] = []
        self._drivers: dict[str, Driver] = {}
        self.is_older = False
        """Whether an older copy was put in its place that is not accepted yet."""
        self._known_until = 0.0
        self._flipped: set[int] = set()
        self._seen = self._state

    @property
    def ledger_id(self) -> str:
        return self._state.ledger_id

    def hurried(self) -> MemoryLedger:
        return self

    def backup_trouble(self) -> str:
        return ""

    def read(self) -> LedgerState:
        """All that was written, whatever has become of it since."""
        return self._state

    def seen(self) -> LedgerState:
        """Return the state as it is read where records were damaged."""
        return self._seen

    def records(self, run_id: str | None = None) -> Sequence[ev.Record]:
        return tuple(r for r in self._records if run_id is None or r.run_id == run_id)

    def last_seq(self) -> int:
        return self._records[-1].seq if self._records else 0

    def records_after(self, seq: int) -> Sequence[ev.Record]:
        return tuple(r for r in self._records if r.seq > seq)

    def whole_records(self, run_id: str | None = None) -> Sequence[ev.Record]:
        """Without those that were damaged."""
        return tuple(r for r in self.records(run_id) if r.seq not in self._flipped)

    def flip(self, seq: int) -> None:
        """Damage a record, so that nothing of it can be read but which kind it was."""
        self._flipped.add(seq)
        self._look()

    def mend(self) -> None:
        """Put back what was damaged, as a backup of the records does."""
        self._flipped.clear()
        self._look()

    def _look(self) -> None:
        if not self._flipped:
            self._seen = self._state
            return
        lost = tuple(
            LostRecord(r.seq, type(r.event).__name__, r.run_id)
            for r in self._records
            if r.seq in self._flipped
        )
        self._seen = fold_damaged(self._state.ledger_id, self.whole_records(), lost)

    def _keep(self, seen: LedgerState, records: Sequence[ev.Record]) -> None:
        """Store records that ``seen`` has in it already."""
        self._records.extend(records)
        if self._flipped:
            self._seen, self._state = seen, extend_ledger(self._state, records)
        else:
            self._seen = self._state = seen

    def driver(self, run_id: str) -> Driver | None:
        return self._drivers.get(run_id)

    def open_run(
        self, run_id: str, planned: ev.RunPlanned, amount: Usd, who: ControllerId, at: float
    ) -> int:
        bookkeeping.require_new(self._seen, run_id, planned)
        return self._drive_with((planned, ev.Reserved(amount)), run_id, who, at)

    def reopen_run(
        self, run_id: str, reopened: ev.Reopened, amount: Usd, who: ControllerId, at: float
    ) -> int:
        bookkeeping.require_unused(self._seen, reopened.key)
        bookkeeping.require_closed(self._seen, run_id)
        return self._drive_with((reopened, ev.Reserved(amount)), run_id, who, at)

    def take_over(self, run_id: str, who: ControllerId, at: float) -> int:
        bookkeeping.require_run(self._seen, run_id)
        return self._drive_with((), run_id, who, at)

    def release(self, run_id: str, epoch: int) -> None:
        driver = self._drivers.get(run_id)
        if driver is not None and driver.epoch == epoch:
            self._drivers[run_id] = replace(driver, controller=None)

    def beat(self, run_id: str, epoch: int, at: float) -> None:
        driver = self._drivers.get(run_id)
        bookkeeping.require_epoch(run_id, epoch, driver.epoch if driver else 0)
        if driver is not None:
            self._drivers[run_id] = Driver(driver.epoch, driver.controller, at)

    def append(self, run_id: str, epoch: int, events: Sequence[ev.RunEvent], at: float) -> None:
        bookkeeping.require_run(self._seen, run_id)
        bookkeeping.require_epoch(run_id, epoch, self._drivers[run_id].epoch)
        self._add(run_id, epoch, events, at)

    def request(self, run_id: str, event: ev.RunEvent, at: float) -> None:
        bookkeeping.require_wish(event)
        run = bookkeeping.require_run(self._seen, run_id)
        self._add(run_id, run.epoch, (event,), at)

    def set_cap(self, event: ev.CapSet, at: float) -> None:
        seen, record = bookkeeping.add_cap(self._seen, len(self._records), event, at)
        self._keep(seen, (record,))

    def set_grant(self, event: ev.GrantEvent, at: float) -> None:
        seen, record = bookkeeping.add_grant(self._seen, len(self._records), event, at)
        self._keep(seen, (record,))

    def verify_layer(self, event: ev.LayerVerified, at: float) -> None:
        seen, record = bookkeeping.add_verified(self._seen, len(self._records), event, at)
        self._keep(seen, (record,))

    def note(self, event: ev.Note, at: float) -> None:
        seen, record = bookkeeping.add_note(self._seen, len(self._records), event, at)
        self._keep(seen, (record,))

    def accept_restored(self, at: float) -> bool:
        if not self.is_older:
            return False
        self.is_older = False
        restored = ev.LedgerRestored(self._known_until)
        seen, record = bookkeeping.add_note(self._seen, len(self._records), restored, at)
        self._keep(seen, (record,))
        return True

    def backup(self) -> object:
        """Return a copy of all that the file would hold now."""
        return self._state, tuple(self._records), dict(self._drivers)

    def restore(self, copy: object) -> None:
        """Put an old copy back in the file's place."""
        assert isinstance(copy, tuple)
        self.is_older = len(copy[1]) < len(self._records)
        self._state, self._records, self._drivers = copy[0], list(copy[1]), dict(copy[2])
        self._known_until = self._records[-1].at if self._records else 0.0
        self.mend()

    def _add(self, run_id: str, epoch: int, events: Sequence[ev.RunEvent], at: float) -> None:
        seen, records = bookkeeping.add_events(
            self._seen, len(self._records), run_id, epoch, events, at
        )
        self._keep(seen, records)

    def _drive_with(
        self, events: Sequence[ev.RunEvent], run_id: str, who: ControllerId, at: float
    ) -> int:
        known = self._drivers.get(run_id)
        epoch = known.epoch + 1 if known is not None else 1
        self._add(run_id, epoch, events, at)
        self._drivers[run_id] = Driver(epoch, who, at)
        return epoch
