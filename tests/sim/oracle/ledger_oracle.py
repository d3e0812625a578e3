"""Every event that is written and every call to a provider, judged by what is true at that moment.

A ledger can be wrong and consistent: what it says is held against the pods that exist, the bills
that run and the words that the pods' own agents have said. What a controller could not have known
is excused by ``Uncertainty``, and by nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from tests.sim.oracle.extensions import ExtensionJudge
from tests.sim.oracle.paces import PaceJudge
from tests.sim.oracle.waits import WaitJudge
from trmcloud.core.catalog.hardware import GPUS, LOCAL, on_other_board, slowdown
from trmcloud.core.catalog.offers import DAY_S
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.contract.boards import NVL, PCIE, classify, is_worse
from trmcloud.core.contract.pod_contract import parse_pod_name
from trmcloud.core.contract.trainer_contract import DONE
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import CREATE, LAND, MOST_PULLS, PULL, TERMINATE
from trmcloud.core.control.events import ActionKey, FailureKind
from trmcloud.core.control.reason import ReasonKind
from trmcloud.core.control.renting import storage_beside_disks
from trmcloud.core.control.run_state import Generation, RunState, State
from trmcloud.core.errors import Outcome, PaymentRequired, TrmcloudError
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.spec.plan import Candidate, Plan
from trmcloud.ports.compute import PodRequest
from trmcloud.sim.oracle.exposure import CLOCK_OFF_S
from trmcloud.sim.world.account import Observer, Process, RentedMachine

if TYPE_CHECKING:
    from tests.sim.oracle.invariants import Invariants


_SECOND_S = 1.5


class LedgerOracle:
    """Judges one world's events."""

    def __init__(self, check: Invariants) -> None:
        self.check, self.world, self.fail = check, check.world, check.world.fail
        self.undecidable = check.undecidable
        self._held: dict[str, int] = {}
        self._stop_at: dict[str, float] = {}
        self._ends: dict[tuple[str, int], tuple[Process, float]] = {}
        self._refused: dict[str, tuple[Process, float]] = {}
        self.calls = CallJudge(check)
        self.waits = WaitJudge(check)
        self.paces = PaceJudge(check)
        self.extensions = ExtensionJudge(check)

    # -- events -------------------------------------------------------------------------------

    def on_append(self, process: Process, run_id: str, events: Sequence[ev.RunEvent]) -> None:
        run = self.world.ledger.read().runs[run_id]
        self.paces.on_append(run, events)
        self.extensions.on_append(process, run, events)
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

    def _extended(self, process: Process, run: RunState, event: ev.Extended) -> None:
        self._held[run.run_id] = event.amount.micros

    def _reopened(self, process: Process, run: RunState, event: ev.Reopened) -> None:
        self._stop_at.pop(run.run_id, None)

    def _stop_asked(self, process: Process, run: RunState, event: ev.StopRequested) -> None:
        if run.run_id not in self._stop_at:
            at = process.machine.now().wall
            if "14" in self.world.fired and run.stop_at is not None:
                at = min(at, run.stop_at)  # stopped between its look at the clock and this record
            self._stop_at[run.run_id] = at
        rented = self._pod_of(run.generation)
        if rented is not None and not rented.ended:
            patience_s = rented.landing_s + traits_of(rented.account.habits.provider).end_grace_s
            rented.land_by = min(rented.land_by, self.world.queue.now + patience_s)

    def _intended(self, process: Process, run: RunState, event: ev.PodIntended) -> None:
        self.waits.on_intent(run, event, is_time_odd=self.undecidable.is_time_odd)
        name = parse_pod_name(event.pod_name)
        if name is None or name.hard_stop_at != int(max(event.hard_stop_at, event.limit_at)):
            self.fail("I5", f"{event.pod_name} does not say when it must be gone")
        candidate = self.world.truths[run.run_id].plan.candidate(event.candidate_id)
        made = run.generations[event.generation - 1]
        # By the clock of the decision: a process that was stopped there may wake to another one.
        lasts_s = event.hard_stop_at - made.intended_at
        if lasts_s <= _SECOND_S:
            return  # nothing will be asked for: its soft stop has passed
        lasts_s += traits_of(event.provider).kill_latency_s - _SECOND_S
        rate = event.rate + candidate.disk_rate
        if run.reserved < cost(rate, lasts_s) + storage_beside_disks(candidate):
            self.fail("I1", f"{run.run_id} holds {run.reserved}, too little to kill its pod")

    def _started(self, process: Process, run: RunState, event: ev.ActionStarted) -> None:
        number = ActionKey.parse(event.action_id).generation
        generation = run.generations[number - 1] if number <= len(run.generations) else None
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
            at = max(at, self.check.exposure.able.get(run.run_id, now))
            if same and now - at > RETRY_S and not self.undecidable.is_time_odd:
                self.fail("wasteful", f"{now - at:.0f} s between two tries to end {key[0]}'s pod")
            self._ends[key] = (process, now)
        elif run.stop_at is not None and run.state is State.RUNNING:
            dear = rented is None or rented.rate_micros > rented.agreed_micros
            if dear or self.undecidable.is_time_odd:
                return
            if rented is not None and rented.is_stopped:
                return  # there is nobody there to tell
            if run.stop is not None and run.stop.at_once:
                return  # a person said so: what is not saved is lost
            if rented is not None and (generation.agent_at or 0.0) > run.stop_at + rented.landing_s:
                return  # when it could be told at last, its time to land was over
            if not run.tries(generation, LAND):
                self.fail("wasteful", f"{run.run_id} is ended and was never told to land")

    def _failed(self, process: Process, run: RunState, event: ev.ActionFailed) -> None:
        if event.verb == CREATE and event.kind is FailureKind.NO_CAPACITY:
            self._refused[run.run_id] = (process, self.world.queue.now)
        if event.verb == PULL and event.kind is FailureKind.DAMAGED:
            self._came_damaged(run, ActionKey.parse(event.action_id))

    def _came_damaged(self, run: RunState, key: ActionKey) -> None:
        """A pod may stay for the copies of a checkpoint that come damaged, but for no more than
        the product allows of each."""
        rented = self._pod_of(run.generation)
        if rented is None or run.generation is None:
            return
        tries = run.tries(run.generation, PULL, key.item)
        damaged = sum(each.failed_kind is FailureKind.DAMAGED for each in tries)
        if damaged > MOST_PULLS:
            self.fail("wasteful", f"{key.item} came damaged {damaged} times from {rented.pod_id}")
        rented.land_by = max(rented.land_by, self.world.queue.now)

    def _pod_up(self, process: Process, run: RunState, event: ev.PodUp) -> None:
        if any(event.pod_id in account.sought for account in self.world.accounts.values()):
            return
        rented = self._find(event.pod_id)
        if rented is None or rented.name != run.generations[event.generation - 1].pod_name:
            self.fail("I5", f"{run.run_id} has a pod {event.pod_id} that was never made for it")

    def _not_made(self, process: Process, run: RunState, event: ev.PodNotMade) -> None:
        generation = run.generations[event.generation - 1]
        before, at = self._refused.pop(run.run_id, (None, 0.0))
        late_s = self.world.queue.now - at
        same = before is process and process.driver is not None
        if same and late_s > RETRY_S and not self.undecidable.is_time_odd:
            self.fail("wasteful", f"{run.run_id} was refused a pod and waited {late_s:.0f} s")
        for account in self.world.accounts.values():
            if generation.pod_name in account.coming and not self.undecidable.clocks_moved:
                self.fail("I5", f"{generation.pod_name} is given up and may still appear")
            sought = account.sought.get(generation.pod_name)
            if (
                sought is not None
                and sought.goes_on(self.world.queue.now)
                and not self.undecidable.is_time_odd
            ):
                self.fail("I5", f"{generation.pod_name} is given up, and is still looked for")
            for rented in account.pods.values():
                if rented.name == generation.pod_name and not self.undecidable.absence(rented):
                    self.fail("I5", f"{rented.pod_id} was made, and counts as never made")

    def _agent_up(self, process: Process, run: RunState, event: ev.AgentUp) -> None:
        rented = self._pod_of(run.generations[event.generation - 1])
        if rented is not None and not any(t.pod.had_agent for t in self._namesakes(rented)):
            self.fail("I4", f"{rented.pod_id} has no agent that could have spoken")

    def _phase_ended(self, process: Process, run: RunState, event: ev.PhaseEnded) -> None:
        rented = self._pod_of(run.generation)
        said = event.phase, event.outcome, event.step
        if rented is not None and not any(
            t.pod.said.has_phase(*said) for t in self._namesakes(rented)
        ):
            self.fail("I4", f"{rented.pod_id} never said that {event.phase} {event.outcome}")

    def _gate(self, process: Process, run: RunState, event: ev.GateJudged) -> None:
        rented = self._pod_of(run.generation)
        said = event.phase, event.passed
        if rented is not None and not any(
            t.pod.said.has_gate(*said) for t in self._namesakes(rented)
        ):
            self.fail("I4", f"{rented.pod_id} never judged {event.phase} so")

    def _result(self, process: Process, run: RunState, event: ev.ResultKnown) -> None:
        rented = self._pod_of(run.generation)
        if rented is None:
            return
        if event.reason is not None and event.reason.kind is ReasonKind.WRONG_BOARD:
            if not any(t.board for t in self._namesakes(rented)):
                self.fail("I4", f"{rented.pod_id} has the board that was rented")
        elif not any(event.result in t.pod.said.results for t in self._namesakes(rented)):
            self.fail("I4", f"{rented.pod_id} never said that it {event.result}")

    def _board_found(self, process: Process, run: RunState, event: ev.BoardFound) -> None:
        """A slower board is called that, by the truth, and no other is."""
        generation = run.generations[event.generation - 1]
        rented = self._pod_of(generation)
        plan = self.world.truths[run.run_id].plan
        planned = GPUS.get(plan.candidate(generation.candidate_id).sku)
        if rented is None or planned is None:
            return
        boards = [classify(twin.board) for twin in self._namesakes(rented) if twin.board]
        if not boards:
            self.fail("I4", f"{rented.pod_id} has the board that was rented")
        is_slower = any(is_worse(board.form, planned.form) for board in boards)
        if is_slower is not (event.reason.kind is ReasonKind.SLOWER_BOARD):
            self.fail("I4", f"{rented.pod_id}'s board counts as {event.reason.kind.value}")

    def _gone(self, process: Process, run: RunState, event: ev.PodGone) -> None:
        rented = self._pod_of(run.generations[event.generation - 1])
        if rented is None or self.undecidable.absence(rented):
            return
        if rented.hidden_for_long and self.world.queue.now >= rented.due_at:
            # Beyond its hard stop no report counts (``has_reported_since``), once it was asked to
            # end: which a provider that answers to that cannot be kept from.
            asked = run.tries(run.generations[event.generation - 1], TERMINATE)
            if rented.ended_at is None and not asked and not self.undecidable.is_time_odd:
                self.fail(
                    "I2", f"{rented.pod_id} lives, and is given up before its end was asked for"
                )
            return
        if rented.ended_at is None:
            self.fail("I2", f"{rented.pod_id} lives, and counts as gone")
        elif event.ended_at < min(rented.ended_at, rented.shown_at) - CLOCK_OFF_S:
            early_s = rented.ended_at - event.ended_at
            self.fail("I4", f"{rented.pod_id} ended {early_s:.0f} s later than it is said to have")

    def _settled(self, process: Process, run: RunState, event: ev.Settled) -> None:
        settled = run.generations[event.generation - 1]
        self._held[run.run_id] = 0
        self._heard_out(process, run, event.generation)
        rented = self._pod_of(settled)
        if rented is None or rented.ended_at is None:
            return
        bill = rented.micros(self.world.queue.now)
        over = event.amount.micros - bill - rented.storage_micros
        quantum = 2 * rented.hourly_micros / 3600 + 2
        if event.billed is not None and abs(over) > quantum:
            self.fail("I4", f"{rented.pod_id} settled {event.amount}, billed {bill / 1e6:.6f}")
        if event.billed is None and self._short(rented, run, event.amount, settled):
            self.fail("I4", f"{rented.pod_id} settled {event.amount}, cost {bill / 1e6:.6f}")

    def _heard_out(self, process: Process, run: RunState, number: int) -> None:
        """Judge that an agent's word in a bucket that answers was heard before its run is settled:
        it is settled once, and then closed."""
        word = self.world.files.words.get((run.run_id, number))
        if word is None or word.result is None or run.result is not None:
            return
        settled = run.generations[number - 1]
        rented, gone_at = self._pod_of(settled), settled.gone_at
        if rented is not None and gone_at is not None and (rented.ended_at or inf) > gone_at:
            return  # given up while it lived, as ``_gone`` allows: it spoke after that
        refused_at, now = process.bucket_refused_at, self.world.queue.now
        if (refused_at is not None and now - refused_at < RETRY_S) or self.undecidable.is_time_odd:
            return
        self.fail("I4", f"{run.run_id} is settled, and its {word.result} in the bucket not heard")

    def _short(
        self, rented: RentedMachine, run: RunState, amount: Usd, settled: Generation
    ) -> bool:
        """Whether an estimate lacks what the pod has cost for certain: the storage that is billed
        later, and what went beyond its reservation, are only known from its bill."""
        if "30" in self.world.fired:
            return False  # a price that rose meanwhile is known from the bill alone
        quantum = 2 * rented.hourly_micros / 3600 + 2
        most = run.reservation.micros - self._held_apart(rented, run).micros
        known = min(rented.micros(self.world.queue.now), most)
        return amount.micros < known - quantum and not self.undecidable.clocks_moved

    def _held_apart(self, rented: RentedMachine, run: RunState) -> Usd:
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
        self.waits.on_closed(process, run, event, is_time_odd=self.undecidable.is_time_odd)
        if event.outcome == Outcome.NOT_STARTED.value and run.stop is None:
            recent = run.generations[run.first_generation - 1 :]
            tried = {g.candidate_id for g in recent}
            if tried != set(self.world.truths[run.run_id].plan.launchable):
                self.fail("wasteful", f"{run.run_id} gave up with a candidate untried")
        if event.outcome == Outcome.STOPPED.value and run.stop is None and run.result is None:
            self.fail("I4", f"{run.run_id} was stopped by nobody")
        if event.outcome in (Outcome.UNREPORTED.value, Outcome.LOST.value):
            self._given_up(process, run)
        rented = self._pod_of(run.generation)
        if rented is None or rented.ended_at is None or run.result is not None:
            return
        early_s = rented.due_at - rented.ended_at
        wrong = (
            self.undecidable.is_time_odd
            or "19" in self.world.fired
            or abs(rented.granted_ahead_s) > CLOCK_OFF_S
        )
        able_since = self.check.exposure.able.get(run.run_id)
        if able_since is None or able_since > rented.ended_at:
            return  # no controller saw when it went
        if run.generation is None or (run.generation.up_at or inf) > rented.ended_at:
            return  # no controller saw it alive
        if event.outcome == Outcome.KILLED.value and early_s > TOO_FEW_S and not wrong:
            self.fail("I4", f"{run.run_id} was not killed: {early_s:.0f} s were left")

    def _given_up(self, process: Process, run: RunState) -> None:
        """A run with a bucket whose machine was lost at work is closed by its own driver: then no
        other machine could be had, or its money would buy too little of any."""
        driver, rented = process.driver, self._pod_of(run.generation)
        attends = driver is not None and driver.run_id == run.run_id and driver.errands
        plan, generation = self.world.truths[run.run_id].plan, run.generation
        if not attends or rented is None or generation is None or not plan.spec.pod_uploads:
            return
        if plan.spec.command is not None and not plan.spec.command.resume:
            return  # it never said that it can continue
        lost = rented.ended_by in LOST_BY and generation.agent_at is not None
        lost = lost and generation.provider != LOCAL
        if not lost or run.stop is not None or run.result is not None or run.errand is not None:
            return
        lives_s = (rented.ended_at or 0.0) - (generation.agent_at or 0.0)
        if lives_s < generous_s(plan) or self.undecidable.is_time_odd or self.world.forgotten:
            return  # it may be one of several that were lost at once
        if self.world.knobs.crossed_reports or run.tries(generation, TERMINATE):
            return
        done = {name for each in self._namesakes(rented) for name in each.pod.said.finished}
        if done >= {phase.name for phase in plan.candidate(generation.candidate_id).phases}:
            return  # its work is done, and only the report of the whole was lost
        left = run.reservation - (generation.settled or ZERO)
        needs = [_least_needed(plan.candidate(name)) for name in plan.launchable]
        if left > max(needs) * 2:
            self.fail("wasteful", f"{run.run_id} is given up with {left} left after its loss")

    # -- the truth ----------------------------------------------------------------------------

    def _find(self, pod_id: str | None) -> RentedMachine | None:
        for account in self.world.accounts.values():
            if pod_id is not None and pod_id in account.pods:
                return account.pods[pod_id]
        return None

    @staticmethod
    def _namesakes(rented: RentedMachine) -> Sequence[RentedMachine]:
        """Pods of its name: a link leads to a name, and a provider may make two of one."""
        return rented.account.named(rented.name)

    def _pod_of(self, generation: Generation | None) -> RentedMachine | None:
        if generation is None or generation.pod_id is None:
            return None
        return self._find(generation.pod_id)


