"""Protocols by which the parts of a simulated world, and its judges, know one another.

A world is a circle: an account rents machines, a machine runs a pod, a pod lives in a world that
has accounts. Each part is written against these protocols, so that no file has to import one that
imports it; the classes behind them stand in ``account``, ``pod``, ``controllers`` and ``world``,
and the judges in ``sim.oracle``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from trmcloud.app.drive import RunDriver
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.bucket import Grants, Uploads
from trmcloud.core.control import events as ev
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import TrmcloudError
from trmcloud.core.money import Usd
from trmcloud.pod.agent.host import Trainer
from trmcloud.pod.agent.lease_clock import AnchorNote
from trmcloud.pod.agent.loop import AgentLoop
from trmcloud.pod.agent.watchdog import Watchdog
from trmcloud.ports.compute import Compute, PodLink, PodRequest
from trmcloud.ports.ledger import ControllerId
from trmcloud.sim.world.clocks import EventQueue, Machine
from trmcloud.sim.world.facts import (
    FutileCreate,
    KeptVolume,
    Knobs,
    PodWords,
    Trap,
    Truth,
    Violation,
)
from trmcloud.sim.world.ledger_memory import MemoryLedger
from trmcloud.sim.world.provider_profiles import ProviderProfile
from trmcloud.sim.world.store import SimFiles
from trmcloud.sim.world.trainer import Illness, Shape, SimCommand, SimTrainer


class RentedMachine(Protocol):
    """One machine as its provider bills it: see ``account.RentedMachine``."""

    pod_id: str
    name: str
    run_id: str
    gpus: int
    gpus_wanted: int
    created_at: float
    rate_micros: int
    disk_rate: Usd
    agreed_micros: int
    storage_micros: int
    visible_at: float
    boots_after_s: float
    never_boots: bool
    boot_failed_at: float
    landing_s: float
    land_by: float
    due_at: float
    undeletable_until: float
    refuses_until: float
    deleting: bool
    deleted_at: float
    ended_at: float | None
    ended_by: str
    known: bool
    surplus: bool
    may_be_owned: bool
    unowned_at: float | None
    shown_at: float
    came_too_late: bool
    granted_ahead_s: float
    exposed_s: float
    exposed_micros: float
    overdue_s: float
    dear_micros: float

    @property
    def hourly_micros(self) -> int:
        """Return the hourly price in micro-dollars, the pod's disks included."""
        ...

    @property
    def account(self) -> Account: ...
    @property
    def pod(self) -> Pod: ...
    @property
    def ended(self) -> bool: ...
    def micros(self, now: float) -> int: ...
    def end_from_inside(self) -> None: ...


class Account(Protocol):
    """All machines that are rented from one provider."""

    @property
    def habits(self) -> ProviderProfile: ...
    @property
    def pods(self) -> Mapping[str, RentedMachine]: ...
    @property
    def living(self) -> Sequence[RentedMachine]: ...
    @property
    def coming(self) -> Mapping[str, float]: ...
    @property
    def sought(self) -> Mapping[str, FutileCreate]: ...
    @property
    def volumes(self) -> Sequence[KeptVolume]: ...
    def named(self, name: str) -> Sequence[RentedMachine]: ...
    def honors_delete(self, rented: RentedMachine) -> bool: ...


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


class Pod(Protocol):
    """The inside of a rented machine: see ``pod.SimPod``."""

    name: str
    lease: contract.Lease
    machine: Machine
    orders: contract.Orders | None
    report: contract.AgentReport | None
    durable_report: contract.AgentReport | None
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
    said: PodWords
    written: PodWords
    world: World
    rented: RentedMachine
    uploader: Uploader

    def wake(self) -> None: ...
    def spawn(
        self, phase: str, attempt: int, deadline_at: float, overrides: Mapping[str, Any]
    ) -> int: ...
    def save_now(self) -> None: ...
    def resume_watchdog(self) -> None: ...


class Process(Protocol):
    """A command, a controller or a guard, on one machine."""

    kind: str
    machine: Machine
    who: ControllerId
    alive: bool
    busy: bool
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
    knobs: Knobs
    files: SimFiles
    ledger: MemoryLedger
    laptop: Machine
    server: Machine
    processes: list[Process]
    processes_made: int
    armed: list[Trap]
    truths: dict[str, Truth]
    notes: dict[str, Mapping[str, Any]]
    commands: list[tuple[Pod, SimCommand]]
    fired: dict[str, int]
    observed_faults: dict[str, int]
    errors: list[str]
    off: frozenset[str]
    check: Judge

    @property
    def accounts(self) -> Mapping[str, Account]: ...
    @property
    def ledger_readable(self) -> bool: ...
    @property
    def ledger_writable(self) -> bool: ...
    def say(self, text: str) -> None: ...
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
    def computes_of(self, process: Process) -> Mapping[str, Compute]: ...
    def links_of(self, process: Process) -> Mapping[str, PodLink]: ...
    def shape_of(self, run_id: str, phase: str) -> Shape: ...
    def memory_share(self, run_id: str, trainer: SimTrainer | None) -> float | None: ...
    def memory_of(self, run_id: str, phase: str) -> float: ...
    def next_illness(
        self, rented: RentedMachine, phase: str, overrides: Mapping[str, Any]
    ) -> Illness | None: ...
    def save_checkpoint(self, rented: RentedMachine, trainer: SimTrainer, step: int) -> None: ...


