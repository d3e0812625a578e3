"""A run while it is carried out, and its end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from trmcloud.app.conditions import meaning_of, never_heard
from trmcloud.app.context import Context, run_by_id
from trmcloud.app.drive import RunDriver
from trmcloud.app.ending import NamedPodEnds, PodListing
from trmcloud.app.launching import (
    OnlyBillPending,
    follow_or_drive,
    foreseen_closing,
    has_begun,
)
from trmcloud.app.measurements import note_measured, note_probed
from trmcloud.app.narration import Narrator
from trmcloud.app.reasons import sentence
from trmcloud.app.run_queries import last_beat, last_report, reported_uploads
from trmcloud.app.run_views import launched, run_ended, run_event, run_view
from trmcloud.app.stopping import request_stop
from trmcloud.cli.views.health import health_rows, recovered_rows, verdict_lines
from trmcloud.cli.views.json_output import print_document, print_line
from trmcloud.cli.views.metrics import goal_lines, target_lines
from trmcloud.cli.views.run_bar import BAD_ENDS, RunBar, stage_of
from trmcloud.cli.views.status import RESUMABLE
from trmcloud.cli.views.streams import outlive_the_reader, outlive_the_terminal
from trmcloud.cli.views.text import duration
from trmcloud.cli.views.troubles import failure_lines, tell_troubles
from trmcloud.core.contract.manifest import own_bests, own_name, pick_best
from trmcloud.core.control.billing import awaiting_bill
from trmcloud.core.control.reason import ReasonKind, make_reason
from trmcloud.core.control.report import spent_so_far
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.control.waiting import is_waiting
from trmcloud.core.errors import NO_CHECKPOINT_CODE, Outcome, StaleEpoch
from trmcloud.core.money import ZERO
from trmcloud.core.text import one_line


def tell_listed(found: PodListing) -> None:
    for each in found.pods:
        print(one_line(f"{each.pod.name} on {each.provider}, {each.pod.rate}/h"))
    _tell_unreachable(found)


def tell_ending(run: str, ended: NamedPodEnds, why: str) -> None:
    """``why``: what is wrong with the ledger; empty where nothing is."""
    for provider, name in ended.asked:
        print(one_line(f"{run}: asked {provider} to end {name}" if run else f"ended {name}"))
    for provider, name, said in ended.failed:
        print(one_line(f"could not end {name} on {provider}: {said}"), file=sys.stderr)
    _tell_unreachable(ended.listed)
    if ended.recorded:
        return
    if why:
        print(one_line(f"the ledger was not used: {why}"), file=sys.stderr)
    if ended.kept_at:
        note = f"recorded in {ended.kept_at} until a command can write the ledger"
        print(one_line(note), file=sys.stderr)
    else:
        print(
            "this could not be recorded: when the ledger can be written, "
            f"trmcloud stop --now {run or 'RUN'} records it",
            file=sys.stderr,
        )


def ending_code(ended: NamedPodEnds) -> int:
    """0 where every pod that is listed was asked to end, and every provider gave a list."""
    return 11 if ended.failed or ended.listed.unreachable else 0


def _tell_unreachable(found: PodListing) -> None:
    for provider, why in found.unreachable:
        print(one_line(f"{provider} gave no list: {why}"), file=sys.stderr)


class EventLines:
    """Prints each event on record of a run as a line of JSON, and at last the run itself."""

    def __init__(self, context: Context, run_id: str) -> None:
        self._context, self._run_id = context, run_id
        self._narrator = Narrator()

    def beside(self, watch: Callable[[RunState], None]) -> Callable[[RunState], None]:
        """Return a function that prints what is new, and calls ``watch``."""

        def watch_both(run: RunState) -> None:
            self._print_new()
            watch(run)

        return watch_both

    def end(self, run: RunState) -> None:
        self._print_new()
        print_line(run_ended(self._context, run))

    def _print_new(self) -> None:
        for told in self._narrator.tell(self._context.ledger.records(self._run_id)):
            print_line(run_event(told))


def carry(
    context: Context,
    driver: RunDriver,
    *,
    detach: bool,
    as_json: bool = False,
    existing: bool = False,
) -> int:
    """Drive a run in the foreground until its pod is gone, or in ``-d`` until it runs; exit code.

    It does not wait for a late bill: the next command settles that. With ``as_json`` a run that is
    followed is a line of JSON first, then its events are, and at last what became of it;
    ``existing``: it was launched before.
    """
    run = driver.run()
    outlive_the_reader()
    tell_troubles(context)
    if detach:
        outlive_the_terminal()
    named = f" ({run.name})" if run.name else ""
    print(f"{run.run_id}{named}: reserved {run.reserved} of a cap of {run.cap}")
    over = OnlyBillPending(context)

    def done(state: RunState) -> bool:
        return over(state) or (detach and has_begun(state))

    events = EventLines(context, run.run_id) if as_json and not detach else None
    if events is not None:
        print_line(launched(context, run, detached=False, existing=existing))
    with RunBar(context) as bar:
        watch = events.beside(bar.watch) if events is not None else bar.watch
        try:
            run = driver.until(done, watch)
        except KeyboardInterrupt:
            bar.pause()
            run = _interrupted(context, driver, bar, over)
        except StaleEpoch:
            bar.pause()
            print(f"{driver.run_id}: another command drives it now; watching", flush=True)
            bar.resume()
            run = follow_or_drive(context, driver.run_id, done, watch)
    if run.live:
        context.ledger.release(run.run_id, driver.epoch)
    code = 0
    if run.live and not over.reached:
        _show_left(context, run)
    else:
        code = show_end(context, run)
    if events is not None:
        events.end(run)
    elif as_json:
        print_document(launched(context, run, detached=True, existing=existing))
    return code


def _show_left(context: Context, run: RunState) -> None:
    if is_waiting(run) and run.wait is not None:
        left = duration(run.wait.until_at - context.wall())
        print(f"{run.run_id} waits for a machine for {left} more; {run.reserved} stays reserved.")
        print("  the guard asks again at each visit (trmcloud admin guard status), or:")
        print(f"  trmcloud logs -f {run.run_id} · status {run.run_id} · stop {run.run_id}")
        return
    stage = stage_of(run, last_beat(context, run), last_report(context, run), "")
    if run.state not in (State.ENDING, State.SETTLING) and not stage.startswith("Training"):
        print(f"{run.run_id}: not waited for its training; it is at: {stage}")
    print(f"{run.run_id} continues without this command and stops at its limits.")
    print(f"  trmcloud logs -f {run.run_id} · status {run.run_id} · stop {run.run_id}")


class Beside(Protocol):
    """What is shown above the live line of a run."""

    def has_new(self, run: RunState) -> bool: ...
    def print_new(self, run: RunState) -> None: ...
    def print_findings(self, run: RunState) -> None: ...


def look_on(context: Context, run_id: str, *, as_json: bool, beside: Beside) -> int:
    """Show a run that another command may drive, until nothing is left of it but its bill; exit
    code. Where no command drives it, this one does. Ctrl-C leaves it as it is."""
    outlive_the_reader()
    tell_troubles(context)
    over = OnlyBillPending(context)
    run = run_by_id(context, run_id)
    events = EventLines(context, run.run_id) if as_json else None
    with RunBar(context) as bar:

        def show(state: RunState) -> None:
            if beside.has_new(state):
                bar.pause(clear=True)
                beside.print_new(state)
                beside.print_findings(state)
                bar.resume()
            bar.watch(state)

        watch = events.beside(show) if events is not None else show
        try:
            if not over(run):
                run = follow_or_drive(context, run_id, over, watch)
        except KeyboardInterrupt:
            run = run_by_id(context, run_id)
    beside.print_new(run)
    code = 0
    if run.live and not over.reached:
        _show_left(context, run)
    else:
        code = show_end(context, run)
    if events is not None:
        events.end(run)
    return code


def outcome_of(run: RunState) -> Outcome:
    """Return a run's outcome, or the expected one once its bill is final."""
    foreseen = None if run.outcome is not None else foreseen_closing(run)
    if foreseen is not None:
        return Outcome(foreseen.outcome)
    return run.outcome or Outcome.LOST


