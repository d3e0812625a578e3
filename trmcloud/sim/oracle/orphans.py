"""Pods that no generation owns, judged by the provider's bill: each that we ended is on record, at
no less than it cost, and in the end at what it was billed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import TYPE_CHECKING

from trmcloud.core.control import events as ev
from trmcloud.core.control.orphan_costs import is_pending

if TYPE_CHECKING:
    from trmcloud.sim.world.account import Rented
    from trmcloud.sim.world.world import SimWorld

_ENDED_BY_US = ("controller", "reap")
_AT_ONCE_S = 5.0
_NEXT_LOOK_S = 1800.0
"""Until somebody asks for a bill again, where nothing else is to be done."""


class OrphanJudge:
    """Watches what is noted of them. ``fail`` takes an invariant's name and the detail."""

    def __init__(self, world: SimWorld, fail: Callable[[str, str], None]) -> None:
        self.world, self.fail = world, fail
        self.restored_at: float | None = None
        """When an older copy of the ledger was put in its place."""
        self._unwritten: set[str] = set()
        self._too_low: dict[str, tuple[float, str]] = {}
        """Pods charged less than they had cost: when that was noted, and how much less. Who had
        slept since it saw them knows no better, and has to make it good at once."""

    def appended(self, events: Sequence[ev.RunEvent]) -> None:
        self._made_good()
        for event in events:
            reserves = isinstance(event, ev.Reserved) and self.restored_at is not None
            if reserves and is_pending(self.world.ledger.read()):
                self.fail("I1", "money is reserved before a restored ledger is reconciled")

    def unwritten(self, event: ev.Note) -> None:
        """A ledger that cannot be written keeps no pod alive: what it has cost may be known to
        nobody, where that was the last that was seen of it."""
        if isinstance(event, ev.StrayCharged):
            self._unwritten.add(event.pod_id)

    def ended(self, rented: Rented) -> None:
        """A controller asks for a pod's end: by its name alone, where nothing can be written."""
        if not self.world.ledger_writable:
            self._unwritten.add(rented.pod_id)

    def _is_unread(self, pod_id: str) -> bool:
        """Whether a run whose records are damaged owns this pod. Its bill changes no money: the
        fold leaves it out as soon as the run can be read."""
        ledger = self.world.ledger
        owners = [
            run.run_id
            for run in ledger.read().runs.values()
            if any(g.pod_id == pod_id for g in run.generations)
        ]
        return any(run_id in ledger.seen().quarantined for run_id in owners)

    def noted(self, event: ev.Note) -> None:
        self._made_good(event)
        if isinstance(event, ev.LedgerReconciled):
            self._reconciled()
            return
        if isinstance(event, ev.VolumeDeleted | ev.TokensPinned | ev.DataPinned | ev.DamageSettled):
            return
        if self._is_sought(event.provider, event.pod_id):
            # It is listed as being made, and nobody can know that none will be found: it is
            # charged like any other, and billed nothing.
            if isinstance(event, ev.StrayBilled) and event.amount:
                self.fail("I4", f"{event.pod_id} was never made, and is billed {event.amount}")
            return
        rented = self._find(event.provider, event.pod_id)
        if rented is None or rented.pod_id in self.world.check.foreign:
            self.fail("I4", f"{event.pod_id} is charged, and is none of ours")
            return
        generations = (g for r in self.world.ledger.read().runs.values() for g in r.generations)
        if isinstance(event, ev.StrayBilled) and self._is_unread(event.pod_id):
            return  # a stray that its run came to own, which cannot be read for now
        if any(g.pod_id == event.pod_id for g in generations):
            self.fail("I4", f"{event.pod_id} is charged to its run and once more")
        bill = rented.micros(self.world.queue.now) + rented.storage_micros
        quantum = ceil(2.0 * rented.hourly_micros / 3600) + 2
        odd = self.world.check.truth.undecidable.clocks_moved or "30" in self.world.fired
        if isinstance(event, ev.StrayBilled):
            if abs(event.amount.micros - bill) > 2:
                self.fail("I4", f"{event.pod_id} is corrected to {event.amount}: wrong")
        elif event.amount.micros < bill - rented.storage_micros - quantum and not odd:
            why = f"{event.pod_id} is charged {event.amount}, and cost {bill / 1e6}"
            self._too_low[event.pod_id] = self.world.queue.now, why

    def _made_good(self, event: ev.Note | None = None) -> None:
        for noted_at, why in self._too_low.values():
            if self.world.queue.now - noted_at > _AT_ONCE_S:
                self.fail("I4", why)
        if isinstance(event, ev.StrayCharged | ev.StrayBilled):
            self._too_low.pop(event.pod_id, None)

    def _reconciled(self) -> None:
        if self.world.check.truth.undecidable.clocks_moved or self.restored_at is None:
            return
        for rented in self.world.living():
            before = rented.created_at < self.restored_at and not rented.came_too_late
            if before and rented.unowned_at is not None and not rented.deleting:
                self.fail("I2", f"the ledger is called reconciled, and lacks {rented.pod_id}")

    def finish(self) -> None:
        """What every pod that we ended has cost is on record, whoever it was made for."""
        self._made_good()
        ledger, now = self.world.ledger.read(), self.world.queue.now
        known = {g.pod_id for run in ledger.runs.values() for g in run.generations}
        for account in self.world.accounts.values():
            for rented in account.pods.values():
                ours = rented.ended_by in _ENDED_BY_US and rented.rate_micros
                if rented.pod_id in known or not ours or rented.pod_id in self.world.check.foreign:
                    continue
                stray = ledger.strays.get((account.habits.provider, rented.pod_id))
                if stray is None:
                    if rented.pod_id not in self._unwritten and not self._forgotten(rented):
                        self.fail("I4", f"{rented.pod_id} was ended, and nobody is charged for it")
                    continue
                bill = rented.micros(now) + rented.storage_micros
                if stray.billed is None and self._bill_is_late(rented, now):
                    continue  # until then it stands at the most that it can have cost
                if stray.billed is None or abs(stray.billed.micros - bill) > 2:
                    self.fail("I4", f"{rented.pod_id} stands at {stray.cost}, billed {bill / 1e6}")

    def _bill_is_late(self, rented: Rented, now: float) -> bool:
        """Whether the world ends before the provider's final bill is out."""
        return now < (rented.ended_at or now) + self.world.knobs.bill_lag_s + _NEXT_LOOK_S

    def _is_sought(self, provider: str, pod_id: str) -> bool:
        account = self.world.accounts.get(provider)
        return account is not None and pod_id in account.sought

    def _forgotten(self, rented: Rented) -> bool:
        """Whether it was ended before an older copy of the ledger was restored."""
        ended_at = min(rented.deleted_at, rented.ended_at or rented.deleted_at)
        return self.restored_at is not None and ended_at <= self.restored_at

    def _find(self, provider: str, pod_id: str) -> Rented | None:
        account = self.world.accounts.get(provider)
        return account.pods.get(pod_id) if account is not None else None
