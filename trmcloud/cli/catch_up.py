"""Bring runs up to date before a command, and send notifications while it works."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trmcloud.cli.views.troubles import tell_troubles, tell_unreached

if TYPE_CHECKING:
    from trmcloud.operations.context import Context
    from trmcloud.operations.driving.reap import Did
    from trmcloud.ports.notices import BackgroundNotifier


GRACE_S = 5.0
"""The time that a finished command stays to send due notices; the next process sends the rest."""
_running: list[tuple[BackgroundNotifier, float]] = []


def tell(context: Context, grace_s: float = GRACE_S) -> None:
    """Send notifications from now on, where there are destinations."""
    from trmcloud.wiring import notification_thread

    if _running:
        return
    thread = notification_thread(context)
    if thread is not None:
        _running.append((thread, grace_s))
        thread.start()


def finish() -> None:
    """Send what is due, at the end of a command."""
    while _running:
        thread, grace_s = _running.pop()
        thread.finish(grace_s)


def catch_up(context: Context) -> list[Did]:
    """``reconcile``: what it found and did. Each run that it could not bring up to date gets one
    line on stderr, and each provider that gave no list; see ``trouble_code`` for the exit code."""
    from trmcloud.operations.driving.reconciling import reconcile

    tell(context)
    did = reconcile(context)
    tell_troubles(context)
    tell_unreached(context)
    return did


def caught_up() -> Context:
    """Return this home with all its runs up to date."""
    from trmcloud.wiring import build_context

    context = build_context()
    catch_up(context)
    return context
