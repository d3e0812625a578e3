"""Bring runs up to date before a command, and send notifications while it works."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trmcloud.cli.views.troubles import tell_troubles, tell_unreached

if TYPE_CHECKING:
    from trmcloud.app.context import Context
    from trmcloud.app.reap import Did
    from trmcloud.core.control.run_state import RunState
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


_POLL_S = 0.5
_POLL_POD_S = 2.0


def catch_up(context: Context) -> list[Did]:
    """``reconcile``: what it found and did. Each run that it could not bring up to date gets one
    line on stderr, and each provider that gave no list; see ``trouble_code`` for the exit code."""
    from trmcloud.app.reconciling import reconcile

    tell(context)
    did = reconcile(context)
    tell_troubles(context)
    tell_unreached(context)
    return did


def find_caught_up(run: str) -> tuple[Context, RunState]:
    """Bring all runs up to date; return this home, and the run that is named, else the newest.

    Raises:
        NotFoundError: there is no such run.
    """
    from trmcloud.app.context import find_run
    from trmcloud.wiring import build_context

    context = build_context()
    catch_up(context)
    return context, find_run(context, run or None)


def look_again(context: Context, run: RunState) -> None:
    """Wait a moment. The driver of a rented run brings its files here; where there is none, this
    command asks the pod itself, over a new connection after each drop."""
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
