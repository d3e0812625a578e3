"""Runs that could not be brought up to date, and providers that gave no list, a line each."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trmcloud.app.context import Context


def tell_unreached(context: Context) -> None:
    """Providers that gave no list: what they rent to us goes on, unseen from here."""
    from trmcloud.app.context import unreached
    from trmcloud.core.plain_text import one_line

    for provider, why in unreached(context):
        print(one_line(f"{provider} was not looked at: {why}"), file=sys.stderr, flush=True)


def tell_troubles(context: Context) -> None:
    from trmcloud.core.errors import TrmcloudError
    from trmcloud.core.plain_text import one_line

    for run_id, error in context.troubles.items():
        known = isinstance(error, TrmcloudError)
        what = str(error) if known else f"unexpected {type(error).__name__}: {error}"
        print(
            one_line(f"{run_id} could not be brought up to date: {what}"),
            file=sys.stderr,
            flush=True,
        )


def trouble_code(context: Context, run_id: str = "") -> int:
    """The exit code of a command that looks at all runs, or at the one that is named: 0 where each
    was brought up to date."""
    troubles = [e for name, e in context.troubles.items() if run_id in ("", name)]
    return max((int(getattr(error, "exit_code", 1)) for error in troubles), default=0)
