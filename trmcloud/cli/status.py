"""``trmcloud status``: runs, their money, and what guards them."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

import typer

from trmcloud.cli import options


def command(
    run: Annotated[str, typer.Argument(help="A run's id; all live ones otherwise.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="Ended runs, too.")] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Ask SkyPilot, too: seconds, and it starts its server.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    verbose: options.Verbose = False,
) -> None:
    """Show runs, their money against their cap, and every kill layer's state.

    Example: trmcloud status r-1f3a9c
    """
    from trmcloud.app.world import find_run, is_quiet
    from trmcloud.cli import status_view
    from trmcloud.cli.catching_up import catch_up, trouble_code
    from trmcloud.core.providers import BY_SKYPILOT
    from trmcloud.wiring import build_world

    world = build_world()
    if not live:
        world = replace(world, unasked=frozenset(BY_SKYPILOT))
    said: list[str] = []
    if not is_quiet(world):
        said = catch_up(world)
    if run:
        runs = [find_run(world, run)]
    else:
        known = sorted(world.ledger.read().runs.values(), key=lambda r: r.created_at)
        runs = [r for r in known if r.live or everything] or known[-1:]
    code = trouble_code(world, run)
    if as_json:
        status_view.show_json(world, runs)
        sys.exit(code)
    for line in said:
        print(f"· {line}")
    if run:
        status_view.show_one(world, runs[0], verbose=verbose)
    else:
        status_view.show_table(world, runs)
        others = len(known) - len(runs)
        if others:
            ended = "1 more has ended" if others == 1 else f"{others} more have ended"
            print(f"{ended} · trmcloud status --all")
    sys.exit(code)
