"""The question before money is spent or something is deleted."""

from __future__ import annotations

import select
import signal
import socket
import sys

import typer

from trmcloud.cli.views.streams import is_for_documents
from trmcloud.core.errors import UsageError

_ANSWERS = {"y": True, "yes": True, "n": False, "no": False, "": False}


def is_confirmed(question: str, *, before: str = "", line: str = "pass -y") -> bool:
    """Whether the user says yes. ``before``: what the question is about, where that is not plain;
    ``line``: what to type where it cannot be asked.

    Raises:
        UsageError: stdin is no terminal, or JSON is printed.
        KeyboardInterrupt: Ctrl-C, at whatever moment it comes.
        typer.Abort: the terminal says that nothing more is typed.
    """
    if is_for_documents():
        raise UsageError("--json cannot ask", next_step=line)
    if not sys.stdin.isatty():
        about = f"{before}, and " if before else ""
        raise UsageError(
            f"{about}this is not a terminal, so the question cannot be asked", next_step=line
        )
    while True:
        sys.stdout.write(f"{question} [y/N]: ")
        sys.stdout.flush()
        line = _typed()
        if not line:
            raise typer.Abort
        if (answer := _ANSWERS.get(line.strip().lower())) is not None:
            return answer
        print("  answer y or n", file=sys.stderr)


def _typed() -> str:
    """The next line that is typed; empty where there will be none.

    Not by ``input``: it drops a Ctrl-C that comes while it flushes streams which are written in
    Python, as ours are. And a signal between Python's look for one and the read that waits would
    not end that read: so what waits here is also woken by a signal's own byte.
    """
    waker, woken = socket.socketpair()
    with waker, woken:
        waker.setblocking(False)
        before = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        try:
            while sys.stdin not in select.select([sys.stdin, woken], [], [])[0]:
                woken.recv(64)
        finally:
            signal.set_wakeup_fd(before)
    return sys.stdin.readline()
