"""What a receipt is made of: a run's records with their place in the ledger's chain, manifests,
points of its curves, what was mended. Pure; nothing of it is believed before it was checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.contract.records import Instant, Label, Sha256, formed
from trmcloud.core.control import events as ev
from trmcloud.core.control.chain import Link
from trmcloud.core.control.curve_points import Point
from trmcloud.core.control.event_json import event_from_json
from trmcloud.core.errors import CheckpointError, ReceiptError
from trmcloud.core.values import dataclass


@dataclass(frozen=True)
class ChainedRecord:
    """A ``Link`` whose body is JSON as it is."""

    seq: int
    run_id: str
    n: int
    epoch: int
    at: float
    kind: str
    body: Mapping[str, Any]
    before: Sha256
    sha256: Sha256

    @property
    def link(self) -> Link:
        """As the ledger keeps it: its JSON is what the same writer writes again."""
        text = json.dumps(self.body, allow_nan=False)
        chained = self.before, self.sha256
        return Link(self.seq, self.run_id, self.n, self.epoch, self.at, self.kind, text, *chained)


@dataclass(frozen=True)
class LedgerPart:
    """``head_seq`` and ``head_sha256``: the newest record that the ledger had then."""

    ledger_id: Annotated[str, formed(r"[0-9a-f]{8}")]
    head_seq: int
    head_sha256: Sha256
    records: tuple[ChainedRecord, ...]


@dataclass(frozen=True)
class Mended:
    """Trouble of a phase that was mended, as its machine's agent told it."""

    generation: int
    phase: Label
    what: Label
    rung: Label
    step: int
    at: Instant
    changed: Mapping[str, Any]
    times: int
    lost_steps: int
    lost_s: float
    why: str


@dataclass(frozen=True)
class Sources:
    """Everything that an account is made of."""

    ledger: LedgerPart
    checkpoints: tuple[Mapping[str, Any], ...]
    """Manifests, as JSON."""
    curves: tuple[Point, ...]
    mended: tuple[Mended, ...] = ()


def records_of(sources: Sources) -> list[ev.Record]:
    """
    Raises:
        ReceiptError: one of them is no event that this version knows.
    """
    made = []
    for row in sources.ledger.records:
        try:
            event = event_from_json(row.kind, row.body)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise ReceiptError(f"its record {row.seq} cannot be read: {error}") from None
        made.append(ev.Record(row.seq, row.run_id, row.epoch, row.at, event))
    return made


def broken_link(sources: Sources, genesis: str) -> str:
    """What is wrong with the chain, of which only the run's own records are here; '' where nothing
    is. ``genesis`` is what the ledger's first record follows."""
    before: ChainedRecord | None = None
    for row in sources.ledger.records:
        if not row.link.is_whole:
            return f"record {row.seq} ({row.kind}) was changed after it was written"
        follows = before.sha256 if before is not None and row.seq == before.seq + 1 else row.before
        if row.seq == 1:
            follows = genesis
        if row.before != follows or (before is not None and row.seq <= before.seq):
            return f"record {row.seq} ({row.kind}) does not follow the one before it"
        before = row
    head = sources.ledger
    if before is not None and before.seq >= head.head_seq:
        at_head = before.seq == head.head_seq and before.sha256 == head.head_sha256
        return "" if at_head else "its last record is not the ledger's newest, as it says"
    return ""


def others_between(sources: Sources) -> int:
    """Records of other runs that stand between its own, and are not here."""
    rows = sources.ledger.records
    return rows[-1].seq - rows[0].seq + 1 - len(rows) if rows else 0


def manifests_of(sources: Sources) -> list[CheckpointManifest]:
    """
    Raises:
        ReceiptError: one is none.
    """
    try:
        return [mf.from_json(json.dumps(row), "receipt") for row in sources.checkpoints]
    except CheckpointError as error:
        raise ReceiptError(f"one of its checkpoints cannot be read: {error}") from None
