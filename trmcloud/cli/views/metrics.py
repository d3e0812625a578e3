"""A run's metrics: scores, losses, what the next dollar buys, a target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from trmcloud.cli.views.text import losses
from trmcloud.core.contract.command import RECIPE, Command
from trmcloud.core.contract.manifest import CheckpointManifest, Known, KnownCheckpoint
from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.core.reported import BY_POD, MARK, ReportedValue
from trmcloud.core.text import one_line
from trmcloud.operations.words import bpb, number

if TYPE_CHECKING:
    from trmcloud.operations import views


class _Sourced(Protocol):
    @property
    def reported_by(self) -> str | None: ...


_T = TypeVar("_T", bound=_Sourced)


def told_of(made: _T) -> ReportedValue[_T]:
    """Return a part of a view with its source."""
    return ReportedValue(made, here=made.reported_by is None)


def metric_words(command: Command | None, told: ReportedValue[Heartbeat]) -> str:
    """``bpb 2.310``, ``pod's val_loss 1.87``; of a command without a metric ``no metric``."""
    if told.checked(lambda beat: beat.val_bpb is None) or (command and not command.metric_name):
        return told.checked(lambda beat: _metric(command, beat.val_bpb))
    return told.as_pods(lambda beat: _metric(command, beat.val_bpb))


def metric_cell(row: views.RunRow) -> str:
    """Return the number alone, in a table that has ``marked_words`` below it."""
    words = bpb if row.recipe != RECIPE else number
    value = row.val_bpb if row.metric is None else row.metric.value
    told = ReportedValue(value, here=value is None or row.reported_by is None)
    return told.as_marked(words)


def best_words(command: Command | None, told: ReportedValue[Heartbeat]) -> str:
    """``best 2.310 at step 1,200``; '' before there is one."""
    if told.checked(lambda beat: beat.best_step is None):
        return ""
    return told.as_pods(
        lambda b: f"best {_number(command, b.best_bpb)} at step {b.best_step or 0:,}"
    )


def losses_words(told: ReportedValue[Heartbeat]) -> str:
    """``ℓ 5.9 > 4.7``; '' where it has said none."""
    if told.checked(lambda beat: not beat.step_losses):
        return ""
    return told.as_pods(lambda beat: f"ℓ {losses(beat.step_losses)}")


def training_rows(view: views.RunView) -> list[tuple[str, str]]:
    """Return the rows of the progress and the metric, each with its source."""
    beat, told = view.training, told_of(view)
    if beat is None:
        return []
    done = f"{beat.phase} step {steps_words(beat, ' of ')} · {beat.state}"
    rows = [("training", told.as_reported(lambda _: done))]
    if view.recipe != RECIPE:
        losses_row = f"ℓ {losses(beat.passes)} · {_scored_words(view)}"
        return [*rows, ("losses", told.as_reported(lambda _: losses_row))]
    is_scored = view.metric is not None and view.metric.value is not None
    return [*rows, ("metric", (told.as_reported if is_scored else told.checked)(_scored_words))]


def _scored_words(
    view: views.RunView, made: views.RunCheckpoint | None = None, most: int | None = None
) -> str:
    """``bpb 2.310``, ``val_loss 1.87``, ``no metric``: of the run now, or of a checkpoint."""
    scored = made or view
    if view.recipe != RECIPE:
        return f"bpb {bpb(scored.val_bpb)}"
    if scored.metric is None:
        return "no metric"
    return f"{scored.metric.name[:most]} {number(scored.metric.value)}"


def checkpoint_words(view: views.RunView, made: views.RunCheckpoint) -> str:
    """Return a checkpoint's metric by its name; a pod's report says that it is one."""
    if view.recipe == RECIPE and made.metric is None:
        return _scored_words(view, made)
    return told_of(made).as_reported(lambda each: _scored_words(view, each, 40))


def _metric(command: Command | None, score: float | None) -> str:
    if command is None:
        return f"bpb {bpb(score)}"
    if not command.metric_name:
        return "no metric"
    return f"{one_line(command.metric_name)} {number(command.shown(score))}"


