"""One list of events, each type at least once, and what every reader makes of it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import trmcloud.providers.registry  # noqa: F401  fills the traits
from tests.plans import a_candidate, a_phase, errand_json, plan_json
from tests.reasons import quoted
from trmcloud import api
from trmcloud.adapters.local.run_files import LocalRunFiles
from trmcloud.cli.views.run_bar import RunBar
from trmcloud.core.clock import Instant
from trmcloud.core.contract.notices import NoticeKind
from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import LedgerState, extend_ledger
from trmcloud.core.control.notices import NoticeInputs
from trmcloud.core.control.reason import Reason, ReasonKind, make_reason
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import LedgerError, LinkError
from trmcloud.core.money import ZERO, Usd
from trmcloud.operations.context import Caller
from trmcloud.operations.curves.curve_marks import marks_of
from trmcloud.operations.machines import Machines
from trmcloud.operations.narration import ROWS, Narrator, Severity, Told
from trmcloud.operations.notices.notifications import due_notices
from trmcloud.operations.runs.conditions import clock_words
from trmcloud.ports.ledger import ControllerId

AT = 1_790_000_000.0
LEDGER, RUN, SHA = "0a1b2c3d", "r1", "ab" * 32
PHASES = (a_phase(),)
PLAN = plan_json(
    a_candidate("c1", phases=PHASES, rate=Usd(4)),
    a_candidate("c2", phases=PHASES, provider="vast", rate=Usd(2)),
    bucket="s3://bucket/x", phases=("fast",), budget=Usd(20),
)  # fmt: skip
SLOW = make_reason(
    ReasonKind.SLOWER_THAN_PLANNED, pace="0.5 s", limit="0.4 s", more_s=60.0, more_usd=Usd(2)
)
PACE = (40, 0.5, 0.49, 0.52, 0.35, 5.0, 4.9, 5.1, Usd(12), 900)
SOLD_OUT, MOVING = quoted("sold out"), Reason(ReasonKind.MOVING, {"provider": "vast"})
LOST = make_reason(ReasonKind.MACHINE_LOST, provider="vast")
CUT = make_reason(ReasonKind.BUDGET_CUT, level="month", cap_usd=Usd(4))


def asks(number: int, provider: str = "runpod") -> ev.PodIntended:
    name, to = f"pod-{number}", "c1" if provider == "runpod" else "c2"
    rate = Usd(4) if provider == "runpod" else Usd(2)
    return ev.PodIntended(
        number, name, provider, to, rate, AT + 9000, AT + 9900, limit_at=AT + 9999
    )


ERRAND = ev.PodIntended(
    6, "pod-6", "runpod", "fetch1", Usd(1), AT + 9000, AT + 9900, limit_at=AT + 9999
)
R, M, N, A = Severity
STORY: tuple[tuple[ev.Event, Severity, str], ...] = (
    (ev.RunPlanned(PLAN, Usd(20), "thesis"), R, "planned within $20.00"),
    (ev.Reserved(Usd(20)), R, "$20.00 reserved"),
    (ev.WaitStarted(AT + 900, Usd(1)), R, "at most $1.00 for failed boots"),
    (asks(1), R, "generation 1: asks runpod for a machine at $4.00/h"),
    (ev.ActionStarted("r1/g1/create/1", "create"), R, "r1/g1/create/1 was started"),
    (ev.ActionFailed("r1/g1/create/1", "create", ev.FailureKind.NO_CAPACITY, "none"), R, "none"),
    (ev.PodNotMade(1, SOLD_OUT), N, "generation 1: sold out"),
    (asks(2), R, "generation 2: asks runpod"),
    (ev.PodNotMade(2, SOLD_OUT), R, "generation 2: sold out"),
    (asks(3), R, "generation 3: asks runpod"),
    (ev.ActionFinished("r1/g3/create/1", "create"), R, "r1/g3/create/1 is done"),
    (ev.PodUp(3, "id-3", Usd("4.5")), A, "generation 3: $4.50/h, planned at $4.00/h; the cap"),
    (ev.PodMissed(3), R, "generation 3: its provider's list lacks it"),
    (ev.PodFound(3), R, "generation 3: it is there again"),
    (ev.AgentUp(3), R, "generation 3: its agent reports"),
    (ev.BoardFound(3, quoted("another board")), N, "generation 3: another board"),
    (ev.PaceMeasured(3, "fast", *PACE, step=47, slow=SLOW, follows="continue"), A, "Measured: 0."),
    (ev.Pulled(3, "fast", 100, SHA), N, "pulled fast step 100, verified"),
    (ev.Pulled(3, "fast", 1200, SHA), N, "pulled fast step 1,200, verified"),
    (ev.SaveRequested(3, "ada"), R, "a checkpoint was requested by ada"),
    (ev.Extended(3, AT + 9950, Usd(21)), N, "generation 3: needs more time: $21.00 reserved"),
    (ev.StopLowering(3, AT + 8000, "ada"), R, "generation 3: an earlier stop was requested"),
    (ev.StopKnown(3), M, "generation 3: it stops earlier"),
    (ev.StopLowered(3, Usd(9), "guard"), R, "generation 3: $9.00 stays reserved"),
    (
        ev.MoveStarted("c2", Usd(2), Usd(5), Usd(9), Usd(3)),
        R,
        "$5.00 reserved for another machine: saves $3.00 of $9",
    ),
    (asks(4, "vast"), R, "generation 4: asks vast"),
    (ev.PodUp(4, "id-4", Usd(2)), M, "generation 4: its machine is up, $2.00/h"),
    (ev.AgentUp(4), R, "generation 4: its agent reports"),
    (ev.HandedOver(3), N, "generation 3: lands for another machine"),
    (ev.ResultKnown("stopped", MOVING), R, "generation 3: has landed for another machine"),
    (ev.PodGone(3, AT + 500), M, "generation 3: its machine is gone"),
    (ev.Settled(3, Usd(1), None), R, "generation 3: it cost $1.00"),
    (ev.Moved(4), N, "generation 4: training moved here, to vast"),
    (ev.PodGone(4, AT + 600), M, "generation 4: its machine is gone"),
    (ev.Settled(4, Usd(1), Usd(1)), R, "generation 4: it cost $1.00"),
    (ev.Reserved(Usd(9)), R, "$9.00 reserved"),
    (ev.PlanRevised("c1", LOST), A, "generation 4: the machine at vast was lost; training conti"),
    (asks(5), R, "generation 5: asks runpod"),
    (ev.PodUp(5, "id-5", Usd(4)), M, "generation 5: its machine is up, $4.00/h"),
    (ev.AgentUp(5), R, "generation 5: its agent reports"),
    (ev.PhaseEnded(5, "fast", "gate_failed", 900, 1.4, {}), M, "fast: gate failed at step 900"),
    (ev.GateJudged(5, "fast", True, {}), A, "the gate after fast passed by the pod's report"),
    (ev.StopRequested("ada", CUT), N, "stop requested by ada: the month budget was cut to $4.00"),
    (ev.ResultKnown("stopped"), A, "stopped: stopped on request, evaluated and saved; $"),
    (ev.PodGone(5, AT + 900), M, "generation 5: its machine is gone"),
    (ev.Settled(5, Usd(1), None), R, "generation 5: it cost $1.00"),
    (ev.Billed(5, Usd("1.1")), M, "generation 5: it was billed $1.10"),
    (ev.Closed("stopped"), R, "stopped: stopped on request"),
    (ev.BucketSwept(5, 7, Usd("0.1")), R, "the bucket held 7 bytes too many, which cost $0.10"),
    (ev.Fetched("fast", 900, SHA, "/best"), R, "fast step 900 was fetched to /best"),
    (ev.Reopened(Usd(30)), M, "continues within $30.00 for the whole run"),
    (ev.Closed("lost"), A, "lost: pod-5 at runpod ended without a report; $3.20 of $30.00 accrued"),
    (ev.Reopened(Usd(31), errand_json()), M, "continues within $31.00 for the whole run"),
    (ev.Reserved(Usd(1)), R, "$1.00 reserved"),
    (ERRAND, R, "generation 6: asks runpod for a machine at $1.00/h"),
    (ev.PodUp(6, "id-6", Usd(2)), M, "generation 6: $2.00/h, planned at $1.00/h; the cap stays"),
    (ev.AgentUp(6), R, "generation 6: its agent reports"),
    (ev.LateReport(6, "lost"), R, "generation 6: its volume has the result lost"),
)
OF_THE_LEDGER: tuple[tuple[ev.Event, Severity, str], ...] = (
    (ev.CapSet("month", "2026-09", Usd(400)), R, "the cap of month 2026-09 is $400.00"),
    (ev.GrantGiven("bot", ev.GrantTerms(Usd(10))), R, "bot was given a grant"),
    (ev.GrantRaised("bot", ev.GrantTerms(Usd(12))), R, "the grant of bot was raised"),
    (ev.ApprovalAsked("a-1", "bot", "longer", Usd(5)), A, "bot: it asks for $5.00 more; its reaso"),
    (ev.ApprovalAsked("a-2", "bot", more=Usd(1)), A, "bot: it asks for $1.00 more"),
    (ev.ApprovalGiven("a-1", "ada"), R, "request a-1 was approved by ada"),
    (ev.ApprovalDenied("a-3", "ada"), R, "request a-3 was denied by ada"),
    (ev.GrantRevoked("bot"), R, "the grant of bot was revoked"),
    (ev.LayerVerified("vast", "timer", "a smoke run"), R, "timer of vast was seen to work"),
    (ev.StrayCharged("vast", "s1", "pod-9", RUN, AT, Usd(1)), A, "pod-9 at vast belongs to no run"),
    (ev.StrayCharged("vast", "s1", "pod-9", RUN, AT, Usd(2)), R, "pod-9 at vast belongs to no run"),
    (ev.StrayBilled("vast", "s1", Usd(1)), R, "the orphaned pod s1 at vast was billed $1.00"),
    (ev.VolumeDeleted("runpod", "EU-RO-1", "ada"), R, "the network volume in EU-RO-1 was deleted"),
    (ev.TokensPinned("b", "tokens/x", ()), R, "hashes of tokens/x in b were recorded"),
    (ev.DataPinned("fineweb", "hf/f", "main", "1f", ""), R, "fineweb is hf/f at 1f"),
    (ev.BalanceLow("vast", 24, Usd(9), Usd(1), AT, AT + 9000), A, "the vast balance: $9.00 are"),
    (ev.BalanceLow("vast", 0, Usd(90), ZERO, AT, 0.0), R, "the vast balance of $90.00 lasts again"),
    (ev.LedgerRestored(AT), R, "an older copy of the ledger was restored"),
    (ev.LedgerReconciled(), R, "every provider was asked since the copy was restored"),
    (ev.DamageSettled("r9", Usd(2)), R, "$2.00 counts as spent for damaged records of r9"),
)
WHOLE = (*STORY, *OF_THE_LEDGER)
RECORDS = tuple(
    ev.Record(n, RUN if n <= len(STORY) else "", 1, AT + n, event)
    for n, (event, _, _) in enumerate(WHOLE, start=1)
)


def fold(records: Iterable[ev.Record]) -> RunState:
    narrator, run = Narrator(), RunState(RUN)
    for told in narrator.tell(records):
        run = told.run if told.record.run_id else run
    return run


@dataclass
class World:
    """What readers ask of a context, over the records up to one of them."""

    home: Path
    upto: int = len(RECORDS)
    caller: Caller = field(
        default_factory=lambda: Caller(ControllerId("here", 1, ""), lambda who: True)
    )
    machines: Machines = field(default_factory=lambda: Machines({}, {}))
    troubles: dict[str, Exception] = field(default_factory=dict)
    trouble: LinkError | None = None
    later_s: float = 0.0

    def __post_init__(self) -> None:
        link: Any = SimpleNamespace(trouble=lambda name: self.trouble)
        compute: Any = SimpleNamespace(boot_trouble=lambda pod: None, by_hand=lambda name: [])
        links, computes = ({"runpod": x, "vast": x} for x in (link, compute))
        self.machines = replace(self.machines, links=links, computes=computes)
        self.files, self.ledger = LocalRunFiles(self.home), self
        self.workers = SimpleNamespace(running=frozenset, progress=lambda key: None)
        self.clock = SimpleNamespace(now=lambda: Instant(AT, 0.0, "here"))
        self.ledger_id = LEDGER

    def wall(self) -> float:
        return AT + self.upto + self.later_s

    def read(self) -> LedgerState:
        return SimpleNamespace(low_balances={}, runs={})  # type: ignore[return-value]

    def records(self, run_id: str | None = None) -> Sequence[ev.Record]:
        return [r for r in RECORDS[: self.upto] if run_id in (None, r.run_id)]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def lines(of: Iterable[int], world: World, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What one bar prints above itself that is shown the run at each of these records."""
    bar = RunBar(world)  # type: ignore[arg-type]
    for world.upto in of:
        bar.watch(fold(RECORDS[: world.upto]))
    out = capsys.readouterr().out.splitlines()
    return [line[2:] for line in out if line.startswith("  ") and " · " not in line[:20]]


