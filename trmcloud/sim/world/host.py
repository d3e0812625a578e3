"""A simulated pod's agent thinks with this: files that are crash-consistent records, processes that
are arithmetic, and the process that uploads.

Like the trainer the uploader is arithmetic: each look brings it up to that instant. It picks,
slots and supersedes with the very functions of ``core.bucket`` that the real one uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trmcloud.core.clock import Instant
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.boards import BOARD_NOTE, BoardSeen, classify
from trmcloud.core.contract.bucket import Grants, Uploads, free_slot, lacks_metric, unstored
from trmcloud.core.contract.pod_contract import (
    AgentReport,
    CheckpointRef,
    PhaseState,
    parse_pod_name,
)
from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.pod.agent.host import Trainer
from trmcloud.pod.agent.lease_clock import AnchorNote
from trmcloud.sim.world.account import Observer, Pod
from trmcloud.sim.world.clocks import Entry

_BETWEEN_LOOKS_S = 0.1


class SimHost:
    """``pod.agent.host.Host`` over a simulated pod's memory."""

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        self._looks = (0.0, 0)
        """When it was last asked about a trainer, and how often by then."""

    def now(self) -> Instant:
        return self._pod.machine.now()

    def pid(self) -> int:
        return 1

    def read_lease(self) -> contract.Lease | None:
        return self._pod.lease

    def write_lease(self, lease: contract.Lease) -> None:
        pod = self._pod
        if pod.world.knobs.pod_disk_full:
            pod.world.observed("47")
            return
        pod.rented.lease_due_at += lease.hard_stop_at - pod.lease.hard_stop_at
        pod.lease = lease
        pod.cross("lease")

    def read_orders(self) -> contract.Orders | None:
        return self._pod.orders

    def read_report(self) -> contract.AgentReport | None:
        return self._pod.report

    def write_report(self, report: contract.AgentReport, *, durable: bool) -> None:
        pod = self._pod
        if pod.rented.board:
            pod.world.observed("96")
            seen = BoardSeen(pod.rented.board)
            report = replace(report, notes={**report.notes, BOARD_NOTE: seen.to_text()})
        pod.said.hear(report)
        pod.cross("report")
        known = pod.report is None or any(
            phase.state is PhaseState.RUNNING for phase in pod.report.phases
        )
        if pod.trainer_note is not None and not known:
            pod.cross("unreported")
        if pod.world.knobs.pod_disk_full:
            pod.world.observed("47")
            return
        pod.report, pod.reported_at = report, pod.world.queue.now
        pod.written.hear(report)
        pod.uploader.report_written(report)
        if durable:
            pod.durable_report = report

    def read_anchor(self) -> AnchorNote | None:
        return self._pod.anchor

    def write_anchor(self, note: AnchorNote) -> None:
        self._pod.anchor = note

    def read_trainer(self) -> Trainer | None:
        return self._pod.trainer_note

    def write_trainer(self, trainer: Trainer | None) -> None:
        self._pod.cross("trainer")
        self._pod.trainer_note = trainer

    def read_heartbeat(self, phase: str) -> Heartbeat | None:
        trainer = self._pod.trainer
        if trainer is None or trainer.shape.phase != phase:
            return None
        return trainer.heartbeat(self._pod.world.queue.now)

    def read_metrics(self, phase: str) -> Iterable[Mapping[str, Any]]:
        trainer = self._pod.trainer
        if trainer is None or trainer.shape.phase != phase:
            return []
        return trainer.metrics(self._pod.world.queue.now)

    def start_trainer(
        self, phase: str, attempt: int, deadline_at: float, overrides: Mapping[str, Any]
    ) -> tuple[int, str]:
        self._pod.cross("start")
        pid = self._pod.spawn(phase, attempt, deadline_at, overrides)
        self._pod.cross("started")
        return pid, "1"

    def move_deadline(self, trainer: Trainer, deadline_at: float) -> None:
        self._pod.cross("deadline")
        for each in self._pod.trainers_alive:
            if each.pid == trainer.pid:
                left_s = deadline_at - self._pod.machine.now().wall
                each.move_deadline(self._pod.world.queue.now, left_s)

    def trainer_runs(self, trainer: Trainer) -> bool:
        """A look takes time: a trainer that is asked about twice may have ended in between."""
        now, (at, before) = self._pod.world.queue.now, self._looks
        count = before if at == now else 0
        self._looks = (now, count + 1)
        seen = now + count * _BETWEEN_LOOKS_S
        return any(t.pid == trainer.pid and t.runs(seen) for t in self._pod.trainers_alive)

    def make_data(self, now: Instant, phases: tuple[str, ...]) -> None:
        """A simulated trainer needs no data."""

    def watch_gpus(self, now: Instant, *, trains: bool) -> None:
        """A simulated machine's are as ``memory_share`` has them."""

    def memory_share(self) -> float | None:
        pod = self._pod
        return pod.world.memory_share(pod.lease.run_id, pod.trainer)

    def stop_data(self) -> None:
        """There is nothing to end."""

    def ask_to_land(self, trainer: Trainer, beat: Heartbeat | None) -> None:
        now = self._pod.world.queue.now
        for running in self._pod.trainers_alive:
            if running.pid == trainer.pid:
                self._pod.world.emit(Observer.on_land_request, self._pod)
                running.tell(now)

    def ask_to_save(self, trainer: Trainer, beat: Heartbeat) -> None:
        pod, now = self._pod, self._pod.world.queue.now
        for running in pod.trainers_alive:
            if running.pid == trainer.pid and (saved_at := running.ask(now)) is not None:
                pod.world.queue.at(saved_at + 0.1, pod.wake)

    def ask_to_finish(self, trainer: Trainer, beat: Heartbeat) -> None:
        pod, now = self._pod, self._pod.world.queue.now
        for running in pod.trainers_alive:
            if running.pid == trainer.pid:
                pod.world.emit(Observer.on_finish_request, pod, running)
                running.finish(now)
                pod.world.queue.after(0.1, pod.wake)

    def kill_trainer(self) -> None:
        pod = self._pod
        for trainer in pod.trainers_alive:
            pod.world.emit(Observer.on_kill, pod, trainer)
            trainer.kill(pod.world.queue.now)
        pod.save_now()
        pod.trainers_alive.clear()

    def prepare(self, now: Instant) -> tuple[str, str]:
        pod = self._pod
        wanted = pod.rented.gpus_wanted
        if pod.rented.gpus != wanted:
            pod.world.observed("29")
            return "", f"{pod.rented.gpus} GPUs where {wanted} were rented"
        if pod.rented.board and not pod.world.knobs.silent_board:
            board = classify(pod.rented.board)
            pod.world.observed("96")
            if board.form not in pod.rented.slower_boards:
                return "", f"another board than was rented: {board.text}"
        if pod.world.queue.now < pod.ready_at:
            return "installing", ""
        return ("", "") if pod.staged else ("files", "")

    def kept(self, now: Instant) -> tuple[contract.CheckpointRef, ...]:
        pod = self._pod
        pod.save_now()
        return pod.world.files.kept_on(pod.lease.run_id, pod.rented.pod_id)

    def uploads(self, now: Instant) -> tuple[float | None, Uploads]:
        return self._pod.uploader.uploads(self._pod.world.queue.now)

    def stored_result(self) -> str:
        return self._pod.uploader.reported_result

    def has_watchdog(self) -> bool:
        return self._pod.guard is not None and not self._pod.guard_stopped

    def end_pod(self) -> bool:
        rented = self._pod.rented
        local = rented.account.habits.self_ends == "exit"
        if self._pod.guard_stopped and not local:
            self._pod.resume_watchdog()
            return False
        rented.ended_by = rented.ended_by or "agent"
        rented.end_from_inside()
        return rented.account.habits.self_ends == "exit"

    def log(self, text: str) -> None:
        self._pod.world.say(f"{self._pod.rented.pod_id} agent: {text}")


