"""How a run ended, for the command that followed it."""

from __future__ import annotations

from contextlib import suppress

from trmcloud.core.contract.manifest import own_bests, own_name, pick_best
from trmcloud.core.control.billing import awaiting_bill
from trmcloud.core.control.report import spent_so_far
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import NO_CHECKPOINT_CODE, Outcome
from trmcloud.core.money import Usd
from trmcloud.core.text import one_line
from trmcloud.core.values import Value
from trmcloud.operations import views
from trmcloud.operations.commands.failed_commands import Failure, failure_of
from trmcloud.operations.context import Context
from trmcloud.operations.launch.launching import foreseen_closing
from trmcloud.operations.plans.measurements import note_measured, note_probed
from trmcloud.operations.reasons import sentence
from trmcloud.operations.run_queries import reported_uploads
from trmcloud.operations.runs.conditions import meaning_of, never_heard
from trmcloud.operations.runs.run_views import run_view


class RunEnd(Value):
    """``outcome`` is a run's own, or the expected one while its bill is not final. ``spent`` is at
    most that where ``awaits_bill``. ``is_bare``: a command ended well and left no checkpoint;
    ``has_files``: files of it are here; ``has_checkpoints``: there may be one to fetch.
    ``own_best``: the script's own best, where no metric judges any."""

    view: views.RunView
    outcome: Outcome
    meaning: str
    why: str
    spent: Usd
    awaits_bill: bool
    is_bare: bool
    has_files: bool
    has_checkpoints: bool
    own_best: str
    was_heard: bool
    failure: Failure | None

    @property
    def exit_code(self) -> int:
        return NO_CHECKPOINT_CODE if self.is_bare else self.outcome.exit_code


def end_of(context: Context, run: RunState) -> RunEnd:
    """Return the end of a run, or of one that only waits for its bill; what it measured is noted
    for later plans."""
    foreseen = foreseen_closing(run)
    expected = Outcome(foreseen.outcome) if foreseen is not None else Outcome.LOST
    outcome = run.outcome or expected
    why = run.reason or (foreseen.reason if foreseen is not None else None)
    view = run_view(context, run)
    with suppress(OSError):  # what it measured is lost then, and nothing else
        note_measured(context, run)
        note_probed(context, run)
    here = context.files.manifests(run.run_id)
    elsewhere = bool(reported_uploads(context, run)) or outcome is Outcome.UNREPORTED
    own = own_bests(here) if pick_best(here) is None else ()
    return RunEnd(
        view=view,
        outcome=outcome,
        meaning=meaning_of(run, outcome),
        why=one_line(sentence(why)),
        spent=spent_so_far(run, context.wall()) if run.live else run.settled,
        awaits_bill=run.live or bool(awaiting_bill(run)),
        is_bare=_left_none(run, outcome, elsewhere or any(not m.is_output for m in here)),
        has_files=bool(here),
        has_checkpoints=bool(here) or elsewhere,
        own_best=f"{own[0].label}, {own_name(own[0])}" if own else "",
        was_heard=not never_heard(run),
        failure=failure_of(context, run),
    )


def _left_none(run: RunState, outcome: Outcome, kept: bool) -> bool:
    """Whether a command ended well and left no checkpoint, as a probe may."""
    command = run.spec.command
    ended_well = outcome in (Outcome.FINISHED, Outcome.LANDED)
    return command is not None and not command.probe_steps and ended_well and not kept