def show_end(context: Context, run: RunState) -> int:
    """Print the end of a run; return its exit code."""
    outcome, foreseen = outcome_of(run), foreseen_closing(run)
    print(f"{run.run_id} {outcome.value}: {meaning_of(run, outcome)}")
    why = run.reason or (foreseen.reason if foreseen is not None else None)
    if told := sentence(why):
        print(f"  why: {one_line(told)}")
    view = run_view(context, run)
    for line in verdict_lines(view) if run.gates else ():
        print(line)
    verdict = [("verdict", text) for text in target_lines(view.verdict)]
    for label, text in recovered_rows(view.recoveries) + health_rows(view.health) + verdict:
        print(f"  {label}: {text}")
    for text in goal_lines(view.goal):
        print(f"  {text}")

    with suppress(OSError):  # what it measured is lost then, and nothing else
        note_measured(context, run)
        note_probed(context, run)
    here = context.files.manifests(run.run_id)
    elsewhere = bool(reported_uploads(context, run)) or outcome is Outcome.UNREPORTED
    kept = bool(here) or elsewhere
    is_bare = _left_none(run, outcome, elsewhere or any(not m.is_output for m in here))
    if is_bare:
        also = "; files of unknown layout were kept, not compared" if here else ""
        print(f"  no checkpoint was found{also}")
    if (own := own_bests(here)) and pick_best(here) is None:
        print(
            f"  no metric to compare by; the script's own best: {own[0].label}, {own_name(own[0])}"
        )
    if run.live:
        spent = spent_so_far(run, context.wall())
        print(
            f"  its bill is not final yet ({spent} of {run.cap} so far at the planned rate, "
            f"{run.reserved} reserved); the next command settles it"
        )
    else:
        spent_words = f"  spent {run.settled} of {run.cap}"
        if awaiting_bill(run):
            spent_words += " at most, the bill is not final yet"
        print(spent_words + ("" if run.reserved == ZERO else f", {run.reserved} still reserved"))
    if view.failed_boots:
        print(f"  failed boots: {view.failed_boots}, {view.failed_boots_usd} at most")
    if outcome is Outcome.NO_MACHINE:
        print(f"  try: trmcloud resume {run.run_id} --wait-for 6h, or another plan")
    if kept:
        again = f" · resume {run.run_id}" if outcome in RESUMABLE else ""
        print(f"  trmcloud fetch-best {run.run_id}{again}")
    if outcome is Outcome.UNFIT:
        print(
            f"  try: trmcloud resume {run.run_id} (another machine), another plan, or another image"
        )
    for line in failure_lines(context, run):
        print(line)
    if outcome in BAD_ENDS and not never_heard(run):
        print(f"  trmcloud logs {run.run_id}")
    return NO_CHECKPOINT_CODE if is_bare else outcome.exit_code


def _left_none(run: RunState, outcome: Outcome, kept: bool) -> bool:
    """Whether a command ended well and left no checkpoint, as a probe may."""
    command = run.spec.command
    ended_well = outcome in (Outcome.FINISHED, Outcome.LANDED)
    return command is not None and not command.probe_steps and ended_well and not kept


def _interrupted(
    context: Context, driver: RunDriver, bar: RunBar, over: OnlyBillPending
) -> RunState:
    """Ctrl-C: ask; without an answer, or without anyone to answer, the run goes on."""
    answer = ""
    if sys.stdin.isatty():
        try:
            print("\nstop the run, or leave it running? [s/L] ", end="", flush=True)
            answer = sys.stdin.readline().strip().lower()
        except KeyboardInterrupt:
            answer = ""
    if answer not in ("s", "stop"):
        return driver.run()
    request_stop(context, driver.run_id, make_reason(ReasonKind.INTERRUPTED))
    bar.resume()
    try:
        return driver.until(over, bar.watch)
    except KeyboardInterrupt:
        return driver.run()
