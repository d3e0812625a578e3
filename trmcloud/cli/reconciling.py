"""What commands begin with: the ledger is brought up to date, and what was not seen is told."""

from __future__ import annotations

import sys

from trmcloud.app.world import World


def reconciled(world: World) -> list[str]:
    """A line for each thing that was found and done. A provider that gave no list is told on
    stderr: what it rents to us goes on, unseen from here."""
    from trmcloud.app.drive import reconcile

    said = reconcile(world)
    tell_unreached(world)
    return said


def tell_unreached(world: World) -> None:
    from trmcloud.app.world import unreached
    from trmcloud.core.pod_contract import strip_control

    for provider, why in unreached(world):
        words = f"{provider} was not looked at: {why}".replace("\n", " ")
        print(strip_control(words), file=sys.stderr)
