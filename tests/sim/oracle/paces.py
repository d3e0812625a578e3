"""Judges measured paces: what is believed of them, and what follows from one that is slow."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from trmcloud.core.catalog.hardware import LOCAL, least_step_s
from trmcloud.core.contract.pod_contract import parse_pod_name
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import LAND
from trmcloud.core.control.reason import ReasonKind
from trmcloud.core.control.run_state import Generation, RunState, State
from trmcloud.core.spec.plan import Candidate, PhasePlan
from trmcloud.core.spec.spec import STOP
from trmcloud.sim.world.facts import ToldPace

if TYPE_CHECKING:
    from tests.sim.oracle.invariants import Invariants


_IF_SLOW = "if-slow"
_NEAR = 0.1
"""An honest machine reports its time of a step within this share of the true one."""
_CLOCKS_S = 600.0
"""Between the lives of a machine by its provider's clock and by a controller's."""
_TOLD_WITHIN_S = 90.0


class PaceJudge:
    """Judges each pace that is measured in one world."""

    def __init__(self, check: Invariants) -> None:
        self.check, self.world, self.fail = check, check.world, check.world.fail
        self.undecidable = check.undecidable
        self.counts = (0, 0, 0, 0)

    def on_append(self, run: RunState, events: Sequence[ev.RunEvent]) -> None:
        paces = [event for event in events if isinstance(event, ev.PaceMeasured)]
        stops = [
            event
            for event in events
            if isinstance(event, ev.StopRequested) and event.by == _IF_SLOW
        ]
        if stops and not paces:
            self.fail("I4", f"{run.run_id} is stopped as slow, and has measured nothing")
        for event in paces:
            if len(events) != 1 + len(stops):
                self.fail("I1", f"a measurement of {run.run_id} changes more than it may")
            self._measured(run, event, stopped=bool(stops))

    def _measured(self, run: RunState, event: ev.PaceMeasured, *, stopped: bool) -> None:
        truth = self.world.truths[run.run_id]
        generation = run.generations[event.generation - 1]
        candidate = truth.plan.candidate(generation.candidate_id)
        phase = next(each for each in candidate.phases if each.name == event.phase)
        told = truth.told.get((generation.pod_name, event.phase), [])
        mine = next((each for each in told if abs(each.told_s - event.step_s) < 1e-9), None)
        name = parse_pod_name(generation.pod_name)
        if name is None or int(generation.latest_stop_at) != name.hard_stop_at:
            self.fail("I1", f"{generation.pod_name} has another hard stop since it has measured")
        if mine is None:
            self.fail("I4", f"{generation.pod_name} never told {event.step_s} s a step")
            return
        honest = truth.paces is not None and truth.paces.lie == 1.0
        if honest and abs(event.step_s / mine.true_s - 1.0) > _NEAR:
            why = f"{event.step_s:.3g} s a step are measured, and {mine.true_s:.3g} s are true"
            self.fail("I4", f"{generation.pod_name}: {why}")
        self._judge_doubt(event, mine, generation, candidate, phase, honest=honest)
        self._judge_follow(run, event, phase, stopped=stopped)

    def _judge_doubt(
        self,
        event: ev.PaceMeasured,
        mine: ToldPace,
        generation: Generation,
        candidate: Candidate,
        phase: PhasePlan,
        *,
        honest: bool,
    ) -> None:
        """A pace that no such machine can have is not believed, and an honest one is."""
        pod = generation.pod_name
        flops = phase.settings.tokens_per_step(candidate.world_size)
        flops_s = least_step_s(
            candidate.sku, candidate.world_size, flops * phase.settings.work().train_flops
        )
        made = [r for a in self.world.accounts.values() for r in a.named(pod)]
        lived_s = max((self.world.queue.now - r.created_at for r in made), default=0.0)
        odd = self.undecidable.is_time_odd
        too_fast = candidate.provider != LOCAL and mine.told_s < flops_s * (1 - 1e-9)
        too_slow = mine.told_s * mine.steps > lived_s + _CLOCKS_S and not odd
        if (too_fast or too_slow) and event.doubt is None:
            self.fail("I4", f"{pod} tells {mine.told_s:.3g} s a step, which is believed")
        if honest and not too_fast and event.doubt is not None and not odd:
            self.fail("I4", f"{pod} tells the truth, and is doubted: {event.doubt.kind.value}")

    def _judge_follow(
        self, run: RunState, event: ev.PaceMeasured, phase: PhasePlan, *, stopped: bool
    ) -> None:
        """Only a machine that is believed and slow has consequences, and those that were chosen."""
        spec = self.world.truths[run.run_id].plan.spec
        beyond = event.step_s > phase.step_s.p90
        believed, slow = event.doubt is None, event.slow is not None
        if not believed and (slow or event.follows or stopped):
            self.fail("I4", f"{run.run_id}: something follows from what is not believed")
        kind = event.slow.kind if event.slow is not None else None
        if believed and beyond is not (kind is ReasonKind.SLOWER_THAN_PLANNED):
            self.fail("I4", f"{run.run_id}: {event.step_s:.3g} s a step count as {kind}")
        wanted = spec.if_slow
        if event.follows != (wanted if slow else ""):
            self.fail("I4", f"{run.run_id}: {event.follows!r} follows, and {wanted} was asked for")
        if stopped is not (slow and wanted == STOP):
            self.fail("I4", f"{run.run_id} is{'' if stopped else ' not'} stopped as slow")
        more = (1, believed, slow, stopped)
        self.counts = tuple(a + b for a, b in zip(self.counts, more, strict=True))  # type: ignore[assignment]
        if stopped:
            now = self.world.queue.now
            look = partial(self._still_untold, run.run_id, event.generation, now)
            self.world.queue.after(_TOLD_WITHIN_S, look)

    def _still_untold(self, run_id: str, number: int, since: float) -> None:
        """A machine that is stopped as slow costs money until it has landed."""
        run = self.world.ledger.read().runs.get(run_id)
        if run is None or run.generation is None or run.generation.number != number:
            return
        if run.state is not State.RUNNING or self._is_away(run_id, since):
            return
        generation = run.generation
        if generation.absence is None and not run.tries(generation, LAND):
            self.fail("wasteful", f"{generation.pod_name} is slow, and is not told to land")

    def _is_away(self, run_id: str, since: float) -> bool:
        """Whether no controller could see to the run all the time since then."""
        able_since = self.check.exposure.able.get(run_id)
        if able_since is None or able_since > since:
            return True
        return self.undecidable.is_time_odd or bool(self.world.forgotten)
