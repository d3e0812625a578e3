"""How long a phase takes on a machine: named parts in seconds, each with its assumption.

Training time is FLOPs ÷ (processes × dense peak × MFU). The rest of a paid hour is start-up,
compilation, evaluation and saving, which decide short runs: at $24/h a seven-minute compile is
$2.80.
"""

from __future__ import annotations

import math
from typing import Mapping, NamedTuple

from trmcloud.core.flops import work_of
from trmcloud.core.hardware import GPUS, Gpu, LocalMachine
from trmcloud.core.plan import Interval
from trmcloud.core.recipe import PhaseRecipe

#: Model-FLOPs utilisation expected before anything was measured: A100 .50, H100 and H200 .40, PCIe
#: cards .35, B200 .25 (torchtitan, llm-foundry and nanochat report 35–64 % on these parts).
MFU_PRIOR: Mapping[str, float] = {
    "B200": 0.25,
    "H200": 0.40,
    "H100-SXM": 0.40,
    "A100-80GB-SXM": 0.50,
    "A100-80GB-PCIe": 0.50,
    "A100-40GB": 0.50,
}
MFU_PRIOR_OTHER = 0.35

#: Time relative to the prior's: P10, P50, P90.
GPU_SPREAD = Interval(0.87, 1.0, 1.35)
CPU_SPREAD = Interval(0.6, 1.0, 1.8)

BOOT_S = Interval(40, 90, 240)
"""A rented pod from the request to a shell: image pull included."""
ENVIRONMENT_S = Interval(45, 90, 240)
"""Installing the trainer's packages: 66 s for 1.4 GB was measured with a CPU build of torch."""
SYNC_S = Interval(5, 20, 60)
LOCAL_STARTUP_S = Interval(0.5, 1.5, 4)

PROCESS_START_S = Interval(12, 20, 45)
"""torchrun, importing torch, NCCL, opening the data."""
LOCAL_PROCESS_START_S = Interval(2.5, 4, 9)

COMPILE_S = Interval(60, 150, 420)
COMPILE_CPU_S = Interval(30, 60, 180)

REMOTE_DISK_BYTES_PER_S = 0.3e9
"""A network volume writes 200 to 400 MB/s."""
LOCAL_DISK_BYTES_PER_S = 0.4e9
"""Writing, syncing and hashing one after the other."""
SAVE_FIXED_S = 0.5


class Machine(NamedTuple):
    """What a phase runs on: ``processes`` equal processes, one per GPU or sharing the CPUs."""

    name: str
    processes: int
    gpu: Gpu | None
    local: LocalMachine | None
    memory_gb: float
    """Of one process."""

    @property
    def on_gpu(self) -> bool:
        return self.gpu is not None or bool(self.local and self.local.gpus)

    def peak_flops(self, dtype: str) -> float:
        """Dense FLOP/s of one process."""
        if self.gpu is not None:
            return self.gpu.peak_flops(dtype)
        assert self.local is not None
        return self.local.peak_flops(self.processes)

    @property
    def mfu(self) -> float:
        if self.local is not None:
            return self.local.mfu
        return MFU_PRIOR.get(self.name, MFU_PRIOR_OTHER)


def rented_machine(sku: str, gpus: int) -> Machine:
    gpu = GPUS[sku]
    return Machine(sku, gpus, gpu, None, gpu.memory_gb)


def this_machine(local: LocalMachine, processes: int) -> Machine:
    """``local`` running ``processes`` processes; on CPUs they share its memory."""
    gpu = GPUS.get(local.gpu_sku or "")
    if local.gpus:
        memory_gb = local.gpu_memory_gb or (gpu.memory_gb if gpu else 0.0)
    else:
        memory_gb = local.memory_gb / max(1, processes)
    return Machine(local.gpu_sku or local.name, processes, gpu, local, memory_gb)


class PhaseTime(NamedTuple):
    """Seconds of one phase; ``seconds`` is the sum of the parts."""

    step: Interval
    training: Interval
    compile: Interval
    start: Interval
    evaluation: Interval
    saving: Interval
    landing: Interval
    """The last evaluation and save."""

    @property
    def seconds(self) -> Interval:
        total = self.training + self.compile + self.start
        return total + self.evaluation + self.saving + self.landing

    def parts_s(self) -> dict[str, float]:
        """P50 seconds by name."""
        parts = self._asdict()
        del parts["step"]
        return {name: interval.p50 for name, interval in parts.items()}


def startup_s(machine: Machine) -> Interval:
    """Seconds from asking for the machine to the first training process."""
    if machine.local is not None:
        return LOCAL_STARTUP_S
    return BOOT_S + ENVIRONMENT_S + SYNC_S


def predict_phase(settings: PhaseRecipe, machine: Machine) -> PhaseTime:
    """The time of one phase on ``machine``, all its steps done."""
    work = work_of(settings)
    rate = machine.peak_flops(settings.dtype) * machine.mfu * machine.processes
    spread = GPU_SPREAD if machine.on_gpu else CPU_SPREAD
    step_s = settings.tokens_per_step(machine.processes) * work.train_flops / rate
    step = spread.scaled(step_s)
    one_evaluation = spread.scaled(settings.eval_tokens * work.forward_flops / rate)
    one_save = save_s(settings, machine)
    evaluations = (settings.steps - 1) // settings.eval_every
    saves = (settings.steps - 1) // settings.save_every
    return PhaseTime(
        step=step,
        training=step.scaled(settings.steps),
        compile=_compile_s(settings, machine),
        start=PROCESS_START_S if machine.local is None else LOCAL_PROCESS_START_S,
        evaluation=one_evaluation.scaled(evaluations),
        saving=one_save.scaled(saves),
        landing=one_evaluation + one_save,
    )


def checkpoint_bytes(settings: PhaseRecipe) -> float:
    """One checkpoint: float32 weights, Muon's momentum, AdamW's two states."""
    work = work_of(settings)
    return work.parameters * 4.0 + work.matrix_parameters * 4.0 + work.table_parameters * 8.0


def weights_bytes(settings: PhaseRecipe) -> float:
    return work_of(settings).parameters * 4.0


def save_s(settings: PhaseRecipe, machine: Machine) -> Interval:
    disk = REMOTE_DISK_BYTES_PER_S if machine.local is None else LOCAL_DISK_BYTES_PER_S
    seconds = SAVE_FIXED_S + checkpoint_bytes(settings) / disk
    return Interval(seconds * 0.6, seconds, seconds * 2)


def affordable_steps(training_s: float, step_s: float) -> int:
    """Whole steps in ``training_s`` seconds."""
    return max(0, math.floor(training_s / step_s)) if step_s > 0 else 0


def _compile_s(settings: PhaseRecipe, machine: Machine) -> Interval:
    if not settings.compile:
        return Interval(0.0, 0.0, 0.0)
    return COMPILE_S if machine.on_gpu else COMPILE_CPU_S
