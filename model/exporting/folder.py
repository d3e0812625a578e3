"""A folder in another format: written aside, checked, and then put in its place in one rename."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from trmcloud.core.errors import ConflictError, DoesNotFit
from trmcloud.io.files import sync_folder

MOST_FILE_BYTES = 5_000_000_000
"""Of one file of weights; more are shared out over several, with an index."""
_INDEX = "model.safetensors.index.json"


@contextmanager
def new_folder(into: Path, size_bytes: int) -> Iterator[Path]:
    """A folder to write to, which becomes ``into`` at the end; nothing of it stays where the block
    raises.

    Raises:
        ConflictError: ``into`` holds something already, or cannot be made.
        DoesNotFit: the disk has no room for ``size_bytes``, or was filled meanwhile.
    """
    if into.is_symlink() or (into.exists() and not (into.is_dir() and not any(into.iterdir()))):
        raise ConflictError(
            "the folder for the export is not empty",
            where=str(into),
            next_step="name another folder: --into FOLDER",
        )
    making = into.with_name(f".{into.name}.{os.getpid()}")
    try:
        into.absolute().parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(into.absolute().parent).free
        if free < size_bytes:
            raise _no_room(into, f"{free / 1e6:,.1f} MB are free", size_bytes)
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir()
        yield making
        for path in making.rglob("*"):
            if path.is_file():
                _sync(path)
        sync_folder(making)
        if into.exists():
            into.rmdir()
        os.rename(making, into)
        sync_folder(into.absolute().parent)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_room(into, "the disk is full", size_bytes) from None
        raise ConflictError(
            f"the export cannot be written: {error.strerror or error}",
            where=str(into),
            next_step="name another folder: --into FOLDER",
        ) from None
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _no_room(into: Path, why: str, size_bytes: int) -> DoesNotFit:
    return DoesNotFit(
        f"the export needs {size_bytes / 1e6:,.1f} MB, but {why}",
        where=str(into),
        next_step="name a folder on a larger disk: --into FOLDER",
    )


def _sync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    path.write_text(text, encoding="utf-8")


def write_weights(
    folder: Path, tensors: Mapping[str, Tensor], most_bytes: int = MOST_FILE_BYTES
) -> None:
    """Write ``model.safetensors``; or several files of up to ``most_bytes`` each, and their index.

    Raises:
        OSError: they could not be written.
    """
    from safetensors.torch import save_file

    parts = _parts(tensors, most_bytes)
    held: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        name = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        name = name if len(parts) > 1 else "model.safetensors"
        whole = {each: tensor.contiguous() for each, tensor in part.items()}
        _or_oserror(partial(save_file, whole, folder / name, {"format": "pt"}))
        held |= dict.fromkeys(part, name)
    if len(parts) > 1:
        size = sum(map(size_of, tensors.values()))
        write_json(folder / _INDEX, {"metadata": {"total_size": size}, "weight_map": held})


def _or_oserror(write: Callable[[], None]) -> None:
    """Of safetensors, whose own error names the system's only in its text."""
    try:
        write()
    except OSError:
        raise
    except Exception as error:
        full = "No space left" in str(error) or "quota" in str(error).lower()
        raise OSError(errno.ENOSPC if full else errno.EIO, str(error)) from None


def _parts(tensors: Mapping[str, Tensor], most_bytes: int) -> list[dict[str, Tensor]]:
    parts: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if parts[-1] and size + size_of(tensor) > most_bytes:
            parts.append({})
            size = 0
        parts[-1][name] = tensor
        size += size_of(tensor)
    return parts


def size_of(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
