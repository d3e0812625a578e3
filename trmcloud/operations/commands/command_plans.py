"""``plan -- COMMAND``: a price for a command of the user's own, from what its probe measured."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.errors import NotFoundError
from trmcloud.core.planner.command_outlook import CommandProbe
from trmcloud.core.spec.spec import RunSpec
from trmcloud.core.values import replace
from trmcloud.operations.commands.commands import (
    CommandRequest,
    command_of,
    misplaced,
    predicts,
    spec_to_run,
)
from trmcloud.operations.commands.trial import TRIALS_DIR
from trmcloud.operations.plans.measurements import probe_of
from trmcloud.operations.plans.planning import Planner
from trmcloud.options import LaunchRequest, refuse_tokens

STEPS = 1000
"""Planned where nothing says how long it takes."""


def plan_command(
    planner: Planner, request: LaunchRequest, own: CommandRequest, here: Path
) -> tuple[RunSpec, list[str]]:
    """The checked wish of a command that is planned before it is run, and what the plan rests on.

    Raises:
        NotFoundError: nothing was measured of it; the next step says what measures it.
        UsageError: naming the option at fault.
    """
    refuse_tokens(own)
    command = command_of(own, request.data, here)  # first, so that a misspelt one is not probed
    words = command.words
    probed = probe_of(planner.home, words)
    typed = shlex.join(words)
    if probed is None:
        raise NotFoundError(
            _unmeasured(planner.home, words),
            next_step=f"trmcloud run any --memory 24 --probe 30 --budget 1 -- {typed}",
        )
    hardware, limits = request.hardware, (request.budget, request.hours, request.deadline)
    buys = request.budget is not None and request.rate is None
    if not hardware and (probed.is_of_gpus or buys):
        several = probed.gpus > 1 and probed.is_of_gpus
        hardware = f"{probed.gpus}xany" if several else "any"
    asked = replace(request, hardware=hardware or LOCAL)
    told = [f"planned from its probe {probed.run_id}: {_measured(probed)}"]
    rented = asked.hardware if asked.hardware not in (LOCAL, "any") else "any --memory 24"
    probing = f"trmcloud run {rented} --probe 30 --budget 1 -- {typed}"
    if not predicts(probed, asked.hardware):
        where = "there" if probed.is_of_gpus else "on a GPU"
        why = f"not measured {where}, so no estimate: its probe {probed.run_id} ran on "
        why += _place(probed)
        if all(limit is None for limit in limits):
            raise NotFoundError(why, next_step=probing)
        told = [f"{why}; {probing} measures it"]
    elif not hardware:
        told.append(f"  not measured on a GPU, so no estimate for one: {probing} measures it")
    told += [note] if (note := misplaced(words, here)) else []
    is_open = not (request.steps or request.hours or request.budget or request.deadline)
    if is_open:
        asked = replace(asked, steps=STEPS)
        told.append(f"  {STEPS:,} steps assumed; --steps sets the number")
    return spec_to_run(planner, asked, command), told


def _place(probed: CommandProbe) -> str:
    return "this machine" if probed.here else f"{probed.gpus} × {probed.sku}"


def _measured(probed: CommandProbe) -> str:
    text = f"{probed.measured.step_s:.3g} s a step on {_place(probed)}"
    return text + (f", {probed.used_gb:.1f} GB in use" if probed.used_gb else "")


def _unmeasured(home: Path, words: Sequence[str]) -> str:
    """What is known of a command that was not probed."""
    tried = _was_tried(home, words)
    if tried:
        return (
            "trmcloud try has run this command, so it starts; its speed on a GPU is not known, "
            "because no probe of exactly these words exists"
        )
    return (
        "no measurement of exactly these words exists: a probe times some steps on a rented GPU; "
        "trmcloud try (free) checks first what the command needs"
    )


def _was_tried(home: Path, words: Sequence[str]) -> bool:
    for path in sorted((home / TRIALS_DIR).glob("*.json"))[:500]:
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(record, dict) and record.get("words") == list(words):
            return True
    return False
