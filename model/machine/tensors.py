"""Tensors of which a rank holds some rows: which ones, their names in a file, and a copy to
be written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from trmcloud.core.contract import shards
from trmcloud.core.errors import CheckpointError

# The rows of a parameter that this rank holds: all of them, or a sharded model's share.


class Span(NamedTuple):
    """Rows from ``start`` up to ``stop``, which is none of them."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start

    def within(self, start: int, stop: int) -> Span:
        """Return its overlap with another; empty where there is none."""
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
    """Return this rank's piece of ``tensor``."""
    return Piece(local(tensor), tuple(tensor.shape), span_of(tensor).start)


# Tensors of a checkpoint, whole or in shards, of which no more than the wanted rows are read.


class SavedTensor(Protocol):
    """A saved tensor; a plain one is one, too."""

    @property
    def shape(self) -> Any:
        """Of the whole."""

    def __getitem__(self, index: Any, /) -> Tensor: ...


def rows_of(saved: SavedTensor, span: Span) -> Tensor:
    """Some of its rows, on the CPU."""
    return saved[span.start : span.stop] if len(saved.shape) else saved[...]


def whole_of(saved: SavedTensor) -> Tensor:
    return saved[...]


class StoredTensor:
    """A tensor on disk, whose rows lie in one file or in several."""

    def __init__(self, places: Sequence[shards.Place], files: Sequence[Any]) -> None:
        self._places, self._files = places, files

    @property
    def shape(self) -> tuple[int, ...]:
        return self._places[0].part.whole

    def __getitem__(self, index: Any, /) -> Tensor:
        """Rows by a slice without a step, or ``...`` for all that there is."""
        if not self.shape:
            [place] = self._places
            return self._files[place.file].get_tensor(place.part.name)
        span = Span(0, self.shape[0])
        if index is not ...:
            span = Span(*index.indices(self.shape[0])[:2])
        found: list[Tensor] = []
        for file, part in self._places:
            wanted = span.within(part.start, part.start + part.shape[0])
            if wanted.length:
                rows = self._files[file].get_slice(part.name)
                found.append(rows[wanted.start - part.start : wanted.stop - part.start])
        if not found:
            part = self._places[0].part
            return self._files[self._places[0].file].get_slice(part.name)[0:0]
        return found[0] if len(found) == 1 else torch.cat(found)


def open_tensors(folder: Path, names: Sequence[str]) -> Mapping[str, StoredTensor]:
    """Open the tensors of these files together, by name; only their headers are read yet.

    Raises:
        CheckpointError: a file is missing, is not safetensors, or they do not make up whole
            tensors.
    """
    from safetensors import SafetensorError, safe_open

    headers, files = [], []
    for name in names:
        path = folder / name
        try:
            with open(path, "rb") as file:
                headers.append(shards.read_header(file.read, path.stat().st_size, str(path)))
            files.append(safe_open(path, framework="pt"))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{name} cannot be read: {error}", where=str(folder)) from None
    places = shards.regrouped(headers, where=str(folder))
    return {name: StoredTensor(each, files) for name, each in places.items()}


# Copies of tensors in host memory, for a save that goes on while training does.
#
# The memory is kept from one save to the next: to be given new pages by the kernel takes longer
# than the copy. On a GPU it is pinned, so that the copy runs at the link's speed.

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

    @property
    def size_bytes(self) -> int:
        return sum(each.numel() * each.element_size() for each in self._kept.values())

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


def free_memory_bytes(root: Path = Path("/")) -> int | None:
    """Return the bytes of memory that this machine, or the container that this runs in, still has;
    None where neither says. ``root``: where /proc and /sys are."""
    left = []
    with suppress(OSError, ValueError, IndexError):
        lines = (root / "proc/meminfo").read_text().splitlines()
        left += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    group = root / "sys/fs/cgroup"
    with suppress(OSError, ValueError):  # no number where there is no limit
        most = int((group / "memory.max").read_text())
        left.append(most - int((group / "memory.current").read_text()))
    return min(left, default=None)


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
