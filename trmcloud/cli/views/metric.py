"""What a run is best by, as a person reads it: bits per byte, or a command's own metric."""

from __future__ import annotations

from trmcloud.cli.views.text import bpb
from trmcloud.core.contract.command import Command
from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.core.control.run_state import RunState
from trmcloud.core.plain_text import one_line

_EXTRA = "metric"


def metric_words(command: Command | None, score: float | None) -> str:
    """``bpb 2.310``, ``val_loss 1.87``; of a command without a metric ``no metric``."""
    if command is None:
        return f"bpb {bpb(score)}"
    if not command.metric_name:
        return "no metric"
    return f"{one_line(command.metric_name)} {number(command.shown(score))}"


def metric_value(run: RunState, score: float | None) -> str:
    """The number alone, beside others in a column."""
    command = run.spec.command
    return bpb(score) if command is None else number(command.shown(score))


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def steps_words(beat: Heartbeat, of: str = "/") -> str:
    """``120/3,000``; ``120`` where nobody knows how many there are."""
    return f"{beat.step:,}{of}{beat.steps:,}" if beat.steps else f"{beat.step:,}"


def score_words(manifest: CheckpointManifest) -> tuple[str, str]:
    """(``final-step bpb``, ``2.310``) of a checkpoint, by what its manifest says of itself."""
    told = manifest.extra.get(_EXTRA)
    if not isinstance(told, dict):
        return "final-step bpb", bpb(manifest.val_bpb)
    value = told.get("value")
    known = float(value) if isinstance(value, (int, float)) else None
    return one_line(str(told.get("name", "metric")))[:40], number(known)
