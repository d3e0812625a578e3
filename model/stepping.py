"""One optimizer step: micro-batches forward and backward, the gradients checked and applied."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor, nn

from model.distributed import World
from model.families.protocol import Objective
from model.optim import Optimizer
from model.precision import LossScale, autocast
from trmcloud.core.recipe import PhaseRecipe


class Told(NamedTuple):
    """What a step came to: means over its micro-batches and over all ranks."""

    loss: float
    nats: list[float]
    parts: dict[str, float]


class Sums:
    """A step's objectives, added up on the device; to read them would make it wait."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._passes = 0
        self._sum: Tensor | None = None
        self._count = 0

    def add(self, made: Objective) -> None:
        self._names, self._passes = list(made.parts), len(made.nats)
        row = torch.cat([made.nats, torch.stack([made.loss, *made.parts.values()])]).detach()
        self._sum = row if self._sum is None else self._sum + row
        self._count += 1

    def told(self, world: World) -> Told:
        """A collective call."""
        assert self._sum is not None
        row = (world.total(self._sum / self._count) / world.size).tolist()
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
    ) -> None:
        self._settings, self._world = settings, world
        self._model, self._optimizer, self._loss_scale = parallel_model, optimizer, loss_scale
        self._autocast = autocast(settings.dtype, world.device)

    def step(
        self, step: int, rate: float, batch: Callable[[], tuple[Tensor, Tensor]]
    ) -> tuple[float, Sums]:
        """One step after ``step`` finished ones, at ``rate`` times the recipe's learning rates.

        Args:
            batch: gives the next micro-batch's inputs and targets.

        Returns:
            The gradients' global norm before clipping, and what the micro-batches came to.

        Raises:
            FloatingPointError: the gradients are not finite.
        """
        settings, scale = self._settings, self._loss_scale.scale
        sums = Sums()
        for micro in range(settings.accumulation):
            ids, targets = batch()
            with self._unsynced(micro), self._autocast():
                made: Objective = self._model(ids, targets)
                (made.loss * (scale / settings.accumulation)).backward()
            sums.add(made)
        # DDP has reduced the gradients by now, so every rank clips by the same norm.
        parameters = list(self._optimizer.parameters())
        if scale != 1.0:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad /= scale
        norm = float(nn.utils.clip_grad_norm_(parameters, settings.grad_clip))
        if self._loss_scale.accept(math.isfinite(norm)):
            self._optimizer.step(step, rate)
        self._optimizer.zero_grad()
        return norm, sums

    def _unsynced(self, micro: int) -> AbstractContextManager[Any]:
        """Gradients are reduced once a step, in its last micro-batch."""
        if self._world.size == 1 or micro == self._settings.accumulation - 1:
            return nullcontext()
        no_sync: AbstractContextManager[Any] = self._model.no_sync()  # type: ignore[operator]
        return no_sync
