"""``trmcloud wandb``: a run's curves at Weights & Biases."""

from __future__ import annotations

from typing import Annotated

import typer


def wandb(
    run: Annotated[str, typer.Argument(help="A run's id; the newest otherwise.")] = "",
    project: Annotated[
        str, typer.Option(help="W&B's project; the run's own otherwise.", envvar="WANDB_PROJECT")
    ] = "",
    entity: Annotated[
        str, typer.Option(help="W&B's team or user; your default.", envvar="WANDB_ENTITY")
    ] = "",
) -> None:
    """Send a run's curves to Weights & Biases from this machine, until the run has ended.

    W&B's key stays here: no pod is given it. With WANDB_MODE=offline all is kept in a folder, for
    W&B's own "wandb sync".

    Example: trmcloud wandb r-1f3a9c --project my-curves
    """
    import importlib.util

    from trmcloud.app.boards import BoardFeed, need_metrics
    from trmcloud.app.context import find_run
    from trmcloud.cli.catching_up import catch_up, look_again
    from trmcloud.core.control.run_state import State
    from trmcloud.core.errors import MissingExtra
    from trmcloud.wiring import build_context, wandb_run

    if importlib.util.find_spec("wandb") is None:
        raise MissingExtra("trmcloud wandb", "wandb")
    context = build_context()
    catch_up(context)
    state = find_run(context, run or None)
    need_metrics(context, state)
    board, where = wandb_run(
        context.home, state, project=project or state.project, entity=entity or None
    )
    told = 0
    try:
        print(f"{state.run_id}: {where}", flush=True)
        feed = BoardFeed(context, state.run_id, board)
        while True:
            state = find_run(context, state.run_id)
            # Asked first: what is logged in between is told.
            is_over = not state.live or state.state in (State.SETTLING, State.SETTLED)
            told += feed.look()
            if is_over:
                break
            look_again(context, state)
    finally:
        board.close()
    print(f"{state.run_id}: {told:,} lines of metrics were told")
