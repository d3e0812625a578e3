"""The acts of the users of one world."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.control import bookkeeping
from trmcloud.core.control import events as ev
from trmcloud.core.control.billing import awaiting_bill
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.errors import NotFoundError
from trmcloud.operations.checkpoints.fetching import choose, what_to_prune
from trmcloud.operations.context import find_run
from trmcloud.operations.driving.reconciling import reconcile
from trmcloud.operations.launch import launching as use_case
from trmcloud.operations.pod_request import LaunchData
from trmcloud.sim.scenario import Scenario, SimRun
from trmcloud.sim.world.controllers import Process
from trmcloud.sim.world.facts import TrueCourse
from trmcloud.sim.world.world import SimWorld

HOUR_S = 3600.0
_RESCUE_EVERY_S = 240.0
_MOST_FETCHES = 6
_STARTED = frozenset({State.BOOTING, State.RUNNING})
_DATA = LaunchData("/sim/data")


class UserActions:
    """Launches, fetches and prunes as the users of one world do."""

    def __init__(self, world: SimWorld, scenario: Scenario) -> None:
        self.world, self.scenario = world, scenario
        self._fetches = 0

    def length_s(self) -> float:
        return max(
            w.at_s + w.plan.spec.wait_s + w.plan.candidates[0].hard_stop_s
            for w in self.scenario.wishes
        )

    def begin(self) -> None:
        world, scenario = self.world, self.scenario
        for wish in scenario.wishes:
            world.truths[wish.run_id] = TrueCourse(
                wish.plan, wish.shapes, paces=scenario.paces.get(wish.run_id)
            )
            world.queue.after(wish.at_s, partial(self._launch, wish))
            if wish.fetch_after_s:
                world.queue.after(wish.at_s + wish.fetch_after_s, partial(self._fetch, wish))
        if scenario.reaper != "none":
            machine = world.laptop if scenario.reaper == "laptop" else world.server
            reaper = Process(world, machine, "reap")
            reaper.soon(world.rng.uniform(1, 300))
        world.queue.after(scenario.looks_every_s, self._look)

    # -- what users do ------------------------------------------------------------------------

    def client(self, wish: SimRun, principal: str) -> Process:
        machine = self.world.server if wish.elsewhere else self.world.laptop
        return Process(self.world, machine, "launch", wish.project, principal)

    def _launch(self, wish: SimRun) -> None:
        process = self.client(wish, wish.principal)
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

    def act(self, act: Callable[[Process], object], project: str = "sim") -> object:
        """One command, from start to end."""
        process = Process(self.world, self.world.laptop, "user", project)
        got = process.do(lambda: act(process))
        if process.driver is None:
            process.kill()
        return got

    def _look(self) -> None:
        if self.done() and all(w.run_id in self.runs() for w in self.scenario.wishes):
            return
        self.type_command()
        self.world.queue.after(self.scenario.looks_every_s, self._look)

    def type_command(self) -> None:
        """Type any command: runs without a driver are brought up to date."""
        self.act(lambda p: reconcile(p.world))

    def _fetch(self, wish: SimRun) -> None:
        self.act(lambda p: self._fetch_best(p, wish))
        run = self.runs().get(wish.run_id)
        self._fetches += 1
        if run is not None and not run.fetched and self._fetches < _MOST_FETCHES:
            # It failed, was killed, or there was nothing yet: the user tries again.
            self.world.queue.after(HOUR_S, partial(self._fetch, wish))
        if wish.run_id in self.runs() and self.world.rng.random() < 0.3:
            self.act(lambda p: self._prune(p, wish))

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
            sim.fail("I3", f"{manifest.label} is not the best of {wish.run_id}")
        process.cross("fetch.mid")
        if sim.knobs.fetch_fails:
            sim.observed(sim.knobs.fetch_fails.pop(0))
            return
        world.files.fetch(manifest, ("weights.safetensors",), "/sim/into", lambda a, b: None)
        if not found.whole:
            sim.fail("I3", f"{manifest.label} was fetched and is not whole")
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
                self.world.fail("I3", f"the best of {phase} was pruned")
            there = {m.step for m in files.manifests(wish.run_id) if m.phase == phase}
            if not to_go_on_from[phase] <= there:
                self.world.fail("I3", f"the checkpoint that {phase} continues from was pruned")

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
        if not world.forgotten and any(each.is_owed(ledger) for each in world.files.oversized):
            return False
        return all(rented.pod_id in world.foreign for rented in world.living())

    def heal(self) -> None:
        """Every fault ends, and somebody comes back to the machine."""
        world = self.world
        world.accrue()  # until now the faults were there
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
        world.look()
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


def _to_go_on_from(manifests: Sequence[CheckpointManifest], phase: str) -> set[int]:
    """The steps of the latest, and of what was saved before its cooldown."""
    mine = [m for m in manifests if m.phase == phase]
    latest = max(mine, key=lambda m: (m.created_at, m.step), default=None)
    wanted = {latest.step, latest.cooldown_from} if latest is not None else set()
    return {m.step for m in mine if m.step in wanted}


def _best(manifests: object, phase: str) -> float | None:
    scores = [m.val_bpb for m in manifests if m.phase == phase]  # type: ignore[attr-defined]
    return min((s for s in scores if s is not None), default=None)