_JUDGES: Mapping[type[Any], Callable[[LedgerOracle, Process, RunState, Any], None]] = {
    ev.Reserved: LedgerOracle._reserved,
    ev.Extended: LedgerOracle._extended,
    ev.Reopened: LedgerOracle._reopened,
    ev.StopRequested: LedgerOracle._stop_asked,
    ev.PodIntended: LedgerOracle._intended,
    ev.ActionStarted: LedgerOracle._started,
    ev.ActionFailed: LedgerOracle._failed,
    ev.PodUp: LedgerOracle._pod_up,
    ev.PodNotMade: LedgerOracle._not_made,
    ev.AgentUp: LedgerOracle._agent_up,
    ev.PhaseEnded: LedgerOracle._phase_ended,
    ev.GateJudged: LedgerOracle._gate,
    ev.ResultKnown: LedgerOracle._result,
    ev.BoardFound: LedgerOracle._board_found,
    ev.PodGone: LedgerOracle._gone,
    ev.Settled: LedgerOracle._settled,
    ev.Billed: LedgerOracle._late_bill,
    ev.Closed: LedgerOracle._closed,
}


LOST_BY = ("preempted", "host lost", "provider's $0 rule")
"""Ends of a machine that neither the user nor the product asked for."""


def generous_s(plan: Plan) -> float:
    """Seconds after which a machine that is lost had more than started."""
    return 2 * max(candidate.startup_s.p90 for candidate in plan.candidates)


