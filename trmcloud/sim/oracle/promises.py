"""What a user is promised of a run, judged by ground truth. The provider's bill is the judge.

I1 the bill keeps the budget · I2 every pod ends in time · I3 what was said to be stored is there ·
I4 what was settled is what is billed · I7 every run comes to its end.

``exposure`` has the one predicate for time in which no layer could act: the promise counts the
other time, and the bill may exceed a budget by at most rate × exposed. The judges of the rules
behind these promises are those of the tests, ``tests.sim.oracle``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from trmcloud.core.control.billing import awaiting_bill
from trmcloud.core.control.run_state import RunState
from trmcloud.sim.oracle.exposure import REACTION_S, Exposure
from trmcloud.sim.world.account import Observer, RentedMachine, World

ORPHAN_S = 180.0
"""REACTION_S and the longest delete."""


@dataclass
class WorstOverrun:
    """The most any run's bill exceeded its budget, in micro-dollars and seconds of exposure."""

    over_micros: int = 0
    over_exposed_micros: int = 0
    exposed_s: float = 0.0


class Promises(Observer):
    """Judges one world by what its user is promised."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.worst = WorstOverrun()
        self.exposure = Exposure(world)
        self.names: dict[str, int] = {}
        """By name, the pods that were ever made of it."""
        self.judged_at = world.queue.now
        self._owners: Mapping[str, RunState] | None = None
        """The runs by which it was last looked whose pods are whose."""

    # -- after every event --------------------------------------------------------------------

    def accrue(self) -> None:
        """Time has passed in the state that the world was left in."""
        now, since = self.world.queue.now, self.judged_at
        self.judged_at = now
        if now <= since:
            return
        spent: set[str] = set()
        for account in self.world.accounts.values():
            for rented in account.living:
                if (
                    now > rented.due_at
                    or rented.unowned_at is not None
                    or rented.rate_micros > rented.agreed_micros
                ):
                    self._accrue(rented, since, now)
                    spent.add(rented.run_id)
        # Only once every pod's exposed time is known: a run may pay for two.
        for run_id in sorted(spent):
            self.judge_bill(run_id, now)

    def look(self) -> None:
        """Something happened: who can act now, and whose pods are whose?"""
        now = self.world.queue.now
        runs = self.world.ledger.read().runs
        if runs is not self._owners:  # or a pod was made
            self._owners = runs
            for account in self.world.accounts.values():
                for rented in account.living:
                    self.own(rented, runs.get(rented.run_id), now)
        self.exposure.look(now)

    def own(self, rented: RentedMachine, run: RunState | None, now: float) -> None:
        """Check that the ledger still has an open generation for this pod."""
        mine_open = run.open_generations if run is not None else ()
        generation = next((g for g in mine_open if g.pod_name == rented.name), None)
        named = generation is not None
        # Of two that bear its name either may be the run's, until its driver has seen one listed.
        rented.may_be_owned = named and generation is not None and generation.pod_id is None
        mine = (None, rented.pod_id) if not rented.surplus else (rented.pod_id,)
        owned = named and generation is not None and generation.pod_id in mine
        if owned or rented.pod_id in self.world.foreign:
            rented.unowned_at = None
        elif rented.unowned_at is None:
            rented.unowned_at = now

    def _accrue(self, rented: RentedMachine, since: float, now: float) -> None:
        if rented.pod_id in self.world.foreign:
            return
        due = now > rented.due_at or rented.unowned_at is not None
        if due:
            start = rented.due_at if rented.unowned_at is None else rented.unowned_at
            start = max(since, min(start, rented.due_at))
            if now > start:
                exposed_s = self.exposure.seconds(rented, start, now)
                rented.exposed_s += exposed_s
                rented.exposed_micros += exposed_s * rented.hourly_micros / 3600
                if not rented.deleting:
                    rented.overdue_s += now - start - exposed_s
                if rented.overdue_s > ORPHAN_S:
                    self.world.fail(
                        "I2", f"{rented.pod_id} lived {rented.overdue_s:.0f} s after it was due"
                    )
        else:
            able_since = self.exposure.able.get(rented.run_id, now)
            acts_at = max(able_since, rented.undeletable_until) + REACTION_S
            more = rented.rate_micros - rented.agreed_micros
            rented.dear_micros += max(0.0, min(now, acts_at) - since) * more / 3600

    # -- pods ---------------------------------------------------------------------------------

    def on_pod_made(self, rented: RentedMachine) -> None:
        self._owners = None
        self.names[rented.name] = self.names.get(rented.name, 0) + 1
        rented.surplus = self.names[rented.name] > 1

    def on_pod_end(self, rented: RentedMachine) -> None:
        self.judge_bill(rented.run_id, self.world.queue.now)

    # -- money --------------------------------------------------------------------------------

    def _pods_of(self, run_id: str) -> list[RentedMachine]:
        return [
            rented
            for account in self.world.accounts.values()
            for rented in account.pods.values()
            if rented.run_id == run_id and rented.pod_id not in self.world.foreign
        ]

    def judge_bill(self, run_id: str, now: float) -> None:
        """I1: the run's bill ≤ its budget + one billing quantum + rate × exposed."""
        run = self.world.ledger.read().runs.get(run_id)
        if run is None or self.world.forgotten:
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
                cap = run.cap.micros / 1e6
                self.world.fail("I1", f"{run_id} is billed {bill / 1e6:.6f} of {cap:.6f}")

    def judge_settlement(self, run_id: str) -> None:
        """I4: what the ledger settled is what the provider bills, ± one quantum for each pod."""
        if self.world.forgotten:
            return
        run = self.world.ledger.read().runs[run_id]
        bill, slack = run.swept.rent.micros, 0
        settled_names = {g.pod_id for g in run.generations}
        for rented in self._pods_of(run_id):
            if rented.pod_id not in settled_names:
                continue
            bill += rented.micros(self.world.queue.now) + rented.storage_micros
            slack += ceil(2.0 * rented.hourly_micros / 3600)
        if awaiting_bill(run) and run.settled.micros >= bill - slack:
            return  # a day later, the world's end: bills may take that long
        if abs(run.settled.micros - bill) > slack:
            self.world.fail("I4", f"{run_id} settled {run.settled}, the bill is {bill / 1e6:.6f}")
        if run.reserved.micros:
            self.world.fail("I4", f"{run_id} is closed and holds {run.reserved}")

    # -- at the end ---------------------------------------------------------------------------

    def finish(self) -> None:
        """Judge what must hold once the faults have stopped and everything has had its time."""
        world, now = self.world, self.world.queue.now
        for rented in world.living():
            if rented.pod_id not in world.foreign:
                world.fail("I2", f"{rented.pod_id} still lives")
        for run in world.ledger.read().runs.values():
            if run.live:
                world.fail("I7", f"{run.run_id} is still {run.state.value}")
                continue
            self.judge_bill(run.run_id, now)
            self.judge_settlement(run.run_id)
        self._judge_saved()
        for account in world.accounts.values():
            for rented in account.pods.values():
                self.worst.exposed_s = max(self.worst.exposed_s, rented.exposed_s)

    def _judge_saved(self) -> None:
        """Whatever an agent has told to be in the bucket is there in the end, or a better one."""
        if "50" in self.world.fired:
            return  # a manifest that is not listed yet
        for account in self.world.accounts.values():
            for rented in account.pods.values():
                made = self.world.files.checkpoints.get(rented.run_id, ())
                for phase, best in rented.pod.said.uploaded.items():
                    there = [c for c in made if c.manifest.phase == phase and c.slot and c.whole]
                    if not any(c.true_bpb <= best for c in there):
                        self.world.fail(
                            "I3", f"{rented.pod_id} told of {phase} in the bucket: it is lost"
                        )
