"""Controllers: processes that run the real use cases on simulated machines, and may die anywhere.

Every call through a port is a point at which the process can be killed, or stopped while the world
goes on: those are the instants that matter to a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import is_held
from trmcloud.core.control.balance import LOOK_EVERY_S
from trmcloud.core.control.billing import has_failed_to_boot
from trmcloud.core.control.budget import LedgerState
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.control.waiting import is_waiting
from trmcloud.core.errors import (
    LedgerDamaged,
    LedgerError,
    LedgerLocked,
    LedgerTooNew,
    ProviderError,
    StaleEpoch,
    TrmcloudError,
)
from trmcloud.core.money import Usd
from trmcloud.operations.context import Buckets, Caller, Context, PodInputs
from trmcloud.operations.driving import reap
from trmcloud.operations.driving.drive import RunDriver, land_before_balance_ends
from trmcloud.operations.driving.ending import end_overdue
from trmcloud.operations.driving.reconciling import is_left_waiting, reconcile
from trmcloud.operations.machines import Machines
from trmcloud.ports.compute import PodItems
from trmcloud.ports.ledger import ControllerId, Driver
from trmcloud.sim.world.account import Observer, RentedMachine, World
from trmcloud.sim.world.clocks import Entry, Machine
from trmcloud.sim.world.ledger_memory import MemoryLedger
from trmcloud.sim.world.ports import SimBucket, SimCompute, SimLink, SimWorkers

_HELD_LONG_S = 600.0
_HOME = Path("/sim")
_QUICK_S, _SLOW_S, _COARSE_S = 1.0, 30.0, 1800.0
_LOOK_S = 0.5


class ProcessKilled(BaseException):
    """The process ends here, in the middle of whatever it was doing."""


class Process:
    """One controller. ``kind``: launch (drives one run), reap (reconciles now and then)."""

    def __init__(
        self,
        world: World,
        machine: Machine,
        kind: str,
        project: str = "sim",
        principal: str = "",
    ) -> None:
        self.sim, self.machine, self.kind = world, machine, kind
        world.processes_made += 1
        self.who = ControllerId(machine.name, world.processes_made, "1")
        self.alive = True
        self.busy = False
        self.since = world.queue.now
        self.driver: RunDriver | None = None
        self.wait_s = _QUICK_S
        self._last: RunState | None = None
        self._event: Entry | None = None
        self.stop_when: Callable[[RunState], bool] | None = None
        self.every_s = 300.0
        self.named: str = ""
        """The run that a person has named to it, whose pods are to end."""
        self.shown: dict[RentedMachine, float] = {}
        """Pods of its run that a list showed it in the look that it is at, and when."""
        self.bucket_refused_at: float | None = None
        """When the bucket did not answer it, if that was what came of asking last."""
        self.world = Context(
            home=_HOME,
            clock=machine,
            ledger=LedgerView(self),
            intents=machine.intents,
            files=world.files,
            notes=world.notes,
            workers=SimWorkers(self),
            machines=Machines(
                computes={name: SimCompute(each, self) for name, each in world.accounts.items()},
                links={name: SimLink(each, self) for name, each in world.accounts.items()},
            ),
            buckets=Buckets(lambda place: SimBucket(world, self)),
            caller=Caller(self.who, self._is_alive, project, principal),
            pods=PodInputs(
                items=lambda run: PodItems(), folder=lambda kind, folder: f"/sim/{kind}"
            ),
        )
        world.processes.append(self)

    def _is_alive(self, controller: ControllerId) -> bool | None:
        if controller.host != self.machine.name:
            return None
        for process in self.sim.processes:
            if process.alive and process.who == controller:
                # One that is stopped in mid-call may wake any moment, or never.
                return None if process.busy and process is not self else True
        return False

    @property
    def up(self) -> bool:
        return self.alive and self.machine.awake and not self.busy

    def cross(self, point: str) -> None:
        """A place where the process may be killed or stopped."""
        if self.sim.armed:
            self.sim.crossing(self, point)

    def kill(self) -> None:
        self.alive = False
        if self in self.sim.processes:
            self.sim.processes.remove(self)
        if self._event is not None:
            self._event.cancel()

    # -- what it does -------------------------------------------------------------------------

    def do(self, act: Callable[[], object]) -> object:
        """Run ``act`` as this process, which it may not survive."""
        if not self.up:
            return None
        self.busy = True
        try:
            done = act()
            self._judge_troubles()
            return done
        except ProcessKilled:
            self.sim.say(f"{self.kind} {self.who.pid} is killed")
            self.kill()
        except TrmcloudError as error:
            self.sim.say(f"{self.kind} {self.who.pid}: {type(error).__name__} {error}")
            if isinstance(error, ProviderError):
                self.sim.emit(Observer.on_provider_error, self, error)
            self.sim.emit(Observer.on_error, error)
            return error
        finally:
            self.busy = False
        return None

    def do_and_drive(self, act: Callable[[], object]) -> object:
        """Run ``act``, which makes it a run's driver; else the process ends."""
        done = self.do(act)
        if self.alive and self.driver is None:
            self.kill()
        return done

    def _judge_troubles(self) -> None:
        """Judge the troubles of single runs, which kept nothing else from being done."""
        for run_id, error in self.world.troubles.items():
            self.sim.say(f"{self.kind} {self.who.pid}, {run_id}: {type(error).__name__} {error}")
            if not isinstance(error, TrmcloudError):
                raise error
            if isinstance(error, ProviderError):
                self.sim.emit(Observer.on_provider_error, self, error)

    def drive(self, driver: RunDriver) -> None:
        self.driver = driver
        self.soon(_QUICK_S)

    def soon(self, seconds: float) -> None:
        if self._event is not None:
            self._event.cancel()
        self._event = self.sim.queue.after(seconds, self.step)

    def wake(self) -> None:
        """Something in the world changed, which the next of its frequent looks will find."""
        if not self.alive or self.busy:
            return
        rng = self.sim.rng
        if self.kind == "reap":
            wait_s = rng.uniform(0.5, self.every_s)
            if self._event is None or self._event.at > self.sim.queue.now + wait_s:
                self.soon(wait_s)
        elif self.driver is not None:
            self.wait_s = _QUICK_S
            now, wait_s = self.sim.queue.now, rng.uniform(0.2, 5.0)
            # One that looks every half second is put off by nothing that happens.
            if self._event is None or not now <= self._event.at <= now + wait_s:
                self.soon(wait_s)

    def step(self) -> None:
        if not self.alive:
            return
        if not self.machine.awake or self.busy:
            self.soon(60.0)
            return
        if self.kind == "reap":
            before = self.sim.ledger.read()
            said = self.do(self._reap)
            if self.alive:
                busy = bool(said) or self.sim.ledger.read() is not before
                looks_often = busy or self.sim.unsettled()
                self.soon(self.every_s if looks_often else _COARSE_S)
            return
        if self.driver is not None:
            self._drive_on(self.driver)

    def _reap(self) -> list[reap.Did]:
        """As the guard does: whatever is ours by name and overdue, then this ledger's own; the
        first only where there is anything that is not this ledger's."""
        said: list[reap.Did] = []
        if self.sim.foreign:
            try:
                said = reap.end(self.world, reap.look(self.world))
            except LedgerError:
                end_overdue(self.world)
                raise
        land_before_balance_ends(self.world)
        said += reconcile(self.world)
        self._continue_waits()
        return said

    def _continue_waits(self) -> None:
        """As the guard does: whoever takes a run over that waits stays with it until it trains, or
        until the next question is due."""
        for run_id, run in self.world.ledger.read().runs.items():
            if not is_left_waiting(self.world, run):
                continue
            other = Process(self.sim, self.machine, "launch")
            other.stop_when = partial(_is_left_alone, other)
            other.do_and_drive(partial(other.take_up, run_id))

    def take_up(self, run_id: str) -> None:
        world = self.world
        epoch = world.ledger.take_over(run_id, self.who, world.wall())
        self.drive(RunDriver(world, run_id, epoch))

    def _drive_on(self, driver: RunDriver) -> None:
        self.shown.clear()
        got = self.do(driver.step)
        if not self.alive:
            return
        if isinstance(got, TrmcloudError):
            # What it saw and could not record, since it is fenced or has no ledger, is lost.
            # The command ends with one line of error; the run waits for the next command.
            locked = isinstance(got, LedgerError)
            self.sim.note_error(got)
            if locked:
                if not isinstance(got, StaleEpoch):
                    self.sim.emit(Observer.on_leave, self, self._last)
                self.kill()
            else:
                self.soon(_SLOW_S)
            return
        for rented, at in () if driver.is_unwritten else self.shown.items():
            rented.shown_at = max(rented.shown_at, at)
        run = self.sim.ledger.read().runs.get(driver.run_id)
        if run is None or not run.live:
            self.kill()
            return
        if self.stop_when is not None and self.stop_when(run):
            self.do(lambda: self.world.ledger.release(run.run_id, driver.epoch))
            self.kill()
            return
        if is_waiting(run):
            self._last = run
            self.soon(self._until_asked(driver, run))
            return
        if run is not self._last:
            self._last, self.wait_s = run, _QUICK_S
        else:
            self.wait_s = min(self.wait_s * 3, self._slowest_s(run))
        self.soon(self._until_due(run, self.wait_s))

    def _until_asked(self, driver: RunDriver, run: RunState) -> float:
        """It looks every five seconds; what it would find in between pokes it."""
        return max(0.5, driver.idle_s(run)) + self.sim.rng.uniform(0.0, 5.0)

    def _slowest_s(self, run: RunState) -> float:
        """Looks in between would find nothing: whatever changes in the world pokes."""
        if self._is_held(run) and run.result_at is not None:
            # Held for what cannot be copied now: for hours, where the link is down for so long.
            since = self.machine.now().wall - run.result_at
            return _SLOW_S if since < _HELD_LONG_S else _HELD_LONG_S
        if run.state in (State.RENTING, State.BOOTING, State.ENDING) or run.stop is not None:
            return _SLOW_S
        if self.sim.unsettled() or self._is_waited_for(run):
            return _SLOW_S
        if any(account.paid_in is not None for account in self.sim.accounts.values()):
            return LOOK_EVERY_S / 2
        generation = run.generation
        wall = self.machine.now().wall
        if generation is not None and generation.open and wall >= generation.hard_stop_at:
            return _SLOW_S
        return _COARSE_S

    def _is_waited_for(self, run: RunState) -> bool:
        """Whether its pod's agent waits for what is to be sent: again, where it has lost that."""
        mine = {g.pod_id for g in run.open_generations}
        rented = [r for r in self.sim.living() if r.pod_id in mine]
        return any(r.pod.agent is not None and bool(r.pod.agent.report.waiting) for r in rented)

    def _is_held(self, run: RunState) -> bool:
        """Whether nothing but copies and the hard stop are waited for."""
        driver, generation = self.driver, run.generation
        if driver is None or generation is None or run.state is not State.ENDING:
            return False
        return is_held(run, run.plan, generation)

    def _until_due(self, run: RunState, wait_s: float) -> float:
        generation = run.generation
        if generation is not None and generation.open:
            left = generation.hard_stop_at - self.machine.now().wall
            if 0 <= left < wait_s:
                return left + self.sim.rng.uniform(0.1, 0.6)
            if generation.absence is not None and has_failed_to_boot(run, generation):
                # One that looks twice a second finds it proven at once that it is gone.
                proof_s = traits_of(generation.provider).absence.deleted_s
                left = generation.absence.since + proof_s - self.machine.now().wall
                if 0 <= left < wait_s:
                    return left + _LOOK_S
        return wait_s


