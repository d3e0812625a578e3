"""Commands that serve until Ctrl-C: ``trmcloud ui`` and ``trmcloud serve`` as tests see them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable

from tests.e2e.user import User
from tests.warm import Warm, can_warm

WITHIN_S = 200.0
NO_CHANGE: Callable[[list[str]], list[str]] = list


class Server:
    """A process group of its own, as a terminal makes one. ``shown``: up to its address."""

    def __init__(
        self, user: User, *words: str, limit: Callable[[list[str]], list[str]] = NO_CHANGE
    ) -> None:
        words, env = ("-m", "trmcloud", *words, "--port", "0"), user.env()
        warm = limit is NO_CHANGE and can_warm(words, env)
        self.process = (Warm if warm else subprocess.Popen)(
            limit([sys.executable, *words]), cwd=user.folder, env=env, stdin=subprocess.DEVNULL,
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.shown, found = "", None
        while found is None and (line := self.process.stdout.readline()):
            self.shown += line
            found = re.search(r"http://\S+?:(\d+)", line)
        assert found is not None, self.shown + self.process.communicate(timeout=WITHIN_S)[1]
        self.port = int(found[1])

    def end(self) -> str:
        """stderr of a server that was ended as Ctrl-C does."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.ended()

    def ended(self) -> str:
        """stderr of a server that ended well."""
        out, err = self.process.communicate(timeout=WITHIN_S)
        assert self.process.returncode == 0, out + err
        assert out.endswith("ended\n"), out
        return err

    def kill(self) -> None:
        """Where it has not ended."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate(timeout=WITHIN_S)


class UiServer(Server):
    def __init__(
        self, user: User, *more: str, limit: Callable[[list[str]], list[str]] = NO_CHANGE
    ) -> None:
        super().__init__(user, "ui", *more, limit=limit)
        self.address, _, self.token = (
            self.shown.strip(),
            *self.shown.strip().partition("#token=")[1:],
        )
        assert self.token, self.shown
