"""Hardware of one's own: its power in money, and from which worth of an hour renting is better."""

from __future__ import annotations

from pathlib import Path

import pytest

from trmcloud.app.own_hardware import HOST_W, own_hardware
from trmcloud.app.planning import Planner
from trmcloud.cli.views.plan import own_lines
from trmcloud.core.errors import DoesNotFit, UsageError
from trmcloud.core.money import Usd
from trmcloud.core.spec.plan import Plan
from trmcloud.core.spec.spec import RunSpec
from trmcloud.options import LaunchRequest
from trmcloud.wiring_plans import build_planner


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Planner:
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path))
    monkeypatch.delenv("RUNPOD_API_KEY", raising=False)
    return build_planner()


@pytest.fixture
def spec(planner: Planner) -> RunSpec:
    return planner.spec(LaunchRequest(recipe="trm", budget="1000", hardware="8xH100"))


@pytest.fixture
def plan(planner: Planner, spec: RunSpec) -> Plan:
    return planner.plan(spec)


def test_power_is_paid_by_the_hour(planner: Planner, spec: RunSpec, plan: Plan) -> None:
    own = own_hardware(planner, spec, plan, "RTX3090", Usd("0.30"))
    assert (own.hardware, own.watts) == ("1xRTX3090", 350 + HOST_W)
    assert own.per_hour == Usd("0.15")
    hours = own.candidate.hours.p50
    assert float(own.candidate.cost_p50) == pytest.approx(0.15 * hours, rel=0.01)
    free = own_hardware(planner, spec, plan, "1xRTX3090", Usd(0))
    assert free.candidate.hours == own.candidate.hours
    assert free.candidate.cost_p50 == Usd(0)


def test_renting_is_better_from_the_worth_of_an_hour_that_is_told(
    planner: Planner, spec: RunSpec, plan: Plan
) -> None:
    own = own_hardware(planner, spec, plan, "2xRTX4090", Usd("0.12"))
    rented = plan.recommended
    assert own.rented == rented
    assert rented is not None
    # At that worth both come to the same: money, and hours at their worth.
    worth = float(own.worth_from)
    here = float(own.candidate.cost_p50) + worth * own.candidate.hours.p50
    there = float(rented.cost_p50) + worth * rented.hours.p50
    assert here == pytest.approx(there, abs=0.01)
    assert float(own.rent_per_own_hour) * own.candidate.hours.p50 == pytest.approx(
        float(rented.cost_p50), abs=0.01
    )
    assert own.to_json()["against"]["worth_from_usd_per_hour"] == worth
    assert own_lines(own)[-1].endswith(f"worth more than {own.worth_from}")


def test_what_is_quicker_than_all_that_is_rented_is_trained_on(
    planner: Planner, spec: RunSpec, plan: Plan
) -> None:
    own = own_hardware(planner, spec, plan, "16xB200", Usd("0.10"))
    assert own.rented is None
    assert own.to_json()["against"] is None
    assert "train there" in own_lines(own)[-1]


@pytest.mark.parametrize(
    ("hardware", "kwh", "said"),
    [
        ("RTX3090", None, "--own needs a price of power"),
        ("RTX3090", Usd("-1"), "no price of a kilowatt-hour"),
        ("RTX3090", Usd(30), "no price of a kilowatt-hour"),
        ("2x8xH100", Usd(1), "one machine"),
        ("RTX9999", Usd(1), "unknown hardware"),
        ("local", Usd(1), "unknown hardware"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    planner: Planner, spec: RunSpec, plan: Plan, hardware: str, kwh: Usd | None, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        own_hardware(planner, spec, plan, hardware, kwh)


def test_a_card_that_is_too_small_says_so(planner: Planner) -> None:
    spec = planner.spec(LaunchRequest(recipe="d32", budget="1000", hardware="8xH100"))
    plan = planner.plan(spec)
    with pytest.raises(DoesNotFit, match="d32 does not fit on your 1xRTXA1000: "):
        own_hardware(planner, spec, plan, "RTXA1000", Usd("0.30"))
