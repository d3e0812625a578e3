"""A boot that failed by its provider's log: its pod is ended, and the next one asked for, within a
minute. Judged by what was true from the fatal line on, where nothing else stood in the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.control.actions import CREATE
from trmcloud.core.control.pod_liveness import absence_needed_s
from trmcloud.core.control.renting import storage_beside_disks
from trmcloud.core.control.run_state import Generation, RunState
from trmcloud.core.money import affordable_seconds, cost

if TYPE_CHECKING:
    from trmcloud.sim.world.account import Rented
    from trmcloud.sim.world.world import SimWorld

NEXT_WITHIN_S = 60.0


class BootJudge:
    """``fail`` takes an invariant's name and what is wrong."""

    def __init__(self, world: SimWorld, fail: Callable[[str, str], None]) -> None:
        self.world, self.fail = world, fail
        self.judged = 0
        """Boots that failed while nothing else stood in the way."""

    def watch(self, rented: Rented) -> None:
        """One of which the log will say that it has failed."""
        at = rented.boot_failed_at + NEXT_WITHIN_S
        self.world.queue.at(at, lambda: self._judge(rented))

    def _judge(self, rented: Rented) -> None:
        run = self.world.ledger.read().runs.get(rented.run_id)
        if run is None or self._is_hindered(rented) or self._is_beyond_lists(rented):
            return
        named = [g for g in run.generations if g.pod_name == rented.name]
        if not named or self._is_ended_for_another_reason(rented, run, named[0]):
            return
        self.judged += 1
        if rented.ended_at is None and not rented.deleting:
            self.fail("I2", f"{rented.pod_id} lives, a minute after its log said that it cannot")
        later = run.generations[named[0].number :]
        if any(run.tries(g, CREATE) for g in later):
            return
        if absence_needed_s(run, traits_of(named[0].provider)) > NEXT_WITHIN_S:
            return  # two answers disagree whether it is there: nothing is rented beside it in haste
        if self._has_another(rented, run, named[0]):
            self.fail(
                "wasteful", f"{rented.pod_id} has failed to boot, and no other is asked for in time"
            )

    def _is_hindered(self, rented: Rented) -> bool:
        """Whether its controller was away, fenced, unheard or wrong about the time meanwhile."""
        check, now = self.world.check, self.world.queue.now
        able_since = check.exposure.able.get(rented.run_id)
        away = able_since is None or able_since > rented.boot_failed_at
        undecidable = check.truth.undecidable
        lost = check.forgotten or undecidable.woken or undecidable.clocks_moved
        return away or lost or bool(self.world.knobs.lies) or now >= rented.due_at

    def _is_beyond_lists(self, rented: Rented) -> bool:
        """Whether lists lag more than they do, or deletes are not done: absence takes longer."""
        knobs = self.world.knobs
        lags = knobs.list_omits_s or knobs.list_flickers or knobs.lists_dead_s
        refused = rented.undeletable_until or rented.refuses_until or knobs.deletes_ignored_until
        twins = self.world.check.names.get(rented.name, 0) > 1 or rented.came_too_late
        return bool(lags or refused or twins) or rented.visible_at > rented.boot_failed_at

    def _is_ended_for_another_reason(
        self, rented: Rented, run: RunState, generation: Generation
    ) -> bool:
        """Before its log had said anything, by its host, or since a stop was asked for."""
        ends = (rented.deleted_at, rented.ended_at or rented.deleted_at)
        if run.stop is not None or min(ends) < rented.boot_failed_at:
            return True
        return rented.ended_by not in ("", "controller") or (
            generation.gone_at is not None and generation.lived_s is None
        )

    def _has_another(self, rented: Rented, run: RunState, generation: Generation) -> bool:
        """Whether what the failed one leaves of the reservation, counted at the most that it can
        cost, pays for a candidate that was not tried."""
        plan = self.world.truths[run.run_id].plan
        latency_s = traits_of(generation.provider).kill_latency_s
        tried = {g.candidate_id for g in run.generations[run.first_generation - 1 :]}
        untried = [plan.candidate(name) for name in plan.launchable if name not in tried]
        if not untried or run.generations[-1].number != generation.number:
            return False
        lasts_s = self.world.queue.now - rented.created_at + NEXT_WITHIN_S + latency_s
        rate = max(generation.rate, generation.billed_rate or generation.rate)
        failed = plan.candidate(generation.candidate_id)
        left = run.reservation - cost(rate + failed.disk_rate, lasts_s)
        left = left - storage_beside_disks(failed)
        first = untried[0]
        least_s = first.startup_s.p50 + first.landing_s + latency_s
        rate = first.reserved_rate + first.disk_rate
        return affordable_seconds(left - storage_beside_disks(first), rate) > least_s
