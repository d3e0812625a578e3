"""Copies of tensors in host memory, for a save that goes on while training does.

The memory is kept from one save to the next: to be given new pages by the kernel takes longer than
the copy. On a GPU it is pinned, so that the copy runs at the link's speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from model.rows import Piece
from trmcloud.core.contract import shards

_CHUNK_BYTES = 4 << 20
_NAMES = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.bool: "BOOL",
}


class Snapshot:
    """One copy of what is taken, by name."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    @torch.no_grad()
    def take(self, pieces: Mapping[str, Piece]) -> dict[str, Piece]:
        """``pieces`` as they are now: what was taken before under their names is overwritten."""
        on_gpu = False
        made = {}
        for name, piece in pieces.items():
            tensor = piece.tensor.detach()
            kept = self._kept.get(name)
            if kept is None or (kept.shape, kept.dtype) != (tensor.shape, tensor.dtype):
                kept = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
                self._kept[name] = kept
            kept.copy_(tensor, non_blocking=tensor.is_cuda)
            on_gpu = on_gpu or tensor.is_cuda
            made[name] = piece._replace(tensor=kept)
        if on_gpu:
            torch.cuda.synchronize()
        return made


def file_bytes(pieces: Mapping[str, Piece], *, is_shard: bool) -> Iterator[bytes | memoryview]:
    """A safetensors file of these, piece by piece and without a second copy of any.

    A whole one is what the library writes: equal tensors give equal bytes, and so an equal hash.
    """
    parts, at = [], 0
    ordered = shards.order({name: _NAMES[each.tensor.dtype] for name, each in pieces.items()})
    for name in ordered:
        tensor, whole, start = pieces[name]
        size = tensor.numel() * tensor.element_size()
        dtype = _NAMES[tensor.dtype]
        parts.append(shards.Part(name, dtype, tuple(tensor.shape), at, at + size, start, whole))
        at += size
    yield shards.header_bytes(parts, is_shard=is_shard)
    for name in ordered:
        flat = pieces[name].tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        view = memoryview(flat.numpy())  # type: ignore[arg-type]
        for start in range(0, len(view), _CHUNK_BYTES):
            yield view[start : start + _CHUNK_BYTES]
