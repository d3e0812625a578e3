"""Bringing runs up to date before a command begins, and having somebody told meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trmcloud.cli.views.troubles import tell_troubles as tell_troubles
from trmcloud.cli.views.troubles import tell_unreached as tell_unreached
from trmcloud.cli.views.troubles import trouble_code as trouble_code

if TYPE_CHECKING:
    from trmcloud.app.context import Context
    from trmcloud.app.reap import Did
    from trmcloud.core.control.run_state import RunState

_POLL_S = 0.5
_POLL_POD_S = 2.0


def catch_up(context: Context) -> list[Did]:
    """``reconcile``: what it found and did. Each run that it could not bring up to date gets one
    line on stderr, and each provider that gave no list; see ``trouble_code`` for the exit code."""
    from trmcloud.app.reconciling import reconcile
    from trmcloud.cli.telling import tell

    tell(context)
    did = reconcile(context)
    tell_troubles(context)
    tell_unreached(context)
    return did


def look_again(context: Context, run: RunState) -> None:
    """Wait a moment. Whoever drives a rented run brings its files here; where nobody does, this
    command asks the pod itself, and its every connection anew after a drop."""
    from trmcloud.app.reconciling import reconcile
    from trmcloud.app.run_queries import is_driven, is_rented

    if not is_rented(run):
        context.clock.sleep(_POLL_S)
        reconcile(context)
        return
    driven = is_driven(context, context.ledger.driver(run.run_id))
    context.clock.sleep(_POLL_S if driven else _POLL_POD_S)
    if not driven:
        reconcile(context)
