"""The chain of a ledger's records: each one's hash covers the one before it and every field. Pure.

A ledger keeps it; a receipt carries a run's own links of it, so that they can be checked where the
ledger is not.
"""

from __future__ import annotations

import json
from hashlib import sha256

from trmcloud.core.values import dataclass


@dataclass(frozen=True)
class Link:
    """A record as a ledger keeps it, with its own hash and that of the record before it. ``body``
    is the event's JSON, as it was written; ``n`` counts the records of its run."""

    seq: int
    run_id: str
    n: int
    epoch: int
    at: float
    kind: str
    body: str
    before: str
    sha256: str

    @property
    def is_whole(self) -> bool:
        """Whether its hash is that of what it says."""
        fields = (self.seq, self.run_id, self.n, self.epoch, self.at, self.kind, self.body)
        return link_hash(self.before, *fields) == self.sha256


def genesis(ledger_id: str) -> str:
    """The hash that the first record's hash covers."""
    return text_sha256(f"trmcloud ledger {ledger_id}")


def link_hash(
    before: str, seq: int, run_id: str, n: int, epoch: int, at: float, kind: str, body: str
) -> str:
    """The hash of a record: it covers the one before it and every field."""
    # JSON on one line holds no newline, so no two records have the same text.
    return text_sha256(f"{json.dumps([before, seq, run_id, n, epoch, at, kind])}\n{body}")


def text_sha256(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
