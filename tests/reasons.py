"""Reasons as tests need them: given in words of one's own, and read as a user reads them."""

from __future__ import annotations

from trmcloud.app.reasons import sentence
from trmcloud.core.control.reason import Reason, ReasonKind, make_reason

__all__ = ["quoted", "sentence"]


def quoted(text: str) -> Reason:
    """What somebody said, as it stands in a ledger."""
    return make_reason(ReasonKind.SAID, text=text)
