"""The output of watchdog, agent and trainer, as it comes: for a user who follows the run."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path

from trmcloud.core.contract import pod_contract as contract

GUARDIAN_LOG_NAME = "guardian.log"
_MOST_BYTES = 1 << 16
"""Read at once; what a log has beyond it comes with the next look."""
_STAMP = re.compile(r"^\d{9,11}\.\d{3} ")


class Follower:
    """Each whole line of the logs once. ``print_line`` gets text fit for a terminal."""

    def __init__(self, pod_dir: Path, run_dir: Path, print_line: Callable[[str], None]) -> None:
        self._pod_dir, self._run_dir = pod_dir, run_dir
        self._print = print_line
        self._at: dict[Path, int] = {}
        # What an earlier life wrote was shown then.
        for path in run_dir.glob(f"*/{contract.TRAIN_LOG_NAME}"):
            with contextlib.suppress(OSError):
                self._at[path] = self._start(path)

    def show(self) -> None:
        """Print what is new."""
        logs = sorted(self._run_dir.glob(f"*/{contract.TRAIN_LOG_NAME}"))
        for path in (self._pod_dir / GUARDIAN_LOG_NAME, *logs):
            while self._more(path):
                pass

    def _start(self, path: Path) -> int:
        """The end of a log that was there before this life began, else its beginning."""
        began = (self._pod_dir / contract.LEASE_NAME).stat().st_mtime
        stat = path.stat()
        return stat.st_size if stat.st_mtime < began else 0

    def _more(self, path: Path) -> bool:
        at = self._at.get(path, 0)
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(at)
                chunk = file.read(_MOST_BYTES)
        except OSError:
            return False
        whole = chunk.rfind(b"\n") + 1 if len(chunk) < _MOST_BYTES else len(chunk)
        if not whole:
            return False
        name = path.parent.name if path.name == contract.TRAIN_LOG_NAME else ""
        for line in chunk[:whole].decode("utf-8", "replace").splitlines():
            text = _STAMP.sub("", contract.strip_control(line))
            self._print(f"{name}: {text}" if name else text)
        self._at[path] = at + whole
        return size > at + whole and whole == len(chunk)
