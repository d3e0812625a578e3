"""Events are written once and read back by any later version."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trmcloud.core.control import events as ev
from trmcloud.core.control.event_json import event_from_json, event_to_json
from trmcloud.core.money import Usd

amounts = st.integers(0, 10**15).map(Usd.from_micros)


@given(amounts, st.none() | amounts)
def test_money_survives_json_to_the_last_micro_dollar(amount: Usd, billed: Usd | None) -> None:
    event = ev.Settled(1, amount, billed)
    text = json.dumps(event_to_json(event))
    assert event_from_json("Settled", json.loads(text)) == event


def test_money_is_written_as_text() -> None:
    assert event_to_json(ev.Reserved(Usd("0.1"))) == {"amount": "0.1"}


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("Teleported", {}),
        ("object", {}),
        ("Reserved", {}),
        ("Reserved", {"amount": "1", "colour": "red"}),
        ("Reserved", {"amount": "ten"}),
        ("Reserved", {"amount": 1.5}),
        ("Reserved", {"amount": 1}),
        ("Reserved", {"amount": True}),
        ("Reserved", {"amount": ["1"]}),
        ("Reserved", {"amount": "1e999999999"}),
        ("CapSet", {"level": "account", "key": "", "cap": 5}),
    ],
)
def test_what_this_version_does_not_know_is_refused(kind: str, data: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"event|money|dollar"):
        event_from_json(kind, data)


def test_every_kind_of_event_can_be_read_back() -> None:
    assert {kind.__name__: kind for kind in EVERY_KIND} == dict(ev.EVENT_TYPES)


EVERY_KIND = (*ev.RunEvent.__args__, *ev.LedgerEvent.__args__)
