"""The ranks of one training: who they are, and how they agree.

What is agreed on is small and lives on the CPU, so it goes through a gloo group of its own, beside
the gradients' NCCL one: no device has to be waited for to learn that a signal came. One process
alone needs no group at all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trmcloud.core.errors import UsageError

#: How long one rank waits for another: above any evaluation or save, below giving up for good.
COLLECTIVE_TIMEOUT = timedelta(minutes=15)


@dataclass(frozen=True)
class World:
    """``rank`` of ``size`` processes, computing on ``device``."""

    rank: int
    size: int
    device: torch.device
    control: Any = None
    """The gloo group for what is agreed on; None for one process."""
    local_rank: int = 0
    """This process's number on its own machine."""
    node: int = 0
    """The machine's number."""
    saving: Any = None
    """The gloo group that shards go through to the first rank; None on one machine."""

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def largest(self, values: Sequence[int]) -> list[int]:
        """The elementwise maximum over all ranks."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self.control)
        return [int(each) for each in tensor]

    def total(self, values: Tensor) -> Tensor:
        """The elementwise sum over all ranks, float64 on the CPU."""
        summed = values.detach().to("cpu", torch.float64)
        if self.size > 1:
            dist.all_reduce(summed, group=self.control)
        return summed

    def gather(self, values: Tensor) -> list[Tensor]:
        """Every rank's ``values``, a CPU tensor of one shape on all ranks, in order of rank."""
        if self.size == 1:
            return [values]
        gathered = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(gathered, values, group=self.control)
        return gathered

    def told(self, content: bytes) -> bytes:
        """Rank 0's ``content`` on every rank; what the others give is not looked at."""
        if self.size == 1:
            return content
        [size] = self.largest([len(content) if self.is_main else 0])
        if size == 0:
            return b""
        if self.is_main:
            sent = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        else:
            sent = torch.empty(size, dtype=torch.uint8)
        dist.broadcast(sent, 0, group=self.control)
        return sent.numpy().tobytes()

    def part(self) -> None:
        """Waits until all ranks are here, at the end: none leaves while another still talks."""
        self.largest([0])


def join_world(environment: Mapping[str, str] = os.environ) -> World:
    """Joins the ranks that torchrun started, or stands alone where it did not.

    Raises:
        UsageError: fewer GPUs than processes.
    """
    rank = int(environment.get("RANK", "0"))
    size = int(environment.get("WORLD_SIZE", "1"))
    local_rank = int(environment.get("LOCAL_RANK", "0"))
    local_size = int(environment.get("LOCAL_WORLD_SIZE", str(size)))
    cuda = torch.cuda.is_available()
    if cuda:
        if local_rank >= torch.cuda.device_count():
            raise UsageError(
                f"{local_size} processes for {torch.cuda.device_count()} GPUs",
                next_step="start one process per GPU",
            )
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("high")
    else:
        device = torch.device("cpu")
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local_size))
    control = saving = None
    if size > 1:
        if cuda:
            dist.init_process_group("nccl", timeout=COLLECTIVE_TIMEOUT, device_id=device)
            control = dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT)
        else:
            dist.init_process_group("gloo", timeout=COLLECTIVE_TIMEOUT)
            control = dist.group.WORLD
        if local_size < size:
            saving = dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT)
    node = int(environment.get("GROUP_RANK", "0"))
    return World(rank, size, device, control, local_rank, node, saving)


def parallel(model: nn.Module, world: World) -> nn.Module:
    """The model as all ranks train it together: gradients are averaged in the backward pass.

    Its buffers are constants: nothing is sent in a forward pass. A sharded model does that itself.
    """
    if world.size == 1 or hasattr(model, "reshard"):
        return model
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(
        model,
        device_ids=[world.device.index] if world.device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        broadcast_buffers=False,
    )


def skip_reduction(model: nn.Module) -> AbstractContextManager[Any]:
    """Backward passes in it leave the gradients on each rank as they are, to be added up.

    A sharded model reduces them all the same: kept whole, they would take what sharding saves.
    """
    no_sync = getattr(model, "no_sync", None)
    made: AbstractContextManager[Any] = nullcontext() if no_sync is None else no_sync()
    return made
