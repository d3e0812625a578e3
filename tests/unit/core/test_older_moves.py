"""Ledgers of versions that lowered the stop of a live run for another one: they are read, and what
they say holds. ``older_moves.json`` has the events as such a version wrote them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.core.runs import a_report
from trmcloud.core.catalog.providers import TRAITS
from trmcloud.core.clock import DatedFact, Instant, UnknownSince
from trmcloud.core.contract.pod_contract import AgentReport
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import LAND, TERMINATE, Decision
from trmcloud.core.control.controller import decide
from trmcloud.core.control.ledger_records import event_from_json
from trmcloud.core.control.observation import Observation, PodSeen, PodStatus
from trmcloud.core.control.pod_facts import orders_for
from trmcloud.core.control.run_state import RunState, fold
from trmcloud.core.money import Usd

AT = 1_790_000_000.0
HOUR_S = 3600.0
WRITTEN = json.loads(Path(__file__).with_name("older_moves.json").read_text(encoding="utf-8"))


def read(*parts: str, without_last: int = 0) -> RunState:
    rows = [row for part in parts for row in WRITTEN[part]]
    rows = rows[: len(rows) - without_last]
    return fold(
        "r1",
        [
            ev.Record(n, "r1", 1, AT + after_s, event_from_json(kind, data))
            for n, (after_s, kind, data) in enumerate(rows, 1)
        ],
    )


def look(run: RunState, now: float, report: AgentReport | None, *pods: PodSeen) -> Decision:
    unknown = UnknownSince(now)
    seen = Observation(
        pods=DatedFact(pods, now),
        report=DatedFact(report, now) if report is not None else unknown,
        bill=unknown,
        unbilled=True,
        clock=Instant(now, now - AT, "here"),
    )
    return decide(run, run.plan, "abcd1234", TRAITS["runpod"], seen, now)


def pod(number: int, rate: str) -> PodSeen:
    return PodSeen(f"id-{number}", f"pod-{number}", PodStatus.RUNNING, Usd(rate), None)


# -- a stop that was lowered -----------------------------------------------------------------------


def test_the_money_of_a_lowered_stop_is_free_and_the_stop_holds() -> None:
    run = read("begun", "lowered")
    assert run.generation is not None
    assert (run.reserved, run.reservation) == (Usd("32.5"), Usd("32.5"))
    assert run.generation.hard_stop_at == AT + 8 * HOUR_S
    assert run.generation.soft_stop_at == AT + 8 * HOUR_S - 300.0
    assert run.generation.granted_until == AT + 14 * HOUR_S + 1
    assert orders_for(run, run.generation, 2).hard_stop_at == AT + 8 * HOUR_S
    ended = look(run, AT + 8 * HOUR_S, None, pod(1, "4"))
    assert [action.verb for action in ended.actions] == [TERMINATE]


@pytest.mark.parametrize(("knows", "verbs"), [(True, []), (False, [LAND])])
def test_an_agent_that_does_not_report_the_lowered_stop_is_told_to_land(
    knows: bool, verbs: list[str]
) -> None:
    run = read("begun", "lowered")
    assert run.generation is not None
    stop_at = run.generation.hard_stop_at + (0.0 if knows else 6 * HOUR_S)
    report = a_report(run, hard_stop_at=stop_at, granted_until=AT + 1e6)
    soft = run.generation.soft_stop_at

    def told(now: float) -> list[str]:
        verbs = [action.verb for action in look(run, now, report, pod(1, "4")).actions]
        return [verb for verb in verbs if verb == LAND]

    assert told(soft - 60) == []
    assert told(soft + 1) == verbs


def test_an_earlier_stop_that_no_agent_has_confirmed_changes_nothing_on_record() -> None:
    asked, begun = read("begun", "lowered", without_last=2), read("begun")
    assert asked.generation is not None
    assert begun.generation is not None
    assert asked.generation.hard_stop_at == begun.generation.hard_stop_at
    assert asked.reserved == begun.reserved
    assert orders_for(asked, asked.generation, 2).hard_stop_at == 0.0
