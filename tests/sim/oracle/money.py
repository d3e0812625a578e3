"""Judges what runs reserve against the budgets of every level.

Network volumes, and who deletes them, are judged by the provider's own account of them; pods that
no generation owns by their bill: each that we ended is on record, at no less than it cost, and in
the end at what it was billed.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf
from typing import TYPE_CHECKING

from trmcloud.core.catalog.offers import DAY_S
from trmcloud.core.control import events as ev
from trmcloud.core.control.bookkeeping import is_charge_pending
from trmcloud.core.control.budget import PROJECT_MONTH, LedgerState, project_month
from trmcloud.core.control.grants import month_of
from trmcloud.core.control.ledger_facts import Hold, holds
from trmcloud.core.control.run_state import RunState
from trmcloud.core.money import ZERO, Usd, total
from trmcloud.core.spec.spec import DELETE, DELETE_FETCHED
from trmcloud.sim.world.account import Account, Observer, Process, RentedMachine
from trmcloud.sim.world.facts import KeptVolume

if TYPE_CHECKING:
    from tests.sim.oracle.invariants import Invariants


class MoneyJudge:
    """Judges each reservation of one world."""

    def __init__(self, check: Invariants) -> None:
        self.check, self.world, self.fail = check, check.world, check.world.fail
        self.account_cap: Usd | None = None

    def judge_reservation(self, run_id: str) -> None:
        """I1: settled + reserved ≤ budget at every level, summed here and not by the budget."""
        ledger = self.world.ledger.read()
        run = ledger.runs[run_id]
        month = month_of(run.reserved_at)
        both = PROJECT_MONTH, project_month(run.project, month)
        sums = {("account", ""): 0, ("month", month): 0, ("project", run.project): 0, both: 0}

        def add(amount: Usd, at: float, owner: RunState | None) -> None:
            sums["account", ""] += amount.micros
            if at and month_of(at) == month:
                sums["month", month] += amount.micros
            if owner is not None and owner.project == run.project:
                sums["project", run.project] += amount.micros
                if at and month_of(at) == month:
                    sums[both] += amount.micros

        for other in ledger.runs.values():
            add(other.settled + other.reserved, other.reserved_at, other)
        for stray in ledger.strays.values():
            add(stray.cost, stray.at, ledger.runs.get(stray.run_id))
        kept, strays = ZERO, total(stray.cost for stray in ledger.strays_of(run_id))
        for hold in holds(ledger):
            owner = ledger.runs[hold.run_id]
            add(hold.amount, owner.reserved_at, owner)
            if owner is run:
                kept += hold.amount
        if run.settled + run.reserved + strays + kept > run.cap:
            self.fail("I1", f"{run_id} holds more than its budget")
        for (level, key), held in sums.items():
            cap = self.account_cap if level == "account" else ledger.caps.get((level, key))
            if cap is None and level == PROJECT_MONTH:
                cap = ledger.caps.get((level, run.project))
            if cap is not None and held > cap.micros:
                self.fail("I1", f"{level} {key} holds {held / 1e6} of {cap}")


_SLACK_S = 900.0
"""The greatest difference between a pod's end in truth and on record."""
_CLOCK_OFF_S = 900.0
"""A deleting process may be so far ahead of the truth where clocks are set."""


