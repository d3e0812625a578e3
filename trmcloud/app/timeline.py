"""What happened to a run, in its order: the ledger's own record, and what its metrics and its
agents' reports tell beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trmcloud.app.context import Context
from trmcloud.core.codec import to_json
from trmcloud.core.control import events as ev
from trmcloud.core.values import dataclass


@dataclass(frozen=True)
class Event:
    """One fact of the ledger: ``kind`` is the name of its class in ``core.control.events``,
    ``facts`` its fields as JSON. ``id`` grows by time within a ledger and never changes."""

    id: int
    run: str
    at: float
    kind: str
    facts: Mapping[str, Any]


def events_since(context: Context, run_id: str | None, after: int = 0) -> Iterator[Event]:
    """Those of one run, or of all and of the ledger itself, that came after the one of that id."""
    for record in context.ledger.records(run_id):
        if record.seq > after:
            kind = type(record.event).__name__
            yield Event(record.seq, record.run_id, record.at, kind, _facts(record.event))


def _facts(event: ev.Event) -> Mapping[str, Any]:
    facts = to_json(event)
    if isinstance(event, ev.RunPlanned):
        facts["plan"] = {"id": facts["plan"].get("id", "")}  # the whole of it is a hundred lines
    return facts
