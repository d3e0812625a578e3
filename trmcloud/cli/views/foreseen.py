"""What an action on a run does and costs, before it is agreed to: on the page and in a terminal."""

from __future__ import annotations

from trmcloud.cli.views.text import duration
from trmcloud.core.money import ZERO
from trmcloud.operations.launch.steering import Forecast


def question(seen: Forecast, folder: str = "") -> tuple[str, str, list[str]]:
    """Return an action's title, the words that agree to it, and what it does and costs.

    Args:
        folder: where a checkpoint would be copied to.
    """
    takes = f"within {duration(seen.seconds)}"
    spends = f"It spends at most {seen.at_most} more of the run's {seen.cap}, {takes}."
    gives = f"At least {seen.freed} of what is reserved is given back."
    ends = [spends, gives] if seen.freed else [spends]
    match seen.verb:
        case "land":
            told = "It finishes its step, saves and evaluates; then its pod is ended."
            return "Land this run", f"Land it, {seen.at_most} at most", [told, *ends]
        case "stop":
            lost = "No step is lost."
            if seen.lost_steps:
                lost = f"{seen.lost_steps:,} steps since its last checkpoint, worth {seen.lost}, "
                lost += "are lost."
            lines = ["Its pod is ended at once, without a save.", lost, *ends]
            return "Stop this run at once", f"Stop it now, {seen.at_most} at most", lines
        case "save":
            told = f"Saving and evaluating costs {seen.at_most} at most, of the run's {seen.cap}; "
            told += "then training continues."
            return "Save a checkpoint now", f"Save now, {seen.at_most} at most", [told]
        case "fetch":
            costs = f"It costs {ZERO}: nothing is rented for it."
            if seen.rents:
                costs = f"A {seen.rents} is rented to fetch it: {seen.at_most} at most."
            what = seen.what or "Its best checkpoint"
            lines = [f"{what} is copied below {folder}, every hash verified.", costs]
            button = f"Fetch it, {seen.at_most}" + (" at most" if seen.rents else "")
            return "Fetch the best checkpoint", button, lines
    lines = [
        "It continues from its last checkpoint, as long as this page's server runs or another "
        "command drives it; its pod ends on time without them.",
        f"Its whole budget is {seen.cap} then: {seen.at_most} more at most.",
    ]
    return "Continue with a larger budget", f"Continue, {seen.at_most} more at most", lines
