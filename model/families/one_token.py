"""The parts of a step that adds one token to one text on a CPU, in float32.

There each call costs more than its arithmetic, and a call of numpy a fourth of one of torch. So a
step writes to buffers that both see: torch multiplies matrices, with its own number of threads, and
numpy does what is left. Weights and the cache are used where they are; nothing is copied.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.families.cache import Cache, KeptRow
from model.families.layers import NORM_EPS, Turn

Array = npt.NDArray[np.float32]
Norm = Callable[[Array, Array], None]
"""(h, out): the last dimension of h, normalised, into ``out``, which may be h itself."""


class Buffer:
    """Memory that torch and numpy both see."""

    __slots__ = ("array", "tensor")

    def __init__(self, *shape: int) -> None:
        self.tensor = torch.empty(shape)
        self.array: Array = self.tensor.numpy()


def is_possible(ids: Tensor, cache: Cache, dtype: torch.dtype, weight: Tensor) -> bool:
    """Whether ``ids`` is one token of one text behind others, on a CPU, and a model with ``weight``
    computes in float32."""
    return (
        ids.shape == (1, 1)
        and weight.is_cpu
        and weight.dtype == dtype == torch.float32
        and cache.place > 0
    )


LARGEST_OF_ONE_THREAD = 1 << 18
"""Values of a matrix, 1 MiB. Threads that share a smaller one spend more time on waiting for one
another than on it: with two, ``trm-tiny`` made 203 tokens a CPU-second, and 364 with one."""


def settle_threads(model: nn.Module) -> None:
    """Let torch take one thread for a model of small matrices on a CPU, unless the user set their
    number."""
    largest = max((each.numel() for each in model.parameters()), default=0)
    on_cpu = all(each.is_cpu for each in model.parameters())
    if on_cpu and largest <= LARGEST_OF_ONE_THREAD and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def rms(h: Array, out: Array) -> None:
    """h (D,) / √(mean(h²) + ε)."""
    scale = float(np.dot(h, h)) / len(h) + NORM_EPS
    np.multiply(h, scale**-0.5, out=out)


def layer(h: Array, out: Array) -> None:
    """(h − mean(h)) / √(var(h) + ε) of h (D,)."""
    np.subtract(h, float(np.add.reduce(h)) / len(h), out=out)
    rms(out, out)


def _rms_rows(h: Array, out: Array) -> None:
    squares = np.add.reduce(h * h, axis=-1, keepdims=True)
    squares /= h.shape[-1]
    squares += NORM_EPS
    np.sqrt(squares, out=squares)
    np.divide(h, squares, out=out)


def _layer_rows(h: Array, out: Array) -> None:
    np.subtract(h, h.mean(axis=-1, keepdims=True), out=out)
    _rms_rows(out, out)


NORMS: dict[str, tuple[Norm, Norm]] = {"rms": (rms, _rms_rows), "layer": (layer, _layer_rows)}
"""By a shape's ``norm``: of one vector, and of each row of several."""


def weight_of(linear: Any) -> Tensor:
    """Its matrix, where it is."""
    matrix: Tensor = linear.weight.detach()
    return matrix


class Heads:
    """Attention of one token. ``given`` is to hold its queries, keys and values before a call."""

    def __init__(self, heads: int, kv_heads: int, head_dim: int, qk_norm: Norm | None) -> None:
        queries, served = heads * head_dim, kv_heads * head_dim
        self.given = Buffer(queries + 2 * served)
        self.queries, self.keys, self.values = self.given.tensor.split((queries, served, served))
        together = self.given.array[: queries + served].reshape(heads + kv_heads, head_dim)
        half = head_dim // 2
        self._first, self._second = together[:, :half], together[:, half:]
        self._qk, self._turned = together, Buffer(heads + kv_heads, head_dim)
        self._part = np.empty((heads + kv_heads, half), np.float32)
        self._v = self.given.array[queries + served :].reshape(kv_heads, head_dim)
        self._norm, self._heads = qk_norm, heads
        self._groups = (kv_heads, heads // kv_heads, head_dim)
        self._scale = head_dim**-0.5
        self._mixed = torch.empty(self._groups)
        self._mixed_row = self._mixed.view(queries)
        self._plain_q = self.queries.view(self._groups)
        self._turned_q = self._turned.tensor[:heads].view(self._groups)

    def __call__(
        self, kept: KeptRow, place: int, turn: tuple[Array, Array] | None, window: int = 0
    ) -> Tensor:
        """Take up the token at ``place``, and return its mix of all values up to it: (heads ·
        head_dim,), until the next call. ``turn``: of that place; ``window``: tokens that it sees,
        itself included; 0: all."""
        qk, q = (self._qk, self._plain_q) if turn is None else (self._turned.array, self._turned_q)
        if turn is not None:
            self._turn(*turn)
        if self._norm is not None:
            self._norm(qk, qk)
        kept.key_array[:, place] = qk[self._heads :]
        kept.value_array[:, place] = self._v
        qk *= self._scale
        seen = slice(max(0, place + 1 - window) if window else 0, place + 1)
        weights = torch.bmm(q, kept.keys[:, seen].mT).softmax(dim=-1)
        torch.bmm(weights, kept.values[:, seen], out=self._mixed)
        return self._mixed_row

    def _turn(self, cosines: Array, sines: Array) -> None:
        turned, part, half = self._turned.array, self._part, self._part.shape[1]
        np.multiply(self._qk, cosines, out=turned)
        np.multiply(self._second, sines, out=part)
        turned[:, :half] += part
        np.multiply(self._first, sines, out=part)
        turned[:, half:] -= part


class Mlp:
    """An MLP's inner activation. ``inner`` is to hold what it is applied to before a call."""

    def __init__(self, kind: str, rows: int) -> None:
        self.inner = Buffer(rows)
        self._kind = kind
        self._gate, self._value = self.inner.array[: rows // 2], self.inner.array[rows // 2 :]
        self.gate, self.value = self.inner.tensor[: rows // 2], self.inner.tensor[rows // 2 :]

    def __call__(self) -> Tensor:
        """Return the activated values, until the next call."""
        if self._kind == "swiglu":
            F.silu(self.gate, inplace=True)
            np.multiply(self._gate, self._value, out=self._gate)
            return self.gate
        if self._kind == "relu2":
            inner = self.inner.array
            np.maximum(inner, 0.0, out=inner)
            np.multiply(inner, inner, out=inner)
            return self.inner.tensor
        return F.gelu(
            self.inner.tensor, approximate="tanh" if self._kind == "gelu-tanh" else "none"
        )


def turn_tables(turn: Turn) -> tuple[Array, Array]:
    """Cosines (T, head_dim) and sines (T, head_dim / 2) of every place."""
    cosines, sines = (each.reshape(len(each), -1).numpy() for each in turn)
    return cosines, sines
