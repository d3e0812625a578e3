"""Judges stops that are moved: the money that is reserved, when, and whether it was needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.contract.pod_contract import parse_pod_name
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import admit
from trmcloud.core.control.renting import storage_beside_disks
from trmcloud.core.control.run_state import Generation, RunState
from trmcloud.core.errors import Outcome
from trmcloud.core.money import cost
from trmcloud.sim.world.account import Process, RentedMachine

if TYPE_CHECKING:
    from tests.sim.oracle.invariants import Invariants

_AHEAD_S = 900.0
_LOOKS_S = 180.0
"""A controller that is there has looked at its run by then, and its ledger was free."""
_TOLD_S = 600.0
"""Within it a machine that can be reached has been told of a stop that was moved."""
_EARLY_S = 300.0
_TOO_MUCH = 2.0
"""No machine that has this share of the time that its work needs, by its true pace, gets more."""


class ExtensionJudge:
    """Judges each extension of one world, and each run that lands for want of one."""

    def __init__(self, check: Invariants) -> None:
        self.check, self.world, self.fail = check, check.world, check.world.fail
        self.counts = (0, 0)
        """Extensions, and runs that landed at a stop that could have been moved."""
        self._stops: dict[str, float] = {}
        """The hard stop of each pod as it was on record last."""
        self._moved_at: dict[str, float] = {}
        """When the stop of a pod was moved last."""
        self._timed: dict[tuple[str, str], float] = {}
        """When the pace of a pod's phase was believed."""

    def on_append(self, process: Process, run: RunState, events: Sequence[ev.RunEvent]) -> None:
        for event in events:
            if isinstance(event, ev.PodIntended):
                self._stops[event.pod_name] = event.hard_stop_at
            elif isinstance(event, ev.PaceMeasured) and event.doubt is None:
                pod = run.generations[event.generation - 1].pod_name
                self._timed[pod, event.phase] = self.world.queue.now
            elif isinstance(event, ev.Extended):
                if len(events) != 1:
                    self.fail("I1", f"an extension of {run.run_id} comes with something else")
                self._extended(process, run, event)
            elif isinstance(event, ev.ResultKnown) and event.result == Outcome.LANDED.value:
                self._landed(run)

    def _extended(self, process: Process, run: RunState, event: ev.Extended) -> None:
        self.counts = (self.counts[0] + 1, self.counts[1])
        generation = run.generations[event.generation - 1]
        name = parse_pod_name(generation.pod_name)
        if name is None or event.hard_stop_at > name.hard_stop_at + 1:
            self.fail("I2", f"{generation.pod_name} may live for longer than its name says")
        candidate = self.world.truths[run.run_id].plan.candidate(generation.candidate_id)
        lasts_s = event.hard_stop_at - generation.intended_at
        lasts_s += traits_of(generation.provider).kill_latency_s - 1.0
        held = cost(generation.rate + candidate.disk_rate, lasts_s) + storage_beside_disks(
            candidate
        )
        if run.reserved < held:
            self.fail("I1", f"{run.run_id} holds {run.reserved}, too little for its new stop")
        self.check.money.judge_reservation(run.run_id)
        later_s = event.hard_stop_at - self._stops.get(generation.pod_name, event.hard_stop_at)
        self._stops[generation.pod_name] = event.hard_stop_at
        self._moved_at[generation.pod_name] = self.world.queue.now
        if later_s <= 0 and not self.world.forgotten:
            self.fail("I4", f"the stop of {run.run_id} is moved by {later_s:.0f} s")
        left_s = generation.soft_stop_at - later_s - process.machine.now().wall
        if left_s < _AHEAD_S - 1.0 and not self.check.undecidable.is_time_odd:
            self.fail("I2", f"{run.run_id} is extended {left_s:.0f} s before its soft stop")
        if run.stop is not None:
            self.fail("wasteful", f"{run.run_id} is extended though it was told to stop")
        self._judge_need(run, generation, later_s)

    def _judge_need(self, run: RunState, generation: Generation, later_s: float) -> None:
        """By the truth, of a machine that does not lie, the work did not fit what was left."""
        truth, rented = self.world.truths[run.run_id], self._pod_of(generation)
        honest = truth.paces is not None and truth.paces.lie == 1.0 == truth.paces.first
        trainer = rented.pod.trainer if rented is not None else None
        if not honest or rented is None or trainer is None or self.check.undecidable.is_time_odd:
            return
        now, shape = self.world.queue.now, trainer.shape
        needs_s = shape.seconds_to(shape.steps) - shape.seconds_to(trainer.step(now))
        names = [each.name for each in rented.pod.lease.phases]
        for name in names[names.index(shape.phase) + 1 :]:
            later = self.world.shape_of(run.run_id, name, generation.pod_name)
            needs_s += later.seconds_to(later.steps) + later.start_s + later.compile_s
        soft_at = rented.due_at - later_s - (generation.hard_stop_at - generation.soft_stop_at)
        if soft_at - now > _TOO_MUCH * needs_s:
            why = f"{needs_s:.0f} s of work and {soft_at - now:.0f} s left"
            self.fail("wasteful", f"{run.run_id} is extended with {why}")

    def _landed(self, run: RunState) -> None:
        """A run that its command has stayed with, whose pace was known in time and for which money
        is left at every level does not land at a tight stop."""
        generation = run.generation
        rented = self._pod_of(generation) if generation is not None else None
        if generation is None or rented is None or run.stop is not None:
            return
        odd = self.world.fired or self.world.off or self.world.forgotten
        untold_s = self.world.queue.now - self._moved_at.get(generation.pod_name, math.inf)
        early_s = rented.due_at - 2 * rented.landing_s - self.world.queue.now
        told = untold_s > _TOLD_S and not odd and self._is_attended(run)
        if told and early_s > _EARLY_S:
            self.fail("wasteful", f"{run.run_id} lands {early_s:.0f} s before its moved stop")
        left_s = generation.limit_at - generation.hard_stop_at
        at_stop = rented.lease_due_at - self.world.queue.now < 2 * rented.landing_s
        if left_s < 60.0 or not at_stop:
            return
        self.counts = (self.counts[0], self.counts[1] + 1)
        trainer = rented.pod.trainer
        phase = trainer.shape.phase if trainer is not None else ""
        timed_at = self._timed.get((generation.pod_name, phase))
        due_at = rented.due_at - rented.landing_s - _AHEAD_S - _LOOKS_S
        able_since = self.check.exposure.able.get(run.run_id)
        if odd or timed_at is None or max(timed_at, able_since or due_at) >= due_at:
            return
        if able_since is None or self._is_lied_to(run) or not self._is_attended(run):
            return
        candidate = self.world.truths[run.run_id].plan.candidate(generation.candidate_id)
        hourly = generation.rate + candidate.disk_rate + candidate.volume_rate
        wants = run.reserved + cost(hourly, left_s)
        ledger = self.world.ledger.read()
        if admit(ledger, run, wants, run.reserved_at) is None:
            self.fail("wasteful", f"{run.run_id} lands, and money for {left_s:.0f} s is left")

    def _is_attended(self, run: RunState) -> bool:
        """Whether a command stays with it: one that only looks reserves nothing."""
        drivers = [each.driver for each in self.world.processes if each.driver is not None]
        return any(each.run_id == run.run_id and each.errands for each in drivers)

    def _is_lied_to(self, run: RunState) -> bool:
        paces = self.world.truths[run.run_id].paces
        return paces is None or paces.lie != 1.0 or paces.first != 1.0

    def _pod_of(self, generation: Generation) -> RentedMachine | None:
        account = self.world.accounts.get(generation.provider)
        return account.pods.get(generation.pod_id or "") if account is not None else None
