"""Training rows out of shards: laid end to end, or each one packed by itself.

Rows are read with ``pread`` and not through a mapping: a page that has to come from the disk then
holds up the reading thread alone, not the whole process.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

from model.data.chat import ChatTokens
from model.data.order import SampleOrder, Tokens, read_windows, window_count
from model.data.packing import (
    PAD,
    PackedRows,
    document_starts,
    lay_out,
    mark_given,
    pack,
    pad_row,
    rows_in_segments,
    rows_of_conversations,
    rows_of_documents,
)
from trmcloud.core.errors import DataError
from trmcloud.core.spec.settings import CHAT, PADDED, SEGMENTS

_OPEN_FILES = 64


@dataclass(frozen=True)
class Shard:
    """``tokens`` ids in a file, from ``offset_bytes`` on."""

    name: str
    path: Path
    tokens: int
    dtype: np.dtype[Any]
    sha256: str = ""
    offset_bytes: int = 0

    def array(self) -> npt.NDArray[Any]:
        """All of it, mapped."""
        if self.tokens == 0:
            return np.zeros(0, self.dtype)
        return np.memmap(
            self.path, dtype=self.dtype, mode="r", offset=self.offset_bytes, shape=(self.tokens,)
        )


@dataclass(frozen=True)
class RowLayout:
    """The division of tokens into rows: ``kind`` is one of ``recipe.ROWS``, ``bos`` the token that
    begins a document, ``block`` the length whose multiple a padded row fills, ``segments`` the
    lengths of the parts of a row in segments, ``chat`` the special ids of a conversation."""

    kind: str
    sequence: int
    bos: int
    block: int = 1
    segments: tuple[int, ...] = ()
    chat: ChatTokens | None = None

    @property
    def is_windows(self) -> bool:
        return self.kind == "stream"

    def pieces(self, tokens: npt.NDArray[Any]) -> PackedRows:
        """The rows of ``tokens``, where they are not windows."""
        starts = document_starts(tokens, self.bos)
        if self.kind == PADDED:
            return rows_of_documents(starts, len(tokens), self.sequence)
        if self.kind == SEGMENTS:
            return rows_in_segments(starts, len(tokens), self.segments)
        if self.kind == CHAT:
            return rows_of_conversations(starts, len(tokens), self.sequence)
        return pack(starts, len(tokens), self.sequence + 1)

    def take(self, piece: Tokens) -> None:
        """Changes a piece of a row, once its ids are in place, into what a model is given."""
        if self.chat is not None:
            mark_given(piece, self.chat)

    def finish(self, row: Tokens, at: int) -> None:
        """Fills what the pieces of a row left of it, from ``at`` on."""
        if self.kind == PADDED:
            pad_row(row, at, self.bos, self.block)
        elif self.kind == SEGMENTS:
            lay_out(row, at, self.segments)
        elif self.kind == CHAT:
            row[at:] = PAD


class Rows(Protocol):
    """Rows of sequence + 1 ids, by their number."""

    @property
    def count(self) -> int: ...

    @property
    def left_out(self) -> int:
        """Documents that are in no row, as none has room for them."""

    def read(self, rows: Sequence[int]) -> Tokens:
        """(len(rows), sequence + 1) ids."""


class Windows:
    """Rows cut from an array every ``sequence`` ids."""

    def __init__(self, tokens: npt.NDArray[Any], sequence: int) -> None:
        self._tokens, self._sequence = tokens, sequence

    @property
    def count(self) -> int:
        return window_count(len(self._tokens), self._sequence)

    @property
    def left_out(self) -> int:
        return 0

    def read(self, rows: Sequence[int]) -> Tokens:
        return read_windows(self._tokens, rows, self._sequence)


class PackedDocuments:
    """Rows of whole documents from an array."""

    def __init__(self, tokens: npt.NDArray[Any], cut: RowLayout) -> None:
        self._tokens, self._cut = tokens, cut
        self._rows = cut.pieces(tokens)

    @property
    def count(self) -> int:
        return self._rows.count

    @property
    def left_out(self) -> int:
        return self._rows.left_out

    def read(self, rows: Sequence[int]) -> Tokens:
        made = np.empty((len(rows), self._cut.sequence + 1), np.int64)
        for out, row in zip(made, rows, strict=True):
            at = 0
            for start, length in self._rows.pieces(row):
                out[at : at + length] = self._tokens[start : start + length]
                self._cut.take(out[at : at + length])
                at += length
            self._cut.finish(out, at)
        return made


def rows_of(tokens: npt.NDArray[Any], cut: RowLayout) -> Rows:
    """An array's rows."""
    return Windows(tokens, cut.sequence) if cut.is_windows else PackedDocuments(tokens, cut)


