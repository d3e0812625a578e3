"""The controller loop of a server: each live run has a process that drives it.

A run that no process drives, since its command was interrupted or its server was killed, gets a
process of ``trmcloud attach``, which fetches its checkpoints and ends its pod. Of several servers
of one ledger one gets each run: by the run's epoch. What is left is done here, as by any command:
late bills, runs that wait for a machine, notifications. Prices are refreshed once a day, and the
guard, which a timer of the system starts elsewhere, is started here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trmcloud.api import Home
from trmcloud.app.context import is_unasked
from trmcloud.app.reconciling import is_left_waiting
from trmcloud.app.run_queries import is_driven
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import TrmcloudError
from trmcloud.server.sealed_secrets import ENV_KEY

LOOK_EVERY_S = 2.0
CATCH_UP_EVERY_S = 60.0
PRICES_EVERY_S = 86_400.0
GUARD_EVERY_MINUTES = 5
MOST_DRIVERS = 64
ENV_OIDC_SECRET = "TRMCLOUD_OIDC_SECRET"
"""The server's own secret at the identity provider: no command needs it."""


@dataclass
class _Chore:
    """A command that is started every so many seconds."""

    words: tuple[str, ...]
    every_s: float
    begun_at: float = -1e18
    process: subprocess.Popen[bytes] | None = None


class ControllerLoop:
    """``start`` begins a thread; ``tell`` is given a line where something cannot be done."""

    def __init__(
        self,
        open_home: Callable[[], Home],
        folder: Path,
        environment: Mapping[str, str],
        tell: Callable[[str], None],
        *,
        prices: bool = True,
    ) -> None:
        self._open_home, self._folder, self._tell = open_home, folder, tell
        self._environment = dict(environment)
        self._drivers: dict[str, subprocess.Popen[bytes]] = {}
        guard = ("reap", "--yes", "--guard-every", str(GUARD_EVERY_MINUTES))
        self._chores = [_Chore(guard, GUARD_EVERY_MINUTES * 60.0)]
        if prices:
            self._chores.append(_Chore(("prices", "refresh", "--json"), PRICES_EVERY_S))
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="controller", daemon=True)
        self._told = ""

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Leave the runs as they are: the next server drives them."""
        self._end.set()
        self._thread.join(timeout=10.0)
        chores = (chore.process for chore in self._chores if chore.process is not None)
        for process in (*self._drivers.values(), *chores):
            if process.poll() is None:
                process.terminate()

    def _loop(self) -> None:
        home: Home | None = None
        caught_up_at = -1e18
        while not self._end.is_set():
            try:
                home = home or self._open_home()
                now = home.context.clock.now().boot
                self.drive(home)
                if now - caught_up_at >= CATCH_UP_EVERY_S:
                    home.catch_up()
                    caught_up_at = now
                self.do_chores(now)
                self._told = ""
            except TrmcloudError as error:
                home = None
                self._say(f"{error}")
            except Exception as error:  # the loop has to live
                home = None
                self._say(f"unexpected {type(error).__name__}: {error}")
            self._end.wait(LOOK_EVERY_S)

    def do_chores(self, now: float) -> None:
        """Start what is due, each once at a time. ``now``: seconds that only grow."""
        for chore in self._chores:
            is_over = chore.process is None or chore.process.poll() is not None
            if is_over and now - chore.begun_at >= chore.every_s:
                chore.process, chore.begun_at = self._started(*chore.words), now

    def drive(self, home: Home) -> None:
        """Give each run without a driver one."""
        for run_id in [name for name, each in self._drivers.items() if each.poll() is not None]:
            del self._drivers[run_id]
        for run in home.states():
            if len(self._drivers) >= MOST_DRIVERS:
                return
            if run.live and run.run_id not in self._drivers and self._is_left(home, run):
                self._drivers[run.run_id] = self._started("attach", run.run_id)

    def _is_left(self, home: Home, run: RunState) -> bool:
        context = home.context
        if is_unasked(context, run):
            return False
        driver = context.ledger.driver(run.run_id)
        return is_left_waiting(context, run) or not is_driven(context, driver)

    def _started(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "trmcloud", *words],
            cwd=self._folder,
            env={**self._environment, "TRMCLOUD_AT_SERVER": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _say(self, line: str) -> None:
        if line != self._told:
            self._told = line
            self._tell(line)


def environment_of_server() -> dict[str, str]:
    """This process's, without what it was told for itself."""
    mine = ("TRMCLOUD_PRINCIPAL", "TRMCLOUD_PROJECTS", ENV_OIDC_SECRET, ENV_KEY)
    return {name: value for name, value in os.environ.items() if name not in mine}
