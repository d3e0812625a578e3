"""A trainer's file of JSON lines, which may be hostile: as much of it as is read."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from trmcloud.core.contract.pod_contract import MAX_METRICS_BYTES
from trmcloud.core.contract.records import MAX_LINE_BYTES, parse_lines

_MOST_LINES = 1 << 16
"""Of a file's beginning, and of its end."""


def read_metrics(path: Path) -> Sequence[Mapping[str, Any]]:
    """The objects in a file of JSON lines that may be hostile: its first ones, and its last where
    there are more than are read."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            lines = _lines(file)
            first = list(islice(lines, _MOST_LINES))
            return list(parse_lines([*first, *deque(lines, _MOST_LINES)]))
    except OSError:
        return []


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines of the part that is read; one that is too long is cut, and is none then."""
    left = MAX_METRICS_BYTES
    while left > 0 and (line := file.readline(min(left, MAX_LINE_BYTES + 1))):
        left -= len(line)
        yield line
