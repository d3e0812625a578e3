"""An exponential moving average of the weights (Polyak and Juditsky 1992).

Where a recipe asks for it, the average is evaluated, and is what a checkpoint's weights are; those
that training goes on with lie beside the optimizer's state.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Iterator, Mapping

import torch
from torch import Tensor, nn

from model.rows import Piece, local, piece_of, span_of
from model.saved_tensors import Saved, rows_of

DECAY = 0.999
_PREFIX = "trained."


class Average:
    """The average of a model's weights, of which the last 1 / (1 − decay) steps count most."""

    def __init__(self, model: nn.Module, decay: float = DECAY) -> None:
        self._named = dict(model.named_parameters())
        self._decay = decay
        self._kept = [local(parameter).clone() for parameter in self._named.values()]

    @torch.no_grad()
    def restart(self) -> None:
        """From the weights as they are."""
        torch._foreach_copy_(self._kept, self._held())

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After ``step`` finished ones. Early on less is remembered, or else the first weights
        would stay in the average for thousands of steps."""
        decay = min(self._decay, (1.0 + step) / (10.0 + step))
        torch._foreach_lerp_(self._kept, self._held(), 1.0 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model has the average for its weights, for the block."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def weights(self) -> dict[str, Piece]:
        """The average, by the names of the model's parameters."""
        return {
            name: piece_of(parameter)._replace(tensor=kept)
            for (name, parameter), kept in zip(self._named.items(), self._kept, strict=True)
        }

    def trained(self) -> dict[str, Piece]:
        """The weights that training goes on with, by names of their own: what a checkpoint must
        hold beside the average."""
        return {_PREFIX + name: piece_of(p) for name, p in self._named.items()}

    def _held(self) -> list[Tensor]:
        return [local(parameter) for parameter in self._named.values()]

    @torch.no_grad()
    def _exchange(self) -> None:
        for kept, parameter in zip(self._kept, self._held(), strict=True):
            held = parameter.clone()
            parameter.copy_(kept)
            kept.copy_(held)


@torch.no_grad()
def restore_trained(model: nn.Module, tensors: Mapping[str, Saved]) -> None:
    """The model has just loaded an average; it gets back the weights that were trained.

    Raises:
        KeyError: the checkpoint has none, as it was saved without an average.
    """
    for name, parameter in model.named_parameters():
        local(parameter).copy_(rows_of(tensors[_PREFIX + name], span_of(parameter)))
