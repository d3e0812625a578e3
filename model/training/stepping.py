"""One optimizer step: its pace, the warm-up of its kernels, and the step itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from model.data.batch import Batch, RowSelection
from model.families.protocol import LanguageModel, Objective
from model.machine.distributed import World, skip_reduction
from model.machine.precision import LossScale, autocast
from model.training.optim import Optimizer
from model.training.sharding import free_gathered_rows
from model.training.soundness import Soundness
from trmcloud.core.errors import UsageError
from trmcloud.core.spec.settings import PhaseRecipe

# How long each rank's own share of a step takes: what tells the one that all others wait for.
#
# Forward passes alone are timed. In them no rank waits for another, as all do in the backward
# pass, whose gradients are reduced together: there a slow rank makes every one as slow as itself.


class Pace:
    """This rank's forward passes of one step; ``monotonic`` gives seconds."""

    def __init__(self, device: torch.device, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._on_gpu = device.type == "cuda"
        self._seconds = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def timed(self) -> Iterator[None]:
        """A forward pass. A GPU is not waited for: events stand in its stream instead."""
        if self._on_gpu:
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            yield
            last.record()
            self._events.append((first, last))
            return
        began = self._monotonic()
        yield
        self._seconds += self._monotonic() - began

    def taken_s(self) -> float:
        """Seconds of the passes since it was last asked; on a GPU once they are behind it, as they
        are where something has been read from it."""
        seconds = self._seconds + sum(a.elapsed_time(b) for a, b in self._events) / 1e3
        self._seconds, self._events = 0.0, []
        return seconds


class Paces:
    """All ranks' seconds, step by step, until they are reported."""

    def __init__(self) -> None:
        self._sums: list[float] = []
        self._steps = 0

    def add(self, seconds: Sequence[float]) -> None:
        """Of one step, by rank."""
        self._sums = [
            a + b for a, b in zip(self._sums or [0.0] * len(seconds), seconds, strict=True)
        ]
        self._steps += 1

    def told(self) -> list[float]:
        """Means over the steps since they were last told; empty where there are none."""
        means = [each / self._steps for each in self._sums] if self._steps else []
        self._sums, self._steps = [], 0
        return means


# Passes before the first step that change nothing but how fast, and how exactly alike, it is.


def needs_warm_up(settings: PhaseRecipe, world: World) -> bool:
    return settings.compile or world.size > 2


def compiled_graphs() -> int:
    """Return the number of graphs that torch.compile has made here; 0 where it is disabled."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


GRAPHS = 64
"""Of one function. torch stops at 8 and then runs what is new uncompiled, without a word: a block
has one for training and one for evaluation, with and without a value embedding, and each again for
every number format that is tried and every micro-batch that is climbed to."""


def lift_graph_limit() -> None:
    """Let torch.compile make as many graphs as a training needs."""
    torch._dynamo.config.recompile_limit = max(GRAPHS, torch._dynamo.config.recompile_limit)


def make_dummy_batch(settings: PhaseRecipe, device: torch.device) -> Batch:
    """A micro-batch of no text: the data may still be on its way."""
    shape = (settings.batch, settings.sequence + 1)
    rows = torch.arange(math.prod(shape), device=device).view(shape) % settings.text_ids
    if (row := settings.dummy_row) is not None:
        rows = torch.tensor(row, device=device).expand(shape)
    ids, targets = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
    return Batch(ids, targets, RowSelection.alone(settings.batch))


def warm_up(
    model: LanguageModel,
    parallel_model: nn.Module,
    settings: PhaseRecipe,
    world: World,
    optimizer: Optimizer | None = None,
) -> None:
    """Run forward and backward passes, and with an ``optimizer`` its compiled update rules; the
    gradients that are left are to be dropped.

    They compile what is to be compiled, and let DDP settle its buckets: it orders them anew after
    the first backward pass, and with three ranks or more the order of a sum matters, so a resumed
    run would otherwise differ from an uninterrupted one by its first step. What they draw (dropout)
    is given back: a resumed training draws what the one that saved would have drawn next.

    Raises:
        UsageError: the model cannot be compiled.
    """
    cast, batch = autocast(settings.dtype, world.device), make_dummy_batch(settings, world.device)
    kept = dict(model.carried())
    with torch.random.fork_rng([world.device] if world.device.type == "cuda" else []):
        for _ in range(2):
            try:
                with cast():
                    made: Objective = parallel_model(*batch)
                made.loss.backward()
                with torch.no_grad(), cast():
                    model.evaluate(*batch)
                free_gathered_rows(model)
                if optimizer is not None:
                    optimizer.warm_up()
            except Exception as error:
                if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
                    raise UsageError(
                        f"torch.compile failed: {error}", next_step="--set compile=false"
                    ) from None
                raise
    # What was passed was no data: no step may continue from it.
    model.carry_on(kept)


# One optimizer step: micro-batches forward and backward, the gradients checked and applied.


class StepResult(NamedTuple):
    """The result of a step: means over the tokens of its micro-batches, on all ranks."""

    loss: float
    nats: list[float]
    parts: dict[str, float]


class Step(NamedTuple):
    """A step's facts: the gradients' norm before clipping, and the reason why it was left out."""

    norm: float
    loss: float
    sums: ObjectiveSums
    left_out: str = ""
    """Empty: nothing was wrong with it."""
    overflows: bool = False
    """float16 does not hold its gradients: its update was not made, and the loss is scaled less
    from here on."""
    paces_s: Sequence[float] = ()
    """Seconds of each rank's forward passes, of the step before; empty for one rank alone."""


class ObjectiveSums:
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

    def told(self, world: World) -> StepResult:
        """A collective call."""
        assert self._sum is not None
        row = (world.total(self._sum) / self.weight(world)).tolist()
        nats, (loss, *parts) = row[: self._passes], row[self._passes :]
        return StepResult(loss, nats, dict(zip(self._names, parts, strict=True)))


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
            FloatingPointError, TrainingDiverged: see ``Soundness.judge``.
        """
        settings, scale = self._settings, self._loss_scale.scale
        sums = ObjectiveSums()
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
        if settings.leaves_targets_out:
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
        if self._settings.leaves_targets_out:
            return (targets >= 0).float().mean()
        return self._whole

    def _unsynced(self, micro: int) -> AbstractContextManager[Any]:
        """Gradients are reduced once a step, in its last micro-batch."""
        if micro == self._settings.accumulation - 1:
            return nullcontext()
        return skip_reduction(self._model)
