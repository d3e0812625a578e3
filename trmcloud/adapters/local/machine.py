"""This machine: its hardware, its clocks, and its threads as workers."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trmcloud.core.catalog.hardware import LocalMachine, gpu_of
from trmcloud.core.clock import Instant
from trmcloud.core.errors import ProviderError, TrmcloudError
from trmcloud.pod.machine import processes
from trmcloud.ports.ledger import ControllerId
from trmcloud.ports.machine import Progress, WorkDone

if TYPE_CHECKING:
    from trmcloud.core.control.events import ActionKey

# The real clocks of this machine.


class SystemClock:
    """Wall time, and time since boot that counts suspension."""

    def now(self) -> Instant:
        from trmcloud.pod.machine.processes import read_clocks  # ``plan`` reads no clock here

        return read_clocks(time.time, _since_boot)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def _host() -> str:
    """This machine since it started: ``name:boot id``."""
    return os.uname().nodename + ":" + processes.boot_id()


def this_controller() -> ControllerId:
    """Return this process, as a ledger names it."""
    return ControllerId(_host(), os.getpid(), processes.started(os.getpid()) or "")


def is_controller_alive(controller: ControllerId) -> bool | None:
    """Whether a controller's process lives; None where it cannot be told."""
    if controller.host != _host():
        return None
    if processes.alive(controller.pid, controller.pid_started):
        # One that is stopped may wake any moment, or never: its last beat has to tell.
        return None if processes.stopped(controller.pid) else True
    return False


def _since_boot() -> float:
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.clock_gettime(clock) if clock is not None else time.monotonic()


# Workers as threads: what they carry dies with the process, and is begun again by the next.


class _WorkCancelled(TrmcloudError):
    """The work is no longer wanted."""


class ThreadWorkers:
    """One thread for each piece of work; daemons, so that leaving never waits for a copy."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[ActionKey, threading.Event] = {}
        self._progress: dict[ActionKey, tuple[int, int]] = {}
        self._finished: list[WorkDone] = []

    def start(self, key: ActionKey, work: Callable[[Progress], None]) -> None:
        cancelled = threading.Event()
        with self._lock:
            self._running[key] = cancelled
            self._progress[key] = (0, 0)
        thread = threading.Thread(target=self._carry, args=(key, work, cancelled), daemon=True)
        thread.start()

    def _carry(
        self, key: ActionKey, work: Callable[[Progress], None], cancelled: threading.Event
    ) -> None:
        def progress(done: int, total: int) -> None:
            if cancelled.is_set():
                raise _WorkCancelled("it is not needed any more")
            self._progress[key] = (done, total)

        error: TrmcloudError | None = None
        try:
            work(progress)
        except TrmcloudError as problem:
            error = problem
        except Exception as problem:  # a thread's failure must not be lost
            error = ProviderError(f"{type(problem).__name__}: {problem}")
        with self._lock:
            mine = self._running.get(key) is cancelled
            if mine:
                del self._running[key]
                self._progress.pop(key, None)
                self._finished.append(WorkDone(key, error))

    def running(self) -> frozenset[ActionKey]:
        with self._lock:
            return frozenset(self._running)

    def finished(self) -> Sequence[WorkDone]:
        with self._lock:
            done, self._finished = self._finished, []
        return done

    def progress(self, key: ActionKey) -> tuple[int, int] | None:
        return self._progress.get(key)

    def cancel(self) -> None:
        with self._lock:
            for cancelled in self._running.values():
                cancelled.set()
            self._running.clear()
            self._progress.clear()


# This machine's CPUs, memory and GPUs, found without importing torch.

_CPU_MFU = 0.12
"""Small matrices on CPU cores reach about an eighth of the nominal peak under torch."""
_GPU_MFU = 0.40
_NOMINAL_GHZ = 2.5


def this_machine() -> LocalMachine:
    """The machine as the planner needs it. CPU peak = cores × clock × SIMD lanes × 2 × 2 (fused
    multiply-add on two ports), a nominal figure."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    found = _nvidia_gpus()
    if found:
        name, gpu_memory_gb = found[0]
        gpu = gpu_of(name, gpu_memory_gb)
        return LocalMachine(
            name=name,
            cpus=cpus,
            memory_gb=memory_gb,
            gpu_sku=gpu.sku if gpu is not None else None,
            gpus=len(found),
            gpu_memory_gb=gpu_memory_gb,
            peak_flops_per_process=gpu.bf16_tflops * 1e12 if gpu is not None else 50e12,
            mfu=_GPU_MFU,
        )
    info = _cpu_info()
    lanes = 16 if "avx512f" in info.get("flags", "").split() else 8
    peak = cpus * _NOMINAL_GHZ * 1e9 * lanes * 4
    machine = LocalMachine(
        name=f"{cpus} CPU cores",
        cpus=cpus,
        memory_gb=memory_gb,
        peak_flops_per_process=peak,
        mfu=_CPU_MFU,
    )
    return machine._replace(peak_flops_per_process=peak / machine.default_processes)


def _nvidia_gpus() -> list[tuple[str, float]]:
    """(name, GB) of each NVIDIA GPU; empty where there is no driver."""
    if not Path("/proc/driver/nvidia").exists():
        return []
    try:
        answer = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    found = []
    for line in answer.stdout.splitlines():
        name, _, mib = line.rpartition(",")
        if mib.strip().isdigit():
            found.append((name.strip(), int(mib) * 2**20 / 1e9))
    return found


def _cpu_info() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    first = text.partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
