"""A month's charges as FOCUS 1.0; ``make focus`` has the consortium's validator judge the file."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.unit.cli import told_home
from tests.unit.page.test_spend import DAY, FIRST, MONTH, ended, ledger, live
from trmcloud.core.control.budget import LedgerState
from trmcloud.core.control.focus import COLUMNS, focus_rows, total_of
from trmcloud.core.control.grants import month_of
from trmcloud.core.control.run_state import Payer
from trmcloud.core.money import Usd
from trmcloud.wiring import build_context

ENV = "TRMCLOUD_FOCUS"
"""The ``focus-validator`` of an environment of its own."""
#: focus-validator 1.0.0 asks for these four by the names of an earlier draft, and for ChargeType,
#: which 1.0 calls ChargeCategory.
_EARLIER = {
    "ProviderName": "Provider", "PublisherName": "Publisher",
    "InvoiceIssuerName": "InvoiceIssuer", "ResourceId": "ResourceID",
}  # fmt: skip


def book() -> LedgerState:
    return ledger(
        ended("r-1", FIRST + DAY, 2.0, "5.25", payer=Payer("ada"), tags=(("team", 'a "b"'),)),
        ended("r-2", FIRST + 2 * DAY, 0.5, "0.000001", provider="vast", name="nightly, 2"),
        ended("r-3", FIRST + 29.99 * DAY, 5.0, "9", project="audio"),
        ended("r-0", FIRST - DAY, 2.0, "7"),
        live("r-4", FIRST + 3 * DAY, "4"),
    )


def test_each_charge_has_one_row_and_what_is_reserved_has_none() -> None:
    rows = focus_rows(book(), MONTH)
    assert [row["ResourceId"] for row in rows] == ["r-1", "r-2", "r-3"]
    assert total_of(rows) == book().line("month", MONTH).settled == Usd("14.250001")
    first, second, last = rows
    assert first["ChargePeriodStart"] == "2026-11-02T00:00:00Z"
    assert first["ChargePeriodEnd"] == "2026-11-02T02:00:00Z"
    assert first["ConsumedQuantity"] == "2.000000"
    tags = {"team": 'a "b"', "trmcloud/bill": "final", "trmcloud/principal": "ada"}
    assert json.loads(first["Tags"]) == {**tags, "trmcloud/run": "r-1"}
    assert json.loads(second["Tags"])["trmcloud/principal"] == "owner"
    assert (second["ProviderName"], second["ResourceName"]) == ("vast", "nightly, 2")
    assert (last["SubAccountId"], last["BilledCost"]) == ("audio", "9")
    for row in rows:
        assert tuple(row) == COLUMNS
        assert row["BillingPeriodStart"] <= row["ChargePeriodStart"] < row["ChargePeriodEnd"]
        assert row["ChargePeriodEnd"] <= row["BillingPeriodEnd"] == "2026-12-01T00:00:00Z"


def test_december_ends_with_the_year() -> None:
    (row,) = focus_rows(ledger(ended("r-1", FIRST + 45 * DAY, 1.0, "1")), "2026-12")
    assert (row["BillingPeriodStart"], row["BillingPeriodEnd"]) == (
        "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z",
    )  # fmt: skip


def test_it_is_what_the_month_has_settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told_home.write(tmp_path)
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path))
    state = build_context().ledger.read()
    found = {run.reserved_at for run in state.runs.values() if run.reserved_at}
    for month in {month_of(at) for at in found}:
        assert total_of(focus_rows(state, month)) == state.line("month", month).settled


@pytest.mark.skipif(not os.environ.get(ENV), reason=f"make focus: {ENV} names no focus-validator")
def test_the_consortiums_validator_accepts_it(tmp_path: Path) -> None:
    validator = Path(os.environ[ENV]).absolute()
    text = io.StringIO()
    names = [*(_EARLIER.get(name, name) for name in COLUMNS), "ChargeType"]
    writer = csv.DictWriter(text, names)
    writer.writeheader()
    for row in focus_rows(book(), MONTH):
        adapted = {_EARLIER.get(name, name): value or "NULL" for name, value in row.items()}
        writer.writerow({**adapted, "ChargeType": row["ChargeCategory"]})
    (tmp_path / "month.csv").write_text(text.getvalue())

    def judged(path: Path) -> str:
        # It reads its table of currencies from below the working directory.
        packages = next(validator.parents[1].glob("lib/python*/site-packages"))
        return subprocess.run(
            [str(validator), "--data-file", str(path), "--validate-version", "1.0"],
            cwd=packages, capture_output=True, text=True, check=False,
        ).stdout  # fmt: skip

    assert "Validation succeeded." in judged(tmp_path / "month.csv")
    wrong = text.getvalue().replace("Usage-Based", "Sometimes")
    (tmp_path / "wrong.csv").write_text(wrong)
    assert "ChargeFrequency_Enum failed" in judged(tmp_path / "wrong.csv"), "it does judge"