class Stream:
    """The rows of all training shards that have come so far, by the run's sample numbers."""

    def __init__(self, cut: RowLayout, seed: int) -> None:
        self._cut, self._sequence = cut, cut.sequence
        self._order = SampleOrder(seed)
        self._shards: list[Shard] = []
        self._ends: list[int] = []
        self._packed: list[PackedRows] = []
        self._files: OrderedDict[Path, BinaryIO] = OrderedDict()

    @property
    def shards(self) -> Sequence[Shard]:
        return self._shards

    @property
    def rows(self) -> int:
        """Return the number of rows that can be read by now; all of an epoch's once finished."""
        return self._order.rows

    @property
    def left_out(self) -> int:
        """Documents that are in no row, as none has room for them."""
        return sum(packed.left_out for packed in self._packed)

    def add(self, shard: Shard) -> None:
        """The next shard of the list is there."""
        self._shards.append(shard)
        self._ends.append((self._ends[-1] if self._ends else 0) + shard.tokens)
        if not self._cut.is_windows:
            self._packed.append(self._cut.pieces(shard.array()))
            self._order.add(self._packed[-1].count)
        else:
            block = len(self._shards) - 1
            self._order.add(self._first_window(block + 1) - self._first_window(block))

    def finish(self) -> None:
        """No further shard comes."""
        self._order.finish()

    def covers(self, samples: range) -> bool:
        return self._order.knows(samples)

    def read(self, samples: Sequence[int]) -> Tokens:
        """(len(samples), sequence + 1) ids.

        Raises:
            DataError: a shard's file is gone or cut.
        """
        made = np.empty((len(samples), self._sequence + 1), np.int64)
        for out, sample in zip(made, samples, strict=True):
            place = self._order.place(sample)
            if not self._cut.is_windows:
                at = 0
                for start, length in self._packed[place.block].pieces(place.row):
                    self._read(place.block, start, out[at : at + length])
                    self._cut.take(out[at : at + length])
                    at += length
                self._cut.finish(out, at)
            else:
                self._read_across(self._first_window(place.block) + place.row, out)
        return made

    # -- windows over all shards --------------------------------------------------------------

    def _first_window(self, block: int) -> int:
        """A window belongs to the shard in which it ends, so that a shard's windows are there as
        soon as it is; it may begin in an earlier one."""
        return window_count(self._ends[block - 1] if block else 0, self._sequence)

    def _read_across(self, window: int, out: Tokens) -> None:
        start, at = window * self._sequence, 0
        shard = bisect_right(self._ends, start)
        while at < len(out):
            begins = self._ends[shard] - self._shards[shard].tokens
            length = min(self._ends[shard] - start, len(out) - at)
            self._read(shard, start - begins, out[at : at + length])
            start, at, shard = start + length, at + length, shard + 1

    # -- files ----------------------------------------------------------------------------------

    def _read(self, number: int, start: int, out: Tokens) -> None:
        """Ids from ``start`` on into ``out``; safe in several threads at once."""
        shard = self._shards[number]
        width = shard.dtype.itemsize
        wanted = len(out) * width
        try:
            file = self._file(shard.path)
            read = os.pread(file.fileno(), wanted, shard.offset_bytes + start * width)
        except OSError as error:
            raise DataError(f"a shard cannot be read: {error}", where=str(shard.path)) from None
        if len(read) != wanted:
            raise DataError(
                "a shard has become shorter", where=str(shard.path), next_step="prepare again"
            )
        out[:] = np.frombuffer(read, shard.dtype)

    def _file(self, path: Path) -> BinaryIO:
        """An open file. One that is dropped here stays open as long as a thread still reads it."""
        file = self._files.get(path)
        if file is None:
            file = open(path, "rb", buffering=0)  # noqa: SIM115
            assert file is not None
            self._files[path] = file
            while len(self._files) > _OPEN_FILES:
                self._files.popitem(last=False)
        return file
