"""``trmcloud fetch-best``: bring the best checkpoint home, verified."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def command(
    run: Annotated[str, typer.Argument(help="A run's id; the newest otherwise.")] = "",
    into: Annotated[
        str, typer.Option("--into", help="Folder to make (default: RUN-PHASE-STEP here).")
    ] = "",
    weights_only: Annotated[
        bool, typer.Option("--weights-only", help="Leave the optimizer's state behind.")
    ] = False,
    phase: Annotated[str, typer.Option(help="fast or extreme; the last one otherwise.")] = "",
    step: Annotated[int | None, typer.Option(help="This step, not the best one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Copy the best checkpoint (lowest validation bits per byte), verifying every hash.

    Example: trmcloud fetch-best r-1f3a9c --weights-only
    """
    from trmcloud.app import checkpoints
    from trmcloud.app.drive import reconcile
    from trmcloud.app.world import find_run
    from trmcloud.cli.text import bpb, losses
    from trmcloud.wiring import build_world

    world = build_world()
    reconcile(world)
    state = find_run(world, run or None)
    best = checkpoints.choose(world, state, phase=phase or None, step=step)
    chosen = Path(into).expanduser() if into else None
    folder = chosen or checkpoints.default_folder(state, best, Path.cwd())
    fetched = checkpoints.fetch(
        world, state, best, folder, weights_only=weights_only, progress=_progress
    )
    if as_json:
        print(checkpoints.to_json(fetched))
        return
    word = "already there, verified" if fetched.already_there else "fetched and verified"
    print(f"{state.run_id} {best.label}: {word}")
    print(f"  final-step bpb  {bpb(best.val_bpb)}   ℓ {losses(best.step_losses)}")
    print(f"  weights         sha256 {best.sha256}")
    print(f"  lies in         {fetched.folder.absolute()}")


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        end = "\r\x1b[K" if done == total else ""
        text = f"\r\x1b[K  {done / 1e6:,.1f} of {total / 1e6:,.1f} MB"
        print(text + end, end="", file=sys.stderr, flush=True)
