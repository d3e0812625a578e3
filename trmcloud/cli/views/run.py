"""A run while it is carried out, and its end."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Protocol

from trmcloud.cli.views.health import health_rows, recovered_rows, verdict_lines
from trmcloud.cli.views.json_output import print_document, print_line
from trmcloud.cli.views.metrics import goal_lines, target_lines
from trmcloud.cli.views.run_bar import RunBar
from trmcloud.cli.views.status import RESUMABLE
from trmcloud.cli.views.streams import outlive_the_reader, outlive_the_terminal
from trmcloud.cli.views.text import duration
from trmcloud.cli.views.troubles import failure_lines, tell_troubles
from trmcloud.core.errors import Outcome, StaleEpoch
from trmcloud.core.money import ZERO
from trmcloud.core.text import one_line
from trmcloud.operations.context import Context, run_by_id
from trmcloud.operations.driving.drive import RunDriver
from trmcloud.operations.driving.ending import NamedPodEnds, PodListing
from trmcloud.operations.driving.stopping import interrupt
from trmcloud.operations.launch.launching import OnlyBillPending, follow_or_drive
from trmcloud.operations.launch.run_end import RunEnd, end_of
from trmcloud.operations.narration import Narrator
from trmcloud.operations.runs.live_run import BAD_ENDS, LeftRun, beside, left_run
from trmcloud.operations.runs.run_views import launched, run_ended, run_event


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

    def print_new(self) -> None:
        for told in self._narrator.tell(self._context.ledger.records(self._run_id)):
            print_line(run_event(told))

    def end(self) -> None:
        self.print_new()
        print_line(run_ended(self._context, run_by_id(self._context, self._run_id)))


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
    done = over.or_begun if detach else over
    events = EventLines(context, run.run_id) if as_json and not detach else None
    if events is not None:
        print_line(launched(context, run, detached=False, existing=existing))
    with RunBar(context) as bar:
        watch = beside(events.print_new, bar.watch) if events is not None else bar.watch
        try:
            driver.until(done, watch)
        except KeyboardInterrupt:
            bar.pause()
            _interrupted(context, driver, bar, over)
        except StaleEpoch:
            bar.pause()
            print(f"{driver.run_id}: another command drives it now; watching", flush=True)
            bar.resume()
            follow_or_drive(context, driver.run_id, done, watch)
    run = driver.run()
    if run.live:
        context.ledger.release(run.run_id, driver.epoch)
    end = show_finish(context, run.run_id, over, events)
    if as_json and events is None:
        print_document(launched(context, run, detached=True, existing=existing))
    return end.exit_code if end is not None else 0


def show_finish(
    context: Context, run_id: str, over: OnlyBillPending, events: EventLines | None
) -> RunEnd | None:
    """Show the end of a run that was followed until it was ``over``, and return it; None where it
    was left live."""
    run, end = run_by_id(context, run_id), None
    if run.live and not over.reached:
        _show_left(run_id, left_run(context, run))
    else:
        end = end_of(context, run)
        show_end(end)
    if events is not None:
        events.end()
    return end


def _show_left(run_id: str, left: LeftRun) -> None:
    if left.waits_s is not None:
        waits = duration(left.waits_s)
        print(f"{run_id} waits for a machine for {waits} more; {left.reserved} stays reserved.")
        print("  the guard asks again at each visit (trmcloud admin guard status), or:")
    else:
        if not left.trains:
            print(f"{run_id}: not waited for its training; it is at: {left.stage}")
        print(f"{run_id} continues without this command and stops at its limits.")
    print(f"  trmcloud logs -f {run_id} · status {run_id} · stop {run_id}")


class Beside(Protocol):
    """What is shown above the live line of a run."""

    def has_new(self) -> bool: ...
    def print_new(self) -> None: ...
    def print_findings(self) -> None: ...


def look_on(context: Context, run_id: str, *, as_json: bool, above: Beside) -> int:
    """Show a run that another command may drive, until nothing is left of it but its bill; exit
    code. Where no command drives it, this one does. Ctrl-C leaves it as it is."""
    outlive_the_reader()
    tell_troubles(context)
    over = OnlyBillPending(context)
    events = EventLines(context, run_id) if as_json else None
    with RunBar(context) as bar:

        def show_news() -> None:
            if events is not None:
                events.print_new()
            if above.has_new():
                bar.pause(clear=True)
                above.print_new()
                above.print_findings()
                bar.resume()

        try:
            if not over(run_by_id(context, run_id)):
                follow_or_drive(context, run_id, over, beside(show_news, bar.watch))
        except KeyboardInterrupt:
            pass
    above.print_new()
    end = show_finish(context, run_id, over, events)
    return end.exit_code if end is not None else 0


def show_end(end: RunEnd) -> None:
    """Print the end of a run, and what to type next."""
    view, outcome, run_id = end.view, end.outcome, end.view.run
    print(f"{run_id} {outcome.value}: {end.meaning}")
    if end.why:
        print(f"  why: {end.why}")
    for line in verdict_lines(view):
        print(line)
    verdict = [("verdict", text) for text in target_lines(view.verdict)]
    for label, text in recovered_rows(view.recoveries) + health_rows(view.health) + verdict:
        print(f"  {label}: {text}")
    for text in goal_lines(view.goal):
        print(f"  {text}")
    if end.is_bare:
        also = "; files of unknown layout were kept, not compared" if end.has_files else ""
        print(f"  no checkpoint was found{also}")
    if end.own_best:
        print(f"  no metric to compare by; the script's own best: {end.own_best}")
    if view.live:
        print(
            f"  its bill is not final yet ({end.spent} of {view.cap_usd} so far at the planned "
            f"rate, {view.reserved_usd} reserved); the next command settles it"
        )
    else:
        at_most = " at most, the bill is not final yet" if end.awaits_bill else ""
        held = f", {view.reserved_usd} still reserved" if view.reserved_usd != ZERO else ""
        print(f"  spent {end.spent} of {view.cap_usd}{at_most}{held}")
    if view.failed_boots:
        print(f"  failed boots: {view.failed_boots}, {view.failed_boots_usd} at most")
    if outcome is Outcome.NO_MACHINE:
        print(f"  try: trmcloud resume {run_id} --wait-for 6h, or another plan")
    if end.has_checkpoints:
        again = f" · resume {run_id}" if outcome in RESUMABLE else ""
        print(f"  trmcloud fetch-best {run_id}{again}")
    if outcome is Outcome.UNFIT:
        print(f"  try: trmcloud resume {run_id} (another machine), another plan, or another image")
    for line in failure_lines(end.failure):
        print(line)
    if outcome in BAD_ENDS and end.was_heard:
        print(f"  trmcloud logs {run_id}")


def _interrupted(context: Context, driver: RunDriver, bar: RunBar, over: OnlyBillPending) -> None:
    """Ctrl-C: ask; without an answer, or without anyone to answer, the run goes on."""
    answer = ""
    if sys.stdin.isatty():
        try:
            print("\nstop the run, or leave it running? [s/L] ", end="", flush=True)
            answer = sys.stdin.readline().strip().lower()
        except KeyboardInterrupt:
            answer = ""
    if answer not in ("s", "stop"):
        return
    interrupt(context, driver.run_id)
    bar.resume()
    with suppress(KeyboardInterrupt):
        driver.until(over, bar.watch)
