"""What the quotes of one provider say of each other.

A quote holds until a newer one for the same thing is known: the same GPU at the same provider, on
demand or spot, from the provider itself or from private sellers. Other counts are compared by GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from trmcloud.core.money import Usd
from trmcloud.core.offers import ANYWHERE, Offer

_Thing = tuple[str, str, bool, bool]
"""Provider, GPU, spot, private sellers."""


class _Ask(NamedTuple):
    """What a machine of ``gpus`` was planned at, by GPU: micro-dollars an hour."""

    priced_at: float
    gpus: int
    micros: int


def informed(offers: Sequence[Offer], now: float) -> list[Offer]:
    """``offers`` with what newer quotes ask for the same, and spot with what it costs on demand.

    The dearest newer quote for its region counts, else the dearest for any. The user's own offers
    stay as they are, and tell nothing of lists.
    """
    span: dict[_Thing, tuple[float, float]] = {}
    for offer in offers:
        thing = _thing(offer)
        at = offer.priced_at
        known = span.get(thing)
        if known is None:
            span[thing] = (at, at)
        elif not known[0] <= at <= known[1]:
            span[thing] = (min(at, known[0]), max(at, known[1]))
    wanted = {thing for thing, (oldest, newest) in span.items() if oldest < newest}
    wanted |= {(name, sku, False, tier) for name, sku, spot, tier in span if spot}
    if not wanted:
        return list(offers)
    asks = _asks((offer for offer in offers if _thing(offer) in wanted and not offer.own), now)
    told = []
    for offer in offers:
        thing = _thing(offer)
        if thing in wanted and not offer.own and offer.priced_at < span[thing][1]:
            offer = _with_newer(offer, thing, asks)
        told.append(offer)
    if not any(offer.spot for offer in told):
        return told
    listed = {_machine(offer): offer.planned_rate(now) for offer in told if not offer.spot}
    return [
        offer._replace(on_demand=listed.get(_machine(offer)) or _on_demand(offer, asks))
        if offer.spot
        else offer
        for offer in told
    ]


def _machine(offer: Offer) -> tuple[object, ...]:
    return offer.provider, offer.region, offer.instance, offer.sku, offer.gpus


def _thing(offer: Offer) -> _Thing:
    return offer.provider, offer.sku, offer.spot, offer.is_community


_Asks = dict[tuple[_Thing, str], list[_Ask]]
"""By thing and region; the dearest of all regions under ''."""


def _asks(offers: Iterable[Offer], now: float) -> _Asks:
    """The cheapest machine of each day, region and count, as who rents one would be given it."""
    least: dict[tuple[_Thing, str, float, int], int] = {}
    for offer in offers:
        key = (_thing(offer), offer.region, offer.priced_at, offer.gpus)
        micros = -(-offer.planned_rate(now).micros // offer.gpus)
        least[key] = min(micros, least.get(key, micros))
    dearest: dict[tuple[_Thing, str], dict[tuple[float, int], int]] = {}
    for (thing, region, at, gpus), micros in least.items():
        for place in (region, ""):
            days = dearest.setdefault((thing, place), {})
            days[at, gpus] = max(micros, days.get((at, gpus), 0))
    return {
        key: [_Ask(at, gpus, micros) for (at, gpus), micros in days.items()]
        for key, days in dearest.items()
    }


def _dearest(offer: Offer, thing: _Thing, asks: _Asks, after: float) -> _Ask | None:
    """Of those younger than ``after``: for its region, or for any; else for another. Of as many
    GPUs, else of other counts."""
    there = [*asks.get((thing, offer.region), ()), *asks.get((thing, ANYWHERE), ())]
    for found in (there, asks.get((thing, ""), ())):
        newer = [ask for ask in found if ask.priced_at > after]
        alike = [ask for ask in newer if ask.gpus == offer.gpus]
        if newer:
            return max(alike or newer, key=lambda ask: ask.micros)
    return None


def _with_newer(offer: Offer, thing: _Thing, asks: _Asks) -> Offer:
    found = _dearest(offer, thing, asks, offer.priced_at)
    if found is None:
        return offer
    return offer._replace(
        newer=Usd.from_micros(found.micros * offer.gpus), newer_at=found.priced_at
    )


def _on_demand(offer: Offer, asks: _Asks) -> Usd | None:
    thing = (offer.provider, offer.sku, False, offer.is_community)
    found = _dearest(offer, thing, asks, float("-inf"))
    return Usd.from_micros(found.micros * offer.gpus) if found is not None else None
