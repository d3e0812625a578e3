"""``trmcloud stop``: land a run now."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from trmcloud.app.context import Context
    from trmcloud.core.errors import TrmcloudError


def stop(
    run: Annotated[str, typer.Argument(help="A run's id; the newest otherwise.")] = "",
    detach: Annotated[bool, typer.Option("-d", "--detach", help="Ask, and leave.")] = False,
    now: Annotated[
        bool, typer.Option("--now", help="End its pod without landing: what is not saved is lost.")
    ] = False,
) -> None:
    """Land a run: it ends its step, saves, evaluates, and its pod is ended.

    With --now and a run's id its pods are ended even where the ledger cannot be read or written.

    Example: trmcloud stop r-1f3a9c
    """
    from trmcloud.core.errors import LedgerError, NotFoundError, StaleEpoch
    from trmcloud.wiring import build_context

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
    from trmcloud.app.launching import OverButForItsBill, follow_or_drive, request_stop
    from trmcloud.app.out_of_reach import require_reach
    from trmcloud.cli.catching_up import catch_up
    from trmcloud.cli.views.run import outcome_of, show_end
    from trmcloud.cli.views.run_bar import RunBar
    from trmcloud.core.control.reason import ReasonKind, because
    from trmcloud.core.outcome import Outcome

    if not now:
        catch_up(context)
    kind = ReasonKind.STOP_NOW if now else ReasonKind.STOP_COMMAND
    state = request_stop(context, run or None, because(kind))
    if now:
        catch_up(context)  # not before: it may wait for whom this run has nothing to do with
    print(f"{state.run_id}: {'its pod is ended' if now else 'asked to land'}")
    if detach:
        catch_up(context)
        return
    if state.generation is not None:
        require_reach(context, state.generation.provider)
    over = OverButForItsBill(context)
    with RunBar(context) as bar:
        ended = follow_or_drive(context, state.run_id, over, bar.watch)
    code = show_end(context, ended)
    wanted = (Outcome.STOPPED, Outcome.FINISHED, Outcome.LANDED)
    sys.exit(0 if outcome_of(ended) in wanted else code)


def _end_by_name(context: Context, run: str, error: TrmcloudError) -> None:
    """End the run's pods without the ledger; returns where none is listed."""
    from trmcloud.app.ending import end_run
    from trmcloud.cli.views.ending import ending_code, tell_ending

    ended = end_run(context, run)
    if ended.asked or ended.failed or ended.listed.unreachable:
        tell_ending(run, ended, str(error))
        sys.exit(ending_code(ended))
