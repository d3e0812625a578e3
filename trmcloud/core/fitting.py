"""Settings that fit: micro-batch, accumulation, sharding, checkpointing; and why not as asked.

The global batch is always kept. TRM's trainer runs data-parallel without checkpointing, so for it
only the micro-batch may shrink; other families may be sharded and checkpointed as well, whichever
is fastest of what fits.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Iterator, Mapping

from trmcloud.core.memory import USABLE_SHARE, Memory, batches, predict_memory
from trmcloud.core.recipe import PhaseRecipe
from trmcloud.core.speed import Machine, step_seconds


def fit_settings(
    asked: PhaseRecipe, machine: Machine, overrides: Mapping[str, Any], *, has_trainer: bool
) -> tuple[PhaseRecipe, Memory, str]:
    """Settings that fit ``machine``, their memory, and why they differ from ``asked``.

    Where nothing fits, the smallest that was tried is returned. What the user set by hand
    (``overrides``) is not changed; what would fit instead is named.
    """
    room_gb = machine.memory_gb * USABLE_SHARE
    first = _memory(asked, machine)
    if first.total <= room_gb and has_trainer:
        return asked, first, ""
    ways = _trained(asked) if has_trainer else _planned(asked, machine.processes)
    fixed = {key: value for key, value in overrides.items() if key in _CHOSEN}
    best: tuple[float, PhaseRecipe, Memory] | None = None
    smallest: tuple[PhaseRecipe, Memory] = (asked, first)
    alternative: PhaseRecipe | None = None
    for settings in ways:
        memory = _memory(settings, machine)
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
        if has_trainer:
            break
    need = f"{_way(asked)} needs {first.total:,.0f} of {machine.memory_gb:,.0f} GB"
    if best is not None:
        return best[1], best[2], _why(asked, best[1], best[2], need, machine, first.total > room_gb)
    if alternative is not None:
        return asked, first, f"{need}; {_sets(alternative, fixed)} would fit"
    least = smallest[1].total
    return smallest[0], smallest[1], f"{need}, and {least:,.0f} GB with {_way(smallest[0])}"


_CHOSEN = ("batch", "accumulation", "sharding", "activation_checkpointing")


_PLAINNESS = 1.03
"""Sharding or checkpointing must win by this much before it is worth its complication."""


def _extras(settings: PhaseRecipe) -> int:
    return (settings.sharding == "fsdp") + settings.activation_checkpointing


def _trained(asked: PhaseRecipe) -> Iterator[PhaseRecipe]:
    for batch, accumulation in batches(asked):
        yield dataclasses.replace(asked, batch=batch, accumulation=accumulation)


def _planned(asked: PhaseRecipe, processes: int) -> Iterator[PhaseRecipe]:
    whole = asked.batch * asked.accumulation
    yield asked
    for sharding in ("ddp", "fsdp") if processes > 1 else ("ddp",):
        for checkpointing in (False, True):
            for batch, accumulation in batches(asked, largest=whole):
                yield dataclasses.replace(
                    asked,
                    batch=batch,
                    accumulation=accumulation,
                    sharding=sharding,
                    activation_checkpointing=checkpointing,
                )


def _memory(settings: PhaseRecipe, machine: Machine) -> Memory:
    return predict_memory(settings, machine.processes, on_gpu=machine.on_gpu)


def _way(settings: PhaseRecipe) -> str:
    text = f"batch {settings.batch}"
    if settings.sharding == "fsdp":
        text += " sharded (FSDP2)"
    if settings.activation_checkpointing:
        text += " with activation checkpointing"
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
