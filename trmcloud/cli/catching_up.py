"""Bringing runs up to date before a command begins, and having somebody told meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trmcloud.cli.views.troubles import tell_troubles as tell_troubles
from trmcloud.cli.views.troubles import tell_unreached as tell_unreached
from trmcloud.cli.views.troubles import trouble_code as trouble_code

if TYPE_CHECKING:
    from trmcloud.app.context import Context
    from trmcloud.app.reap import Did


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
