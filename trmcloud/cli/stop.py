"""``trmcloud stop``: land a run now."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def command(
    run: Annotated[str, typer.Argument(help="A run's id; the newest otherwise.")] = "",
    detach: Annotated[bool, typer.Option("-d", "--detach", help="Ask, and leave.")] = False,
) -> None:
    """Land a run: it ends its step, saves, evaluates, and its pod is ended.

    Example: trmcloud stop r-1f3a9c
    """
    from trmcloud.app.launch import follow_or_drive, request_stop
    from trmcloud.app.out_of_reach import require_reach
    from trmcloud.cli.catching_up import catch_up
    from trmcloud.cli.run_bar import RunBar
    from trmcloud.cli.run_view import OverButForItsBill, outcome_of, show_end
    from trmcloud.core.outcome import Outcome
    from trmcloud.wiring import build_world

    world = build_world()
    catch_up(world)
    state = request_stop(world, run or None, "trmcloud stop")
    print(f"{state.run_id}: asked to land")
    if detach:
        catch_up(world)
        return
    if state.generation is not None:
        require_reach(world, state.generation.provider)
    over = OverButForItsBill(world)
    with RunBar(world) as bar:
        ended = follow_or_drive(world, state.run_id, over, bar.watch)
    code = show_end(world, ended)
    wanted = (Outcome.STOPPED, Outcome.FINISHED, Outcome.LANDED)
    sys.exit(0 if outcome_of(ended) in wanted else code)
