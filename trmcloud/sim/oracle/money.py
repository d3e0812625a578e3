"""Judges what runs hold and cost against their budgets and the provider's bills."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from trmcloud.core.control.billing import awaiting_bill
from trmcloud.core.control.budget import month_of
from trmcloud.core.control.kept_volumes import holds
from trmcloud.core.money import ZERO, Usd, total

if TYPE_CHECKING:
    from trmcloud.sim.world.account import Rented
    from trmcloud.sim.world.world import SimWorld


@dataclass
class Worst:
    """The most any run's bill exceeded its budget, in micro-dollars and seconds of exposure."""

    over_micros: int = 0
    over_exposed_micros: int = 0
    exposed_s: float = 0.0


class MoneyJudge:
    """``fail`` takes an invariant's name and what is wrong."""

    def __init__(self, world: SimWorld, fail: Callable[[str, str], None]) -> None:
        self.world, self.fail = world, fail
        self.worst = Worst()
        self.account_cap: Usd | None = None

    def _pods_of(self, run_id: str) -> list[Rented]:
        return [
            rented
            for account in self.world.accounts.values()
            for rented in account.pods.values()
            if rented.run_id == run_id and rented.pod_id not in self.world.check.foreign
        ]

    def billed(self, run_id: str, now: float) -> None:
        """I1: the run's bill ≤ its budget + one billing quantum + rate × exposed."""
        run = self.world.ledger.read().runs.get(run_id)
        if run is None or self.world.check.forgotten:
            return
        bill = allowed = 0
        exposed = 0.0
        for rented in self._pods_of(run_id):
            bill += rented.micros(now) + rented.storage_micros
            quantum_s = rented.account.habits.least_billed_s
            allowed += ceil(max(quantum_s, 2.0) * rented.hourly_micros / 3600)
            exposed += rented.exposed_micros + rented.dear_micros
        over = bill - run.cap.micros - allowed
        if over > 0:
            self.worst.over_exposed_micros = max(self.worst.over_exposed_micros, over)
            if over > ceil(exposed):
                self.fail("I1", f"{run_id} is billed {bill / 1e6:.6f} of {run.cap}")

    def reserved(self, run_id: str) -> None:
        """I1: settled + reserved ≤ budget at every level, summed here and not by the budget."""
        ledger = self.world.ledger.read()
        run = ledger.runs[run_id]
        month = month_of(run.reserved_at)
        sums = {("account", ""): 0, ("month", month): 0, ("project", run.project): 0}
        for other in ledger.runs.values():
            held = other.settled.micros + other.reserved.micros
            sums["account", ""] += held
            if other.reserved_at and month_of(other.reserved_at) == month:
                sums["month", month] += held
            if other.project == run.project:
                sums["project", run.project] += held
        for stray in ledger.strays.values():
            sums["account", ""] += stray.cost.micros
            if month_of(stray.at) == month:
                sums["month", month] += stray.cost.micros
            owner = ledger.runs.get(stray.run_id)
            if owner is not None and owner.project == run.project:
                sums["project", run.project] += stray.cost.micros
        strays = total(stray.cost for stray in ledger.strays_of(run_id))
        kept = ZERO
        for hold in holds(ledger):
            sums["account", ""] += hold.amount.micros
            other = ledger.runs[hold.run_id]
            if other.reserved_at and month_of(other.reserved_at) == month:
                sums["month", month] += hold.amount.micros
            if other.project == run.project:
                sums["project", run.project] += hold.amount.micros
            if hold.run_id == run_id:
                kept += hold.amount
        if run.settled + run.reserved + strays + kept > run.cap:
            self.fail("I1", f"{run_id} holds more than its budget")
        for (level, key), held in sums.items():
            cap = self.account_cap if level == "account" else ledger.caps.get((level, key))
            if cap is not None and held > cap.micros:
                self.fail("I1", f"{level} {key} holds {held / 1e6} of {cap}")

    def settled(self, run_id: str) -> None:
        """I4: what the ledger settled is what the provider bills, ± one quantum for each pod."""
        if self.world.check.forgotten:
            return
        run = self.world.ledger.read().runs[run_id]
        bill, slack = run.oversized_rent.micros, 0
        settled_names = {g.pod_id for g in run.generations}
        for rented in self._pods_of(run_id):
            if rented.pod_id not in settled_names:
                continue
            bill += rented.micros(self.world.queue.now) + rented.storage_micros
            slack += ceil(2.0 * rented.hourly_micros / 3600)
        if awaiting_bill(run) and run.settled.micros >= bill - slack:
            return  # a day later, the world's end: bills may take that long
        if abs(run.settled.micros - bill) > slack:
            self.fail("I4", f"{run_id} settled {run.settled}, the bill is {bill / 1e6:.6f}")
        if run.reserved.micros:
            self.fail("I4", f"{run_id} is closed and holds {run.reserved}")
