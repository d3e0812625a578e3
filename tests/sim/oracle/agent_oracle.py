"""Judges each layer on a pod by itself, whether or not the one beneath it would have acted.

The trainer gets a deadline that keeps the lease; the agent lands it when told, kills it when it
hangs and at the hard stop, and never kills one that works; the watchdog ends the pod. ``attempts``
judges how a phase is tried again and told to end, ``uploads`` what comes to a bucket. A boot that
failed by its provider's log is judged here, too: by what was true from the fatal line on, where
nothing else stood in the way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tests.sim.oracle.attempts import AttemptJudge
from tests.sim.oracle.uploads import UploadJudge
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.control.actions import CREATE
from trmcloud.core.control.pod_facts import absence_needed_s
from trmcloud.core.control.renting import storage_beside_disks
from trmcloud.core.control.run_state import Generation, RunState, State
from trmcloud.core.money import affordable_seconds, cost
from trmcloud.pod.agent.loop import AgentLoop
from trmcloud.pod.agent.watchdog import HARD_STOP
from trmcloud.sim.world.account import Observer, Pod, RentedMachine
from trmcloud.sim.world.trainer import SimTrainer

if TYPE_CHECKING:
    from tests.sim.oracle.invariants import Invariants


_LAYER_S = 15.0
"""An agent or watchdog that lives and is awake has acted by then."""
_HEED_S = 60.0
_COMPILES_S = 900.0
_LOOK_S = 150.0
_SAVED_S = 900.0
"""A controller that is there has passed a request to save on by then."""


class AgentOracle(Observer):
    """Watches the pods of one world."""

    def __init__(self, check: Invariants) -> None:
        self.check, self.world, self.fail = check, check.world, check.world.fail
        self._lives = check.lives
        self.attempts = AttemptJudge(check)
        self.uploads = UploadJudge(check)

    # -- what happens to a pod ----------------------------------------------------------------

    def on_boot(self, pod: Pod) -> None:
        self._at_stop(pod, partial(self._stopped_hard, pod))

    def on_restart(self, pod: Pod, *, wiped: bool) -> None:
        """Its container began anew; ``wiped``: with nothing of what its agent wrote."""
        self._lives.restarted.add(pod)
        self.attempts.judge_restart(pod)

    def on_agent_start(self, pod: Pod, agent: AgentLoop) -> None:
        """An agent, perhaps after another one, may not believe in more time than was granted."""
        now = self.world.queue.now
        self._lives.on_agent_start(pod)
        left_s = agent.hard_left_s()
        if left_s > pod.rented.lease_due_at - now + self._lives.late_s(pod) + 1.0:
            self.fail("I2", f"{pod.rented.pod_id}'s agent believes in {left_s:.0f} s")

    def on_spawn(self, pod: Pod, trainer: SimTrainer, from_deadline_s: float) -> None:
        now, lease, phase = self.world.queue.now, pod.lease, trainer.shape.phase
        soft_at = pod.rented.lease_due_at - (lease.hard_stop_at - lease.soft_stop_at)
        if from_deadline_s > max(0.0, soft_at - now) + self._lives.late_s(pod) + 1.0:
            self.fail("I2", f"{pod.rented.pod_id}'s trainer may go on after the soft stop")
        share = next(p for p in lease.phases if p.name == phase)
        if share.allowed_s and from_deadline_s > share.allowed_s + 1.0:
            self.fail("wasteful", f"{phase} may take more than its share")
        self.uploads.judge_spawn(pod, phase, trainer.from_step)
        self.attempts.judge_spawn(pod, trainer)
        if trainer.frozen_at is not None:
            look = partial(self._hung, pod, trainer)
            self.world.queue.at(trainer.frozen_at + self._patience_s(pod, trainer), look)

    def on_kill(self, pod: Pod, trainer: SimTrainer) -> None:
        """The agent kills a trainer: not one that works, unless no record says so."""
        now = self.world.queue.now
        noted = pod.trainer_note is not None and pod.trainer_note.pid == trainer.pid
        ill = trainer.ill is not None and (
            trainer.ill.kind == "deaf" or now >= trainer.started_at + trainer.ill.after_s
        )
        ill = ill or now >= trainer.silent_from
        due = pod.machine.now().wall >= pod.lease.hard_stop_at or now >= pod.rented.lease_due_at
        if trainer.runs(now) and noted and not ill and not due and not self._lives.clock_wrong(pod):
            self.fail("needless kill", f"{pod.rented.pod_id}'s trainer was at work")

    def on_save_request(self, run_id: str) -> None:
        """A user has asked for a checkpoint: where a controller is there it is made."""
        pods = [r.pod for r in self.world.living() if r.run_id == run_id and r.pod.running]
        if len(pods) == 1 and pods[0].trainer is not None:
            look = partial(self._saved, pods[0], pods[0].trainer, self.world.queue.now)
            self.world.queue.after(_SAVED_S, look)

    def _saved(self, pod: Pod, trainer: SimTrainer, asked_at: float) -> None:
        now, knobs = self.world.queue.now, self.world.knobs
        able_since = self.check.exposure.able.get(pod.lease.run_id, now)
        run = self.world.ledger.read().runs.get(pod.lease.run_id)
        could = (
            pod.running
            and pod.trainer is trainer
            and trainer.heeds_saves
            and trainer.trains_at < asked_at
            and trainer.told_at is None  # one that was told to land saves by that, or is deaf
            and trainer.frozen_at is None
            and now + 2 * trainer.shape.step_s + trainer.shape.save_s < trainer.turns_at
            and trainer.runs(now)
            and pod.agent is not None
            and self._lives.since(pod) < asked_at
            and max(able_since, knobs.link_down_until, pod.stopped_until) < asked_at
            and not (knobs.unheard or knobs.crossed_reports or knobs.pod_disk_full)
            and not (self.world.off or self.check.undecidable.woken)
            and run is not None
            and run.state is State.RUNNING
            and run.stop is None
        )
        if could and not any(begins > asked_at for begins, _ in trainer.requested):
            self.fail("wasteful", f"{pod.rented.pod_id} was asked to save, and goes on without")

    def on_land_request(self, pod: Pod) -> None:
        """The agent tells its trainer to land: somebody asked it to, or the soft stop is there."""
        ordered = pod.orders is not None and pod.orders.land
        soft_at = pod.rented.lease_due_at - (pod.lease.hard_stop_at - pod.lease.soft_stop_at)
        early_s = soft_at - self.world.queue.now - self._lives.late_s(pod)
        wrong = self._lives.clock_wrong(pod) or pod in self._lives.restarted
        wrong = wrong or abs(pod.rented.granted_ahead_s) > 5.0
        if not ordered and early_s > 5.0 and not wrong and not self.attempts.may_climb(pod):
            self.fail("needless kill", f"{pod.rented.pod_id} is landed {early_s:.0f} s early")

    def on_tick(self, pod: Pod) -> None:
        """The agent has looked and acted, and lives: what it started must be on its disk, and what
        it waits for must get on."""
        self.uploads.judge_tick(pod)
        trainer = pod.trainer
        if trainer is None or not trainer.runs(self.world.queue.now):
            return
        if pod.trainer_note is None or pod.trainer_note.pid != trainer.pid:
            self.fail("I2", f"{pod.rented.pod_id}'s trainer is not written down")

    def on_watchdog_end(self, pod: Pod, why: str) -> None:
        """The watchdog ends the pod: for its hard stop not before that."""
        early_s = pod.rented.lease_due_at - self.world.queue.now
        wrong = pod.machine.offset_s or abs(pod.rented.granted_ahead_s) > 5.0
        if why == HARD_STOP and early_s > 5.0 and not wrong:
            self.fail("needless kill", f"{pod.rented.pod_id} is ended {early_s:.0f} s early")

    def on_result(self, pod: Pod, report: contract.AgentReport) -> None:
        """The agent has said its last word."""
        self.uploads.judge_result(pod, report)
        self.attempts.judge_result(pod, report)

    def on_orders(self, pod: Pod) -> None:
        """Orders to land have reached the pod."""
        agent = pod.agent
        if agent is not None:
            look = partial(self._unheeded, pod, agent)
            self.world.queue.after(_HEED_S + self._asleep_s(pod), look)

    # -- what must have followed --------------------------------------------------------------

    def _at_stop(self, pod: Pod, look: Callable[[], None]) -> None:
        self.world.queue.at(pod.rented.lease_due_at + self._lives.late_s(pod) + _LAYER_S, look)

    def _stopped_hard(self, pod: Pod) -> None:
        now = self.world.queue.now
        if not pod.running or pod.rented.deleting:
            return
        awake = now - pod.stopped_until > _LAYER_S and not self.world.off & {"agent"}
        old = now - self._lives.since(pod) > _LAYER_S
        if now < pod.rented.lease_due_at + self._lives.late_s(pod) + _LAYER_S - 1.0:
            self._at_stop(pod, partial(self._stopped_hard, pod))
            return
        if pod.agent is not None and awake and old and any(t.runs(now) for t in pod.trainers_alive):
            self.fail("I2", f"{pod.rented.pod_id}'s agent lets its trainer outlive the hard stop")
        guarded = (
            pod.guard is not None and not pod.guard_stopped and now - pod.stopped_until > _LAYER_S
        )
        if guarded and not pod.ending and now - pod.booted_at > _LAYER_S:
            self.fail("I2", f"{pod.rented.pod_id}'s watchdog does nothing at the hard stop")

    def _hung(self, pod: Pod, trainer: SimTrainer) -> None:
        now = self.world.queue.now
        if not pod.running or not trainer.runs(now) or trainer.frozen_at is None:
            return
        if pod.agent is None or self.world.off & {"agent"}:
            return
        since = max(trainer.frozen_at, self._lives.since(pod), pod.stopped_until)
        patience_s = self._patience_s(pod, trainer)  # it may have been told to land since
        if now >= since + patience_s:
            self.fail("wasteful", f"{pod.rented.pod_id}'s trainer hangs for {now - since:.0f} s")
        else:
            self.world.queue.at(since + patience_s, partial(self._hung, pod, trainer))

    def _unheeded(self, pod: Pod, agent: AgentLoop) -> None:
        now, trainer = self.world.queue.now, pod.trainer
        if not pod.running or pod.agent is not agent or "agent" in self.world.off:
            return
        if pod.agent_stopped:
            return
        if self._asleep_s(pod):
            self.on_orders(pod)
            return
        if trainer is None or not trainer.runs(now) or trainer.told_at is not None:
            return
        if trainer.frozen_at is None and now < trainer.turns_at:
            self.fail("wasteful", f"{pod.rented.pod_id}'s agent does not heed its orders")

    # -- how long things may take -------------------------------------------------------------

    def _asleep_s(self, pod: Pod) -> float:
        return max(0.0, pod.stopped_until - self.world.queue.now)

    @staticmethod
    def _patience_s(pod: Pod, trainer: SimTrainer) -> float:
        """Return the time that the lease lets it show no progress, until the agent's next look."""
        frozen_at = trainer.frozen_at or 0.0
        most_s = 20 * trainer.shape.step_s
        if frozen_at < trainer.trains_at:
            most_s = _COMPILES_S
        elif frozen_at >= trainer.turns_at:
            ordered = pod.orders is not None and pod.orders.land
            most_s = (1 if ordered or trainer.told_at else 4) * pod.lease.landing_s
        return max(pod.lease.hang_after_s, most_s) + _LOOK_S


