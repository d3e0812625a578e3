"""Judges a pod's attempts at a phase: it is tried again where that may help, with settings
that may mend it, never for ever, and told to end once it no longer pays."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.gate import why_stop
from trmcloud.core.contract.phase_account import lease_of
from trmcloud.core.contract.pod_contract import PhaseState
from trmcloud.core.contract.trainer_contract import RETRYABLE
from trmcloud.core.control.pod_facts import finished_on
from trmcloud.core.errors import Outcome
from trmcloud.sim.world.account import Observer, Pod
from trmcloud.sim.world.pod import SAMPLED_S
from trmcloud.sim.world.trainer import SimTrainer

if TYPE_CHECKING:
    from tests.sim.oracle.invariants import Invariants


_TOLD_S = 120.0
"""A trainer that no longer pays by its newest evaluation has had its signal by then."""
_MOST_MENDED = {"out_of_memory": 6, "non_finite": 3}
"""Other settings that a simulated phase can be tried with: its micro-batch halved three times,
checkpointing, no compiling, no workers; half the rate twice, and one preset below its own."""
_MOST_CLIMBS, _FILLS, _FILLS_AT_LAST = 2, 110 / 141, 130 / 141
"""Of a GPU's memory, what a climb may come to fill; and the last one, to twice the batch."""
_CLIMB_LEAST_S, _CLIMB_SURELY_S = 6_000.0, 60_000.0
"""Of training left: with less a larger micro-batch is not worth a new start; with more it is."""
_CLIMBED_S = 2_000.0
_OVERRIDABLE = {
    "batch", "accumulation", "activation_checkpointing", "compile", "loader_workers",
    "rate", "preset",
}  # fmt: skip


class PhaseTries:
    """The number of starts of a phase on one pod without a newer checkpoint, by the truth."""

    def __init__(self) -> None:
        self.last: SimTrainer | None = None
        self.saved = 0
        self.fruitless = 0
        self.climbs = 0
        self.mended: Counter[str] = Counter()
        """Starts with other settings than those before, by the outcome that they followed."""

    def ended_by(self, now: float) -> str:
        """Return the last attempt's outcome, if other settings might mend it; empty: none."""
        last = self.last
        told = last is not None and not last.runs(now) and last.killed_at is None
        return last.outcome if last and told and last.outcome in _MOST_MENDED else ""

    def close(self, now: float) -> None:
        if self.last is None:
            return
        saved = self.last.saved_step(now) or 0
        self.fruitless = 0 if saved > self.saved else self.fruitless + 1
        self.saved, self.last = max(saved, self.saved), None


