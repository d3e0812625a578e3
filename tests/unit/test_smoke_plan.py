"""What a smoke run would rent, and what it makes of a pod's own account of its end."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trmcloud.core.catalog.offers import Offer
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.errors import BudgetRefused, NoCapacity
from trmcloud.core.money import Usd, cost
from trmcloud.core.spec.plan import Plan, plan_from_json, plan_to_json
from trmcloud.operations.checks.smoke_watch import last_way, offers_for_errand
from trmcloud.operations.launch.short_rentals import make_smoke_plan, with_only_candidate

NOW = 1_790_000_000.0
RUNPOD = traits_of("runpod")
DISKS = Usd("0.007")
OFFER = Offer("L4", 1, "runpod", "EU-RO-1", "1x_L4_SECURE", Usd("0.49"), False, NOW, "a test")


def made(offers: list[Offer], max_usd: str = "0.25", hold_s: float = 600.0) -> Plan:
    return make_smoke_plan(offers, RUNPOD, Usd(max_usd), hold_s, DISKS, NOW)


def test_the_cheapest_offer_comes_first_and_the_worst_case_covers_every_one() -> None:
    dear = replace_rate("0.99", sku="L40S")
    plan = made([dear, OFFER])
    assert [c.sku for c in plan.candidates] == ["L4", "L40S"]
    assert plan.recommended is not None
    assert plan.recommended.worst_case == cost(Usd("0.49"), 660) + cost(DISKS, 660)
    assert plan.reservation == plan.candidates[1].worst_case
    alone = with_only_candidate(plan, "c1")
    assert alone.reservation == plan.candidates[0].worst_case
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


def test_what_does_not_fit_the_money_is_left_out() -> None:
    plan = made([OFFER, replace_rate("3.99", sku="H100-SXM")])
    assert plan.launchable == ("c1",)
    with pytest.raises(BudgetRefused) as refused:
        made([OFFER], "0.09")
    assert "1xL4" in refused.value.what
    needed = refused.value.next_step.split()[2].rstrip(",")
    assert made([OFFER], needed).launchable


def test_an_errand_is_offered_what_a_smoke_run_at_the_first_provider_would_rent() -> None:
    def setting_at(provider: str) -> Any:
        assert provider == "runpod"
        return SimpleNamespace(offers=lambda now: [OFFER] if now == NOW else [], disk_rate=DISKS)

    assert offers_for_errand(setting_at, NOW) == ([OFFER], DISKS)


def test_machines_that_prove_nothing_are_not_rented() -> None:
    odd = [OFFER._replace(gpus=2), OFFER._replace(spot=True), OFFER._replace(tier="community")]
    with pytest.raises(NoCapacity):
        made(odd)


def test_an_old_price_is_planned_dearer() -> None:
    plan = made([OFFER._replace(priced_at=NOW - 100 * 86_400.0)])
    assert plan.candidates[0].rate > OFFER.rate


@given(rate=st.integers(10_000, 2_000_000), hold_s=st.floats(15, 3600), cents=st.integers(1, 500))
def test_never_more_than_was_allowed(rate: int, hold_s: float, cents: int) -> None:
    offer = OFFER._replace(rate=Usd.from_micros(rate))
    most = Usd.from_micros(cents * 10_000)
    try:
        plan = make_smoke_plan([offer], RUNPOD, most, hold_s, DISKS, NOW)
    except BudgetRefused:
        assert cost(offer.rate + DISKS, hold_s + RUNPOD.kill_latency_s) > most - Usd.from_micros(2)
    else:
        assert plan.reservation <= most
        assert plan.reservation >= cost(offer.rate, hold_s + RUNPOD.kill_latency_s)


def replace_rate(rate: str, sku: str) -> Offer:
    return OFFER._replace(rate=Usd(rate), sku=sku)


def attempts(*rows: dict[str, object]) -> str:
    return json.dumps({"version": 1, "why": "hard stop", "attempts": list(rows)})


def test_the_last_way_written_down_is_the_one_that_worked() -> None:
    text = attempts(
        {"way": "a", "ok": False, "code": 1},
        {"way": "b", "ok": False, "code": None},
        {"way": "c", "ok": None, "code": None},
    )
    assert last_way(text) == ("c", "a refused (1), b refused")
    rounds = attempts(*[{"way": way, "ok": False, "code": 403} for way in "abcabcab"])
    assert last_way(rounds) == (
        "the events after b",
        "a refused (403), b refused (403), c refused (403)",
    )


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "[]", "{}", '{"attempts": 3}', '{"attempts": [3]}', '{"attempts": []}',
     '{"attempts": [{}]}', "null", '{"attempts": [{"way": "x"}, null]}', "[" * 100_000],
)  # fmt: skip
def test_a_record_that_cannot_be_understood_proves_nothing(text: str) -> None:
    assert last_way(text) == ("", "")


def test_a_hostile_record_cannot_draw_on_the_terminal() -> None:
    way, _ = last_way(attempts({"way": "\x1b[2Jgone\nby magic" + "x" * 500, "ok": True}))
    assert "\x1b" not in way
    assert "\n" not in way
    assert len(way) <= 60
