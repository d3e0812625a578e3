"""Which notices follow: one id for one fact, whoever tells it and however often it is looked at."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.plans import a_candidate, plan_json
from tests.reasons import quoted
from trmcloud.core.contract.gate import Verdict
from trmcloud.core.contract.notices import (
    Notice,
    NoticeKind,
    Webhook,
    body_of,
    headers_of,
    is_wanted,
    load_webhook,
    notices_of,
    secret_of,
)
from trmcloud.core.contract.pod_contract import AgentReport, PhaseReport, PhaseState
from trmcloud.core.contract.records import ContractError, dump
from trmcloud.core.contract.recovery import Recovery
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import LedgerState, extend_ledger
from trmcloud.core.control.notices import (
    NoticeInputs,
    ReaperVisit,
    finding_notice,
    may_follow_again,
)
from trmcloud.core.control.reason import ReasonKind, make_reason
from trmcloud.core.money import Usd
from trmcloud.operations.narration import words_of
from trmcloud.operations.notices.notifications import due_notices

AT = 1_790_000_000.0
POD = "trmc-0a1b2c3d-r1-g1-1790003600"
RATE = Usd("3.6")  # a tenth of a cent a second


class Book:
    """A ledger, written down event by event, and what follows from its last ones."""

    def __init__(self, **caps: str) -> None:
        self.records: list[ev.Record] = []
        self.ledger = LedgerState("0a1b2c3d")
        for level, cap in caps.items():
            self.add("", ev.CapSet(level, "", Usd(cap)))

    def add(self, run_id: str, *events: ev.Event, at: float = AT) -> None:
        for event in events:
            record = ev.Record(len(self.records) + 1, run_id, 1, at, event)
            self.records.append(record)
            self.ledger = extend_ledger(self.ledger, (record,))

    def rent(self, run_id: str = "r1", cap: str = "10", pod: str = POD, **plan: Any) -> None:
        made = plan_json(a_candidate(provider="runpod"), **plan)
        self.add(
            run_id,
            ev.RunPlanned(made, Usd(cap), "thesis"),
            ev.Reserved(Usd(cap)),
            ev.PodIntended(1, pod, "runpod", "c1", RATE, AT + 3500, AT + 3600),
            ev.PodUp(1, f"id-{run_id}", RATE),
            ev.AgentUp(1),
        )

    def due(self, after: int | None = None, now: float = AT, **seen: Any) -> tuple[Notice, ...]:
        seq = len(self.records) if after is None else after
        return due_notices(self.ledger, self.records, seq, NoticeInputs(**seen), now)

    def finding(self, rule: str, step: int) -> Notice:
        return finding_notice(self.ledger.ledger_id, self.ledger.runs["r1"], "fast", rule, step, AT)


def kinds(notices: tuple[Notice, ...]) -> list[str]:
    return [notice.kind.value for notice in notices]


def tails(notices: tuple[Notice, ...]) -> list[str]:
    return [notice.id.removeprefix("0a1b2c3d/") for notice in notices]


def report(*phases: PhaseReport, **changes: Any) -> AgentReport:
    made = AgentReport("r1", POD, 1, 7, AT, AT + 60, phases, AT + 3500, AT + 3600)
    return replace(made, **changes)


TRAINS = PhaseReport("fast", state=PhaseState.RUNNING, started_at=AT + 40, attempts=1)
OOM = Recovery("out_of_memory", "batch", 120, AT + 50, {"batch": 2, "accumulation": 8}, 12, 9.5)


# -- what the ledger says ------------------------------------------------------------------------
def test_a_run_that_goes_well_is_told_at_its_gate_and_at_its_end() -> None:
    book = Book()
    book.rent()
    assert book.due(0) == ()
    begun = len(book.records)
    book.add("r1", ev.GateJudged(1, "fast", True, {}), at=AT + 500)
    book.add("r1", ev.PhaseEnded(1, "fast", "finished", 900, 1.4, {}), at=AT + 500)
    book.add("r1", ev.ResultKnown("finished"), at=AT + 600)
    first = book.due(begun, now=AT + 600)
    assert tails(first) == ["r1/g1/gate/fast", "r1/g1/ended"]
    assert first[0].facts == {"phase": "fast", "passed": True, "reported_by": "pod"}
    assert first[1].facts == {
        "outcome": "finished", "spent_usd": "0.6", "cap_usd": "10", "phase": "fast", "step": 900,
        "val_bpb": 1.4, "reported_by": "pod",
    }  # fmt: skip
    gone = (ev.PodGone(1, AT + 610), ev.Settled(1, Usd("0.61"), Usd("0.61")), ev.Closed("finished"))
    book.add("r1", *gone, at=AT + 620)
    after = book.due(begun, now=AT + 620)
    assert tails(after) == tails(first), "its end is one fact, though it is written down twice"


@pytest.mark.parametrize("volume", [False, True])
def test_a_pod_that_ends_without_a_word_is_lost(volume: bool) -> None:
    book = Book()
    book.rent(volume=volume)
    begun = len(book.records)
    book.add("r1", ev.PodMissed(1), ev.PodGone(1, AT + 300), at=AT + 400)
    (notice,) = book.due(begun, now=AT + 400)
    assert (notice.kind.value, notice.id) == ("lost", "0a1b2c3d/r1/g1/lost")
    assert notice.facts["pod"] == POD
    assert notice.facts["spent_usd"] == "0.3"
    book.add("r1", ev.Settled(1, Usd("0.3"), None), ev.Closed("lost"), at=AT + 500)
    assert tails(book.due(begun, now=AT + 500)) == ["r1/g1/lost"]


def test_one_that_was_told_to_stop_is_not_lost() -> None:
    book = Book()
    book.rent()
    begun = len(book.records)
    book.add("r1", ev.StopRequested("user", quoted("enough")), ev.PodGone(1, AT + 300), at=AT + 300)
    assert book.due(begun, now=AT + 300) == ()
    book.add("r1", ev.Settled(1, Usd("0.3"), None), ev.Closed("stopped"), at=AT + 310)
    (notice,) = book.due(begun, now=AT + 310)
    assert (notice.kind, notice.facts["outcome"]) == (NoticeKind.ENDED, "stopped")


def test_a_machine_that_is_given_back_is_trouble_and_no_end() -> None:
    book = Book()
    book.rent()
    begun = len(book.records)
    book.add("r1", ev.ResultKnown("unfit", quoted("7 GPUs")), at=AT + 30)
    (notice,) = book.due(begun, now=AT + 30)
    assert (notice.kind, notice.id) == (NoticeKind.TROUBLE, "0a1b2c3d/r1/g1/unfit")


def test_a_price_that_is_not_the_planned_one_is_told() -> None:
    book = Book()
    made = plan_json(a_candidate(provider="runpod"))
    intended = ev.PodIntended(1, POD, "runpod", "c1", RATE, AT + 3500, AT + 3600)
    book.add("r1", ev.RunPlanned(made, Usd(10), "thesis"), ev.Reserved(Usd(10)), intended)
    begun = len(book.records)
    book.add("r1", ev.PodUp(1, "id-1", Usd("3.9")))
    (notice,) = book.due(begun)
    assert notice.kind is NoticeKind.PRICE
    assert notice.facts == {"planned_usd_per_hour": "3.6", "billed_usd_per_hour": "3.9"}
    cheaper = Book()
    cheaper.add("r1", ev.RunPlanned(made, Usd(10), "thesis"), ev.Reserved(Usd(10)), intended)
    cheaper.add("r1", ev.PodUp(1, "id-1", Usd("3.5")))
    assert cheaper.due(3) == ()


# -- how things stand ----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("seconds", "percent"),
    [(0, 0), (4999, 0), (5000, 50), (7999, 50), (8000, 80), (9499, 80), (9500, 95), (12000, 95)],
)
def test_the_highest_share_of_a_cap_that_is_spent(seconds: float, percent: int) -> None:
    book = Book()
    book.rent()
    told = book.due(now=AT + seconds)
    assert [n.facts["percent"] for n in told] == ([percent] if percent else [])
    if percent:
        assert tails(told) == [f"cap/run/r1/10/{percent}"]
        assert told[0].run_id == "r1"


def test_caps_of_month_project_and_account_count_what_live_runs_have_accrued() -> None:
    book = Book(account="100", month="8", project="1")
    book.add("", ev.CapSet("project", "thesis", Usd(4)))
    book.rent()
    book.rent("r2", pod=POD.replace("r1", "r2"))
    told = book.due(now=AT + 2000)  # two dollars each
    assert tails(told) == ["cap/month/2026-09/8/50", "cap/project/thesis/4/95"]
    assert {n.facts["spent_usd"] for n in told} == {"4"}


def test_a_cap_that_is_raised_is_another_cap() -> None:
    book = Book(month="4")
    book.rent()
    before = tails(book.due(now=AT + 2000))
    book.add("", ev.CapSet("month", "", Usd("3.9")))
    assert tails(book.due(now=AT + 2000)) != before


def test_a_run_that_costs_nothing_reaches_no_cap() -> None:
    book = Book()
    book.rent(cap="0")
    assert book.due(now=AT + 2000) == ()


@pytest.mark.parametrize(
    ("age_s", "rented", "told"), [(899, True, 0), (901, True, 1), (901, False, 0)]
)
def test_a_reaper_missing_three_rounds_is_silent(age_s: float, rented: bool, told: int) -> None:
    book = Book()
    book.rent()
    if not rented:
        book.add("r1", ev.ResultKnown("finished"), ev.PodGone(1, AT))
    visit = ReaperVisit(AT - age_s, 300.0, "desk")
    found = [n for n in book.due(visit=visit) if n.kind is NoticeKind.REAPER]
    assert len(found) == told
    later = [n for n in book.due(visit=visit, now=AT + 60) if n.kind is NoticeKind.REAPER]
    assert {n.id for n in found} <= {n.id for n in later}, "as long as it is the same silence"


@pytest.mark.parametrize(
    ("path", "again"),
    [
        ("cap/run/r1/10/50", True),
        ("cap/run/r1/11/50", False),
        ("cap/run/r2/10/50", False),
        ("cap/account/all/100/95", True),
        ("cap/month/2026-09/8/50", True),
        ("cap/month/2026-09/7/50", False),
        ("cap/project/a/b/4/50", True),
        ("cap/project/c/4/50", False),
        ("reaper/desk/1790000000", True),
        ("reaper/desk/1789999000", False),
        ("r1/g1/started", True),
        ("r2/g1/started", False),
        ("approval/a-1", False),
        ("", False),
    ],
)
def test_an_id_is_kept_as_long_as_its_notice_may_follow_again(path: str, again: bool) -> None:
    book = Book(account="100", month="8")
    book.add("", ev.CapSet("project", "a/b", Usd(4)))
    book.rent()
    visit = ReaperVisit(AT, 300.0, "desk")
    assert may_follow_again(f"0a1b2c3d/{path}", book.ledger, visit) is again
    assert not may_follow_again("0a1b2c3d/reaper/desk/1790000000", book.ledger, None)


def test_a_finding_of_a_run_that_has_just_ended_is_none() -> None:
    book = Book()
    book.rent()
    found = book.finding("flat_loss", 900)
    book.add("r1", ev.ResultKnown("finished"), ev.PodGone(1, AT), ev.Settled(1, Usd(0), Usd(0)))
    book.add("r1", ev.Closed("finished"))
    assert book.due(findings=(found,)) == ()


def test_what_is_wrong_with_a_training_is_told_by_its_rule() -> None:
    book = Book()
    book.rent()
    found = book.due(findings=(book.finding("flat_loss", 900),))
    again = book.due(findings=(book.finding("flat_loss", 990),))
    assert tails(found) == tails(again) == ["r1/g1/trouble/fast/flat_loss"]
    assert found[0].facts["mended"] is False


def test_a_slow_machine_is_one_notice_from_all_processes() -> None:
    book = Book()
    book.rent()
    slow = make_reason(
        ReasonKind.SLOWER_THAN_PLANNED, pace="0.5 s", limit="0.4 s", more_s=60.0, more_usd=Usd(2)
    )
    numbers = (40, 0.5, 0.49, 0.52, 0.35, 5.0, 4.9, 5.1)
    paced = ev.PaceMeasured(1, "fast", *numbers, Usd(12), 900, step=47, slow=slow)
    book.add("r1", paced)
    found = tuple(n for n in book.due(after=0) if n.kind is NoticeKind.TROUBLE)
    by_rule = book.due(after=0, findings=(book.finding("slower_than_planned", 90),))
    assert tails(found) == ["r1/g1/trouble/fast/slower_than_planned"]
    assert tails(tuple(n for n in by_rule if n.kind is NoticeKind.TROUBLE)) == tails(found)
    assert "slower than planned" in words_of(found[0])["title"]
    book.add("r1", replace(paced, phase="extreme", slow=None))
    assert [n.id for n in book.due(after=0) if n.kind is NoticeKind.TROUBLE] == [found[0].id]


# -- what agents report --------------------------------------------------------------------------
def test_agent_and_controller_tell_the_same_facts_by_the_same_ids() -> None:
    ended = replace(
        TRAINS, state=PhaseState.ENDED, ended_at=AT + 500, outcome="finished", step=900,
        gate=Verdict("fast", True, ()), recoveries=(OOM,), val_bpb=1.4,
    )  # fmt: skip
    by_agent = notices_of(report(ended, result="finished"))
    assert tails(by_agent) == [
        "r1/g1/started",
        "r1/g1/trouble/fast/out_of_memory/batch/accumulation=8,batch=2",
        "r1/g1/gate/fast",
        "r1/g1/ended",
    ]
    book = Book()
    book.rent()
    begun = len(book.records)
    book.add("r1", ev.GateJudged(1, "fast", True, {}), ev.ResultKnown("finished"))
    told = book.due(begun, reports={POD: report(ended, result="finished")})
    assert {n.id for n in told} == {n.id for n in by_agent}


def test_the_same_trouble_again_is_another_fact_and_left_out_steps_are_told_once() -> None:
    def ids(**changes: Any) -> list[str]:
        row = replace(OOM, **{"rung": "again", "changed": {}, **changes})
        return tails(notices_of(report(replace(TRAINS, recoveries=(row,)))))[1:]

    assert ids(times=1) != ids(times=2)
    assert ids(rung="skipped", times=1) == ids(rung="skipped", times=9)


def test_a_report_of_another_pod_or_run_is_nobodys() -> None:
    book = Book()
    book.rent()
    other = POD.replace("-g1-", "-g2-")
    for made in (report(TRAINS, run_id="r2"), report(TRAINS, pod_name=other), report()):
        assert book.due(reports={POD: made}) == ()
    assert notices_of(report(TRAINS, pod_name="somebodys")) == ()
    assert kinds(book.due(reports={POD: report(TRAINS)})) == ["started"]


def test_a_machine_that_was_not_what_was_rented_has_not_ended_the_run() -> None:
    told = notices_of(report(PhaseReport("fast"), result="unfit"))
    assert [(n.kind, n.facts["mended"]) for n in told] == [(NoticeKind.TROUBLE, False)]


# -- on the wire ---------------------------------------------------------------------------------
NOTICE = Notice("0a1b2c3d/r1/g1/ended", NoticeKind.ENDED, "r1", AT, {"outcome": "finished"})


def test_a_body_is_json_with_the_id_and_the_facts() -> None:
    data = json.loads(body_of(NOTICE, {"title": "r1: finished", "text": "all of it"}))
    assert data == {
        "version": 1, "id": NOTICE.id, "kind": "ended", "run": "r1", "at": AT,
        "facts": {"outcome": "finished"}, "title": "r1: finished", "text": "all of it",
    }  # fmt: skip


def test_a_signature_is_that_of_the_specification() -> None:
    """The example of the Standard Webhooks specification's own libraries."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    headers = headers_of("msg_p5jXN8AQM9LWM0D4loKWxJek", '{"test": 2432232314}', secret, 1614265330)
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert headers["webhook-timestamp"] == "1614265330"


