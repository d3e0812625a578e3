"""The duration of a phase on a machine: named parts in seconds, each with its assumption.

On a known GPU a step's time is the roofline's. On CPUs, and on GPUs not in the table, it is FLOPs ÷
(processes × peak × MFU). The rest of a paid hour is start-up, compilation, evaluation and saving,
which decide short runs: at $24/h a seven-minute compile is $2.80.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from trmcloud.core.catalog.hardware import GPUS, Gpu, LocalMachine
from trmcloud.core.planner.memory import checkpoint_bytes
from trmcloud.core.planner.roofline import (
    FITTED,
    NODE_LINK_GB_S,
    P90_SIGMAS,
    MeasuredSpeed,
    Reach,
    StepTime,
    reach_of,
    step_time,
)
from trmcloud.core.spec.plan import Interval
from trmcloud.core.spec.settings import PhaseRecipe

CPU_SIGMA = 0.45
PROBED_SIGMA = 0.05
ANOTHER_MACHINE_SIGMA = 0.1
"""Beside that, where another machine of the kind was measured: eight H100s ran one script of
modded-nanogpt's in 125 to 154 ms a step."""
SEVERAL_NODES_SIGMA = 0.3
"""The uncertainty of a network between rented machines: a prior, never measured here."""

BOOT_S = Interval(40, 90, 240)
"""A rented pod from the request to a shell: image pull included."""
ENVIRONMENT_S = Interval(45, 90, 240)
"""Installing the trainer's packages: 66 s for 1.4 GB was measured with a CPU build of torch."""
CLUSTER_BOOT_S = Interval(120, 210, 480)
"""A cluster of SkyPilot's from the launch to its job: the machine, and SkyPilot's runtime on it.
A prior: the real one took 100 to 215 s on a stand-in of a cloud."""
WHOLE_ENVIRONMENT_S = Interval(50, 120, 400)
"""A Python, torch and all that it needs, where the image has none of them: 4.1 GB of wheels for
torch 2.9.1. A prior: at 80, 35 and 10 MB/s."""
SYNC_S = Interval(5, 20, 60)
LOCAL_STARTUP_S = Interval(0.5, 1.5, 4)

PROCESS_START_S = Interval(12, 20, 45)
"""torchrun, importing torch, NCCL, opening the data."""
LOCAL_PROCESS_START_S = Interval(2.5, 4, 9)

COMPILE_S = Interval(25, 60, 180)
"""All blocks share one compiled graph."""
COMPILE_CPU_S = Interval(30, 60, 180)

REMOTE_DISK_BYTES_PER_S = 0.3e9
"""A network volume writes 200 to 400 MB/s."""
LOCAL_DISK_BYTES_PER_S = 0.4e9
"""Writing, syncing and hashing one after the other."""
SAVE_FIXED_S = 0.5
STALL_FIXED_S = 0.05
GPU_COPY_BYTES_PER_S = 10e9
"""From a GPU to pinned memory of its host, for which training stands still. A prior: half of what
PCIe 4 carries, since GPUs of one host share its memory."""
CPU_COPY_BYTES_PER_S = 3e9
"""In memory, beside another process."""


class Machine(NamedTuple):
    """The machine of a phase: ``processes`` equal processes, one per GPU or sharing the CPUs."""

    name: str
    processes: int
    gpu: Gpu | None
    local: LocalMachine | None
    memory_gb: float
    """Of one process."""
    measured: MeasuredSpeed | None = None
    nodes: int = 1
    """Machines that the processes are shared out to."""
    is_cluster: bool = False
    """SkyPilot rents it, and sets it up; its images have no torch."""

    @property
    def on_gpu(self) -> bool:
        return self.gpu is not None or bool(self.local and self.local.gpus)

    def reach(self) -> Reach:
        """Share of the ideal (a known GPU) or of the peak (MFU, all else), and its doubt."""
        if self.gpu is not None:
            return reach_of(self.gpu)
        assert self.local is not None
        return Reach(self.local.mfu, CPU_SIGMA, "a nominal share of the peak: never measured")


def rented_machine(
    sku: str,
    gpus: int,
    measured: MeasuredSpeed | None = None,
    nodes: int = 1,
    *,
    is_cluster: bool = False,
) -> Machine:
    """``nodes`` machines of ``gpus`` each."""
    gpu = GPUS[sku]
    return Machine(sku, gpus * nodes, gpu, None, gpu.memory_gb, measured, nodes, is_cluster)


def this_machine(
    local: LocalMachine, processes: int, measured: MeasuredSpeed | None = None
) -> Machine:
    """``local`` running ``processes`` processes; on CPUs they share its memory."""
    gpu = GPUS.get(local.gpu_sku or "")
    if local.gpus:
        memory_gb = local.gpu_memory_gb or (gpu.memory_gb if gpu else 0.0)
    else:
        memory_gb = local.memory_gb / max(1, processes)
    return Machine(local.gpu_sku or local.name, processes, gpu, local, memory_gb, measured)


