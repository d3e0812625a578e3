"""The points of a receipt's curves, from lines of metrics. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trmcloud.core.contract.gate import number_of
from trmcloud.core.contract.records import instant
from trmcloud.core.values import dataclass

MOST_POINTS = 400
"""Of one phase and kind: a curve that is drawn needs no more."""
TRAIN, EVAL, SAVE = "train", "eval", "save"
_VALUE = {TRAIN: "loss", EVAL: "val_bpb", SAVE: ""}


@dataclass(frozen=True)
class Point:
    """One logged number. ``value``: nats a token of a training step, bits per byte of an
    evaluation, None of a save; ``steps``: nats a token after each supervision step. ``at`` is epoch
    seconds by the trainer's clock."""

    phase: str
    kind: str
    step: int
    at: float
    value: float | None = None
    steps: tuple[float, ...] = ()


def points_of(phase: str, lines: Iterable[Mapping[str, Any]]) -> tuple[Point, ...]:
    """A phase's curve from its lines of metrics, thinned out evenly; the lines may be hostile.

    A training that went back to a checkpoint has logged some steps twice: the later word counts.
    """
    kinds: dict[str, dict[int, Point]] = {kind: {} for kind in _VALUE}
    for line in lines:
        kind, step, at = line.get("kind"), line.get("step"), instant(line.get("at"))
        if kind not in kinds or type(step) is not int or at is None:
            continue
        value = number_of(line.get(_VALUE[kind])) if _VALUE[kind] else None
        if value is None and kind != SAVE:
            continue
        losses = line.get("val_step_losses") if kind == EVAL else ()
        steps = tuple(filter(None, map(number_of, losses))) if isinstance(losses, list) else ()
        kinds[kind].pop(step, None)
        kinds[kind][step] = Point(phase, kind, step, at, value, steps)
    kept = [point for rows in kinds.values() for point in _thinned(list(rows.values()))]
    return tuple(sorted(kept, key=lambda point: (point.at, point.step, point.kind)))


def _thinned(rows: Sequence[Point]) -> Sequence[Point]:
    if len(rows) <= MOST_POINTS:
        return rows
    last = len(rows) - 1
    return [rows[round(n * last / (MOST_POINTS - 1))] for n in range(MOST_POINTS)]
