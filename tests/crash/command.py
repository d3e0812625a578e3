"""The real command in a world whose ledger kills it: ``kill -9`` at the n-th write.

    python -m tests.crash.command --die before:3 launch local …
    python -m tests.crash.command --die after:3 launch local …
    python -m tests.crash.command --list FILE launch local …    what it writes, a line for each

Beats, whose number depends on how long things take, are not counted. ``--stale S`` lets a
controller count as silent after S seconds in place of two minutes.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from trmcloud import wiring
from trmcloud.operations import run_queries
from trmcloud.operations.context import Context

COUNTED = ("open_run", "reopen_run", "take_over", "release", "append", "request", "set_cap")


class WatchedLedger:
    """A ledger that calls ``at_write(number, before, what)`` around every write."""

    def __init__(self, ledger: Any, at_write: Callable[[int, bool, str], None]) -> None:
        self._ledger = ledger
        self._at_write = at_write
        self._writes = 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._ledger, name)
        if name not in COUNTED:
            return real

        def watched(*arguments: Any, **named: Any) -> Any:
            self._writes += 1
            number = self._writes
            self._at_write(number, True, _said(name, arguments))
            result = real(*arguments, **named)
            self._at_write(number, False, _said(name, arguments))
            return result

        return watched


def _said(name: str, arguments: tuple[Any, ...]) -> str:
    events = [e for a in arguments if isinstance(a, list | tuple) for e in a]
    return " ".join([name, *(type(event).__name__ for event in events)])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.command", description=__doc__)
    parser.add_argument("--die", default="")
    parser.add_argument("--list", type=Path)
    parser.add_argument("--stale", type=float)
    parser.add_argument("words", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    how, _, at = arguments.die.partition(":")
    build = wiring.build_context

    def at_write(number: int, before: bool, what: str) -> None:
        if before and arguments.list is not None:
            with open(arguments.list, "a", encoding="utf-8") as file:
                file.write(f"{what}\n")
        if how and number == int(at) and before == (how == "before"):
            os.kill(os.getpid(), signal.SIGKILL)

    def build_watched(home: Path | None = None) -> Context:
        world = build(home)
        return replace(world, ledger=WatchedLedger(world.ledger, at_write))

    for module in list(sys.modules.values()):  # a warm process has imported them
        if getattr(module, "build_context", None) is build:
            module.build_context = build_watched  # type: ignore[attr-defined]
    if arguments.stale is not None:
        run_queries._STALE_DRIVER_S = arguments.stale
    sys.argv = ["trmcloud", *arguments.words]
    from trmcloud.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
