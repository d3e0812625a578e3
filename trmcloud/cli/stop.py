"""``trmcloud stop``: land a run now."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def command(
    run: Annotated[str, typer.Argument(help="A run's id; the newest otherwise.")] = "",
    detach: Annotated[bool, typer.Option("-d", "--detach", help="Ask, and leave.")] = False,
) -> None:
    """Land a run: it ends its step, evaluates, saves, and its pod is ended.

    Example: trmcloud stop r-1f3a9c
    """
    from trmcloud.app.drive import reconcile
    from trmcloud.app.launch import follow_or_drive, request_stop
    from trmcloud.cli.run_view import show_end
    from trmcloud.wiring import build_world

    world = build_world()
    reconcile(world)
    state = request_stop(world, run or None, "trmcloud stop")
    print(f"{state.run_id}: asked to land")
    if detach:
        reconcile(world)
        return
    ended = follow_or_drive(world, state.run_id, lambda r: not r.live, lambda r: None)
    show_end(world, ended)
    from trmcloud.core.run_state import Outcome

    wanted = (Outcome.STOPPED, Outcome.FINISHED, Outcome.LANDED)
    sys.exit(0 if ended.outcome in wanted else ended.outcome.exit_code if ended.outcome else 1)
