"""Notifications, boards and curves: each told at least once; the threads that do it."""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.plans import a_candidate, plan_json
from tests.unit.core.runs import AT, running
from tests.waiting import until
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.adapters.local.machine import ThreadWorkers
from trmcloud.adapters.local.run_files import LocalRunFiles
from trmcloud.adapters.notify.notified import NAME, NotificationThread, NotifiedFile
from trmcloud.adapters.notify.senders import write_destinations
from trmcloud.core.clock import Instant
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.metric_names import MOST_VALUES, figures_of
from trmcloud.core.contract.pod_contract import AgentReport, PhaseReport, PhaseState
from trmcloud.core.contract.recovery import Recovery
from trmcloud.core.control import events as ev
from trmcloud.core.control.events import ActionKey
from trmcloud.core.control.notices import MOST_TROUBLES
from trmcloud.core.control.run_state import State
from trmcloud.core.errors import CheckpointError, MissingExtra, NotFoundError, TrmcloudError
from trmcloud.core.money import Usd
from trmcloud.core.values import replace as replace_values
from trmcloud.operations.context import Context
from trmcloud.operations.curves import boards, curves
from trmcloud.operations.curves.boards import BoardFeed, need_metrics
from trmcloud.operations.curves.curves import (
    MetricsFile,
    Phase,
    curves_since,
    draw_curves,
    sample_metrics,
    starts,
    step_at,
)
from trmcloud.operations.notices.notifications import (
    FIRST_PAUSE_S,
    GIVE_UP_AFTER_S,
    HOLD_S,
    LONGEST_PAUSE_S,
    Notifier,
)
from trmcloud.ports.ledger import ControllerId
from trmcloud.ports.machine import Progress, WorkDone
from trmcloud.ports.notices import DeliveryResult, DeliveryState, Destination, Send
from trmcloud.wiring import build_context

# -- telling ------------------------------------------------------------------------------------
# Telling is nobody's burden: what was derived is told at least once, whoever dies in between, and
# one who never answers keeps nobody else waiting.


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
        self.reported: list[str] = []
        self.answers: list[DeliveryResult] = []
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

    def teller(self, *destinations: Destination, sender: Any = None) -> Notifier:
        context = replace(
            build_context(), clock=self.clock, ledger=SqliteLedger(self.home / "ledger.db")
        )
        deliveries = NotifiedFile(self.home, self.reported.append, lambda: self.clock.at)
        return Notifier(context, deliveries, destinations or (OPS,), sender or self.sender)

    def with_news(self, *destinations: Destination, sender: Any = None) -> Notifier:
        """One that has a gate's verdict to tell."""
        teller = self.teller(*destinations, sender=sender)
        teller.derive()
        self.add(gate())
        teller.derive()
        return teller

    def state(self, name: str = "ops") -> DeliveryState:
        with NotifiedFile(self.home, self.reported.append).change() as states:
            return states[name]

    def sender(self, destination: Destination) -> Send:
        def send(notice_id: str, body: str) -> DeliveryResult:
            assert json.loads(body)["id"] == notice_id
            self.got.append((destination.name, notice_id.partition("/")[2]))
            return self.answers.pop(0) if self.answers else DeliveryResult(True)

        return send

    def told(self, teller: Notifier) -> list[str]:
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

    def killed(destination: Destination) -> Send:
        def send(notice_id: str, body: str) -> DeliveryResult:
            rig.sender(destination)(notice_id, body)  # accepted
            raise KeyboardInterrupt

        return send

    with pytest.raises(KeyboardInterrupt):
        rig.teller(sender=killed).deliver(OPS)
    later = rig.teller()
    later.derive()
    assert rig.told(later) == [], "another one may be at it"
    rig.clock.at += HOLD_S + 1
    assert rig.told(later) == ["r1/g1/gate/fast"]
    assert {notice_id for _, notice_id in rig.got} == {"r1/g1/gate/fast"}, "by the same id"


