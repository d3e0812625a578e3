"""A phase's settings as recovery may change them, and as it has changed them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from trmcloud.core.contract.phase_account import CLIMBS
from trmcloud.core.contract.recovery import LADDER, LAST_RUNGS, NEEDED, PRESET, RATE
from trmcloud.core.errors import UsageError
from trmcloud.core.spec.settings import CommandSettings, PhaseRecipe
from trmcloud.core.values import replace

_RATES = ("matrix_lr", "embedding_lr", "head_lr")


def recoverable(
    settings: PhaseRecipe, set_by_hand: Collection[str] = (), last_rungs: Collection[str] = ()
) -> dict[str, Any]:
    """What a lease says of a phase's settings: see ``recovery.NEEDED``.

    Args:
        set_by_hand: keys that the user has set: a micro-batch among them does not climb.
        last_rungs: those of ``LAST_RUNGS`` that the user asked for.
    """
    if isinstance(settings, CommandSettings):
        return {}
    named = {key: getattr(settings, key) for key in NEEDED}
    if PRESET in settings.names():
        named[PRESET] = getattr(settings, PRESET)
    if not {"batch", "accumulation"} & set(set_by_hand):
        named[CLIMBS] = True
    cut = [key for key in last_rungs if not _why_uncut(settings, key)]
    return named | {key: getattr(settings, key) for key in cut}


def parse_last_rungs(text: str) -> tuple[str, ...]:
    """``depth,sequence`` in the order in which they are tried.

    Raises:
        UsageError: it names another, or none.
    """
    named = [part.strip() for part in text.split(",")]
    if strange := next((name for name in named if name not in LAST_RUNGS), None):
        raise UsageError(
            f"--last-rungs takes depth and sequence, not {strange[:40]!r}",
            next_step="--last-rungs depth,sequence",
        )
    if "" in named:
        raise UsageError("--last-rungs names nothing", next_step="--last-rungs depth,sequence")
    return tuple(name for name in LAST_RUNGS if name in named)


def check_last_rungs(asked: Collection[str], phases: Collection[PhaseRecipe]) -> None:
    """
    Raises:
        UsageError: one of ``asked`` that no phase can ever be cut by.
    """
    for key in asked:
        whys = [_why_uncut(settings, key) for settings in phases]
        if whys and all(whys):
            raise UsageError(
                f"--last-rungs {key} can never help: {whys[0]}",
                next_step=f"leave {key} out of it, or plan with --set {key}=…",
            )


def _why_uncut(settings: PhaseRecipe, key: str) -> str:
    """Why the last rung ``key`` can never be tried on these settings; empty where it can."""
    if key == "sequence" and settings.row_is_text:
        return "its rows are made as long as they are"
    rung = next(each for each in LADDER if each.name == key)
    changed = rung.change({"accumulation": settings.accumulation, key: getattr(settings, key)})
    if not changed:
        return f"a {key} of {getattr(settings, key)} is not cut"
    try:
        overridden(settings, changed)
    except UsageError as refused:
        return refused.what
    return ""


def overridden(settings: PhaseRecipe, overrides: Mapping[str, Any]) -> PhaseRecipe:
    """``settings`` with what ``supervise`` has changed of them: a step learns from as many
    sequences as before.

    Raises:
        UsageError: settings that cannot be.
    """
    values = dict(overrides)
    rate = values.pop(RATE, 1.0)
    values |= settings.implied(values)
    if rate != 1.0:
        values |= {key: getattr(settings, key) * rate for key in _RATES}
    changed = replace(settings, **values)
    changed.check()
    return changed
