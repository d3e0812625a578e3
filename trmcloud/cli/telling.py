"""Having somebody told while a command does its work, and a moment for that when it is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trmcloud.app.context import Context
    from trmcloud.ports.notices import Telling

GRACE_S = 5.0
"""How long a command that is done stays for what is due; what is not told by then is told by
whoever is awake next."""
_running: list[tuple[Telling, float]] = []


def tell(context: Context, grace_s: float = GRACE_S) -> None:
    """From now on, if anybody is to be told at all."""
    from trmcloud.cli.views.notices import words_of
    from trmcloud.wiring import telling_thread

    if _running:
        return
    thread = telling_thread(context, words_of)
    if thread is not None:
        _running.append((thread, grace_s))
        thread.start()


def finish() -> None:
    """The command is done."""
    while _running:
        thread, grace_s = _running.pop()
        thread.finish(grace_s)