def _least_needed(candidate: Candidate) -> Usd:
    """USD that start, landing and end of a machine take."""
    needs_s = candidate.startup_s.p90 + candidate.landing_s
    needs_s += traits_of(candidate.provider).kill_latency_s
    return cost(candidate.reserved_rate + candidate.disk_rate, needs_s) + candidate.storage


CALL_S = 5.0
"""So long a provider's answer may take: what was true when it was asked may have ended since."""
LOOKS_S = 60.0
"""A driver has looked by then, and more than once."""
RETRY_S = 62.0
"""The longest backoff, and until the next look."""
TOO_FEW_S = 600.0


class CallJudge(Observer):
    """Judges one world's calls to providers."""

    def __init__(self, check: Invariants) -> None:
        self.check, self.world, self.fail = check, check.world, check.world.fail
        self.undecidable = check.undecidable
        self._asked: set[str] = set()
        self.may_end: dict[Process, str] = {}
        """By controller: the run whose pod's end it has written down to ask for; empty: none's."""
        self._refusal: TrmcloudError | None = None
        """The last answer for which a command was right to refuse."""

    def on_create_call(self, request: PodRequest) -> None:
        """A create call reaches the provider."""
        lease, run_id = request.lease, request.lease.run_id
        if self.world.forgotten:
            return
        if request.name in self._asked:
            self.fail("I5", f"{request.name} is asked for a second time")
        self._asked.add(request.name)
        run = self.world.ledger.read().runs.get(run_id)
        named = [g for g in run.generations if g.pod_name == request.name] if run else []
        if run is None or not named:
            return  # ``pod_made`` says so
        if not run.tries(named[0], CREATE):
            self.fail("I5", f"{request.name} is asked for before that is written down")
        finished = {n for n, account in run.phases.items() if account.outcome in DONE}
        if finished & {phase.name for phase in lease.phases}:
            self.fail("wasteful", f"{request.name} shall train again what {run_id} has finished")
        self._judge_boards(request, run, named[0])
        if len(lease.phases) < 2 or lease.fits_budget:
            return
        lasts_s = lease.soft_stop_at - lease.granted_at
        whole_s = sum(phase.expected_s for phase in lease.phases)
        share_s = lasts_s * lease.phases[0].expected_s / whole_s
        allowed_s, most_s = lease.phases[0].allowed_s, share_s
        if run.spec.fills:  # what fills the time keeps half of what it was planned with
            most_s = max(share_s, lasts_s - (whole_s - lease.phases[0].expected_s) / 2)
        if allowed_s > most_s + 60.0 or (lasts_s > 2 * TOO_FEW_S and allowed_s < share_s / 3):
            self.fail("wasteful", f"of {lasts_s:.0f} s the first phase gets {allowed_s:.0f}")

    def _judge_boards(self, request: PodRequest, run: RunState, made: Generation) -> None:
        """The pod is to accept just those slower boards on which P90 of the work, by the worst
        ratio of the two, ends before its soft stop."""
        plan, lease = self.world.truths[run.run_id].plan, request.lease
        candidate = plan.candidate(made.candidate_id)
        planned = GPUS.get(candidate.sku)
        if planned is None or plan.spec.command is not None or plan.spec.fills or not lease.phases:
            return
        names = {phase.name for phase in lease.phases}
        p90_s = sum(p.seconds.p90 for p in candidate.phases if p.name in names)
        available_s = made.soft_stop_at - made.intended_at - candidate.startup_s.p90
        for form in (PCIE, NVL):
            other = on_other_board(candidate.sku, form)
            if other is None or not is_worse(form, planned.form):
                continue
            needed_s = p90_s * slowdown(planned, other, candidate.gpus)
            accepted = form in request.check.get("slower_boards", ())
            if accepted and needed_s > available_s + _SECOND_S:
                self.fail("wasteful", f"{request.name} may be {form}, and would not end in time")
            fits = candidate.within_budget and needed_s < available_s - _SECOND_S
            if fits and not accepted and request.check.get("board"):
                self.fail("wasteful", f"{request.name} may not be {form}, and would end in time")

    def on_create_sent(self, request: PodRequest) -> None:
        """A create goes out: a process that slept since its decision sends it no more, since
        its run may be closed by now and its money free."""
        run = self.world.ledger.read().runs.get(request.lease.run_id)
        if self.world.forgotten or self.undecidable.clocks_moved or run is None:
            return
        if all(each.pod_name != request.name for each in run.open_generations):
            self.fail("I5", f"{request.name} is asked for, and was given up long ago")

    def judge_end_call(
        self, process: Process, rented: RentedMachine, run: RunState, *, slept: bool
    ) -> None:
        """A controller asks for the end of a pod that ``run`` owns."""
        if self.may_end.get(process) == run.run_id:
            return
        if process.named == run.run_id:
            return  # a person's right, of its own: it needs no ledger
        if self._may_end_unwritten(process, run, slept=slept):
            return
        generation, now = run.generation, process.machine.now().wall
        latency_s = traits_of(rented.account.habits.provider).kill_latency_s
        if generation is None or now < generation.hard_stop_at + latency_s:
            self.fail("I6", f"{rented.pod_id} is ended by one that did not write so")
        elif latency_s >= LOOKS_S and not self._was_tried(process, run, latency_s):
            self.fail("I2", f"{rented.pod_id} is ended by the last layer, and the run never tried")

    def _may_end_unwritten(self, process: Process, run: RunState, *, slept: bool) -> bool:
        """At the hard stop, or where a person said so, the run's driver ends its pod though it
        cannot write; one that can read that another has taken the run over does not."""
        driver, generation, ledger = process.driver, run.generation, self.world.ledger
        if driver is None or driver.run_id != run.run_id or generation is None:
            return False
        at_once = run.stop is not None and run.stop.at_once
        if not at_once and process.machine.now().wall < generation.hard_stop_at:
            return False
        if slept:
            return True  # it might, when it began to ask
        was_full = self.world.queue.now < self.world.knobs.disk_full_until + CALL_S
        writable = self.world.ledger_writable and not was_full
        if writable and run.run_id not in ledger.seen().quarantined:
            return False  # of a run whose records are damaged nothing can be written by anyone
        newest = ledger.driver(run.run_id)
        current = newest is not None and newest.epoch == driver.epoch
        return current or not self.world.ledger_readable

    def _was_tried(self, process: Process, run: RunState, latency_s: float) -> bool:
        """Whether the run has done its own to end its pod, or this is not who was there to."""
        driver = process.driver
        mine = driver is not None and driver.run_id == run.run_id
        able_since = self.check.exposure.able.get(run.run_id)
        idle = able_since is None or self.world.queue.now - able_since < latency_s
        tried = run.generation is not None and bool(run.tries(run.generation, TERMINATE))
        return tried or idle or not mine or self.undecidable.is_time_odd

    def on_idle_pod(self, rented: RentedMachine) -> None:
        """A pod lives whose work is done: a controller that is up must have tried to end it."""
        run = self.world.ledger.read().runs.get(rented.run_id)
        generation = run.generation if run is not None else None
        able_since = self.check.exposure.able.get(rented.run_id)
        if run is None or generation is None or generation.pod_id != rented.pod_id:
            return
        if run.state is not State.ENDING or run.result_at is None or able_since is None:
            return
        if rented.pod.lease.hold or self.undecidable.woken or self.undecidable.clocks_moved:
            return
        grace_s = traits_of(rented.account.habits.provider).end_grace_s
        late_s = self.world.queue.now - max(run.result_at + grace_s, able_since)
        if late_s > RETRY_S and not run.tries(generation, TERMINATE):
            self.fail("wasteful", f"{rented.pod_id} is done, and for {late_s:.0f} s nobody ends it")

    def on_provider_error(self, process: Process, error: TrmcloudError) -> None:
        """A provider's error has ended a whole command: nothing that came after it was done. Where
        the balance does not cover a launch there was nothing to do."""
        if error is self._refusal or isinstance(error, PaymentRequired):
            return
        self.fail("I7", f"{process.kind} was ended by a provider's answer: {error}")

    def on_refusal(self, error: TrmcloudError) -> None:
        self._refusal = error

    def on_leave(self, process: Process, known: RunState | None) -> None:
        """A driver's command ends since its ledger cannot be used. ``known``: its run after its
        last whole step. Where its pod lives and can be listed, it was to stay until the hard stop:
        nobody else may be there to end it."""
        driver, now = process.driver, self.world.queue.now
        if driver is None or known is None or known.generation is None or not driver.errands:
            return
        run = self.world.ledger.read().runs.get(driver.run_id)
        generation = run.generation if run is not None else None
        newest = self.world.ledger.driver(driver.run_id)
        current = newest is not None and newest.epoch == driver.epoch
        if run is None or generation is None or not run.live or not current:
            return
        if known.generation.pod_name != generation.pod_name or not generation.open:
            return
        odd = self.world.forgotten or self.undecidable.clocks_moved
        if odd or self.undecidable.is_time_odd or self.world.knobs.list_flickers:
            return
        for rented in self.world.living():
            mine = rented.pod_id == generation.pod_id and now >= rented.visible_at
            mine = mine and not self.undecidable.is_unseen(rented)
            if mine and process.machine.now().wall < generation.hard_stop_at:
                self.fail("I2", f"{rented.pod_id} lives, and its driver leaves without a ledger")

    def on_take_over(self, process: Process, run_id: str) -> None:
        """A process becomes a run's driver; by a command, only where there is none."""
        if process.kind == "launch" or self.undecidable.woken or self.undecidable.clocks_moved:
            return
        driver = self.world.ledger.driver(run_id)
        for other in self.world.processes:
            alive = other.up and other.machine.online and other.driver is not None
            if alive and driver is not None and other.who == driver.controller:
                self.fail("I6", f"{run_id} is taken from one that drives it")
