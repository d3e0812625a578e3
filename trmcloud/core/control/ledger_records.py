"""Records of a ledger: JSON, hash chain, damaged records. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from trmcloud.core import codec
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import LedgerState, extend_ledger
from trmcloud.core.control.events import EVENT_TYPES, Event, RunPlanned
from trmcloud.core.control.ledger_facts import LostRecord, Quarantine
from trmcloud.core.control.reason import ReasonKind, make_reason
from trmcloud.core.control.run_state import IllegalTransition
from trmcloud.core.money import ZERO, Usd, total
from trmcloud.core.values import Value, replace

# The chain of a ledger's records: each one's hash covers the one before it and every field. Pure.
#
# A ledger keeps it; a receipt carries a run's own links of it, so that they can be checked where
# the ledger is not.


class Link(Value):
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


# Events as the JSON of a ledger, and what earlier versions wrote read as what it is called now.

#: What ledgers of formats 1 and 2 call it. Read as what it is called now; never written.
EARLIER_KINDS = {"Heard": "LateReport"}
EARLIER_OUTCOMES = {"unheard": "unreported"}
_OUTCOMES = frozenset({"outcome", "result"})
#: What ledgers up to format 3 call a reason, which was a sentence there: by event.
_EARLIER_REASONS = {"ResultKnown": "message", "LateReport": "message", "Closed": "message"}
#: Those of their sentences that something hangs on; each stood in these very words.
_EARLIER_SENTENCES = {
    "its work is done, and its checkpoints are here": ReasonKind.SAVED_HERE,
}
_WITH_REASONS = frozenset({"land", "terminate"})


class UnknownEvent(ValueError):
    """An event of a kind, or with a field, that this version does not know: a newer one wrote it.
    Its text names which."""


def event_to_json(event: Event) -> dict[str, Any]:
    """The event's fields; ``type(event).__name__`` goes beside it."""
    return codec.to_json(event)


def event_from_json(kind: str, data: Mapping[str, Any]) -> Event:
    """
    Raises:
        UnknownEvent: of a kind, or with a field, that this version does not know.
        ValueError: no event of its kind.
    """
    kind = EARLIER_KINDS.get(kind, kind)
    known = EVENT_TYPES.get(kind)
    if known is None:
        raise UnknownEvent(f"event {kind!r:.80}")
    if known is RunPlanned:
        _require_known(data.get("plan"))
    data = {key: _now(value) if key in _OUTCOMES else value for key, value in data.items()}
    data = _with_reason(kind, data)
    try:
        event: Event = codec.from_json(known, data, known=True)
    except codec.UnknownField as error:
        raise UnknownEvent(f"field {str(error)!r:.80} of event {kind}") from None
    except (KeyError, TypeError) as error:
        raise ValueError(f"event {kind}: {error}") from None
    return event


def _require_known(plan: Any) -> None:
    """A plan is read when it is looked at; that a newer version wrote it shows at once."""
    from trmcloud.core.spec.plan import PLAN_VERSION  # nothing but a run asks for it

    version = plan.get("version") if isinstance(plan, Mapping) else None
    if isinstance(version, int) and version > PLAN_VERSION:
        raise UnknownEvent(f"version {version} of a plan")