class VolumeJudge(Observer):
    """Judges each deletion of a network volume, and who pays for one."""

    def __init__(self, check: Invariants) -> None:
        self.check, self.world, self.fail = check, check.world, check.world.fail

    def on_volume_delete(self, account: Account, volume: KeptVolume) -> None:
        """I3: only once its day has come, by its truth, for every run that used it, with no live
        one there, and as each had agreed."""
        ledger, now = self.world.ledger.read(), self.world.queue.now
        if self.world.forgotten or self.check.undecidable.clocks_moved:
            return
        for run_id, truth in self.world.truths.items():
            run, spec = ledger.runs.get(run_id), truth.plan.spec
            here = [p for p in account.pods.values() if p.run_id == run_id]
            if run_id not in volume.users:
                continue
            if run is not None and run.live:
                self.fail("I3", f"{volume.volume_id} is deleted, and {run_id} is live")
            if spec.volume_then not in (DELETE, DELETE_FETCHED):
                self.fail("I3", f"{volume.volume_id} is deleted, and {run_id} did not agree")
            trained = run is not None and any(g.agent_at is not None for g in run.generations)
            if spec.volume_then == DELETE_FETCHED and trained and not (run and run.pulled):
                self.fail("I3", f"{volume.volume_id} is deleted: {run_id} has fetched nothing")
            ends = [p.ended_at for p in here if p.ended_at is not None and _is_owned(ledger, p)]
            day_at = max(ends, default=0.0) + spec.volume_days * DAY_S
            if now < day_at - _CLOCK_OFF_S:
                self.fail("I3", f"{volume.volume_id} is deleted {day_at - now:.0f} s too early")

    def finish(self) -> None:
        """I1: up to the last stated day every hour of it is in somebody's budget."""
        ledger, now = self.world.ledger.read(), self.world.queue.now
        if self.world.forgotten or self.check.undecidable.clocks_moved:
            return
        for account in self.world.accounts.values():
            for volume in account.volumes:
                self._held(ledger, account, volume, now)

    def _held(self, ledger: LedgerState, account: Account, volume: KeptVolume, now: float) -> None:
        mine = [
            hold
            for hold in holds(ledger)
            if (hold.provider, hold.place) == (account.habits.provider, volume.place)
            # One of no days at all, for a pod that was never had, ends as its volume is made.
            and hold.until > volume.created_at - _SLACK_S
            and (volume.ended_at is None or hold.since < volume.ended_at)
        ]
        until = min(self._day(ledger, account, volume), now)
        # A run that asked for less pays a lower rate than the volume's maker.
        least = min((hold.rate.micros for hold in mine), default=volume.rate_micros)
        cost = volume.micros(until) * least // volume.rate_micros
        held = sum(hold.accrued(now).micros for hold in mine)
        seconds = _unreserved_s(mine, until) + _SLACK_S * (len(mine) + 1)
        if held + seconds * least / 3600 < cost:
            self.fail("I1", f"{volume.volume_id} cost {cost / 1e6}, {held / 1e6} is held")

    def _day(self, ledger: LedgerState, account: Account, volume: KeptVolume) -> float:
        """The last stated day, by when pods ended in truth: one that was in no list for longer than
        lists may lag, and unheard, by its end on record."""
        days = [volume.created_at]
        for pod in account.pods.values():
            truth = self.world.truths.get(pod.run_id)
            if truth is None or not truth.plan.spec.volume or pod.ended_at is None:
                continue
            if not _is_owned(ledger, pod):
                continue
            if volume.ended_at is None or pod.created_at < volume.ended_at:
                ended_at = pod.ended_at
                if self.check.undecidable.is_unseen(pod):
                    ended_at = min(ended_at, _end_on_record(ledger, pod))
                days.append(ended_at + truth.plan.spec.volume_days * DAY_S)
        return max(days)


def _is_owned(ledger: LedgerState, pod: RentedMachine) -> bool:
    """Whether it is the pod of a generation: one that came when it had been given up is ended as
    soon as it is seen, saves nothing, and puts no volume's day off."""
    run = ledger.runs.get(pod.run_id)
    return run is not None and any(g.pod_id == pod.pod_id for g in run.generations)


def _end_on_record(ledger: LedgerState, pod: RentedMachine) -> float:
    ends = [g.ended_at for g in ledger.runs[pod.run_id].generations if g.pod_id == pod.pod_id]
    return min((at for at in ends if at is not None), default=inf)


def _unreserved_s(mine: list[Hold], until: float) -> float:
    """Between one pod's day and the next pod: uncapped, and said to be. Never before the first."""
    gaps, at = 0.0, min((hold.since for hold in mine), default=until)
    for hold in sorted(mine, key=lambda each: each.since):
        gaps += max(0.0, min(hold.since, until) - at)
        at = max(at, hold.until)
    return gaps


_ENDED_BY_US = ("controller", "reap")
_AT_ONCE_S = 5.0
_NEXT_LOOK_S = 1800.0
"""Until somebody asks for a bill again, where nothing else is to be done."""


