"""The acts of the users of one world, and their expectations of a world that is healthy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from trmcloud.app import grants
from trmcloud.app import launching as use_case
from trmcloud.app.checkpoints.fetching import choose, what_to_prune
from trmcloud.app.context import find_run
from trmcloud.app.drive import RunDriver
from trmcloud.app.pod_request import LaunchData
from trmcloud.app.reconciling import reconcile
from trmcloud.app.run_queries import is_driven
from trmcloud.app.stopping import request_stop
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.contract.pod_contract import Lease, PhaseLease, PodName
from trmcloud.core.control import bookkeeping
from trmcloud.core.control import events as ev
from trmcloud.core.control.billing import awaiting_bill
from trmcloud.core.control.reason import ReasonKind, make_reason
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.errors import BudgetRefused, NotFoundError, Outcome
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.ports.compute import PodRequest
from trmcloud.sim.scenario import GrantAct, Scenario, SimRun
from trmcloud.sim.world.controllers import Process
from trmcloud.sim.world.facts import START_AT, TrueCourse
from trmcloud.sim.world.world import SimWorld

HOUR_S = 3600.0
_RESCUE_EVERY_S = 240.0
_MOST_FETCHES = 6
_IMPATIENT_S = 40.0
_LEAST_LEFT = 0.02
_TIMES_LEAST = 2
"""A resume may be refused with less than so many times what it needs to train and save a step."""
_STARTED = frozenset({State.BOOTING, State.RUNNING})
_GENEROUS = 1.6
_DATA = LaunchData("/sim/data")
_BY_ITSELF = (
    Outcome.FINISHED, Outcome.LANDED, Outcome.GATE_FAILED, Outcome.NEXT_PHASE_REFUSED,
)  # fmt: skip
"""Outcomes of a run that nothing went wrong with, and that nothing stopped."""


class UserActions:
    """Acts as the users of one world do, and judges what they may expect."""

    def __init__(self, world: SimWorld, scenario: Scenario) -> None:
        self.world, self.scenario = world, scenario
        self._resumed: set[str] = set()
        self._fetches = 0

    def length_s(self) -> float:
        return max(
            w.at_s + w.plan.spec.wait_s + w.plan.candidates[0].hard_stop_s
            for w in self.scenario.wishes
        )

    def begin(self) -> None:
        world, scenario = self.world, self.scenario
        if scenario.account_cap is not None:
            world.ledger.set_cap(ev.CapSet("account", "", scenario.account_cap), world.queue.now)
            world.check.on_cap_set(scenario.account_cap)
        for account in world.accounts.values():
            account.paid_in = scenario.paid_in if account.habits.prepaid else None
        if scenario.foreign:
            self._foreign_pods()
        for wish in scenario.wishes:
            world.truths[wish.run_id] = TrueCourse(
                wish.plan, wish.shapes, paces=scenario.paces.get(wish.run_id)
            )
            world.queue.after(wish.at_s, partial(self._launch, wish))
            if wish.stop_after_s:
                world.queue.after(wish.at_s + wish.stop_after_s, partial(self._stop, wish))
            if wish.fetch_after_s:
                world.queue.after(wish.at_s + wish.fetch_after_s, partial(self._fetch, wish))
        for act in scenario.grants:
            world.queue.after(act.at_s, partial(self._change_grant, act))
        if scenario.reaper != "none":
            machine = world.laptop if scenario.reaper == "laptop" else world.server
            reaper = Process(world, machine, "reap")
            reaper.soon(world.rng.uniform(1, 300))
        world.queue.after(scenario.looks_every_s, self._look)

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
                world.check.foreign.add(rented.pod_id)

    # -- what users do ------------------------------------------------------------------------

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
                self._user(lambda p: grants.answer(p.world, asked.id, give=True))
        elif act.kind == "give":
            assert terms is not None
            self._user(lambda p: grants.give(p.world, principal, terms))
        elif act.kind == "raise":
            assert terms is not None
            self._user(lambda p: grants.raise_grant(p.world, principal, terms))
        else:
            at_once = act.kind == "revoke_now"
            self.world.check.grants.revoked += 1
            self._user(lambda p: grants.revoke(p.world, principal, at_once=at_once))

    def _client(self, wish: SimRun, principal: str) -> Process:
        machine = self.world.server if wish.elsewhere else self.world.laptop
        return Process(self.world, machine, "launch", wish.project, principal)

    def _launch(self, wish: SimRun) -> None:
        process = self._client(wish, wish.principal)
        process.do_and_drive(partial(self._start, process, wish))

    def _start(self, process: Process, wish: SimRun) -> None:
        """As the command does, once its plan is checked and its data ready."""
        driver = use_case.start(
            process.world, wish.plan, data=_DATA, detached=wish.detached, run_id=wish.run_id
        )
        process.drive(driver)
        if wish.detached:
            gone_early = "controller" in self.scenario.off
            process.stop_when = lambda run: run.trains or (gone_early and run.state in _STARTED)

    def _user(self, act: Callable[[Process], object], project: str = "sim") -> object:
        """One command, from start to end."""
        process = Process(self.world, self.world.laptop, "user", project)
        got = process.do(lambda: act(process))
        if process.driver is None:
            process.kill()
        return got

    def _stop(self, wish: SimRun) -> None:
        run = self.world.ledger.read().runs.get(wish.run_id)
        if run is None or not run.live:
            return

        def stop(process: Process) -> None:
            """As the command does: ask, then drive the run to its end where it has no driver."""
            world = process.world
            ask(process)
            if not is_driven(world, world.ledger.driver(wish.run_id)):
                epoch = world.ledger.take_over(wish.run_id, world.who, world.wall())
                process.drive(RunDriver(world, wish.run_id, epoch))

        def ask(process: Process) -> None:
            reason = make_reason(ReasonKind.STOP_COMMAND)
            request_stop(process.world, wish.run_id, reason)

        def stop_again() -> None:
            """Nothing seems to happen, so the user says it again."""
            run = self.runs().get(wish.run_id)
            if run is not None and run.live:
                self._user(ask)

        self._user(stop)
        self.world.queue.after(_IMPATIENT_S, stop_again)
        self.world.wake()

    def _look(self) -> None:
        """The user types a command: runs without a driver are brought up to date."""
        if self.done() and all(w.run_id in self.runs() for w in self.scenario.wishes):
            return
        self._user(lambda p: reconcile(p.world))
        for wish in self.scenario.wishes:
            run = self.runs().get(wish.run_id)
            if run is None or run.live or wish.run_id in self._resumed or not wish.resume_after_s:
                continue
            if run.outcome in (Outcome.FINISHED, Outcome.GATE_FAILED):
                continue
            self._resumed.add(wish.run_id)
            self.world.queue.after(wish.resume_after_s, partial(self._resume, wish))
        self.world.queue.after(self.scenario.looks_every_s, self._look)

    def _resume(self, wish: SimRun) -> None:
        process = self._client(wish, wish.resumed_by)

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
            self.world.check.fail("wasteful", f"{wish.run_id} may not use what it has left")

    def _fetch(self, wish: SimRun) -> None:
        self._user(lambda p: self._fetch_best(p, wish))
        run = self.runs().get(wish.run_id)
        self._fetches += 1
        if run is not None and not run.fetched and self._fetches < _MOST_FETCHES:
            # It failed, was killed, or there was nothing yet: the user tries again.
            self.world.queue.after(HOUR_S, partial(self._fetch, wish))
        if wish.run_id in self.runs() and self.world.rng.random() < 0.3:
            self._user(lambda p: self._prune(p, wish))

    def _fetch_best(self, process: Process, wish: SimRun) -> None:
        world, sim = process.world, self.world
        run = world.ledger.read().runs.get(wish.run_id)
        if run is None:
            return
        reconcile(world)
        try:
            manifest = choose(world, run)
        except NotFoundError:
            return
        kept = sim.files.checkpoints[wish.run_id]
        found = next(c for c in kept if c.manifest.label == manifest.label)
        rivals = [c for c in kept if c.readable and c.home and c.manifest.phase == manifest.phase]
        scores = [bpb for c in rivals if (bpb := c.seen("home").val_bpb) is not None]
        if scores and manifest.val_bpb != min(scores):
            sim.check.fail("I3", f"{manifest.label} is not the best of {wish.run_id}")
        process.cross("fetch.mid")
        if sim.knobs.fetch_fails:
            sim.observed(sim.knobs.fetch_fails.pop(0))
            return
        world.files.fetch(manifest, ("weights.safetensors",), "/sim/into", lambda a, b: None)
        if not found.whole:
            sim.check.fail("I3", f"{manifest.label} was fetched and is not whole")
        note = ev.Fetched(manifest.phase, manifest.step, manifest.sha256, "/sim/into")
        world.ledger.request(wish.run_id, note, world.wall())

    def _prune(self, process: Process, wish: SimRun) -> None:
        files, run = self.world.files, find_run(process.world, wish.run_id)
        before = {p: _best(files.manifests(wish.run_id), p) for p in wish.shapes}
        to_go_on_from = {p: _to_go_on_from(files.manifests(wish.run_id), p) for p in wish.shapes}
        for manifest in what_to_prune(process.world.files.manifests(run.run_id), 1).checkpoints:
            process.world.files.delete(manifest)
        for phase, best in before.items():
            if best is not None and _best(files.manifests(wish.run_id), phase) != best:
                self.world.check.fail("I3", f"the best of {phase} was pruned")
            there = {m.step for m in files.manifests(wish.run_id) if m.phase == phase}
            if not to_go_on_from[phase] <= there:
                self.world.check.fail(
                    "I3", f"the checkpoint that {phase} continues from was pruned"
                )

    # -- the end ------------------------------------------------------------------------------

    def runs(self) -> dict[str, RunState]:
        return dict(self.world.ledger.read().runs)

    def done(self) -> bool:
        world = self.world
        ledger = world.ledger.read()
        if any(run.live or awaiting_bill(run) for run in ledger.runs.values()):
            return False
        if bookkeeping.orphans_awaiting_bill(ledger) or bookkeeping.is_charge_pending(ledger):
            return False
        if not world.check.forgotten and world.check.oversize.is_owed():
            return False
        return all(rented.pod_id in world.check.foreign for rented in world.living())

    def heal(self) -> None:
        """Every fault ends, and somebody comes back to the machine."""
        world = self.world
        world.check.accrue()  # until now the faults were there
        world.say("everything is well again")
        knobs = world.knobs
        healed = type(knobs)()
        healed.bill_lag_s, healed.pod_skew_s = knobs.bill_lag_s, 0.0
        world.knobs = healed
        world.armed.clear()
        world.ledger.mend()
        for machine in (world.laptop, world.server):
            machine.awake = machine.online = True
            machine.offset_s = 0.0
        world.check.look()
        rescue = Process(world, world.server, "reap")
        rescue.every_s = _RESCUE_EVERY_S
        world.queue.after(1.0, partial(self._rescue, rescue))

    def _rescue(self, rescue: Process) -> None:
        rescue.do(lambda: rescue.world.ledger.accept_restored(rescue.world.wall()))
        rescue.do(lambda: reconcile(rescue.world))
        if not self.done():
            settling = all(
                not run.live or run.state is State.SETTLING for run in self.runs().values()
            )
            wait_s = 1800.0 if settling else 20.0
            self.world.queue.after(wait_s, partial(self._rescue, rescue))

    def judge(self) -> None:
        """Check that the money was used well where nothing went wrong."""
        world, check = self.world, self.world.check
        if world.fired or world.off or check.violation is not None:
            return
        for wish in self.scenario.wishes:
            run = self.runs().get(wish.run_id)
            if run is None or run.outcome is None or _is_of_a_grant(run):
                continue
            if len(run.generations) > 1:
                if not wish.resume_after_s:
                    check.fail("wasteful", f"{run.run_id} was healthy and rented twice")
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
                    check.fail("wasteful", f"{run.run_id} was stopped and did not land")
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
            self.world.check.fail("wasteful", f"{run.run_id} was slow, and is {told}")

    def _judge_healthy(self, wish: SimRun, run: RunState) -> None:
        if run.stop is not None and run.stop.reason.kind is ReasonKind.BALANCE_ENDS:
            return  # whether it was in time is judged when the balance ends
        check = self.world.check
        if run.outcome is Outcome.FAILED and self._came_too_late(run):
            return
        if run.outcome not in _BY_ITSELF:
            check.fail("wasteful", f"{run.run_id} was healthy and {run.outcome.value}")  # type: ignore[union-attr]
        shapes = wish.shapes
        *gated, _ = shapes  # nothing is judged after the last phase
        gate_fails = any(not shapes[name].gate_passes and name in run.gates for name in gated)
        if (run.outcome is Outcome.GATE_FAILED) != gate_fails:
            check.fail("wasteful", f"the gate of {run.run_id} judged wrongly")
        if run.outcome is Outcome.FINISHED:
            name, shape = list(shapes.items())[-1]
            whole = run.phases[name].step == shape.steps
            if not whole and run.phases[name].outcome != "stopped_paying":
                check.fail("wasteful", f"{name} of {run.run_id} ended early")
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
                check.fail("wasteful", f"{run.run_id} landed {promised - lived:.0f} s early")

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
            self.world.check.fail(
                "wasteful", f"{run.run_id} had {left_s:.0f} s and went no further"
            )


_NOTICED_S = 5.0
"""Until the controller has read what an agent says of its end."""


def _is_of_a_grant(run: RunState) -> bool:
    """Whether a grant has ended it, or paid for it, so that it may not have been paid for on."""
    paid = any(each.principal for each in run.generations)
    return paid and (run.stop is not None or run.outcome is Outcome.NOT_STARTED)


def _to_go_on_from(manifests: Sequence[CheckpointManifest], phase: str) -> set[int]:
    """The steps of the latest, and of what was saved before its cooldown."""
    mine = [m for m in manifests if m.phase == phase]
    latest = max(mine, key=lambda m: (m.created_at, m.step), default=None)
    wanted = {latest.step, latest.cooldown_from} if latest is not None else set()
    return {m.step for m in mine if m.step in wanted}


def _best(manifests: object, phase: str) -> float | None:
    scores = [m.val_bpb for m in manifests if m.phase == phase]  # type: ignore[attr-defined]
    return min((s for s in scores if s is not None), default=None)


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
