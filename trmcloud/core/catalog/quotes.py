"""What the quotes of one provider say of each other.

A quote holds until a newer one for the same thing is known: the same GPU at the same provider, on
demand or spot, from the provider itself or from private sellers, in whatever region. Other counts
are compared by GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from trmcloud.core.catalog.offers import Offer, aged, is_community
from trmcloud.core.money import Usd

_Thing = tuple[str, str, bool, bool]
"""Provider, GPU, spot, private sellers."""
_Key = tuple[str, str, bool, str, float, int]
"""Provider, GPU, spot, note, when it was quoted, GPUs: what thousands of offers are few of."""
_KEY = attrgetter("provider", "sku", "spot", "note", "priced_at", "gpus")
_TOLD = Offer._fields.index("newer")
"""Of an Offer: where that begins which is told here."""


class _Ask(NamedTuple):
    """What a machine of ``gpus`` was planned at, by GPU: micro-dollars an hour."""

    priced_at: float
    gpus: int
    micros: int


def informed(offers: Sequence[Offer], now: float) -> list[Offer]:
    """``offers`` with the dearest newer quote for the same, and spot with what it costs on demand.

    The user's own offers stay as they are, and tell nothing of others.
    """
    keys: list[_Key] = list(map(_KEY, offers))
    things = {key: _thing(key) for key in set(keys)}
    newest: dict[_Thing, float] = {}
    for key, thing in things.items():
        newest[thing] = max(key[4], newest.get(thing, key[4]))
    older = {key for key, thing in things.items() if key[4] < newest[thing]}
    mixed = {things[key] for key in older}
    mixed |= {(provider, sku, False, tier) for provider, sku, spot, tier in newest if spot}
    if not mixed:
        return list(offers)
    asks = _asks(keys, offers, {key: things[key] for key in things if things[key] in mixed})
    _age(asks, newest, now)
    told = {key: _dearest(asks.get(things[key], ()), key[5], key[4]) for key in older}
    informed = [
        Offer._make((*offer[:_TOLD], *told[key], None)) if key in told and not offer.own else offer
        for key, offer in zip(keys, offers, strict=True)
    ]
    if not any(key[2] for key in things):
        return informed
    listed = {_machine(offer): offer.planned_rate(now) for offer in informed if not offer.spot}
    return [_with_on_demand(o, listed, asks) if o.spot else o for o in informed]


def _thing(key: _Key) -> _Thing:
    provider, sku, spot, note, _, _ = key
    return provider, sku, spot, is_community(note)


def _asks(
    keys: Sequence[_Key], offers: Sequence[Offer], things: Mapping[_Key, _Thing]
) -> dict[_Thing, list[_Ask]]:
    """The dearest of each day and count, of what stands in ``things``."""
    dearest: dict[_Key, int] = {}
    for key, offer in zip(keys, offers, strict=True):
        if key in things and offer.rate.micros > dearest.get(key, 0) and not offer.own:
            dearest[key] = offer.rate.micros
    asks: dict[_Thing, list[_Ask]] = {}
    for key, micros in dearest.items():
        _, _, _, _, at, gpus = key
        asks.setdefault(things[key], []).append(_Ask(at, gpus, -(-micros // gpus)))
    return asks


def _age(asks: dict[_Thing, list[_Ask]], newest: Mapping[_Thing, float], now: float) -> None:
    """The newest word may be old itself: nobody knows what came after it."""
    for thing, known in asks.items():
        asks[thing] = [
            ask._replace(micros=aged(ask.micros, now - ask.priced_at))
            if ask.priced_at == newest[thing]
            else ask
            for ask in known
        ]


def _dearest(asks: Iterable[_Ask], gpus: int, after: float) -> tuple[Usd | None, float]:
    """(USD/h of ``gpus``, when it was quoted) of those younger than ``after``: of as many GPUs,
    else of other counts."""
    newer = [ask for ask in asks if ask.priced_at > after]
    found = max(
        [ask for ask in newer if ask.gpus == gpus] or newer,
        key=lambda ask: ask.micros,
        default=None,
    )
    if found is None:
        return None, 0.0
    return Usd.from_micros(found.micros * gpus), found.priced_at


def _machine(offer: Offer) -> tuple[object, ...]:
    return offer.provider, offer.region, offer.instance, offer.sku, offer.gpus


def _with_on_demand(
    offer: Offer, listed: dict[tuple[object, ...], Usd], asks: dict[_Thing, list[_Ask]]
) -> Offer:
    """By the price of the very machine, else by the dearest of the same that is known."""
    rate = listed.get(_machine(offer))
    if rate is None:
        thing = (offer.provider, offer.sku, False, offer.is_community)
        rate, _ = _dearest(asks.get(thing, ()), offer.gpus, float("-inf"))
    return offer._replace(on_demand=rate)
