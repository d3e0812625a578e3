"""``plan -- COMMAND``: a price for a command of the user's own, from what its probe measured."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from trmcloud.app.commands import CommandRequest, command_of, misplaced, spec_to_run
from trmcloud.app.measurements import probe_of
from trmcloud.app.planning import Planner
from trmcloud.app.trial import TRIALS_DIR
from trmcloud.core.errors import NotFoundError
from trmcloud.core.planner.command_outlook import CommandProbe
from trmcloud.core.spec.spec import RunSpec
from trmcloud.core.values import replace
from trmcloud.options import LaunchRequest

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
    command = command_of(own, request.data, here)  # first, so that a misspelt one is not probed
    words = command.words
    probed = probe_of(planner.home, words)
    typed = shlex.join(words)
    if probed is None:
        raise NotFoundError(
            _unmeasured(planner.home, words),
            next_step=f"trmcloud run any --memory 24 --probe 30 --budget 1 -- {typed}",
        )
    asked = request
    if not request.hardware:
        asked = replace(request, hardware=f"{probed.gpus}xany" if probed.gpus > 1 else "any")
    told = [f"planned from its probe {probed.run_id}: {_measured(probed)}"]
    told += [note] if (note := misplaced(words, here)) else []
    is_open = not (request.steps or request.hours or request.budget or request.deadline)
    if is_open:
        asked = replace(asked, steps=STEPS)
        told.append(f"  {STEPS:,} steps assumed; --steps sets the number")
    return spec_to_run(planner, asked, command), told


def _measured(probed: CommandProbe) -> str:
    where = "this machine" if probed.here else f"{probed.gpus} × {probed.sku}"
    text = f"{probed.measured.step_s:.3g} s a step on {where}"
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
