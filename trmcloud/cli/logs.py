"""``trmcloud logs``: a run's training log."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

_CHUNK = 1 << 16
_POLL_S = 0.5


def command(
    run: Annotated[str, typer.Argument(help="A run's id; the newest otherwise.")] = "",
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as it grows.")] = False,
    phase: Annotated[str, typer.Option(help="fast or extreme; the last one otherwise.")] = "",
    lines: Annotated[int, typer.Option("-n", "--lines", help="Only the last N lines.")] = 0,
) -> None:
    """Print a run's training log; with -f, go on until the run has ended.

    Example: trmcloud logs -f r-1f3a9c
    """
    from trmcloud.app.drive import reconcile
    from trmcloud.app.world import find_run
    from trmcloud.core.errors import NotFoundError
    from trmcloud.wiring import build_world

    world = build_world()
    reconcile(world)
    state = find_run(world, run or None)
    phases = [phase] if phase else list(world.files.phases(state.run_id))
    if not phases:
        raise NotFoundError(f"{state.run_id} has no log yet", next_step="trmcloud status")
    path = Path(world.files.logs(state.run_id, phases[-1]))
    if not path.exists() and not (follow and state.live):
        raise NotFoundError(f"{state.run_id} has no log of {phases[-1]}", where=str(path))
    offset = _print_from(path, 0, lines)
    while follow:
        live = find_run(world, state.run_id).live
        offset = _print_from(path, offset, 0)
        if not live:
            return
        newest = world.files.phases(state.run_id)
        if not phase and newest and newest[-1] != phases[-1]:
            phases, offset = list(newest), 0
            path = Path(world.files.logs(state.run_id, phases[-1]))
        world.clock.sleep(_POLL_S)
        reconcile(world)


def _print_from(path: Path, offset: int, last_lines: int) -> int:
    """Print what the file holds beyond ``offset`` bytes; the new offset."""
    from trmcloud.core.pod_contract import strip_control

    if not path.exists():
        return offset
    with open(path, "rb") as file:
        file.seek(offset)
        if last_lines > 0:
            text = file.read().decode("utf-8", "replace")
            print("\n".join(strip_control(text).splitlines()[-last_lines:]))
        else:
            while chunk := file.read(_CHUNK):
                sys.stdout.write(strip_control(chunk.decode("utf-8", "replace")))
        sys.stdout.flush()
        return file.tell()
