"""A trial: its checks, what it could not contain, the line to type; and a record beside a plan."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from trmcloud.cli.views.streams import draw
from trmcloud.cli.views.text import duration
from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.spec.plan import Plan
from trmcloud.core.text import one_line
from trmcloud.io.redaction import mask_tokens
from trmcloud.operations.commands.trial import Trial, find_trial
from trmcloud.operations.commands.trial_checks import Result, failed
from trmcloud.operations.context import Context

_MARKS = {Result.PASSED: "✔", Result.FAILED: "✘", Result.UNKNOWN: "·"}
_NAME_COLUMNS = 9


def check_lines(trial: Trial) -> list[str]:
    """A line for each check, the fix of one that is not passed below it."""
    lines = []
    for check in trial.checks:
        mark = _MARKS[check.result]
        result = "" if check.result is Result.PASSED else f"{check.result.value}: "
        lines.append(f"{mark} {check.name:<{_NAME_COLUMNS}} {result}{one_line(check.evidence)}")
        if check.details and check.result is not Result.PASSED:
            lines += [f"    | {one_line(line)}" for line in check.details]
        if check.fix:
            word = "fix:" if check.result is Result.FAILED else "by"
            lines.append(f"    {word} {one_line(check.fix)}")
    return lines


def contained_lines(trial: Trial) -> list[str]:
    """A line for each thing that was not contained, and for what the run does otherwise."""
    return [
        *(f"  not contained: {one_line(text)}" for text in trial.contained),
        *(f"  otherwise: {one_line(text)}" for text in trial.differences),
    ]


def trial_lines(context: Context, plan: Plan, code: Callable[[], Path]) -> list[str]:
    """The lines of a plan that rents about a trial of the same code and command: failed checks, and
    those that are unknown; how to make one where there is none.

    Args:
        code: packs the code, and returns its folder.
    """
    command = plan.spec.command
    rents = any(plan.candidate(name).provider != LOCAL for name in plan.launchable)
    if command is None or not rents:
        return []
    trial = find_trial(context.home, code(), command.words)
    if trial is None:
        typed = mask_tokens(one_line(shlex.join(command.words)))
        return [f"  · not tried here yet: trmcloud try -- {typed}"]
    return record_lines(trial, context.wall())


def record_lines(trial: Trial, now: float) -> list[str]:
    """``tried here 2 h 05 min ago; not known: …``, and a warning for each check that failed."""
    ago = duration(max(0.0, now - trial.at))
    unknown = f"; not known: {', '.join(trial.unknown)}" if trial.unknown else ""
    lines = [f"  · tried here {ago} ago{unknown}"]
    for check in failed(trial.checks):
        fix = f"; fix: {one_line(check.fix)}" if check.fix else ""
        lines.append(f"  ! failed there: {check.name}: {one_line(check.evidence)}{fix}")
    return lines


class TrialProgress:
    """The running command on a terminal, one line that replaces itself; silence elsewhere."""

    def __init__(self, for_s: float) -> None:
        self._for_s = for_s

    def __call__(self, said: Mapping[str, object]) -> None:
        if not sys.stderr.isatty():
            return
        at_s = said.get("at_s")
        words = [f"{at_s} of {self._for_s:g} s"]
        if said.get("step") is not None:
            words.append(f"step {said['step']}")
        if said.get("attempt") == 2:
            words.insert(0, "resuming")
        elif said.get("told"):
            words.insert(0, "stopping")
        draw("\r\x1b[K  " + one_line(" · ".join(words)))

    def clear(self) -> None:
        if sys.stderr.isatty():
            draw("\r\x1b[K")
