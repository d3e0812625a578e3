"""A run's metrics: scores, losses, what the next dollar buys, a target."""

from __future__ import annotations

from trmcloud.app.context import Context
from trmcloud.app.run_facts import gains_of, report_run
from trmcloud.app.run_queries import mark_reported
from trmcloud.app.trainings import TargetResult, judge_target
from trmcloud.cli.views.text import bpb, losses
from trmcloud.core.contract.command import Command
from trmcloud.core.contract.manifest import CheckpointManifest, Known, KnownCheckpoint
from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.core.control.report import RunReport
from trmcloud.core.control.run_state import RunState
from trmcloud.core.reported import BY_POD, MARK, ReportedValue
from trmcloud.core.text import one_line

BITS = "bits per byte"


def title_of(metric: str | None) -> str:
    """What a metric is called in a heading: ``bits per byte`` of a recipe (None), a command's own
    name, or ``metric`` where it has none."""
    return BITS if metric is None else one_line(metric)[:40] or "metric"


def value_words(metric: str | None, value: float | None) -> str:
    """``2.310`` bits per byte, or a command's own metric."""
    return bpb(value) if metric is None else number(value)


def metric_words(command: Command | None, told: ReportedValue[Heartbeat]) -> str:
    """``bpb 2.310``, ``pod's val_loss 1.87``; of a command without a metric ``no metric``."""
    if told.checked(lambda beat: beat.val_bpb is None) or (command and not command.metric_name):
        return told.checked(lambda beat: _metric(command, beat.val_bpb))
    return told.as_pods(lambda beat: _metric(command, beat.val_bpb))


def metric_cell(command: Command | None, told: ReportedValue[Heartbeat] | None) -> str:
    """The number alone, in a table that has ``marked_words`` below it."""
    if told is None or told.checked(lambda beat: beat.val_bpb is None):
        return _number(command, None)
    return told.as_marked(lambda beat: _number(command, beat.val_bpb))


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


def training_rows(command: Command | None, told: ReportedValue[Heartbeat]) -> list[tuple[str, str]]:
    """Return the rows of the progress and the metric, each with its source."""
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


def score_cell(report: RunReport) -> str:
    """A recipe's number alone, a command's behind its name, in a table that has ``marked_words``
    below it."""
    told, command = report.best_told, report.command
    if told is None or not told.checked(_is_scored):
        return "–"
    name = "" if command is None else f"{one_line(command.metric_name)[:40]} "
    return told.as_marked(lambda made: name + _number(command, made.val_bpb))


def marked_words() -> str:
    return f"{MARK} {BY_POD}: measure a fetched checkpoint here with trmcloud eval FOLDER"


def _is_scored(made: KnownCheckpoint) -> bool:
    return made.val_bpb is not None


def next_buys(run: RunState, beat: Heartbeat) -> str:
    """``the next $1 gains 0.012 bpb``; of an hour where nothing is paid; empty while nothing is
    known, and once it cools down."""
    return buys_words(*gains_of(run, beat))


def buys_words(usd: float | None, hour: float | None) -> str:
    """Likewise, of the bits per byte that a dollar is expected to buy, and an hour."""
    what, gain = ("$1", usd) if usd is not None else ("hour", hour)
    if gain is None:
        return ""
    return f"the next {what} gains {f'{gain:.2g} bpb' if gain > 0 else 'nothing'}"


_WORDS = {True: "passed", False: "FAILED", None: "not judged"}


def verdict_of(run: RunState, report: RunReport) -> TargetResult | None:
    return judge_target(run, report.best, report.seconds.get("training", 0.0) / 3600)


def target_rows(context: Context, run: RunState) -> list[tuple[str, str]]:
    made = verdict_of(run, report_run(context, run))
    lines = target_lines(mark_reported(run, made)) if made is not None else []
    return [("verdict", text) for text in lines]


def goal_lines(run: RunState, report: RunReport) -> list[str]:
    """Return whether the run reached its goal, in a line; none where it has no goal."""
    if report.goal is None:
        return []
    if report.goal.value is None:
        return [report.goal.words]
    return [mark_reported(run, report.goal).as_reported(lambda made: made.words)]


def target_lines(told: ReportedValue[TargetResult]) -> list[str]:
    """Return the verdict and its source, and the reasons where the promise was not kept."""
    said = told.as_reported(_words)
    return [one_line(said), *told.checked(lambda made: [] if made.passed else made.target.why_not)]


def _words(made: TargetResult) -> str:
    target = made.target
    told = (
        f"{_WORDS[made.passed]}: validation loss {made.nats:.4f} nats per token "
        f"({bpb(made.bits_per_byte)} bits per byte) at {made.label} after {made.hours:.2f} h of "
        f"training; the guide has {target.nats} in {target.hours:g} h"
    )
    if made.other:
        told += f", and {made.other}"
    return told