def _is_left_alone(process: Process, run: RunState) -> bool:
    driver = process.driver
    ends = run.state in (State.ENDING, State.SETTLING)
    return run.trains or ends or (driver is not None and driver.idle_s(run) > 0.0)


class LedgerView:
    """The shared ledger as one process has it: with its locks, its damage and its crashes."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @property
    def _ledger(self) -> MemoryLedger:
        return self._process.sim.ledger

    def _gate(self) -> None:
        sim = self._process.sim
        if sim.ledger_readable:
            return
        knobs, now = sim.knobs, sim.queue.now
        error: LedgerError = LedgerTooNew("a newer version wrote to the ledger")
        fault = "10"
        if now < knobs.ledger_locked_until:
            fault, error = "38", LedgerLocked("another process holds the ledger")
        elif now < knobs.ledger_damaged_until:
            fault, error = "39", LedgerDamaged("the ledger is damaged")
        elif sim.ledger.is_older:
            fault, error = "40", LedgerDamaged("the ledger was restored from a backup")
        sim.observed(fault)
        raise error

    def _may_write(self) -> None:
        self._gate()
        sim = self._process.sim
        if sim.queue.now < sim.knobs.disk_full_until:
            sim.observed("8")
            raise LedgerLocked("the ledger's disk is full")

    @property
    def ledger_id(self) -> str:
        return self._ledger.ledger_id

    def hurried(self) -> LedgerView:
        return self

    def backup_trouble(self) -> str:
        return ""

    def read(self) -> LedgerState:
        sim = self._process.sim
        if not sim.ledger_readable:
            self._gate()
        state = sim.ledger.seen()
        if state.quarantined or state.unread:
            sim.observed("76")
        return state

    def records(self, run_id: str | None = None) -> Sequence[ev.Record]:
        self._gate()
        return self._ledger.whole_records(run_id)

    def last_seq(self) -> int:
        self._gate()
        return self._ledger.last_seq()

    def records_after(self, seq: int) -> Sequence[ev.Record]:
        return tuple(record for record in self.records() if record.seq > seq)

    def driver(self, run_id: str) -> Driver | None:
        self._gate()
        driver = self._ledger.driver(run_id)
        if driver is None or driver.controller is None:
            return driver
        # One that looks every half second beats, even where its idle looks are left out here.
        for process in self._process.sim.processes:
            if process.who == driver.controller and process.up and process.machine.online:
                return Driver(driver.epoch, driver.controller, process.machine.now().wall)
        return driver

    def open_run(
        self, run_id: str, planned: ev.RunPlanned, amount: Usd, who: ControllerId, at: float
    ) -> int:
        self._begin("open")
        epoch = self._ledger.open_run(run_id, planned, amount, who, at)
        self._written("open", epoch, run_id, (planned, ev.Reserved(amount)))
        return epoch

    def reopen_run(
        self, run_id: str, reopened: ev.Reopened, amount: Usd, who: ControllerId, at: float
    ) -> int:
        self._begin("reopen")
        epoch = self._ledger.reopen_run(run_id, reopened, amount, who, at)
        self._written("reopen", epoch, run_id, (reopened, ev.Reserved(amount)))
        return epoch

    def take_over(self, run_id: str, who: ControllerId, at: float) -> int:
        self._may_write()
        self._process.sim.emit(Observer.on_take_over, self._process, run_id)
        epoch = self._ledger.take_over(run_id, who, at)
        self._written("take_over", epoch, run_id)
        return epoch

    def release(self, run_id: str, epoch: int) -> None:
        self._may_write()
        self._ledger.release(run_id, epoch)

    def beat(self, run_id: str, epoch: int, at: float) -> None:
        self._may_write()
        self._ledger.beat(run_id, epoch, at)

    def append(self, run_id: str, epoch: int, events: Sequence[ev.RunEvent], at: float) -> None:
        name = type(events[0]).__name__
        self._begin(name)
        self._ledger.append(run_id, epoch, events, at)
        for event in events:
            if isinstance(event, ev.Extended):
                self._move_stop(run_id, event)
        self._written(name, epoch, run_id, events)

    def _move_stop(self, run_id: str, event: ev.Extended) -> None:
        generation = self._ledger.read().runs[run_id].generations[event.generation - 1]
        account = self._process.sim.accounts[generation.provider]
        rented = account.find(generation.pod_id or generation.pod_name)
        if rented is not None:
            rented.move_stop(event.hard_stop_at)

    def request(self, run_id: str, event: ev.RunEvent, at: float) -> None:
        self._begin("request")
        self._ledger.request(run_id, event, at)
        self._written(type(event).__name__, None, run_id, (event,))

    def set_cap(self, event: ev.CapSet, at: float) -> None:
        self._may_write()
        self._ledger.set_cap(event, at)
        self._written("CapSet")

    def set_grant(self, event: ev.GrantEvent, at: float) -> None:
        self._may_write()
        self._ledger.set_grant(event, at)
        self._written(type(event).__name__)

    def verify_layer(self, event: ev.LayerVerified, at: float) -> None:
        self._may_write()
        self._ledger.verify_layer(event, at)
        self._written("LayerVerified")

    def note(self, event: ev.Note, at: float) -> None:
        name = type(event).__name__
        self._process.cross(f"{name}.before")
        try:
            self._may_write()
        except LedgerError:
            self._process.sim.emit(Observer.on_unwritten, event)
            raise
        self._ledger.note(event, at)
        self._process.sim.emit(Observer.on_note, event)
        self._written(name)

    def accept_restored(self, at: float) -> bool:
        accepted = self._ledger.accept_restored(at)
        self._written("LedgerRestored")
        return accepted

    def _begin(self, name: str) -> None:
        self._process.cross(f"{name}.before")
        self._may_write()

    def _written(
        self,
        name: str,
        epoch: int | None = None,
        run_id: str = "",
        events: Sequence[ev.RunEvent] = (),
    ) -> None:
        sim = self._process.sim
        if events:
            sim.emit(Observer.on_append, self._process, run_id, events)
        sim.emit(Observer.on_write, name, epoch, run_id)
        sim.wake()
        self._process.cross(f"{name}.after")
