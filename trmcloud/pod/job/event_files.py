"""Numbers in TensorBoard's event files, as they grow: what many a script writes anyway.

A file is a row of records: 8 bytes of length, 4 of their checksum, the data, 4 of its checksum
(TFRecord). Each is an ``Event`` of TensorBoard's event.proto, of which the step and the scalars are
read, and nothing else. A file is never trusted: its length, names and numbers are bounded.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

from trmcloud.core.contract.command_terms import MOST_DEPTH
from trmcloud.pod.job.readings import Reading, whole_step

_NAME = "events.out.tfevents."
_MOST_FOLDERS, _MOST_FILES = 2000, 64
_LOOK_EVERY_S = 5.0
_MOST_READ = 1 << 20
"""Of one file at once; a record that is longer, as one of pictures is, is passed over."""
_MOST_VALUES = 64
_MOST_TAG = 80
_FRAME = 12
_CHECKSUM = 4
_MOST_RECORD = 1 << 31
_SCALARS = {1: "<f", 2: "<d"}
"""TensorProto's dtype → how one number of it is packed."""

Field = tuple[int, int, bytes]
"""A field's number, what it holds where that is a whole number, and its bytes where it has any."""


class EventFiles:
    """Those below ``work`` that come after this was made: what stands there already is of a run
    before, and so is whatever it held by then."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._read: dict[Path, int] = {path: _size(path) for path in self._found()}
        self._files = list(self._read)
        self._looked_at = -_LOOK_EVERY_S
        self.seen = 0
        """How many events came: a sign that the command gets on."""

    def take(self, now: float) -> list[Reading]:
        """What was written since; ``now`` in seconds of a steady clock."""
        if now - self._looked_at >= _LOOK_EVERY_S:
            self._looked_at = now
            self._files = list(self._found())
        return [reading for path in self._files for reading in self._grown(path)]

    def _grown(self, path: Path) -> Iterator[Reading]:
        at = self._read.get(path, 0)
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(handle, "rb") as file:
                file.seek(at)
                text = file.read(_MOST_READ)
        except OSError:
            return
        begin = 0
        while len(text) - begin >= _FRAME:
            length = int.from_bytes(text[begin : begin + 8], "little")
            if length > _MOST_RECORD:
                self._read[path] = 1 << 62  # no such file: it is not looked into again
                return
            end = begin + _FRAME + length + _CHECKSUM
            if end > len(text):
                if begin == 0 and len(text) == _MOST_READ:
                    begin = end
                break
            if (reading := reading_of(text[begin + _FRAME : end - _CHECKSUM])) is not None:
                self.seen += 1
                yield reading
            begin = end
        self._read[path] = at + begin

    def _found(self) -> Iterator[Path]:
        """At most so many, in the order of their names: folders that are links are not entered."""
        pending, folders, found = [(self._work, 0)], 0, 0
        while pending and folders < _MOST_FOLDERS:
            folder, depth = pending.pop()
            folders += 1
            try:
                entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            except OSError:
                continue
            for entry in entries:
                if entry.name.startswith(_NAME) and entry.is_file(follow_symlinks=False):
                    found += 1
                    yield Path(entry.path)
                    if found == _MOST_FILES:
                        return
                elif depth < MOST_DEPTH and entry.is_dir(follow_symlinks=False):
                    pending.append((Path(entry.path), depth + 1))


def reading_of(event: bytes) -> Reading | None:
    """The step and scalars of one ``Event``; None where it has none, or is damaged."""
    step, metrics = 0, dict[str, float]()
    try:
        for number, whole, inner in _fields(event):
            if number == 2:
                step = whole
            elif number == 5:
                metrics.update(_values(inner))
    except (ValueError, IndexError, struct.error):
        return None
    return Reading(whole_step(step), metrics) if metrics else None


def _values(summary: bytes) -> Iterator[tuple[str, float]]:
    for count, (number, _, value) in enumerate(_fields(summary)):
        if number != 1 or count >= _MOST_VALUES:
            continue
        tag, found = "", None
        for inner, _, content in _fields(value):
            if inner == 1:
                tag = content.decode("utf-8", "replace")[:_MOST_TAG]
            elif inner == 2 and len(content) == 4:
                found = struct.unpack("<f", content)[0]
            elif inner == 8:
                found = _scalar(content)
        if tag and found is not None:
            yield tag, float(found)


def _scalar(tensor: bytes) -> float | None:
    """Of a ``TensorProto`` that holds one number: its dtype is field 1, its content 4, 5 or 6."""
    form = ""
    for number, whole, content in _fields(tensor):
        if number == 1:
            form = _SCALARS.get(whole, "")
        elif number in (4, 5, 6) and form and len(content) == struct.calcsize(form):
            return float(struct.unpack(form, content)[0])
    return None


def _fields(message: bytes) -> Iterator[Field]:
    """Protocol Buffers' wire format: a varint of number and type, then what the type says."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind, whole, content = key & 7, 0, b""
        if kind == 0:
            whole, at = _varint(message, at)
        else:
            if kind == 2:
                length, at = _varint(message, at)
            elif kind in (1, 5):
                length = 8 if kind == 1 else 4
            else:
                raise ValueError("no wire type of today")
            content, at = message[at : at + length], at + length
            if at > len(message):
                raise ValueError("cut off")
        yield key >> 3, whole, content


def _varint(message: bytes, at: int) -> tuple[int, int]:
    whole = shift = 0
    while True:
        byte = message[at]
        whole |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return whole, at
        if shift > 63:
            raise ValueError("a number without an end")


def _size(path: Path) -> int:
    try:
        about = os.lstat(path)
    except OSError:
        return 0
    return about.st_size if stat.S_ISREG(about.st_mode) else 0
