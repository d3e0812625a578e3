"""Heartbeat, metrics and clock of a training, and the peak that it is measured by."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from trmcloud.core.catalog.hardware import gpu_of
from trmcloud.core.contract.metric_names import figures_of
from trmcloud.core.contract.pod_contract import HEARTBEAT_NAME, METRICS_NAME, TENSORBOARD_DIR
from trmcloud.core.contract.records import dump, finite
from trmcloud.core.contract.trainer_contract import Heartbeat, PhaseJob, load_heartbeat
from trmcloud.io.files import write_atomic

# What the outside sees of a training: heartbeat, metrics, a human log, TensorBoard.
#
# Only rank 0 speaks. A heartbeat replaces its file by a rename, at most once a second and at
# every change of state; a line of metrics is written and flushed where something was logged.
# Neither is synced to disk: both tell of the present, and a checkpoint carries what must last.

BEAT_EVERY_S = 1.0
#: The names under which ``Heartbeat.seconds`` counts the time spent in each state.
_SECONDS_OF = {
    "starting": "startup",
    "waiting": "data",
    "compiling": "compile",
    "training": "training",
    "evaluating": "evaluating",
    "saving": "saving",
    "landing": "landing",
}


@dataclass(frozen=True)
class Clock:
    """Epoch seconds for what others compare, monotonic ones for what is measured."""

    epoch: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def process_age_s() -> float:
    """Seconds since this process began, interpreter start included; 0 where /proc is missing."""
    try:
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        started = int(process_started()) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
    age = uptime - started
    # A sandbox may show another machine's uptime: then nothing is known.
    return age if 0.0 <= age < 600.0 else 0.0


def process_started() -> str:
    """Field 22 of /proc/self/stat, which tells this process from a later one of the same id."""
    try:
        stat = Path("/proc/self/stat").read_text()
    except OSError:
        return ""
    # The second field is a name in parentheses that may hold spaces.
    return stat.rpartition(")")[2].split()[19]


class HeartbeatWriter:
    """The heartbeat file, and the account of where the time went."""

    def __init__(
        self, job: PhaseJob, attempt: int, steps: int, clock: Clock, *, silent: bool = False
    ) -> None:
        self._path = Path(job.out_dir) / HEARTBEAT_NAME
        self._clock = clock
        self._silent = silent
        self._seconds = dict.fromkeys(_SECONDS_OF.values(), 0.0)
        self._since = clock.monotonic() - process_age_s()
        self._written = -math.inf
        self.now = Heartbeat(
            run_id=job.run_id,
            phase=job.phase,
            attempt=attempt,
            pid=os.getpid(),
            pid_started=process_started(),
            at=clock.epoch(),
            state="starting",
            step=0,
            steps=steps,
            saves=0,
        )

    @property
    def seconds(self) -> Mapping[str, float]:
        """Seconds by state up to now."""
        self._account()
        return dict(self._seconds)

    def enter(self, state: str, **news: Any) -> None:
        """Changes state and says so at once."""
        self._account()
        self.now = replace(self.now, state=state, **news)
        self._write()

    @contextmanager
    def during(self, state: str) -> Iterator[None]:
        """In ``state`` for the block; a landing trainer stays landing whatever it does."""
        before = self.now.state
        if before != "landing":
            self.enter(state)
        yield
        if before != "landing":
            self.enter(before)

    def tell(self, **news: Any) -> None:
        """Takes up news that must not be lost, and writes it at once."""
        self._account()
        self.now = replace(self.now, **news)
        self._write()

    def note(self, **news: Any) -> None:
        """Takes up news and writes nothing: another rank may have told the end by now."""
        self.now = replace(self.now, **news)

    def beat(self, **news: Any) -> None:
        """Takes up news; writes if the last heartbeat is a second old."""
        self.now = replace(self.now, **news)
        if self._clock.monotonic() - self._written >= BEAT_EVERY_S:
            self._account()
            self._write()

    def end(self, outcome: str, message: str = "") -> None:
        finite = outcome != "non_finite"
        self.enter("ended", outcome=outcome, message=message[:2000], finite=finite)

    def _account(self) -> None:
        now = self._clock.monotonic()
        name = _SECONDS_OF.get(self.now.state)
        if name is not None:
            self._seconds[name] += now - self._since
        self._since = now

    def _write(self) -> None:
        if self._silent:
            return
        seconds = {name: round(value, 3) for name, value in self._seconds.items()}
        self.now = replace(self.now, at=self._clock.epoch(), seconds=seconds)
        self._written = self._clock.monotonic()
        write_atomic(self._path, dump(self.now), durable=False)


def end_for_another(job: PhaseJob, attempt: int, outcome: str, message: str, now: float) -> None:
    """A rank other than 0 fails: rank 0 may hang in a collective, so this rank writes the end."""
    path = Path(job.out_dir) / HEARTBEAT_NAME
    with suppress(OSError, ValueError):
        last = load_heartbeat(path.read_bytes())
        if last.attempt == attempt and last.state != "ended":
            ended = replace(last, state="ended", outcome=outcome, message=message[:2000], at=now)
            write_atomic(path, dump(ended), durable=False)


def ended_by_another(job: PhaseJob, attempt: int) -> bool:
    """Whether another rank has already said how this attempt ended."""
    try:
        last = load_heartbeat((Path(job.out_dir) / HEARTBEAT_NAME).read_bytes())
    except (OSError, ValueError):
        return False
    return last.attempt == attempt and last.state == "ended"


class Metrics:
    """``metrics.jsonl`` and TensorBoard's scalars."""

    def __init__(self, out_dir: Path, clock: Clock) -> None:
        self._path = out_dir / METRICS_NAME
        self._board_dir = out_dir / TENSORBOARD_DIR
        self._clock = clock
        self._board: Any = None
        self._file: TextIO | None = None

    def rewind(self, step: int | None, decided_at: int | None = None) -> None:
        """Drops every line after ``step`` (all lines where None) and any cut one, atomically.

        A decision taken at ``step`` itself stays only where ``decided_at`` is that step: the
        checkpoint may have been saved before it.
        """
        if self._path.exists():
            kept = []
            for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
                with suppress(ValueError, KeyError, TypeError):
                    told = json.loads(line)
                    lost = told["step"] == step != decided_at and told["kind"] == "decision"
                    if step is not None and told["step"] <= step and not lost:
                        kept.append(line + "\n")
            write_atomic(self._path, "".join(kept), durable=False)

    def open_board(self, step: int) -> None:
        """Starts TensorBoard's file where TensorBoard is installed; later steps are purged."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        self._board = SummaryWriter(
            str(self._board_dir), purge_step=step, max_queue=200, flush_secs=15
        )

    def write(self, kind: str, step: int, **values: Any) -> None:
        """One line; floats that are not finite become null."""
        if self._file is None:
            self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115
        line = {"kind": kind, "step": step, "at": round(self._clock.epoch(), 3), **values}
        self._file.write(json.dumps(finite(line)) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in figures_of(kind, values):
                self._board.add_scalar(name, value, step)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._board is not None:
            self._board.close()


def peak_flops(device_name: str, dtype: str) -> float | None:
    """Dense FLOP/s of the device at ``dtype``; None where it is not in the table."""
    gpu = gpu_of(device_name)
    return None if gpu is None else gpu.peak_flops(dtype)
