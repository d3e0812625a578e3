"""A ledger some of whose records are not what was written. Pure.

Each record's own hash says whether it is whole, so damage is found record by record. A run with a
damaged record is put in quarantine: nothing is folded from the rest of its records, nothing more is
written to it, and its money counts at the most that it can be. A damaged record of the whole ledger
stops new reservations where it may have been a cap or a charge. What cannot be known is never zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import LedgerState, extend_ledger
from trmcloud.core.control.ledger_facts import Lost, Quarantine
from trmcloud.core.control.run_state import IllegalTransition
from trmcloud.core.money import ZERO, Usd, total
from trmcloud.core.values import replace

_BURDENS = ("CapSet", "StrayCharged", "LedgerRestored")
_HARMLESS = (
    "LayerVerified",
    "StrayBilled",
    "VolumeDeleted",
    "LedgerReconciled",
    "DamageSettled",
    "TokensPinned",
    "DataPinned",
)
"""Without one of these the ledger holds more money, or trusts less, than with it."""


class Contradiction(Exception):
    """Record ``seq``, of ``run_id``, is whole and cannot follow those before it."""

    def __init__(self, seq: int, run_id: str, why: str) -> None:
        super().__init__(why)
        self.seq, self.run_id = seq, run_id


def attributed(
    found: Sequence[tuple[int, str, int, str]], counts: Mapping[str, Sequence[int]]
) -> tuple[Lost, ...]:
    """Which run each damaged record belongs to. ``found``: (seq, run id, n, kind) as they read now,
    any of which may be wrong; ``counts``: the numbers ``n`` of each run's whole records, rising.

    Raises:
        ValueError: more records are missing than are damaged.
    """
    missing = {
        run_id: sorted(set(range(1, max(seen) + 1)) - set(seen)) for run_id, seen in counts.items()
    }
    left = list(found)
    lost: list[Lost] = []
    for told_right in (True, False):
        for record in list(left):
            seq, run_id, n, kind = record
            owner = _owner(run_id, n, missing, told_right=told_right)
            if owner is not None:
                missing[owner].remove(n if n in missing[owner] else missing[owner][0])
                left.remove(record)
                lost.append(Lost(seq, _kind(kind), owner))
    if any(missing.values()):
        raise ValueError("records are missing")
    for seq, run_id, _, kind in left:
        near = [known for known in counts if known and _differs_by(known, run_id) <= 1]
        known = near[0] if near else run_id if _kind(kind) in _RUN_KINDS and run_id else ""
        lost.append(Lost(seq, _kind(kind) if run_id == known else "", known))
    return tuple(sorted(lost, key=lambda each: each.seq))


def _owner(
    run_id: str, n: int, missing: Mapping[str, Sequence[int]], *, told_right: bool
) -> str | None:
    """The run that lacks this record; unless ``told_right``, any that lacks one at all."""
    if told_right:
        return run_id if missing.get(run_id) else None
    lacking = [known for known, numbers in missing.items() if numbers]
    by_number = [known for known in lacking if n in missing[known]]
    near = [known for known in lacking if _differs_by(known, run_id) <= 1]
    return next(iter((*near, *by_number, *lacking)), None)


def fold_damaged(ledger_id: str, records: Sequence[ev.Record], lost: Sequence[Lost]) -> LedgerState:
    """The state that follows from whole ``records`` of a ledger of which ``lost`` are damaged.

    Raises:
        Contradiction: a run's record that cannot follow those before it.
    """
    hurt = {each.run_id for each in lost if each.run_id}
    quarantined = {
        run_id: _quarantine(
            run_id,
            [record for record in records if record.run_id == run_id],
            [each for each in lost if each.run_id == run_id],
        )
        for run_id in sorted(hurt)
    }
    state = LedgerState(ledger_id, quarantined=quarantined)
    batch: list[ev.Record] = []
    for record in records:
        if record.run_id in hurt:
            continue
        if record.run_id:
            batch.append(record)
            continue
        state, batch = _folded(state, batch), []
        try:
            state = extend_ledger(state, (record,))
        except IllegalTransition:
            continue  # it followed a record that is damaged
    return replace(_folded(state, batch), unread=_unread(records, lost))


def _folded(state: LedgerState, batch: Sequence[ev.Record]) -> LedgerState:
    try:
        return extend_ledger(state, batch) if batch else state
    except (IllegalTransition, ValueError, TypeError, AttributeError):
        for record in batch:
            try:
                state = extend_ledger(state, (record,))
            except (IllegalTransition, ValueError, TypeError, AttributeError) as error:
                raise Contradiction(record.seq, record.run_id, str(error)) from None
        raise


def _unread(records: Iterable[ev.Record], lost: Iterable[Lost]) -> tuple[Lost, ...]:
    """Damaged records of the whole ledger that stop reservations still."""
    later = list(records)
    settled = {r.event.of for r in later if isinstance(r.event, ev.DamageSettled)}
    return tuple(
        each
        for each in lost
        if not each.run_id and each.kind not in _HARMLESS and each.name not in settled
    )


def _quarantine(run_id: str, records: Sequence[ev.Record], lost: Sequence[Lost]) -> Quarantine:
    """What a run with damaged records may have cost: all that it ever reserved, where that can be
    read; up to its cap, where a reservation cannot; else it is not known."""
    held: list[Usd] = []
    caps: list[Usd] = []
    settled: list[Usd] = []
    project, reserved_at = None, 0.0
    for record in records:
        event = record.event
        if isinstance(event, ev.Reserved):
            held.append(event.amount)
            reserved_at = record.at
        elif isinstance(event, (ev.RunPlanned, ev.Reopened)):
            caps.append(event.cap)
            project = event.project if isinstance(event, ev.RunPlanned) else project
        elif isinstance(event, (ev.Settled, ev.Billed, ev.BucketSwept)):
            settled.append(event.amount)
    kinds = {each.kind for each in lost}
    most: Usd | None = max(total(held), total(settled))
    if kinds & {"Reserved", "BucketSwept", ""}:
        capped = bool(caps) and not kinds & {"RunPlanned", "Reopened", ""}
        most = max(most or ZERO, *caps) if capped else None
    when_known = reserved_at > 0 and not kinds & {"Reserved", ""}
    return Quarantine(
        run_id=run_id,
        read=len(records),
        lost=tuple(each.seq for each in lost),
        most=most,
        project=project,
        reserved_at=reserved_at if when_known else None,
    )


_RUN_KINDS = frozenset(name for name in ev.EVENT_TYPES if name not in (*_BURDENS, *_HARMLESS))


def _kind(kind: str) -> str:
    return kind if kind in ev.EVENT_TYPES else ""


def _differs_by(one: str, other: str) -> int:
    if len(one) != len(other):
        return max(len(one), len(other))
    return sum(a != b for a, b in zip(one, other, strict=True))
