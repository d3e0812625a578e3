"""The growing folder as its maker sees it: what is written there, in which order, and only once."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from model.data.folder import DTYPES
from model.machine.telemetry import process_started
from trmcloud.core.contract.pod_contract import DATA_META_NAME
from trmcloud.core.contract.records import ContractError, dump
from trmcloud.core.contract.trainer_contract import (
    PROGRESS_NAME,
    SHARDS_NAME,
    DataProgress,
    ShardRecord,
    load_shard,
)
from trmcloud.core.errors import ConflictError, TrmcloudError
from trmcloud.io.files import write_atomic
from trmcloud.io.hashing import file_sha256

IDENTITY_NAME = "corpus.json"
_LOCK_NAME = ".lock"
_TOLD_EVERY_S = 2.0


class GrowingFolder:
    """One process at a time writes here; readers may come at any moment."""

    def __init__(
        self,
        path: Path,
        source: str,
        dtype: str,
        *,
        epoch: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._epoch, self._monotonic = epoch, monotonic
        self._began = monotonic()
        self._told = -_TOLD_EVERY_S
        self._lock: int | None = None
        self._width = np.dtype(DTYPES[dtype]).itemsize
        self.records: list[ShardRecord] = []
        self.now = DataProgress(
            source=source,
            state="working",
            at=epoch(),
            pid=os.getpid(),
            pid_started=process_started(),
            host=socket.gethostname(),
        )

    # -- beginning and end -------------------------------------------------------------------

    def open(self, identity: Mapping[str, Any]) -> None:
        """Takes the folder, and takes up what was made for the same ``identity`` before.

        Raises:
            ConflictError: it holds something else, or another process is at work there.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        others = [each for each in self.path.iterdir() if each.name != _LOCK_NAME]
        known = self.path / IDENTITY_NAME
        if others and not known.exists():
            raise ConflictError(
                "the folder holds files that are not prepared data",
                where=str(self.path),
                next_step="name a new folder",
            )
        self._take_lock()
        text = json.dumps(identity, indent=1, sort_keys=True) + "\n"
        if known.exists() and known.read_text() != text:
            raise ConflictError(
                "the folder holds data of another source or other settings",
                where=str(self.path),
                next_step="name a new folder",
            )
        write_atomic(known, text, durable=False)
        self.tell(at_once=True)
        self._take_up_records()

    def end(self, state: str, error: TrmcloudError | None = None, *, again: bool = False) -> None:
        """The last word; nothing is left half-written."""
        if error is not None:
            what = f"{error.what} ({error.where})" if error.where else error.what
            self.now = replace(
                self.now, message=what[:2000], next_step=error.next_step[:500], again=again
            )
        self.now = replace(self.now, state=state)
        with contextlib.suppress(OSError):  # a full disk must not hide what went wrong
            self.tell(at_once=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # -- while it grows --------------------------------------------------------------------------

    def tell(self, *, at_once: bool = False, **news: Any) -> None:
        """Takes up news; writes them if the last ones are two seconds old."""
        self.now = replace(self.now, **news)
        now = self._monotonic()
        if at_once or now - self._told >= _TOLD_EVERY_S:
            self._told = now
            self.now = replace(self.now, at=self._epoch())
            write_atomic(self.path / PROGRESS_NAME, dump(self.now), durable=False)

    def reached(self, what: str) -> None:
        """Notes how long it took to come so far."""
        if what not in self.now.seconds:
            seconds = {**self.now.seconds, what: round(self._monotonic() - self._began, 3)}
            self.tell(at_once=True, seconds=seconds)

    @property
    def elapsed_s(self) -> float:
        return self._monotonic() - self._began

    def add(self, record: ShardRecord, tokens: Path) -> None:
        """The next shard of the list: its file first, then its line."""
        target = self.path / record.file
        _link(tokens, target)
        with open(self.path / SHARDS_NAME, "a", encoding="utf-8") as file:
            file.write(dump(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.records.append(record)
        self._counted()

    def write(self, name: str, text: str) -> None:
        write_atomic(self.path / name, text, durable=False)

    def place(self, name: str, made: Path) -> None:
        """A file from elsewhere, under its name here."""
        _link(made, self.path / name)

    def meta(self) -> dict[str, Any] | None:
        try:
            said = json.loads((self.path / DATA_META_NAME).read_text())
        except (OSError, ValueError):
            return None
        return said if isinstance(said, dict) else None

    # -- what was there ----------------------------------------------------------------------

    def _take_lock(self) -> None:
        handle = os.open(self.path / _LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise ConflictError(
                "another process is already preparing this folder",
                where=str(self.path),
                next_step="wait for it; progress.json shows its progress",
            ) from None
        self._lock = handle

    def _take_up_records(self) -> None:
        """Keeps the shards up to the first one that is not what its record says. Their lines stay
        byte by byte: a trainer may have read them."""
        path = self.path / SHARDS_NAME
        kept = b""
        with contextlib.suppress(OSError):
            for line in path.read_bytes().splitlines(keepends=True):
                record = self._sound(line)
                if record is None:
                    break
                self.records.append(record)
                kept += line
            if kept != path.read_bytes():
                write_atomic(path, kept.decode(), durable=False)
        self._counted()

    def _sound(self, line: bytes) -> ShardRecord | None:
        if not line.endswith(b"\n"):
            return None
        try:
            record = load_shard(line)
            file = self.path / record.file
            size = record.tokens * self._width
            if file_sha256(file, record.offset_bytes, size) == record.sha256:
                return record
        except (OSError, ContractError):
            pass
        return None

    def _counted(self) -> None:
        self.now = replace(
            self.now,
            tokens=sum(record.tokens for record in self.records),
            shards=len(self.records),
        )


def _link(made: Path, target: Path) -> None:
    """``made`` under a second name; where the disk is another one, a copy."""
    making = target.with_name(f".{target.name}.{os.getpid()}")
    making.unlink(missing_ok=True)
    try:
        os.link(made, making)
    except OSError:
        shutil.copyfile(made, making)
    os.replace(making, target)
    # Of two names of one file a rename drops none.
    making.unlink(missing_ok=True)
