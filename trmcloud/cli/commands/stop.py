"""``trmcloud save`` and ``stop``: a checkpoint now, and the end of a run."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from trmcloud.app.checkpoints.inventory import HERE
from trmcloud.app.checkpoints.saving import Place, SaveRequest, SaveWaiter, request_save
from trmcloud.app.context import Context, find_run, require_reach
from trmcloud.app.ending import end_run
from trmcloud.app.launching import OnlyBillPending, follow_or_drive, request_stop
from trmcloud.app.run_queries import mark_reported
from trmcloud.cli import options
from trmcloud.cli.catch_up import catch_up
from trmcloud.cli.views.run import ending_code, outcome_of, show_end, tell_ending
from trmcloud.cli.views.run_bar import RunBar
from trmcloud.cli.views.text import bpb, fields, print_json
from trmcloud.core.control.observation import BY_POD
from trmcloud.core.control.reason import ReasonKind, make_reason
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import LedgerError, NotFoundError, Outcome, StaleEpoch, TrmcloudError
from trmcloud.wiring import build_context


def save(
    run: options.RunName = "",
    detach: Annotated[bool, typer.Option("-d", "--detach", help="Ask, and leave.")] = False,
    wait: Annotated[
        float, typer.Option("--wait", min=1.0, help="Seconds to wait for it, and for its copy.")
    ] = 300.0,
    as_json: options.Json = False,
) -> None:
    """Make a checkpoint of a run that trains, now; it goes on.

    It is made after the step that is under way, brought to where the run's checkpoints are kept,
    and evaluated like any other.

    Example: trmcloud save r-1f3a9c
    """
    context = build_context()
    catch_up(context)
    asked = request_save(context, run or None, "trmcloud save")
    if not as_json:
        print(f"{asked.run_id}: asked to save", flush=True)
    if detach:
        catch_up(context)
        return
    state = find_run(context, asked.run_id)
    if state.generation is not None:
        require_reach(context, state.generation.provider)
    waiting = SaveWaiter(context, asked, wait)
    state = follow_or_drive(context, asked.run_id, waiting.is_over, lambda state: None)
    _show(state, waiting.place(state), asked, as_json=as_json)


def _show(state: RunState, place: Place, asked: SaveRequest, *, as_json: bool) -> None:
    kept, is_here = place.kept, place.at.kind == HERE
    if as_json:
        print_json(
            {
                "run": asked.run_id,
                "checkpoint": place.label,
                "val_bpb": kept.val_bpb,
                "sha256": kept.sha256,
                "size_bytes": kept.size_bytes,
                "lies_in": place.words,
                "safe": is_here,
                "kept": place.final,
                "reported_by": mark_reported(state, kept).source,
            },
            indent=None,
        )
        return
    metric = "not evaluated yet"
    if kept.val_bpb is not None:
        metric = mark_reported(state, kept.val_bpb).as_reported(bpb)
    by = "" if is_here else f" {BY_POD}"
    size = f"{kept.size_bytes / 1e6:,.1f} MB"
    print(f"{asked.run_id} {place.label}: saved{by}, {size}; it goes on")
    rows = [("final-step bpb", metric), ("weights", f"sha256 {kept.sha256}")]
    print("\n".join(fields([*rows, ("lies in" if place.final else "on", place.words)], "  ")))


def stop(
    run: options.RunName = "",
    detach: Annotated[bool, typer.Option("-d", "--detach", help="Ask, and leave.")] = False,
    now: Annotated[
        bool, typer.Option("--now", help="End its pod without landing: what is not saved is lost.")
    ] = False,
) -> None:
    """Land a run: it ends its step, saves, evaluates, and its pod is ended.

    With --now and a run's id its pods are ended even where the ledger cannot be read or written.

    Example: trmcloud stop r-1f3a9c
    """
    context = build_context()
    try:
        _stop(context, run, detach=detach, now=now)
    except StaleEpoch:
        raise
    except (LedgerError, NotFoundError) as error:
        if now and run:
            _end_by_name(context, run, error)
        if isinstance(error, LedgerError) and not now:
            error.next_step = "trmcloud stop --now RUN ends its pod without the ledger"
        elif not run and isinstance(error, LedgerError):
            error.next_step = "name the run: trmcloud stop --now RUN"
        raise


def _stop(context: Context, run: str, *, detach: bool, now: bool) -> None:
    if not now:
        catch_up(context)
    kind = ReasonKind.STOP_NOW if now else ReasonKind.STOP_COMMAND
    state = request_stop(context, run or None, make_reason(kind))
    if now:
        catch_up(context)  # not before: it may wait for whom this run has nothing to do with
    print(f"{state.run_id}: {'its pod is ended' if now else 'asked to land'}")
    if detach:
        catch_up(context)
        return
    if state.generation is not None:
        require_reach(context, state.generation.provider)
    over = OnlyBillPending(context)
    with RunBar(context) as bar:
        ended = follow_or_drive(context, state.run_id, over, bar.watch)
    code = show_end(context, ended)
    wanted = (Outcome.STOPPED, Outcome.FINISHED, Outcome.LANDED)
    sys.exit(0 if outcome_of(ended) in wanted else code)


def _end_by_name(context: Context, run: str, error: TrmcloudError) -> None:
    """End the run's pods without the ledger; returns where none is listed."""
    ended = end_run(context, run)
    if ended.asked or ended.failed or ended.listed.unreachable:
        tell_ending(run, ended, str(error))
        sys.exit(ending_code(ended))
