"""``trmcloud save`` and ``stop``: a checkpoint now, and the end of a run."""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated

import typer

from trmcloud.app import checkpoint_requests, grants, views
from trmcloud.app.checkpoints.inventory import HERE
from trmcloud.app.checkpoints.saving import Place, SaveRequest
from trmcloud.app.context import (
    Context,
    find_run,
    run_by_id,
    shown_present_runs,
)
from trmcloud.app.launching import OnlyBillPending, follow_or_drive
from trmcloud.app.run_queries import mark_reported
from trmcloud.app.run_views import named_ends, own_metric, state_of
from trmcloud.app.steering import LAND, STOP, foresee
from trmcloud.app.stopping import end_now, land
from trmcloud.cli import options
from trmcloud.cli.catch_up import catch_up
from trmcloud.cli.confirm import is_confirmed
from trmcloud.cli.views.foreseen import question
from trmcloud.cli.views.json_output import print_document
from trmcloud.cli.views.metrics import title_of, value_words
from trmcloud.cli.views.run import EventLines, ending_code, outcome_of, show_end, tell_ending
from trmcloud.cli.views.run_bar import RunBar
from trmcloud.cli.views.text import fields
from trmcloud.core.contract.command import shown_metric
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import (
    LedgerError,
    Outcome,
    StaleEpoch,
    TrmcloudError,
    UsageError,
)
from trmcloud.core.reported import BY_POD
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
        _show(*saved, as_json=as_json)


def _show(state: RunState, place: Place, *, as_json: bool) -> None:
    kept, is_here, command = place.kept, place.at.kind == HERE, state.spec.command
    if as_json:
        print_document(
            views.Saved(
                run=state.run_id,
                checkpoint=place.label,
                val_bpb=kept.val_bpb if command is None else None,
                metric=own_metric(command, kept.val_bpb),
                sha256=kept.sha256,
                size_bytes=kept.size_bytes,
                place=place.at.where or place.at.kind,
                safe=is_here,
                kept=place.final,
                reported_by=mark_reported(state, kept).source,
            )
        )
        return
    metric = "not evaluated yet"
    if kept.val_bpb is not None:
        value = partial(value_words, command.metric_name if command is not None else None)
        shown = shown_metric(command, kept.val_bpb)
        metric = mark_reported(state, shown).as_reported(value)
    by = "" if is_here else f" {BY_POD}"
    size = f"{kept.size_bytes / 1e6:,.1f} MB"
    print(f"{state.run_id} {place.label}: saved{by}, {size}; still training")
    named = "final-step bpb" if command is None else title_of(command.metric_name)
    rows = [(named, metric), ("weights", f"sha256 {kept.sha256}")]
    print("\n".join(fields([*rows, ("saved in" if place.final else "on", place.words)], "  ")))


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
            state = land(context, chosen)
            print(f"{state.run_id}: asked to stop and save")
            _follow(context, state, "land", detach=detach, as_json=as_json)
    except StaleEpoch:
        raise
    except LedgerError as error:
        error.next_step = "trmcloud stop --now RUN ends the pod without the ledger"
        raise


def _end_now(context: Context, run: str, *, detach: bool, yes: bool, as_json: bool) -> None:
    def agrees(quick: Context, what: RunState | TrmcloudError) -> bool:
        if isinstance(what, TrmcloudError):
            return yes or is_confirmed(f"{what}\nend all pods of {run or 'the run'} now?")
        return yes or _agrees(quick, what, STOP)

    def follow(quick: Context, state: RunState) -> None:
        catch_up(context)  # not before: it may wait for whom this run has nothing to do with
        print(f"{state.run_id}: its pod is ended")
        _follow(context, state, "end", detach=detach, as_json=as_json)

    choose = partial(_chosen, run=run, now=True)
    ended = end_now(context, run, choose=choose, agrees=agrees, follow=follow)
    if ended is not None:
        tell_ending(ended.run_id, ended.pods, str(ended.error))
        if as_json:
            print_document(named_ends(ended.pods, run=ended.run_id))
        sys.exit(ending_code(ended.pods))


def _chosen(context: Context, run: str, *, now: bool) -> RunState:
    """Return the run that is to be stopped; what follows is given its id."""
    found = find_run(context, run) if run else _only_live(context, now=now)
    return grants.require_paying(context, found)


def _agrees(context: Context, run: RunState, verb: str) -> bool:
    """Show what it costs, and ask."""
    if (seen := foresee(context, run, verb)).refused:
        return True  # the request says so
    title, _, lines = question(seen)
    print("\n".join([f"{run.run_id}: {title.lower()}", *(f"  {line}" for line in lines)]))
    if is_confirmed(f"  {'End it now' if verb == STOP else 'Land it'}?"):
        return True
    print("it continues")
    return False


def _follow(context: Context, state: RunState, asked: str, *, detach: bool, as_json: bool) -> None:
    """Stay until nothing is left of the run but its bill; with ``detach`` only pass the word on."""
    if detach:
        catch_up(context)
        if as_json:
            state = run_by_id(context, state.run_id)
            print_document(
                views.Stopped(run=state.run_id, asked=asked, state=state_of(state), live=state.live)
            )
        return
    if state.generation is not None:
        context.machines.require_reach(state.generation.provider)
    over = OnlyBillPending(context)
    events = EventLines(context, state.run_id) if as_json else None
    with RunBar(context) as bar:
        watch = events.beside(bar.watch) if events is not None else bar.watch
        ended = follow_or_drive(context, state.run_id, over, watch)
    code = show_end(context, ended)
    if events is not None:
        events.end(ended)
    wanted = (Outcome.STOPPED, Outcome.FINISHED, Outcome.LANDED)
    sys.exit(0 if outcome_of(ended) in wanted else code)


def _only_live(context: Context, *, now: bool) -> RunState:
    """The only live run, which a terminal is asked about; the newest where none is live.

    Raises:
        UsageError: it is to be named, since several are live or there is no terminal.
    """
    live = [run for run in shown_present_runs(context) if run.live]
    if not live or (len(live) == 1 and sys.stdin.isatty()):
        return live[0] if live else find_run(context, None)
    command = "trmcloud stop --now" if now else "trmcloud stop"
    yes = "" if sys.stdin.isatty() else " -y"
    names = ", ".join(run.run_id for run in live)
    raise UsageError(
        f"name the run to stop: {names} {'are' if len(live) > 1 else 'is'} live",
        next_step=f"{command} {live[-1].run_id}{yes}",
    )