def test_a_secret_of_ours_signs() -> None:
    secret = secret_of(bytes(range(32)))
    headers = headers_of("id", "{}", secret, AT)
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"id.{int(AT)}.{{}}".encode()
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    for wrong in ("", "whsec_", "whsec_AAAA", "not base64!", secret_of(bytes(65))):
        with pytest.raises(ContractError):
            headers_of("id", "{}", wrong, AT)


def test_a_webhook_shows_nothing_of_itself() -> None:
    hook = Webhook("https://example.org/t0ken", secret_of(bytes(32)), ("ended",))
    assert "t0ken" not in repr(hook)
    assert load_webhook(dump(hook)) == hook
    assert is_wanted(NOTICE, hook.only)
    assert not is_wanted(replace(NOTICE, kind=NoticeKind.CAP), hook.only)
    assert is_wanted(replace(NOTICE, kind=NoticeKind.TEST), hook.only)


# -- a principal asks for more ------------------------------------------------------------------


def test_a_request_for_more_is_told_once_until_it_is_answered() -> None:
    book = Book()
    terms = ev.GrantTerms(Usd(10), per_run=Usd(2))
    book.add("", ev.GrantGiven("agent", terms))
    asked = ev.ApprovalAsked("a-1", "agent", "a longer\nrun", more=Usd(5), per_run=Usd(4))
    book.add("", asked)
    (notice,) = book.due(after=1)
    assert (notice.kind, notice.id) == (NoticeKind.APPROVAL, "0a1b2c3d/approval/a-1")
    assert notice.facts["total_usd"] == "10"
    told = words_of(notice)
    assert told["title"] == "agent asks for approval"
    assert told["text"] == (
        "it asks for $5.00 more, $4.00 per run; $0.00 of $10.00 are spent or reserved; its reason: "
        "a longer run. trmcloud grant approve a-1, or trmcloud grant deny a-1"
    )
    assert book.due(after=2) == ()
    book.add("", ev.ApprovalDenied("a-1"))
    assert book.due(after=1) == (), "it was answered before it could be told"