def test_who_does_not_take_it_is_asked_ever_more_rarely(rig: Rig) -> None:
    teller = rig.with_news()
    pauses: list[float] = []
    rig.answers = [DeliveryResult(False, "it answered 500")] * 12
    for _ in range(12):
        began = rig.clock.at
        while not rig.told(teller):
            rig.clock.at += 1.0
        pauses.append(rig.clock.at - began)
    assert pauses[:5] == [0.0, FIRST_PAUSE_S, 10.0, 20.0, 40.0]
    assert max(pauses) == LONGEST_PAUSE_S
    (waiting,) = rig.state().waiting
    assert (waiting.tries, waiting.why) == (12, "it answered 500")


def test_a_receiver_that_says_when_is_taken_at_its_word(rig: Rig) -> None:
    teller = rig.with_news()
    rig.answers = [DeliveryResult(False, "it answered 429", 600.0)]
    rig.told(teller)
    rig.clock.at += 599.0
    assert rig.told(teller) == []
    rig.clock.at += 1.0
    assert rig.told(teller) == ["r1/g1/gate/fast"]


def test_after_three_days_it_is_given_up_and_said_so(rig: Rig) -> None:
    teller = rig.with_news()
    rig.answers = [DeliveryResult(False, "it answered 404")] * 2
    rig.told(teller)
    rig.clock.at += GIVE_UP_AFTER_S
    rig.told(teller)
    assert rig.state().waiting == ()
    assert rig.state().gave_up.endswith("gate/fast: it answered 404")


def test_a_final_refusal_is_reported_once_and_not_repeated(rig: Rig) -> None:
    teller = rig.with_news()
    rig.answers = [DeliveryResult(False, "it answered 410", is_final=True)]
    assert rig.told(teller) == ["r1/g1/gate/fast"]
    rig.clock.at += 60.0
    assert rig.told(teller) == []
    assert rig.state().gave_up.endswith("gate/fast: it answered 410")
    rig.add(ev.ResultKnown("finished"))
    teller.derive()
    assert rig.told(teller) == ["r1/g1/ended"]
    assert rig.state().gave_up == ""


def test_one_that_cannot_be_told_here_waits_too(rig: Rig) -> None:
    def sender(destination: Destination) -> Send:
        raise MissingExtra("notifying by ntfy", "notify", "install it")

    teller = rig.with_news(PHONE, sender=sender)
    assert teller.deliver(PHONE)
    (waiting,) = rig.state("phone").waiting
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


@pytest.mark.parametrize("machine", ["here", "there"])
def test_of_a_teams_homes_the_one_that_drives_a_run_tells_of_it(rig: Rig, machine: str) -> None:
    teller = rig.teller()
    caller = teller.context.caller
    teller.context = replace(
        teller.context,
        files=LocalRunFiles(teller.context.home, shares_ledger=True),
        caller=replace(caller, controller=replace(caller.controller, host=machine)),
    )
    teller.derive()
    rig.ledger.set_cap(ev.CapSet("account", "", Usd("0.0001")), AT + 1)
    rig.add(gate())
    teller.derive()
    told = rig.told(teller)
    assert ("r1/g1/gate/fast" in told) == (machine == "here"), "its driver is this machine's"
    assert all(notice_id.startswith("r1") or machine == "here" for notice_id in told)


def test_a_ledger_that_was_put_back_tells_nothing_anew(rig: Rig) -> None:
    teller = rig.with_news()
    rig.told(teller)
    with teller.deliveries.change() as states:
        states["ops"] = replace_values(states["ops"], cursor=10_000)
    again = rig.teller()
    again.derive()
    assert rig.told(again) == []
    rig.add(ev.ResultKnown("finished"))
    again.derive()
    assert rig.told(again) == ["r1/g1/ended"]


def test_each_destination_gets_the_kinds_that_it_wants(rig: Rig) -> None:
    ends = replace_values(PHONE, only=("ended",))
    teller = rig.teller(OPS, ends)
    teller.derive()
    rig.add(gate(), ev.ResultKnown("finished"))
    assert teller.derive() == 2
    rig.told(teller)
    assert rig.got == [("ops", "r1/g1/gate/fast"), ("ops", "r1/g1/ended"), ("phone", "r1/g1/ended")]


