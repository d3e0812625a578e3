"""Sources as a tar.gz: an allow-list of files, and the same bytes from the same sources."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

_ROOMS = ("core", "pod")
_SUFFIXES = (".py", ".txt")


def agent_sources(package: Path) -> dict[str, Path]:
    """What a pod needs of trmcloud's ``package``, by its name in the archive."""
    files = {"trmcloud/__init__.py": package / "__init__.py"}
    for room in _ROOMS:
        files |= sources(package / room, f"trmcloud/{room}")
    return files


def sources(folder: Path, name: str) -> dict[str, Path]:
    """The sources below ``folder``, by their names below ``name``."""
    return {
        f"{name}/{path.relative_to(folder).as_posix()}": path
        for path in folder.rglob("*")
        if path.suffix in _SUFFIXES
        and path.is_file()
        and not any(part.startswith((".", "__pycache__")) for part in path.parts[-3:])
    }


def pack(files: Mapping[str, Path]) -> bytes:
    """
    Raises:
        OSError: one of them cannot be read.
    """
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, path in sorted(files.items()):
            content = path.read_bytes()
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o644
            tar.addfile(info, io.BytesIO(content))
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=packed, mode="wb", compresslevel=9, mtime=0) as out:
        out.write(raw.getvalue())
    return packed.getvalue()
