"""The measured pace of a training: what a trainer times on its machine, and the record of it. Pure.

A trainer times its steps once it is compiled and warm. It reports once two halves of the steps that
it has timed have the same median: steps at the beginning that are slower or faster than those that
follow, by any factor, are measured past.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Annotated, Any

from trmcloud.core.contract.records import ContractError, record_of, within
from trmcloud.core.values import Value

PACE = "pace"
"""The kind of a line of metrics that has a ``StepPace``."""
WARM_UP_STEPS = 2
"""Steps of an attempt that are not timed."""
LEAST_STEPS = 40
"""A measurement is of so many steps at least: two halves of twenty."""
TOLERANCE = 0.05
"""The medians of the two halves differ by no more than this share."""
MOST_STEPS = 1024
MOST_STEP = 99_999_999
LEAST_LINES = 20
"""Of a command's log, which may name every tenth step alone."""
_EVERY = 5
"""Steps between two comparisons of the halves."""
_OF_LINE = frozenset({"kind", "at"})


class StepPace(Value):
    """``step_s``: the median seconds of ``steps`` steps, of which a tenth took less than ``fast_s``
    and a tenth more than ``slow_s``, from one step's end to the next one's, pauses for evaluations
    and saves left out. ``tokens`` are those of one step on all ``processes``."""

    steps: Annotated[int, within(1, MOST_STEPS)]
    step_s: Annotated[float, within(1e-9, 1e9)]
    fast_s: Annotated[float, within(1e-9, 1e9)]
    slow_s: Annotated[float, within(1e-9, 1e9)]
    tokens: Annotated[int, within(0, 1 << 62)] = 0
    processes: Annotated[int, within(0, 1 << 20)] = 0
    torch: str = ""
    board: str = ""
    """The first GPU's name, as its driver has it; empty without one."""
    code: str = ""
    """The SHA-256 of the trainer's sources."""
    step: Annotated[int, within(0, MOST_STEP)] = 0
    """The step after which it was known."""


class PaceMeter:
    """Times the steps of one attempt until their pace is steady.

    What is compared are the newest steps: as many as ``LEAST_STEPS``, and half of all once that is
    more. So what came first counts no more, and on a machine whose steps scatter the halves grow
    until their medians agree.
    """

    def __init__(self) -> None:
        self._newest: deque[float] = deque(maxlen=MOST_STEPS)
        self._timed = 0

    def add(self, step_s: float) -> StepPace | None:
        """Note one step's seconds. Return the measurement once it is steady."""
        self._timed += 1
        self._newest.append(step_s)
        if self._timed < LEAST_STEPS or self._timed % _EVERY:
            return None
        wanted = min(max(LEAST_STEPS, self._timed // 2), MOST_STEPS)
        return steady_pace(list(self._newest)[-wanted:])


def steady_pace(seconds: Sequence[float]) -> StepPace | None:
    """Return the pace of steps that took ``seconds``, in their order; None where their halves
    differ, or they are too few."""
    if len(seconds) < LEAST_STEPS or not _agree(seconds):
        return None
    rows = sorted(seconds)
    tenth = len(rows) // 10
    return StepPace(len(rows), median(rows), max(rows[tenth], 1e-9), rows[-1 - tenth])


def _agree(seconds: Sequence[float]) -> bool:
    """Whether the two halves have the same median."""
    half = len(seconds) // 2
    before, after = median(seconds[:half]), median(seconds[half:])
    least = min(before, after)
    return least > 0 and abs(after - before) <= TOLERANCE * least


def pace_by_log(lines: Iterable[Mapping[str, Any]], since: float) -> StepPace | None:
    """Return the pace of a command by its lines of training: the seconds between two of them, for
    each step that lies between. None before ``LEAST_LINES`` such times, behind the first two, are
    steady. ``since`` as in ``pace_from``."""
    points: list[tuple[float, int]] = []
    for line in lines:
        at, step = line.get("at"), line.get("step")
        if line.get("kind") != "train" or not isinstance(at, (int, float)) or at < since:
            continue
        if type(step) is int and 0 <= step <= MOST_STEP:
            points.append((float(at), step))
    paces = [
        (after[0] - before[0], after[1] - before[1])
        for before, after in pairwise(points)
        if after[0] > before[0] and 0 < after[1] - before[1] < MOST_STEPS
    ][2:]
    paces = paces[-max(LEAST_LINES, len(paces) // 2) :]
    seconds = [took_s / steps for took_s, steps in paces]
    if len(seconds) < LEAST_LINES or not _agree(seconds):
        return None
    rows, steps = sorted(seconds), min(MOST_STEPS, sum(steps for _, steps in paces))
    tenth = len(rows) // 10
    return StepPace(steps, median(rows), rows[tenth], rows[-1 - tenth], step=points[-1][1])


def pace_from(lines: Iterable[Mapping[str, Any]], since: float) -> StepPace | None:
    """Return the first pace that a trainer has told in ``lines`` at ``since`` or later, epoch s by
    its machine's clock; None where there is none. The lines may be hostile."""
    for line in lines:
        at = line.get("at")
        if line.get("kind") != PACE or not isinstance(at, (int, float)) or at < since:
            continue
        try:
            told = record_of(StepPace, {k: v for k, v in line.items() if k not in _OF_LINE})
        except ContractError:
            return None
        return told if told.fast_s <= told.step_s <= told.slow_s else None
    return None
