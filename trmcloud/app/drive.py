"""Observe, decide, act, append: the loop that carries a run, live or after a crash.

It holds no state that matters: whoever runs it next, from whatever point, comes to the same end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from trmcloud.app import reap
from trmcloud.app.bills import final_bills
from trmcloud.app.bucket_checkpoints import pull
from trmcloud.app.bucket_grants import give_grants
from trmcloud.app.bucket_limits import beyond_grants, drop_beyond, swept
from trmcloud.app.jobs import pod_request
from trmcloud.app.observing import Observer
from trmcloud.app.world import World, is_unasked, plan_of
from trmcloud.core import events as ev
from trmcloud.core.accounts import heard, orders_for, unheard
from trmcloud.core.actions import CREATE, FINAL, LAND, LONG, PULL, SAVE, TERMINATE, Action
from trmcloud.core.billing import awaiting_bill
from trmcloud.core.clock import Seen, Unknown
from trmcloud.core.controller import decide
from trmcloud.core.errors import (
    AmbiguousCreate,
    BudgetRefused,
    CheckpointError,
    FinalRefusal,
    LedgerError,
    LinkError,
    NoCapacity,
    ProviderError,
    ProviderRefused,
    StaleEpoch,
    TrmcloudError,
)
from trmcloud.core.governance import govern
from trmcloud.core.plan import Plan
from trmcloud.core.pod_contract import Kept
from trmcloud.core.providers import traits_of
from trmcloud.core.run_state import GRANT, IllegalTransition, RunState, State
from trmcloud.core.safekeeping import DAMAGED, pull_name
from trmcloud.ports.ledger import Driver
from trmcloud.ports.link import HearingLink
from trmcloud.ports.work import Progress

_BEAT_EVERY_S = 2.0
_GOVERN_EVERY_S = 5.0
_SWEEP_EVERY_S = 30.0
_BILLS_EVERY_S = 60.0
_STALE_DRIVER_S = 120.0
_MOST_EVENTS_AT_ONCE = 50
_PASS_S = 60.0
"""One list serves a look at all runs, however many: providers count the questions."""

Watcher = Callable[[RunState], None]


@dataclass
class RunDriver:
    """Drives one run under one epoch. ``stranger`` epochs are refused by the ledger."""

    world: World
    run_id: str
    epoch: int
    errands: bool = True
    """Whether this process stays long enough to send and pull files."""
    list_age_s: float = 0.0
    """How old a list that this process has may be, for one that looks at many runs in turn."""
    _plan: Plan | None = None
    _beaten_at: float = 0.0
    _governed_at: float = 0.0
    _swept_at: float | None = None
    _heard: bool = False
    _billed_at: float = -_BILLS_EVERY_S
    _kept: dict[str, Kept] = field(default_factory=dict)
    _pulling: dict[str, Kept] = field(default_factory=dict)
    _watch: Watcher = lambda run: None
    _observer: Observer = field(init=False)

    def __post_init__(self) -> None:
        self._observer = Observer(self.world, self.list_age_s)

    def run(self) -> RunState:
        """The run as the ledger has it now: the fold of its events, which the ledger keeps."""
        return self.world.ledger.read().runs.get(self.run_id) or RunState(self.run_id)

    def plan(self, run: RunState) -> Plan:
        if self._plan is None:
            self._plan = plan_of(self.world, run)
        return self._plan

    def step(self) -> RunState:
        """Once around: facts are appended until none follow, then actions are carried out.

        Raises:
            StaleEpoch: another controller has taken the run over.
        """
        now = self.world.wall()
        if now - self._governed_at >= _GOVERN_EVERY_S:
            self._governed_at = now
            land_overdrawn(self.world)
        if self._swept_at is None:
            self._swept_at = now
        elif now - self._swept_at >= _SWEEP_EVERY_S:
            # A pod that came late, or came twice, is nobody's: whoever is up ends it.
            self._swept_at = now
            reap.sweep(self.world)
        run = self._hear(self._correct(self._collect(self.run())))
        for _ in range(_MOST_EVENTS_AT_ONCE):
            if not run.live:
                return run
            if not self.errands:
                run = _call_off_unrented(self.world, run)
            seen = self._observer.look(run, self.plan(run))
            if isinstance(seen.report, Seen):
                self._kept = {pull_name(kept): kept for kept in seen.report.value.kept}
            decision = decide(
                run,
                self.plan(run),
                self.world.ledger.ledger_id,
                traits_of(_provider(run, self.plan(run))),
                seen,
                self.world.wall(),
            )
            if not decision.events:
                break
            try:
                self._append(*decision.events)
            except BudgetRefused as error:
                # A budget was cut while the run was between two machines.
                wish_to_stop(self.world, self.run_id, by="budget", reason=str(error))
            run = self.run()
        for action in decision.actions:
            if action.verb not in LONG:
                self._act(run, action)
            elif self.errands:
                self._hand_over(run, action)
        if now - self._beaten_at >= _BEAT_EVERY_S:
            self._beaten_at = now
            self.world.ledger.beat(self.run_id, self.epoch, now)
        return self.run() if decision.actions else run

    def _correct(self, run: RunState) -> RunState:
        """Put final bills in the place of estimates, now and then."""
        now = self.world.wall()
        if not awaiting_bill(run) or 0 <= now - self._billed_at < _BILLS_EVERY_S:
            return run
        self._billed_at = now
        events = final_bills(self.world, run)
        if events:
            self._append(*events)
        return self.run() if events else run

    def _hear(self, run: RunState) -> RunState:
        """On an errand: how the machine that was here before had ended, if nobody knows."""
        earlier, here = unheard(run), run.generation
        up = run.state in (State.RUNNING, State.ENDING)
        if earlier is None or here is None or not up or self._heard:
            return run
        link = self.world.links[here.provider]
        if not isinstance(link, HearingLink):
            return run
        with suppress(LinkError):
            report = link.left_behind(here.pod_name, earlier.pod_name)
            self._heard = True
            events = heard(run, self.plan(run), earlier, report) if report is not None else ()
            if events:
                self._append(*events)
                return self.run()
        return run

    def until(
        self, done: Callable[[RunState], bool], watch: Watcher, pause_s: float = 0.5
    ) -> RunState:
        """Step until ``done``; ``watch`` is shown every state.

        What goes wrong beyond all that is foreseen ends it only once its pod can cost nothing any
        more: till then this process is there to end that in time.
        """
        self._watch = watch
        while True:
            try:
                run = self.step()
            except TrmcloudError:
                raise
            except Exception as error:
                run = self.run()
                if not self._must_stay(run):
                    raise
                self.world.troubles[self.run_id] = error
            watch(run)
            if done(run) or not run.live:
                return run
            self.world.clock.sleep(pause_s)

    def _must_stay(self, run: RunState) -> bool:
        """Whether its pod may live and is not long past its end: ``sweep`` has it ended then."""
        generation = run.generation
        if generation is None or not generation.open:
            return False
        late_s = traits_of(generation.provider).kill_latency_s + 2 * _SWEEP_EVERY_S
        return self.world.wall() < generation.hard_stop_at + late_s

    # -- acting -------------------------------------------------------------------------------

    def _act(self, run: RunState, action: Action) -> None:
        """Carry an action out between its Started and its Finished or Failed."""
        # Read before it is put on record: whoever sleeps there wakes to another world.
        decided_at = self.world.wall()
        self._append(ev.ActionStarted(action.id, action.verb))
        if action.verb == TERMINATE:
            self._watch(self.run())  # it may take a provider a minute, and is a stage of its own
        try:
            taken, detail = self._perform(self.run(), action, decided_at)
        except NoCapacity as error:
            self._append(ev.ActionFailed(action.id, action.verb, "no_capacity", str(error)))
        except AmbiguousCreate as error:
            self._append(ev.ActionFailed(action.id, action.verb, "ambiguous", str(error)))
        except TrmcloudError as error:
            if isinstance(error, StaleEpoch):
                raise
            # A provider whose answer could not be understood may have made the pod all the same.
            certain = isinstance(error, ProviderRefused) or not isinstance(error, ProviderError)
            unclear = "refused" if certain else "ambiguous"
            told = str(error)
            if isinstance(error, FinalRefusal):
                # No candidate follows that would explain itself: what to do is part of the reason.
                unclear = FINAL
                told = "; ".join(filter(None, (told, error.next_step)))
            kind = unclear if action.verb == CREATE else "error"
            self._append(ev.ActionFailed(action.id, action.verb, kind, told))
        else:
            self._append(ev.ActionFinished(action.id, action.verb, detail, taken))

    def _hand_over(self, run: RunState, action: Action) -> None:
        """Let a worker carry what takes long; ``_collect`` hears how it went."""
        generation, world = run.generation, self.world
        if generation is None or generation.number != action.generation:
            return
        link, pod_name = world.links[generation.provider], generation.pod_name
        self._append(ev.ActionStarted(action.id, action.verb))
        plan = self.plan(run)
        if action.verb == PULL:
            kept = self._kept[action.id.split("/")[2].removeprefix(f"{PULL}-")]
            self._pulling[action.id] = kept
            world.workers.start(
                action.id, lambda progress: pull(world, run, plan, generation, kept, progress)
            )
            return
        if action.verb == GRANT:
            world.workers.start(
                action.id, lambda progress: give_grants(world, run, plan, generation, progress)
            )
            return

        try:
            # Before the files, which it waits for; and not by a worker, which might write over an
            # order to land that was given meanwhile.
            orders = orders_for(run, generation, self.epoch)
            if orders.finished or orders.save:
                link.send_orders(pod_name, orders)
        except TrmcloudError as error:
            self._append(ev.ActionFailed(action.id, action.verb, "error", str(error)))
            return

        def stage(progress: Progress) -> None:
            link.stage(pod_name, world.stage_items(run), progress)

        world.workers.start(action.id, stage)

    def _collect(self, run: RunState) -> RunState:
        """Put on record what workers have done."""
        for done in self.world.workers.finished():
            kept = self._pulling.pop(done.key, None)
            verb = PULL if kept is not None else done.key.split("/")[2]
            known = run.actions.get(done.key)
            if known is None or known.ended_at is not None or run.state is State.CLOSED:
                continue
            if done.error is not None:
                kind = DAMAGED if isinstance(done.error, CheckpointError) else "error"
                self._append(ev.ActionFailed(done.key, verb, kind, str(done.error)))
                continue
            events: list[ev.RunEvent] = [ev.ActionFinished(done.key, verb, "")]
            if kept is not None and run.generation is not None:
                number = run.generation.number
                events.append(ev.Pulled(number, kept.phase, kept.step, kept.sha256, kept.val_bpb))
            self._append(*events)
            run = self.run()
        return run

    def _perform(self, run: RunState, action: Action, decided_at: float) -> tuple[bool, str]:
        """(whether a provider took a deletion, what is to be noted)"""
        generation = run.generation
        if generation is None or generation.number != action.generation:
            return False, "overtaken"
        compute = self.world.computes[generation.provider]
        if action.verb == CREATE:
            request = pod_request(
                self.world, run, self.plan(run), generation, self.epoch, decided_at
            )
            return False, compute.create(request)
        if action.verb in (LAND, SAVE):
            orders = orders_for(run, generation, self.epoch)
            self.world.links[generation.provider].send_orders(generation.pod_name, orders)
        elif action.verb == TERMINATE:
            self.world.workers.cancel()
            return compute.terminate(action.pod_id or generation.pod_name), action.reason
        return False, action.reason

    def _append(self, *events: ev.RunEvent) -> None:
        now = self.world.clock.now()
        self.world.ledger.append(self.run_id, self.epoch, ev.stamped(events, now), now.wall)


def _provider(run: RunState, plan: Plan) -> str:
    if run.generation is not None:
        return run.generation.provider
    # Nothing to launch: any provider's traits will do to close the run.
    return plan.candidate(plan.launchable[0] if plan.launchable else plan.candidates[0].id).provider


def land_overdrawn(world: World) -> None:
    """Ask every run to land whose budget, at any level, was cut below what it holds."""
    ledger = world.ledger.read()
    now = world.wall()
    for run_id, reason in govern(ledger, Unknown(now), now).land:
        wish_to_stop(world, run_id, by="budget", reason=reason)


def wish_to_stop(world: World, run_id: str, *, by: str, reason: str) -> bool:
    """Put a wish to stop on record; False where the run has ended in the meantime."""
    try:
        world.ledger.request(run_id, ev.StopRequested(by, reason), world.wall())
    except IllegalTransition:
        return False
    return True


def is_driven(world: World, driver: Driver | None) -> bool:
    """Whether a live controller drives the run now."""
    if driver is None or driver.controller is None:
        return False
    alive = world.is_alive(driver.controller)
    if alive is None:
        return world.wall() - driver.beat_at < _STALE_DRIVER_S
    return alive


def _call_off_unrented(world: World, run: RunState) -> RunState:
    """A bystander rents nothing for a launch that was killed before it asked for a pod: it would
    not stay to see to it."""
    number = run.generation.number if run.generation is not None else 0
    asked = any(f"/g{number}/{CREATE}/" in action_id for action_id in run.actions)
    unrented = run.state in (State.PLANNED, State.RESERVED)
    if run.stop is None and (unrented or (run.state is State.RENTING and not asked)):
        reason = "its launch was killed before anything was rented"
        wish_to_stop(world, run.run_id, by="reconcile", reason=reason)
        return world.ledger.read().runs[run.run_id]
    return run


def reconcile(world: World) -> list[str]:
    """Bring every run nobody drives up to what is true now, and end pods of ours nobody owns.

    Every command calls it first, so that a killed controller's money is settled by whatever the
    user types next. Returns a line for each thing that it found and did.

    One run's trouble stops no other, nor the end of pods: it is left in ``world.troubles``.
    """
    said: list[str] = []
    land_overdrawn(world)
    world.listed.clear()
    world.troubles.clear()
    for run_id, run in world.ledger.read().runs.items():
        if is_unasked(world, run):
            continue
        try:
            after = _look_after(world, run)
        except StaleEpoch:
            continue
        except LedgerError:
            raise  # which is all runs' trouble
        except Exception as error:
            world.troubles[run_id] = error
            continue
        if after.state is not run.state:
            outcome = after.outcome.value if after.outcome else after.state.value
            said.append(f"{run_id}: {run.state.value} → {outcome}")
        if after.oversized_bytes > run.oversized_bytes:
            size_gb = (after.oversized_bytes - run.oversized_bytes) / 1e9
            cost = after.oversized_rent - run.oversized_rent
            said.append(
                f"{run_id}: its pod had uploaded {size_gb:,.1f} GB that it was not granted: deleted"
                f" from {run.bucket}, its rent of {cost} at most is counted"
            )
    return said + reap.sweep(world, _PASS_S)


def _look_after(world: World, run: RunState) -> RunState:
    """The run once it is brought up to date, if nobody drives it."""
    run_id = run.run_id
    facts: tuple[ev.RunEvent, ...] = () if run.live else final_bills(world, run)
    beyond = beyond_grants(world, run)
    if beyond is not None:
        facts = (*facts, swept(run, beyond, world.wall()))
    if not (run.live or facts) or is_driven(world, world.ledger.driver(run_id)):
        return run
    epoch = world.ledger.take_over(run_id, world.who, world.wall())
    if facts:
        world.ledger.append(run_id, epoch, facts, world.wall())
    if beyond and drop_beyond(world, run, beyond):
        world.ledger.append(run_id, epoch, [swept(run, (), world.wall())], world.wall())
    looker = RunDriver(world, run_id, epoch, errands=False, list_age_s=_PASS_S)
    try:
        after = looker.step() if run.live else looker.run()
    except LedgerError:
        raise
    except Exception:
        world.ledger.release(run_id, epoch)
        raise
    world.ledger.release(run_id, epoch)
    return after
