"""What was mended in a run, in words: what happened, what was changed, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trmcloud.app.context import Context
from trmcloud.app.recovered import Recovered, recovered
from trmcloud.cli.views.text import duration
from trmcloud.core.contract.recovery import AGAIN, RATE, SKIPPED, SPARE
from trmcloud.core.control.run_state import RunState
from trmcloud.core.plain_text import one_line

_HAPPENED: Mapping[str, str] = {
    "out_of_memory": "ran out of memory",
    "non_finite": "loss or gradients were not finite",
    "diverged": "the loss rose and stayed up",
    "crashed": "the trainer crashed",
    "lost": "a process of the trainer was lost",
    SPARE: "memory was to spare",
}
_WORDS: Mapping[str, str] = {
    "activation_checkpointing": "activation checkpointing",
    "compile": "compile",
    "loader_workers": "loader_workers",
    "preset": "preset",
}
_SHORT_WHY = 120


def happened(row: Recovered) -> str:
    """``fast step 40: ran out of memory (CUDA out of memory)``."""
    made = row.recovery
    where = f"{one_line(row.phase)} step {made.step:,}"
    if made.rung == SKIPPED:
        told = "1 step was" if made.times == 1 else f"{made.times:,} steps were"
        return f"{where}: {told} left out, not finite or far above those before"
    what = _HAPPENED.get(made.what, one_line(made.what))
    if made.what == "lost" and made.why.startswith("no step for"):
        what = "the trainer stood still"
    why = one_line(made.why)
    if len(why) > _SHORT_WHY:
        why = f"{why[: _SHORT_WHY - 1]}…"
    times = {1: "", 2: ", twice"}.get(made.times, f", {made.times:,} times")
    return f"{where}: {what}{times}" + (f" ({why})" if why else "")


def done_about(row: Recovered) -> str:
    """``started again with batch 2 × accumulation 4``."""
    made = row.recovery
    if made.rung == SKIPPED:
        return "the data went on, and the weights stayed as they were"
    if made.rung == AGAIN or not made.changed:
        return "started again from its last checkpoint"
    named = f" ({one_line(made.rung)})" if made.what == SPARE else ""
    return f"started again with {_changes(made.changed)}{named}"


def lost(row: Recovered) -> str:
    """``12 steps · 34 s · $0.0012 lost``."""
    made = row.recovery
    steps = "1 step" if made.lost_steps == 1 else f"{made.lost_steps:,} steps"
    return f"{steps} · {duration(made.lost_s)} · {row.lost} lost"


def recovered_rows(context: Context, run: RunState) -> list[tuple[str, str]]:
    """Two rows for each thing that was mended."""
    rows = []
    for each in recovered(context, run):
        rows.append(("mended", happened(each)))
        rows.append(("  by", f"{done_about(each)} · {lost(each)}"))
    return rows


class News:
    """Rows that were not told yet; of steps that are left out the first alone, since the log itself
    has each of them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._said: set[tuple[int, str, str, str, int]] = set()

    def of(self, run: RunState) -> list[tuple[str, str]]:
        """(what happened, what was done about it and what it cost) of each."""
        news = []
        for each in recovered(self._context, run):
            made = each.recovery
            number = 0 if made.rung == SKIPPED else made.times
            key = (each.generation, each.phase, made.what, f"{made.rung} {made.changed}", number)
            if key not in self._said:
                self._said.add(key)
                news.append((happened(each), f"{done_about(each)} · {lost(each)}"))
        return news


def recovered_json(context: Context, run: RunState) -> list[dict[str, Any]]:
    return [
        {
            "generation": each.generation,
            "phase": each.phase,
            "step": each.recovery.step,
            "at": each.recovery.at,
            "what": each.recovery.what,
            "rung": each.recovery.rung,
            "changed": dict(each.recovery.changed),
            "times": each.recovery.times,
            "lost_steps": each.recovery.lost_steps,
            "lost_seconds": each.recovery.lost_s,
            "lost_usd": float(each.lost),
            "text": f"{happened(each)}; {done_about(each)}",
        }
        for each in recovered(context, run)
    ]


def _changes(changed: Mapping[str, Any]) -> str:
    told = []
    if "batch" in changed:
        told.append(f"batch {changed['batch']} × accumulation {changed.get('accumulation', 1)}")
    if RATE in changed:
        told.append(f"{changed[RATE]:g} of its learning rates")
    for key, words in _WORDS.items():
        if key in changed:
            value = changed[key]
            value = {True: "on", False: "off"}[value] if isinstance(value, bool) else value
            told.append(f"{words} {value}")
    known = {"batch", "accumulation", RATE, *_WORDS}
    told += [f"{key} {value}" for key, value in changed.items() if key not in known]
    return one_line(", ".join(told))
