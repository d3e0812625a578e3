"""What newer quotes say of older ones."""

from __future__ import annotations

import pytest

from trmcloud.adapters.prices.tables import load_offers
from trmcloud.core.catalog.offers import DAY_S, Offer
from trmcloud.core.catalog.quotes import informed
from trmcloud.core.money import Usd

NOW = 1_795_000_000.0


def offer(rate: str, days: float, **more: object) -> Offer:
    base = Offer(
        "H100-SXM", 8, "nebius", "eu-north1", "i", Usd(rate), False, NOW - days * DAY_S, "test"
    )
    return base._replace(**more)  # type: ignore[arg-type]


def planned(*offers: Offer) -> list[str]:
    return [o.planned_rate(NOW).plain() for o in informed(offers, NOW)]


def test_the_dearest_newer_quote_is_planned_with() -> None:
    assert planned(offer("23.6", 260), offer("38", 50), offer("36", 20)) == ["38", "38", "36"]
    assert planned(offer("23.6", 260), offer("36", 50)) == ["46.8", "46.8"], "itself old"
    assert planned(offer("23.6", 260), offer("36", 20)) == ["36", "36"]
    assert planned(offer("40", 100), offer("36", 20)) == ["40", "36"], "no margin: it is known"


def test_without_a_newer_one_age_makes_it_dearer() -> None:
    assert planned(offer("10", 29)) == ["10"]
    assert planned(offer("10", 40)) == ["13"]
    assert planned(offer("10", 200), offer("9", 200)) == ["16", "14.4"]


@pytest.mark.parametrize(
    "other",
    [
        {"provider": "verda"},
        {"sku": "H200"},
        {"spot": True},
        {"note": "community; check that it exists"},
        {"own": True},
    ],
)
def test_other_things_tell_nothing(other: dict[str, object]) -> None:
    first, _ = planned(offer("20", 20), offer("36", 1, **other))
    assert first == "20"


def test_any_region_and_any_count_tell_by_gpu_the_same_count_first() -> None:
    assert planned(offer("20", 20), offer("36", 1, region="any"))[0] == "36"
    assert planned(offer("20", 20), offer("4.5", 1, gpus=1, region="us-central1"))[0] == "36"
    assert planned(offer("20", 20), offer("5", 1, gpus=1), offer("36", 1, region="x"))[0] == "36"


def test_own_prices_stay_as_they_are() -> None:
    assert planned(offer("20", 200, own=True), offer("36", 1))[0] == "20"


def test_spot_knows_what_it_costs_on_demand() -> None:
    spot, *_ = informed([offer("9", 5, spot=True), offer("50", 5), offer("60", 5, region="x")], NOW)
    assert spot.on_demand == Usd(50), "the very machine"
    assert (spot.planned_rate(NOW), spot.most_rate(NOW)) == (Usd(9), Usd(50))
    spot, *_ = informed([offer("9", 5, spot=True), offer("7", 5, gpus=1)], NOW)
    assert spot.on_demand == Usd(56), "else by GPU"
    spot, *_ = informed([offer("9", 5, spot=True), offer("50", 200), offer("55", 3, gpus=8)], NOW)
    assert spot.on_demand == Usd(55)
    (spot,) = informed([offer("9", 5, spot=True)], NOW)
    assert spot.most_rate(NOW) is None
    together = informed([offer("9", 5, spot=True), offer("50", 5)], NOW)[0].on_machines(2)
    assert (together.rate, together.on_demand) == (Usd(18), Usd(100))


@pytest.mark.parametrize(("spot", "community"), [(False, False), (True, False), (False, True)])
def test_what_is_left_out_told_nothing_of_what_stays(spot: bool, community: bool) -> None:
    def stays(one: Offer) -> bool:
        return (spot or not one.spot) and (community or not one.is_community)

    offers = load_offers(NOW)
    assert any(one.spot for one in offers), "else this shows nothing"
    left = informed([one for one in offers if stays(one)], NOW)
    assert left == [one for one in informed(offers, NOW) if stays(one)]