NEXT_WITHIN_S = 60.0
_DELETED_WITHIN_S = 15.0
"""Of that, what a deletion may take."""


class BootJudge(Observer):
    """Judges what follows from boots that failed, in one world."""

    def __init__(self, check: Invariants) -> None:
        self.check, self.world, self.fail = check, check.world, check.world.fail
        self.judged = 0
        """Boots that failed while nothing else stood in the way."""

    def on_boot_fails(self, rented: RentedMachine) -> None:
        """One of which the log will say that it has failed."""
        slower_s = max(0.0, rented.account.habits.delete_s[1] - _DELETED_WITHIN_S)
        at = rented.boot_failed_at + NEXT_WITHIN_S + slower_s
        self.world.queue.at(at, lambda: self._judge(rented))

    def _judge(self, rented: RentedMachine) -> None:
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

    def _is_hindered(self, rented: RentedMachine) -> bool:
        """Whether its controller was away, fenced, unheard or wrong about the time meanwhile."""
        check, now = self.check, self.world.queue.now
        able_since = check.exposure.able.get(rented.run_id)
        away = able_since is None or able_since > rented.boot_failed_at
        undecidable = check.undecidable
        lost = self.world.forgotten or undecidable.woken or undecidable.clocks_moved
        return away or lost or bool(self.world.knobs.lies) or now >= rented.lease_due_at

    def _is_beyond_lists(self, rented: RentedMachine) -> bool:
        """Whether lists lag more than they do, or deletes are not done: absence takes longer."""
        knobs = self.world.knobs
        lags = knobs.list_omits_s or knobs.list_flickers or knobs.lists_dead_s
        refused = rented.undeletable_until or rented.refuses_until or knobs.deletes_ignored_until
        twins = self.check.names.get(rented.name, 0) > 1 or rented.came_too_late
        return bool(lags or refused or twins) or rented.visible_at > rented.boot_failed_at

    def _is_ended_for_another_reason(
        self, rented: RentedMachine, run: RunState, generation: Generation
    ) -> bool:
        """Before its log had said anything, by its host, or since a stop was asked for."""
        ends = (rented.deleted_at, rented.ended_at or rented.deleted_at)
        if run.stop is not None or min(ends) < rented.boot_failed_at:
            return True
        return rented.ended_by not in ("", "controller") or (
            generation.gone_at is not None and generation.lived_s is None
        )

    def _has_another(self, rented: RentedMachine, run: RunState, generation: Generation) -> bool:
        """Whether what the failed one leaves of the reservation, counted at the most that it can
        cost, pays for a candidate that was not tried."""
        plan = self.world.truths[run.run_id].plan
        latency_s = traits_of(generation.provider).kill_latency_s
        recent = run.generations[run.first_generation - 1 :]
        tried = {g.candidate_id for g in recent}
        untried = [plan.candidate(name) for name in plan.launchable if name not in tried]
        if not untried or run.generations[-1].number != generation.number:
            return False
        lasts_s = self.world.queue.now - rented.created_at + NEXT_WITHIN_S + latency_s
        rate = max(generation.rate, generation.charged_rate)
        failed = plan.candidate(generation.candidate_id)
        left = run.reservation - cost(rate + failed.disk_rate, lasts_s)
        left = left - storage_beside_disks(failed)
        first = untried[0]
        least_s = first.startup_s.p50 + first.landing_s + latency_s
        rate = first.reserved_rate + first.disk_rate
        return affordable_seconds(left - storage_beside_disks(first), rate) > least_s
