"""Recovery of a phase that ended badly: the measures, their order and number, and their result.

``LADDER`` is the whole table: an outcome's rungs are tried from the top, each as often as it says.
A rung changes settings of the phase, and never what a step learns from: the sequences of a step
stay. Overrides go to the trainer as JSON in one environment variable, and are read strictly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any

from trmcloud.core.contract.records import (
    Asks,
    ContractError,
    Instant,
    Label,
    Step,
    formed,
    parse,
    within,
)
from trmcloud.core.values import Value, replace

OUT_OF_MEMORY, NON_FINITE, DIVERGED = "out_of_memory", "non_finite", "diverged"
SPARE = "memory_spare"
"""The reason of a recovery when nothing went wrong: the micro-batch climbs, see ``climbing``."""
AGAIN, SKIPPED = "again", "skipped"
"""The names of recoveries that are no rung: the same settings again, and steps that the trainer
left out by itself."""
RATE = "rate"
"""The one override that is no setting: a factor on every learning rate, above 0 and at most 1."""
PRESET = "preset"
"""A setting with names for how hard a model is pushed, of those families that have one."""
PRESETS_DOWN: Mapping[str, str] = {"extreme": "aggressive", "aggressive": "moderate"}
MOST_RECOVERIES = 32
_MOST_OVERRIDES_BYTES = 4096
_LONGEST_WHY = 300

_label = formed(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


def _plain(settings: Mapping[str, Any]) -> bool:
    """Whether it is no more than a few named numbers, switches and words."""
    return len(settings) <= 16 and all(
        _label(key) and (isinstance(value, (bool, int, float)) or _is_word(value))
        for key, value in settings.items()
    )


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and (not value or bool(_label(value)))


Plain = Annotated[Mapping[str, Any], _plain]
"""Settings by name, as somebody else's machine may tell them."""
Seconds = Annotated[float, within(0.0, 1e9)]
Brief = Annotated[str, lambda text: len(text) <= _LONGEST_WHY]


class Recovery(Value):
    """A phase's trouble, the recovery from it, and its cost.

    Those that changed nothing are told together: ``times`` of them, ``step`` and ``at`` the last.
    """

    what: Label
    """An outcome of the contract, ``lost`` or ``SPARE``."""
    rung: Label
    """The name of one of ``LADDER``'s or of ``climbing``'s, ``AGAIN`` or ``SKIPPED``."""
    step: Step = 0
    at: Instant = 0.0
    changed: Plain = field(default_factory=dict)
    """The settings that were changed, as they are now."""
    lost_steps: Step = 0
    """Trained, and not saved: they are trained again; of those skipped, how many."""
    lost_s: Seconds = 0.0
    """From the last checkpoint, or the attempt's start, to its end."""
    times: Asks = 1
    why: Brief = ""


Recoveries = Annotated[tuple[Recovery, ...], lambda rows: len(rows) <= MOST_RECOVERIES]


class Rung(Value):
    """One thing to try after one of ``outcomes``, at most ``most`` times in a phase."""

    name: str
    outcomes: tuple[str, ...]
    most: int
    change: Callable[[Mapping[str, Any]], dict[str, Any]]
    """Returns the changed settings for the given ones; empty where there is nothing to change."""


