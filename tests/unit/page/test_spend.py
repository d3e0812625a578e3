"""A month's spending on the page: equal to the budget to the cent, by day, and to its end."""

from __future__ import annotations

import calendar
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.plans import a_candidate, a_generation, recorded
from tests.unit.cli import told_home
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.cli.page.encoding import page_json
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import LedgerState
from trmcloud.core.control.grants import month_of
from trmcloud.core.control.ledger_facts import Approval, Grant, Quarantine
from trmcloud.core.control.report import report_on
from trmcloud.core.control.run_state import Payer, RunState, State
from trmcloud.core.errors import UsageError
from trmcloud.core.money import ZERO, Usd, total
from trmcloud.operations.money.spending import (
    DAMAGED,
    MOST_LINES,
    UNTAGGED,
    grouped,
    groupings,
    month_spending,
    month_view,
    months,
)
from trmcloud.operations.runs.run_facts import report_run
from trmcloud.wiring import build_context

DAY = 86_400.0
FIRST = float(calendar.timegm((2026, 11, 1, 0, 0, 0)))
MONTH = "2026-11"
ENDS = FIRST + 30 * DAY
PLAN = recorded(a_candidate())


def ended(run_id: str, since: float, hours: float, amount: str, **more: Any) -> RunState:
    """A run whose one machine has ended, and was billed."""
    provider = more.pop("provider", "runpod")
    machine = a_generation(
        provider=provider, intended_at=since, ended_at=since + hours * 3600, settled=Usd(amount),
        billed=Usd(amount), pod_id=f"pod-{run_id}",
    )  # fmt: skip
    made = RunState(
        run_id, state=State.CLOSED, cap=Usd(100), project="thesis", reserved_at=since,
        created_at=since, settled=Usd(amount), generations=(machine,), recorded_plan=PLAN,
    )  # fmt: skip
    return replace(made, **more)


def live(run_id: str, since: float, reserved: str, **more: Any) -> RunState:
    machine = a_generation(
        intended_at=since, rate=Usd(2), pod_id=f"pod-{run_id}", hard_stop_at=since + 1e6
    )
    made = RunState(
        run_id, state=State.RUNNING, cap=Usd(100), project="thesis", reserved=Usd(reserved),
        reserved_at=since, created_at=since, generations=(machine,), recorded_plan=PLAN,
    )  # fmt: skip
    return replace(made, **more)


def ledger(*runs: RunState, **more: Any) -> LedgerState:
    return LedgerState("0a1b2c3d", {run.run_id: run for run in runs}, **more)


def spend_json(book: LedgerState, now: float, **wish: str) -> dict[str, Any]:
    made: dict[str, Any] = page_json(month_spending(book, now, **wish))
    return made


def capped(book: LedgerState, cap: str) -> LedgerState:
    return replace(book, caps={("month", ""): Usd(cap)})


# -- sums ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with runs of every end, one of them live, and orphaned pods."""
    home = tmp_path_factory.mktemp("spend")
    told_home.write(home)
    made, at = SqliteLedger(home / "ledger.db"), time.time()
    for pod_id, owner, amount in (("s-1", told_home.LIVE_RUN, "0.40"), ("s-2", "", "0.07")):
        made.note(ev.StrayCharged("runpod", pod_id, "trmc-x", owner, at - 60, Usd(amount)), at)
    made.note(ev.StrayBilled("runpod", "s-2", Usd("0.05")), at)
    return home


