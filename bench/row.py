"""One figure of a benchmark, and how paired commands are timed."""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """``value`` against ``target``; ``better`` is "lower" or "higher"."""

    name: str
    value: float
    target: float
    better: str
    unit: str
    detail: str

    @property
    def met(self) -> bool:
        return self.value <= self.target if self.better == "lower" else self.value >= self.target

    def __str__(self) -> str:
        sign = "≤" if self.better == "lower" else "≥"
        verdict = "met" if self.met else "MISSED"
        shown = f"{self.value:,.3g} {self.unit}".strip()
        return f"{self.name:<44} {shown:>14}  {sign} {self.target:g}  {verdict:<6} {self.detail}"


def seconds_of(command: Sequence[str], environment: Mapping[str, str], cwd: str) -> float:
    """Wall seconds of one process that must succeed."""
    begun = time.perf_counter()
    subprocess.run(
        command, env={**os.environ, **environment}, cwd=cwd, stdout=subprocess.DEVNULL, check=True
    )
    return time.perf_counter() - begun


def paired_ratio(
    ours: Sequence[str],
    baseline: Sequence[str],
    *,
    environment: Mapping[str, str],
    rounds: int = 15,
) -> tuple[float, float, float]:
    """(median ratio, our median s, baseline's median s) over interleaved rounds.

    The two run in turns, so that a busy machine is busy for both; a round's ratio is of neighbours
    in time.
    """
    with tempfile.TemporaryDirectory() as cwd:
        seconds_of(ours, environment, cwd)
        seconds_of(baseline, environment, cwd)
        pairs = []
        for number in range(rounds):
            commands = [ours, baseline] if number % 2 else [baseline, ours]
            times = [seconds_of(command, environment, cwd) for command in commands]
            pairs.append(tuple(times) if number % 2 else tuple(reversed(times)))
    ratio = statistics.median(mine / theirs for mine, theirs in pairs)
    return (
        ratio,
        statistics.median(mine for mine, _ in pairs),
        statistics.median(theirs for _, theirs in pairs),
    )
