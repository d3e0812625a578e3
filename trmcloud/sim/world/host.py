"""What a simulated pod's agent thinks with: files that are crash-consistent records, processes that
are arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from trmcloud.core.clock import Instant
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.bucket import Uploads
from trmcloud.core.contract.pod_contract import PhaseState
from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.pod.agent.host import Trainer
from trmcloud.pod.agent.lease_clock import AnchorNote

if TYPE_CHECKING:
    from trmcloud.sim.world.pod import SimPod


_BETWEEN_LOOKS_S = 0.1


class SimHost:
    """``pod.agent.host.Host`` over a simulated pod's memory."""

    def __init__(self, pod: SimPod) -> None:
        self._pod = pod
        self._looks = (0.0, 0)
        """When it was last asked about a trainer, and how often by then."""

    def now(self) -> Instant:
        return self._pod.machine.now()

    def pid(self) -> int:
        return 1

    def read_lease(self) -> contract.Lease | None:
        return self._pod.lease

    def read_orders(self) -> contract.Orders | None:
        return self._pod.orders

    def read_report(self) -> contract.AgentReport | None:
        return self._pod.report

    def write_report(self, report: contract.AgentReport, *, durable: bool) -> None:
        pod = self._pod
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
        pod.report = report
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
                self._pod.world.check.duties.told(self._pod)
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
                pod.world.check.duties.attempts.no_longer_pays(pod, running)
                running.finish(now)
                pod.world.queue.after(0.1, pod.wake)

    def kill_trainer(self) -> None:
        pod = self._pod
        for trainer in pod.trainers_alive:
            pod.world.check.duties.killed(pod, trainer)
            trainer.kill(pod.world.queue.now)
        pod.save_now()
        pod.trainers_alive.clear()

    def prepared(self, now: Instant) -> tuple[str, str]:
        pod = self._pod
        wanted = pod.rented.gpus_wanted
        if pod.rented.gpus != wanted:
            pod.world.observed("29")
            return "", f"{pod.rented.gpus} GPUs where {wanted} were rented"
        if pod.world.queue.now < pod.ready_at:
            return "installing", ""
        return ("", "") if pod.staged else ("files", "")

    def kept(self, now: Instant) -> tuple[contract.Kept, ...]:
        pod = self._pod
        pod.save_now()
        return pod.world.files.kept_on(pod.lease.run_id, pod.rented.pod_id)

    def uploads(self, now: Instant) -> tuple[float | None, Uploads]:
        return self._pod.uploader.uploads(self._pod.world.queue.now)

    def told(self) -> str:
        return self._pod.uploader.told

    def guarded(self) -> bool:
        return self._pod.guard is not None and not self._pod.guard_stopped

    def end_pod(self) -> bool:
        rented = self._pod.rented
        local = rented.account.habits.self_ends == "exit"
        if self._pod.guard_stopped and not local:
            self._pod.resume_watchdog()
            return False
        rented.ended_by = rented.ended_by or "agent"
        rented.account.end_from_inside(rented)
        return rented.account.habits.self_ends == "exit"

    def log(self, text: str) -> None:
        self._pod.world.say(f"{self._pod.rented.pod_id} agent: {text}")
