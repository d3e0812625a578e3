"""Which number format and kernels a run's trainings took, and what they left: by their metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trmcloud.app.context import Context
from trmcloud.app.health import planned_phases
from trmcloud.core.contract.gate import number_of
from trmcloud.core.control.run_state import RunState
from trmcloud.core.plain_text import one_line
from trmcloud.core.values import dataclass

_MOST_LEFT = 8
_LONGEST = 240


@dataclass(frozen=True)
class Taken:
    """What one phase said last. Texts come from a pod: they are cut, and one line each."""

    phase: str
    step: int
    taken: str
    """Empty where it said nothing of its number format."""
    why: str
    left: tuple[tuple[str, str], ...]
    """(what, why) of each number format and kernel that was not to be had."""


def taken_by(context: Context, run: RunState) -> list[Taken]:
    """Phases that had nothing to tell are left out."""
    found = []
    for phase in planned_phases(run):
        last: dict[str, Mapping[str, Any]] = {}
        for line in context.files.metrics(run.run_id, phase.name):
            if line.get("kind") in ("start", "precision", "attention"):
                if line["kind"] == "start":  # another attempt
                    last.clear()
                last[str(line["kind"])] = line
        last.pop("start", None)
        if last:
            found.append(_taken(phase.name, last))
    return found


def _taken(phase: str, last: Mapping[str, Mapping[str, Any]]) -> Taken:
    precision = last.get("precision", {})
    left = [pair for line in last.values() for pair in _pairs(line.get("left"))]
    step = number_of(next(iter(last.values())).get("step"))
    taken, why = _text(precision.get("taken")), _text(precision.get("why"))
    return Taken(phase, int(step or 0), taken, why, tuple(left[:_MOST_LEFT]))


def _pairs(rows: Any) -> list[tuple[str, str]]:
    if not isinstance(rows, list):
        return []
    return [(_text(r[0]), _text(r[1])) for r in rows if isinstance(r, list) and len(r) == 2]


def _text(value: Any) -> str:
    return one_line(value)[:_LONGEST] if isinstance(value, str) else ""
