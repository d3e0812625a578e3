"""``trmcloud status``: runs, their money, and what guards them."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    run: Annotated[str, typer.Argument(help="A run's id; all live ones otherwise.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="Ended runs, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show runs, their money against their cap, and every kill layer's state.

    Example: trmcloud status r-1f3a9c
    """
    from trmcloud.app.world import find_run, is_quiet
    from trmcloud.cli import status_view
    from trmcloud.wiring import build_world

    world = build_world()
    said: list[str] = []
    if not is_quiet(world):
        from trmcloud.cli.reconciling import reconciled

        said = reconciled(world)
    if run:
        runs = [find_run(world, run)]
    else:
        known = sorted(world.ledger.read().runs.values(), key=lambda r: r.created_at)
        runs = [r for r in known if r.live or everything] or known[-1:]
    if as_json:
        status_view.show_json(world, runs)
        return
    for line in said:
        print(f"· {line}")
    if run:
        status_view.show_one(world, runs[0])
    else:
        status_view.show_table(world, runs)
        others = len(known) - len(runs)
        if others:
            ended = "1 more has ended" if others == 1 else f"{others} more have ended"
            print(f"{ended} · trmcloud status --all")
