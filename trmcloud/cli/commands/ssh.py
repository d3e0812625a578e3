"""``trmcloud ssh``: a shell on a run's pod."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer


def ssh(
    run: Annotated[str, typer.Argument(help="A run's id; the newest otherwise.")] = "",
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND...]", help="What to run there; a shell otherwise."),
    ] = None,
) -> None:
    """Log in to a run's pod by the key that was made for it, and no other.

    The pod's own key is the one that it was given when it was rented: another
    machine at its address is refused. Neither your agent nor your environment
    goes along. The pod ends when its budget says so, whoever is logged in.

    Example: trmcloud ssh r-1f3a9c -- nvidia-smi
    """
    from trmcloud.app.checkpoints.on_pod import live_pod
    from trmcloud.app.context import find_run
    from trmcloud.app.out_of_reach import require_reach
    from trmcloud.app.run_queries import is_rented
    from trmcloud.core.errors import ConflictError, UsageError
    from trmcloud.wiring import build_context

    context = build_context()
    state = find_run(context, run or None)
    if state.generation is not None and not is_rented(state):
        raise UsageError(
            f"{state.run_id} is a run of this machine: there is nothing to log in to",
            where=context.files.folder(state.run_id),
            next_step=f"trmcloud attach {state.run_id}; trmcloud logs -f {state.run_id}",
        )
    pod = live_pod(state)
    if pod is None:
        raise ConflictError(
            f"{state.run_id} has no pod now", next_step=f"trmcloud status {state.run_id}"
        )
    require_reach(context, pod.provider)
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    login = context.links[pod.provider].login(pod.pod_name, words or (), terminal=terminal)
    sys.stdout.flush()
    os.execvp(login[0], list(login))