# -- who judges it --------------------------------------------------------------------------------
class PodJudge(Protocol):
    """Judges what the layers on a pod owe."""

    @property
    def attempts(self) -> AttemptJudge: ...
    @property
    def uploads(self) -> UploadJudge: ...
    def on_boot(self, pod: Pod) -> None: ...
    def on_restart(self, pod: Pod, *, wiped: bool) -> None: ...
    def on_agent_start(self, pod: Pod, agent: AgentLoop) -> None: ...
    def agent_since(self, pod: Pod) -> float: ...
    def on_spawn(self, pod: Pod, trainer: SimTrainer, from_deadline_s: float) -> None: ...
    def on_kill(self, pod: Pod, trainer: SimTrainer) -> None: ...
    def on_land_request(self, pod: Pod) -> None: ...
    def on_tick(self, pod: Pod) -> None: ...
    def on_watchdog_end(self, pod: Pod, why: str) -> None: ...
    def on_result(self, pod: Pod, report: contract.AgentReport) -> None: ...
    def on_orders(self, pod: Pod) -> None: ...
    def on_save_request(self, run_id: str) -> None: ...


class AttemptJudge(Protocol):
    def on_finish_request(self, pod: Pod, trainer: SimTrainer) -> None: ...


class UploadJudge(Protocol):
    def on_overwrite(self, pod: Pod, phase: str, slot: str) -> None: ...
    def on_stored(self, pod: Pod, kept: contract.KeptCheckpoint) -> None: ...


class CallJudge(Protocol):
    """Judges calls to a provider."""

    refusal: Exception | None
    named_ends: set[str]

    def on_create_call(self, request: PodRequest) -> None: ...
    def on_create_sent(self, request: PodRequest) -> None: ...
    def on_error(self, process: Process, error: Exception) -> None: ...
    def on_leave(self, process: Process, known: RunState | None) -> None: ...
    def on_take_over(self, process: Process, run_id: str) -> None: ...


class Uncertainty(Protocol):
    clocks_moved: bool

    @property
    def woken(self) -> bool: ...


class LedgerJudge(Protocol):
    @property
    def calls(self) -> CallJudge: ...
    @property
    def undecidable(self) -> Uncertainty: ...


class Exposure(Protocol):
    able: dict[str, float]

    def late_s(self, rented: RentedMachine) -> float: ...


class BootJudge(Protocol):
    judged: int

    def watch(self, rented: RentedMachine) -> None: ...


class OrphanJudge(Protocol):
    restored_at: float | None

    def on_unwritten(self, event: ev.Note) -> None: ...
    def on_note(self, event: ev.Note) -> None: ...


class VolumeJudge(Protocol):
    def on_delete(self, account: Account, volume: KeptVolume) -> None: ...


class StoredObject(Protocol):
    key: str
    size_bytes: int


class OversizeJudge(Protocol):
    def stored_for(self, run_id: str) -> Sequence[StoredObject]: ...
    def on_put(self, run_id: str, key: str, size_bytes: int) -> None: ...
    def on_delete(self, process: Process, key: str) -> None: ...
    def is_owed(self) -> bool: ...


class Judge(Protocol):
    """Hears of everything that happens in a world: see ``oracle.invariants``."""

    foreign: set[str]
    forgotten: bool
    names: dict[str, int]
    head_lost_s: float

    @property
    def violation(self) -> Violation | None: ...
    @property
    def duties(self) -> PodJudge: ...
    @property
    def truth(self) -> LedgerJudge: ...
    @property
    def exposure(self) -> Exposure: ...
    @property
    def boots(self) -> BootJudge: ...
    @property
    def strays(self) -> OrphanJudge: ...
    @property
    def volumes(self) -> VolumeJudge: ...
    @property
    def oversize(self) -> OversizeJudge: ...
    def fail(self, name: str, detail: str) -> None: ...
    def accrue(self) -> None: ...
    def look(self) -> None: ...
    def on_cap_set(self, cap: Usd) -> None: ...
    def on_pod_made(self, rented: RentedMachine) -> None: ...
    def on_pod_end(self, rented: RentedMachine) -> None: ...
    def on_head_lost(self, rented: RentedMachine) -> None: ...
    def on_end_call(
        self, rented: RentedMachine, process: Process, *, slept: bool = False
    ) -> None: ...
    def on_append(self, process: Process, run_id: str, events: Sequence[ev.RunEvent]) -> None: ...
    def on_write(self, what: str, epoch: int | None, run_id: str) -> None: ...
