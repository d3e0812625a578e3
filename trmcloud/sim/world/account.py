"""A provider as it really is: its pods, its answers, and its bill, which is the judge.

``Account`` is ground truth. What a controller sees of it goes through ``SimCompute`` and
``SimLink``, one pair for each process. A world is a circle: an account rents machines, a machine
runs a pod, a pod lives in a world that has accounts. Here are the protocols by which accounts and
pods know the others; their classes stand in ``pod``, ``host``, ``controllers`` and ``world``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol

from trmcloud.core.catalog.providers import local_terminate_wait_s, traits_of
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.bucket import Grants, Uploads
from trmcloud.core.control import events as ev
from trmcloud.core.control.balance import AccountBalance
from trmcloud.core.control.observation import PodSeen
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import ProviderError, TrmcloudError
from trmcloud.core.money import Usd
from trmcloud.core.storage import pod_disks_price, price_per_hour
from trmcloud.operations.driving.drive import RunDriver
from trmcloud.pod.agent.host import Trainer
from trmcloud.pod.agent.lease_clock import AnchorNote
from trmcloud.pod.agent.loop import AgentLoop
from trmcloud.pod.agent.nodes import HeadWatch
from trmcloud.pod.agent.watchdog import Watchdog
from trmcloud.ports.compute import PodRequest
from trmcloud.ports.ledger import ControllerId
from trmcloud.sim.world.clocks import EventQueue, Machine
from trmcloud.sim.world.facts import (
    FaultSettings,
    FutileCreate,
    KeptVolume,
    PodStatements,
    Trap,
    TrueCourse,
    Violation,
)
from trmcloud.sim.world.ledger_memory import MemoryLedger
from trmcloud.sim.world.provider_profiles import STALE_LIST_S, ProviderProfile
from trmcloud.sim.world.store import SimFiles, SimNotes
from trmcloud.sim.world.trainer import Shape, SimCommand, SimTrainer, TrainerFault

_P = ParamSpec("_P")
BOOT_LOG_S = 60.0
"""So long after its log says that its boot has failed a pod may live, where somebody can see it."""


class RentedMachine:
    """One machine as the provider bills it. Money in micro-dollars, time in true epoch s."""

    def __init__(
        self, account: Account, pod_id: str, request: PodRequest, rate_micros: int, at: float
    ) -> None:
        self.account, self.pod_id, self.name = account, pod_id, request.name
        self.run_id = request.lease.run_id
        self.gpus = self.gpus_wanted = request.gpus
        self.board = ""
        """nvidia-smi's name of its GPUs, where these are on another board than was rented."""
        self.slower_boards: Sequence[str] = request.check.get("slower_boards", ())
        self.created_at = self._since = at
        self.rate_micros = self.agreed_micros = rate_micros
        on_volume = bool(request.volume_gb)
        disks = (account.habits.provider, request.disk_gb, request.nodes)
        self.disk_rate = pod_disks_price(*disks, on_volume=on_volume)
        """USD/h of its own disks: on top of its rate."""
        self._before_micros = 0
        self.ended_at: float | None = None
        self.deleting = False
        self.deleted_at = math.inf
        self.undeletable_until = 0.0
        self.refuses_until = 0.0
        """Until when a delete is answered with an error."""
        self.ended_by = ""
        self.visible_at = at
        self.hidden_until = 0.0
        """Until when no list has it, though it runs."""
        self.hidden_for_long = False
        """Whether that lasts longer than its provider's lists ever should lack it."""
        self.heard = False
        """Whether its agent was heard when a process asked it last."""
        self.is_stopped = False
        """Whether its host has stopped it for good: its disk alone is billed."""
        self.storage_micros = 0
        self.traffic_micros = 0
        """Of that, what its traffic has cost."""
        self.listed: PodSeen | None = None
        """As a list showed it last."""
        promised_s = request.lease.hard_stop_at - request.lease.granted_at
        self.due_at = at + promised_s
        """When it must have ended, by the truth: what was promised, counted from its creation. It
        moves as soon as a later stop is on record."""
        self.lease_due_at = self.due_at
        """Likewise by what its own agent knows: it moves when that has taken the later stop."""
        self.name_due_at = at + request.latest_stop_at - request.lease.granted_at
        """When it must have ended for whoever knows its name alone."""
        self._stop_at = request.lease.hard_stop_at
        """Its hard stop on record."""
        self.unowned_at: float | None = None
        self.exposed_s = 0.0
        self.exposed_micros = 0.0
        self.overdue_s = 0.0
        self.dear_micros = 0.0
        self.boots_after_s = 0.0
        self.land_by = math.inf
        """When it must have landed, where its budget was cut."""
        self.never_boots = False
        self.boot_failed_at = math.inf
        """From when on its provider's log says that its boot has failed."""
        self.known = False
        """Whether its run's ledger has had its id."""
        self.landing_s = request.lease.landing_s
        self.surplus = False
        self.may_be_owned = False
        """Whether another pod had this name before it."""
        self.shown_at = 0.0
        """When its run's driver last found it in a list; 0: never."""
        self.came_too_late = False
        """Whether it was made later after its request than its provider ever should."""
        self.granted_ahead_s = request.lease.granted_at - at
        self.pod: Pod = account.world.make_pod(self, request.lease)

    @property
    def ended(self) -> bool:
        return self.ended_at is not None

    def move_stop(self, hard_stop_at: float) -> None:
        """A later hard stop was put on record, and the money for it is reserved."""
        self.due_at += hard_stop_at - self._stop_at
        self._stop_at = hard_stop_at
        self.account.world.queue.at(self.due_at, self.account.world.wake)

    @property
    def hourly_micros(self) -> int:
        return (0 if self.is_stopped else self.rate_micros) + self.disk_rate.micros

    def micros(self, now: float) -> int:
        """Return its cost by ``now`` in micro-dollars, its disks included, kept storage apart."""
        until = now if self.ended_at is None else self.ended_at
        seconds = max(0.0, until - self._since)
        if self._before_micros == 0:
            seconds = max(seconds, self.account.habits.least_billed_s)
        return self._before_micros + math.ceil(self.hourly_micros * math.ceil(seconds) / 3600)

    def end_from_inside(self) -> None:
        self.account.end_from_inside(self)

    def stop(self, now: float) -> None:
        """Its host stops it, or it stops itself: only a delete ends its disk's bill."""
        if self.ended or self.is_stopped:
            return
        self._accrue(now)
        self.is_stopped = True
        self.pod.stop()

    def _accrue(self, now: float) -> None:
        self._before_micros += math.ceil(self.hourly_micros * (now - self._since) / 3600)
        self._since = now

    def reprice(self, rate_micros: int, now: float) -> None:
        self._accrue(now)
        self.rate_micros = rate_micros


