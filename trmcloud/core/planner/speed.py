"""Step time of one process by a roofline, and the settings that fit its memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from trmcloud.core.catalog.hardware import GPUS, Gpu, LocalMachine
from trmcloud.core.planner.memory import (
    USABLE_SHARE,
    Memory,
    batches,
    checkpoint_bytes,
    predict_memory,
)
from trmcloud.core.planner.roofline import (
    FITTED,
    NODE_LINK_GB_S,
    P90_SIGMAS,
    MeasuredSpeed,
    StepTime,
    fitted_sigma,
    step_of,
    time_step,
)
from trmcloud.core.spec.plan import Interval
from trmcloud.core.spec.settings import PhaseRecipe
from trmcloud.core.values import replace

# The duration of a phase on a machine: named parts in seconds, each with its assumption.
#
# On a known GPU a step's time is the roofline's. On CPUs, and on GPUs not in the table, it is
# FLOPs ÷ (processes × peak × MFU). The rest of a paid hour is start-up, compilation, evaluation
# and saving, which decide short runs: at $24/h a seven-minute compile is $2.80.

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
    published: float = 0.0
    """Time of the recipe's training as published ÷ as predicted; 0: there is no report."""

    @property
    def on_gpu(self) -> bool:
        return self.gpu is not None or bool(self.local and self.local.gpus)


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
    """Standing still for saves, of new bests too: a copy in memory, and what the one before is not
    yet written."""
    landing: Interval
    """The last evaluation and save."""
    detail: StepTime | None
    """The parts of a step's P50; None off the roofline."""
    data: Interval = Interval(0.0, 0.0, 0.0)
    """Standing still for data that is still being made."""
    scoring: Interval = Interval(0.0, 0.0, 0.0)
    """Scoring the last checkpoint on tasks."""

    @property
    def ending(self) -> Interval:
        """All that follows the last step."""
        return self.landing + self.scoring

    @property
    def seconds(self) -> Interval:
        total = self.training + self.compile + self.start + self.data
        return total + self.evaluation + self.saving + self.ending

    @property
    def pace_s(self) -> float:
        """P50 seconds per step, with its share of evaluations and saves."""
        steps = self.training.p50 / self.step.p50
        return (self.training.p50 + self.evaluation.p50 + self.saving.p50) / steps

    def parts_s(self) -> dict[str, float]:
        """P50 seconds by name."""
        data = {"data": self.data.p50} if self.data.p50 else {}
        scoring = {"scoring": self.scoring.p50} if self.scoring.p50 else {}
        return {
            **data,
            **scoring,
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
    probed = machine.measured is not None
    detail, step_p50 = _step(settings, machine)
    doubt = fitted_sigma(machine.gpu.sku) if machine.gpu is not None else CPU_SIGMA
    if probed:
        other = ANOTHER_MACHINE_SIGMA if machine.local is None else 0.0
        doubt = math.hypot(PROBED_SIGMA, other)
    if machine.nodes > 1:
        doubt = math.hypot(doubt, SEVERAL_NODES_SIGMA)
    wide = math.exp(P90_SIGMAS * doubt)  # of a log-normal
    spread = Interval(1 / wide, 1.0, wide)
    if machine.published and not probed:  # the range includes what the model says
        spread = Interval(
            min(1 / wide, 1 / machine.published), 1.0, max(wide, 1 / machine.published)
        )
    elif not probed and machine.gpu is not None:
        slow = math.hypot(P90_SIGMAS * doubt, math.log(may_be_slower(settings)[0]))
        spread = Interval(1 / wide, 1.0, math.exp(slow))
    step = spread.scaled(step_p50 * factor)
    per_token = step_p50 * factor / settings.tokens_per_step(machine.processes)
    forward = per_token * work.forward_flops / work.train_flops
    one_evaluation = spread.scaled(settings.eval_tokens * forward)
    one_save = save_s(settings, machine)
    every = steps_between_saves(settings, step.p50)
    # Each evaluation is counted as a new best, which is saved, too.
    evaluations, saves = ((settings.steps - 1) // each for each in (settings.eval_every, every))
    bests = evaluations - (settings.steps - 1) // math.lcm(settings.eval_every, every)
    # Where the one before is still being written, a save waits for it. A best does not.
    waits = one_save.each(lambda seconds: max(0.0, seconds - every * step.p50))
    if settings.eval_every < every:
        until_next_s = settings.eval_every * step.p50
        waits = one_save.each(lambda seconds: seconds if seconds > until_next_s else 0.0)
    compile_s = COMPILE_S if machine.on_gpu else COMPILE_CPU_S
    if not settings.compile:
        compile_s = Interval(0.0, 0.0, 0.0)
    return PhaseTime(
        step=step,
        training=step.scaled(settings.steps),
        compile=compile_s,
        start=PROCESS_START_S if machine.local is None else LOCAL_PROCESS_START_S,
        evaluation=one_evaluation.scaled(evaluations),
        saving=stall_s(settings, machine).scaled(saves + bests) + waits.scaled(saves),
        landing=one_evaluation + one_save,
        detail=detail,
    )


SMALL_PARAMETERS = 20e6


def may_be_slower(settings: PhaseRecipe) -> tuple[float, str]:
    """By which factor a step may take longer than predicted, and why; (1, "") where there is only
    the usual doubt."""
    if not settings.may_be_slower[1] and settings.work().parameters < SMALL_PARAMETERS:
        return 1.7, "published trainings of 11M and 17M parameters took up to 1.7 × the prediction"
    return settings.may_be_slower


EAGER = 2.0
"""Seconds of a token of a task ÷ those of a token of a training's forward pass: prompts are short,
of many lengths, padded, and nothing is compiled for them. Assumed: no GPU was timed."""


def scoring_s(tokens: float, time: PhaseTime, settings: PhaseRecipe, machine: Machine) -> Interval:
    """The time to score a model on tasks of so many tokens."""
    work = settings.work()
    share = tokens / settings.tokens_per_step(machine.processes)
    return time.step.scaled(EAGER * share * work.forward_flops / work.train_flops)


def step_seconds(settings: PhaseRecipe, machine: Machine) -> float:
    """P50 seconds of one step before any probe."""
    return _step(settings, machine)[1]


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


def _step(settings: PhaseRecipe, machine: Machine) -> tuple[StepTime | None, float]:
    if machine.gpu is not None:
        step = step_of(settings, machine.gpu, machine.nodes)
        detail = time_step(step, machine.gpu, machine.processes, FITTED, nodes=machine.nodes)
        return detail, detail.total
    assert machine.local is not None
    rate = machine.local.peak_flops(machine.processes) * machine.local.mfu * machine.processes
    flops = settings.tokens_per_step(machine.processes) * settings.work().train_flops
    return None, flops / rate if rate > 0 else math.inf


# Settings that fit: micro-batch, accumulation, sharding, checkpointing; and why not as asked.
#
# The global batch is always kept. What a trainer can do comes first: settings as asked where they
# fit, in fewer passes where a GPU has much room to spare; else the fastest with a smaller
# micro-batch, or with checkpointing where the family takes it. Only where none of that fits are
# the weights shared out over the GPUs, by families that can be.


class FittedSettings(NamedTuple):
    """Settings for a machine, their memory, and why they differ from those asked for."""

    settings: PhaseRecipe
    memory: Memory
    why: str

    def fits(self, machine: Machine) -> bool:
        """Whether ``machine`` is tried with them: the low end of what they need is there."""
        return self.memory.least <= room_gb(machine)

    def may_not_fit(self, machine: Machine) -> bool:
        """Whether they may need more than there is: a trainer that runs out is started again with
        half the micro-batch, as long as it is above one sequence."""
        return self.fits(machine) and self.memory.most > room_gb(machine)


def room_gb(machine: Machine) -> float:
    """GB of one GPU, or of one process's share, to plan with."""
    return machine.memory_gb * USABLE_SHARE


def fit_settings(
    asked: PhaseRecipe, machine: Machine, overrides: Mapping[str, Any]
) -> FittedSettings:
    """Settings that fit ``machine``, their memory, and why they differ from ``asked``.

    Where nothing fits, the smallest that was tried is returned. What the user set by hand
    (``overrides``) is not changed; what would fit instead is named.
    """
    first = _memory(asked, machine)
    if first.total <= room_gb(machine) and asked.has_trainer:
        return _in_fewer_passes(asked, first, machine, overrides)
    fixed = {key: value for key, value in overrides.items() if key in _CHOSEN}
    best: tuple[float, PhaseRecipe, Memory] | None = None
    smallest: tuple[PhaseRecipe, Memory] = (asked, first)
    alternative: PhaseRecipe | None = None
    for settings in _ways(asked, machine.processes):
        memory = first if settings is asked else _memory(settings, machine)
        if best is not None and _is_simpler(best[1], settings):
            break
        if memory.total < smallest[1].total:
            smallest = settings, memory
        if memory.total > room_gb(machine):
            continue
        if any(getattr(settings, key) != value for key, value in fixed.items()):
            alternative = alternative or settings
            continue
        extras = (settings.sharding == "fsdp") + settings.activation_checkpointing  # either kind
        seconds = step_seconds(settings, machine) * _PLAINNESS**extras
        if best is None or seconds < best[0]:
            best = seconds, settings, memory
        if is_trained(settings) and "activation_checkpointing" in asked.not_set:
            break
    need = f"{_way(asked)} needs {first.total:,.0f} of {machine.memory_gb:,.0f} GB"
    if best is not None:
        _, settings, memory = best
        why = _why(asked, settings, memory, need, machine, first.total > room_gb(machine))
        return FittedSettings(settings, memory, why)
    if alternative is not None:
        keys = dict.fromkeys((*fixed, *_TOGETHER) if set(fixed) & set(_TOGETHER) else fixed)
        instead = " ".join(f"--set {key}={getattr(alternative, key)}".lower() for key in keys)
        return FittedSettings(asked, first, f"{need}; {instead} would fit")
    least = smallest[1].total
    return FittedSettings(*smallest, f"{need}, and {least:,.0f} GB with {_way(smallest[0])}")


_TOGETHER = ("batch", "accumulation")
"""Where one of them is suggested, so is the other: the global batch is theirs together."""


def _in_fewer_passes(
    asked: PhaseRecipe, first: Memory, machine: Machine, overrides: Mapping[str, Any]
) -> FittedSettings:
    """``asked``, or the largest micro-batch instead that leaves room to spare and is faster."""
    if asked.accumulation == 1 or any(key in overrides for key in _CHOSEN):
        return FittedSettings(asked, first, "")
    for batch, accumulation in batches(asked, largest=asked.batch * asked.accumulation):
        if batch <= asked.batch:
            break
        settings = replace(asked, batch=batch, accumulation=accumulation)
        memory = _memory(settings, machine)
        if memory.most > machine.memory_gb * _ROOMY_SHARE:
            continue
        if step_seconds(settings, machine) * _FEWER_PASSES > step_seconds(asked, machine):
            break
        why = _why(asked, settings, memory, "", machine, forced=False)
        return FittedSettings(settings, memory, why)
    return FittedSettings(asked, first, "")


_ROOMY_SHARE = 0.8
"""Of a GPU's memory, for the most that may be needed: a micro-batch that was not asked for must not
be the one that does not fit."""
_FEWER_PASSES = 1.01
"""By how much fewer passes must win."""

_CHOSEN = (
    *("batch", "accumulation", "sharding"),
    *("activation_checkpointing", "selective_checkpointing"),
)
_CHECKPOINTINGS = ((False, False), (True, True), (True, False))
"""None, selective, and full."""


_PLAINNESS = 1.03
"""Sharding or checkpointing must win by this much before it is worth its complication."""


def _is_simpler(settings: PhaseRecipe, other: PhaseRecipe) -> bool:
    """Whether ``other`` is not looked at where ``settings`` fit: it can be trained, and more than
    one GPU is not needed to hold it."""
    if not is_trained(settings):
        return False
    return not is_trained(other) or (settings.sharding, other.sharding) == ("ddp", "fsdp")


def is_trained(settings: PhaseRecipe) -> bool:
    """Whether there is a trainer that runs with these."""
    return not why_untrained(settings)


def why_untrained(settings: PhaseRecipe) -> str:
    """Why no trainer runs with these; empty where one does."""
    if not settings.has_trainer:
        return "the trainer of this family does not exist yet"
    why = settings.why_not_sharded if settings.sharding == "fsdp" else ""
    return f"sharding=fsdp does not work with {settings.family}: {why}" if why else ""


def _ways(asked: PhaseRecipe, processes: int) -> Iterator[PhaseRecipe]:
    """Yield the settings that may be tried, those that a trainer can run first."""
    largest = asked.batch
    was_asked = tuple(getattr(asked, key) for key in _CHOSEN)
    yield asked
    checkpointings = [
        (some, selective)
        for some, selective in _CHECKPOINTINGS
        if ("activation_checkpointing" not in asked.not_set or not some)
        and ("selective_checkpointing" not in asked.not_set or not selective)
    ]
    shardings = ("ddp", "fsdp") if processes > 1 and not asked.why_not_sharded else ("ddp",)
    for sharding in shardings:
        if sharding == "fsdp" or not asked.has_trainer:
            largest = asked.batch * asked.accumulation
        for checkpointing, selective in checkpointings:
            for batch, accumulation in batches(asked, largest=largest):
                if (batch, accumulation, sharding, checkpointing, selective) != was_asked:
                    yield replace(
                        asked,
                        batch=batch,
                        accumulation=accumulation,
                        sharding=sharding,
                        activation_checkpointing=checkpointing,
                        selective_checkpointing=selective,
                    )


def _memory(settings: PhaseRecipe, machine: Machine) -> Memory:
    return predict_memory(settings, machine.processes, on_gpu=machine.on_gpu)


def _way(settings: PhaseRecipe) -> str:
    text = f"batch {settings.batch}"
    if settings.sharding == "fsdp":
        text += " sharded (FSDP2)"
    if settings.activation_checkpointing:
        selective = "selective " if settings.selective_checkpointing else ""
        text += f" with {selective}activation checkpointing"
    return text


def _why(
    asked: PhaseRecipe,
    chosen: PhaseRecipe,
    memory: Memory,
    need: str,
    machine: Machine,
    forced: bool,
) -> str:
    if chosen == asked:
        return ""
    text = (
        f"{_way(chosen)} × accumulation {chosen.accumulation} instead of"
        f" {asked.batch} × {asked.accumulation} keeps the global batch of"
        f" {asked.global_batch(machine.processes)}"
    )
    if forced:
        return f"{need}: {text}"
    return f"{text}, and is faster ({memory.total:,.0f} GB)"
