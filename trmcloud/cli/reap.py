"""``trmcloud reap``: find and end what no live run owns."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer


def command(
    yes: Annotated[bool, typer.Option("-y", "--yes", help="End what is found.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    guard_every: Annotated[
        int, typer.Option(help="Set by the guard: minutes between its visits.", hidden=True)
    ] = 0,
) -> None:
    """Look at every provider for pods of ours that no live run owns, and end them with --yes.

    Only names that trmcloud made are ever touched: those of this ledger that it does not own, and
    those of any ledger whose own hard stop has passed.

    Example: trmcloud reap --yes
    """
    from trmcloud.app import reap
    from trmcloud.app.drive import reconcile
    from trmcloud.wiring import build_world

    world = build_world()
    found = reap.look(world)
    said = reap.end(world, found) if yes else []
    if yes:
        said += reconcile(world)
    if guard_every:
        reap.note_visit(world, guard_every * 60.0, found)
    if as_json:
        rows = [
            {"provider": provider, "pod": orphan.pod.name, "reason": orphan.reason}
            for provider, orphan in found.orphans
        ]
        unreachable = dict(found.unreachable)
        print(json.dumps({"orphans": rows, "did": said, "unreachable": unreachable}))
    else:
        for provider, orphan in found.orphans if not yes else ():
            print(f"{orphan.pod.name} on {provider}: {orphan.reason}")
        for line in said:
            print(line)
        for provider, why in found.unreachable:
            print(f"{provider} gave no list: {why}", file=sys.stderr)
        if not found.orphans and not said:
            print("nothing is running that no run owns")
        elif found.orphans and not yes:
            print("trmcloud reap --yes ends them")
    sys.exit(11 if found.unreachable else 0)
