"""One optimizer step: micro-batches forward and backward, the gradients checked and applied."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor, nn

from model.data.batch import Batch
from model.distributed import World, unreduced
from model.families.protocol import Objective
from model.optim import Optimizer
from model.pace import Pace
from model.precision import LossScale, autocast
from model.soundness import Soundness
from trmcloud.core.spec.recipe import PhaseRecipe


class Told(NamedTuple):
    """What a step came to: means over the tokens of its micro-batches, on all ranks."""

    loss: float
    nats: list[float]
    parts: dict[str, float]


class Step(NamedTuple):
    """What one step was: the gradients' norm before clipping, and why it was left out."""

    norm: float
    loss: float
    sums: Sums
    left_out: str = ""
    """Empty: nothing was wrong with it."""
    overflows: bool = False
    """float16 does not hold its gradients: its update was not made, and the loss is scaled less
    from here on."""
    paces_s: Sequence[float] = ()
    """Seconds of each rank's forward passes, of the step before; empty for one rank alone."""


class Sums:
    """A step's objectives, added up on the device; to read them would make it wait."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._passes = 0
        self._sum: Tensor | None = None
        self._weight: Tensor | None = None

    def add(self, made: Objective, weight: Tensor) -> None:
        """
        Args:
            weight: scalar, the micro-batch's share of tokens that a loss counts.
        """
        self._names, self._passes = list(made.parts), len(made.nats)
        scalars = torch.stack([made.loss, *made.parts.values()])
        row = torch.cat([made.nats, scalars]).detach() * weight
        self._sum = row if self._sum is None else self._sum + row
        self._weight = weight if self._weight is None else self._weight + weight

    def weight(self, world: World) -> float:
        """Of all ranks' micro-batches together; a collective call."""
        assert self._weight is not None
        return float(world.total(self._weight))

    def loss_and(
        self, norm: Tensor, own_s: float, world: World
    ) -> tuple[float, float, Sequence[float]]:
        """The step's loss, the gradients' norm and every rank's ``own_s``, alike on all ranks.
        A collective call."""
        assert self._sum is not None
        assert self._weight is not None
        told = torch.stack([self._sum[self._passes], self._weight, norm.to(self._sum.dtype)])
        own = torch.zeros(world.size, dtype=torch.float64)
        own[world.rank] = own_s
        row = torch.cat([told.to("cpu", torch.float64), own])
        loss, weight, norms, *paces = world.total(row).tolist()
        return loss / weight, norms / world.size, paces if world.size > 1 else ()

    def told(self, world: World) -> Told:
        """A collective call."""
        assert self._sum is not None
        row = (world.total(self._sum) / self.weight(world)).tolist()
        nats, (loss, *parts) = row[: self._passes], row[self._passes :]
        return Told(loss, nats, dict(zip(self._names, parts, strict=True)))


class Stepper:
    """Takes steps; all ranks together."""

    def __init__(
        self,
        settings: PhaseRecipe,
        world: World,
        parallel_model: nn.Module,
        optimizer: Optimizer,
        loss_scale: LossScale,
        soundness: Soundness,
        monotonic: Callable[[], float],
    ) -> None:
        self._settings, self._world = settings, world
        self._model, self._optimizer, self._loss_scale = parallel_model, optimizer, loss_scale
        self._autocast = autocast(settings.dtype, world.device)
        self._soundness = soundness
        self._whole = torch.ones((), device=world.device)
        self._pace, self._own_s = Pace(world.device, monotonic), 0.0

    def step(self, number: int, updates: int, rate: float, batch: Callable[[], Batch]) -> Step:
        """The ``number``-th step, at ``rate`` times the recipe's learning rates.

        Args:
            updates: how many steps these weights have taken.
            batch: gives the next micro-batch.

        Raises:
            FloatingPointError, Diverged: see ``Soundness.judge``.
        """
        settings, scale = self._settings, self._loss_scale.scale
        sums = Sums()
        for micro in range(settings.accumulation):
            taken = batch()
            weight = self._weight(taken.targets)
            with self._unsynced(micro), self._autocast():
                with self._pace.timed():
                    made: Objective = self._model(*taken)
                (made.loss * (weight * (scale / settings.accumulation))).backward()
            sums.add(made, weight)
        # The gradients are reduced by now, so every rank clips by the same norm.
        parameters = list(self._optimizer.parameters())
        if settings.row_is_text:
            # Each micro-batch by its tokens: the same step as if it were one batch.
            scale *= sums.weight(self._world) / (settings.accumulation * self._world.size)
        if scale != 1.0:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad /= scale
        clipped = self._optimizer.clip(settings.grad_clip)
        loss, norm, paces_s = sums.loss_and(clipped, self._own_s, self._world)
        self._own_s = self._pace.taken_s()  # by now the device is past them
        finite = math.isfinite(norm)
        # Too large a scale is mended by a smaller one; nothing is wrong with the step.
        scaled = self._loss_scale.accept(finite)
        left_out = ""
        if scaled or not self._loss_scale.active:
            left_out = self._soundness.judge(
                number, loss, norm, finite=finite and math.isfinite(loss)
            )
        if scaled and not left_out:
            self._optimizer.step(updates, rate)
        self._optimizer.zero_grad()
        overflows = self._loss_scale.active and not scaled
        return Step(norm, loss, sums, left_out, overflows, paces_s)

    def _weight(self, targets: Tensor) -> Tensor:
        if self._settings.row_is_text:
            return (targets >= 0).float().mean()
        return self._whole

    def _unsynced(self, micro: int) -> AbstractContextManager[Any]:
        """Gradients are reduced once a step, in its last micro-batch."""
        if micro == self._settings.accumulation - 1:
            return nullcontext()
        return unreduced(self._model)
