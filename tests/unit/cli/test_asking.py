"""Yes, no, and Ctrl-C at the worst moments of the question."""

from __future__ import annotations

import ctypes
import functools
import operator
import os
import pty
import select
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import pytest
import typer

from trmcloud.cli.confirm import confirmed
from trmcloud.core.errors import UsageError


class Interrupted:
    """A stream in Python, as ours are, during one of whose calls Ctrl-C is pressed."""

    def __init__(self, stream: TextIO, call: str) -> None:
        self._stream, self._call = stream, call

    def __getattr__(self, name: str) -> Any:
        if name == self._call:
            self._call = ""
            signal.raise_signal(signal.SIGINT)
        return getattr(self._stream, name)


@pytest.fixture
def types(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], int]]:
    """Types on the terminal that is this process's stdin."""
    master, window = pty.openpty()
    with os.fdopen(window, encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield lambda text: os.write(master, text.encode())
        os.close(master)


@pytest.mark.parametrize(
    ("typed", "answer"),
    [("y\n", True), (" YES \n", True), ("n\n", False), ("No\n", False), ("\n", False)],
)
def test_an_answer(types: Callable[[str], int], typed: str, answer: bool) -> None:
    types(typed)
    assert confirmed("Delete?") is answer


def test_asks_again(types: Callable[[str], int], capsys: pytest.CaptureFixture[str]) -> None:
    types("perhaps\ny\n")
    assert confirmed("  Proceed?")
    shown = capsys.readouterr()
    assert shown.out == "  Proceed? [y/N]:   Proceed? [y/N]: "
    assert shown.err == "  answer y or n\n"


def test_the_end_of_what_is_typed(types: Callable[[str], int]) -> None:
    types("\x04")
    with pytest.raises(typer.Abort):
        confirmed("Proceed?")


@pytest.mark.parametrize(
    ("stream", "call"), [("stdout", "write"), ("stdout", "flush"), ("stdin", "isatty")]
)
def test_ctrl_c_while_it_is_asked(
    types: Callable[[str], int], monkeypatch: pytest.MonkeyPatch, stream: str, call: str
) -> None:
    monkeypatch.setattr(sys, stream, Interrupted(getattr(sys, stream), call))
    with pytest.raises(KeyboardInterrupt):
        confirmed("Proceed?")


def test_no_ctrl_c_is_lost_in_a_stream(
    types: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``input`` asks both streams to flush, and drops what stderr's raises."""
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, Interrupted(getattr(sys, name), "flush"))
    types("n\n")  # what a command that dropped it would go on with
    with pytest.raises(KeyboardInterrupt):
        confirmed("Proceed?")


def test_ctrl_c_just_before_it_waits(
    types: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the last look for a signal and the wait, where only the signal's byte can end it."""
    press = functools.partial(getattr(ctypes.CDLL(None), "raise"), signal.SIGINT)
    real = select.select

    def late(*given: Any) -> Any:
        # One after the other without a line of Python between them, which would look for signals.
        return list(map(operator.call, (press, functools.partial(real, *given))))[1]

    monkeypatch.setattr(select, "select", late)
    with pytest.raises(KeyboardInterrupt):
        confirmed("Proceed?")


def test_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull) as nobody:
        monkeypatch.setattr(sys, "stdin", nobody)
        with pytest.raises(UsageError, match="this rents, and this is not a terminal"):
            confirmed("Proceed?", before="this rents")