def test_to_a_new_destination_nothing_is_news_that_was_before(rig: Rig) -> None:
    rig.teller().derive()
    rig.report()
    rig.add(gate())
    both = rig.teller(OPS, PHONE)
    both.derive()
    rig.told(both)
    assert {name for name, _ in rig.got} == {"ops"}
    rig.add(ev.ResultKnown("finished"))
    both.derive()
    rig.told(both)
    assert rig.got[-2:] == [("ops", "r1/g1/ended"), ("phone", "r1/g1/ended")]


def test_a_cap_is_told_once_though_no_run_counts_towards_it_meanwhile(rig: Rig) -> None:
    rig.teller().derive()
    rig.ledger.set_cap(ev.CapSet("account", "", Usd(4)), AT)
    rig.clock.at += 3000.0
    teller = rig.teller()
    teller.derive()
    assert "cap/account/all/4/50" in rig.told(teller)
    rig.add(ev.PodGone(1, rig.clock.at), ev.Settled(1, Usd(3), Usd(3)), ev.Closed("stopped"))
    teller.derive()
    rig.told(teller)
    planned = ev.RunPlanned(plan_json(a_candidate()), Usd(1), "thesis")
    rig.ledger.open_run("r2", planned, Usd(1), ME, rig.clock.at)
    teller.derive()
    rig.told(teller)
    told = [notice_id for _, notice_id in rig.got]
    assert told.count("cap/account/all/4/50") == 1
    assert len(told) == len(set(told))


def test_a_clock_that_was_set_back_holds_nothing_for_ever(rig: Rig) -> None:
    teller = rig.teller()
    teller.derive()
    rig.add(gate())
    rig.clock.at += 400 * 86_400.0
    teller.derive()
    rig.answers = [DeliveryResult(False, "it answered 500")]
    teller.deliver(OPS)
    rig.clock.at = AT
    assert rig.told(teller)[0] == "r1/g1/gate/fast"


