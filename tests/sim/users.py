"""Users who do all that a scenario says, and their expectations of a world that is healthy."""

from __future__ import annotations

from functools import partial

from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.contract.pod_contract import Lease, PhaseLease, PodName
from trmcloud.core.control import bookkeeping
from trmcloud.core.control import events as ev
from trmcloud.core.control.reason import ReasonKind, make_reason
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import BudgetRefused, Outcome
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.operations.driving.drive import RunDriver
from trmcloud.operations.driving.stopping import request_stop
from trmcloud.operations.launch import launching as use_case
from trmcloud.operations.money import grants
from trmcloud.operations.run_queries import is_driven
from trmcloud.ports.compute import PodRequest
from trmcloud.sim.scenario import GrantAct, Scenario, SimRun
from trmcloud.sim.user_actions import HOUR_S, UserActions
from trmcloud.sim.world.account import Observer
from trmcloud.sim.world.controllers import Process
from trmcloud.sim.world.facts import START_AT
from trmcloud.sim.world.world import SimWorld

_IMPATIENT_S = 40.0
_LEAST_LEFT = 0.02
_TIMES_LEAST = 2
"""A resume may be refused with less than so many times what it needs to train and save a step."""
_GENEROUS = 1.6
_BY_ITSELF = (
    Outcome.FINISHED, Outcome.LANDED, Outcome.GATE_FAILED, Outcome.NEXT_PHASE_REFUSED,
)  # fmt: skip
"""Outcomes of a run that nothing went wrong with, and that nothing stopped."""


