"""What ``sky cost-report`` says, taken apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.skypilot.said import SaidSky
from trmcloud.adapters.pod_history import Sightings
from trmcloud.core.control.observation import Bill
from trmcloud.core.errors import ProviderError
from trmcloud.core.money import Usd
from trmcloud.providers.skypilot.clusters import ASK_EVERY_S, Biller


class Reported:
    def __init__(self, folder: Path, rows: Any) -> None:
        self.sky = SaidSky(rows)
        self.now = 1_795_000_000.0
        self.biller = Biller("aws", self.sky, Sightings(folder), lambda: self.now)

    def of(self, name: str = "n") -> Usd | None:
        """What is reported of a cluster that nothing else is known of."""
        bill = self.biller.bill(name)
        assert bill is None or bill == Bill(name, bill.amount, final=False)
        return bill.amount if bill is not None else None


def test_a_cluster_costs_what_is_reported_and_a_name_used_twice_both(tmp_path: Path) -> None:
    rows = [{"name": "n", "total_cost": 12.5}, {"name": "m", "total_cost": 3},
            {"name": "n", "total_cost": 0.25}]  # fmt: skip
    reported = Reported(tmp_path, rows)
    assert (reported.of(), reported.of("m"), reported.of("o")) == (Usd("12.75"), Usd(3), None)
    assert reported.sky.asked == [("cost-report", "--days", "30", "-o", "json")]


def test_a_report_is_kept_for_a_while_and_a_clock_set_back_ends_it(tmp_path: Path) -> None:
    reported = Reported(tmp_path, [])
    asked = []
    for later_s in (0.0, 0.0, ASK_EVERY_S - 1, 1.0, ASK_EVERY_S, -1.0, 0.0):
        reported.now += later_s
        reported.of()
        asked.append(len(reported.sky.asked))
    assert asked == [1, 1, 1, 2, 3, 4, 4]


@pytest.mark.parametrize(
    "total", [None, "12.5", True, 0, -0.5, float("nan"), float("inf"), 1e7, 1e300, [1.0]]
)
def test_a_cost_that_none_can_be_is_nothing(tmp_path: Path, total: Any) -> None:
    rows = [{"name": "n", "total_cost": total}, {"name": "m", "total_cost": 1.0}]
    reported = Reported(tmp_path, rows)
    assert (reported.of(), reported.of("m")) == (Usd(0), Usd(1))


def test_the_most_and_the_least_that_are_believed(tmp_path: Path) -> None:
    rows = [{"name": "n", "total_cost": 9_999_999.5}, {"name": "m", "total_cost": 0.0000012}]
    reported = Reported(tmp_path, rows)
    assert (reported.of(), reported.of("m")) == (Usd("9999999.5"), Usd("0.000001"))


def test_a_row_that_is_none_costs_no_other(tmp_path: Path) -> None:
    reported = Reported(tmp_path, ["odd", None, [], {"total_cost": 5.0}, {"name": "n"}])
    assert reported.of() == Usd(0)


@pytest.mark.parametrize("rows", [{}, {"name": "n"}])
def test_what_is_no_list_is_an_error(tmp_path: Path, rows: Any) -> None:
    with pytest.raises(ProviderError, match="cost-report printed no list"):
        Reported(tmp_path, rows).of()
