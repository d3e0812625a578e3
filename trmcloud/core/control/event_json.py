"""Events as the JSON of a ledger, and what earlier versions wrote read as what it is called now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trmcloud.core import codec
from trmcloud.core.control.events import EVENT_TYPES, Event, RunPlanned
from trmcloud.core.control.reason import ReasonKind, because

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
    reason = because(ReasonKind.SAID, text=sentence) if meant is None else because(meant)
    return {**rest, "reason": codec.to_json(reason)}


def _now(outcome: Any) -> Any:
    return EARLIER_OUTCOMES.get(outcome, outcome) if isinstance(outcome, str) else outcome