class AttemptJudge(Observer):
    """Watches how trainers are started, tried again and told to end, on the pods of one world."""

    def __init__(self, check: Invariants) -> None:
        self.check, self.world, self.fail = check, check.world, check.world.fail
        self._lives = check.lives
        self._tries: dict[tuple[Pod, str], PhaseTries] = {}
        self._no_longer_pay: set[tuple[Pod, str]] = set()

    def judge_restart(self, pod: Pod) -> None:
        for key in [key for key in self._tries if key[0] is pod]:
            del self._tries[key]

    def judge_spawn(self, pod: Pod, trainer: SimTrainer) -> None:
        now, lease, phase = self.world.queue.now, pod.lease, trainer.shape.phase
        self._not_finished(pod, phase)
        self._trains_alone(pod, trainer)
        tries = self._tries.setdefault((pod, phase), PhaseTries())
        if phase in pod.written.finished:
            self.fail("wasteful", f"{phase} is trained again, and had finished")
        again = tries.last is not None
        forgetful = pod in self._lives.restarted or self._lives.agents(pod) > 1
        self._overridden(pod, tries, trainer, now, forgetful=forgetful)
        tries.close(now)
        # One that is killed between starting a trainer and noting it down has not counted it.
        forgotten = max(0, self._lives.agents(pod) - 1)
        most = lease.max_restarts + forgotten + (forgotten > 0 > lease.max_restarts)
        # What could not be written down is not known to the agent that came after.
        unwritten = forgotten and self.world.knobs.pod_disk_full
        if again and tries.fruitless > most and not unwritten:
            self.fail("wasteful", f"{phase} is tried again after {tries.fruitless} fruitless tries")
        tries.last = trainer
        self._must_end(pod, trainer)
        sampled_at = trainer.trains_at + SAMPLED_S
        look = partial(self._not_climbed, pod, trainer, sampled_at)
        self.world.queue.at(sampled_at + _CLIMBED_S, look)

    def _overridden(
        self, pod: Pod, tries: PhaseTries, trainer: SimTrainer, now: float, *, forgetful: bool
    ) -> None:
        """Other settings are those of the table, as many sequences a step, and another try after an
        end that they might mend: not the same again, and not for ever."""
        overrides, phase, last = trainer.overrides, trainer.shape.phase, tries.last
        own = self.world.truths[pod.lease.run_id].settings_of(phase)
        if strange := set(overrides) - _OVERRIDABLE:
            self.fail("wasteful", f"{phase} is started with {' '.join(sorted(strange))}")
        rows = overrides.get("batch", own.batch) * overrides.get("accumulation", own.accumulation)
        if rows != own.batch * own.accumulation:
            self.fail("wasteful", f"{phase} is started with {rows} sequences a step")
        if not own.batch / 8 <= overrides.get("batch", own.batch) <= 2 * own.batch:
            self.fail("wasteful", f"{phase} is started with a batch of {overrides['batch']}")
        if not 0.25 <= overrides.get("rate", 1.0) <= 1.0:
            self.fail("wasteful", f"{phase} is started at {overrides['rate']} of its rate")
        before = last.overrides if last is not None else {}
        if last is None:
            if overrides and not forgetful:
                self.fail("wasteful", f"{phase} begins with {overrides}")
            return
        outcome = tries.ended_by(now)
        if overrides.get("batch", 0) > before.get("batch", own.batch):
            self._climbed(pod, tries, trainer)
            return
        if overrides == before:
            if outcome and not forgetful:
                self.fail("wasteful", f"{phase} is tried again as it was, after {outcome}")
            return
        if not outcome and not forgetful:
            self.fail("wasteful", f"{phase} is changed to {overrides} for nothing")
        if not set(before) <= set(overrides) and not forgetful:
            self.fail("wasteful", f"{phase} forgets {before} for {overrides}")
        tries.fruitless = -1  # closed in a moment: what is changed is another try
        tries.mended[outcome] += 1
        most = _MOST_MENDED.get(outcome, 0)
        if tries.mended[outcome] > most and not forgetful:
            self.fail("wasteful", f"{phase} is changed for the {most + 1}th time after {outcome}")

    def _climbed(self, pod: Pod, tries: PhaseTries, trainer: SimTrainer) -> None:
        """A larger micro-batch: only after it was told to land for that, never after memory ran
        out, and within what memory there is."""
        last, phase = tries.last, trainer.shape.phase
        own = self.world.truths[pod.lease.run_id].settings_of(phase)
        batch = trainer.overrides["batch"]
        if last is None or last.told_at is None or last.outcome != "landed_signal":
            self.fail("wasteful", f"{phase} begins with a batch of {batch}, for nothing")
        if tries.mended["out_of_memory"]:
            self.fail("wasteful", f"{phase} climbs to {batch}, and has run out of memory")
        rows = own.batch * own.accumulation
        largest = max(n for n in range(1, min(rows, 2 * own.batch) + 1) if rows % n == 0)
        fills = _FILLS_AT_LAST if batch == largest else _FILLS
        if self.world.memory_of(pod.lease.run_id, phase) * batch / own.batch > fills:
            self.fail("wasteful", f"{phase} climbs to {batch}, beyond its memory")
        tries.climbs += 1
        if tries.climbs > _MOST_CLIMBS:
            self.fail("wasteful", f"{phase} climbs for the {tries.climbs}th time")

    def _landed(self, pod: Pod, report: contract.AgentReport) -> None:
        """Judge that a trainer which was told to land early, without an order, is started again."""
        last = next((p for p in reversed(report.phases) if p.state is PhaseState.ENDED), None)
        if last is None or last.outcome != "landed_signal" or pod in self._lives.restarted:
            return
        lease = pod.lease
        soft_at = pod.rented.lease_due_at - (lease.hard_stop_at - lease.soft_stop_at)
        left_s = soft_at - self.world.queue.now - self._lives.early_s(pod)
        ordered = pod.orders is not None and pod.orders.land
        clock_wrong = self._lives.clock_wrong(pod) or abs(pod.rented.granted_ahead_s) > 5.0
        if left_s > lease.min_useful_s + 60 and not ordered and not clock_wrong:
            self.fail("wasteful", f"{last.name} landed for nobody, {left_s:.0f} s early")

    def may_climb(self, pod: Pod) -> bool:
        """Whether its trainer may be told to land for a larger micro-batch."""
        return self._climb_left_s(pod) > _CLIMB_LEAST_S

    def _climb_left_s(self, pod: Pod) -> float:
        """Seconds of training that are left to one with memory to spare; 0: it has none."""
        trainer = pod.trainer
        share = self.world.memory_share(pod.lease.run_id, trainer)
        if trainer is None or share is None or share >= 80 / 141:
            return 0.0
        tries = self._tries.get((pod, trainer.shape.phase))
        if tries is None or any(tries.mended.values()) or tries.climbs >= _MOST_CLIMBS:
            return 0.0
        shape, now, lease = trainer.shape, self.world.queue.now, pod.lease
        # A deaf one does not turn there, and is told so all the same.
        soft_at = pod.rented.lease_due_at - (lease.hard_stop_at - lease.soft_stop_at)
        steps_s = (shape.steps - trainer.step(now)) * shape.step_s
        return min(trainer.turns_at - now, soft_at - now, steps_s)

    def _not_climbed(self, pod: Pod, trainer: SimTrainer, since: float) -> None:
        """With much to train and memory to spare it climbs once its counters are known."""
        tries = self._tries.get((pod, trainer.shape.phase))
        could = (
            pod.running
            and pod.trainer is trainer
            and trainer.attempt == 1
            and trainer.told_at is None
            and trainer.finish_step is None
            and trainer.frozen_at is None
            and tries is not None
            and pod.agent is not None
            and max(self._lives.since(pod), pod.stopped_until) < since
            and not self.world.off
            and not (pod.orders is not None and pod.orders.land)
            and pod.lease.max_restarts >= 0
            and trainer.shape.cooldown_from(trainer.step(self.world.queue.now) + 1) is None
        )
        fits = self.world.memory_of(pod.lease.run_id, trainer.shape.phase) * 1.5 <= 110 / 141
        if could and fits and self._climb_left_s(pod) > _CLIMB_SURELY_S:
            self.fail("wasteful", f"{pod.rented.pod_id}'s trainer has memory to spare")

    def _trains_alone(self, pod: Pod, trainer: SimTrainer) -> None:
        """No other trainer of its run runs on another pod, unless that one's absence could be
        misjudged, or it came up again from nothing."""
        now, undecidable = self.world.queue.now, self.check.undecidable
        for other in self.world.living():
            if other.run_id != pod.lease.run_id or other.pod is pod:
                continue
            if other.name == pod.name or other.came_too_late or undecidable.absence(other):
                continue
            if any(t is not trainer and t.runs(now) for t in other.pod.trainers_alive):
                self.fail("I5", f"{pod.rented.pod_id} trains while {other.pod_id} trains")

    def _not_finished(self, pod: Pod, phase: str) -> None:
        """Judge that no phase is trained again that the ledger knows to be finished."""
        run = self.world.ledger.read().runs.get(pod.lease.run_id)
        if run is None or run.generation is None or self.check.undecidable.woken:
            return
        if run.generation.pod_id != pod.rented.pod_id:
            return
        if phase in finished_on(run, run.generation):
            self.fail("wasteful", f"{phase} is trained again, and the ledger knows it finished")

    def on_finish_request(self, pod: Pod, trainer: SimTrainer) -> None:
        """The agent tells its trainer to come to an end: not one that still pays, by the truth."""
        now, shape = self.world.queue.now, trainer.shape
        rules = lease_of(pod.lease, shape.phase).stop
        number = trainer.step(now) // shape.eval_every
        bpbs = [shape.bpb_at(at * shape.eval_every) for at in range(1, number + 1)]
        spent = bool(bpbs) and len(bpbs) - 1 - bpbs.index(min(bpbs)) >= rules.patience > 0
        # A decision of an attempt before this one holds, though this one began further back.
        if not spent and (pod, shape.phase) not in self._no_longer_pay:
            at = number * shape.eval_every
            self.fail("needless stop", f"{pod.rented.pod_id}'s {shape.phase} still pays at {at}")
        self._no_longer_pay.add((pod, shape.phase))

    def _must_end(self, pod: Pod, trainer: SimTrainer) -> None:
        """When the first evaluation is there by which its rule holds, it is told."""
        rules = lease_of(pod.lease, trainer.shape.phase).stop
        if not trainer.tells_worth:
            return
        shape, number = trainer.shape, trainer.from_step // trainer.shape.eval_every + 1
        while shape.cooldown_from((number + 1) * shape.eval_every + 1) is None:
            left = shape.steps - number * shape.eval_every
            if left <= 0:
                return
            if why_stop(rules, trainer.curve_after(number), left):
                look = partial(self._untold, pod, trainer, number)
                self.world.queue.at(trainer.evaluated_at(number) + _TOLD_S, look)
                return
            number += 1

    def _untold(self, pod: Pod, trainer: SimTrainer, number: int) -> None:
        now, since = self.world.queue.now, trainer.evaluated_at(number)
        could = (
            pod.running
            and pod.trainer is trainer
            and trainer.runs(now)
            and trainer.frozen_at is None
            and not trainer.requested
            and trainer.told_at is None
            and trainer.curve(now) is not None
            and now + trainer.shape.step_s < trainer.turns_at
            and pod.agent is not None
            and max(self._lives.since(pod), pod.stopped_until) < since
            and not self.world.off
        )
        ordered = pod.orders is not None and pod.orders.land
        if could and not ordered:
            self.fail("wasteful", f"{pod.rented.pod_id}'s trainer goes on, and no longer pays")

    def judge_result(self, pod: Pod, report: contract.AgentReport) -> None:
        """The agent has said its last word: not before it has tried what could help."""
        self._landed(pod, report)
        last = next((p for p in reversed(report.phases) if p.state is PhaseState.ENDED), None)
        if report.result != Outcome.FAILED.value or last is None or pod in self._lives.restarted:
            return
        now, lease = self.world.queue.now, pod.lease
        tries = self._tries.get((pod, last.name))
        if tries is None or tries.last is None:
            return
        outcome = tries.ended_by(now)
        if outcome and tries.mended[outcome] >= _MOST_MENDED[outcome]:
            return
        if not outcome and tries.last.outcome not in RETRYABLE:
            return
        tries.close(now)
        if outcome:
            tries.fruitless = 0
        soft_at = pod.rented.lease_due_at - (lease.hard_stop_at - lease.soft_stop_at)
        left_s = soft_at - now - self._lives.early_s(pod)
        ordered = pod.orders is not None and pod.orders.land
        useful = tries.fruitless <= lease.max_restarts and left_s > lease.min_useful_s + 60
        if useful and not ordered:
            self.fail("wasteful", f"{last.name} crashed and was not tried again")
