"""Judges a run that moves to another machine while its own works: what that saves, what is held for
it, and that no two of its machines train at the same time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial

from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import LAND, TERMINATE
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.money import Usd
from trmcloud.sim.oracle.exposure import CLOCK_OFF_S, Uncertainty
from trmcloud.sim.oracle.paces import PaceJudge
from trmcloud.sim.world.account import Pod, RentedMachine, World
from trmcloud.sim.world.trainer import SimTrainer

MOST_ASKS_PER_HOUR = 6
"""Creates of one run at one provider for a machine to move to: one in twelve minutes at most."""
_HOUR_S = 3600.0
_ENDED_WITHIN_S = 90.0
"""After a wish to stop, for the end of what stands by to be asked for; after the handover, for the
working machine to be told to land."""


class MoveJudge:
    """``fail`` takes an invariant's name and what is wrong."""

    def __init__(
        self, world: World, undecidable: Uncertainty, fail: Callable[[str, str], None]
    ) -> None:
        self.world, self.undecidable, self.fail = world, undecidable, fail
        self.paces = PaceJudge(world, undecidable, fail, self._is_away)
        self.begun = self.up = self.handed_over = self.finished = 0
        self.judge_reservation: Callable[[str], None] = lambda run_id: None
        self.amounts: dict[str, Usd] = {}
        """By the pod's name: what was held for a machine that stands by."""
        self._asked: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._handed_over_at: dict[str, float] = {}

    @property
    def counts(self) -> tuple[int, int, int, int]:
        return self.begun, self.up, self.handed_over, self.finished

    # -- events -------------------------------------------------------------------------------

    def on_started(self, run: RunState, event: ev.MoveStarted) -> None:
        """``run`` is as it is with the move and its intent."""
        self.begun += 1
        here, now = run.generation, self.world.queue.now
        plan = self.world.truths[run.run_id].plan
        there = plan.candidate(event.candidate_id)
        asked = run.generations[-1]
        self.amounts[asked.pod_name] = event.amount
        if here is None or not here.open or not plan.spec.pod_uploads:
            self.fail("I5", f"{run.run_id} moves, and has no machine or no bucket to move from")
            return
        if run.stop is not None and not self.undecidable.woken:
            self.fail("wasteful", f"{run.run_id} moves though it was told to stop")
        # All candidates of a world are planned to take as long: only the price can save anything,
        # and the time that a slow machine takes beyond its plan.
        hourly = (here.billed_rate or here.rate) + run.disk_rate(here)
        slow = self.paces.slowness(run.run_id, here)
        if not plan.spec.move_if and slow is None:
            self.fail("wasteful", f"{run.run_id} moves, and its machine is not slow")
        share = 0.0 if slow is not None and plan.spec.moves_if_slow else plan.spec.move_if
        most = hourly.micros * (1 - share) * max(1.0, slow or 1.0)
        if (event.rate + there.disk_rate).micros > most + 2:
            why = f"{event.rate}/h saves too little of {hourly}/h"
            self.fail("wasteful", f"{run.run_id} moves, and {why}")
        if event.saves.micros + 2 < event.stays.micros * share:
            self.fail("wasteful", f"{run.run_id} moves for {event.saves} of {event.stays}")
        if run.settled + run.reserved > run.cap:
            self.fail("I1", f"{run.run_id} holds {run.reserved} to move, of {run.cap}")
        if not self.undecidable.is_time_odd:
            self.judge_reservation(run.run_id)
        times = self._asked[(run.run_id, asked.provider)]
        times.append(now)
        recent = [at for at in times if now - at < _HOUR_S]
        made = sum(1 for g in run.generations if g.stands_by and g.not_made is None)
        if len(recent) > MOST_ASKS_PER_HOUR + made and not self.undecidable.is_time_odd:
            self.fail("impolite", f"{run.run_id} asks {asked.provider} {len(recent)} times an hour")

    def on_handed_over(self, run: RunState, event: ev.HandedOver) -> None:
        """The working machine is told to land: not before the other one holds a checkpoint."""
        self.handed_over += 1
        self._handed_over_at[run.run_id] = self.world.queue.now
        standby = run.standby
        there = standby.generation if standby is not None else None
        pods = [r.pod for r in self.world.living() if there and r.name == there.pod_name]
        pods = pods or [
            r.pod
            for account in self.world.accounts.values()
            for r in account.pods.values()
            if there and r.name == there.pod_name
        ]
        # One that lost its disk since it said so, or lies, is taken by its word.
        now, wiped = self.world.queue.now, "36" in self.world.fired or bool(self.world.knobs.lies)
        if not wiped and not any(pod.uploader.brought(now) for pod in pods):
            self.fail("I3", f"{run.run_id} lands, and no other machine holds a checkpoint")
        if not any(pod.staged for pod in pods) and not self.world.knobs.restart_wipes:
            self.fail("I3", f"{run.run_id} lands for a machine that has no files")
        look = partial(self._still_untold, run.run_id, event.generation, now)
        self.world.queue.after(_ENDED_WITHIN_S, look)

    def _still_untold(self, run_id: str, number: int, since: float) -> None:
        """The working machine costs money beside the other one until it has landed."""
        run = self.world.ledger.read().runs.get(run_id)
        if run is None or run.generation is None or run.generation.number != number:
            return
        if run.state is not State.RUNNING or self._is_away(run_id, since):
            return
        generation = run.generation
        if generation.missed_at is None and not run.tries(generation, LAND):
            self.fail("wasteful", f"{generation.pod_name} is not told to land for the other one")

    def on_moved(self, run: RunState, event: ev.Moved) -> None:
        """The machine before must be gone, and counted."""
        self.finished += 1
        for before in run.generations[: event.generation - 1]:
            if before.not_made is None and before.settled is None:
                self.fail("I4", f"{run.run_id} moves, and {before.pod_name} is not settled")

    def on_stop(self, run: RunState) -> None:
        """A run is told to stop: what stands by for it is not needed any more."""
        if run.move is not None and run.move.number:
            look = partial(self._still_there, run.run_id, run.move.number, self.world.queue.now)
            self.world.queue.after(_ENDED_WITHIN_S, look)

    def _still_there(self, run_id: str, number: int, since: float) -> None:
        run = self.world.ledger.read().runs.get(run_id)
        if run is None or run.move is None or run.move.number != number:
            return
        generation = run.generations[number - 1]
        unseen = generation.up_at is None or generation.up_at > since
        if unseen or generation.missed_at is not None or self._is_away(run_id, since):
            return
        if not run.tries(generation, TERMINATE):
            self.fail("wasteful", f"{generation.pod_name} stands by for a run that is to stop")

    def _is_away(self, run_id: str, since: float) -> bool:
        """Whether no controller could see to the run all the time since then."""
        able_since = self.world.check.exposure.able.get(run_id)
        if able_since is None or able_since > since:
            return True
        return self.undecidable.is_time_odd or bool(self.world.check.forgotten)

    # -- pods ---------------------------------------------------------------------------------

    def stands_by(
        self, rented: RentedMachine, twins: Sequence[RentedMachine], run: RunState | None
    ) -> bool:
        """Whether a pod may be made beside ``twins``: one stands by while one other works."""
        standby = run.standby if run is not None else None
        here = standby.generation if standby is not None else None
        return here is not None and here.pod_name == rented.name and len(twins) == 1

    def on_spawn(self, pod: Pod, trainer: SimTrainer) -> None:
        """A trainer starts: none of its run's runs on another pod, unless that one's absence could
        be misjudged, or it came up again from nothing."""
        now = self.world.queue.now
        for other in self.world.living():
            if other.run_id != pod.lease.run_id or other.pod is pod:
                continue
            if other.name == pod.name or other.came_too_late or self.undecidable.absence(other):
                continue
            if any(t is not trainer and t.runs(now) for t in other.pod.trainers_alive):
                self.fail("I5", f"{pod.rented.pod_id} trains while {other.pod_id} trains")

    def has_had_time_to_land(self, run: RunState, rented: RentedMachine, now: float) -> bool:
        """Whether its pod was told to land for another one, and has had the time to."""
        generation = run.generation
        at = self._handed_over_at.get(run.run_id)
        if generation is None or not generation.hands_over or at is None:
            return False
        return now >= at + rented.landing_s - CLOCK_OFF_S