def _smaller_batch(now: Mapping[str, Any]) -> dict[str, Any]:
    """Half the micro-batch, or its largest divisor, and as many more passes."""
    batch, accumulation = int(now["batch"]), int(now["accumulation"])
    factor = next((n for n in range(2, batch + 1) if batch % n == 0), 0)
    if not factor:
        return {}
    return {"batch": batch // factor, "accumulation": accumulation * factor}


def _checkpointing(now: Mapping[str, Any]) -> dict[str, Any]:
    if not now["activation_checkpointing"]:
        return {"activation_checkpointing": True}
    return {"selective_checkpointing": False} if now.get("selective_checkpointing") else {}


def _no_compile(now: Mapping[str, Any]) -> dict[str, Any]:
    return {"compile": False} if now["compile"] else {}


def _no_workers(now: Mapping[str, Any]) -> dict[str, Any]:
    return {"loader_workers": 0} if now["loader_workers"] else {}


def _half_rate(now: Mapping[str, Any]) -> dict[str, Any]:
    return {RATE: now.get(RATE, 1.0) / 2}


def _lower_preset(now: Mapping[str, Any]) -> dict[str, Any]:
    lower = PRESETS_DOWN.get(str(now.get(PRESET, "")))
    return {PRESET: lower} if lower else {}


_MEMORY, _UNSOUND = (OUT_OF_MEMORY,), (NON_FINITE, DIVERGED)
LADDER: tuple[Rung, ...] = (
    Rung("batch", _MEMORY, 3, _smaller_batch),
    Rung("checkpointing", _MEMORY, 1, _checkpointing),
    Rung("compile", _MEMORY, 1, _no_compile),
    Rung("loader", _MEMORY, 1, _no_workers),
    Rung("rate", _UNSOUND, 2, _half_rate),
    Rung("preset", _UNSOUND, 2, _lower_preset),
)
MENDED = frozenset(outcome for rung in LADDER for outcome in rung.outcomes)
"""Outcomes that some rung may help against."""
NEEDED = ("batch", "accumulation", "activation_checkpointing", "compile", "loader_workers")
"""Settings that a phase's lease must name for its ladder to be climbed; ``preset`` may be."""


def overrides_of(recoveries: Sequence[Recovery]) -> dict[str, Any]:
    """All that was changed so far, as it is now."""
    changed: dict[str, Any] = {}
    for each in recoveries:
        changed.update(each.changed)
    return changed


def next_rung(
    settings: Mapping[str, Any], recoveries: Sequence[Recovery], outcome: str
) -> tuple[str, dict[str, Any]] | None:
    """The next thing to try after ``outcome``, and what it changes; None: nothing is left.

    Args:
        settings: the phase's own, those of ``NEEDED`` at least; with fewer nothing is tried.
        recoveries: what was tried so far.
    """
    if any(key not in settings for key in NEEDED):
        return None
    now = {**settings, **overrides_of(recoveries)}
    for rung in LADDER:
        tried = sum(each.rung == rung.name for each in recoveries)
        if outcome in rung.outcomes and tried < rung.most and (changed := rung.change(now)):
            return rung.name, changed
    return None


def note_recovery(recoveries: tuple[Recovery, ...], one: Recovery) -> tuple[Recovery, ...]:
    """The account with ``one`` more: what changed nothing is added to the row of its kind."""
    one = replace(one, why=one.why[:_LONGEST_WHY])
    for index, row in enumerate(recoveries):
        if one.changed or row.changed or (row.what, row.rung) != (one.what, one.rung):
            continue
        added = replace(
            one,
            times=row.times + one.times,
            lost_steps=row.lost_steps + one.lost_steps,
            lost_s=row.lost_s + one.lost_s,
        )
        return (*recoveries[:index], *recoveries[index + 1 :], added)
    return (*recoveries, one)[-MOST_RECOVERIES:]


_COUNT: Callable[[Any], bool] = lambda value: type(value) is int and 0 < value <= 1 << 20  # noqa: E731
_SWITCH: Callable[[Any], bool] = lambda value: type(value) is bool  # noqa: E731
_OVERRIDES: Mapping[str, Callable[[Any], bool]] = {
    "batch": _COUNT,
    "accumulation": _COUNT,
    "activation_checkpointing": _SWITCH,
    "selective_checkpointing": _SWITCH,
    "compile": _SWITCH,
    "loader_workers": lambda value: value == 0 and type(value) is int,
    # Cut by an earlier version, whose run may go on here.
    "depth": _COUNT,
    "sequence": _COUNT,
    PRESET: lambda value: value in PRESETS_DOWN.values(),
    RATE: lambda value: type(value) is float and 0 < value <= 1,
}


def read_overrides(text: str) -> dict[str, Any]:
    """Return the settings in ``TRMCLOUD_OVERRIDES``.

    Raises:
        ContractError: it is nothing that any rung gives.
    """
    values = parse(text, _MOST_OVERRIDES_BYTES)
    if not isinstance(values, dict):
        raise ContractError("overrides are no object")
    for key, value in values.items():
        if key not in _OVERRIDES or not _OVERRIDES[key](value):
            raise ContractError(f"{key[:40]!r} cannot be overridden so")
    return values