def test_it_is_what_budget_show_report_and_the_month_page_say(
    told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRMCLOUD_HOME", str(told))
    context = build_context()
    book, now = context.ledger.read(), context.wall()
    billed = accrued = ZERO
    for month in months(book, now):
        line, report = book.line("month", month), month_view(book, now, month)
        shares = {"project": report.projects, "provider": report.providers}
        for by, wanted in shares.items():
            made = grouped(book, month, now, by)
            assert made.whole.spent == total(g.spent for g in made.groups) == line.settled
            assert made.whole.reserved == total(g.reserved for g in made.groups) == line.reserved
            mine = {group.name: (group.spent, group.reserved, group.runs) for group in made.groups}
            assert mine == {
                share.name: (share.spent_usd, share.reserved_usd, share.runs) for share in wanted
            }
            assert made.whole.by_day[-1] == made.whole.so_far
            assert made.whole.by_day[-1] == total(group.by_day[-1] for group in made.groups)
            for day in range(len(made.until)):
                apart = [group.by_day[day].micros for group in made.groups]
                assert abs(made.whole.by_day[day].micros - sum(apart)) <= len(apart)
            assert list(made.whole.by_day) == sorted(made.whole.by_day)
        orphans = next((share for share in report.kinds if share.name == "orphans"), None)
        billed += made.whole.spent - (orphans.spent_usd if orphans is not None else ZERO)
        accrued += made.whole.accrued - (orphans.reserved_usd if orphans is not None else ZERO)
    runs = list(book.runs.values())
    reports = [report_run(context, run) for run in runs]
    assert billed == total(run.settled for run in runs)
    of_live = [r for r, s in zip(reports, runs, strict=True) if s.live]
    assert abs(accrued.micros - total(r.accrued for r in of_live).micros) <= 10_000


def test_it_is_what_each_runs_report_says_once_its_bill_is_final() -> None:
    runs = [ended(f"r-{n}", FIRST + n * DAY, 3, f"{n}.37") for n in range(1, 5)]
    now = FIRST + 9 * DAY
    runs.append(live("r-9", now - 5 * 3600, "30"))
    reports = [report_on(run, (), now) for run in runs]
    whole = grouped(ledger(*runs), MONTH, now).whole
    assert whole.spent == total(each.billed for each in reports if each.billed is not None)
    assert whole.accrued == reports[-1].accrued == Usd(10)
    assert reports[-1].billed is None


def test_damaged_records_stand_apart_so_that_the_sum_is_the_budgets() -> None:
    hurt = Quarantine("r-x", 1, (2,), Usd(7), "thesis", FIRST + DAY)
    book = ledger(ended("r-1", FIRST, 1, "2"), quarantined={"r-x": hurt})
    made = grouped(book, MONTH, FIRST + 3 * DAY)
    assert made.whole.reserved == book.line("month", MONTH).reserved == Usd(7)
    assert {group.name: group.reserved for group in made.groups} == {
        "thesis": ZERO,
        DAMAGED: Usd(7),
    }


# -- days ----------------------------------------------------------------------------------------


def test_a_cost_is_spread_over_the_days_of_its_machine() -> None:
    book = ledger(ended("r-1", FIRST + 1.5 * DAY, 48, "4.80"))
    made = grouped(book, MONTH, FIRST + 5 * DAY)
    assert made.until == tuple(FIRST + n * DAY for n in range(1, 6))
    assert [str(x) for x in made.whole.by_day] == ["$0.00", "$1.20", "$3.60", "$4.80", "$4.80"]


def test_what_began_before_the_month_or_ended_after_it_stays_inside() -> None:
    across = ended("r-1", FIRST - 0.5 * DAY, 24, "10", reserved_at=FIRST + 1)
    late = ended("r-2", ENDS - 0.25 * DAY, 12, "6")
    book, after = ledger(across, late), ENDS + 9 * DAY
    made = grouped(book, MONTH, after)
    assert len(made.until) == 30
    assert made.whole.by_day[0] == Usd(10)
    assert made.whole.by_day[-1] == Usd(16)
    assert month_spending(book, after, month=MONTH).forecast is None


def test_the_first_day_of_a_month_and_an_empty_one() -> None:
    now = FIRST + 3600
    made = spend_json(ledger(), now)
    assert (made["month"], made["until"], made["groups"], made["lines"]) == (MONTH, [now], [], [])
    assert made["total"]["so_far"]["text"] == "$0.00"
    assert made["forecast"]["high"]["usd"] == 0.0
    assert (made["cap"], made["left"], made["forecast"]["over_cap"]) == (None, None, False)
    one = spend_json(ledger(ended("r-1", FIRST, 0.5, "1.50")), now)
    assert one["total"]["usd"] == [1.5]
    at_midnight = spend_json(ledger(), FIRST)
    assert at_midnight["until"] == [FIRST]


# -- forecast ------------------------------------------------------------------------------------


def test_the_forecast_is_the_mean_day_of_a_week_and_what_live_runs_reserve() -> None:
    now = FIRST + 20 * DAY
    old = ended("r-0", FIRST, 24, "50")
    recent = [ended(f"r-{n}", now - n * DAY, 12, "7") for n in (1, 2, 3)]
    made = month_spending(ledger(old, *recent, live("r-9", now - 5 * 3600, "30")), now).forecast
    assert made is not None
    assert made.days == 7.0
    assert made.recent == Usd(31), "three of $7, and five hours at $2"
    assert made.days_left == 10.0
    more = Usd.from_micros(round(31e6 / 7 * 10))
    assert made.low == Usd(50 + 21 + 10) + more
    assert made.high == Usd(50 + 21 + 30) + more


def test_the_mean_is_of_as_many_days_as_there_are_and_of_the_month_before() -> None:
    now = FIRST + 2 * DAY
    young = month_spending(ledger(ended("r-1", FIRST, 12, "6")), now).forecast
    assert young is not None
    assert (young.days, young.per_day) == (2.0, Usd(3))
    shown = spend_json(ledger(ended("r-1", FIRST, 12, "6")), now)["forecast"]
    assert "Spending began 2.0 days ago" in shown["rule"]
    begun = ended("r-0", FIRST - 20 * DAY, 24, "1")
    before = ended("r-2", FIRST - 2 * DAY, 12, "14")
    both = month_spending(ledger(begun, before), now).forecast
    assert both is not None
    assert (both.days, both.per_day, both.low) == (7.0, Usd(2), Usd(56))


def test_a_forecast_says_that_it_is_above_the_cap() -> None:
    book = ledger(ended("r-1", FIRST, 24, "20"), live("r-2", FIRST + DAY, "10"))
    now = FIRST + 2 * DAY
    assert spend_json(capped(book, "1000"), now)["forecast"]["over_cap"] is False
    above = spend_json(capped(book, "40"), now)
    assert above["forecast"]["over_cap"] is True
    assert (above["cap"]["text"], above["left"]["text"]) == ("$40.00", "$10.00")


# -- groups --------------------------------------------------------------------------------------


def test_each_tag_divides_the_same_sum() -> None:
    runs = [
        ended(
            f"r-{n}", FIRST + n * 3600, 1, str(n + 1), tags=(("team", f"t{n % 3}"), ("who", "me"))
        )
        for n in range(5)
    ]
    book = ledger(*runs, ended("r-x", FIRST, 1, "9"))
    keys = [each.key for each in groupings(book, MONTH)]
    assert keys == ["project", "provider", "person", "tag:team", "tag:who"]
    made = {g.name: g.spent for g in grouped(book, MONTH, FIRST + DAY, "tag:team").groups}
    assert made == {"t0": Usd(5), "t1": Usd(7), "t2": Usd(3), UNTAGGED: Usd(9)}
    assert sum(made.values(), ZERO) == book.line("month", MONTH).settled


def test_many_tags_are_a_few_lines_and_the_rest_of_them() -> None:
    book = ledger(
        *(ended(f"r-{n}", FIRST, 1, str(n + 1), tags=(("exp", f"e{n}"),)) for n in range(150))
    )
    made = spend_json(book, FIRST + DAY, by="tag:exp")
    assert [line["name"] for line in made["lines"]] == [
        *("e149", "e148", "e147", "e146", "e145"), "145 others",
    ]  # fmt: skip
    assert len(made["lines"]) == MOST_LINES
    assert len(made["groups"]) == 100
    assert made["groups"][-1]["name"] == "51 others"
    for rows in (made["lines"], made["groups"]):
        whole = sum(row["usd"][-1] if "usd" in row else row["so_far"]["usd"] for row in rows)
        assert whole == pytest.approx(made["total"]["so_far"]["usd"]) == 150 * 151 / 2


def test_names_are_one_line_of_text() -> None:
    evil = "<script>\n\x1b[31m"
    book = ledger(ended("r-1", FIRST, 1, "1", project=evil, tags=(("k", evil),)))
    for by in ("project", "tag:k"):
        made = spend_json(book, FIRST + DAY, by=by)
        name = made["groups"][0]["name"]
        assert name == made["lines"][0]["name"]
        assert name.startswith("<script>")
        assert not any(ord(each) < 32 for each in name)


def test_what_is_no_month_and_no_grouping_is_refused() -> None:
    book = ledger(ended("r-1", FIRST, 1, "1"))
    wishes: list[dict[str, str]] = [
        {"month": "2019-01"}, {"month": "x"}, {"by": "kind"}, {"by": "tags"},
    ]  # fmt: skip
    for wish in wishes:
        with pytest.raises(UsageError):
            spend_json(book, FIRST + DAY, **wish)
    assert spend_json(book, FIRST + DAY, by="tag:none")["groups"][0]["name"] == UNTAGGED
    assert months(book, ENDS + DAY) == ["2026-12", MONTH]
    assert month_of(ENDS + DAY) == "2026-12"


# -- people --------------------------------------------------------------------------------------


def test_each_persons_money_and_what_is_held_until_when() -> None:
    now = FIRST + 4 * DAY
    book = ledger(
        ended("r-1", FIRST + DAY, 2.0, "5", payer=Payer("ada")),
        ended("r-2", FIRST + DAY, 2.0, "2"),
        live("r-3", FIRST + 3 * DAY, "4", payer=Payer("ada"), name="nightly"),
        live("r-4", FIRST + 3 * DAY, "9", payer=Payer("bob"), generations=(), state=State.RESERVED),
    )
    told = spend_json(book, now, month=MONTH, by="person")
    assert {"key": "person", "words": "person"} in told["groupings"]
    rows = {row["name"]: (row["spent"]["usd"], row["reserved"]["usd"]) for row in told["groups"]}
    assert rows == {"ada": (5.0, 4.0), "owner": (2.0, 0.0), "bob": (0.0, 9.0)}
    by_name = {row["name"]: row["run_ids"] for row in told["groups"]}
    assert by_name == {"ada": ["r-1", "r-3"], "owner": ["r-2"], "bob": ["r-4"]}
    held = [(row["run"], row["person"], row["until"], row["waits"]) for row in told["held"]]
    assert held == [("r-4", "bob", None, True), ("r-3", "ada", FIRST + 3 * DAY + 1e6, False)]
    assert told["asked"] == []


def test_who_asks_for_more_stands_there_until_it_is_answered() -> None:
    request = ev.ApprovalAsked(id="a-1", principal="ada", why="a second\x1b[31m seed", more=Usd(9))
    open_, done = Approval(request, FIRST, 1), Approval(request, FIRST, 1, True, FIRST + 1, "you")
    book = ledger(approvals={"a-1": open_})
    (row,) = spend_json(book, FIRST + DAY)["asked"]
    assert (row["person"], row["more"]["text"], row["asked_at"]) == ("ada", "$9.00", FIRST)
    assert "\x1b" not in row["why"]
    assert spend_json(ledger(approvals={"a-1": done}), FIRST + DAY)["asked"] == []


# -- less than all, and who waits ------------------------------------------------------------------


def test_who_waits_is_told_with_for_what_and_since_when() -> None:
    waiting = replace(
        live("r-1", FIRST + 5, "3"), state=State.RESERVED, generations=(), payer=Payer("bob")
    )
    asked = ev.ApprovalAsked("a-1", "ci", "the nightly run", more=Usd(2))
    book = ledger(
        waiting, live("r-2", FIRST, "1"), approvals={"a-1": Approval(asked, FIRST + 7, 1)}
    )
    rows = spend_json(book, FIRST + DAY)["waits"]
    assert [(row["for"], row["id"], row["person"], row["since"] - FIRST) for row in rows] == [
        ("machine", "r-1", "bob", 5.0),
        ("answer", "a-1", "ci", 7.0),
    ]
    assert [row["amount"]["usd"] for row in rows] == [3, 2]


def test_limits_of_the_month_stand_beside_those_of_all_months() -> None:
    of_bob = ended("r-1", FIRST, 1, "7", project="vision", payer=Payer("bob", 1))
    book = ledger(
        replace(of_bob, generations=(replace(of_bob.generations[0], payer=of_bob.payer),)),
        live("r-2", FIRST + DAY, "4", project="vision"),
        ended("r-3", FIRST, 1, "1", project="audio"),
    )
    terms = ev.GrantTerms(total=Usd(50), per_month=Usd(20))
    book = replace(
        book,
        caps={("project", "vision"): Usd(100), ("project-month", "vision"): Usd(30)},
        grants={"bob": Grant("bob", 1, terms, FIRST)},
    )
    told = spend_json(book, FIRST + 2 * DAY)["groups"]
    limits = {each["name"]: (each["month_limit"], each["limit"]) for each in told}
    assert limits["audio"] == (None, None)
    [month, whole] = limits["vision"]
    assert (month["usd"], whole["usd"]) == (30, 100)
    [vision] = [each for each in told if each["name"] == "vision"]
    assert (vision["month_left"]["usd"], vision["limit_left"]["usd"]) == (19, 89)
    [bob] = [
        each for each in spend_json(book, FIRST + 2 * DAY, by="person")["groups"]
        if each["name"] == "bob"
    ]  # fmt: skip
    assert (bob["month_limit"]["usd"], bob["month_left"]["usd"]) == (20, 13)
    assert (bob["limit"]["usd"], bob["limit_left"]["usd"]) == (50, 43)
