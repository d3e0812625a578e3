"""What the reaper puts on record before it ends a pod of nobody's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.core.test_strays import AT, LATENCY_S, RATE, ledger, pod, run
from trmcloud.app.reap import Ended, end, look
from trmcloud.core.control import events as ev
from trmcloud.core.control.bookkeeping import add_note
from trmcloud.core.control.orphan_costs import AHEAD_S
from trmcloud.core.money import cost

FOUND_AT = AT + 100.0


class Case:
    """One run, its pod, and a second one that was made by the same create."""

    def __init__(self) -> None:
        self.now, self.book, self.ended = FOUND_AT, ledger(run()), list[str]()
        listed = (pod("id-1", made_at=AT), pod("id-2", made_at=AT))
        compute = SimpleNamespace(list_pods=lambda: listed, terminate=self.ended.append)
        self.slept_s = 0.0
        self.context: Any = SimpleNamespace(
            ledger=SimpleNamespace(read=lambda: self.book, note=self.note, ledger_id="abcd1234"),
            wall=lambda: self.now, unasked=frozenset(), listed={}, owned_elsewhere=frozenset(),
            computes={"runpod": compute},
        )  # fmt: skip

    def note(self, event: ev.Note, at: float) -> None:
        self.book, _ = add_note(self.book, 0, event, at)


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setattr("trmcloud.app.reap.providers_in_use", lambda context: ("runpod",))
    return Case()


def on_record(case: Case) -> Any:
    return case.book.strays[("runpod", "id-2")].amount


def test_it_is_charged_a_little_ahead_and_ended(case: Case) -> None:
    found = look(case.context, own_only=True)
    [did] = end(case.context, found)
    assert isinstance(did, Ended)
    assert case.ended == ["id-2"]
    assert on_record(case) == cost(RATE, 100.0 + LATENCY_S + AHEAD_S)


def test_who_slept_since_the_look_charges_what_it_may_have_cost_by_now(case: Case) -> None:
    found = look(case.context, own_only=True)
    case.now += 7200.0
    end(case.context, found)
    assert case.ended == ["id-2"]
    assert on_record(case) == cost(RATE, 7300.0 + LATENCY_S + AHEAD_S)