def test_two_processes_send_each_notice_once(rig: Rig) -> None:
    rig.teller().derive()
    rig.report(*(Recovery("crashed", "again", n, AT, {}, 1, 1.0, n + 1) for n in range(20)))
    rig.add(gate())
    sent = rig.home / "sent"

    def sender(destination: Destination) -> Send:
        def send(notice_id: str, body: str) -> DeliveryResult:
            with open(sent, "a") as file:
                file.write(f"{notice_id}\n")
            return DeliveryResult(True)

        return send

    def work() -> None:
        teller = rig.teller(sender=sender)
        teller.derive()
        while teller.deliver(OPS):
            teller.derive()

    forked = multiprocessing.get_context("fork")
    processes = [forked.Process(target=work) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    lines = sent.read_text().splitlines()
    assert len(lines) == len(set(lines)) == 22
    assert rig.state().waiting == ()


# What version 47df710e wrote; {ledger} and {seq} are those of the rig.
OLD_OUTBOX = """
CREATE TABLE known(id TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;
INSERT INTO "known" VALUES('{ledger}/r1/g1/gate/fast',1790000000.0);
INSERT INTO "known" VALUES('{ledger}/r1/g1/started',1789654400.0);
CREATE TABLE meta(version INTEGER NOT NULL, cursor INTEGER);
INSERT INTO "meta" VALUES(1,{seq});
CREATE TABLE told(
    destination TEXT PRIMARY KEY, at REAL, gave_up TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO "told" VALUES('phone',1790000002.0,'');
CREATE TABLE waiting(
    number INTEGER PRIMARY KEY, id TEXT NOT NULL, destination TEXT NOT NULL, body TEXT NOT NULL,
    tries INTEGER NOT NULL, since REAL NOT NULL, next_at REAL NOT NULL, held_until REAL NOT NULL,
    why TEXT NOT NULL, UNIQUE(id, destination)
);
INSERT INTO "waiting" VALUES(1,'{ledger}/r1/g1/started','ops',
'{{"at": 1790000000.0, "facts": {{}}, "id": "{ledger}/r1/g1/started", "kind": "started",
 "run": "r1", "version": 1}}',1,1789654400.0,1790000005.0,0.0,'it answered 500');
INSERT INTO "waiting" VALUES(2,'{ledger}/r1/g1/gate/fast','ops',
'{{"at": 1790000000.0, "facts": {{}}, "id": "{ledger}/r1/g1/gate/fast", "kind": "gate",
 "run": "r1", "version": 1}}',0,1790000000.0,1790000000.0,0.0,'');
"""


def test_what_an_earlier_version_had_not_sent_is_sent_once(rig: Rig) -> None:
    rig.report()  # "started" is known
    rig.add(gate())
    write_destinations(rig.home, [OPS, PHONE])
    old = rig.home / "outbox.db"
    with contextlib.closing(sqlite3.connect(old)) as conn:
        names = {"ledger": rig.ledger.ledger_id, "seq": rig.ledger.last_seq()}
        conn.executescript(OLD_OUTBOX.format(**names))
    before = old.read_bytes()
    teller = rig.teller(OPS, PHONE)
    teller.derive()
    rig.told(teller)
    assert rig.got == [("ops", "r1/g1/gate/fast")], "the other one waited for four days"
    assert rig.state("phone").last_told_at == AT + 2
    assert old.read_bytes() == before
    old.write_bytes(b"no database" * 400)
    rig.add(ev.ResultKnown("finished"))
    again = rig.teller(OPS, PHONE)
    again.derive()
    rig.told(again)
    assert rig.got[1:] == [("ops", "r1/g1/ended"), ("phone", "r1/g1/ended")]
    assert rig.reported == []


@pytest.mark.parametrize("content", ['{"version": 1, "destin', "[]", "null", "\xff", "[" * 9999])
def test_a_damaged_file_is_kept_aside_and_notifications_begin_from_now(
    rig: Rig, content: str
) -> None:
    write_destinations(rig.home, [OPS])
    rig.teller().derive()
    rig.add(gate())
    (rig.home / NAME).write_text(content, encoding="latin-1")
    (rig.home / "outbox.db").write_bytes(b"no database" * 400)
    teller = rig.teller()
    teller.derive()
    assert rig.told(teller) == []
    [line] = rig.reported
    assert line.startswith(f"{rig.home / NAME} was damaged (")
    assert "\n" not in line
    assert (rig.home / f"{NAME}.damaged").read_text(encoding="latin-1") == content
    rig.add(ev.ResultKnown("finished"))
    again = rig.teller()
    again.derive()
    assert rig.told(again) == ["r1/g1/ended"]
    assert rig.reported == [line]


def test_an_outbox_that_cannot_be_read_is_named_in_a_line(rig: Rig) -> None:
    write_destinations(rig.home, [OPS])
    (rig.home / "outbox.db").write_bytes(b"no database" * 400)
    teller = rig.teller()
    teller.derive()
    [line] = rig.reported
    assert "outbox.db cannot be read (file is not a database)" in line
    rig.add(gate())
    teller.derive()
    assert rig.told(teller) == ["r1/g1/gate/fast"]


# -- beside control --------------------------------------------------------------------------------
def test_one_that_never_answers_delays_nobody(rig: Rig) -> None:
    """Neither another destination, nor whoever drives, nor the end of the command."""
    released = threading.Event()

    def sender(destination: Destination) -> Send:
        def never(notice_id: str, body: str) -> DeliveryResult:
            released.wait(60)
            return DeliveryResult(False, "late")

        return never if destination is OPS else rig.sender(destination)

    teller = rig.teller(OPS, PHONE, sender=sender)
    teller.derive()
    thread = NotificationThread(teller, every_s=0.05)
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
    assert len(rig.state("ops").waiting) == 1, "what was not sent waits for the next process"
    assert rig.state("phone").waiting == ()
    released.set()


def test_a_command_that_is_done_stays_until_what_is_due_was_tried(rig: Rig) -> None:
    teller = rig.teller()
    teller.derive()
    thread = NotificationThread(teller, every_s=60.0)
    thread.start()
    rig.add(ev.ResultKnown("finished"))
    assert thread.finish(20.0)
    assert [notice_id for _, notice_id in rig.got] == ["r1/g1/ended"]


@pytest.mark.parametrize("breaks", ["queue", "ledger"])
def test_what_cannot_be_read_stops_no_command(rig: Rig, breaks: str) -> None:
    teller = rig.teller()
    teller.derive()
    if breaks == "queue":
        (rig.home / NAME).write_text('{"version": 2}')
    else:
        (rig.home / "ledger.db").write_bytes(b"nothing of ours" * 400)
    thread = NotificationThread(rig.teller(), every_s=0.05)
    thread.start()
    until(lambda: thread.trouble is not None)
    assert isinstance(thread.trouble, TrmcloudError)
    assert thread.finish(20.0)


def test_nobody_is_told_where_nobody_is_named(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    from trmcloud.wiring import build_notifier

    make: Callable[[], Notifier | None] = lambda: build_notifier(build_context())  # noqa: E731
    assert make() is None
    (rig.home / "notify.json").write_text("no JSON")
    assert make() is None, "told by notify list, and no other command's business"
    (rig.home / "notify.json").write_text('{"version": 1, "destinations": []}')
    assert make() is None


# -- boards -------------------------------------------------------------------------------------
# What a board is told: each line once, under known names, and anew where a trainer went back.


class ToldBoards:
    """A board that remembers."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int]] = []
        self.rows: list[tuple[str, int, int, Mapping[str, float]]] = []

    def begin(self, phase: str, step: int) -> None:
        self.begun.append((phase, step))

    def tell(
        self, phase: str, step: int, on_axis: int, at: float, values: Mapping[str, float]
    ) -> None:
        self.rows.append((phase, step, on_axis, values))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class Files:
    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, run_id: str) -> str:
        return str(self.root)

    def phases(self, run_id: str) -> list[str]:
        return [name for name in ("fast", "extreme") if (self.root / name).is_dir()]


class World:
    """The part of a context that is looked at."""

    def __init__(self, root: Path) -> None:
        self.files = Files(root)


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setattr(boards, "run_by_id", lambda context, run_id: running())
    return cast(Context, World(tmp_path))


def log(root: Path, phase: str, *lines: Mapping[str, Any] | str) -> None:
    (root / phase).mkdir(exist_ok=True)
    with open(root / phase / "metrics.jsonl", "a") as file:
        for line in lines:
            file.write((line if isinstance(line, str) else json.dumps(line)) + "\n")


def line(step: Any, **told: Any) -> dict[str, Any]:
    return {"kind": "train", "step": step, "at": AT + 60, "loss": 1.0, **told}


def test_each_line_is_told_once_and_phases_follow(context: Context, tmp_path: Path) -> None:
    board = ToldBoards()
    feed = BoardFeed(context, "r1", board)
    assert feed.look() == 0
    log(tmp_path, "fast", line(10), line(20))
    assert (feed.look(), feed.look()) == (2, 0)
    log(tmp_path, "extreme", line(5))
    log(tmp_path, "fast", line(30))
    assert feed.look() == 2
    assert [row[:3] for row in board.rows] == [
        ("fast", 10, 10), ("fast", 20, 20), ("fast", 30, 30), ("extreme", 5, 35),
    ]  # fmt: skip
    assert board.begun == [("fast", 10), ("extreme", 5)]


def test_one_that_goes_back_is_told_anew(context: Context, tmp_path: Path) -> None:
    board = ToldBoards()
    feed = BoardFeed(context, "r1", board)
    log(tmp_path, "fast", line(10), line(20))
    feed.look()
    log(tmp_path, "new", line(10), line(20, loss=3.0), line(30))
    (tmp_path / "new" / "metrics.jsonl").replace(tmp_path / "fast" / "metrics.jsonl")
    assert feed.look() == 3
    assert board.begun == [("fast", 10), ("fast", 10)]
    assert [row[1] for row in board.rows[2:]] == [10, 20, 30]


def test_what_it_had_cost_by_then_is_told_beside_it(context: Context, tmp_path: Path) -> None:
    run = running()
    assert run.generation is not None
    rate = float(run.generation.charged_rate)
    board = ToldBoards()
    log(tmp_path, "fast", {**line(10), "at": run.generation.intended_at + 1800.0})
    BoardFeed(context, "r1", board).look()
    values = board.rows[0][3]
    assert values["cost/hours"] == pytest.approx(0.5)
    assert values["cost/usd"] == pytest.approx(rate / 2)


@pytest.mark.parametrize(
    "hostile",
    [
        line("1"),
        line(True),
        line(-1),
        line(10**13),
        {**line(1), "at": "soon"},
        {**line(1), "kind": ["train"]},
        {**line(1), "kind": "../../etc"},
        {"kind": "train", "step": 1, "at": AT},
        "[" * 5000,
        "null",
        "\x00",
    ],
    ids=str,
)
def test_what_is_no_line_of_figures_is_left(context: Context, tmp_path: Path, hostile: Any) -> None:
    board = ToldBoards()
    log(tmp_path, "fast", line(5), hostile, line(6))
    BoardFeed(context, "r1", board).look()
    assert [row[1] for row in board.rows] == [5, 6]


def test_a_trainer_that_makes_up_names_is_not_followed(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boards, "MOST_NAMES", 3)
    board = ToldBoards()
    log(tmp_path, "fast", *({"kind": "train", "step": n, "at": AT, f"x{n}": n} for n in range(9)))
    BoardFeed(context, "r1", board).look()
    assert {name for row in board.rows for name in row[3] if name.startswith("train/")} == {
        "train/x0", "train/x1", "train/x2",
    }  # fmt: skip


def test_the_names_that_are_known() -> None:
    told = {
        "loss": 1, "tokens_per_second": 5.0, "gpu_memory_bytes": 2_000_000_000, "grad_norm": 0.5,
        "landing": True, "words": "x", "nothing": None, "nan": float("nan"), "huge": 10**400,
        "step_losses": [3.0, None, 2.0], "a name": 1.0, "x" * 65: 1.0, "<img>": 1.0,
    }  # fmt: skip
    assert dict(figures_of("train", told)) == {
        "train/loss": 1.0, "train/throughput": 5.0, "system/gpu_memory_allocated": 2.0,
        "train/grad_norm": 0.5, "train/step_losses/0": 3.0, "train/step_losses/2": 2.0,
    }  # fmt: skip
    assert len(dict(figures_of("train", {"long": [1.0] * 1000}))) == MOST_VALUES


def test_a_run_that_left_nothing_is_refused(context: Context, tmp_path: Path) -> None:
    need_metrics(context, running())
    with pytest.raises(NotFoundError, match="has no metrics on this machine"):
        need_metrics(context, replace_values(running(), state=State.CLOSED))
    log(tmp_path, "fast", line(1))
    need_metrics(context, replace_values(running(), state=State.CLOSED))


# -- Curves of files that are long, hostile, being written, or begun anew -----------------------


def logged(kind: str, step: int, **told: Any) -> str:
    return json.dumps({"kind": kind, "step": step, "at": AT + step, **told}) + "\n"


def a_file(folder: Path, steps: int, spike_at: int = -1) -> Path:
    path = folder / "metrics.jsonl"
    with open(path, "w") as file:
        for step in range(1, steps + 1):
            loss = 99.0 if step == spike_at else 4.0 / math.log(step + 2)
            file.write(logged("train", step, loss=loss, step_losses=[loss + 0.1, loss]))
            if step % 100 == 0:
                file.write(logged("eval", step, val_bpb=loss / 3, val_step_losses=[loss]))
            if step % 1000 == 0:
                file.write(logged("save", step))
    return path


def read(path: Path, file: MetricsFile | None = None) -> MetricsFile:
    file = file or MetricsFile(path, "fast")
    for _ in file.read_on():
        pass
    return file


def test_what_is_thinned_out_keeps_every_spike(tmp_path: Path) -> None:
    file = read(a_file(tmp_path, 5000, spike_at=3333))
    made = draw_curves(running(), [file.phase], points=100)
    assert made.whole
    assert len(made.train.step) <= 102
    assert (made.train.step[0], made.train.step[-1]) == (1, 5000)
    assert made.train.value[made.train.step.index(3333)] == 99.0
    assert [step for _, step, _ in made.saves] == [1000, 2000, 3000, 4000, 5000]


def test_a_sample_has_every_evaluation_and_save(tmp_path: Path) -> None:
    path = a_file(tmp_path, 5000)
    phase, whole = sample_metrics(path, "fast", windows=50), read(path).phase
    assert not phase.whole
    assert phase.evals.step == whole.evals.step
    assert phase.evals.value == whole.evals.value
    assert phase.saves == whole.saves
    assert 45 <= len(phase.train) <= 52
    assert set(phase.train.step) <= set(whole.train.step)


def test_of_a_long_file_a_part_is_looked_at(tmp_path: Path) -> None:
    path = a_file(tmp_path, 5000)
    phase, whole = sample_metrics(path, "fast", windows=5), read(path).phase
    assert phase.train.step[0] == 1
    assert 5 <= len(phase.train) <= 10
    assert 3 <= len(phase.evals) < len(whole.evals) / 2
    assert list(phase.evals.step) == sorted(phase.evals.step)
    told = dict(zip(whole.evals.step, whole.evals.value, strict=True))
    assert told | dict(zip(phase.evals.step, phase.evals.value, strict=True)) == told
    assert set(phase.saves) < set(whole.saves)


def test_a_sample_of_what_is_no_file_is_empty(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "empty").touch()
    (tmp_path / "one-line").write_bytes(b"x" * (1 << 20))
    for name in ("fifo", "empty", "one-line", "absent"):
        phase = sample_metrics(tmp_path / name, "fast")
        assert (len(phase.train), len(phase.evals), phase.saves) == (0, 0, [])


def test_it_is_read_on_as_it_grows_and_half_a_line_waits(tmp_path: Path) -> None:
    path = a_file(tmp_path, 10)
    file = read(path)
    known = {"fast": (len(file.phase.train), len(file.phase.evals))}
    with open(path, "a") as more:
        more.write(logged("train", 11, loss=1.5) + logged("train", 12, loss=1.25)[:20])
    read(path, file)
    news = curves_since(running(), [file.phase], known)
    assert (news.train.step, news.train.value) == ([11], [1.5])
    with open(path, "a") as more:
        more.write(logged("train", 12, loss=1.25)[20:])
    read(path, file)
    assert list(file.phase.train.step)[-2:] == [11, 12]
    assert file.unread_bytes == 0


def test_one_that_goes_back_to_a_checkpoint_is_read_anew(tmp_path: Path) -> None:
    path = a_file(tmp_path, 10)
    file = read(path)
    before = file.phase
    (tmp_path / "new").mkdir()
    shorter = a_file(tmp_path / "new", 6)
    shorter.replace(path)
    assert file.is_another
    read(path, file)
    assert file.phase is not before
    assert list(file.phase.train.step) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "hostile",
    [
        '{"kind": "train", "step": "1", "at": 1, "loss": 1}',
        '{"kind": "train", "step": true, "at": 1, "loss": 1}',
        '{"kind": "train", "step": -1, "at": 1, "loss": 1}',
        '{"kind": "train", "step": 1e3, "at": 1, "loss": 1}',
        '{"kind": "train", "step": 9999999999999999999, "at": 1}',
        '{"kind": "train", "step": 1, "at": null, "loss": 1}',
        '{"kind": ["train"], "step": 1, "at": 1}',
        "[" * 5000,
        "null",
        "\x00\xff",
        '{"kind": "train", "step": 1, "at": 1, "loss": 1' + "0" * 70_000 + "}",
    ],
)
def test_what_is_no_point_is_passed_over(tmp_path: Path, hostile: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(logged("train", 5, loss=2.0) + hostile + "\n" + logged("train", 6, loss=1.0))
    for phase in (read(path).phase, sample_metrics(path, "fast")):
        assert list(phase.train.step) == [5, 6]


def test_values_that_are_none_are_gaps(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        logged("train", 1, loss=None, step_losses=[1.0, None, "x", True, 1e305])
        + logged("train", 2, loss="low")
    )
    made = draw_curves(running(), [read(path).phase])
    assert made.train.value == [None, None]
    assert made.train.passes[0] == [1.0, None]
    assert [column[0] for column in made.train.passes[1:]] == [None] * 4
    json.dumps(made.train.to_json(), allow_nan=False)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target = a_file(tmp_path, 5)
    link = tmp_path / "link.jsonl"
    link.symlink_to(target)
    assert len(read(link).phase.train) == len(sample_metrics(link, "fast").train) == 0


def test_phases_stand_one_behind_the_other(tmp_path: Path) -> None:
    fast, extreme = Phase("fast"), Phase("extreme")
    for step in (10, 20):
        fast.take({"kind": "train", "step": step, "at": AT + step, "loss": 2.0})
    extreme.take({"kind": "train", "step": 5, "at": AT + 100, "loss": 1.0})
    phases = [fast, extreme]
    assert starts(phases) == [("fast", 0), ("extreme", 20)]
    assert draw_curves(running(), phases).train.step == [10, 20, 25]
    assert [step_at(phases, AT + at) for at in (0, 10, 15, 99, 100, 999)] == [0, 10, 10, 20, 25, 25]
    assert step_at([], AT) is None


def test_dollars_and_hours_are_those_that_are_paid(tmp_path: Path) -> None:
    run = running()
    phase = Phase("fast")
    assert run.generation is not None
    for after_s in (-50, 0, 1800, 3600):
        at = run.generation.intended_at + after_s
        phase.take({"kind": "train", "step": 1, "at": at, "loss": 2.0})
    made = draw_curves(run, [phase])
    rate = float(run.generation.charged_rate)
    assert made.train.hours == pytest.approx([0, 0, 0.5, 1])
    assert made.train.usd == pytest.approx([0, 0, rate / 2, rate])


def test_a_bounded_number_of_lines_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "_MOST_LINES", 1000)
    file = read(a_file(tmp_path, 3000))
    assert 990 <= len(file.phase.train) <= 1000


# -- Workers as threads: they end, fail and are called off without anybody waiting for them -----


A, B = (ActionKey("r-1", 1, "pull", 1, name) for name in "ab")


def ended(workers: ThreadWorkers) -> WorkDone:
    (one,) = until(workers.finished, within_s=10.0, what="a worker's end")
    return one


def test_what_is_done_is_told_once() -> None:
    workers, go = ThreadWorkers(), threading.Event()

    def work(progress: Progress) -> None:
        progress(3, 7)
        assert go.wait(10)

    workers.start(A, work)
    until(lambda: workers.progress(A) == (3, 7), within_s=10.0, what="its progress")
    assert workers.running() == {A}
    go.set()
    assert ended(workers) == WorkDone(A, None)
    assert workers.running() == frozenset()
    assert workers.finished() == []
    assert workers.progress(A) is None


def test_how_it_failed_is_told() -> None:
    workers = ThreadWorkers()
    error = CheckpointError("torn")

    def fail(progress: Progress) -> None:
        raise error

    workers.start(A, fail)
    assert ended(workers).error is error
    nothing: dict[str, None] = {}
    workers.start(B, lambda progress: nothing["nothing"])
    unforeseen = ended(workers).error
    assert unforeseen is not None
    assert "KeyError" in str(unforeseen)


def test_what_is_called_off_ends_and_is_not_told() -> None:
    workers, left = ThreadWorkers(), threading.Event()

    def endless(progress: Progress) -> None:
        try:
            while True:
                progress(0, 1)
                time.sleep(0.01)
        finally:
            left.set()

    workers.start(A, endless)
    workers.cancel()
    assert workers.running() == frozenset()
    assert left.wait(10)
    workers.start(B, lambda progress: None)
    assert ended(workers).key == B
