"""The simulated world: everything outside the pure core, on one queue of events.

Ground truth lives here: accounts and their bills, machines and their clocks, the ledger's file,
what survives a pod. Faults turn ``knobs``; controllers see the world through the ports alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import lru_cache, partial
from typing import Any, Concatenate, ParamSpec

from trmcloud.core.contract.pace import PACE, WARM_UP_STEPS, PaceMeter, StepPace
from trmcloud.core.contract.pod_contract import Lease, parse_pod_name
from trmcloud.core.errors import ProviderError, TrmcloudError
from trmcloud.core.values import replace
from trmcloud.ports.compute import PodRequest
from trmcloud.sim.world.account import Account, Observer, Pod, Process, RentedMachine
from trmcloud.sim.world.clocks import EventQueue, Machine
from trmcloud.sim.world.controllers import ProcessKilled
from trmcloud.sim.world.facts import (
    START_AT,
    FaultSettings,
    TimelineEntry,
    ToldPace,
    Trap,
    TrueCourse,
    Violation,
)
from trmcloud.sim.world.ledger_memory import MemoryLedger
from trmcloud.sim.world.pod import SAMPLED_S, SimPod
from trmcloud.sim.world.provider_profiles import PROFILES
from trmcloud.sim.world.store import Checkpoint, SimFiles, SimNotes, make_manifest
from trmcloud.sim.world.trainer import Shape, SimCommand, SimTrainer, TrainerFault, asks_for

_P = ParamSpec("_P")
LEDGER_ID = "51a0c0de"
_MOST_TIMED = 400


class SimWorld:
    """One seed's world. All randomness comes from ``rng``."""

    def __init__(self, rng: random.Random, providers: tuple[str, ...]) -> None:
        self.rng = rng
        self.queue = EventQueue(START_AT)
        self.knobs = FaultSettings()
        self.files = SimFiles()
        self.files.refresh = self._save_all
        self.files.progress = self.progress_lines
        self.ledger = MemoryLedger(LEDGER_ID)
        self.accounts = {name: Account(self, PROFILES[name]) for name in providers}
        self.laptop = Machine(self.queue, "laptop")
        self.server = Machine(self.queue, "server")
        self.processes: list[Process] = []
        self.processes_made = 0
        self.armed: list[Trap] = []
        self.truths: dict[str, TrueCourse] = {}
        self.commands: list[tuple[Pod, SimCommand]] = []
        """Of users' own: each attempt, and where it was started."""
        self.notes = SimNotes()
        self.timeline: list[TimelineEntry] = []
        self.fired: dict[str, int] = {}
        self.observed_faults: dict[str, int] = {}
        self.errors: list[str] = []
        self.foreign: set[str] = set()
        """Pods of the accounts that are somebody else's."""
        self.forgotten = False
        """Whether the ledger was ever put back to an older copy."""
        self.restored_at: float | None = None
        self.named_ends: set[str] = set()
        """Pods that were asked to end by a person who named their run."""
        self.violation: Violation | None = None
        """The first that was found."""
        self.observers: tuple[Observer, ...] = ()
        self._heard: dict[str, list[Callable[..., None]]] = {}
        self.off: frozenset[str] = frozenset()
        """Layers that do nothing in this world: trainer, agent, watchdog, controller."""
        self._waking = False

    # -- telling ------------------------------------------------------------------------------

    def watch(self, *observers: Observer) -> None:
        """Have these hear of everything from now on, in this order, and no others."""
        self.observers = observers
        names = [name for name in vars(Observer) if not name.startswith("_")]
        self._heard = {
            name: [
                getattr(each, name)
                for each in observers
                if getattr(type(each), name) is not getattr(Observer, name)
            ]
            for name in names
        }

    def emit(
        self, told: Callable[Concatenate[Observer, _P], None], *args: _P.args, **kwargs: _P.kwargs
    ) -> None:
        """Tell the observers what ``told``, a method of ``Observer``, is about."""
        for hear in self._heard.get(told.__name__, ()):
            hear(*args, **kwargs)

    def accrue(self) -> None:
        self.emit(Observer.accrue)

    def look(self) -> None:
        self.emit(Observer.look)

    def fail(self, name: str, detail: str) -> None:
        """A promise is broken; the first one counts."""
        if self.violation is None:
            self.violation = Violation(name, detail)
            self.say(f"VIOLATION {name}: {detail}")

    def say(self, text: str) -> None:
        self.timeline.append(TimelineEntry(self.queue.now, text))

    def fire(self, fault: str, text: str) -> None:
        """A fault strikes; it counts only once something feels it."""
        self.fired[fault] = self.fired.get(fault, 0) + 1
        self.say(f"FAULT {fault}: {text}")

    def observed(self, fault: str) -> None:
        """An observation or a bill is other than it would have been."""
        if fault not in self.observed_faults and fault in self.fired:
            self.observed_faults[fault] = self.queue.count

    def felt_any(self, group: str) -> None:
        for fault in _GROUPS[group]:
            if fault in self.fired:
                self.observed(fault)

    def note_error(self, error: TrmcloudError) -> None:
        self.errors.append(str(error))

    # -- processes ----------------------------------------------------------------------------

    def wake(self) -> None:
        """Something changed: processes that look often will see it soon."""
        if self._waking:
            return
        self._waking = True
        for process in self.processes:
            process.wake()
        self._waking = False

    def crossing(self, process: Process, point: str) -> None:
        for trap in self.armed:
            if trap.point not in ("*", point) or not _matches(trap, process):
                continue
            if trap.skip > 0:
                trap.skip -= 1
                continue
            self.armed.remove(trap)
            self.fire(trap.fault, f"{trap.kind} at {point}")
            self.observed(trap.fault)
            if trap.then is not None:
                trap.then()
            if trap.kind == "kill":
                raise ProcessKilled
            if trap.kind == "stop":
                self._stop(process, trap)
            return

    def _stop(self, process: Process, trap: Trap) -> None:
        """Let the world go on around a process that is stopped in the middle of a call."""
        machine = process.machine
        if trap.stops_machine:
            machine.awake = False
        self.look()  # from now on it can do nothing
        until = self.queue.now + trap.sleep_s
        self.queue.run_until(until, self.accrue, self.look)
        self.accrue()
        if trap.stops_machine:
            machine.awake = True
        self.say(f"{process.kind} {process.who.pid} goes on")
        if not process.alive:
            raise ProcessKilled

    def gate(self, process: Process) -> None:
        """Let a call to the provider through, or raise its error."""
        knobs, now = self.knobs, self.queue.now
        if not process.machine.online:
            self.felt_any("offline")
            raise ProviderError("the provider's name cannot be resolved")
        for until, fault, answer in (
            (knobs.key_revoked_until, "27", "401: the key is not valid"),
            (knobs.throttled_until, "23", "429: too many requests"),
            (knobs.outage_until, knobs.outage_fault, "503 from the provider"),
            (knobs.garbage_until, "26", "the answer is no JSON"),
        ):
            if now < until:
                self.observed(fault)
                raise ProviderError(answer)

    @property
    def ledger_readable(self) -> bool:
        knobs, now = self.knobs, self.queue.now
        return (
            now >= knobs.ledger_locked_until
            and now >= knobs.ledger_damaged_until
            and now >= knobs.ledger_too_new_until
            and not self.ledger.is_older
        )

    @property
    def ledger_writable(self) -> bool:
        return self.queue.now >= self.knobs.disk_full_until and self.ledger_readable

    def link_up(self, process: Process) -> bool:
        if self.queue.now < self.knobs.link_down_until or not process.machine.online:
            self.felt_any("link")
            return False
        return True

    def unsettled(self) -> bool:
        """Whether somebody has something to do soon."""
        now = self.queue.now
        for account in self.accounts.values():
            for rented in account.living:
                if now >= rented.due_at or rented.unowned_at is not None:
                    return True
        return False

    def living(self) -> list[RentedMachine]:
        return [rented for account in self.accounts.values() for rented in account.living]

    def make_pod(self, rented: RentedMachine, lease: Lease) -> Pod:
        return SimPod(self, rented, lease)

    # -- training -----------------------------------------------------------------------------

    def shape_of(self, run_id: str, phase: str, pod_name: str) -> Shape:
        truth, factor = self.truths[run_id], self.knobs.slow_factor
        shape, name = truth.shapes[phase], parse_pod_name(pod_name)
        if factor != 1.0:
            self.observed("62")
        if truth.paces is not None and name is not None:
            factor *= truth.paces.factor(name.generation)
        if self.knobs.wrong_gpus:
            factor *= 2.0
        if any(rented.board and rented.run_id == run_id for rented in self.living()):
            factor *= self.knobs.board_factor
        return shape if factor == 1.0 else replace(shape, step_s=shape.step_s * factor)

    def time_steps(self, pod: Pod, trainer: SimTrainer) -> None:
        """Have a trainer tell its pace once it is steady, as the real one times it."""
        truth, shape = self.truths[trainer.run_id], trainer.shape
        paces, meter = truth.paces, PaceMeter()
        if paces is None or isinstance(trainer, SimCommand):
            return
        for number in range(min(_MOST_TIMED, shape.steps - trainer.from_step)):
            step_s = shape.step_s * (paces.first if number < paces.first_steps else 1.0)
            told = meter.add(step_s) if number >= WARM_UP_STEPS else None
            if told is not None:
                step = trainer.from_step + number + 1
                at = trainer.trains_at + (number + 1) * shape.step_s
                told = replace(told, step=step)
                self.queue.at(at, partial(self._tell_pace, pod, trainer, told))
                return

    def _tell_pace(self, pod: Pod, trainer: SimTrainer, told: StepPace) -> None:
        truth, now = self.truths[trainer.run_id], self.queue.now
        ill = trainer.frozen_at is not None and now >= trainer.frozen_at
        if truth.paces is None or not trainer.runs(now) or now >= trainer.turns_at or ill:
            return
        phase, shape, lie = trainer.shape.phase, trainer.shape, truth.paces.lie
        tokens = truth.settings_of(phase).tokens_per_step(8)
        said = replace(
            told,
            step_s=told.step_s * lie,
            fast_s=told.fast_s * lie,
            slow_s=told.slow_s * lie,
            tokens=tokens,
            torch="2.9.1+cu128",
        )
        line = {"kind": PACE, "at": pod.machine.now().wall, **asdict(said)}
        self.files.paces.setdefault((trainer.run_id, phase), []).append(line)
        kept = truth.told.setdefault((pod.name, phase), [])
        kept.append(ToldPace(shape.step_s, said.step_s, said.steps))
        self.say(f"{pod.rented.pod_id} {phase} tells {said.step_s:.3g} s a step")
        self.wake()

    def progress_lines(self, run_id: str, phase: str) -> list[Mapping[str, object]]:
        """The first and the newest line of training of a machine that times its steps."""
        now = self.queue.now
        for rented in self.living() if self.truths[run_id].paces is not None else ():
            trainer = rented.pod.trainer if rented.run_id == run_id else None
            if trainer is None or trainer.shape.phase != phase or now <= trainer.trains_at:
                continue
            at = rented.pod.machine.now().wall
            points = (trainer.trains_at, trainer.from_step), (now, trainer.step(now))
            return [{"kind": "train", "at": at - now + t, "step": step} for t, step in points]
        return []

    def quoted_micros(self, request: PodRequest) -> int:
        """Return what its plan says that the machine costs, in micro-dollars an hour."""
        run = self.ledger.read().runs.get(request.lease.run_id)
        named = [g for g in run.generations if g.pod_name == request.name] if run else []
        if not named:
            return request.rate.micros
        generation = named[0]
        plan = self.truths[request.lease.run_id].plan
        return plan.candidate(generation.candidate_id).rate.micros

    def memory_share(self, run_id: str, trainer: SimTrainer | None) -> float | None:
        """Return the share of a GPU's memory in use, a while into the training of a phase that has
        more than one pass a step; others' machines do not say."""
        now = self.queue.now
        if trainer is None or not trainer.runs(now) or now < trainer.trains_at + SAMPLED_S:
            return None
        if self.truths[run_id].plan.spec.command is not None:
            return None  # nothing could climb by it
        own = self.truths[run_id].settings_of(trainer.shape.phase)
        if own.accumulation == 1:
            return None
        share = self.memory_of(run_id, trainer.shape.phase)
        return share * float(trainer.overrides.get("batch", own.batch)) / own.batch

    @staticmethod
    @lru_cache(maxsize=64)
    def memory_of(run_id: str, phase: str) -> float:
        """Return the share of a GPU's memory that its own settings take."""
        return random.Random(f"memory {run_id} {phase}").uniform(0.2, 0.7)

    def next_illness(
        self, rented: RentedMachine, phase: str, overrides: Mapping[str, Any]
    ) -> TrainerFault | None:
        if "trainer" in self.off:
            return TrainerFault("deaf", 0.0, "")
        ills = self.truths[rented.run_id].illnesses
        if not ills:
            return None
        ill = ills[0]
        if ill.room < 1.0:
            own = self.truths[rented.run_id].settings_of(phase)
            if asks_for(ill.kind, own, overrides) <= ill.room:
                return None  # as long as these overrides hold
        else:
            ills.pop(0)
        self.fire(ill.fault, f"{ill.kind} after {ill.after_s:.0f} s")
        self.observed(ill.fault)
        return ill

    def save_checkpoint(self, rented: RentedMachine, trainer: SimTrainer, step: int) -> None:
        """Bring the checkpoints of ``trainer`` up to now: ``step`` is the newest it has saved."""
        phase, run_id = trainer.shape.phase, trainer.run_id
        if not rented.account.habits.disk_survives:
            return
        kept = [c for c in self.files.checkpoints.get(run_id, ()) if c.manifest.phase == phase]
        if all(c.manifest.step != step for c in kept):
            kept.append(self._new_checkpoint(rented, trainer, step))
        for made in kept:
            if not made.evaluated and trainer.is_scored(made.manifest.step, self.queue.now):
                self._score(made, rented, trainer)

    def _score(self, made: Checkpoint, rented: RentedMachine, trainer: SimTrainer) -> None:
        bpb: float | None = trainer.shape.bpb_at(made.manifest.step)
        if self.knobs.nan_scores:
            bpb = None
            self.observed("53")
        if self._on_own_disk(rented):
            made.pod_id = rented.pod_id  # if it was given it, it has a copy of its own
        made.score(bpb)

    def _new_checkpoint(self, rented: RentedMachine, trainer: SimTrainer, step: int) -> Checkpoint:
        run_id, shape, now = trainer.run_id, trainer.shape, self.queue.now
        since = shape.cooldown_from(step)
        manifest = make_manifest(run_id, shape.phase, step, now, None, self.files.made, since)
        made = Checkpoint(manifest, manifest.sha256, float("nan"))
        if self._on_own_disk(rented):
            made.pod_id, made.home = rented.pod_id, False
        damage = self.knobs.next_damages.pop(0) if self.knobs.next_damages else ""
        if damage:
            self.observed(damage)
            if damage in ("46", "49"):
                made.readable = False
            else:
                made.bits = made.bits[::-1] if damage == "45" else ""
        self.files.add(run_id, made)
        return made

    def _on_own_disk(self, rented: RentedMachine) -> bool:
        lease = rented.pod.lease
        return lease.hold or lease.uploads or not self._on_volume(rented)

    def _on_volume(self, rented: RentedMachine) -> bool:
        """Whether checkpoints lie on what outlives the pod."""
        local = rented.account.habits.self_ends == "exit"
        return local or self.truths[rented.run_id].plan.spec.volume

    def _save_all(self, run_id: str) -> None:
        for rented in self.living():
            if rented.run_id == run_id:
                rented.pod.save_now()


_GROUPS: Mapping[str, tuple[str, ...]] = {
    "delete": ("20", "21", "22"),
    "offline": ("25",),
    "link": ("51", "52", "60", "36"),
    "damage": ("43", "44", "45", "46", "49"),
}


def _matches(trap: Trap, process: Process) -> bool:
    return process.kind in trap.kinds or trap.point.startswith(("fetch", "user"))
