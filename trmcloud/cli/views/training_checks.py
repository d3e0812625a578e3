"""The trainer's checks: what they cost on each machine, what was asked for, and their results."""

from __future__ import annotations

from collections.abc import Sequence

from trmcloud.core.contract.training_checks import NAMES, CheckResult
from trmcloud.core.planner.roofline import MeasuredSpeed
from trmcloud.core.spec.plan import Candidate
from trmcloud.operations.checks.smoke_training import WantedChecks, least_usd

_MARKS = {True: "✔", False: "✘", None: "·"}
_NAME_COLUMNS = max(map(len, NAMES))


def machine_lines(machines: Sequence[Candidate], recipe: str) -> list[str]:
    """A line for each machine: its rate, and the sum that its checks need."""
    lines = [f"least sum for the checks of {recipe}, by machine:"]
    lines += [
        f"  {each.hardware:<12} {each.provider:<12} {each.rate}/h{'':<3} {least_usd(each)}"
        for each in machines
    ]
    if machines:
        first = machines[0]
        usd = least_usd(first).micros / 1e6
        lines.append(
            f"start: trmcloud smoke --train --hardware {first.hardware} --max-usd {usd:.2f}"
        )
    lines.append("free, on this machine: trmcloud smoke --train --hardware local")
    return lines


def wanted_lines(wanted: WantedChecks) -> list[str]:
    """The shape that is checked."""
    shape = wanted.planned
    text = f"{shape.recipe}: {shape.family}, depth {shape.depth}, width {shape.width}"
    if wanted.is_miniature:
        return [f"  checks          {text}", "  · a miniature, since this machine has no GPU"]
    return [f"  checks          {text}"]


def result_lines(results: Sequence[CheckResult], taught: MeasuredSpeed | None) -> list[str]:
    """A line for each check, and for what plans learn."""
    lines = []
    for each in results:
        result = "not checked: " if each.passed is None else ""
        lines.append(f"{_MARKS[each.passed]} {each.name:<{_NAME_COLUMNS}} {result}{each.detail}")
    missing = [name for name in NAMES if all(each.name != name for each in results)]
    if missing:
        lines.append(f"· not reached: {', '.join(missing)}")
    if taught is not None:
        lines.append(f"plans on this hardware now use {taught.step_s:.3g} s a step")
    return lines
