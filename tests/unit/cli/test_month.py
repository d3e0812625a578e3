"""A month, divided by project, provider and kind: each way it adds up to the month's own budget."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tests.unit.cli import told_home
from tests.unit.core.test_strays import AT, ENDED, Book
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.cli.views.month import month_lines, month_page
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import LedgerState, month_of
from trmcloud.core.control.monthly import KINDS, NO_RUN, MonthReport, month_to_json, report_month
from trmcloud.core.money import Usd, total

NOW = time.time()
EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> LedgerState:
    """Runs of every end, one of them with orphaned pods, which the provider has billed or not."""
    home = tmp_path_factory.mktemp("month")
    told_home.write(home)
    made = SqliteLedger(home / "ledger.db")
    at = time.time()
    run_id = told_home.LIVE_RUN
    for pod_id, owner, amount in (("s-1", run_id, "0.40"), ("s-2", "", "0.07")):
        charge = ev.StrayCharged("runpod", pod_id, "trmc-x", owner, at - 60, Usd(amount))
        made.note(charge, at)
    made.note(ev.StrayBilled("runpod", "s-2", Usd("0.05")), at)
    return made.read()


def months(ledger: LedgerState) -> list[str]:
    return sorted({month_of(run.reserved_at) for run in ledger.runs.values()})


def test_each_list_adds_up_to_the_months_budget(ledger: LedgerState) -> None:
    assert month_of(NOW) in months(ledger) or len(months(ledger)) == 1
    for month in months(ledger):
        report = report_month(ledger, month)
        line = ledger.line("month", month)
        for shares in (report.projects, report.providers, report.kinds):
            assert total(share.spent for share in shares) == line.settled
            assert total(share.reserved for share in shares) == line.reserved
        assert {share.name for share in report.kinds} <= set(KINDS)
        if report.grown:
            assert report.grown[-1][1] <= line.settled
            assert list(report.grown) == sorted(report.grown)


def test_orphans_stand_apart_and_go_to_their_project(ledger: LedgerState) -> None:
    report = report_month(ledger, month_of(time.time()))
    orphans = next(share for share in report.kinds if share.name == "orphans")
    assert (orphans.spent, orphans.reserved) == (Usd("0.05"), Usd("0.40"))
    assert orphans.at_most == Usd("0.40")
    assert next(s for s in report.projects if s.name == NO_RUN).held == Usd("0.05")
    assert NO_RUN not in {share.name for share in report.providers}


def test_a_month_without_anything_says_so(ledger: LedgerState) -> None:
    report = report_month(ledger, "2019-02")
    assert (report.projects, report.grown) == ((), ())
    assert month_lines(report)[-1] == "nothing was spent or reserved in it"
    assert "<svg" in month_page(report, NOW, "trmcloud test")


def test_caps_stand_beside_what_they_bind(ledger: LedgerState) -> None:
    month = month_of(time.time())
    report = report_month(ledger, month)
    lines = month_lines(report)
    assert lines[0].startswith(f"{month} · {len(report.runs)} runs · ")
    assert " of $500.00, " in lines[0]
    data = month_to_json(report)
    assert data["month"] == month
    assert isinstance(data["budget"], dict)
    assert data["budget"]["cap_usd"] == 500.0


def test_a_page_has_the_cap_as_a_line_and_no_tags_of_others(ledger: LedgerState) -> None:

    report: MonthReport = report_month(ledger, month_of(time.time()))
    shares = tuple(replace(share, name=EVIL) for share in report.projects)
    page = month_page(replace(report, projects=shares), NOW, EVIL)
    assert "<script" not in page
    assert page.count("<polyline") == 2
    assert "default-src 'none'" in page


def test_a_volumes_rent_stands_apart_from_its_machine() -> None:
    book = Book()
    book.run("r1")
    report = report_month(book.ledger, month_of(AT))
    line = book.ledger.line("month", month_of(AT))
    kinds = {share.name: share for share in report.kinds}
    assert kinds["compute"].spent == line.settled == Usd(1)
    assert kinds["volumes"].reserved == line.reserved > Usd(0)
    book.add("", ENDED + 60.0, ev.VolumeDeleted("runpod", "EU-RO-1", "me"))
    report = report_month(book.ledger, month_of(AT))
    volumes = next(share for share in report.kinds if share.name == "volumes")
    assert volumes.reserved == Usd(0)
    assert volumes.spent + Usd(1) == book.ledger.line("month", month_of(AT)).settled