class Users(UserActions):
    """Acts as a scenario says: they stop and resume runs, too, and have caps, balances, grants and
    pods that are not ours."""

    def __init__(self, world: SimWorld, scenario: Scenario) -> None:
        super().__init__(world, scenario)
        self._resumed: set[str] = set()

    def begin(self) -> None:
        world, scenario = self.world, self.scenario
        if scenario.account_cap is not None:
            world.ledger.set_cap(ev.CapSet("account", "", scenario.account_cap), world.queue.now)
            world.emit(Observer.on_cap_set, scenario.account_cap)
        for account in world.accounts.values():
            account.paid_in = scenario.paid_in if account.habits.prepaid else None
        if scenario.foreign:
            self._foreign_pods()
        super().begin()
        for wish in scenario.wishes:
            if wish.stop_after_s:
                world.queue.after(wish.at_s + wish.stop_after_s, partial(self._stop, wish))
        for act in scenario.grants:
            world.queue.after(act.at_s, partial(self._change_grant, act))

    def _foreign_pods(self) -> None:
        """Pods that are not ours to touch: another ledger's, and one with a name of its own."""
        world = self.world
        for account in world.accounts.values():
            far = int(START_AT + 30 * 24 * HOUR_S)
            for name in (str(PodName("ffffffff", "r9", 1, far)), "somebody-elses-pod"):
                lease = Lease(
                    "r-foreign", name, 1, START_AT, far - 60, far, 60.0,
                    (PhaseLease("fast", 0.0, 1.0, 1.0),), True, 1.0,
                )  # fmt: skip
                rate = self.scenario.wishes[0].plan.candidates[0].rate
                rented = account.rent_foreign(PodRequest(name, "sim", 8, rate, lease, ()))
                world.foreign.add(rented.pod_id)

    # -- what they do -----------------------------------------------------------------------

    def _change_grant(self, act: GrantAct) -> None:
        """As the owner's commands do, and before an approval the principal's."""
        principal, terms = act.principal, act.terms
        if act.kind == "approve":
            assert terms is not None
            wish = {"more": terms.total, "runs_at_once": terms.runs_at_once}
            asking = Process(self.world, self.world.laptop, "user", principal=principal)
            asked = asking.do(lambda: grants.ask(asking.world, "more runs", wish))
            asking.kill()
            if isinstance(asked, grants.ApprovalRequest):
                self.act(lambda p: grants.answer(p.world, asked.id, give=True))
        elif act.kind == "give":
            assert terms is not None
            self.act(lambda p: grants.give(p.world, principal, terms))
        elif act.kind == "raise":
            assert terms is not None
            self.act(lambda p: grants.raise_grant(p.world, principal, terms))
        else:
            at_once = act.kind == "revoke_now"
            self.world.emit(Observer.on_revoke)
            self.act(lambda p: grants.revoke(p.world, principal, at_once=at_once))

    def _stop(self, wish: SimRun) -> None:
        run = self.world.ledger.read().runs.get(wish.run_id)
        if run is None or not run.live:
            return

        def stop(process: Process) -> None:
            """As the command does: ask, then drive the run to its end where it has no driver."""
            world = process.world
            ask(process)
            if not is_driven(world, world.ledger.driver(wish.run_id)):
                epoch = world.take_over(wish.run_id)
                process.drive(RunDriver(world, wish.run_id, epoch))

        def ask(process: Process) -> None:
            reason = make_reason(ReasonKind.STOP_COMMAND)
            request_stop(process.world, wish.run_id, reason)

        def stop_again() -> None:
            """Nothing seems to happen, so the user says it again."""
            run = self.runs().get(wish.run_id)
            if run is not None and run.live:
                self.act(ask)

        self.act(stop)
        self.world.queue.after(_IMPATIENT_S, stop_again)
        self.world.wake()

    def type_command(self) -> None:
        """Type any command, and resume runs that have ended, some time later."""
        super().type_command()
        for wish in self.scenario.wishes:
            run = self.runs().get(wish.run_id)
            if run is None or run.live or wish.run_id in self._resumed or not wish.resume_after_s:
                continue
            if run.outcome in (Outcome.FINISHED, Outcome.GATE_FAILED):
                continue
            self._resumed.add(wish.run_id)
            self.world.queue.after(wish.resume_after_s, partial(self._resume, wish))

    def _resume(self, wish: SimRun) -> None:
        process = self.client(wish, wish.resumed_by)

        def resume() -> None:
            checked = use_case.check_resume(process.world, wish.run_id, cap=None)
            process.drive(use_case.carry_on(process.world, checked))

        run = self.runs().get(wish.run_id)
        if run is None:
            process.kill()  # a ledger restored from a backup has forgotten it
            return
        left = (self.world.ledger.read().line("run", run.run_id).remaining or ZERO).micros
        said = process.do_and_drive(resume)
        only_budget = self.scenario.account_cap is None and "41" not in self.world.fired
        only_budget = only_budget and not self.world.ledger.read().caps
        only_budget = only_budget and not wish.resumed_by
        least = max(run.cap.micros * _LEAST_LEFT, _TIMES_LEAST * _least_of(run).micros)
        enough = left > least and only_budget
        enough = enough and not bookkeeping.is_charge_pending(self.world.ledger.read())
        if isinstance(said, BudgetRefused) and enough:
            self.world.fail("wasteful", f"{wish.run_id} may not use what it has left")

    # -- what they may expect ----------------------------------------------------------------

    def judge(self) -> None:
        """Check that the money was used well where nothing went wrong."""
        world = self.world
        if world.fired or world.off or world.violation is not None:
            return
        for wish in self.scenario.wishes:
            run = self.runs().get(wish.run_id)
            if run is None or run.outcome is None or _is_of_a_grant(run):
                continue
            if len(run.generations) > 1:
                if not wish.resume_after_s:
                    self.world.fail("wasteful", f"{run.run_id} was healthy and rented twice")
                continue
            if run.stop is not None and run.stop.by == "if-slow":
                self._judge_slow(run)
                continue
            if wish.stop_after_s:
                generation = run.generation
                agent_at = generation.agent_at if generation is not None else None
                heard = agent_at is not None and agent_at < (run.stop_at or 0.0)
                unheard = run.outcome is Outcome.STOPPED and heard and run.result is None
                if unheard and self._has_trained(run.run_id):
                    self.world.fail("wasteful", f"{run.run_id} was stopped and did not land")
                continue
            self._judge_healthy(wish, run)

    def _has_trained(self, run_id: str) -> bool:
        """Whether there was anything to land."""
        return any(
            phase.attempts
            for account in self.world.accounts.values()
            for rented in account.pods.values()
            if rented.run_id == run_id and rented.pod.report is not None
            for phase in rented.pod.report.phases
        )

    def _judge_slow(self, run: RunState) -> None:
        """A run that is stopped since its machine is slow lands with a checkpoint, unless it has
        ended by itself before it was told."""
        made = self.world.files.checkpoints.get(run.run_id, ())
        lost = (run.bucket or run.spec.volume) and not any(each.whole for each in made)
        if run.outcome not in (Outcome.STOPPED, *_BY_ITSELF) or lost:
            told = run.outcome.value if run.outcome is not None else run.state.value
            self.world.fail("wasteful", f"{run.run_id} was slow, and is {told}")

    def _judge_healthy(self, wish: SimRun, run: RunState) -> None:
        if run.stop is not None and run.stop.reason.kind is ReasonKind.BALANCE_ENDS:
            return  # whether it was in time is judged when the balance ends
        if run.outcome is Outcome.FAILED and self._came_too_late(run):
            return
        if run.outcome not in _BY_ITSELF:
            self.world.fail("wasteful", f"{run.run_id} was healthy and {run.outcome.value}")  # type: ignore[union-attr]
        shapes = wish.shapes
        *gated, _ = shapes  # nothing is judged after the last phase
        gate_fails = any(not shapes[name].gate_passes and name in run.gates for name in gated)
        if (run.outcome is Outcome.GATE_FAILED) != gate_fails:
            self.world.fail("wasteful", f"the gate of {run.run_id} judged wrongly")
        if run.outcome is Outcome.FINISHED:
            name, shape = list(shapes.items())[-1]
            whole = run.phases[name].step == shape.steps
            if not whole and run.phases[name].outcome != "stopped_paying":
                self.world.fail("wasteful", f"{name} of {run.run_id} ended early")
        if run.outcome is Outcome.NEXT_PHASE_REFUSED:
            self._judge_refusal(wish, run)
        if run.outcome is Outcome.LANDED and not wish.resume_after_s:
            generation = run.generations[-1]
            lived = (generation.ended_at or 0.0) - generation.intended_at
            promised = wish.plan.candidate(generation.candidate_id).soft_stop_s
            spec = wish.plan.spec
            if spec.command is not None and spec.hours is not None:
                promised = min(promised, spec.hours * HOUR_S)  # counted from its own start
            if lived < promised - 60.0:
                self.world.fail("wasteful", f"{run.run_id} landed {promised - lived:.0f} s early")

    def _came_too_late(self, run: RunState) -> bool:
        """Whether its machine booted for so long that too little of its time was left to train."""
        if self._has_trained(run.run_id) or run.result_at is None:
            return False
        made = [
            rented.pod.lease
            for account in self.world.accounts.values()
            for rented in account.pods.values()
            if rented.run_id == run.run_id
        ]
        least_s = max((lease.min_useful_s for lease in made), default=0.0) + _NOTICED_S
        return bool(made) and run.generations[-1].soft_stop_at - run.result_at <= least_s

    def _judge_refusal(self, wish: SimRun, run: RunState) -> None:
        """A next phase is refused where it would not fit, and only there."""
        generation, last = run.generations[-1], list(wish.shapes.values())[-1]
        left_s = generation.soft_stop_at - (generation.ended_at or 0.0)
        needs_s = last.start_s + last.compile_s + last.seconds_to(last.steps)
        if needs_s * _GENEROUS < left_s:
            self.world.fail("wasteful", f"{run.run_id} had {left_s:.0f} s and went no further")


_NOTICED_S = 5.0
"""Until the controller has read what an agent says of its end."""


def _is_of_a_grant(run: RunState) -> bool:
    """Whether a grant has ended it, or paid for it, so that it may not have been paid for on."""
    paid = any(each.payer.principal for each in run.generations)
    return paid and (run.stop is not None or run.outcome is Outcome.NOT_STARTED)


def _least_of(run: RunState) -> Usd:
    """The dearest of the run's machines, for its start-up, compilation, a minute and a landing."""
    return max(
        candidate.storage
        + cost(
            candidate.reserved_rate,
            candidate.startup_s.p50
            + max((phase.parts_s.get("compile", 0.0) for phase in candidate.phases), default=0.0)
            + 60.0
            + candidate.landing_s
            + traits_of(candidate.provider).kill_latency_s,
        )
        for candidate in map(run.plan.candidate, run.plan.launchable)
    )