def _number(command: Command | None, score: float | None) -> str:
    """The number alone."""
    return bpb(score) if command is None else number(command.shown(score))


def steps_words(beat: Heartbeat | views.Beat, of: str = "/") -> str:
    """``120/3,000``; ``120`` where their number is not known."""
    return f"{beat.step:,}{of}{beat.steps:,}" if beat.steps else f"{beat.step:,}"


def score_rows(command: Command | None, told: ReportedValue[CheckpointManifest]) -> list[str]:
    """``final-step bpb  2.310   ℓ 3.9 > 3.8``, or a command's own metric, where it has one; a
    pod's report says that it is one, and the losses get a line of their own."""
    name = "final-step bpb" if command is None else one_line(command.metric_name)[:40]
    value = told.as_reported(lambda made: _number(command, made.val_bpb))
    if command is not None:
        return [f"  {name:<14}  {value}"] if told.checked(_is_scored) and name else []
    if not told.checked(_is_scored):
        return [f"  {name}  {bpb(None)}   ℓ {losses(())}"]
    of_steps = told.checked(lambda manifest: f"ℓ {losses(manifest.step_losses)}")
    if told.here:
        return [f"  {name}  {value}   {of_steps}"]
    return [f"  {name}  {value}", f"  {'':<14}  {of_steps}"]


def score_words(command: Command | None, told: ReportedValue[Known]) -> str:
    """``val_loss 1.87``, ``bpb 2.310``; a pod's report says that it is one."""
    name = "bpb" if command is None else one_line(command.metric_name)[:40]
    value = told.as_reported(lambda made: _number(command, made.val_bpb))
    return f"{name} {value}" if name else "no metric"


def checkpoint_cell(best: views.RunCheckpoint | None) -> str:
    """A recipe's number alone, a command's behind its name, in a table that has ``marked_words``
    below it."""
    if best is None or not best.evaluated:
        return "–"
    value = bpb(best.val_bpb)
    if best.metric is not None:
        value = f"{best.metric.name[:40]} {number(best.metric.value)}"
    return told_of(best).as_marked(lambda _: value)


def marked_words() -> str:
    return f"{MARK} {BY_POD}: measure a fetched checkpoint here with trmcloud eval FOLDER"


def _is_scored(made: KnownCheckpoint) -> bool:
    return made.val_bpb is not None


def buys_words(usd: float | None, hour: float | None) -> str:
    """``the next $1 gains 0.012 bpb``; of an hour where nothing is paid; empty while nothing is
    known, and once it cools down."""
    what, gain = ("$1", usd) if usd is not None else ("hour", hour)
    if gain is None:
        return ""
    return f"the next {what} gains {f'{gain:.2g} bpb' if gain > 0 else 'nothing'}"


_WORDS = {True: "passed", False: "FAILED", None: "not judged"}


def goal_lines(goal: views.JudgedGoal | None) -> list[str]:
    """Return whether the run reached its goal, in a line; none where it has no goal."""
    return [] if goal is None else [told_of(goal).as_reported(lambda made: made.message)]


def target_lines(verdict: views.TargetVerdict | None) -> list[str]:
    """Return the verdict and its source, and the reasons where the promise was not kept."""
    if verdict is None:
        return []
    why_not = [note.message for note in verdict.notes if note.code == "not_reached"]
    return [
        one_line(told_of(verdict).as_reported(_verdict_words)),
        *([] if verdict.passed else why_not),
    ]


def _verdict_words(made: views.TargetVerdict) -> str:
    told = (
        f"{_WORDS[made.passed]}: validation loss {made.nats_per_token:.4f} nats per token "
        f"({bpb(made.bits_per_byte)} bits per byte) at {made.checkpoint} after "
        f"{made.trained_s / 3600:.2f} h of training; the guide has {made.target_nats_per_token} in "
        f"{made.target_s / 3600:g} h"
    )
    other = [note.message for note in made.notes if note.code == "not_comparable"]
    return ", and ".join([told, *other])
