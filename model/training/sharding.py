"""Weights that no rank holds whole: FSDP2 (Zhao et al. 2023), block by block.

Each rank has some rows of every parameter, and of its gradient and states, in float32. A block's
weights are gathered before it is applied, forward and backward, and dropped after it; what lies
outside the blocks is gathered once a micro-batch. On a GPU they travel, and are computed with, in
the number format of the training; gradients are summed in float32.

The model is made without memory, and each rank is given its own rows alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from model.families import registry
from model.families.protocol import LanguageModel
from model.machine.distributed import World
from model.machine.precision import DTYPES
from model.machine.tensors import Span, is_shared_out, span_among
from trmcloud.core.errors import UsageError
from trmcloud.core.spec.settings import PhaseRecipe

SHARDED = "fsdp"


class Peers(NamedTuple):
    """The ranks that share out the rows of each parameter."""

    rank: int
    size: int
    group: Any

    def span(self, rows: int, rank: int) -> Span:
        """Which of ``rows`` rows ``rank`` holds."""
        return span_among(rows, rank, self.size)


def is_sharded(settings: PhaseRecipe, world: World) -> bool:
    """Whether weights are shared out; one process alone holds everything anyway."""
    return settings.sharding == SHARDED and world.size > 1


def build(settings: PhaseRecipe, world: World) -> LanguageModel:
    """The model that ``settings`` describe on this rank's device, its weights not yet drawn.

    Raises:
        UsageError: as ``registry.build``; or a family whose weights are not shared out.
    """
    if not is_sharded(settings, world):
        return registry.build(settings, world.device)
    with torch.device("meta"):
        model = registry.build(settings, torch.device("meta"))
    parts = model.shardable()
    if not parts:
        raise UsageError(
            f"sharding={SHARDED} does not work with {settings.family}: {settings.why_not_sharded}",
            next_step="--set sharding=ddp",
        )
    _shard(model, parts, settings, world)
    model.to_empty(device=world.device)
    return model


def _shard(
    model: LanguageModel, parts: Iterable[nn.Module], settings: PhaseRecipe, world: World
) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import (
        MixedPrecisionPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    on_gpu = world.device.type == "cuda"
    policy = MixedPrecisionPolicy(
        param_dtype=DTYPES[settings.dtype] if on_gpu else torch.float32,
        reduce_dtype=torch.float32,
    )
    mesh = init_device_mesh(world.device.type, (world.size,))
    for part in parts:
        fully_shard(part, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    register_fsdp_forward_method(model, "evaluate")
    register_fsdp_forward_method(model, "predictions")


def peers_of(parameters: Iterable[Tensor]) -> Peers | None:
    """Those that share out these parameters; None where each is whole here."""
    for parameter in parameters:
        if is_shared_out(parameter):
            group = parameter.device_mesh.get_group()  # type: ignore[attr-defined]
            return Peers(dist.get_rank(group), dist.get_world_size(group), group)
    return None


def total_norm(gradients: Iterable[Tensor], peers: Peers) -> Tensor:
    """The norm of what all ranks hold together: scalar, float32. A collective call."""
    squared = nn.utils.get_total_norm(gradients).float().square()
    dist.all_reduce(squared, group=peers.group)
    return squared.sqrt()


def free_gathered_rows(model: nn.Module) -> None:
    """After passes that no backward pass followed: each rank holds its own rows alone again."""
    reshard = getattr(model, "reshard", None)
    if reshard is not None:
        reshard()
