"""``trmcloud prune``: delete all checkpoints but the best and the latest."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer


def command(
    run: Annotated[str, typer.Argument(help="A run's id; the newest otherwise.")] = "",
    keep_best: Annotated[
        int | None, typer.Option(help="How many best of each phase stay (default: the recipe's).")
    ] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Delete checkpoints, never the best of a phase nor its latest.

    Example: trmcloud prune r-1f3a9c --keep-best 1 -y
    """
    from trmcloud.app import checkpoints
    from trmcloud.app.drive import reconcile
    from trmcloud.app.world import find_run
    from trmcloud.core.errors import ConflictError, UsageError
    from trmcloud.wiring import build_world

    if keep_best is not None and keep_best < 1:
        raise UsageError("--keep-best is at least 1: the best checkpoint is never deleted")
    world = build_world()
    reconcile(world)
    state = find_run(world, run or None)
    if state.live:
        raise ConflictError(
            f"{state.run_id} is running, and prunes by itself",
            next_step=f"trmcloud stop {state.run_id}, then prune",
        )
    pruning = checkpoints.plan_pruning(world, state, keep_best)
    if as_json:
        gone = [m.label for m in pruning.checkpoints]
        kept = [m.label for m in pruning.kept]
        print(json.dumps({"delete": gone, "keep": kept, "freed_bytes": pruning.freed_bytes}))
    else:
        for manifest in pruning.checkpoints:
            print(f"  delete {manifest.label}  {manifest.size_bytes / 1e6:,.1f} MB")
        for manifest in pruning.kept:
            print(f"  keep   {manifest.label}  {manifest.size_bytes / 1e6:,.1f} MB")
    if not pruning.checkpoints:
        return
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("there is nobody to ask", next_step="add -y to go ahead")
        if not typer.confirm("  Delete?", default=False):
            return
    checkpoints.prune(world, pruning)
    if not as_json:
        print(f"freed {pruning.freed_bytes / 1e6:,.1f} MB")