class OrphanJudge(Observer):
    """Watches what is noted of them."""

    def __init__(self, check: Invariants) -> None:
        self.check, self.world, self.fail = check, check.world, check.world.fail
        self._unwritten: set[str] = set()
        self._too_low: dict[str, tuple[float, str]] = {}
        """Pods charged less than they had cost: when that was noted, and how much less. Who had
        slept since it saw them knows no better, and has to make it good at once."""

    def on_append(self, process: Process, run_id: str, events: Sequence[ev.RunEvent]) -> None:
        self._made_good()
        for event in events:
            reserves = isinstance(event, ev.Reserved) and self.world.restored_at is not None
            if reserves and is_charge_pending(self.world.ledger.read()):
                self.fail("I1", "money is reserved before a restored ledger is reconciled")

    def on_unwritten(self, event: ev.Note) -> None:
        """A ledger that cannot be written keeps no pod alive: what it has cost may be
        unknown, where that was the last that was seen of it."""
        if isinstance(event, ev.StrayCharged):
            self._unwritten.add(event.pod_id)

    def on_end_call(self, rented: RentedMachine, process: Process, *, slept: bool) -> None:
        """A controller asks for a pod's end: by its name alone, where nothing can be written."""
        if not self.world.ledger_writable:
            self._unwritten.add(rented.pod_id)

    def on_note(self, event: ev.Note) -> None:
        self._made_good(event)
        if isinstance(event, ev.LedgerReconciled):
            self._reconciled()
            return
        if not isinstance(event, ev.StrayCharged | ev.StrayBilled):
            return
        account = self.world.accounts.get(event.provider)
        if account is not None and event.pod_id in account.sought:
            # It is listed as being made, and nobody can know that none will be found: it is
            # charged like any other, and billed nothing.
            if isinstance(event, ev.StrayBilled) and event.amount:
                self.fail("I4", f"{event.pod_id} was never made, and is billed {event.amount}")
            return
        rented = account.pods.get(event.pod_id) if account is not None else None
        if rented is None or rented.pod_id in self.world.foreign:
            self.fail("I4", f"{event.pod_id} is charged, and is none of ours")
            return
        runs, damaged = self.world.ledger.read().runs, self.world.ledger.seen().quarantined
        owners = [r for r in runs.values() if any(g.pod_id == event.pod_id for g in r.generations)]
        if any(r.run_id in damaged for r in owners):
            # A pod whose run is in quarantine: that it owns it may be what cannot be read. Neither
            # the charge nor the bill changes money for long: the fold leaves both out as soon as
            # the run can be read.
            return
        if owners:
            self.fail("I4", f"{event.pod_id} is charged to its run and once more")
        bill = rented.micros(self.world.queue.now) + rented.storage_micros
        quantum = ceil(2.0 * rented.hourly_micros / 3600) + 2
        odd = self.check.undecidable.clocks_moved or "30" in self.world.fired
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
        if self.check.undecidable.clocks_moved or self.world.restored_at is None:
            return
        for rented in self.world.living():
            before = rented.created_at < self.world.restored_at and not rented.came_too_late
            if before and rented.unowned_at is not None and not rented.deleting:
                self.fail("I2", f"the ledger is called reconciled, and lacks {rented.pod_id}")

    def finish(self) -> None:
        """Judge that the cost of every pod that we ended is on record, whomever it was made for."""
        self._made_good()
        ledger, now = self.world.ledger.read(), self.world.queue.now
        known = {g.pod_id for run in ledger.runs.values() for g in run.generations}
        for account in self.world.accounts.values():
            for rented in account.pods.values():
                ours = rented.ended_by in _ENDED_BY_US and rented.rate_micros
                if rented.pod_id in known or not ours or rented.pod_id in self.world.foreign:
                    continue
                stray = ledger.strays.get((account.habits.provider, rented.pod_id))
                if stray is None:
                    if rented.pod_id not in self._unwritten and not self._is_forgotten(rented):
                        self.fail("I4", f"{rented.pod_id} was ended, and nobody is charged for it")
                    continue
                bill = rented.micros(now) + rented.storage_micros
                bill_at = (rented.ended_at or now) + self.world.knobs.bill_lag_s
                if stray.billed is None and now < bill_at + _NEXT_LOOK_S:
                    continue  # until then it stands at the most that it can have cost
                if stray.billed is None or abs(stray.billed.micros - bill) > 2:
                    self.fail("I4", f"{rented.pod_id} stands at {stray.cost}, billed {bill / 1e6}")

    def _is_forgotten(self, rented: RentedMachine) -> bool:
        """Whether it was ended before an older copy of the ledger was restored."""
        ended_at = min(rented.deleted_at, rented.ended_at or rented.deleted_at)
        return self.world.restored_at is not None and ended_at <= self.world.restored_at
