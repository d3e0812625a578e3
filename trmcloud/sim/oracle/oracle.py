"""Every event that is written, judged by what is true at that moment; calls: see ``calls``.

A ledger can be wrong and consistent: what it says is held against the pods that exist, the bills
that run and the words that the pods' own agents have said. What a controller could not have known
is excused by ``Undecidable``, and by nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from trmcloud.core.catalog.offers import DAY_S
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.contract.pod_contract import parse_pod_name
from trmcloud.core.control import events as ev
from trmcloud.core.control.action_key import FailureKind
from trmcloud.core.control.actions import CREATE, LAND, TERMINATE
from trmcloud.core.control.run_state import Generation, RunState, State
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.outcome import Outcome
from trmcloud.sim.oracle.calls import RETRY_S, TOO_FEW_S, CallJudge
from trmcloud.sim.oracle.exposure import CLOCK_OFF_S
from trmcloud.sim.oracle.undecidable import Undecidable

if TYPE_CHECKING:
    from trmcloud.sim.world.account import Rented
    from trmcloud.sim.world.controllers import Process
    from trmcloud.sim.world.world import SimWorld

_SECOND_S = 1.5


class Oracle:
    """Judges one world's events. ``fail`` takes an invariant's name and the detail."""

    def __init__(self, world: SimWorld, fail: Callable[[str, str], None]) -> None:
        self.world, self.fail = world, fail
        self.undecidable = Undecidable(world)
        self._held: dict[str, int] = {}
        self._stop_at: dict[str, float] = {}
        self._ends: dict[tuple[str, int], tuple[Process, float]] = {}
        self._refused: dict[str, tuple[Process, float]] = {}
        self.calls = CallJudge(world, self.undecidable, fail)

    # -- events -------------------------------------------------------------------------------

    def appended(self, process: Process, run_id: str, events: Sequence[ev.RunEvent]) -> None:
        run = self.world.ledger.read().runs[run_id]
        for event in events:
            judge = _JUDGES.get(type(event))
            if judge is not None:
                judge(self, process, run, event)
        if run.reserved.micros != self._held.get(run_id, 0):
            self.fail("I1", f"{run_id} should hold {self._held.get(run_id, 0) / 1e6} in reserve")
        if run.stop_at != self._stop_at.get(run_id):
            self.fail("I1", f"{run_id} counts its landing from another moment than the first wish")

    def _reserved(self, process: Process, run: RunState, event: ev.Reserved) -> None:
        self._held[run.run_id] = event.amount.micros

    def _reopened(self, process: Process, run: RunState, event: ev.Reopened) -> None:
        self._stop_at.pop(run.run_id, None)

    def _stop_asked(self, process: Process, run: RunState, event: ev.StopRequested) -> None:
        if run.run_id not in self._stop_at:
            self._stop_at[run.run_id] = process.machine.now().wall
        rented = self._pod_of(run.generation)
        if rented is not None and not rented.ended:
            patience_s = rented.landing_s + traits_of(rented.account.habits.provider).end_grace_s
            rented.land_by = min(rented.land_by, self.world.queue.now + patience_s)

    def _intended(self, process: Process, run: RunState, event: ev.PodIntended) -> None:
        name = parse_pod_name(event.pod_name)
        if name is None or name.hard_stop_at != int(event.hard_stop_at):
            self.fail("I5", f"{event.pod_name} does not say when it must be gone")
        candidate = self.world.truths[run.run_id].plan.candidate(event.candidate_id)
        assert run.generation is not None
        # By the clock that it was decided by: whoever was stopped there may wake to another one.
        lasts_s = event.hard_stop_at - run.generation.intended_at
        if lasts_s <= _SECOND_S:
            return  # nothing will be asked for: its soft stop has passed
        lasts_s += traits_of(event.provider).kill_latency_s - _SECOND_S
        if run.reserved < cost(event.rate, lasts_s) + candidate.storage:
            self.fail("I1", f"{run.run_id} holds {run.reserved}, too little to kill its pod")

    def _started(self, process: Process, run: RunState, event: ev.ActionStarted) -> None:
        generation = run.generation
        if generation is None:
            return
        self.calls.may_end[process] = run.run_id if event.verb == TERMINATE else ""
        if event.verb == CREATE and run.stop is not None and not self.undecidable.woken:
            self.fail("wasteful", f"{run.run_id} rents though it was told to stop")
        landing = run.tries(generation, LAND) if event.verb == LAND else ()
        if any(action.finished for action in landing):
            self.fail("wasteful", f"{run.run_id} was told to land, and is told again")
        if event.verb == TERMINATE:
            self._end_started(process, run, generation)

    def _end_started(self, process: Process, run: RunState, generation: Generation) -> None:
        now = self.world.queue.now
        wall = process.machine.now().wall
        key = (run.run_id, generation.number)
        rented = self._pod_of(generation)
        # One that is held for its checkpoints is not ended while they cannot be copied.
        held = rented is not None and rented.pod.lease.hold
        if (run.state is State.ENDING and not held) or wall >= generation.hard_stop_at:
            before, at = self._ends.get(key, (None, now))
            same = before is process and process.driver is not None
            # One that could not write meanwhile stayed, and had no right to before the hard stop.
            at = max(at, self.world.check.exposure.able.get(run.run_id, now))
            if same and now - at > RETRY_S and not self.undecidable.odd(process):
                self.fail("wasteful", f"{now - at:.0f} s between two tries to end {key[0]}'s pod")
            self._ends[key] = (process, now)
        elif run.stop_at is not None and run.state is State.RUNNING:
            dear = rented is None or rented.rate_micros > rented.agreed_micros
            if dear or self.undecidable.odd(process):
                return
            if run.stop is not None and run.stop.at_once:
                return  # a person said so: what is not saved is lost
            if rented is not None and (generation.agent_at or 0.0) > run.stop_at + rented.landing_s:
                return  # when it could be told at last, its time to land was over
            if not run.tries(generation, LAND):
                self.fail("wasteful", f"{run.run_id} is ended and was never told to land")

    def _failed(self, process: Process, run: RunState, event: ev.ActionFailed) -> None:
        if event.verb == CREATE and event.kind is FailureKind.NO_CAPACITY:
            self._refused[run.run_id] = (process, self.world.queue.now)

    def _pod_up(self, process: Process, run: RunState, event: ev.PodUp) -> None:
        if any(event.pod_id in account.sought for account in self.world.accounts.values()):
            return
        rented = self._find(event.pod_id)
        if rented is None or run.generation is None or rented.name != run.generation.pod_name:
            self.fail("I5", f"{run.run_id} has a pod {event.pod_id} that was never made for it")

    def _not_made(self, process: Process, run: RunState, event: ev.PodNotMade) -> None:
        generation = run.generations[event.generation - 1]
        before, at = self._refused.pop(run.run_id, (None, 0.0))
        late_s = self.world.queue.now - at
        same = before is process and process.driver is not None
        if same and late_s > RETRY_S and not self.undecidable.odd(process):
            self.fail("wasteful", f"{run.run_id} was refused a pod and waited {late_s:.0f} s")
        for account in self.world.accounts.values():
            if generation.pod_name in account.coming and not self.undecidable.clocks_moved:
                self.fail("I5", f"{generation.pod_name} is given up and may still appear")
            sought = account.sought.get(generation.pod_name)
            if (
                sought is not None
                and sought.goes_on(self.world.queue.now)
                and not self.undecidable.odd(process)
            ):
                self.fail("I5", f"{generation.pod_name} is given up, and is still looked for")
            for rented in account.pods.values():
                if rented.name == generation.pod_name and not self.undecidable.absence(rented):
                    self.fail("I5", f"{rented.pod_id} was made, and counts as never made")

    def _agent_up(self, process: Process, run: RunState, event: ev.AgentUp) -> None:
        rented = self._pod_of(run.generation)
        if rented is not None and not any(t.pod.agent_body for t in self._namesakes(rented)):
            self.fail("I4", f"{rented.pod_id} has no agent that could have spoken")

    def _phase_ended(self, process: Process, run: RunState, event: ev.PhaseEnded) -> None:
        rented = self._pod_of(run.generation)
        said = event.phase, event.outcome, event.step
        if rented is not None and not any(t.pod.said.phase(*said) for t in self._namesakes(rented)):
            self.fail("I4", f"{rented.pod_id} never said that {event.phase} {event.outcome}")

    def _gate(self, process: Process, run: RunState, event: ev.GateJudged) -> None:
        rented = self._pod_of(run.generation)
        said = event.phase, event.passed
        if rented is not None and not any(t.pod.said.gate(*said) for t in self._namesakes(rented)):
            self.fail("I4", f"{rented.pod_id} never judged {event.phase} so")

    def _result(self, process: Process, run: RunState, event: ev.ResultKnown) -> None:
        rented = self._pod_of(run.generation)
        if rented is None:
            return
        if not any(event.result in t.pod.said.results for t in self._namesakes(rented)):
            self.fail("I4", f"{rented.pod_id} never said that it {event.result}")

    def _gone(self, process: Process, run: RunState, event: ev.PodGone) -> None:
        rented = self._pod_of(run.generation)
        if rented is None or self.undecidable.absence(rented):
            return
        if rented.ended_at is None:
            self.fail("I2", f"{rented.pod_id} lives, and counts as gone")
        elif event.ended_at < min(rented.ended_at, rented.shown_at) - CLOCK_OFF_S:
            early_s = rented.ended_at - event.ended_at
            self.fail("I4", f"{rented.pod_id} ended {early_s:.0f} s later than it is said to have")

    def _settled(self, process: Process, run: RunState, event: ev.Settled) -> None:
        self._held[run.run_id] = 0
        self._heard_out(process, run)
        rented = self._pod_of(run.generation)
        if rented is None or rented.ended_at is None:
            return
        bill = rented.micros(self.world.queue.now)
        over = event.amount.micros - bill - rented.storage_micros
        quantum = 2 * rented.rate_micros / 3600 + 2
        if event.billed is not None and abs(over) > quantum:
            self.fail("I4", f"{rented.pod_id} settled {event.amount}, billed {bill / 1e6:.6f}")
        if event.billed is None and self._short(rented, run, event.amount):
            self.fail("I4", f"{rented.pod_id} settled {event.amount}, cost {bill / 1e6:.6f}")

    def _heard_out(self, process: Process, run: RunState) -> None:
        """What the pod's agent left in a bucket that answers has been heard before it is settled:
        it is settled once, and then closed."""
        word = self.world.files.words.get((run.run_id, len(run.generations)))
        if word is None or word.result is None or run.result is not None:
            return
        refused_at, now = process.bucket_refused_at, self.world.queue.now
        if (refused_at is not None and now - refused_at < RETRY_S) or self.undecidable.odd(process):
            return
        self.fail("I4", f"{run.run_id} is settled, and its {word.result} in the bucket not heard")

    def _short(self, rented: Rented, run: RunState, amount: Usd) -> bool:
        """Whether an estimate lacks what the pod has cost for certain: the storage that is billed
        later, and what went beyond its reservation, are only known from its bill."""
        if "30" in self.world.fired:
            return False  # a price that rose meanwhile is known from the bill alone
        quantum = 2 * rented.rate_micros / 3600 + 2
        most = run.reservation.micros - self._held_apart(rented, run).micros
        known = min(rented.micros(self.world.queue.now), most)
        return amount.micros < known - quantum and not self.undecidable.clocks_moved

    def _held_apart(self, rented: Rented, run: RunState) -> Usd:
        """Of a reservation what is a network volume's rent, which has a bill of its own."""
        plan, generation = self.world.truths[run.run_id].plan, run.generation
        if generation is None:
            return ZERO
        lasts_s = generation.hard_stop_at - generation.intended_at + plan.spec.volume_days * DAY_S
        lasts_s += traits_of(rented.account.habits.provider).kill_latency_s
        return cost(plan.candidate(generation.candidate_id).volume_rate, lasts_s)

    def _late_bill(self, process: Process, run: RunState, event: ev.Billed) -> None:
        name = run.generations[event.generation - 1].pod_name
        pods = [p for a in self.world.accounts.values() for p in a.named(name)]
        bills = [p.micros(self.world.queue.now) + p.storage_micros for p in pods]
        if all(abs(event.amount.micros - bill) > 2 for bill in bills):
            self.fail("I4", f"{name} is corrected to {event.amount}, which nobody billed")

    def _closed(self, process: Process, run: RunState, event: ev.Closed) -> None:
        self._held[run.run_id] = 0
        if event.outcome == Outcome.NOT_STARTED.value and run.stop is None:
            recent = run.generations[run.first_generation - 1 :]
            tried = {g.candidate_id for g in recent}
            if tried != set(self.world.truths[run.run_id].plan.launchable):
                self.fail("wasteful", f"{run.run_id} gave up with a candidate untried")
        if event.outcome == Outcome.STOPPED.value and run.stop is None and run.result is None:
            self.fail("I4", f"{run.run_id} was stopped by nobody")
        rented = self._pod_of(run.generation)
        if rented is None or rented.ended_at is None or run.result is not None:
            return
        early_s = rented.due_at - rented.ended_at
        wrong = (
            self.undecidable.odd(process)
            or "19" in self.world.fired
            or abs(rented.granted_ahead_s) > CLOCK_OFF_S
        )
        able_since = self.world.check.exposure.able.get(run.run_id)
        if able_since is None or able_since > rented.ended_at:
            return  # nobody saw when it went
        if run.generation is None or (run.generation.up_at or inf) > rented.ended_at:
            return  # nobody saw it alive
        if event.outcome == Outcome.KILLED.value and early_s > TOO_FEW_S and not wrong:
            self.fail("I4", f"{run.run_id} was not killed: {early_s:.0f} s were left")

    # -- the truth ----------------------------------------------------------------------------

    def _find(self, pod_id: str | None) -> Rented | None:
        for account in self.world.accounts.values():
            if pod_id in account.pods:
                return account.pods[pod_id]
        return None

    @staticmethod
    def _namesakes(rented: Rented) -> Sequence[Rented]:
        """Pods of its name: a link leads to a name, and a provider may make two of one."""
        return rented.account.named(rented.name)

    def _pod_of(self, generation: Generation | None) -> Rented | None:
        if generation is None or generation.pod_id is None:
            return None
        return self._find(generation.pod_id)


_JUDGES: Mapping[type[Any], Callable[[Oracle, Process, RunState, Any], None]] = {
    ev.Reserved: Oracle._reserved,
    ev.Reopened: Oracle._reopened,
    ev.StopRequested: Oracle._stop_asked,
    ev.PodIntended: Oracle._intended,
    ev.ActionStarted: Oracle._started,
    ev.ActionFailed: Oracle._failed,
    ev.PodUp: Oracle._pod_up,
    ev.PodNotMade: Oracle._not_made,
    ev.AgentUp: Oracle._agent_up,
    ev.PhaseEnded: Oracle._phase_ended,
    ev.GateJudged: Oracle._gate,
    ev.ResultKnown: Oracle._result,
    ev.PodGone: Oracle._gone,
    ev.Settled: Oracle._settled,
    ev.Billed: Oracle._late_bill,
    ev.Closed: Oracle._closed,
}
