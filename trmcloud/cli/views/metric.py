"""What a run is best by, as a person reads it: bits per byte, or a command's own metric."""

from __future__ import annotations

from trmcloud.cli.views.text import bpb, losses
from trmcloud.core.contract.command import Command
from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.core.control.reported import BY_POD, MARK, Reported
from trmcloud.core.plain_text import one_line

_EXTRA = "metric"


def metric_words(command: Command | None, told: Reported[Heartbeat]) -> str:
    """``bpb 2.310``, ``pod's val_loss 1.87``; of a command without a metric ``no metric``."""
    if told.checked(lambda beat: beat.val_bpb is None) or (command and not command.metric_name):
        return told.checked(lambda beat: _metric(command, beat.val_bpb))
    return told.as_pods(lambda beat: _metric(command, beat.val_bpb))


def metric_cell(command: Command | None, told: Reported[Heartbeat] | None) -> str:
    """The number alone, in a table that has ``marked_words`` below it."""
    if told is None or told.checked(lambda beat: beat.val_bpb is None):
        return _number(command, None)
    return told.as_marked(lambda beat: _number(command, beat.val_bpb))


def best_words(command: Command | None, told: Reported[Heartbeat]) -> str:
    """``best 2.310 at step 1,200``; '' before there is one."""
    if told.checked(lambda beat: beat.best_step is None):
        return ""
    return told.as_pods(
        lambda b: f"best {_number(command, b.best_bpb)} at step {b.best_step or 0:,}"
    )


def losses_words(told: Reported[Heartbeat]) -> str:
    """``ℓ 5.9 > 4.7``; '' where it has said none."""
    if told.checked(lambda beat: not beat.step_losses):
        return ""
    return told.as_pods(lambda beat: f"ℓ {losses(beat.step_losses)}")


def training_rows(command: Command | None, told: Reported[Heartbeat]) -> list[tuple[str, str]]:
    """How far it is, and by what it is judged, with whose word it is."""
    done = told.as_reported(lambda b: f"{b.phase} step {steps_words(b, ' of ')} · {b.state}")
    if command is not None:
        scored = told.checked(lambda beat: beat.val_bpb is not None)
        by = told.as_reported if scored and command.metric_name else told.checked
        return [("training", done), ("metric", by(lambda b: _metric(command, b.val_bpb)))]
    said = told.as_reported(lambda b: f"ℓ {losses(b.step_losses)} · {_metric(None, b.val_bpb)}")
    return [("training", done), ("losses", said)]


def _metric(command: Command | None, score: float | None) -> str:
    if command is None:
        return f"bpb {bpb(score)}"
    if not command.metric_name:
        return "no metric"
    return f"{one_line(command.metric_name)} {number(command.shown(score))}"


def _number(command: Command | None, score: float | None) -> str:
    """The number alone."""
    return bpb(score) if command is None else number(command.shown(score))


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def steps_words(beat: Heartbeat, of: str = "/") -> str:
    """``120/3,000``; ``120`` where nobody knows how many there are."""
    return f"{beat.step:,}{of}{beat.steps:,}" if beat.steps else f"{beat.step:,}"


def score_rows(command: Command | None, told: Reported[CheckpointManifest]) -> list[str]:
    """``final-step bpb  2.310   ℓ 3.9 > 3.8``, or a command's own metric, where it has one; a
    pod's report says that it is one, and the losses get a line of their own."""
    name = "final-step bpb" if command is None else one_line(command.metric_name)[:40]
    value = told.as_reported(_value)
    if command is not None:
        return [f"  {name:<14}  {value}"] if told.checked(_is_scored) and name else []
    if not told.checked(_is_scored):
        return [f"  {name}  {bpb(None)}   ℓ {losses(())}"]
    of_steps = told.checked(lambda manifest: f"ℓ {losses(manifest.step_losses)}")
    if told.here:
        return [f"  {name}  {value}   {of_steps}"]
    return [f"  {name}  {value}", f"  {'':<14}  {of_steps}"]


def score_words(command: Command | None, told: Reported[CheckpointManifest]) -> str:
    """``val_loss 1.87``, ``bpb 2.310``; a pod's report says that it is one."""
    name = "bpb" if command is None else one_line(command.metric_name)[:40]
    return f"{name} {told.as_reported(_value)}" if name else "no metric"


def score_cell(told: Reported[CheckpointManifest] | None, *, named: bool = False) -> str:
    """The number alone, or behind its name, in a table that has ``marked_words`` below it."""
    if told is None or not told.checked(_is_scored):
        return "–"
    return told.as_marked(_named if named else _value)


def _named(manifest: CheckpointManifest) -> str:
    told = manifest.extra.get(_EXTRA)
    name = told.get("name", "metric") if isinstance(told, dict) else "metric"
    return f"{one_line(str(name))[:40]} {_value(manifest)}"


def marked_words() -> str:
    return f"{MARK} {BY_POD}: trmcloud eval FOLDER measures a fetched one here"


def _is_scored(manifest: CheckpointManifest) -> bool:
    return manifest.val_bpb is not None


def _value(manifest: CheckpointManifest) -> str:
    told = manifest.extra.get(_EXTRA)
    if not isinstance(told, dict):
        return bpb(manifest.val_bpb)
    value = told.get("value")
    return number(float(value) if isinstance(value, (int, float)) else None)
