"""Judges the money that a working run gives to another one: its earlier stop, and what it may cost
from then on."""

from __future__ import annotations

from collections.abc import Callable

from trmcloud.core.control import events as ev
from trmcloud.core.control.run_state import RunState
from trmcloud.sim.oracle.exposure import Uncertainty
from trmcloud.sim.world.account import RentedMachine, World

_HOUR_S = 3600.0
_SLACK_S = 2.0


class RoomJudge:
    """``fail`` takes an invariant's name and what is wrong."""

    def __init__(
        self, world: World, undecidable: Uncertainty, fail: Callable[[str, str], None]
    ) -> None:
        self.world, self.undecidable, self.fail = world, undecidable, fail
        self.lowering = self.lowered = 0
        self.most: dict[str, int] = {}
        """By run whose money was given to another one: the micro-dollars that it may cost since."""

    @property
    def counts(self) -> tuple[int, int]:
        return self.lowering, self.lowered

    def on_lowering(self, run: RunState, event: ev.StopLowering) -> None:
        """An earlier stop leaves the time that nine in ten of such runs need, and their landing."""
        self.lowering += 1
        generation = run.generation
        if generation is None:
            return
        candidate = self.world.truths[run.run_id].plan.candidate(generation.candidate_id)
        needs_s = candidate.hours.p90 * _HOUR_S + min(
            candidate.landing_s, generation.hard_stop_at - generation.soft_stop_at
        )
        if event.hard_stop_at < generation.intended_at + needs_s - _SLACK_S:
            self.fail("wasteful", f"{run.run_id} is to stop before P90 of its plan has landed")

    def on_lowered(
        self, run: RunState, event: ev.StopLowered, rented: RentedMachine | None
    ) -> None:
        """The money moves only once a reaper of another machine ends the pod at the earlier stop,
        and the pod itself does."""
        self.lowered += 1
        generation, now = run.generation, self.world.queue.now
        visit = self.world.visit
        if generation is None:
            return
        if visit is None or visit.stops.get(generation.pod_name) != generation.hard_stop_at:
            self.fail("I1", f"{run.run_id} gives its money, and no reaper enforces its stop")
        wrong = self.undecidable.is_time_odd or bool(self.world.knobs.lies)
        if rented is not None and not rented.ended and not wrong:
            if not rented.lowered_s:
                self.fail("I1", f"{run.run_id} gives its money, and {rented.pod_id} knows nothing")
            rest_s = max(0.0, rented.due_at - now)
            need = rented.micros(now) + rest_s * rented.hourly_micros / 3600
            if event.amount.micros + rented.hourly_micros / 3600 + 2 < need:
                self.fail("I1", f"{run.run_id} keeps {event.amount}, its pod may cost {need / 1e6}")
        self.most[run.run_id] = run.settled.micros + event.amount.micros

    def on_reserved(self, run: RunState) -> None:
        """From here on its reservation was granted anew."""
        self.most.pop(run.run_id, None)
