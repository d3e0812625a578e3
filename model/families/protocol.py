"""The interface of every family of models to the trainer, which knows no more of any of them.

A family is a folder beside this file. Its ``plan.py`` has ``Settings``, its ``model.py`` has
``build(settings, device)``, which makes a ``LanguageModel``; ``registry`` finds both by the
recipe's ``family``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Iterator, Mapping, NamedTuple, Sequence

import torch
from torch import Tensor, nn

from model.data.batch import RowSelection
from model.machine.precision import RejectedOption
from model.machine.tensors import local, span_of
from trmcloud.core.errors import UsageError

MATRIX, EMBEDDING, HEAD, SCALAR = "matrix", "embedding", "head", "scalar"
VALUES, RESIDUAL, START, SMEAR = "values", "residual", "start", "smear"


class Objective(NamedTuple):
    """The loss of one batch, and the figures to report of it."""

    loss: Tensor
    """Scalar."""
    nats: Tensor
    """(K,) mean nats per token after each of the K passes that the family judges; the last one is
    what the model is worth."""
    parts: Mapping[str, Tensor]
    """Scalars that ``loss`` is made of, by the names they are logged under."""


class Group(NamedTuple):
    """The group of a parameter, which decides its optimisation."""

    kind: str
    """``MATRIX`` in the blocks, ``EMBEDDING``, ``HEAD``, or ``SCALAR`` for anything small;
    nanochat's tables of ``VALUES`` and small parameters have other kinds."""
    splits: tuple[int, ...] = ()
    """The rows of the matrices that lie one above the other in this one; empty: it is one."""


@dataclass(frozen=True)
class Sampling:
    """The settings of drawing a text from a model."""

    max_tokens: int
    temperature: float
    """0: always the likeliest."""
    top_k: int
    """0: all ids."""
    top_p: float
    """Of the likeliest, as few as come to this probability together; 1: all."""
    seed: int
    known_ids: int
    """Ids from here on stand for nothing, and are never drawn."""
    stop: int
    """The id that ends a text."""


class LanguageModel(nn.Module, ABC):
    """A model of token sequences."""

    sequence: int
    """Tokens that it was made for."""
    vocab_size: int
    margin: float = 1e-4
    """By which share what ``evaluate`` comes to may be above what it stands for."""
    parts: tuple[str, ...] = ()
    """The names of a prompt's parts, where a prompt is a question by itself, with the id that ends
    a text between them. The last one answers it."""
    predicts_next: bool = False
    """Whether ``evaluate`` gives the nats of each target by the ids before it alone, so that texts
    can be compared by it, and there are ``predictions``."""

    @property
    def judged(self) -> tuple[str, ...]:
        """The names of the nats in ``Objective.nats`` and ``evaluate``, in order. Where there are
        several, each is to be better than the one before."""
        return ("the text",)

    @property
    def most_given(self) -> int:
        """Ids that a text may begin with, the special one among them."""
        return self.sequence

    @property
    def least_given(self) -> int:
        """Ids that a text must begin with, the special one among them."""
        return 1

    @abstractmethod
    def initialise(self, seed: int) -> None:
        """Fresh weights, the same on every rank and device for one seed."""

    @abstractmethod
    def loss(self, ids: Tensor, targets: Tensor, draws: RowSelection | None = None) -> Objective:
        """The objective on token ids and targets, each (B, T): means over the targets from 0 on.
        Others there are only where the recipe pads rows: ``padding.PAD``, or what is given and not
        judged (``segments.GIVEN``)."""

    def forward(self, ids: Tensor, targets: Tensor, draws: RowSelection | None = None) -> Objective:
        """``loss``, under the name that DistributedDataParallel calls."""
        return self.loss(ids, targets, draws)

    @abstractmethod
    def evaluate(self, ids: Tensor, targets: Tensor, draws: RowSelection | None = None) -> Tensor:
        """(K, B, T) nats of every target after each judged pass."""

    def predictions(self, ids: Tensor) -> Tensor:
        """(B, T) the likeliest id after each of ``ids`` (B, T), after the last judged pass.

        Raises:
            NotImplementedError: the family does not predict the next token.
        """
        raise NotImplementedError

    def counted(self, targets: Tensor) -> Tensor:
        """(B, T) bool, the targets that an evaluation scores."""
        return targets >= 0

    def tallied(self, nats: Tensor, targets: Tensor, draws: RowSelection) -> Tensor:
        """(N,) sums over rows that ``evaluate`` gave ``nats`` of: what ``adapt`` is to know of
        them. Nothing, for most families."""
        return nats.new_zeros(0)

    def adapt(self, tallies: Sequence[float]) -> None:
        """Takes up what an evaluation of all rows tallied, for the steps that follow it."""

    def scores(self, tallies: Sequence[float]) -> Mapping[str, float]:
        """Return the figures to log of what an evaluation tallied, by name."""
        return {}

    def carried(self) -> Mapping[str, Tensor]:
        """Return the state that training keeps from step to step beside the weights, by name."""
        return {}

    def carry_on(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from what ``carried`` gave; from nothing: begin anew."""

    @abstractmethod
    def generate(self, start: Sequence[int], sampling: Sampling) -> Iterator[int]:
        """Generate the text after ``start``, id by id."""

    @abstractmethod
    def parameter_groups(self) -> Mapping[str, Group]:
        """Every parameter's group, by its name, in the order of ``named_parameters``."""

    def shardable(self) -> Sequence[nn.Module]:
        """The parts that are each applied once in a pass, in their order: their weights may be
        shared out over the ranks, and gathered one part at a time. Nothing, where parts are applied
        again and again, and would be gathered each time."""
        return ()

    def compile_parts(self) -> None:
        """Compiles what is worth it."""

    def settle_attention(self) -> Sequence[RejectedOption]:
        """Tries the kernel of attention that it is made for, on the device that it is on, and takes
        the next one where that is not to be had: each that is left, and why."""
        return ()

    def diagnostics(self, nats: Sequence[float]) -> Mapping[str, float]:
        """Return further figures to log of the losses after each pass."""
        return {}


def draw_weights(model: nn.Module, seed: int, std_of: Mapping[str, float]) -> None:
    """Gives every parameter, in its order, normal weights of the std under its name; 0: zeros.

    Drawn on the CPU from a generator of its own, so one seed gives one model everywhere.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        made = torch.zeros(weight.shape)
        if std_of[name]:
            made.normal_(0.0, std_of[name], generator=generator)
        with torch.no_grad():
            local(weight).copy_(made[slice(*span_of(weight))])


def check_heads(width: int, head_dim: int) -> None:
    """Raises: UsageError: heads share out the width."""
    if width % head_dim:
        raise UsageError(
            f"width {width} must be a multiple of head_dim {head_dim}",
            next_step="--set head_dim=32",
        )
