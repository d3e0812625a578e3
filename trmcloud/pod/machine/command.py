"""A command that runs beside the agent: looked at, never waited for."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_MAX_OUTPUT = 65_536


class Command:
    """Started at once, in a session of its own; killed with its children at ``give_up_at``.

    What it prints goes to ``log`` where one is given, and is in ``output`` otherwise. Both are on
    the clock of ``poll``'s ``now``. One that cannot be started has ended with code 127.
    """

    def __init__(
        self,
        words: Sequence[str],
        give_up_at: float,
        log: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._give_up_at = give_up_at
        self._file = open(log, "ab") if log is not None else tempfile.TemporaryFile()  # noqa: SIM115
        self._log = log
        self._child: subprocess.Popen[bytes] | None = None
        self.timed_out = False
        try:
            self._child = subprocess.Popen(
                list(words),
                stdin=subprocess.DEVNULL,
                stdout=self._file,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            self._file.write(f"{words[0]}: {error.strerror}\n".encode())
            self._file.flush()

    def poll(self, now: float) -> int | None:
        """Its exit code, None while it runs."""
        if self._child is None:
            return 127
        code = self._child.poll()
        if code is None and now >= self._give_up_at:
            self.timed_out = True
            self.kill()
            code = self._child.poll()
            return code if code is not None else -int(signal.SIGKILL)
        return code

    def kill(self) -> None:
        if self._child is not None and self._child.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signal.SIGKILL)

    def output(self) -> str:
        """Return its output, if not to a log; the beginning, where that is long."""
        if self._log is not None:
            return ""
        self._file.seek(0)
        return self._file.read(_MAX_OUTPUT).decode("utf-8", "replace")
