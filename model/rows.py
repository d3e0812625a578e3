"""The rows of a parameter that this rank holds: all of them, or a sharded model's share."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor


class Span(NamedTuple):
    """Rows from ``start`` up to ``stop``, which is none of them."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start

    def within(self, start: int, stop: int) -> Span:
        """What it has in common with another; empty where that is nothing."""
        low = min(max(self.start, start), stop)
        return Span(low, max(low, min(self.stop, stop)))


class Piece(NamedTuple):
    """Some rows of a tensor, from ``start`` on; ``shape`` is that of the whole."""

    tensor: Tensor
    shape: tuple[int, ...]
    start: int = 0


def span_among(rows: int, rank: int, ranks: int) -> Span:
    """Which of ``rows`` rows ``rank`` holds: FSDP2 gives out equal shares, the last ones less."""
    share = -(-rows // ranks)
    return Span(min(rank * share, rows), min((rank + 1) * share, rows))


def local(tensor: Tensor) -> Tensor:
    """The rows that this rank holds, in the very memory of ``tensor``."""
    made: Any = tensor.detach()
    rows: Tensor = made.to_local() if is_shared_out(made) else made
    return rows


def is_shared_out(tensor: Tensor) -> bool:
    """Whether this is a DTensor. Asked without importing those, which takes a second."""
    return hasattr(tensor, "to_local")


def span_of(tensor: Tensor) -> Span:
    """Which rows of ``tensor`` this rank holds."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not is_shared_out(tensor):
        return Span(0, rows)
    mesh: Any = tensor.device_mesh  # type: ignore[attr-defined]
    return span_among(rows, mesh.get_local_rank(), mesh.size())


def piece_of(tensor: Tensor) -> Piece:
    """What this rank holds of ``tensor``."""
    return Piece(local(tensor), tuple(tensor.shape), span_of(tensor).start)
