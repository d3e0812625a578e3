"""A launch that waits for the money that another run does not need: on real ledgers and notes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.plans import a_candidate, a_plan, plan_json
from trmcloud.app.context import Context
from trmcloud.app.reap import ReapFindings, hard_stops, last_visit, note_visit
from trmcloud.app.room import make_room, room_for
from trmcloud.core.clock import Instant
from trmcloud.core.control import events as ev
from trmcloud.core.errors import BudgetRefused
from trmcloud.core.money import Usd
from trmcloud.core.spec.plan import Interval, Plan
from trmcloud.core.values import replace
from trmcloud.wiring import build_context

HOUR_S = 3600.0


class Elsewhere:
    """The clock of a launch; each sleep is a minute in which the run's driver, its agent and the
    reaper of another machine do what they are there for."""

    def __init__(self, context: Context, *, agent: bool = True, reaper: bool = True) -> None:
        self.context, self.agent, self.reaper = context, agent, reaper
        self.at, self.reported = time.time(), 2e9
        self.note_visit()

    def now(self) -> Instant:
        return Instant(self.at, self.at, "boot")

    def sleep(self, seconds: float) -> None:
        self.at += 60.0
        run = self.context.ledger.read().runs["r-1"]
        here = run.generation
        assert here is not None
        if self.agent and here.lower_to is not None and here.first_stop_at is None:
            self.reported = here.lower_to
            self.context.ledger.append("r-1", run.epoch, (ev.StopKnown(1),), self.at)
        self.note_visit()

    def note_visit(self) -> None:
        """Write the note of another machine's reaper: the stops that it read in this ledger."""
        note = {"at": self.at, "host": "a-server:1", "every_s": 300.0, "reached": ["runpod"]}
        stops = hard_stops(self.context.ledger.read()) if self.reaper else {}
        (self.context.home / "guard.json").write_text(json.dumps({**note, "stops": stops}))

    def report(self, pod_name: str) -> Any:
        return SimpleNamespace(hard_stop_at=self.reported)


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Context:
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path))
    monkeypatch.setenv("RUNPOD_API_KEY", "")
    made = build_context()
    at = made.wall()
    made.ledger.set_cap(ev.CapSet("account", "", Usd(120)), at)
    plan = plan_json(a_candidate(hours=Interval(3.5, 4.0, 5.0)))
    planned = ev.RunPlanned(plan, Usd(100), made.project)
    epoch = made.ledger.open_run("r-1", planned, Usd(100), made.who, at)
    stop_at = at + 99 * HOUR_S
    name = f"trmc-{made.ledger.ledger_id}-r1-g1-{int(stop_at)}"
    intent = ev.PodIntended(1, name, "runpod", "c1", Usd(1), stop_at - 600, stop_at)
    events = (intent, ev.PodUp(1, "id-1", Usd(1)), ev.AgentUp(1))
    made.ledger.append("r-1", epoch, events, at)
    return made


def wanted() -> Plan:
    return replace(a_plan(a_candidate()), cap=Usd(50), reservation=Usd(50))


def with_world(context: Context, elsewhere: Elsewhere) -> Context:
    links: Any = {"runpod": elsewhere}
    return replace(context, clock=elsewhere, links=links)


def test_the_money_is_free_once_agent_and_reaper_know_the_earlier_stop(context: Context) -> None:
    world = with_world(context, Elsewhere(context))
    said: list[str] = []
    make_room(world, wanted(), said.append)
    run = world.ledger.read().runs["r-1"]
    assert run.reserved < Usd(10)
    assert run.generation is not None
    assert run.generation.first_stop_at is not None
    assert len(said) == 1
    assert said[0].startswith("r-1: an earlier hard stop frees $9")
    assert room_for(world, wanted(), last_visit(world)) is None


@pytest.mark.parametrize("lacks", ["agent", "reaper"])
def test_where_one_of_them_never_does_the_launch_is_refused_and_the_money_stays(
    context: Context, lacks: str
) -> None:
    world = with_world(context, Elsewhere(context, **{lacks: False}))
    with pytest.raises(BudgetRefused, match="r-1 was not confirmed within 16 min"):
        make_room(world, wanted(), lambda line: None)
    assert world.ledger.read().runs["r-1"].reserved == Usd(100)


def test_without_a_reaper_elsewhere_nothing_is_asked_of_anybody(context: Context) -> None:
    before = context.ledger.read()
    make_room(context, wanted(), lambda line: None)
    assert context.ledger.read() is before
    room = room_for(context, wanted(), None)
    assert room is not None
    assert (room.lowerings, list(room.why)) == ((), ["r-1"])


def test_a_visit_notes_by_which_stops_it_ends_what_runs(context: Context) -> None:
    note_visit(context, 300.0, ReapFindings((), ()))
    seen = last_visit(context)
    assert seen is not None
    [(name, stop_at)] = seen.stops.items()
    assert name.startswith("trmc-")
    assert stop_at > context.wall() + 98 * HOUR_S
    (context.home / "guard.json").write_text('{"at": 1, "host": "x", "every_s": 1, "stops": 7}')
    assert last_visit(context) is None
