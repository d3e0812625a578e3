"""The check that a server's needs fit the device, before anything is read."""

from __future__ import annotations

from typing import NamedTuple

from trmcloud.core.errors import UsageError
from trmcloud.core.spec.settings import PhaseRecipe

_FLOAT = 4
_LOGITS = 3
"""Rows of logits alive at a time: as they come, sorted, and as probabilities."""
_WIDTHS = 8
"""Values of a width that a token's way through a block keeps at a time, its MLP apart."""
_SPARE = 0.1
"""Of what is free, for the allocator's fragments."""


class MemoryNeed(NamedTuple):
    """Bytes: of the weights, of each request, and of the one whose beginning is read."""

    weights: int
    request: int
    beginning: int

    def of(self, batch: int) -> int:
        return self.weights + batch * self.request + self.beginning


def need_of(settings: PhaseRecipe, *, on_gpu: bool) -> MemoryNeed:
    """Keys and values of a whole sequence at every place that attends, in float32.

    A processor holds the weights twice while they are read: the file's tensors and the model's.
    """
    work = settings.work()
    kept = work.kv_share * settings.width * 2 * work.block_applications
    logits = settings.vocab_size * _LOGITS
    hidden = settings.width * (_WIDTHS + 2 * work.mlp_values)
    return MemoryNeed(
        round(work.parameters * _FLOAT * (1 if on_gpu else 2)),
        round((kept * settings.sequence + logits) * _FLOAT),
        round((kept + hidden) * settings.sequence * _FLOAT),
    )


def free_bytes(*, on_gpu: bool) -> int | None:
    """None where this machine does not say."""
    import torch

    from model.machine.tensors import free_memory_bytes

    return int(torch.cuda.mem_get_info()[0]) if on_gpu else free_memory_bytes()


def check_room(settings: PhaseRecipe, batch: int, free: int | None, *, on_gpu: bool) -> None:
    """
    Raises:
        UsageError: there is no room for that many requests at a time.
    """
    try:
        need = need_of(settings, on_gpu=on_gpu)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return  # settings that describe no model: told where it is built
    if free is None or need.of(batch) <= free * (1 - _SPARE):
        return
    fitting = int((free * (1 - _SPARE) - need.weights - need.beginning) // need.request)
    where = "the GPU" if on_gpu else "this machine"
    raise UsageError(
        f"--batch {batch} needs about {_gb(need.of(batch))}, but {where} has {_gb(free)} free: "
        f"{_gb(need.weights)} for the weights, {_gb(need.request)} for each request",
        next_step=f"--batch {fitting}" if fitting > 0 else "a machine with more memory",
    )


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e7 else f"{size / 1e6:.2f} MB"
