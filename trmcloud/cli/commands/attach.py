"""``trmcloud attach``: the live line of a run again."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def attach(
    run: Annotated[str, typer.Argument(help="A run's id; the newest otherwise.")] = "",
) -> None:
    """Watch a run as the command that launched it did, until it ends or you leave.

    Where nobody drives it any more, this command does: it fetches checkpoints,
    and ends the pod when its work is done. Ctrl-C leaves the run as it is. The
    exit code is the run's, also where it has ended already.

    Example: trmcloud attach r-1f3a9c
    """
    from trmcloud.app.context import find_run
    from trmcloud.app.out_of_reach import require_reach
    from trmcloud.cli.catching_up import catch_up
    from trmcloud.cli.views.run import look_on
    from trmcloud.wiring import build_context

    context = build_context()
    catch_up(context)
    state = find_run(context, run or None)
    if state.live and state.generation is not None:
        require_reach(context, state.generation.provider)
    sys.exit(look_on(context, state.run_id))
