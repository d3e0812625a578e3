"""What each layer on a pod owes by itself, whether or not the one beneath it would have acted.

The trainer gets a deadline that keeps the lease; the agent lands it when told, kills it when it
hangs and at the hard stop, starts it again when that is worth it, and never kills one that works;
the watchdog ends the pod.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.pod_contract import PhaseState
from trmcloud.core.contract.worth import StopRules, why_stop
from trmcloud.core.control.actions import TERMINATE
from trmcloud.core.control.report_events import finished_on
from trmcloud.core.control.run_state import State
from trmcloud.core.outcome import Outcome
from trmcloud.pod.agent.watchdog import HARD_STOP
from trmcloud.sim.world.said import Said

if TYPE_CHECKING:
    from trmcloud.core.contract.manifest import CheckpointManifest
    from trmcloud.pod.agent.loop import AgentLoop
    from trmcloud.sim.world.account import Rented
    from trmcloud.sim.world.pod import SimPod
    from trmcloud.sim.world.store import Checkpoint
    from trmcloud.sim.world.trainer import Shape, SimTrainer
    from trmcloud.sim.world.world import SimWorld

_LAYER_S = 15.0
"""An agent or watchdog that lives and is awake has acted by then."""
_HEED_S = 60.0
_COMPILES_S = 900.0
_LOOK_S = 150.0
_FOR_EVER_S = 1e9
_TOLD_S = 120.0
"""A trainer that no longer pays by its newest evaluation is told by then."""
_MOST_STORED = 3
_STILL_PAYS = 2.0
_SAVED_S = 900.0
"""A controller that is there has passed a request to save on by then."""
_STORED_S = 120.0
"""Some checkpoints have come to a store that is well by then."""
_GRANTED_S = 200.0
"""A controller that is there has given a pod that waits for it the right to upload by then."""
_SENT_S = 400.0
"""And has sent it its files, or sent them again where it lost them and its clock is wrong."""


def _latest(made: Sequence[Checkpoint]) -> CheckpointManifest:
    return max((c.manifest for c in made), key=lambda manifest: manifest.step)


_MOST_MENDED = {"out_of_memory": 6, "non_finite": 3}
"""Other settings that a simulated phase can be tried with: its micro-batch halved three times,
checkpointing, no compiling, no workers; half the rate twice, and one preset below its own."""
_OVERRIDABLE = {
    "batch", "accumulation", "activation_checkpointing", "compile", "loader_workers",
    "rate", "preset",
}  # fmt: skip


class Tries:
    """How often a phase has been started on one pod without a newer checkpoint, by the truth."""

    def __init__(self) -> None:
        self.last: SimTrainer | None = None
        self.saved = 0
        self.fruitless = 0
        self.mended: Counter[str] = Counter()
        """Starts with other settings than those before, by the outcome that they followed."""

    def ended_by(self, now: float) -> str:
        """What settings might have mended of the last attempt's end; empty: nothing."""
        last = self.last
        told = last is not None and not last.runs(now) and last.killed_at is None
        return last.outcome if last and told and last.outcome in _MOST_MENDED else ""

    def close(self, now: float) -> None:
        if self.last is None:
            return
        saved = self.last.saved_step(now) or 0
        self.fruitless = 0 if saved > self.saved else self.fruitless + 1
        self.saved, self.last = max(saved, self.saved), None


