"""Reasons as tests need them: given in words of one's own, and read as a user reads them."""

from __future__ import annotations

from trmcloud.core.control.reason import Reason, ReasonKind, make_reason
from trmcloud.operations.reasons import sentence

__all__ = ["quoted", "sentence"]


def quoted(text: str) -> Reason:
    """What somebody said, as it stands in a ledger."""
    return make_reason(ReasonKind.SAID, text=text)
