"""Goals: published results, the recipes known to reach them, and whether a run did. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from trmcloud.core import codec
from trmcloud.core.errors import UsageError
from trmcloud.core.money import Usd
from trmcloud.core.nearest import suggest_name
from trmcloud.core.values import Value

if TYPE_CHECKING:
    from trmcloud.core.contract.manifest import KnownCheckpoint

CORE = "core"
METRICS: Mapping[str, str] = {
    CORE: "CORE",
    "val_bpb": "bits per byte",
    "val_loss": "nats per token",
    "exact_accuracy": "exact accuracy",
}
"""The metrics of goals, and their names on a screen. ``val_bpb`` and ``val_loss`` are those of a
checkpoint's own validation text; every other one is a figure that its trainer logs."""
OF_CHECKPOINTS = ("val_bpb", "val_loss")
"""Metrics that a checkpoint's manifest has."""
Scores = Mapping[tuple[str, int], float]
"""Of a goal's metric, by phase and step, as the trainer logged it."""


class Evidence(Value):
    """A run that reached the goal: whose, on what, when, and where that is published."""

    value: float
    hardware: str
    hours: float
    by: str
    source: str
    """The address of the publication, or this project's own page."""
    day: str
    """2026-03-14"""
    usd: Usd | None = field(default=None, metadata=codec.kept_as("usd"))
    """Its rent at the price of its day; None where no price is known."""


class Goal(Value):
    """A row of the table: a result, and the recipe that is known to reach it."""

    name: str
    title: str
    metric: str
    threshold: float
    higher: bool
    """Whether a larger value is a better one."""
    recipe: str
    phases: tuple[str, ...] = ()
    """Empty: the recipe's own."""
    settings: tuple[tuple[str, Any], ...] = ()
    """``--set`` of the run that reached it."""
    evidence: tuple[Evidence, ...] = ()
    not_shown: tuple[str, ...] = ()
    """Facts that this project has not shown itself, a sentence each."""

    @property
    def words(self) -> str:
        """``CORE ≥ 0.2565``"""
        return f"{METRICS[self.metric]} {'≥' if self.higher else '≤'} {self.threshold:g}"

    @property
    def suite(self) -> str:
        """The suite of tasks that its metric is measured by, at the end of a training; empty where
        the trainer's own evaluation measures it."""
        return self.metric if self.metric == CORE else ""

    def is_met_by(self, value: float) -> bool:
        return value >= self.threshold if self.higher else value <= self.threshold


class GoalResult(Value):
    """The best value among a run's checkpoints; ``value`` is None where none was measured."""

    goal: Goal
    value: float | None
    label: str = ""
    """The checkpoint's, as ``train/step-00005567``."""

    @property
    def is_reached(self) -> bool:
        return self.value is not None and self.goal.is_met_by(self.value)

    @property
    def words(self) -> str:
        """One line for a screen."""
        name = METRICS[self.goal.metric]
        if self.value is None:
            return f"goal {self.goal.name}: not judged: no checkpoint has its {name}"
        reached = "reached" if self.is_reached else "not reached"
        sign = "≥" if self.goal.higher else "≤"
        return (
            f"goal {self.goal.name}: {reached}: {name} {self.value:.4g} at {self.label}, {sign} "
            f"{self.goal.threshold:g} asked"
        )


def judge_goal(
    goal: Goal, checkpoints: Iterable[KnownCheckpoint], scores: Scores | None = None
) -> GoalResult:
    """Judge a run by the best of its checkpoints, in the metric of its goal. ``scores``: of a
    metric that checkpoints do not have; one without a checkpoint does not count."""
    best = GoalResult(goal, None)
    for made in checkpoints:
        value = _value_of(goal.metric, made, scores or {})
        if value is None:
            continue
        if best.value is None or (value > best.value if goal.higher else value < best.value):
            best = GoalResult(goal, value, made.label)
    return best


def _value_of(metric: str, made: KnownCheckpoint, scores: Scores) -> float | None:
    if metric == "val_bpb":
        return made.val_bpb
    if metric == "val_loss":  # which a pod's report of a checkpoint does not say
        losses = getattr(made, "step_losses", ())
        return losses[-1] if losses else None
    return scores.get((made.phase, made.step))


# The table, from the mapping of its TOML file.

_KEYS = {
    "title", "metric", "at_least", "at_most", "recipe", "phases", "settings", "evidence",
    "not_shown",
}  # fmt: skip
_EVIDENCE = {"value", "hardware", "hours", "by", "source", "day", "usd"}


def parse_goals(content: Mapping[str, Any], where: str) -> dict[str, Goal]:
    """The goals of a TOML file by name, in its order.

    Raises:
        UsageError: naming the row and the key at fault.
    """
    return {name: _parse_goal(name, row, where) for name, row in content.items()}


def _parse_goal(name: str, row: Any, where: str) -> Goal:
    place = f"{where} [{name}]"
    if not isinstance(row, Mapping):
        raise UsageError("a goal is a table", where=place, next_step="[NAME]")
    _check_keys(row, _KEYS, place)
    limits = [key for key in ("at_least", "at_most") if key in row]
    if len(limits) != 1:
        raise UsageError("a goal has either at_least or at_most", where=place)
    metric = _text(row, "metric", place)
    if metric not in METRICS:
        raise UsageError(
            f"no metric {metric!r:.40}", where=place, next_step=suggest_name(metric, METRICS)
        )
    settings = row.get("settings", {})
    if not isinstance(settings, Mapping):
        raise UsageError("settings is a table", where=place)
    return Goal(
        name=name,
        title=_text(row, "title", place),
        metric=metric,
        threshold=_number(row, limits[0], place),
        higher=limits[0] == "at_least",
        recipe=_text(row, "recipe", place),
        phases=_texts(row, "phases", place),
        settings=tuple(settings.items()),
        evidence=tuple(_parse_evidence(each, place) for each in row.get("evidence", ())),
        not_shown=_texts(row, "not_shown", place),
    )


def _parse_evidence(row: Any, place: str) -> Evidence:
    where = f"{place} evidence"
    if not isinstance(row, Mapping):
        raise UsageError("evidence is a table", where=where)
    _check_keys(row, _EVIDENCE, where)
    usd = row.get("usd")
    return Evidence(
        value=_number(row, "value", where),
        hardware=_text(row, "hardware", where),
        hours=_number(row, "hours", where),
        by=_text(row, "by", where),
        source=_text(row, "source", where),
        day=str(row.get("day", "")),
        usd=None if usd is None else Usd(str(usd)),
    )


def _check_keys(row: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    for key in row:
        if key not in known:
            raise UsageError(
                f"unknown key {key!r:.40}", where=where, next_step=suggest_name(key, known)
            )


def _text(row: Mapping[str, Any], key: str, where: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value:
        raise UsageError(f"{key} takes text, not {value!r:.40}", where=where)
    return value


def _texts(row: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    values = row.get(key, [])
    if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
        raise UsageError(f"{key} takes a list of texts", where=where)
    return tuple(values)


def _number(row: Mapping[str, Any], key: str, where: str) -> float:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UsageError(f"{key} takes a number, not {value!r:.40}", where=where)
    return float(value)
