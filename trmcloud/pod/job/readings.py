"""Numbers in what a command says: lines of JSON, and a pattern of the user's for lines of text.

A pattern may go back over a line for ever. Python's ``re`` looks for signals while it does, so an
alarm ends it; one that needed several is asked no more.
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from trmcloud.core.contract.command import Command
from trmcloud.core.contract.command_terms import MOST_PATTERN_S, PATTERN_STRIKES
from trmcloud.core.contract.records import MAX_LINE_BYTES, ContractError, parse
from trmcloud.core.values import dataclass

MOST_STEP = 99_999_999
_MOST_METRICS = 64
_STEP_KEYS = ("step", "global_step", "iter", "iteration")
_STEP = re.compile(
    r"\b(?:global_step|step|iteration|iter)s?\b[\s:=\[('\"]{0,4}([0-9]{1,8})\b", re.I
)


@dataclass(frozen=True)
class Reading:
    """What a line says: a step where it names one, and numbers, NaN and infinity among them."""

    step: int | None
    metrics: Mapping[str, float]


class _TooLong(Exception):
    pass


class Readings:
    """Reads lines for one command. In the main thread alone, whose alarm it uses."""

    def __init__(self, command: Command) -> None:
        self._name = command.metric_name
        self._pattern = re.compile(command.metric) if command.is_pattern else None
        self._strikes = 0
        if self._pattern is not None:
            signal.signal(signal.SIGALRM, _ring)  # once: a script may print thousands of lines

    @property
    def gave_up(self) -> bool:
        """Whether the pattern took too long too often."""
        return self._strikes >= PATTERN_STRIKES

    def read(self, line: bytes) -> Reading | None:
        """None where it says nothing of use."""
        text = line.decode("utf-8", "replace").strip()
        if text.startswith("{") and (reading := of_json(line)) is not None:
            return reading
        metrics = {}
        if (value := self._by_pattern(text)) is not None:
            metrics[self._name] = value
        stepped = _STEP.search(text)
        step = int(stepped.group(1)) if stepped else None
        return Reading(step, metrics) if metrics or step is not None else None

    def _by_pattern(self, text: str) -> float | None:
        if self._pattern is None or self.gave_up:
            return None
        try:
            with _alarm(MOST_PATTERN_S):
                found = self._pattern.search(text)
        except _TooLong:
            self._strikes += 1
            return None
        said = (found.group(1) if found else None) or ""
        try:
            return float(said.rstrip(".,")[:40])
        except ValueError:
            return None


def of_json(line: bytes) -> Reading | None:
    """What a line of JSON says; None where it is none, or no object."""
    try:
        said = parse(line, MAX_LINE_BYTES)
    except ContractError:
        return None
    return of_object(said) if isinstance(said, dict) else None


def of_object(said: Mapping[str, Any]) -> Reading:
    nested = said.get("metrics")
    numbers = {**said, **(nested if isinstance(nested, dict) else {})}
    step = next((s for key in _STEP_KEYS if (s := whole_step(numbers.get(key))) is not None), None)
    metrics = {
        key[:80]: float(value)
        for key, value in list(numbers.items())[:_MOST_METRICS]
        if key not in _STEP_KEYS and type(value) in (int, float)
    }
    return Reading(step, metrics)


def whole_step(value: Any) -> int | None:
    """A step, where a value that somebody else gave is one."""
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= MOST_STEP else None


def _ring(signum: int, frame: FrameType | None) -> None:
    raise _TooLong


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
