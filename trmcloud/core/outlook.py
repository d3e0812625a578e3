"""One recipe on one machine, before any price: settings that fit, memory, time, and why.

Everything here depends on the hardware alone, so a plan over thousands of offers computes it once
per (SKU, count).
"""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, NamedTuple

from trmcloud.core.flops import work_of
from trmcloud.core.hardware import hardware_name
from trmcloud.core.memory import USABLE_SHARE, Memory, predict_memory, smaller_batches
from trmcloud.core.plan import Interval, PhasePlan
from trmcloud.core.recipe import PhaseRecipe, Recipe
from trmcloud.core.spec import RunSpec
from trmcloud.core.speed import Machine, PhaseTime, predict_phase, startup_s, weights_bytes

HOUR_S = 3600.0

REMOTE_LANDING_MARGIN_S = 60.0
LOCAL_LANDING_MARGIN_S = 2.0
MIN_LOCAL_LANDING_S = 6.0
PULL_BYTES_PER_S = 50e6
"""From a pod to wherever the checkpoint survives, when nothing was measured."""
MANY_EPOCHS = 4
"""Beyond about four passes, repeated text is worth less and less (Muennighoff et al. 2023)."""


class Outlook(NamedTuple):
    """What the recipe would do on ``machine``: seconds and GB, no dollars."""

    machine: Machine
    hardware: str
    phases: tuple[PhasePlan, ...]
    times: tuple[PhaseTime, ...]
    startup: Interval
    seconds: Interval
    """Start-up and every phase, the last landing included."""
    landing_s: float
    useful_s: float
    """The least that a launch must have: start-up, compile, one step, landing (P50)."""
    overhead_p90_s: float
    """Start-up, environment and compile alone, P90."""
    memory: Memory
    fits: bool
    reasons: tuple[str, ...]

    @property
    def tokens(self) -> int:
        return sum(phase.tokens for phase in self.phases)


def outlook_on(
    recipe: Recipe, spec: RunSpec, machine: Machine, *, tokens_available: int | None = None
) -> Outlook:
    """The outlook of ``spec`` on ``machine``.

    Raises:
        UsageError: settings that cannot go together.
    """
    hardware = hardware_name(machine.name, machine.processes) if machine.local is None else "local"
    overrides = dict(spec.overrides)
    phases: list[PhasePlan] = []
    times: list[PhaseTime] = []
    reasons: list[str] = []
    worst: Memory | None = None
    fits = True
    for name in spec.phases:
        asked = recipe.resolve(name, hardware=hardware, gpus=machine.processes, overrides=overrides)
        asked = _with_length(asked, spec, machine.processes)
        settings, memory, why = _fit_batch(asked, machine, overrides)
        fits = fits and memory.total <= machine.memory_gb * USABLE_SHARE
        if worst is None or memory.total > worst.total:
            worst = memory
        if why and why not in reasons:
            reasons.append(f"{name}: {why}")
        time = predict_phase(settings, machine)
        tokens = settings.steps * settings.tokens_per_step(machine.processes)
        times.append(time)
        phases.append(
            PhasePlan(
                name=name,
                settings=settings,
                tokens=tokens,
                flops=tokens * work_of(settings).train_flops,
                step_s=time.step,
                seconds=time.seconds,
                parts_s=time.parts_s(),
            )
        )
        if tokens_available:
            reasons.append(_epochs(name, tokens, tokens_available))
    assert worst is not None, "a spec has at least one phase"
    start = startup_s(machine)
    seconds = start
    for time in times:
        seconds = seconds + time.seconds
    if spec.hours is not None:
        limit = spec.hours * HOUR_S + max(time.landing.p50 for time in times)
        seconds = Interval(
            min(seconds.p10, start.p10 + limit),
            min(seconds.p50, start.p50 + limit),
            min(seconds.p90, start.p90 + limit),
        )
    first = times[0]
    landing_s = _landing_s(times, phases[-1].settings, machine)
    return Outlook(
        machine=machine,
        hardware=hardware,
        phases=tuple(phases),
        times=tuple(times),
        startup=start,
        seconds=seconds,
        landing_s=landing_s,
        useful_s=start.p50 + first.start.p50 + first.compile.p50 + first.step.p50 + landing_s,
        overhead_p90_s=start.p90 + first.start.p90 + first.compile.p90,
        memory=worst,
        fits=fits,
        reasons=tuple(reasons),
    )


