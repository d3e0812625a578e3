"""Bringing runs up to date before a command begins, and telling of those where it failed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trmcloud.app.world import World


def catch_up(world: World) -> list[str]:
    """``reconcile``: what it found and did. Each run that it could not bring up to date gets one
    line on stderr, and each provider that gave no list; see ``trouble_code`` for the exit code."""
    from trmcloud.app.drive import reconcile

    said = reconcile(world)
    tell_troubles(world)
    tell_unreached(world)
    return said


def tell_unreached(world: World) -> None:
    """Providers that gave no list: what they rent to us goes on, unseen from here."""
    from trmcloud.app.world import unreached
    from trmcloud.core.plain_text import one_line

    for provider, why in unreached(world):
        print(one_line(f"{provider} was not looked at: {why}"), file=sys.stderr, flush=True)


def tell_troubles(world: World) -> None:
    from trmcloud.core.errors import TrmcloudError
    from trmcloud.core.plain_text import one_line

    for run_id, error in world.troubles.items():
        known = isinstance(error, TrmcloudError)
        what = str(error) if known else f"unexpected {type(error).__name__}: {error}"
        print(
            one_line(f"{run_id} could not be brought up to date: {what}"),
            file=sys.stderr,
            flush=True,
        )


def trouble_code(world: World, run_id: str = "") -> int:
    """The exit code of a command that looks at all runs, or at the one that is named: 0 where each
    was brought up to date."""
    troubles = [e for name, e in world.troubles.items() if run_id in ("", name)]
    return max((int(getattr(error, "exit_code", 1)) for error in troubles), default=0)
