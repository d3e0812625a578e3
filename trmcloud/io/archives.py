"""Reading of tar archives that another party may have made: what a header may cost is bounded."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

MOST_READ = 2 << 20
"""Bytes of one read: tarfile reads a header's text whole, and a member in smaller pieces."""


class _Bounded:
    """A file that refuses to be read in larger pieces."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, count: int) -> bytes:
        if not 0 <= count <= MOST_READ:
            raise tarfile.ReadError("a header is larger than any that is sent")
        return self._file.read(count)


@contextmanager
def open_tar(path: Path) -> Iterator[tarfile.TarFile]:
    """Open an archive without compression. Members are what its headers say: the caller takes
    regular files with names that stay inside, and extracts nothing by tarfile itself.

    Raises:
        tarfile.TarError: it is none, or a header is too large. OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        try:
            with tarfile.open(fileobj=cast(BinaryIO, _Bounded(file)), mode="r:") as archive:
                archive.extraction_filter = getattr(tarfile, "data_filter", None)  # from 3.10.12 on
                yield archive
        except RecursionError:  # a header of headers
            raise tarfile.ReadError("its headers are nested too deep") from None
