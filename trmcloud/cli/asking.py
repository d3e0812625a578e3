"""The question before money is spent or something is deleted."""

from __future__ import annotations

import sys

import typer

from trmcloud.core.errors import UsageError


def confirmed(question: str, *, before: str = "") -> bool:
    """Whether the user says yes. ``before``: what the question is about, where that is not plain.

    Raises:
        UsageError: stdin is no terminal.
    """
    if not sys.stdin.isatty():
        about = f"{before}, and " if before else ""
        raise UsageError(f"{about}this is not a terminal: nobody can say yes", next_step="pass -y")
    return typer.confirm(question, default=False)
