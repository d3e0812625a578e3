"""Keeps torch.compile's output: on a local disk while it is used, in the run's folder afterwards.

A pod's run lies on a network volume, where thousands of small files take minutes to write and to
read. So compilers work in a folder of the machine. It is filled from the run's folder before torch
is imported, and copied back once everything is compiled: a later attempt, or another pod with the
same volume, compiles nothing again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, MutableMapping
from pathlib import Path

COMPILED_DIR = "compiled"
_FOLDERS = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
_READY = ".ready-"
_LEAST_FREE_BYTES = 2_000_000_000
_WAIT_S, _POLL_S = 60.0, 0.05


class CompileCache:
    """Those of the compilers' folders that the user has not placed by environment variables."""

    def __init__(self, out_dir: Path, environment: MutableMapping[str, str]) -> None:
        """
        Args:
            environment: the compilers' variables are set in it, to be read by torch's import.
        """
        self._store = out_dir / COMPILED_DIR
        self._names = [name for name in _FOLDERS if name not in environment]
        key = hashlib.sha256(str(out_dir.absolute()).encode()).hexdigest()[:12]
        self._local = Path(tempfile.gettempdir()) / f"trmcloud-compiled-{os.getuid()}-{key}"
        self.is_local = bool(self._names) and _has_room(self._local.parent) and _is_own(self._local)
        for name in self._names:
            place = self._local if self.is_local else self._store
            environment[name] = str(place / _FOLDERS[name])

    def fetch(
        self,
        attempt: int,
        local_rank: int,
        sleep: Callable[[float], None],
        monotonic: Callable[[], float],
    ) -> None:
        """Fills the local folder. One rank of a machine copies; the others wait for it, a minute at
        most: what they miss they compile."""
        if not self.is_local:
            return
        ready = self._local / f"{_READY}{attempt}"
        if local_rank == 0:
            self._local.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._copy(self._store, self._local)
            ready.touch()
            return
        until = monotonic() + _WAIT_S
        while not ready.exists() and monotonic() < until:
            sleep(_POLL_S)

    def keep(self) -> None:
        """Copies what was compiled to the run's folder; to be called by one rank."""
        if self.is_local:
            self._copy(self._local, self._store)

    def drop(self) -> None:
        """Removes the local folder; to be called by one rank of each machine, at the end."""
        if self.is_local:
            shutil.rmtree(self._local, ignore_errors=True)

    def _copy(self, source: Path, target: Path) -> None:
        """Copy the files that ``target`` lacks: each name is a hash of what it was made from."""
        for name in self._names:
            try:
                _copy_missing(source / _FOLDERS[name], target / _FOLDERS[name])
            except OSError as error:  # it is only compiled again
                print(f"compiled kernels were not copied to {target}: {error}", file=sys.stderr)


def _is_own(folder: Path) -> bool:
    """Whether no other user can have written to it: its files are loaded as code."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return True
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def _has_room(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free >= _LEAST_FREE_BYTES
    except OSError:
        return False


def _copy_missing(source: Path, target: Path) -> None:
    """Raises: OSError: a file that cannot be read or written."""
    for folder, _, names in os.walk(source):
        there = target / Path(folder).relative_to(source)
        there.mkdir(parents=True, exist_ok=True)
        for name in names:
            if name.startswith(_READY) or name.endswith(".lock") or (there / name).exists():
                continue
            part = there / f"{name}.part-{os.getpid()}"
            shutil.copy2(Path(folder) / name, part)
            part.replace(there / name)
