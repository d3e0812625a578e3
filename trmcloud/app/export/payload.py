"""The sources that an exported script carries: the agent's, and the trainer's. An allow-list."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trmcloud.core.errors import DataError

PACKAGE = Path(__file__).resolve().parents[2]
_ROOMS = ("core", "pod")
_SUFFIXES = (".py", ".txt")
_LINE_CHARS = 100


@dataclass(frozen=True)
class Payload:
    """A tar.gz of ``trmcloud/`` and ``model/``; the same sources give the same bytes."""

    content: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    def lines(self) -> Iterator[str]:
        """Base64 in lines of 100 characters."""
        text = base64.b64encode(self.content).decode("ascii")
        for at in range(0, len(text), _LINE_CHARS):
            yield text[at : at + _LINE_CHARS]


def make_payload(trainer: Path, package: Path = PACKAGE) -> Payload:
    """``trainer`` is the trainer's package, ``package`` trmcloud's own.

    Raises:
        DataError: the trainer's package holds no sources, or cannot be read.
    """
    files = {"trmcloud/__init__.py": package / "__init__.py"}
    for room in _ROOMS:
        files |= _sources(package / room, f"trmcloud/{room}")
    own = _sources(trainer, "model")
    if not own:
        raise DataError("the trainer's package holds no sources", where=str(trainer))
    raw = io.BytesIO()
    try:
        with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for name, path in sorted({**files, **own}.items()):
                content = path.read_bytes()
                info = tarfile.TarInfo(name)
                info.size, info.mode = len(content), 0o644
                tar.addfile(info, io.BytesIO(content))
    except OSError as error:
        raise DataError(f"it cannot be read: {error.strerror}", where=str(trainer)) from None
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=packed, mode="wb", compresslevel=9, mtime=0) as out:
        out.write(raw.getvalue())
    return Payload(packed.getvalue())


def _sources(folder: Path, name: str) -> dict[str, Path]:
    return {
        f"{name}/{path.relative_to(folder).as_posix()}": path
        for path in folder.rglob("*")
        if path.suffix in _SUFFIXES
        and path.is_file()
        and not any(part.startswith((".", "__pycache__")) for part in path.parts[-3:])
    }
