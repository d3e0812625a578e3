"""What a plan reserves covers what its provider can charge, and not only what was quoted."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.skypilot.rig import KEYS, request
from trmcloud.adapters.files.recipes import load_recipe
from trmcloud.adapters.prices.tables import load_offers
from trmcloud.core.catalog.providers import TRAITS, traits_of
from trmcloud.core.control.renting import hard_stop_within
from trmcloud.core.control.run_state import RunState
from trmcloud.core.money import Usd, cost
from trmcloud.core.planner.candidates import kill_latency_s
from trmcloud.core.planner.planning import make_plan
from trmcloud.core.spec.plan import Candidate, Plan, plan_from_json, plan_to_json
from trmcloud.core.spec.spec import RunSpec
from trmcloud.providers.skypilot.task import make_task

NOW = 1_795_000_000.0  # 2026-11-18
NEBIUS_H100 = Usd("4.50")
"""Asked for one GPU on 2026-10-24, by public trackers of its price list."""


def planned(budget: int, provider: str, **wish: Any) -> Plan:
    spec = RunSpec(
        recipe="trm", phases=("fast", "extreme"), hardware="8xH100", budget=Usd(budget),
        providers=(provider,), **wish,
    )  # fmt: skip
    return make_plan(spec, load_recipe("trm"), load_offers(NOW), NOW, "p-0000")


def charged(candidate: Candidate, rate: Usd) -> Usd:
    """At ``rate`` (USD/h), from the pod's start until it is killed at the latest."""
    return cost(rate, candidate.hard_stop_s + kill_latency_s(candidate.provider))


def launchable(plan: Plan) -> list[Candidate]:
    found = [plan.candidate(name) for name in plan.launchable]
    assert found
    return found


@pytest.mark.parametrize("budget", [100, 1000])
def test_a_spot_plan_survives_the_price_on_demand(budget: int) -> None:
    # 8 H100 of AWS in the United States cost $55.04 on demand, and some spot zone $9.37: $100 of it
    # could have cost $449.
    plan = planned(budget, "aws", spot=True)
    spots = [c for c in launchable(plan) if c.spot]
    assert spots
    for candidate in spots:
        on_demand = max(
            offer.rate
            for offer in load_offers(NOW)
            if (offer.provider, offer.region) == (candidate.provider, candidate.region)
            and (offer.sku, offer.gpus, offer.spot) == (candidate.sku, candidate.gpus, False)
        )
        assert on_demand > candidate.rate
        assert charged(candidate, on_demand) <= Usd(budget)
        assert candidate.worst_case <= plan.reservation <= Usd(budget)
        assert candidate.cost_p50 < charged(candidate, on_demand), "what is expected stays spot's"


def test_an_old_quote_survives_what_is_asked_by_now() -> None:
    # Quoted at $2.95 in March: $1,000 of it could have cost $1,171 at November's price.
    for candidate in launchable(planned(1000, "nebius")):
        assert charged(candidate, NEBIUS_H100 * candidate.gpus) <= Usd(1000)


def test_where_nothing_caps_the_rent_it_says_so_and_by_how_much() -> None:
    (candidate, *_) = launchable(planned(1000, "aws"))
    told = [reason for _, reason in candidate.reasons if "nothing caps the rent at aws" in reason]
    assert (
        f"{charged(candidate, candidate.reserved_rate).amount / 10:.2f} more can be spent"
        in (told[0])
    )
    (checked, *_) = launchable(planned(1000, "runpod"))
    assert not any("nothing caps" in reason for _, reason in checked.reasons)
    assert {name for name, traits in TRAITS.items() if traits.shows_rate} == {"local", "runpod"}


def test_spot_without_a_known_price_on_demand_is_never_launched() -> None:
    offers = [o for o in load_offers(NOW) if o.provider == "aws" and o.spot and o.sku == "H100-SXM"]
    spec = RunSpec(recipe="trm", phases=("fast",), hardware="8xH100", spot=True)
    plan = make_plan(spec, load_recipe("trm"), offers, NOW, "p-0000")
    assert plan.candidates
    assert not plan.launchable
    assert plan.recommended is None
    assert any("on demand is not known" in reason for _, reason in plan.candidates[0].reasons)


def test_one_rate_from_the_reservation_to_the_request() -> None:
    plan = planned(100, "aws", spot=True)
    candidate = next(c for c in launchable(plan) if c.spot)
    assert candidate.rate < candidate.reserved_rate
    run = RunState("r1", reserved=plan.reservation)
    # What is left of the budget after a failed try buys as little as on demand, too.
    stop_s = hard_stop_within(candidate, run, traits_of("aws"))
    assert stop_s <= candidate.hard_stop_s
    assert charged(replace(candidate, hard_stop_s=stop_s), candidate.reserved_rate) <= Usd(100)
    run = RunState("r1", reserved=Usd(50))
    stop_s = hard_stop_within(candidate, run, traits_of("aws"))
    assert charged(replace(candidate, hard_stop_s=stop_s), candidate.reserved_rate) <= Usd(50)
    asked = replace(request(region=candidate.region), spot=True, rate=candidate.reserved_rate)
    task = json.loads(make_task("aws", asked, KEYS, "boot.tar.gz", NOW, {}))
    assert task["resources"]["max_hourly_cost"] == float(candidate.reserved_rate)
    assert candidate == plan_from_json(plan_to_json(plan)).candidate(candidate.id)
