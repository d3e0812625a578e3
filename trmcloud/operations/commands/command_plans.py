"""``plan -- COMMAND``: a price for a command of the user's own, from what its probe measured."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.contract.command import Command
from trmcloud.core.errors import NotFoundError
from trmcloud.core.money import cost
from trmcloud.core.planner.command_outlook import CommandProbe
from trmcloud.core.spec.plan import Plan
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
PROBE_STEPS, PROBE_S, PROBE_MOST_S = 30, 300.0, 900.0
"""Of a probe, whose steps take unknown times: the assumed seconds, and those that are paid for."""


def plan_command(
    planner: Planner, request: LaunchRequest, own: CommandRequest, here: Path
) -> tuple[RunSpec, list[str]]:
    """The checked wish of a command that is planned before it is run, and what the plan rests on.

    Raises:
        NotFoundError: its probe says nothing about the hardware; the next step is one that does.
        UsageError: naming the option at fault.
    """
    refuse_tokens(own)
    command = command_of(own, request.data, here)  # first, so that a misspelt one is not probed
    words = command.words
    probed = probe_of(planner.home, words)
    if probed is None:
        return _unmeasured_plan(planner, request, command, here)
    typed = shlex.join(words)
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


def _unmeasured_plan(
    planner: Planner, request: LaunchRequest, command: Command, here: Path
) -> tuple[RunSpec, list[str]]:
    """The wish of a command that nothing is known of: until its limits end it, or for an hour."""
    asked = replace(request, hardware=request.hardware or "any")
    told = [_unmeasured(planner.home, command.words)]
    if all(limit is None for limit in (request.budget, request.hours, request.deadline)):
        if request.steps:
            rented = asked.hardware if asked.hardware not in (LOCAL, "any") else "any --memory 24"
            typed = shlex.join(command.words)
            raise NotFoundError(
                f"how long {request.steps:,} steps take was not measured; --budget 50 or --hours 8 "
                "in place of --steps needs no measurement",
                next_step=f"trmcloud run {rented} --probe 30 --budget 1 -- {typed}",
            )
        asked = replace(asked, hours=1.0, typed=(*asked.typed, "hours"))
        told.append("  one hour assumed: --budget 50 or --hours 8 sets the length")
    return spec_to_run(planner, asked, command), told


def probe_lines(home: Path, made: Plan) -> list[str]:
    """Return what a probe of the plan's command costs on the recommended hardware, and the command
    that makes it; empty where one was made."""
    chosen, command = made.recommended, made.spec.command
    if chosen is None or command is None or probe_of(home, command.words) is not None:
        return []
    typed = ["trmcloud", "run", chosen.hardware, "--probe", f"{PROBE_STEPS}"]
    if not chosen.rate:
        words = shlex.join([*typed, "--", *command.words])
        return [f"A probe of {PROBE_STEPS} steps costs nothing here:", f"  {words}"]
    rate, ends_s = chosen.reserved_rate, chosen.landing_s
    usual = cost(rate, chosen.startup_s.p50 + PROBE_S + ends_s)
    most = math.ceil(float(cost(rate, chosen.startup_s.p90 + PROBE_MOST_S + ends_s)) + 0.5)
    typed += ["--budget", f"{most}", "--", *command.words]
    return [
        f"A probe of {PROBE_STEPS} steps costs about ${float(usual):.2f} (boot and "
        f"{PROBE_S / 60:.0f} minutes), at most ${most}:",
        f"  {shlex.join(typed)}",
    ]


def _place(probed: CommandProbe) -> str:
    return "this machine" if probed.here else f"{probed.gpus} × {probed.sku}"


def _measured(probed: CommandProbe) -> str:
    text = f"{probed.measured.step_s:.3g} s a step on {_place(probed)}"
    return text + (f", {probed.used_gb:.1f} GB in use" if probed.used_gb else "")


def _unmeasured(home: Path, words: Sequence[str]) -> str:
    """What is known of a command that was not probed."""
    unknown = "not measured, so its speed and memory are not known"
    if _was_tried(home, words):
        return f"{unknown}; trmcloud try has run it, so it starts"
    return f"{unknown}; trmcloud try (free) checks what it needs"


def _was_tried(home: Path, words: Sequence[str]) -> bool:
    for path in sorted((home / TRIALS_DIR).glob("*.json"))[:500]:
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(record, dict) and record.get("words") == list(words):
            return True
    return False
