"""Tensors of a checkpoint, whole or in shards, of which no more than the wanted rows are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from model.rows import Span
from trmcloud.core.contract import shards
from trmcloud.core.errors import CheckpointError


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


class Stored:
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


def open_tensors(folder: Path, names: Sequence[str]) -> Mapping[str, Stored]:
    """What these files hold together, by name; nothing but their headers is read yet.

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
    return {name: Stored(each, files) for name, each in places.items()}