class Account:
    """All pods rented from one provider."""

    def __init__(self, world: World, habits: ProviderProfile) -> None:
        self.world, self.habits = world, habits
        self.pods: dict[str, RentedMachine] = {}
        self._named: dict[str, list[RentedMachine]] = {}
        self.living: list[RentedMachine] = []
        self.coming: dict[str, float] = {}
        """Names of pods that were asked for and not made yet, and when they should have been."""
        self.sought: dict[str, FutileCreate] = {}
        self.volumes: list[KeptVolume] = []
        """All that there ever were; the last one may be there still."""
        self.paid_in: Usd | None = None
        """Prepaid; None: it never ends, and no API tells it."""

    @property
    def lags(self) -> bool:
        """Whether its lists are copies of the truth; this machine's own processes are the truth."""
        return self.habits.self_ends != "exit"

    # -- making -------------------------------------------------------------------------------

    def make(self, request: PodRequest, *, too_late: bool = False) -> RentedMachine:
        world, rng, now = self.world, self.world.rng, self.world.queue.now
        pod_id = f"{self.habits.provider}-{len(self.pods) + 1}"
        gpus, rate = request.gpus, request.rate.micros
        if world.knobs.price_at_boot != 1.0:
            rate = int(rate * world.knobs.price_at_boot)
            world.observed("30")
        if request.is_waited_for:
            rate = min(rate, int(world.quoted_micros(request) * world.knobs.price_now))
        rented = RentedMachine(self, pod_id, request, rate, now)
        rented.agreed_micros = request.rate.micros
        rented.came_too_late = too_late
        if world.knobs.wrong_gpus:
            rented.gpus = max(1, gpus // 2)
            world.observed("29")
        if world.knobs.other_boards and request.check:
            world.knobs.other_boards -= 1
            rented.board = world.knobs.other_board
        rented.visible_at = now + rng.uniform(*self.habits.lists_new_after_s)
        if world.knobs.list_omits_s and self.lags:
            rented.visible_at = now + world.knobs.list_omits_s
        self._add(rented)
        world.emit(Observer.on_pod_made, rented)
        world.say(f"{pod_id} is made as {request.name}")
        rented.boots_after_s = rng.uniform(*self.habits.boot_s)
        if world.knobs.boots_failing and self.habits.shows_boot_log:
            world.knobs.boots_failing -= 1
            rented.boot_failed_at = now + rented.boots_after_s
            rented.land_by = max(rented.boot_failed_at, rented.visible_at) + BOOT_LOG_S
            world.queue.at(rented.boot_failed_at, world.wake)
            world.emit(Observer.on_boot_fails, rented)
        elif not (world.knobs.never_boots or world.knobs.silent_boots):
            world.queue.after(rented.boots_after_s, rented.pod.boot)
        else:
            if world.knobs.never_boots:
                world.observed(world.knobs.never_boots)
                world.knobs.never_boots = ""
            else:
                world.observed("103")
                world.knobs.silent_boots -= 1
            # Counted from when it is first listed.
            listed_s = rented.visible_at - now + STALE_LIST_S
            boot_s = traits_of(self.habits.provider).boot_deadline_s
            rented.land_by = now + listed_s + boot_s
            rented.never_boots = True
        world.queue.at(rented.due_at, world.wake)
        world.wake()
        return rented

    def seek(self, request: PodRequest) -> str:
        """Take a create that will come to nothing; the pod's id."""
        world, rng = self.world, self.world.rng
        takes_s = 5.0 * 100 ** rng.random()
        sought = FutileCreate(request, world.queue.now + takes_s, listed=rng.random() < 0.7)
        self.sought[request.name] = sought
        world.say(f"{request.name} is looked for in vain, for {takes_s:.0f} s")
        world.queue.at(sought.over_at + 0.1, world.wake)
        return request.name

    def ensure_volume(self, request: PodRequest) -> None:
        """Before its pod is asked for, and whether or not that is had. One for each place."""
        world, size_gb = self.world, request.volume_gb
        rate = price_per_hour(self.habits.provider, "kept", size_gb).micros
        if not rate:
            return
        there = self.volume_there(request.region)
        if there is None:
            number = len(self.volumes) + 1
            there = KeptVolume(f"volume-{number}", request.region, size_gb, rate, world.queue.now)
            self.volumes.append(there)
            world.say(f"{there.volume_id} is made")
        there.users.add(request.lease.run_id)

    def volume_there(self, place: str) -> KeptVolume | None:
        mine = (v for v in self.volumes if v.place == place and v.ended_at is None)
        return next(mine, None)

    def rent_foreign(self, request: PodRequest) -> RentedMachine:
        """A pod that somebody else has: it is listed, and that is all."""
        pod_id = f"foreign-{len(self.pods) + 1}"
        now = self.world.queue.now
        rented = RentedMachine(self, pod_id, request, request.rate.micros, now)
        rented.pod.running = True
        self._add(rented)
        return rented

    def _add(self, rented: RentedMachine) -> None:
        self.pods[rented.pod_id] = rented
        self.living.append(rented)
        self._named.setdefault(rented.name, []).append(rented)
        self._end_at_zero()

    # -- prepaid ------------------------------------------------------------------------------

    def balance(self) -> AccountBalance | None:
        """The balance that its API states, and the rent of all its instances."""
        if self.paid_in is None:
            return None
        now = self.world.queue.now
        spent = sum(each.micros(now) + each.storage_micros for each in self.pods.values())
        left = Usd.from_micros(self.paid_in.micros - spent)
        return AccountBalance(left, Usd.from_micros(self._hourly_micros))

    @property
    def _hourly_micros(self) -> int:
        return sum(each.hourly_micros for each in self.living)

    def _end_at_zero(self) -> None:
        """End every machine at a balance of zero; until then look again when that may be."""
        world, account = self.world, self.balance()
        if account is None or account.balance is None or not self.living:
            return
        left = account.balance.micros
        if left > 0:
            left_s = max(1.0, left * 3600.0 / self._hourly_micros)
            world.queue.after(left_s, self._end_at_zero)
            return
        for rented in list(self.living):
            world.emit(Observer.on_balance_end, rented)
            self.host_lost(rented, "provider's $0 rule")
        world.fire("33", "the balance is $0")
        world.observed("33")

    def named(self, name: str) -> Sequence[RentedMachine]:
        """Those of that name, the first one first: a provider may make two of one."""
        return self._named.get(name, ())

    def find(self, name: str) -> RentedMachine | None:
        """The pod of that id, or the first of that name."""
        return self.pods.get(name) or next(iter(self.named(name)), None)

    # -- ending -------------------------------------------------------------------------------

    def honors_delete(self, rented: RentedMachine) -> bool:
        """Whether a delete issued now would end the billing."""
        return self.world.queue.now >= max(
            rented.undeletable_until, self.world.knobs.deletes_ignored_until
        )

    def delete(self, rented: RentedMachine, by: str) -> None:
        """An accepted delete: what it does depends on the provider's mood."""
        world = self.world
        if rented.ended or rented.deleting:
            return
        if not self.honors_delete(rented):
            world.felt_any("delete")
            return
        if world.knobs.next_deletes[:1] not in ([], ["refused"]):
            self._moody_delete(rented, world.knobs.next_deletes.pop(0))
            return
        rented.deleting = True
        rented.deleted_at = world.queue.now
        rented.ended_by = rented.ended_by or by
        takes_s = world.rng.uniform(*self.habits.delete_s)
        if self.habits.self_ends == "exit" and rented.pod.guard_stopped:
            takes_s += local_terminate_wait_s(watchdog_stopped=True)
        rented.pod.stop()
        world.say(f"{rented.pod_id} is deleted by {by}")
        world.queue.after(takes_s, lambda: self.end(rented, by))

    def refuse(self, rented: RentedMachine) -> None:
        """A provider that will not delete this one pod now says so.

        Raises:
            ProviderError
        """
        world, now = self.world, self.world.queue.now
        if world.knobs.next_deletes[:1] == ["refused"] and not rented.ended:
            world.knobs.next_deletes.pop(0)
            world.observed("22")
            world.say(f"{rented.pod_id} is not deleted: refused")
            rented.undeletable_until = rented.refuses_until = now + world.rng.uniform(30, 900)
            world.queue.at(rented.refuses_until + 0.1, world.wake)
        if now < rented.refuses_until:
            raise ProviderError("409: the pod is being changed")

    def _moody_delete(self, rented: RentedMachine, mood: str) -> None:
        """A delete that is not what its answer says."""
        world, now = self.world, self.world.queue.now
        world.observed({"ignored": "20", "404": "21", "stuck": "22"}[mood])
        world.say(f"{rented.pod_id} is not deleted: {mood}")
        if mood == "404" and self.lags:
            rented.undeletable_until = now + world.rng.uniform(20, 150)
            rented.visible_at = rented.undeletable_until
        else:
            rented.undeletable_until = now + 30 * 120 ** world.rng.random()
        world.queue.at(rented.undeletable_until + 0.1, world.wake)
        if mood == "stuck":
            rented.pod.stop()
            rented.deleting = True
            rented.deleted_at = now
            world.queue.at(rented.undeletable_until, lambda: self.end(rented, "controller"))

    def end(self, rented: RentedMachine, by: str) -> None:
        """Billing stops here."""
        if rented.ended:
            return
        world = self.world
        rented.ended_at = world.queue.now
        rented.ended_by = rented.ended_by or by
        rented.pod.stop()
        self.living.remove(rented)
        world.files.lose_pod(rented.run_id, pod_id=rented.pod_id)
        if world.knobs.storage_tail_micros:
            rented.storage_micros += world.knobs.storage_tail_micros
            world.observed("32")
            if rented.unowned_at is not None:
                # A stray pod has a disk that no run reserved.
                rented.exposed_micros += world.knobs.storage_tail_micros
        world.say(f"{rented.pod_id} is gone ({by})")
        world.emit(Observer.on_pod_end, rented)
        world.wake()

    def end_from_inside(self, rented: RentedMachine) -> None:
        """End it by the means that the pod's own processes have."""
        how, world = self.habits.self_ends, self.world
        if how == "exit":
            if not rented.pod.trainers_alive:
                self.end(rented, rented.ended_by or "agent")
        elif self.habits.stops and world.knobs.self_end_stops:
            world.observed("92")
            rented.stop(world.queue.now)
            world.wake()
        elif how == "shutdown" or (how == "api" and world.knobs.pod_api_works(world.queue.now)):
            self.delete(rented, rented.ended_by or "watchdog")
        elif self.habits.idle_stop_s:
            world.queue.after(
                self.habits.idle_stop_s + world.rng.uniform(0, 60),
                lambda: self.delete(rented, "provider"),
            )

    def host_lost(self, rented: RentedMachine, by: str) -> None:
        """Preempted or burnt down: no notice, and nothing more is billed."""
        if not rented.ended:
            rented.pod.stop()
            rented.ended_by = by
            self.end(rented, by)


# Protocols of the other parts, and who may watch them.


class Uploader(Protocol):
    """The process that brings a pod's checkpoints to a bucket."""

    grants: Grants | None
    fetched: set[str]
    furthest: dict[str, int]
    withheld: set[str]
    moved_at: float
    reported_result: str

    def uploads(self, now: float) -> tuple[float | None, Uploads]: ...
    def give(self, grants: Grants) -> None: ...
    def stop(self, now: float) -> None: ...
    def report_written(self, report: contract.AgentReport) -> None: ...


class OtherMachines(Protocol):
    """One pod's machines but the first: see ``pod.OtherMachines``."""

    head_watch: HeadWatch | None

    def lose_head(self) -> None: ...
    def word(self) -> contract.AgentReport | None: ...


class Pod(Protocol):
    """The inside of a rented machine: see ``pod.SimPod``."""

    name: str
    lease: contract.Lease
    machine: Machine
    orders: contract.Orders | None
    report: contract.AgentReport | None
    durable_report: contract.AgentReport | None
    reported_at: float
    anchor: AnchorNote | None
    trainer_note: Trainer | None
    trainer: SimTrainer | None
    trainers_alive: list[SimTrainer]
    guard: Watchdog | None
    guard_stopped: bool
    agent: AgentLoop | None
    agent_stopped: bool
    stopped_until: float
    running: bool
    ending: bool
    staged: bool
    wiped: bool
    had_agent: bool
    ready_at: float
    booted_at: float
    cross: Callable[[str], None]
    said: PodStatements
    written: PodStatements
    world: World
    rented: RentedMachine
    uploader: Uploader

    @property
    def others(self) -> OtherMachines: ...
    def boot(self) -> None: ...
    def stop(self) -> None: ...
    def restart_container(self, *, wiped: bool) -> None: ...
    def kill_agent(self) -> None: ...
    def stop_agent(self) -> None: ...
    def kill_watchdog(self) -> None: ...
    def stop_watchdog(self) -> None: ...
    def trap(self, point: str) -> None: ...
    def wake(self) -> None: ...
    def spawn(
        self, phase: str, attempt: int, deadline_at: float, overrides: Mapping[str, Any]
    ) -> int: ...
    def save_now(self) -> None: ...
    def resume_watchdog(self) -> None: ...
    @property
    def speaks(self) -> bool: ...
    def date_report(self) -> None: ...


class Process(Protocol):
    """A command, a controller or a guard, on one machine."""

    kind: str
    machine: Machine
    who: ControllerId
    alive: bool
    busy: bool
    since: float
    driver: RunDriver | None
    named: str
    shown: dict[RentedMachine, float]
    bucket_refused_at: float | None

    @property
    def sim(self) -> World: ...
    @property
    def up(self) -> bool: ...
    def cross(self, point: str) -> None: ...
    def do(self, act: Callable[[], object]) -> object: ...
    def soon(self, seconds: float) -> None: ...
    def wake(self) -> None: ...


class World(Protocol):
    """Everything outside the pure core, on one queue of events."""

    rng: random.Random
    queue: EventQueue
    knobs: FaultSettings
    files: SimFiles
    ledger: MemoryLedger
    laptop: Machine
    server: Machine
    processes: list[Process]
    processes_made: int
    armed: list[Trap]
    truths: dict[str, TrueCourse]
    notes: SimNotes
    commands: list[tuple[Pod, SimCommand]]
    fired: dict[str, int]
    observed_faults: dict[str, int]
    errors: list[str]
    off: frozenset[str]
    foreign: set[str]
    forgotten: bool
    restored_at: float | None
    named_ends: set[str]
    violation: Violation | None
    observers: tuple[Observer, ...]

    @property
    def accounts(self) -> Mapping[str, Account]: ...
    @property
    def ledger_readable(self) -> bool: ...
    @property
    def ledger_writable(self) -> bool: ...
    def say(self, text: str) -> None: ...
    def watch(self, *observers: Observer) -> None: ...
    def emit(
        self, told: Callable[Concatenate[Observer, _P], None], *args: _P.args, **kwargs: _P.kwargs
    ) -> None: ...
    def fail(self, name: str, detail: str) -> None: ...
    def fire(self, fault: str, text: str) -> None: ...
    def observed(self, fault: str) -> None: ...
    def felt_any(self, group: str) -> None: ...
    def note_error(self, error: TrmcloudError) -> None: ...
    def wake(self) -> None: ...
    def crossing(self, process: Process, point: str) -> None: ...
    def gate(self, process: Process) -> None: ...
    def link_up(self, process: Process) -> bool: ...
    def unsettled(self) -> bool: ...
    def living(self) -> Sequence[RentedMachine]: ...
    def make_pod(self, rented: RentedMachine, lease: contract.Lease) -> Pod: ...
    def quoted_micros(self, request: PodRequest) -> int: ...
    def shape_of(self, run_id: str, phase: str, pod_name: str) -> Shape: ...
    def time_steps(self, pod: Pod, trainer: SimTrainer) -> None: ...
    def memory_share(self, run_id: str, trainer: SimTrainer | None) -> float | None: ...
    def memory_of(self, run_id: str, phase: str) -> float: ...
    def next_illness(
        self, rented: RentedMachine, phase: str, overrides: Mapping[str, Any]
    ) -> TrainerFault | None: ...
    def save_checkpoint(self, rented: RentedMachine, trainer: SimTrainer, step: int) -> None: ...


class Observer:
    """Hears of what happens in a world, and ignores it by default.

    ``World.emit(Observer.on_boot, pod)`` calls ``on_boot`` of each observer that has its own.
    What an observer finds broken it reports with ``World.fail``; it changes nothing in the world.
    """

    def accrue(self) -> None:
        """Time has passed in the state that the world was left in."""

    def look(self) -> None:
        """An event has happened."""

    def on_create_call(self, request: PodRequest) -> None:
        """A process is about to call create."""

    def on_create_sent(self, request: PodRequest) -> None:
        """A create reaches the provider."""

    def on_pod_made(self, rented: RentedMachine) -> None:
        """A machine was made, and is billed from now on."""

    def on_boot_fails(self, rented: RentedMachine) -> None:
        """A machine was made whose boot will fail at its ``boot_failed_at``."""

    def on_end_call(self, rented: RentedMachine, process: Process, *, slept: bool) -> None:
        """A process asks for a machine's end. ``slept``: it was stopped in the midst of the call,
        after its last look at anything."""

    def on_pod_end(self, rented: RentedMachine) -> None:
        """A machine has ended, and is billed no longer."""

    def on_balance_end(self, rented: RentedMachine) -> None:
        """A machine is about to be ended at a balance of zero."""

    def on_head_lost(self, rented: RentedMachine) -> None:
        """A pod of several machines has lost the first one."""

    def on_volume_delete(self, account: Account, volume: KeptVolume) -> None:
        """A network volume is about to be deleted."""

    def on_boot(self, pod: Pod) -> None:
        """A pod has booted; its watchdog is there."""

    def on_restart(self, pod: Pod, *, wiped: bool) -> None:
        """A pod's container began anew; ``wiped``: with nothing of what its agent wrote."""

    def on_agent_start(self, pod: Pod, agent: AgentLoop) -> None:
        """An agent was started, perhaps after another one."""

    def on_tick(self, pod: Pod) -> None:
        """An agent has looked and acted, and lives."""

    def on_orders(self, pod: Pod) -> None:
        """Orders to land have reached a pod."""

    def on_result(self, pod: Pod, report: contract.AgentReport) -> None:
        """An agent has said its last word."""

    def on_watchdog_end(self, pod: Pod, why: str) -> None:
        """A watchdog is about to end its pod."""

    def on_spawn(self, pod: Pod, trainer: SimTrainer, from_deadline_s: float) -> None:
        """An agent has started a trainer."""

    def on_land_request(self, pod: Pod) -> None:
        """An agent is about to tell its trainer to land."""

    def on_finish_request(self, pod: Pod, trainer: SimTrainer) -> None:
        """An agent is about to tell its trainer to come to an end."""

    def on_kill(self, pod: Pod, trainer: SimTrainer) -> None:
        """An agent is about to kill its trainer."""

    def on_overwrite(self, pod: Pod, phase: str, slot: str) -> None:
        """An upload into a slot of the bucket is about to begin."""

    def on_stored(self, pod: Pod, kept: contract.CheckpointRef) -> None:
        """An upload is through."""

    def on_append(self, process: Process, run_id: str, events: Sequence[ev.RunEvent]) -> None:
        """Events of a run were written."""

    def on_write(self, what: str, epoch: int | None, run_id: str) -> None:
        """Something was written, after ``on_append`` where that was a run's events."""

    def on_note(self, event: ev.Note) -> None:
        """An event of no run was written."""

    def on_unwritten(self, event: ev.Note) -> None:
        """An event of no run could not be written."""

    def on_take_over(self, process: Process, run_id: str) -> None:
        """A process is about to become a run's driver."""

    def on_error(self, error: TrmcloudError) -> None:
        """A command ended with an error."""

    def on_provider_error(self, process: Process, error: TrmcloudError) -> None:
        """A provider's answer has ended a command, or all that it does for one run."""

    def on_refusal(self, error: TrmcloudError) -> None:
        """A bucket does not answer a command that asks before it reserves anything."""

    def on_leave(self, process: Process, known: RunState | None) -> None:
        """A driver's command ends since its ledger cannot be used. ``known``: its run after its
        last whole step."""

    def on_cap_set(self, cap: Usd) -> None:
        """The account's cap was set, raised or cut."""

    def on_save_request(self, run_id: str) -> None:
        """A user has asked for a checkpoint."""

    def on_revoke(self) -> None:
        """A user revokes a grant."""