def _with_reason(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    """``data`` with a reason where an earlier version kept its sentence, which it still tells."""
    earlier = _EARLIER_REASONS.get(kind, "reason")
    if kind == "ActionFinished" and data.get("verb") in _WITH_REASONS:
        earlier = "detail"
    sentence = data.get(earlier)
    if not isinstance(sentence, str) or (earlier != "reason" and "reason" in data):
        return data
    rest = {key: value for key, value in data.items() if key != earlier}
    if not sentence and earlier != "reason":
        return rest
    meant = _EARLIER_SENTENCES.get(sentence)
    reason = make_reason(ReasonKind.SAID, text=sentence) if meant is None else make_reason(meant)
    return {**rest, "reason": codec.to_json(reason)}


def _now(outcome: Any) -> Any:
    return EARLIER_OUTCOMES.get(outcome, outcome) if isinstance(outcome, str) else outcome


# A ledger some of whose records are not what was written. Pure.
#
# Each record's own hash says whether it is whole, so damage is found record by record. A run with
# a damaged record is put in quarantine: nothing is folded from the rest of its records, nothing
# more is written to it, and its money counts at the most that it can be. A damaged record of the
# whole ledger stops new reservations where it may have been a cap or a charge. What cannot be
# known is never zero.

_BURDENS = ("CapSet", "GrantRevoked", "StrayCharged", "LedgerRestored")
_HARMLESS = (
    "LayerVerified",
    "StrayBilled",
    "VolumeDeleted",
    "LedgerReconciled",
    "DamageSettled",
    "TokensPinned",
    "DataPinned",
    "BalanceLow",
    "GrantGiven",
    "GrantRaised",
    "ApprovalAsked",
    "ApprovalGiven",
    "ApprovalDenied",
)
"""Without one of these the ledger holds more money, or trusts less, than with it."""


class Contradiction(Exception):
    """Record ``seq``, of ``run_id``, is whole and cannot follow those before it."""

    def __init__(self, seq: int, run_id: str, why: str) -> None:
        super().__init__(why)
        self.seq, self.run_id = seq, run_id


def attribute_damage(
    found: Sequence[tuple[int, str, int, str]], counts: Mapping[str, Sequence[int]]
) -> tuple[LostRecord, ...]:
    """Which run each damaged record belongs to. ``found``: (seq, run id, n, kind) as they read now,
    any of which may be wrong; ``counts``: the numbers ``n`` of each run's whole records, rising.

    Raises:
        ValueError: more records are missing than are damaged.
    """
    missing = {
        run_id: sorted(set(range(1, max(seen) + 1)) - set(seen)) for run_id, seen in counts.items()
    }
    left = list(found)
    lost: list[LostRecord] = []
    for told_right in (True, False):
        for record in list(left):
            seq, run_id, n, kind = record
            owner = _owner(run_id, n, missing, told_right=told_right)
            if owner is not None:
                missing[owner].remove(n if n in missing[owner] else missing[owner][0])
                left.remove(record)
                lost.append(LostRecord(seq, _kind(kind), owner))
    if any(missing.values()):
        raise ValueError("records are missing")
    for seq, run_id, _, kind in left:
        near = [known for known in counts if known and _differs_by(known, run_id) <= 1]
        known = near[0] if near else run_id if _kind(kind) in _RUN_KINDS and run_id else ""
        lost.append(LostRecord(seq, _kind(kind) if run_id == known else "", known))
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


def fold_damaged(
    ledger_id: str, records: Sequence[ev.Record], lost: Sequence[LostRecord]
) -> LedgerState:
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


def _unread(records: Iterable[ev.Record], lost: Iterable[LostRecord]) -> tuple[LostRecord, ...]:
    """Damaged records of the whole ledger that stop reservations still."""
    later = list(records)
    settled = {r.event.of for r in later if isinstance(r.event, ev.DamageSettled)}
    return tuple(
        each
        for each in lost
        if not each.run_id and each.kind not in _HARMLESS and each.name not in settled
    )


def _quarantine(
    run_id: str, records: Sequence[ev.Record], lost: Sequence[LostRecord]
) -> Quarantine:
    """Return the most that a run with damaged records can have cost: all that it ever reserved,
    where that can be read; up to its cap, where a reservation cannot; else it is unknown."""
    held: list[Usd] = []
    caps: list[Usd] = []
    settled: list[Usd] = []
    project, reserved_at, closed = None, 0.0, 0
    principals: dict[str, None] = {}
    extendable = False
    for record in records:
        event = record.event
        if isinstance(event, (ev.Reserved, ev.MoveStarted)):
            held.append(event.amount)
            reserved_at = record.at
        elif isinstance(event, ev.Extended):
            held[-1:] = [event.amount]
        elif isinstance(event, ev.PodIntended):
            extendable = extendable or event.limit_at > event.hard_stop_at
        elif isinstance(event, (ev.RunPlanned, ev.Reopened)):
            caps.append(event.cap)
            project = event.project if isinstance(event, ev.RunPlanned) else project
            principals[event.principal] = None
            closed = 0
        elif isinstance(event, ev.Closed):
            closed = record.seq
        elif isinstance(event, (ev.Settled, ev.Billed, ev.BucketSwept)):
            settled.append(event.amount)
    kinds = {each.kind for each in lost}
    # Where its stop is one that can be moved, its machine may live to the time in its name.
    held_most = max((total(held), *caps)) if extendable else total(held)
    most: Usd | None = max(held_most, total(settled))
    if kinds & {"Reserved", "Extended", "MoveStarted", "BucketSwept", ""}:
        capped = bool(caps) and not kinds & {"RunPlanned", "Reopened", ""}
        most = max(most or ZERO, *caps) if capped else None
    when_known = reserved_at > 0 and not kinds & {"Reserved", "MoveStarted", ""}
    return Quarantine(
        run_id=run_id,
        read=len(records),
        lost=tuple(each.seq for each in lost),
        most=most,
        project=project,
        reserved_at=reserved_at if when_known else None,
        created_at=records[0].at if records else 0.0,
        pods=tuple(r.event.pod_id for r in records if isinstance(r.event, ev.PodUp)),
        principals=None if kinds & {"RunPlanned", "Reopened", ""} else tuple(principals),
        may_live=not closed
        or any(each.seq > closed and each.kind in ("Reopened", "") for each in lost),
    )


_RUN_KINDS = frozenset(name for name in ev.EVENT_TYPES if name not in (*_BURDENS, *_HARMLESS))


def _kind(kind: str) -> str:
    return kind if kind in ev.EVENT_TYPES else ""


def _differs_by(one: str, other: str) -> int:
    if len(one) != len(other):
        return max(len(one), len(other))
    return sum(a != b for a, b in zip(one, other, strict=True))
