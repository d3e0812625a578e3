"""``trmcloud stop``: land a run now."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def command(
    run: Annotated[str, typer.Argument(help="A run's id; the newest otherwise.")] = "",
    detach: Annotated[bool, typer.Option("-d", "--detach", help="Ask, and leave.")] = False,
    now: Annotated[
        bool, typer.Option("--now", help="End its pod without landing: what is not saved is lost.")
    ] = False,
) -> None:
    """Land a run: it ends its step, saves, evaluates, and its pod is ended.

    Example: trmcloud stop r-1f3a9c
    """
    from trmcloud.app.launching import OverButForItsBill, follow_or_drive, request_stop
    from trmcloud.app.out_of_reach import require_reach
    from trmcloud.cli.catching_up import catch_up
    from trmcloud.cli.views.run import outcome_of, show_end
    from trmcloud.cli.views.run_bar import RunBar
    from trmcloud.core.control.reason import ReasonKind, because
    from trmcloud.core.outcome import Outcome
    from trmcloud.wiring import build_context

    context = build_context()
    catch_up(context)
    kind = ReasonKind.STOP_NOW if now else ReasonKind.STOP_COMMAND
    state = request_stop(context, run or None, because(kind))
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
