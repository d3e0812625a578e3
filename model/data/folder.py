"""A folder of prepared data: whole from the start, or growing while it is trained on.

``docs/decisions/0014`` says which files there are and who writes them when.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from model.data.chat import ChatTokens
from model.data.stream import RowLayout, Rows, Shard, Stream, rows_of
from model.data.tokenizers import TextTokenizer, load_tokenizer
from trmcloud.core.contract.pod_contract import (
    DATA_META_NAME,
    DATA_TOKENIZER_NAME,
    DATA_TRAIN_NAME,
    DATA_VALIDATION_NAME,
)
from trmcloud.core.contract.records import ContractError
from trmcloud.core.contract.trainer_contract import (
    PROGRESS_NAME,
    SHARDS_NAME,
    STALE_AFTER_S,
    DataProgress,
    load_progress,
    load_shard,
)
from trmcloud.core.errors import DataError
from trmcloud.core.spec.settings import CHAT, SEGMENTS, PhaseRecipe

WHOLE_VERSION, GROWING_VERSION = 1, 2
DTYPES = {"uint16": "<u2", "uint32": "<u4"}
GONE_FOR_S = 30.0
"""The time that a preparer must be gone before it is given up: an agent may start it again."""

_AGAIN = "prepare the data again"


@dataclass(frozen=True)
class PreparedData:
    """The folder made by ``model.prepare``: the validation tokens mapped, the training shards by
    name."""

    folder: Path
    meta: Mapping[str, Any]
    validation: npt.NDArray[Any]
    tokenizer: TextTokenizer
    tokenizer_json: str

    @property
    def tokenizer_sha256(self) -> str:
        return str(self.meta["tokenizer"]["sha256"])

    @property
    def source_sha256(self) -> str:
        return str(self.meta["source_sha256"])

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(DTYPES[self.meta["dtype"]])

    def validation_rows(self, settings: PhaseRecipe) -> Rows:
        """
        Raises:
            DataError: no text of it fits a row, or it was prepared for rows of another make.
        """
        for kind, has, lacks in (
            (SEGMENTS, "in segments", "without segments"),
            (CHAT, "as conversations", "as text, not as conversations"),
        ):
            if (settings.rows == kind) == bool(self.meta.get(kind)):
                continue
            made = has if self.meta.get(kind) else lacks
            raise DataError(
                f"the data was prepared {made}, but the settings ask for rows={settings.rows}",
                where=str(self.folder),
                next_step=_AGAIN,
            )
        rows = rows_of(self.validation, self._cut(settings))
        if not rows.count:
            raise nothing_fits(rows.left_out, settings, self.folder / DATA_VALIDATION_NAME)
        return rows

    def train_stream(self, settings: PhaseRecipe) -> Stream:
        """An empty stream; a ``ShardFeeder`` fills it."""
        return Stream(self._cut(settings), settings.seed)

    def _cut(self, settings: PhaseRecipe) -> RowLayout:
        return RowLayout(
            settings.rows,
            settings.sequence,
            self.tokenizer.bos,
            settings.row_multiple,
            settings.segments,
            ChatTokens.of(self.tokenizer, str(self.folder)) if settings.rows == CHAT else None,
        )


def nothing_fits(left_out: int, settings: PhaseRecipe, where: Path) -> DataError:
    if settings.rows == SEGMENTS:
        return DataError(
            f"none of its {left_out} texts fits into segments of {settings.segments_text} tokens",
            where=str(where),
            next_step="--set question_tokens=…, plan_tokens=… or execution_tokens=… higher, and "
            "sequence to their sum",
        )
    return DataError(
        f"none of its {left_out} texts fits into a row of {settings.sequence} tokens",
        where=str(where),
        next_step="--set sequence=… higher, or --set rows=stream",
    )


def open_data(folder: Path) -> PreparedData:
    """Maps a prepared folder; a growing one must have come as far as its ``meta.json``.

    Raises:
        DataError: it is incomplete, damaged, or of another version.
    """
    try:
        meta = json.loads((folder / DATA_META_NAME).read_text())
        if meta["version"] not in (WHOLE_VERSION, GROWING_VERSION):
            raise DataError(
                f"data version {meta['version']!r}", where=str(folder), next_step=_AGAIN
            )
        dtype = np.dtype(DTYPES[meta["dtype"]])
        validation = _map(folder / DATA_VALIDATION_NAME, dtype, meta["validation_tokens"])
        if meta["version"] == WHOLE_VERSION:
            _map(folder / DATA_TRAIN_NAME, dtype, meta["train_tokens"])
        tokenizer_json = (folder / DATA_TOKENIZER_NAME).read_text(encoding="utf-8")
        where = str(folder / DATA_TOKENIZER_NAME)
        tokenizer = load_tokenizer(tokenizer_json, where=where)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"the prepared data cannot be used: {error!r}", where=str(folder), next_step=_AGAIN
        ) from None
    return PreparedData(folder, meta, validation, tokenizer, tokenizer_json)


class ShardFeeder:
    """Brings the shards of a folder into a stream, one after another as they appear."""

    def __init__(
        self,
        data: PreparedData,
        stream: Stream,
        *,
        epoch: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._data, self._stream = data, stream
        self._monotonic = monotonic
        self._preparer = Preparer(data.folder, epoch=epoch, monotonic=monotonic)
        self._complete = False
        self._read_bytes = 0
        self.refresh()

    @property
    def complete(self) -> bool:
        """Whether all shards are in the stream."""
        return self._complete

    def refresh(self) -> None:
        """Takes up what is new.

        Raises:
            DataError: the folder's records are damaged, or a shard is not what its record says.
        """
        if self._complete:
            return
        folder, meta = self._data.folder, self._data.meta
        if meta["version"] == WHOLE_VERSION:
            self._stream.add(
                Shard(
                    DATA_TRAIN_NAME,
                    folder / DATA_TRAIN_NAME,
                    meta["train_tokens"],
                    self._data.dtype,
                    self._data.source_sha256,
                )
            )
            complete = True
        else:
            # Asked first: every record stands there before the folder is called complete.
            complete = meta["complete"] or _is_complete(folder)
            self._take_records()
        if complete:
            self._stream.finish()
            self._complete = True

    def trouble(self) -> DataError | None:
        """Why nothing more can come; None while something may, or where all is there."""
        return None if self._complete else self._preparer.trouble()

    def _take_records(self) -> None:
        path = self._data.folder / SHARDS_NAME
        try:
            with open(path, "rb") as file:
                file.seek(self._read_bytes)
                new = file.read()
            for line in new.splitlines(keepends=True):
                if not line.endswith(b"\n"):
                    break  # the rest of it is being written
                record = load_shard(line)
                shard = Shard(
                    record.name,
                    self._data.folder / record.file,
                    record.tokens,
                    self._data.dtype,
                    record.sha256,
                    record.offset_bytes,
                )
                size = shard.path.stat().st_size
                if size < shard.offset_bytes + shard.tokens * shard.dtype.itemsize:
                    raise ContractError(f"{record.file} has {size} bytes")
                self._stream.add(shard)
                self._read_bytes += len(line)
        except (OSError, ContractError) as error:
            raise DataError(
                f"the prepared data cannot be used: {error}", where=str(path), next_step=_AGAIN
            ) from None


class Preparer:
    """The process that fills a growing folder, by its ``progress.json``."""

    def __init__(
        self,
        folder: Path,
        *,
        epoch: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._epoch, self._monotonic = folder, epoch, monotonic
        self._gone_since: float | None = None

    def progress(self) -> DataProgress | None:
        """Return its last progress; None where that cannot be read."""
        try:
            return load_progress((self._folder / PROGRESS_NAME).read_bytes())
        except (OSError, ContractError):
            return None

    def trouble(self) -> DataError | None:
        """Why it will bring nothing more; None while it may."""
        said = self.progress()
        if said is not None and said.state == "done":
            return None
        if said is not None and said.state == "failed":
            return DataError(said.message, where=said.source, next_step=said.next_step)
        if said is not None and said.state == "working" and not self._is_dead(said):
            self._gone_since = None
            return None
        now = self._monotonic()
        self._gone_since = now if self._gone_since is None else self._gone_since
        if now - self._gone_since < GONE_FOR_S:
            return None
        return DataError(
            "the data stopped growing: no process prepares it any more",
            where=str(self._folder),
            next_step="run the same prepare command again: it continues where it stopped",
        )

    def _is_dead(self, said: DataProgress) -> bool:
        if self._epoch() - said.at > STALE_AFTER_S:
            return True
        return said.host == socket.gethostname() and not _is_running(said.pid, said.pid_started)


def _is_running(pid: int, started: str) -> bool:
    """Whether the process lives, and is the one that began when it says; True where /proc lacks."""
    if not os.path.isdir("/proc/self"):
        return True
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    state, *fields = stat.rpartition(")")[2].split()
    return state not in "ZX" and (not started or fields[18] == started)


def _is_complete(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / DATA_META_NAME).read_text())["complete"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _map(path: Path, dtype: np.dtype[Any], tokens: int) -> npt.NDArray[Any]:
    size = path.stat().st_size
    if size != tokens * dtype.itemsize:
        raise ValueError(f"{path.name} has {size} bytes, not {tokens * dtype.itemsize}")
    return np.memmap(path, dtype=dtype, mode="r")
