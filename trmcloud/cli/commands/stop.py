"""``trmcloud save`` and ``stop``: a checkpoint now, and the end of a run."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from trmcloud.cli import options
from trmcloud.cli.catch_up import catch_up
from trmcloud.cli.confirm import is_confirmed
from trmcloud.cli.views.foreseen import question
from trmcloud.cli.views.json_output import print_document
from trmcloud.cli.views.metrics import told_of
from trmcloud.cli.views.run import EventLines, ending_code, show_finish, tell_ending
from trmcloud.cli.views.run_bar import RunBar
from trmcloud.cli.views.text import fields
from trmcloud.core.errors import LedgerError, Outcome, StaleEpoch, TrmcloudError, UsageError
from trmcloud.core.reported import BY_POD
from trmcloud.operations import views
from trmcloud.operations.checkpoints.saving import SaveRequest
from trmcloud.operations.context import Context, find_run, run_by_id, shown_present_runs
from trmcloud.operations.driving.stopping import end_now, land
from trmcloud.operations.launch import checkpoint_requests
from trmcloud.operations.launch.launching import OnlyBillPending, follow_or_drive
from trmcloud.operations.launch.steering import LAND, STOP, foresee
from trmcloud.operations.money import grants
from trmcloud.operations.runs.live_run import beside
from trmcloud.operations.runs.run_views import named_ends, saved_view, state_of
from trmcloud.operations.words import title_of, value_words
from trmcloud.wiring import build_context


def save(
    run: options.LiveRunName = "",
    detach: Annotated[
        bool, typer.Option("-d", "--detach", help="Send the request and exit.")
    ] = False,
    wait: Annotated[
        float,
        typer.Option("--wait", min=1.0, help="Seconds to wait for the checkpoint and its copy."),
    ] = 300.0,
    as_json: options.Json = False,
) -> None:
    """Save a checkpoint of a run now; training continues.

    It is saved after the present step, copied to where the run keeps its checkpoints, and
    evaluated like all others.

    Example: trmcloud save r-1f3a9c
    """
    context = build_context()
    catch_up(context)

    def waits(asked: SaveRequest) -> bool:
        print(f"{asked.run_id}: asked to save", flush=True)
        if detach:
            catch_up(context)
            if as_json:
                names = "checkpoint val_bpb metric sha256 size_bytes place reported_by"
                nothing = dict.fromkeys(names.split())
                print_document(views.Saved(run=asked.run_id, safe=False, kept=False, **nothing))
        return not detach

    saved = checkpoint_requests.save(
        context, run or None, "trmcloud save", wait_s=wait, waits=waits
    )
    if saved is not None:
        state, place = saved
        command = state.spec.command
        title = "final-step bpb" if command is None else title_of(command.metric_name)
        _show(saved_view(state, place), title, place.words, as_json=as_json)


def _show(saved: views.Saved, title: str, place: str, *, as_json: bool) -> None:
    """``title`` names its metric; ``place``: where it is, in words."""
    if as_json:
        print_document(saved)
        return
    metric, told = saved.metric, told_of(saved)
    value = saved.val_bpb if metric is None else metric.value
    name = None if metric is None else metric.name
    shown = "not evaluated yet"
    if value is not None:
        shown = told.as_reported(lambda _: value_words(name, value))
    by = "" if saved.safe else f" {BY_POD}"
    size = f"{(saved.size_bytes or 0) / 1e6:,.1f} MB"
    print(f"{saved.run} {saved.checkpoint}: saved{by}, {size}; still training")
    rows = [
        (title, shown),
        ("weights", f"sha256 {saved.sha256}"),
        ("saved in" if saved.kept else "on", place),
    ]
    print("\n".join(fields(rows, "  ")))


def stop(
    run: options.LiveRunName = "",
    detach: Annotated[
        bool, typer.Option("-d", "--detach", help="Send the request and exit.")
    ] = False,
    now: Annotated[
        bool, typer.Option("--now", help="End its pod at once; unsaved training is lost.")
    ] = False,
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> None:
    """Stop a run: it ends its step, saves and evaluates, and its pod is ended.

    The cost and the lost steps are shown, and the command asks. Outside a terminal give the run's
    id and -y. With --now and a run's id its pods are ended even if the ledger cannot be read or
    written.

    Example: trmcloud stop r-1f3a9c
    """
    context = build_context()
    if now:
        _end_now(context, run, detach=detach, yes=yes, as_json=as_json)
        return
    try:
        catch_up(context)
        chosen = _chosen(context, run, now=False)
        if yes or _agrees(context, chosen, LAND):
            land(context, chosen)
            print(f"{chosen}: asked to stop and save")
            _follow(context, chosen, "land", detach=detach, as_json=as_json)
    except StaleEpoch:
        raise
    except LedgerError as error:
        error.next_step = "trmcloud stop --now RUN ends the pod without the ledger"
        raise


def _end_now(context: Context, run: str, *, detach: bool, yes: bool, as_json: bool) -> None:
    def agrees(quick: Context, run_id: str, failure: TrmcloudError | None) -> bool:
        if failure is not None:
            return yes or is_confirmed(f"{failure}\nend all pods of {run or 'the run'} now?")
        return yes or _agrees(quick, run_id, STOP)

    def follow(quick: Context, run_id: str) -> None:
        catch_up(context)  # not before: it may wait for whom this run has nothing to do with
        print(f"{run_id}: its pod is ended")
        _follow(context, run_id, "end", detach=detach, as_json=as_json)

    def choose(quick: Context) -> str:
        return _chosen(quick, run, now=True)

    ended = end_now(context, run, choose=choose, agrees=agrees, follow=follow)
    if ended is not None:
        tell_ending(ended.run_id, ended.pods, str(ended.error))
        if as_json:
            print_document(named_ends(ended.pods, run=ended.run_id))
        sys.exit(ending_code(ended.pods))


def _chosen(context: Context, run: str, *, now: bool) -> str:
    """Return the id of the run that is to be stopped.

    Raises:
        UsageError: it is to be named, since several are live or there is no terminal.
    """
    if not run:
        live = [each for each in shown_present_runs(context) if each.live]
        if len(live) > 1 or (live and not sys.stdin.isatty()):
            command = "trmcloud stop --now" if now else "trmcloud stop"
            yes = "" if sys.stdin.isatty() else " -y"
            names = ", ".join(each.run_id for each in live)
            raise UsageError(
                f"name the run to stop: {names} {'are' if len(live) > 1 else 'is'} live",
                next_step=f"{command} {live[-1].run_id}{yes}",
            )
        run = live[0].run_id if live else ""
    return grants.require_paying(context, find_run(context, run or None)).run_id


def _agrees(context: Context, run_id: str, verb: str) -> bool:
    """Show what it costs, and ask."""
    if (seen := foresee(context, run_by_id(context, run_id), verb)).refused:
        return True  # the request says so
    title, _, lines = question(seen)
    print("\n".join([f"{run_id}: {title.lower()}", *(f"  {line}" for line in lines)]))
    if is_confirmed(f"  {'End it now' if verb == STOP else 'Land it'}?"):
        return True
    print("it continues")
    return False


def _follow(context: Context, run_id: str, asked: str, *, detach: bool, as_json: bool) -> None:
    """Stay until nothing is left of the run but its bill; with ``detach`` only pass the word on."""
    if detach:
        catch_up(context)
        if as_json:
            state = run_by_id(context, run_id)
            print_document(
                views.Stopped(run=run_id, asked=asked, state=state_of(state), live=state.live)
            )
        return
    generation = run_by_id(context, run_id).generation
    if generation is not None:
        context.machines.require_reach(generation.provider)
    over = OnlyBillPending(context)
    events = EventLines(context, run_id) if as_json else None
    with RunBar(context) as bar:
        watch = beside(events.print_new, bar.watch) if events is not None else bar.watch
        follow_or_drive(context, run_id, over, watch)
    end = show_finish(context, run_id, over, events)
    assert end is not None  # it was followed until it was over
    wanted = (Outcome.STOPPED, Outcome.FINISHED, Outcome.LANDED)
    sys.exit(0 if end.outcome in wanted else end.exit_code)
