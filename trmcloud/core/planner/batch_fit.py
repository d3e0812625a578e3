"""Settings that fit: micro-batch, accumulation, sharding, checkpointing; and why not as asked.

The global batch is always kept. What a trainer can do comes first: settings as asked where they
fit, in fewer passes where a GPU has much room to spare; else the fastest with a smaller
micro-batch, or with checkpointing where the family takes it. Only where none of that fits are the
weights shared out over the GPUs, by families that can be.
"""

from __future__ import annotations

from typing import Any, Iterator, Mapping, NamedTuple

from trmcloud.core.planner.memory import USABLE_SHARE, Memory, batches, predict_memory
from trmcloud.core.planner.speed import Machine, step_seconds
from trmcloud.core.spec.settings import PhaseRecipe
from trmcloud.core.values import replace


class FittedSettings(NamedTuple):
    """Settings for a machine, their memory, and why they differ from those asked for."""

    settings: PhaseRecipe
    memory: Memory
    why: str


def fit_settings(
    asked: PhaseRecipe, machine: Machine, overrides: Mapping[str, Any]
) -> FittedSettings:
    """Settings that fit ``machine``, their memory, and why they differ from ``asked``.

    Where nothing fits, the smallest that was tried is returned. What the user set by hand
    (``overrides``) is not changed; what would fit instead is named.
    """
    room_gb = machine.memory_gb * USABLE_SHARE
    first = _memory(asked, machine)
    if first.total <= room_gb and asked.has_trainer:
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
        if memory.total > room_gb:
            continue
        if any(getattr(settings, key) != value for key, value in fixed.items()):
            alternative = alternative or settings
            continue
        seconds = step_seconds(settings, machine) * _PLAINNESS ** _extras(settings)
        if best is None or seconds < best[0]:
            best = seconds, settings, memory
        if is_trained(settings) and "activation_checkpointing" in asked.not_set:
            break
    need = f"{_way(asked)} needs {first.total:,.0f} of {machine.memory_gb:,.0f} GB"
    if best is not None:
        _, settings, memory = best
        why = _why(asked, settings, memory, need, machine, first.total > room_gb)
        return FittedSettings(settings, memory, why)
    if alternative is not None:
        return FittedSettings(asked, first, f"{need}; {_sets(alternative, fixed)} would fit")
    least = smallest[1].total
    return FittedSettings(*smallest, f"{need}, and {least:,.0f} GB with {_way(smallest[0])}")


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
        if memory.total > machine.memory_gb * _ROOMY_SHARE:
            continue
        if step_seconds(settings, machine) * _FEWER_PASSES > step_seconds(asked, machine):
            break
        why = _why(asked, settings, memory, "", machine, forced=False)
        return FittedSettings(settings, memory, why)
    return FittedSettings(asked, first, "")


_ROOMY_SHARE = 0.6
"""Of a GPU's memory: a micro-batch that was not asked for must not be the one that does not fit."""
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


def _extras(settings: PhaseRecipe) -> int:
    return (settings.sharding == "fsdp") + settings.activation_checkpointing  # of either kind


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
        return "the trainer of this family is not there yet"
    why = settings.why_not_sharded if settings.sharding == "fsdp" else ""
    return f"sharding=fsdp is not for {settings.family}: {why}" if why else ""


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


def _sets(settings: PhaseRecipe, fixed: Mapping[str, Any]) -> str:
    return " ".join(f"--set {key}={getattr(settings, key)}".lower() for key in fixed)