class AgentOracle:
    """Watches the pods of one world. ``fail`` takes an invariant's name and the detail."""

    def __init__(self, world: SimWorld, fail: Callable[[str, str], None]) -> None:
        self.world, self.fail = world, fail
        self._tries: dict[tuple[SimPod, str], Tries] = {}
        self._restarted: set[SimPod] = set()
        self._since: dict[SimPod, float] = {}
        self._agents: dict[SimPod, int] = {}
        self._awaiting: dict[SimPod, float] = {}
        self._ungranted: dict[SimPod, float] = {}
        self._unsent: dict[SimPod, float] = {}
        self._no_longer_pay: set[tuple[SimPod, str]] = set()
        self._stored_times: Counter[tuple[str, contract.Kept]] = Counter()

    # -- what happens to a pod ----------------------------------------------------------------

    def booted(self, pod: SimPod) -> None:
        self._at_stop(pod, partial(self._stopped_hard, pod))

    def restarted(self, pod: SimPod, *, wiped: bool) -> None:
        """Its container began anew; ``wiped``: with nothing of what its agent wrote."""
        if wiped:
            pod.written = Said()
        self._restarted.add(pod)
        for key in [key for key in self._tries if key[0] is pod]:
            del self._tries[key]

    def agent_started(self, pod: SimPod, agent: AgentLoop) -> None:
        """An agent, perhaps after another one, may not believe in more time than was granted."""
        now = self.world.queue.now
        self._since[pod] = now
        self._agents[pod] = self._agents.get(pod, 0) + 1
        left_s = agent.hard_left_s()
        if left_s > pod.rented.due_at - now + self.late_s(pod) + 1.0:
            self.fail("I2", f"{pod.rented.pod_id}'s agent believes in {left_s:.0f} s")

    def spawned(self, pod: SimPod, trainer: SimTrainer, from_deadline_s: float) -> None:
        now, lease, phase = self.world.queue.now, pod.lease, trainer.shape.phase
        soft_at = pod.rented.due_at - (lease.hard_stop_at - lease.soft_stop_at)
        if from_deadline_s > max(0.0, soft_at - now) + self.late_s(pod) + 1.0:
            self.fail("I2", f"{pod.rented.pod_id}'s trainer may go on after the soft stop")
        share = next(p for p in lease.phases if p.name == phase)
        if share.allowed_s and from_deadline_s > share.allowed_s + 1.0:
            self.fail("wasteful", f"{phase} may take more than its share")
        self._may_upload(pod, phase, trainer.from_step)
        self._not_finished(pod, phase)
        tries = self._tries.setdefault((pod, phase), Tries())
        if phase in pod.written.finished:
            self.fail("wasteful", f"{phase} is trained again, and had finished")
        again = tries.last is not None
        forgetful = pod in self._restarted or self._agents.get(pod, 0) > 1
        self._overridden(pod, tries, trainer, now, forgetful=forgetful)
        tries.close(now)
        # One that is killed between starting a trainer and noting it down has not counted it.
        forgotten = max(0, self._agents.get(pod, 0) - 1)
        if again and tries.fruitless > lease.max_restarts + forgotten:
            self.fail("wasteful", f"{phase} is tried again after {tries.fruitless} fruitless tries")
        tries.last = trainer
        self._must_end(pod, trainer)
        if trainer.frozen_at is not None:
            look = partial(self._hung, pod, trainer)
            self.world.queue.at(trainer.frozen_at + self._patience_s(pod, trainer), look)

    def _overridden(
        self, pod: SimPod, tries: Tries, trainer: SimTrainer, now: float, *, forgetful: bool
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
        if not own.batch / 8 <= overrides.get("batch", own.batch) <= own.batch:
            self.fail("wasteful", f"{phase} is started with a batch of {overrides['batch']}")
        if not 0.25 <= overrides.get("rate", 1.0) <= 1.0:
            self.fail("wasteful", f"{phase} is started at {overrides['rate']} of its rate")
        before = last.overrides if last is not None else {}
        if last is None:
            if overrides and not forgetful:
                self.fail("wasteful", f"{phase} begins with {overrides}")
            return
        outcome = tries.ended_by(now)
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

    def _may_upload(self, pod: SimPod, phase: str, from_step: int) -> None:
        """A pod that is to upload has the right to, and what it was given to go on from."""
        if not pod.lease.uploads:
            return
        if pod.uploader.grants is None:
            self.fail("I3", f"{pod.rented.pod_id} trains {phase} and may not upload")
            return
        if from_step < pod.uploader.furthest.get(phase, 0):
            self.fail("wasteful", f"{pod.rented.pod_id} trains {phase} again from {from_step}")
        if pod.uploader.withheld and "50" not in self.world.fired:
            what = " ".join(sorted(pod.uploader.withheld))
            self.fail("I3", f"{pod.rented.pod_id} was not given {what}, to go on from if need be")

    def _not_finished(self, pod: SimPod, phase: str) -> None:
        """What the ledger knows to be finished is not trained again, whatever the pod has lost."""
        run = self.world.ledger.read().runs.get(pod.lease.run_id)
        if run is None or run.generation is None or self.world.check.truth.woken:
            return
        if run.generation.pod_id != pod.rented.pod_id:
            return
        if phase in finished_on(run, run.generation):
            self.fail("wasteful", f"{phase} is trained again, and the ledger knows it finished")

    def no_longer_pays(self, pod: SimPod, trainer: SimTrainer) -> None:
        """The agent tells its trainer to come to an end: not one that still pays, by the truth."""
        now, shape = self.world.queue.now, trainer.shape
        rules = next(p.stop for p in pod.lease.phases if p.name == shape.phase)
        number = trainer.step(now) // shape.eval_every
        bpbs = [shape.bpb_at(at * shape.eval_every) for at in range(1, number + 1)]
        spent = bool(bpbs) and len(bpbs) - 1 - bpbs.index(min(bpbs)) >= rules.patience > 0
        at = number * shape.eval_every
        # A decision of an attempt before this one holds, though this one began further back.
        decided = (pod, shape.phase) in self._no_longer_pay
        # A line is no prophecy; what buys twice the rule is no matter of how it is drawn.
        buys = self._buys(shape, at, rules)
        if not (spent or decided) and buys >= _STILL_PAYS * rules.gain_per_usd:
            self.fail("needless stop", f"{pod.rented.pod_id}'s {shape.phase} still pays at {at}")
        self._no_longer_pay.add((pod, shape.phase))

    @staticmethod
    def _buys(shape: Shape, step: int, rules: StopRules) -> float:
        """Bits per byte that a dollar really buys from ``step`` on."""
        step_s = shape.seconds_to(shape.eval_every) / shape.eval_every
        usd = rules.usd_per_hour * step_s / 3600.0
        if usd <= 0.0 or step >= shape.steps:
            return 0.0
        more = min(1.0 / usd, shape.steps - step)
        return (shape.bpb_at(step) - shape.bpb_at(step + max(1, int(more)))) / (more * usd)

    def _must_end(self, pod: SimPod, trainer: SimTrainer) -> None:
        """When the first evaluation is there by which its rule holds, it is told."""
        rules = next(p.stop for p in pod.lease.phases if p.name == trainer.shape.phase)
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

    def _untold(self, pod: SimPod, trainer: SimTrainer, number: int) -> None:
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
            and max(self._since.get(pod, now), pod.stopped_until) < since
            and not self.world.off
        )
        ordered = pod.orders is not None and pod.orders.land
        if could and not ordered:
            self.fail("wasteful", f"{pod.rented.pod_id}'s trainer goes on, and no longer pays")

    def killed(self, pod: SimPod, trainer: SimTrainer) -> None:
        """The agent kills a trainer: not one that works, unless nobody wrote down that it does."""
        now = self.world.queue.now
        noted = pod.trainer_note is not None and pod.trainer_note.pid == trainer.pid
        ill = trainer.ill is not None and (
            trainer.ill.kind == "deaf" or now >= trainer.started_at + trainer.ill.after_s
        )
        due = pod.machine.now().wall >= pod.lease.hard_stop_at or now >= pod.rented.due_at
        if trainer.runs(now) and noted and not ill and not due and not self._clock_wrong(pod):
            self.fail("needless kill", f"{pod.rented.pod_id}'s trainer was at work")

    def released(self, rented: Rented) -> None:
        """A controller ends a pod whose work is done and that is held for it: all of worth is here,
        with its metric."""
        made = self.world.files.checkpoints.get(rented.run_id, ())
        # What is damaged counts as best or latest to an agent that has not read it again, and what
        # was brought here before it was damaged, or left out of a list, to a controller.
        mine = [c for c in made if c.pod_id == rented.pod_id and (c.readable or c.home)]
        for each in mine:
            here = each.home and each.seen("home") == each.manifest
            if each.whole and not here and self._is_of_worth(each, mine, mine):
                self.fail("I3", f"{rented.pod_id} is ended, and {each.manifest.label} is not here")

    def save_wished(self, run_id: str) -> None:
        """A user has asked for a checkpoint: where a controller is there it is made."""
        pods = [r.pod for r in self.world.living() if r.run_id == run_id and r.pod.running]
        if len(pods) == 1 and pods[0].trainer is not None:
            look = partial(self._saved, pods[0], pods[0].trainer, self.world.queue.now)
            self.world.queue.after(_SAVED_S, look)

    def _saved(self, pod: SimPod, trainer: SimTrainer, asked_at: float) -> None:
        now, knobs = self.world.queue.now, self.world.knobs
        able_since = self.world.check.exposure.able.get(pod.lease.run_id, now)
        run = self.world.ledger.read().runs.get(pod.lease.run_id)
        could = (
            pod.running
            and pod.trainer is trainer
            and trainer.trains_at < asked_at
            and trainer.frozen_at is None
            and now + 2 * trainer.shape.step_s + trainer.shape.save_s < trainer.turns_at
            and trainer.runs(now)
            and pod.agent is not None
            and self._since.get(pod, now) < asked_at
            and max(able_since, knobs.link_down_until, pod.stopped_until) < asked_at
            and not (knobs.unheard or knobs.crossed_reports or knobs.pod_disk_full)
            and not (self.world.off or self.world.check.truth.woken)
            and run is not None
            and run.state is State.RUNNING
            and run.stop is None
        )
        if could and not any(begins > asked_at for begins, _ in trainer.requested):
            self.fail("wasteful", f"{pod.rented.pod_id} was asked to save, and goes on without")

    def told(self, pod: SimPod) -> None:
        """The agent tells its trainer to land: somebody asked it to, or the soft stop is there."""
        ordered = pod.orders is not None and pod.orders.land
        soft_at = pod.rented.due_at - (pod.lease.hard_stop_at - pod.lease.soft_stop_at)
        early_s = soft_at - self.world.queue.now - self.late_s(pod)
        wrong = self._clock_wrong(pod) or pod in self._restarted
        wrong = wrong or abs(pod.rented.granted_ahead_s) > 5.0
        if not ordered and early_s > 5.0 and not wrong:
            self.fail("needless kill", f"{pod.rented.pod_id} is landed {early_s:.0f} s early")

    def ticked(self, pod: SimPod) -> None:
        """The agent has looked and acted, and lives: what it started must be on its disk, and what
        it waits for must get on."""
        self._awaits(pod)
        trainer = pod.trainer
        if trainer is None or not trainer.runs(self.world.queue.now):
            return
        if pod.trainer_note is None or pod.trainer_note.pid != trainer.pid:
            self.fail("I2", f"{pod.rented.pod_id}'s trainer is not written down")

    def _awaits(self, pod: SimPod) -> None:
        """Money first: uploads that do not get on are waited for as long as landing may take."""
        now, agent = self.world.queue.now, pod.agent
        for what, waits in (("grants", self._ungranted), ("files", self._unsent)):
            if agent is not None and agent.report.waiting == what:
                waits.setdefault(pod, now)
            else:
                waits.pop(pod, None)
        if agent is None or not agent.report.uploading:
            self._awaiting.pop(pod, None)
            return
        began = self._awaiting.setdefault(pod, now)
        since = max(began, self._since[pod], pod.stopped_until, pod.uploader.moved_at)
        if now - since > max(pod.lease.landing_s, _LAYER_S) + _LOOK_S:
            self.fail("wasteful", f"{pod.rented.pod_id} waits for uploads for {now - since:.0f} s")

    def guard_ends(self, pod: SimPod, why: str) -> None:
        """The watchdog ends the pod: for its hard stop not before that."""
        early_s = pod.rented.due_at - self.world.queue.now
        wrong = pod.machine.offset_s or abs(pod.rented.granted_ahead_s) > 5.0
        if why == HARD_STOP and early_s > 5.0 and not wrong:
            self.fail("needless kill", f"{pod.rented.pod_id} is ended {early_s:.0f} s early")

    def done(self, pod: SimPod, report: contract.AgentReport) -> None:
        """The agent has said its last word: not before it has tried what could help, nor before
        what is best and what is latest is in the bucket."""
        if pod.lease.uploads:
            self._stored(pod, report)
        self._supplied(pod, report)
        last = next((p for p in reversed(report.phases) if p.state is PhaseState.ENDED), None)
        if report.result != Outcome.FAILED.value or last is None or pod in self._restarted:
            return
        now, lease = self.world.queue.now, pod.lease
        tries = self._tries.get((pod, last.name))
        if tries is None or tries.last is None:
            return
        outcome = tries.ended_by(now)
        if outcome and tries.mended[outcome] >= _MOST_MENDED[outcome]:
            return
        if not outcome and tries.last.outcome not in contract.RETRYABLE:
            return
        tries.close(now)
        if outcome:
            tries.fruitless = 0
        soft_at = pod.rented.due_at - (lease.hard_stop_at - lease.soft_stop_at)
        left_s = soft_at - now - abs(self.late_s(pod))
        orders = pod.orders is not None and pod.orders.land
        if (
            tries.fruitless <= lease.max_restarts
            and left_s > lease.min_useful_s + 60
            and not orders
        ):
            self.fail("wasteful", f"{last.name} crashed and was not tried again")

    def stored(self, pod: SimPod, kept: contract.Kept) -> None:
        """An upload is through: the very same bits are not sent again and again, at the pod's
        rent. What another one was written over, once, may come back."""
        self._stored_times[pod.rented.pod_id, kept] += 1
        times = self._stored_times[pod.rented.pod_id, kept]
        if times > _MOST_STORED:
            label = f"{kept.phase} {kept.step}"
            self.fail("wasteful", f"{pod.rented.pod_id} stores {label} for the {times}th time")

    def writes_over(self, pod: SimPod, phase: str, slot: str) -> None:
        """An upload begins, into a slot: not into the one with what was saved before the cooldown
        that the latest in the pod's slots is in. A store that does not list it yet hides it."""
        made = self.world.files.checkpoints.get(pod.lease.run_id, ())
        generation = slot.partition("-")[0]
        there = [c for c in made if c.slot.partition("-")[0] == generation]
        there = [c for c in there if c.manifest.phase == phase]
        if "50" in self.world.fired or not there:
            return
        first = _latest(there).cooldown_from
        held = [c.slot for c in there if c.manifest.step == first and c.whole]
        if held == [slot]:
            self.fail(
                "I3", f"{pod.rented.pod_id} writes over {phase} {first}: it cooled from there"
            )

    def _stored(self, pod: SimPod, report: contract.AgentReport) -> None:
        """What is best and what is latest is in the bucket, or could not come there."""
        now, knobs = self.world.queue.now, self.world.knobs
        made = self.world.files.checkpoints.get(pod.lease.run_id, ())
        mine = [c for c in made if c.pod_id == pod.rented.pod_id]
        # What is damaged counts as best or latest to an agent that has not read it again.
        owed = [
            c
            for c in mine
            if c.whole
            and not (c.slot and c.seen("slot") == c.manifest)
            and self._is_of_worth(c, mine, made)
        ]
        if "not everything could be uploaded" in report.message:
            down_until = max(knobs.bucket_down_until, knobs.pod_api_down_until)
            left_s = pod.agent.hard_left_s() if pod.agent is not None else 0.0
            able = pod.lease.landing_s > _STORED_S and now - down_until > _STORED_S
            if able and left_s > _STORED_S and not pod.machine.offset_s:
                self.fail("I3", f"{pod.rented.pod_id} gives up its uploads, and the store is well")
        elif owed and report.result != Outcome.KILLED.value:
            label = owed[0].manifest.label
            self.fail("I3", f"{pod.rented.pod_id} is done and {label} is not stored")

    def _supplied(self, pod: SimPod, report: contract.AgentReport) -> None:
        """Nobody sent it its files, or gave it the right to upload: not while somebody could, for
        as long as it waits."""
        knobs, now = self.world.knobs, self.world.queue.now
        able_since = self.world.check.exposure.able.get(pod.lease.run_id)
        deaf = knobs.unheard or knobs.crossed_reports or knobs.pod_disk_full
        since = max(knobs.link_down_until, able_since or now)
        run = self.world.ledger.read().runs.get(pod.lease.run_id)
        ended = run is None or run.stop is not None or any(
            action.verb == TERMINATE for action in run.actions.values()
        )  # fmt: skip
        # One that came too late is nobody's: it is to be ended, not supplied.
        here = run.generation if run is not None else None
        superseded = here is not None and here.pod_name != pod.name
        # A link leads to a name: of two that bear it the other one may be spoken to.
        twins = sum(r.name == pod.name for r in pod.rented.account.pods.values())
        if deaf or ended or superseded or twins > 1:
            return
        ungranted = max(since, knobs.bucket_down_until, self._ungranted.get(pod, now))
        if "still grants" in report.message and now - ungranted > _GRANTED_S:
            self.fail("wasteful", f"{pod.rented.pod_id} was never given the right to upload")
        if (
            "still files" in report.message
            and now - max(since, self._unsent.get(pod, now)) > _SENT_S
        ):
            self.fail("wasteful", f"{pod.rented.pod_id} was never sent its files")

    @staticmethod
    def _is_of_worth(
        made: Checkpoint, mine: Sequence[Checkpoint], all_: Sequence[Checkpoint]
    ) -> bool:
        """Whether the pod owes it: the latest of ``mine``, what was saved before its cooldown, or
        their best, where the bucket has none as good."""
        phase, bpb = made.manifest.phase, made.manifest.val_bpb
        latest = _latest([c for c in mine if c.manifest.phase == phase])
        if made.manifest.step in (latest.step, latest.cooldown_from):
            return True
        rivals = [c for c in all_ if c.manifest.phase == phase and (c in mine or c.slot)]
        scores = [
            (c.manifest if c in mine else c.seen("slot")).val_bpb for c in rivals if c is not made
        ]
        return bpb is not None and all(bpb < score for score in scores if score is not None)

    def finish(self) -> None:
        """Whatever an agent has told to be in the bucket is there in the end, or a better one."""
        if "50" in self.world.fired:
            return  # a manifest that is not listed yet
        for account in self.world.accounts.values():
            for rented in account.pods.values():
                made = self.world.files.checkpoints.get(rented.run_id, ())
                for phase, best in rented.pod.said.uploaded.items():
                    there = [c for c in made if c.manifest.phase == phase and c.slot and c.whole]
                    if not any(c.true_bpb <= best for c in there):
                        self.fail(
                            "I3", f"{rented.pod_id} told of {phase} in the bucket: it is lost"
                        )

    def ordered(self, pod: SimPod) -> None:
        """Orders to land have reached the pod."""
        agent = pod.agent
        if agent is not None:
            look = partial(self._unheeded, pod, agent)
            self.world.queue.after(_HEED_S + self._asleep_s(pod), look)

    # -- what must have followed --------------------------------------------------------------

    def _at_stop(self, pod: SimPod, look: Callable[[], None]) -> None:
        self.world.queue.at(pod.rented.due_at + self.late_s(pod) + _LAYER_S, look)

    def _stopped_hard(self, pod: SimPod) -> None:
        now = self.world.queue.now
        if not pod.running or pod.rented.deleting:
            return
        awake = now - pod.stopped_until > _LAYER_S and not self.world.off & {"agent"}
        old = now - self._since.get(pod, now) > _LAYER_S
        if now < pod.rented.due_at + self.late_s(pod) + _LAYER_S - 1.0:
            self._at_stop(pod, partial(self._stopped_hard, pod))
            return
        if pod.agent is not None and awake and old and any(t.runs(now) for t in pod.trainers_alive):
            self.fail("I2", f"{pod.rented.pod_id}'s agent lets its trainer outlive the hard stop")
        guarded = pod.guard is not None and now - pod.stopped_until > _LAYER_S
        if guarded and not pod.ending and now - pod.booted_at > _LAYER_S:
            self.fail("I2", f"{pod.rented.pod_id}'s watchdog does nothing at the hard stop")

    def _hung(self, pod: SimPod, trainer: SimTrainer) -> None:
        now = self.world.queue.now
        if not pod.running or not trainer.runs(now) or trainer.frozen_at is None:
            return
        if pod.agent is None or self.world.off & {"agent"}:
            return
        since = max(trainer.frozen_at, self._since[pod], pod.stopped_until)
        patience_s = self._patience_s(pod, trainer)  # it may have been told to land since
        if now >= since + patience_s:
            self.fail("wasteful", f"{pod.rented.pod_id}'s trainer hangs for {now - since:.0f} s")
        else:
            self.world.queue.at(since + patience_s, partial(self._hung, pod, trainer))

    def _unheeded(self, pod: SimPod, agent: AgentLoop) -> None:
        now, trainer = self.world.queue.now, pod.trainer
        if not pod.running or pod.agent is not agent or "agent" in self.world.off:
            return
        if self._asleep_s(pod):
            self.ordered(pod)
            return
        if trainer is None or not trainer.runs(now) or trainer.told_at is not None:
            return
        if trainer.frozen_at is None and now < trainer.turns_at:
            self.fail("wasteful", f"{pod.rented.pod_id}'s agent does not heed its orders")

    # -- how long things may take -------------------------------------------------------------

    def late_s(self, pod: SimPod) -> float:
        """How late its processes may be, where clocks were wrong; see ``Exposure``.

        After a restart the boot clock starts anew, and a wall clock that is wrong is all there is.
        """
        if pod in self._restarted and pod.machine.offset_s:
            return _FOR_EVER_S
        return self.world.check.exposure.late_s(pod.rented)

    def _clock_wrong(self, pod: SimPod) -> bool:
        return self.late_s(pod) > 5.0 or bool(pod.machine.offset_s)

    def _asleep_s(self, pod: SimPod) -> float:
        return max(0.0, pod.stopped_until - self.world.queue.now)

    @staticmethod
    def _patience_s(pod: SimPod, trainer: SimTrainer) -> float:
        """How long the lease lets it show no progress, and until the agent's next look."""
        frozen_at = trainer.frozen_at or 0.0
        most_s = 20 * trainer.shape.step_s
        if frozen_at < trainer.trains_at:
            most_s = _COMPILES_S
        elif frozen_at >= trainer.turns_at:
            ordered = pod.orders is not None and pod.orders.land
            most_s = (1 if ordered or trainer.told_at else 4) * pod.lease.landing_s
        return max(pod.lease.hang_after_s, most_s) + _LOOK_S
