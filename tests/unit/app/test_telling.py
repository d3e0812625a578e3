"""Telling is nobody's burden: what was derived is told at least once, whoever dies in between, and
one who never answers keeps nobody else waiting."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.plans import a_candidate, plan_json
from tests.standins.receiver import until
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.adapters.notify.outbox import NAME, SqliteOutbox
from trmcloud.adapters.notify.thread import TellingThread
from trmcloud.app.telling import FIRST_PAUSE_S, GIVE_UP_AFTER_S, HOLD_S, LONGEST_PAUSE_S, Teller
from trmcloud.cli.views.notices import words_of
from trmcloud.core.clock import Instant
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.pod_contract import AgentReport, PhaseReport, PhaseState
from trmcloud.core.contract.recovery import Recovery
from trmcloud.core.control import events as ev
from trmcloud.core.control.notices import MOST_TROUBLES
from trmcloud.core.errors import MissingExtra, TrmcloudError
from trmcloud.core.money import Usd
from trmcloud.ports.ledger import ControllerId
from trmcloud.ports.notices import Destination, Send, Told
from trmcloud.wiring import build_context

AT = 1_790_000_000.0
ME = ControllerId("here", 1, "1")
OPS = Destination("ops", "webhook", "https://example.org/x", "whsec_x")
PHONE = Destination("phone", "ntfy", "ntfy://x")


class Clock:
    def __init__(self) -> None:
        self.at = AT

    def now(self) -> Instant:
        return Instant(self.at, self.at - AT, "here")

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody sleeps here")


class Rig:
    """A home with one run on a rented pod, and whoever is told of it."""

    def __init__(self, home: Path) -> None:
        self.home, self.clock = home, Clock()
        self.ledger = SqliteLedger(home / "ledger.db")
        self.got: list[tuple[str, str]] = []
        self.answers: list[Told] = []
        self.pod = f"trmc-{self.ledger.ledger_id}-r1-g1-1790003600"
        planned = ev.RunPlanned(plan_json(a_candidate()), Usd(10), "thesis")
        self.epoch = self.ledger.open_run("r1", planned, Usd(5), ME, AT)
        self.add(
            ev.PodIntended(1, self.pod, "runpod", "c1", Usd("3.6"), AT + 3500, AT + 3600),
            ev.PodUp(1, "id-1", Usd("3.6")),
            ev.AgentUp(1),
        )

    def add(self, *events: ev.RunEvent) -> None:
        self.ledger.append("r1", self.epoch, events, self.clock.at)

    def report(self, *rows: Recovery) -> None:
        phase = PhaseReport(
            "fast", state=PhaseState.RUNNING, started_at=AT + 40, attempts=1, recoveries=rows
        )
        made = AgentReport("r1", self.pod, 1, 7, AT, AT + 60, (phase,), AT + 3500, AT + 3600)
        folder = self.home / "pods" / self.pod
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "agent.json").write_text(contract.dump(made))

    def teller(self, *destinations: Destination, sender: Any = None) -> Teller:
        context = replace(
            build_context(), clock=self.clock, ledger=SqliteLedger(self.home / "ledger.db")
        )
        outbox = SqliteOutbox(self.home / NAME)
        return Teller(context, outbox, destinations or (OPS,), sender or self.sender, words_of)

    def sender(self, destination: Destination) -> Send:
        def send(notice_id: str, body: str) -> Told:
            assert json.loads(body)["id"] == notice_id
            self.got.append((destination.name, notice_id.partition("/")[2]))
            return self.answers.pop(0) if self.answers else Told(True)

        return send

    def told(self, teller: Teller) -> list[str]:
        """All that is due now, delivered."""
        before = len(self.got)
        for destination in teller.destinations:
            while teller.deliver(destination):
                pass
        return [notice_id for _, notice_id in self.got[before:]]


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path))
    return Rig(tmp_path)


def gate(passed: bool = True) -> ev.GateJudged:
    return ev.GateJudged(1, "fast", passed, {})


def test_what_happened_before_anybody_was_to_be_told_is_no_news(rig: Rig) -> None:
    rig.report()
    rig.add(gate())
    teller = rig.teller()
    teller.derive()
    assert rig.told(teller) == []
    rig.add(ev.ResultKnown("finished"))
    assert teller.derive() == 1
    assert rig.told(teller) == ["r1/g1/ended"]
    assert teller.derive() == 0
    assert rig.told(teller) == []


def test_a_controller_that_dies_between_the_fact_and_the_word_loses_nothing(rig: Rig) -> None:
    rig.teller().derive()
    rig.add(gate())  # and it is killed
    later = rig.teller()
    later.derive()  # and so is this one, before it told anybody
    last = rig.teller()
    assert last.derive() == 0
    assert rig.told(last) == ["r1/g1/gate/fast"]


def test_one_that_dies_after_the_word_and_before_its_record_tells_it_twice(rig: Rig) -> None:
    first = rig.teller()
    first.derive()
    rig.add(gate())
    first.derive()
    waiting = first.outbox.due("ops", rig.clock.at, HOLD_S)
    assert waiting is not None
    rig.sender(OPS)(waiting.notice_id, waiting.body)  # taken; and it is killed
    later = rig.teller()
    later.derive()
    assert rig.told(later) == [], "another one may be at it"
    rig.clock.at += HOLD_S + 1
    assert rig.told(later) == ["r1/g1/gate/fast"]
    assert {notice_id for _, notice_id in rig.got} == {"r1/g1/gate/fast"}, "by the same id"


def test_who_does_not_take_it_is_asked_ever_more_rarely(rig: Rig) -> None:
    teller = rig.teller()
    teller.derive()
    rig.add(gate())
    teller.derive()
    pauses: list[float] = []
    rig.answers = [Told(False, "it answered 500")] * 12
    for _ in range(12):
        began = rig.clock.at
        while not rig.told(teller):
            rig.clock.at += 1.0
        pauses.append(rig.clock.at - began)
    assert pauses[:5] == [0.0, FIRST_PAUSE_S, 10.0, 20.0, 40.0]
    assert max(pauses) == LONGEST_PAUSE_S
    (waiting,) = teller.outbox.waiting()
    assert (waiting.tries, waiting.why) == (12, "it answered 500")


def test_a_receiver_that_says_when_is_taken_at_its_word(rig: Rig) -> None:
    teller = rig.teller()
    teller.derive()
    rig.add(gate())
    teller.derive()
    rig.answers = [Told(False, "it answered 429", 600.0)]
    rig.told(teller)
    rig.clock.at += 599.0
    assert rig.told(teller) == []
    rig.clock.at += 1.0
    assert rig.told(teller) == ["r1/g1/gate/fast"]


def test_after_three_days_it_is_given_up_and_said_so(rig: Rig) -> None:
    teller = rig.teller()
    teller.derive()
    rig.add(gate())
    teller.derive()
    rig.answers = [Told(False, "it answered 404")] * 2
    rig.told(teller)
    rig.clock.at += GIVE_UP_AFTER_S
    rig.told(teller)
    assert teller.outbox.waiting() == []
    assert teller.outbox.last_told("ops")[1].endswith("gate/fast: it answered 404")


def test_one_that_cannot_be_told_here_waits_too(rig: Rig) -> None:
    def sender(destination: Destination) -> Send:
        raise MissingExtra("telling by ntfy", "notify")

    teller = rig.teller(PHONE, sender=sender)
    teller.derive()
    rig.add(gate())
    teller.derive()
    assert teller.deliver(PHONE)
    (waiting,) = teller.outbox.waiting()
    assert "needs the 'notify' extra" in waiting.why


def test_what_agents_report_is_told_while_they_train(rig: Rig) -> None:
    teller = rig.teller()
    teller.derive()
    rig.report()
    teller.derive()
    row = Recovery("out_of_memory", "batch", 12, AT + 50, {"batch": 2}, 3, 9.0)
    rig.report(row)
    teller.derive()
    told = ["r1/g1/started", "r1/g1/trouble/fast/out_of_memory/batch/batch=2"]
    assert rig.told(teller) == told
    rig.clock.at += 1000.0
    teller.derive()
    assert rig.told(teller) == []


def test_a_pod_that_invents_trouble_floods_nobody(rig: Rig) -> None:
    teller = rig.teller()
    teller.derive()
    for number in range(3 * MOST_TROUBLES):
        rig.report(Recovery("crashed", "again", number, AT, {}, 1, 1.0, number + 1))
        teller.derive()
    rig.add(gate(passed=False))
    assert rig.teller().derive() == 1
    told = rig.told(rig.teller())
    assert len([each for each in told if "/trouble/" in each]) == MOST_TROUBLES
    assert told[-1] == "r1/g1/gate/fast"


def test_a_ledger_that_was_put_back_tells_nothing_anew(rig: Rig) -> None:
    teller = rig.teller()
    teller.derive()
    rig.add(gate())
    teller.derive()
    rig.told(teller)
    teller.outbox.take([], [], 10_000, AT)
    again = rig.teller()
    again.derive()
    assert rig.told(again) == []
    rig.add(ev.ResultKnown("finished"))
    again.derive()
    assert rig.told(again) == ["r1/g1/ended"]


# -- beside control --------------------------------------------------------------------------------
def test_one_that_never_answers_delays_nobody(rig: Rig) -> None:
    """Neither another destination, nor whoever drives, nor the end of the command."""
    released = threading.Event()

    def sender(destination: Destination) -> Send:
        def never(notice_id: str, body: str) -> Told:
            released.wait(60)
            return Told(False, "late")

        return never if destination is OPS else rig.sender(destination)

    teller = rig.teller(OPS, PHONE, sender=sender)
    teller.derive()
    thread = TellingThread(teller, every_s=0.05)
    thread.start()
    rig.add(gate())
    until(lambda: rig.got)
    began = time.monotonic()
    for _ in range(20):  # a controller's own steps
        rig.add(ev.SaveRequested(1, "user"))
        rig.ledger.read()
    assert time.monotonic() - began < 10.0
    began = time.monotonic()
    assert not thread.finish(0.3), "it is still at it"
    assert time.monotonic() - began < 5.0
    assert [name for name, _ in rig.got] == ["phone"]
    (waiting,) = teller.outbox.waiting()
    assert waiting.destination == "ops", "what was not told waits for whoever is awake next"
    released.set()


def test_a_command_that_is_done_stays_until_what_is_due_was_tried(rig: Rig) -> None:
    teller = rig.teller()
    teller.derive()
    thread = TellingThread(teller, every_s=60.0)
    thread.start()
    rig.add(ev.ResultKnown("finished"))
    assert thread.finish(20.0)
    assert [notice_id for _, notice_id in rig.got] == ["r1/g1/ended"]


@pytest.mark.parametrize("breaks", ["outbox", "ledger"])
def test_what_cannot_be_read_stops_no_command(rig: Rig, breaks: str) -> None:
    teller = rig.teller()
    teller.derive()
    path = rig.home / {"outbox": NAME, "ledger": "ledger.db"}[breaks]
    path.write_bytes(b"nothing of ours" * 400)
    thread = TellingThread(rig.teller(), every_s=0.05)
    thread.start()
    until(lambda: thread.trouble is not None)
    assert isinstance(thread.trouble, TrmcloudError)
    assert thread.finish(20.0)


def test_nobody_is_told_where_nobody_is_named(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    from trmcloud.wiring import build_teller

    make: Callable[[], Teller | None] = lambda: build_teller(build_context(), words_of)  # noqa: E731
    assert make() is None
    (rig.home / "notify.json").write_text("no JSON")
    assert make() is None, "told by notify list, and no other command's business"
    (rig.home / "notify.json").write_text('{"version": 1, "destinations": []}')
    assert make() is None