class PhaseTime(NamedTuple):
    """Seconds of one phase; ``seconds`` is the sum of the parts."""

    step: Interval
    training: Interval
    compile: Interval
    start: Interval
    evaluation: Interval
    saving: Interval
    """Standing still for saves: a copy in memory, and what the one before is not yet written."""
    landing: Interval
    """The last evaluation and save."""
    detail: StepTime | None
    """The parts of a step's P50; None off the roofline."""
    data: Interval = Interval(0.0, 0.0, 0.0)
    """Standing still for data that is still being made."""

    @property
    def seconds(self) -> Interval:
        total = self.training + self.compile + self.start + self.data
        return total + self.evaluation + self.saving + self.landing

    @property
    def pace_s(self) -> float:
        """P50 seconds per step, with its share of evaluations and saves."""
        steps = self.training.p50 / self.step.p50
        return (self.training.p50 + self.evaluation.p50 + self.saving.p50) / steps

    def parts_s(self) -> dict[str, float]:
        """P50 seconds by name."""
        data = {"data": self.data.p50} if self.data.p50 else {}
        return {
            **data,
            "training": self.training.p50,
            "compile": self.compile.p50,
            "start": self.start.p50,
            "evaluation": self.evaluation.p50,
            "saving": self.saving.p50,
            "landing": self.landing.p50,
        }


def startup_s(machine: Machine) -> Interval:
    """Seconds from asking for the machine to the first training process."""
    if machine.local is not None:
        return LOCAL_STARTUP_S
    if machine.is_cluster:
        return CLUSTER_BOOT_S + WHOLE_ENVIRONMENT_S + SYNC_S
    return BOOT_S + ENVIRONMENT_S + SYNC_S


def predict_phase(settings: PhaseRecipe, machine: Machine, factor: float = 1.0) -> PhaseTime:
    """The time of one phase on ``machine``, all its steps done.

    ``factor`` scales what the model says: measured ÷ predicted of a probe, which then also
    replaces the prior's doubt.
    """
    work = settings.work()
    reach = machine.reach()
    probed = machine.measured is not None
    detail, step_p50 = _step(settings, machine, reach)
    doubt = reach.sigma
    if probed:
        other = ANOTHER_MACHINE_SIGMA if machine.local is None else 0.0
        doubt = math.hypot(PROBED_SIGMA, other)
    spread = spread_of(doubt if machine.nodes == 1 else math.hypot(doubt, SEVERAL_NODES_SIGMA))
    step = spread.scaled(step_p50 * factor)
    per_token = step_p50 * factor / settings.tokens_per_step(machine.processes)
    forward = per_token * work.forward_flops / work.train_flops
    one_evaluation = spread.scaled(settings.eval_tokens * forward)
    one_save = save_s(settings, machine)
    every = steps_between_saves(settings, step.p50)
    # Where the one before is still being written, a save waits for it.
    waits = Interval(
        max(0.0, one_save.p10 - every * step.p50),
        max(0.0, one_save.p50 - every * step.p50),
        max(0.0, one_save.p90 - every * step.p50),
    )
    return PhaseTime(
        step=step,
        training=step.scaled(settings.steps),
        compile=_compile_s(settings, machine),
        start=PROCESS_START_S if machine.local is None else LOCAL_PROCESS_START_S,
        evaluation=one_evaluation.scaled((settings.steps - 1) // settings.eval_every),
        saving=(stall_s(settings, machine) + waits).scaled((settings.steps - 1) // every),
        landing=one_evaluation + one_save,
        detail=detail,
    )


def step_seconds(settings: PhaseRecipe, machine: Machine) -> float:
    """P50 seconds of one step before any probe."""
    return _step(settings, machine, machine.reach())[1]


def spread_of(sigma: float) -> Interval:
    """P10, P50, P90 of time relative to its median, for a log-normal of ``sigma``."""
    wide = math.exp(P90_SIGMAS * sigma)
    return Interval(1 / wide, 1.0, wide)


def save_s(settings: PhaseRecipe, machine: Machine) -> Interval:
    """From a save's begin until it is on disk, beside training. Shards of other machines come over
    the network to the first one."""
    disk = REMOTE_DISK_BYTES_PER_S if machine.local is None else LOCAL_DISK_BYTES_PER_S
    size = checkpoint_bytes(settings)
    seconds = SAVE_FIXED_S + size / disk
    if settings.sharding == "fsdp" and machine.nodes > 1:
        away = size * (machine.nodes - 1) / machine.nodes
        seconds = max(seconds, SAVE_FIXED_S + away / (NODE_LINK_GB_S * 1e9))
    return Interval(seconds * 0.6, seconds, seconds * 2)


def steps_between_saves(settings: PhaseRecipe, step_s: float) -> int:
    """By steps, or by the clock where that is sooner."""
    if not settings.save_minutes:
        return settings.save_every
    return min(settings.save_every, max(1, math.ceil(60.0 * settings.save_minutes / step_s)))


def stall_s(settings: PhaseRecipe, machine: Machine) -> Interval:
    """For which one save holds training up: a copy of what a rank writes, to its host's memory."""
    rate = GPU_COPY_BYTES_PER_S if machine.on_gpu else CPU_COPY_BYTES_PER_S
    ranks = machine.processes if settings.sharding == "fsdp" else 1
    seconds = STALL_FIXED_S + checkpoint_bytes(settings) / ranks / rate
    return Interval(seconds * 0.5, seconds, seconds * 2)


def _step(settings: PhaseRecipe, machine: Machine, reach: Reach) -> tuple[StepTime | None, float]:
    if machine.gpu is not None:
        detail = step_time(
            settings, machine.gpu, machine.processes, FITTED, reach.share, nodes=machine.nodes
        )
        return detail, detail.total
    assert machine.local is not None
    rate = machine.local.peak_flops(machine.processes) * reach.share * machine.processes
    flops = settings.tokens_per_step(machine.processes) * settings.work().train_flops
    return None, flops / rate if rate > 0 else math.inf


def _compile_s(settings: PhaseRecipe, machine: Machine) -> Interval:
    if not settings.compile:
        return Interval(0.0, 0.0, 0.0)
    if not machine.on_gpu:
        return COMPILE_CPU_S
    return COMPILE_S
