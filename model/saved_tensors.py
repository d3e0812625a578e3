"""Tensors of a checkpoint, of which no more than the wanted rows are read."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from model.rows import Span


class Saved(Protocol):
    """A saved tensor; a plain one is one, too."""

    @property
    def shape(self) -> Any:
        """Of the whole."""

    def __getitem__(self, index: Any, /) -> Tensor: ...


def rows_of(saved: Saved, span: Span) -> Tensor:
    """Some of its rows, on the CPU."""
    return saved[span.start : span.stop] if len(saved.shape) else saved[...]


def whole_of(saved: Saved) -> Tensor:
    return saved[...]
