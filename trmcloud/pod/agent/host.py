"""The agent's interface to its pod: a real one in ``process``, another one in the simulated
world."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterable, Mapping, Protocol

from trmcloud.core.clock import Instant
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.bucket import Uploads
from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.pod.agent.lease_clock import Anchors


@dataclass
class Trainer:
    """The trainer's process, as the agent remembers it across its own death."""

    pid: int
    started: str
    phase: str
    attempt: int
    started_at: float
    last_beat: str = ""
    last_progress_boot: float = 0.0
    told_boot: float | None = None
    save_told: int = 0
    """The last request to save that it was told of, and how many it had made by then."""
    saves_before: int = 0
    saved_step: int = 0
    """The newest checkpoint that it was seen to have saved, and when that was."""
    saved_boot: float = 0.0
    finish_told: bool = False


class Host(Anchors, Protocol):
    """The agent's interface to its pod: small files that are whole or absent, and processes.

    Whatever cannot be understood reads as None.
    """

    def now(self) -> Instant: ...

    def pid(self) -> int: ...

    def read_lease(self) -> contract.Lease | None: ...

    def write_lease(self, lease: contract.Lease) -> None:
        """Put a lease with later stops in the place of the pod's, if the disk takes it."""

    def read_orders(self) -> contract.Orders | None: ...

    def read_report(self) -> contract.AgentReport | None: ...

    def write_report(self, report: contract.AgentReport, *, durable: bool) -> None:
        """A report that cannot be written is passed over: a full disk must not stop the guard."""

    def read_trainer(self) -> Trainer | None: ...

    def write_trainer(self, trainer: Trainer | None) -> None: ...

    def read_heartbeat(self, phase: str) -> Heartbeat | None: ...

    def read_metrics(self, phase: str) -> Iterable[Mapping[str, Any]]: ...

    def start_trainer(
        self, phase: str, attempt: int, deadline_at: float, overrides: Mapping[str, Any]
    ) -> tuple[int, str]:
        """Start the phase's processes; returns pid and start time of the first of them.

        ``overrides``: settings that take the place of the job's.
        """

    def move_deadline(self, trainer: Trainer, deadline_at: float) -> None:
        """Tell a trainer that it has until then; where that fails, it lands as it was told."""

    def trainer_runs(self, trainer: Trainer) -> bool: ...

    def ask_to_land(self, trainer: Trainer, beat: Heartbeat | None) -> None:
        """SIGTERM to rank 0, which tells the others; to torchrun while there is no rank yet."""

    def ask_to_save(self, trainer: Trainer, beat: Heartbeat) -> None:
        """SIGUSR1 to rank 0 alone, which has said that it knows it."""

    def ask_to_finish(self, trainer: Trainer, beat: Heartbeat) -> None:
        """SIGUSR2 to rank 0 alone, likewise."""

    def kill_trainer(self) -> None: ...

    def prepare(self, now: Instant) -> tuple[str, str]:
        """(what is still to be done before a phase can start, why this machine is refused); both
        empty where training can begin."""

    def make_data(self, now: Instant, phases: tuple[str, ...]) -> None:
        """Keep running what makes the data of these phases, where this machine makes it."""

    def stop_data(self) -> None:
        """End it: nothing is trained here any more."""

    def watch_gpus(self, now: Instant, *, trains: bool) -> None:
        """Look at their counters now and then; what they say goes into the report's notes."""

    def memory_share(self) -> float | None:
        """Return the used share of the fullest GPU's memory; None where that is not known well
        enough."""

    def kept(self, now: Instant) -> tuple[contract.CheckpointRef, ...]:
        """The checkpoints of the run that are whole on this pod."""

    def uploads(self, now: Instant) -> tuple[float | None, Uploads]:
        """(until when this pod may upload by its grants, None where it has none; what was done
        with them). The process that uploads is kept running."""

    def stored_result(self) -> str:
        """The result that the report in the bucket bears; '' while it bears none."""

    def has_watchdog(self) -> bool:
        """Whether the watchdog that started this agent still runs, not stopped, to end the pod."""

    def end_pod(self) -> bool:
        """By every means the provider leaves, without a watchdog; to be called until it works.

        True where this process's own end is the pod's.
        """

    def log(self, text: str) -> None: ...