def lands_at(outlook: Outlook, soft_stop_s: float) -> tuple[str, int, int] | None:
    """(phase, step, of steps) where the soft stop ends the run at P50; None if it does not."""
    left = soft_stop_s - outlook.startup.p50
    for phase, time in zip(outlook.phases, outlook.times, strict=True):
        if left < time.seconds.p50 - time.landing.p50:
            pace = (time.training.p50 + time.evaluation.p50 + time.saving.p50) / (
                phase.settings.steps
            )
            steps = int(max(0.0, left - time.start.p50 - time.compile.p50) / pace)
            return phase.name, min(steps, phase.settings.steps), phase.settings.steps
        left -= time.seconds.p50
    return None


def _with_length(settings: PhaseRecipe, spec: RunSpec, processes: int) -> PhaseRecipe:
    if spec.steps is not None:
        return dataclasses.replace(settings, steps=spec.steps)
    if spec.tokens is not None:
        steps = -(-spec.tokens // settings.tokens_per_step(processes))
        return dataclasses.replace(settings, steps=max(1, steps))
    return settings


def _fit_batch(
    asked: PhaseRecipe, machine: Machine, overrides: Mapping[str, Any]
) -> tuple[PhaseRecipe, Memory, str]:
    """The largest micro-batch that fits and keeps the global batch, its memory, and the reason."""
    room_gb = machine.memory_gb * USABLE_SHARE
    first = predict_memory(asked, machine.processes, on_gpu=machine.on_gpu)
    if first.total <= room_gb:
        return asked, first, ""
    need = f"batch {asked.batch} needs {first.total:,.0f} of {machine.memory_gb:,.0f} GB"
    if "batch" in overrides:
        for batch, accumulation in smaller_batches(asked):
            tried = dataclasses.replace(asked, batch=batch, accumulation=accumulation)
            if predict_memory(tried, machine.processes, on_gpu=machine.on_gpu).total <= room_gb:
                return asked, first, f"{need}; --set batch={batch} would fit"
        return asked, first, need
    memory = first
    for batch, accumulation in smaller_batches(asked):
        settings = dataclasses.replace(asked, batch=batch, accumulation=accumulation)
        memory = predict_memory(settings, machine.processes, on_gpu=machine.on_gpu)
        if memory.total <= room_gb:
            return (
                settings,
                memory,
                f"{need}: batch {batch} × accumulation {accumulation} instead of"
                f" {asked.batch} × {asked.accumulation} keeps the global batch of"
                f" {asked.global_batch(machine.processes)}",
            )
    return asked, memory, f"{need}, and {memory.total:,.0f} GB with a batch of 1"


def _landing_s(times: list[PhaseTime], settings: PhaseRecipe, machine: Machine) -> float:
    """Seconds kept for the last evaluation and save, and for bringing it off the pod."""
    slowest = max(time.landing.p50 for time in times)
    if machine.local is not None:
        return max(MIN_LOCAL_LANDING_S, 1.5 * slowest + LOCAL_LANDING_MARGIN_S)
    return 2 * slowest + REMOTE_LANDING_MARGIN_S + weights_bytes(settings) / PULL_BYTES_PER_S


def _epochs(name: str, tokens: int, available: int) -> str:
    epochs = tokens / available
    text = f"{name}: {epochs:,.2f} epochs over the data's {available:,} tokens"
    if epochs > MANY_EPOCHS:
        text += f" — warning: beyond {MANY_EPOCHS} epochs, repeated text teaches less and less"
    return text