def is_news(told: Told) -> bool:
    """The command itself says how the run ended."""
    ends = any(notice.kind is NoticeKind.ENDED for notice in told.notices)
    ends = ends or isinstance(told.record.event, ev.Closed)
    return told.severity >= Severity.NEWS and not ends


def test_every_type_of_event_has_a_row_and_is_in_the_story() -> None:
    assert set(ROWS) == set(ev.EVENT_TYPES.values()) == {type(event) for event, _, _ in WHOLE}


def test_each_event_is_told_with_its_severity_and_its_sentence() -> None:
    told = Narrator(LEDGER).tell(RECORDS)
    for one, (event, severity, text) in zip(told, WHOLE, strict=True):
        assert (one.record.event, one.severity) == (event, severity)
        assert text in one.text
    assert all(bool(t.notices) == (t.severity is Severity.ALERT) for t in told)


def test_the_bar_prints_the_news_once_however_often_it_looks(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [n for n in range(1, len(STORY) + 1) for _ in range(2)]
    news = [t for t in Narrator(LEDGER).tell(RECORDS[: len(STORY)]) if is_news(t)]
    wanted = [line for told in news for line in (told.text, *told.more)]
    assert lines(steps, world, capsys) == wanted
    assert lines(steps, world, capsys) == wanted, "another bar's reading takes nothing from it"


def test_a_bar_that_joins_late_tells_the_same_with_pulled_checkpoints_as_one(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    last = max(n for n, (event, _, _) in enumerate(STORY, 1) if isinstance(event, ev.ResultKnown))
    at_once, in_steps = (lines(of, world, capsys) for of in ([last], range(1, last + 1)))
    pulled = [line for line in in_steps if line.startswith("pulled")]
    assert [line for line in in_steps if line not in pulled] == [
        line for line in at_once if not line.startswith("pulled")
    ]
    assert f"{pulled[-1]}, and 1 before" in at_once
    reopened = lines([len(STORY)], world, capsys)
    assert reopened == [], "what was told before it was reopened is another opening's"


def test_trouble_is_told_once_it_has_lasted_and_once_it_is_over(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.upto = 16
    run, bar = fold(RECORDS[:16]), RunBar(world)  # type: ignore[arg-type]
    bar.watch(run)
    capsys.readouterr()
    told = []
    for world.trouble in (*[LinkError("no route")] * 4, None, None):
        bar.watch(run)
        told.append([line for line in capsys.readouterr().out.splitlines() if "pod" in line])
        world.later_s += 5.0
    line = "  the pod does not answer: no route; its agent still runs and ends it in time"
    assert told == [[], [], [line], [], ["  the pod answers again after 20 s"], []]
    world.troubles[RUN] = LedgerError("it is locked")
    bar.watch(run)
    bar.watch(run)
    out = capsys.readouterr().out
    assert out.count("it is locked; retrying, nothing new is started; its pod still ends") == 1


def test_notifications_are_the_alerts_after_the_cursor() -> None:
    ledger = LedgerState(LEDGER)
    for record in RECORDS:
        if not isinstance(record.event, ev.ApprovalDenied):
            ledger = extend_ledger(ledger, (record,))

    def ids(after: int) -> list[str]:
        due = due_notices(ledger, RECORDS, after, NoticeInputs(), AT + 60)
        return [each.id.removeprefix(f"{LEDGER}/") for each in due if each.kind.value != "cap"]

    wanted = [
        "r1/g3/price", "r1/g3/trouble/fast/slower_than_planned", "r1/g4/lost", "r1/g4/price/c1",
        "r1/g5/gate/fast", "r1/g5/ended", "r1/g5/lost", "approval/a-2", "orphan/vast/s1",
        f"balance/vast/{len(STORY) + 16}",
    ]  # fmt: skip
    assert ids(0) == wanted, "a-1 was answered before it could be told"
    cut = next(n for n, (event, _, _) in enumerate(STORY, 1) if isinstance(event, ev.GateJudged))
    assert ids(cut) == wanted[5:], "the closing repeats what its result said"
    assert ids(len(RECORDS)) == []


def test_the_page_marks_what_is_worth_a_mark(world: World) -> None:
    state = fold(RECORDS)
    marks = marks_of(world, state, [])  # type: ignore[arg-type]
    told = Narrator().tell(RECORDS[: len(STORY)])
    wanted = [(t.mark, t.line) for t in told if t.severity >= Severity.MARK]
    assert [(mark.kind, mark.text) for mark in marks] == wanted
    assert {mark.kind for mark in marks} == {
        "pod", "price", "checkpoint", "gate", "stop", "phase", "bill",
    }  # fmt: skip


def test_api_events_yields_each_record_once_from_an_id_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "build_context", lambda path: world)
    events = list(api.Home().events(follow=False))
    assert [(e.id, e.kind) for e in events] == [(r.seq, type(r.event).__name__) for r in RECORDS]
    told = Narrator(LEDGER).tell(RECORDS)
    for event, one in zip(events, told, strict=True):
        assert (event.severity, event.text) == (one.severity.name.lower(), one.line)
    assert events[0].facts["plan"] == {"id": "p-0001"}
    assert list(api.Home().events(after=30, follow=False)) == events[30:]


def test_an_event_of_a_damaged_ledger_is_told_as_it_stands_there() -> None:
    (told,) = Narrator().tell((ev.Record(1, RUN, 1, AT, ev.PodGone(1, AT)),))
    assert (told.severity, told.text) == (Severity.RECORD, "PodGone")


def test_words_of_a_pod_come_from_no_template() -> None:
    odd = ev.LayerVerified("{layer}", "{0}", "\x1b[2J{how}")
    (told,) = Narrator().tell((ev.Record(1, "", 1, AT, odd),))
    assert told.text == "{0} of {layer} was seen to work: {how}"


@pytest.mark.parametrize(
    ("upto", "words"),
    [
        (3, ""),
        (16, "asks to stop at {soft} (the time that is reserved), killed at {hard}"),
        (23, "asks to stop at {soft} (set earlier for another run), killed at {hard}"),
        (43, "stops and saves now (the month budget was cut to $4.00), killed at {hard}"),
        (45, ""),
    ],
)
def test_the_clock_is_one_sentence(upto: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = fold(RECORDS[:upto])
    machine = run.generation

    def at(instant: float) -> str:
        return time.strftime("%H:%M", time.localtime(instant))

    now = time.mktime((*time.localtime(AT)[:3], 0, 0, 0, 0, 0, -1))
    if machine is not None:
        words = words.format(soft=at(machine.soft_stop_at), hard=at(machine.hard_stop_at))
    assert clock_words(run, None, now) == words
    assert not words or "killed at" in clock_words(run, BEAT, now)


BEAT = Heartbeat(RUN, "fast", 1, 7, "b", AT, "ended", 3, 9)