_LOOK_S = 0.5
_UPLOAD_S = (2.0, 25.0)
_TELL_EVERY_S = 60.0
_TELL_S = 1.0
"""For a report with the result to reach the bucket, and from one try to the next."""


@dataclass
class _Upload:
    kept: CheckpointRef
    slot: str
    ends_at: float


class SimUploader:
    """One pod's; its notes survive the agent, and end with the pod's own disk."""

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        self.grants: Grants | None = None
        self.fetched: set[str] = set()
        """Hashes of the checkpoints that it brought from the bucket, to go on from."""
        self.furthest: dict[str, int] = {}
        """Of each phase the step that was in the bucket when it was first given its grants."""
        self.withheld: set[str] = set()
        """Saved before the cooldown of what it brought, in the bucket, and not granted with it."""
        self.moved_at = 0.0
        self._slots: dict[str, dict[str, CheckpointRef | None]] = {}
        self._given_up: list[CheckpointRef] = []
        self._account: Uploads | None = None
        """Its account to the agent, until that changes."""
        self._all_stored: tuple[CheckpointRef, ...] = ()
        """The checkpoints that were on the pod when none of them was wanted in the bucket."""
        self._upload: _Upload | None = None
        self._free_at = 0.0
        self._moved_boot = 0.0
        self.reported_result = ""
        """The result that the report in the bucket bears."""
        self._told_at = -_TELL_EVERY_S
        self._telling = Entry(0.0, None)

    def give(self, grants: Grants) -> None:
        first = self.grants is None
        if first:
            self.fetched = {get.folder.rpartition("/")[2] for get in grants.gets}
            files, run_id = self._pod.world.files, self._pod.lease.run_id
            self.furthest = files.furthest_stored(run_id)
            self.withheld = files.cooled_without(run_id, self.fetched)
        self.grants, self._all_stored, self._account = grants, (), None
        for phase, share in grants.phases.items():
            held = self._slots.setdefault(phase, {})
            for slot in share.slots:
                held.setdefault(slot, share.held.get(slot))
        for turn in self._pod.world.knobs.turns if first else ():
            turn(self._pod.rented)

    def stop(self, now: float) -> None:
        """The pod ends: what was on its way is half there, which is nothing."""
        self.advance(now)
        self._upload = None

    def report_written(self, report: AgentReport) -> None:
        """The agent has written its report to the pod's disk."""
        if self.grants is None:
            return
        now = self._pod.world.queue.now
        if report.result is not None and report.result != self.reported_result:
            self._telling.cancel()
            self._telling = self._pod.world.queue.after(_TELL_S, self._tell_result)
        elif now - self._told_at >= _TELL_EVERY_S:
            self._tell(report)

    def _tell_result(self) -> None:
        """It is the agent's child: it lives as long as that does."""
        pod = self._pod
        if not pod.running or pod.agent is None or pod.report is None:
            return
        if not self._tell(pod.report):
            self._telling = pod.world.queue.after(_TELL_S, self._tell_result)

    def _tell(self, report: AgentReport) -> bool:
        world, name = self._pod.world, parse_pod_name(self._pod.name)
        now = world.queue.now
        if self.grants is None or name is None or now > self.grants.until:
            return False
        if now < max(world.knobs.bucket_down_until, world.knobs.pod_api_down_until):
            return False
        world.files.words[(self._pod.lease.run_id, name.generation)] = report
        self._told_at, self.reported_result = now, report.result or ""
        return True

    def uploads(self, now: float) -> tuple[float | None, Uploads]:
        self.advance(now)
        until = self.grants.until if self.grants is not None else None
        if self._account is None:
            held = (kept for slots in self._slots.values() for kept in slots.values())
            uploaded = tuple(kept for kept in held if kept is not None)
            given_up, moved = tuple(self._given_up), self._moved_boot
            self._account = Uploads(uploaded, given_up, moved, fetched=True)
        return until, self._account

    def advance(self, now: float) -> None:
        """Up to ``now``: finish what is through, begin what is due."""
        grants = self.grants
        if grants is None:
            return
        world = self._pod.world
        while True:
            upload = self._upload
            if upload is not None:
                if self._hindered(upload, now) or upload.ends_at > now:
                    return
                self._finish(upload)
            if self._free_at > now or not self._begin(now):
                return
            begun_s = self._upload.ends_at - now if self._upload is not None else 0.0
            world.queue.after(max(0.0, begun_s), self._pod.wake)

    def _hindered(self, upload: _Upload, now: float) -> bool:
        """While the store or the pod's network is down nothing arrives."""
        world, knobs = self._pod.world, self._pod.world.knobs
        down_until = max(knobs.bucket_down_until, knobs.pod_api_down_until)
        if self.grants is not None and now > self.grants.until:
            down_until = float("inf")
        if now >= down_until:
            return False
        if knobs.bucket_down_until > now:
            world.observed("48")
        if down_until != float("inf"):
            upload.ends_at = max(upload.ends_at, down_until + world.rng.uniform(*_UPLOAD_S))
            world.queue.at(upload.ends_at + 0.1, self._pod.wake)
        return True

    def _begin(self, now: float) -> bool:
        pod, world = self._pod, self._pod.world
        assert self.grants is not None
        kept = world.files.kept_on(pod.lease.run_id, pod.rented.pod_id)
        if kept == self._all_stored:
            return False
        held = (one for slots in self._slots.values() for one in slots.values())
        stored = [one for one in held if one is not None]
        owed = unstored(kept, stored, self._given_up)
        wanted = [one for one in owed if one.phase in self._slots]
        if not wanted:
            self._all_stored = kept
            return False
        chosen = wanted[0]
        if not world.files.is_sound(pod.lease.run_id, chosen):
            world.felt_any("damage")
            self._given_up.append(chosen)
            self._account = None
            return self._begin(now)
        slots = self._slots[chosen.phase]
        scored = lacks_metric(slots, chosen)
        if scored is not None:
            self._upload = _Upload(chosen, scored, now + _LOOK_S)
            return True
        slot = free_slot(slots, self.grants.phases[chosen.phase].keep_best)
        slots[slot] = self._account = None
        world.emit(Observer.on_overwrite, pod, chosen.phase, slot)
        world.files.overwrite(pod.lease.run_id, chosen.phase, slot)
        self._upload = _Upload(chosen, slot, now + _LOOK_S + world.rng.uniform(*_UPLOAD_S))
        return True

    def _finish(self, upload: _Upload) -> None:
        pod = self._pod
        self._upload, self._free_at, self._all_stored = None, upload.ends_at, ()
        # The trainer may have pruned it meanwhile: its files were held open.
        self._slots[upload.kept.phase][upload.slot] = upload.kept
        pod.world.files.store(pod.lease.run_id, upload.kept, upload.slot)
        pod.world.emit(Observer.on_stored, pod, upload.kept)
        self.moved_at = upload.ends_at
        self._moved_boot, self._account = upload.ends_at - pod.machine.boot_at, None
