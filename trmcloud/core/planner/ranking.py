"""Ranking of offers, and the nearest offer where the one asked for does not exist. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from trmcloud.core.catalog.hardware import LOCAL, HardwareRequest, LocalMachine, hardware_name
from trmcloud.core.catalog.interruptions import InterruptionRate
from trmcloud.core.catalog.offers import ANYWHERE, Offer, age_margin_percent
from trmcloud.core.catalog.providers import TRAITS, brokered, is_brokered, max_nodes, require_rented
from trmcloud.core.errors import UsageError
from trmcloud.core.nearest import suggest_name
from trmcloud.core.planner.candidates import (
    RankedOffer,
    Storage,
    can_be_rented,
    interruptions_of,
    is_reachable,
    kill_latency_s,
    storage_of,
)
from trmcloud.core.planner.command_outlook import CommandProbe, command_outlook
from trmcloud.core.planner.estimates import (
    HOUR_S,
    Estimates,
    is_too_long,
    last_phase_steps,
    outlook_on,
    trained_share,
    with_machine,
)
from trmcloud.core.planner.roofline import MeasuredSpeed, pick_measured
from trmcloud.core.planner.speed import Machine, rented_machine, this_machine
from trmcloud.core.spec.recipe import Recipe
from trmcloud.core.spec.spec import DataSource, RunSpec
from trmcloud.core.storage import prices_of

# The nearest offer, for the message that the one asked for does not exist.

_Test = Callable[[Offer], bool]


def nearest_offer(
    spec: RunSpec, request: HardwareRequest | None, offers: Sequence[Offer], now: float
) -> tuple[str, str]:
    """(what no provider offers, and what is offered instead; what to type for it).

    Each limit is dropped in turn, the one that changes least first: private sellers, spot, region,
    provider, and last the number of GPUs.

    Raises:
        UsageError: no provider of that name, or another took its place.
    """
    nodes = request.nodes if request is not None else 1
    what = _nobody(spec, request)
    if nodes > 1:
        able = [name for name in sorted(TRAITS) if max_nodes(name) >= nodes and is_reachable(name)]
        if spec.providers and not set(spec.providers) & set(able):
            return what, f"several machines can be rented from: {', '.join(able)}"
    known = sorted({offer.provider for offer in offers})
    unknown = [name for name in spec.providers if name not in known]
    if unknown and len(unknown) == len(spec.providers):
        for name in unknown:
            require_rented(name)
        raise UsageError(
            f"--provider: no offers of {unknown[0]!r:.40}",
            next_step=suggest_name(unknown[0], known),
        )
    limits: dict[str, _Test] = {
        "community": lambda o: spec.community or not o.is_community,
        "spot": lambda o: spec.spot or not o.spot,
        "region": lambda o: not spec.regions or o.region in (*spec.regions, ANYWHERE),
        "provider": lambda o: not spec.providers or o.provider in spec.providers,
        "hardware": lambda o: (
            (request is None or request.accepts(o.sku, o.gpus))
            and (not spec.gpus or o.gpus == spec.gpus)
        ),
    }

    def alike(offer: Offer) -> bool:
        return request is None or offer.sku in request.skus

    for dropped in (*limits, "provider and region"):
        found = [
            offer
            for offer in offers
            if alike(offer)
            and max_nodes(offer.provider) >= nodes
            and all(test(offer) for name, test in limits.items() if name not in dropped)
        ]
        if found:
            best = min(found, key=lambda o: _distance(o, spec, request, now))
            return f"{what}: {_told(best, nodes, now)}", _typed(spec, best, nodes)
    return what, "trmcloud prices list"


def _nobody(spec: RunSpec, request: HardwareRequest | None) -> str:
    what = request.text if request else (f"{spec.gpus} GPUs" if spec.gpus else "anything")
    if spec.providers:
        what += f" at {' or '.join(spec.providers)}"
    if spec.regions:
        what += f" in {' or '.join(spec.regions)}"
    return f"no provider in the price table offers {what}"


def _distance(
    offer: Offer, spec: RunSpec, request: HardwareRequest | None, now: float
) -> tuple[bool, bool, int, int]:
    """Return the sort key of nearness: providers out of reach and old quotes last; then the nearest
    count, then the price."""
    wanted = request.count if request is not None else spec.gpus
    count = abs(offer.gpus - (wanted or offer.gpus))
    rate = offer.planned_rate(now)
    return not is_reachable(offer.provider), offer.is_stale(now), count, rate.micros


def _told(offer: Offer, nodes: int, now: float) -> str:
    hardware = hardware_name(offer.sku, offer.gpus, nodes)
    where = f"{offer.provider} {offer.region}".removesuffix(f" {ANYWHERE}")
    kind = ("spot, " if offer.spot else "") + ("private sellers, " if offer.is_community else "")
    price = f"{offer.on_machines(nodes).planned_rate(now)}/h"
    return f"nearest is {hardware}, {kind}{where}, {price}"


def _typed(spec: RunSpec, offer: Offer, nodes: int) -> str:
    typed = f"trmcloud plan --hardware {hardware_name(offer.sku, offer.gpus, nodes)}"
    if spec.providers:
        typed += f" --provider {offer.provider}"
    if spec.regions and offer.region != ANYWHERE:
        typed += f" --region {offer.region}"
    return (
        typed + (" --spot" if offer.spot else "") + (" --community" if offer.is_community else "")
    )


# Ranking: offers are judged as plain numbers, thousands in a few milliseconds.

KEPT_CANDIDATES = 40

#: class (32: cannot be used, 16: this machine, for longer than it is recommended, 8: P90 over a
#: limit, 4: its hours of training end before the recipe, 2: may not fit at any micro-batch, 1:
#: cannot be reached), the objective's two keys, position
_Order = tuple[int, float, float, int]
_UNUSABLE, _TOO_LONG, _OVER, _UNFINISHED, _UNSURE, _UNREACHABLE = 32, 16, 8, 4, 2, 1
_LEAST_SHARE = 1e-9
"""Of the recipe, that a run counts as training: dollars and hours of the whole stay finite."""


class PlanningInputs(NamedTuple):
    """The inputs of a plan beside its offers: see ``planning.make_plan``."""

    spec: RunSpec
    recipe: Recipe
    now: float
    local: LocalMachine | None
    tokens_available: int | None
    measured: Sequence[MeasuredSpeed]
    source: DataSource | None
    probed: CommandProbe | None


def rank(offers: Sequence[Offer], given: PlanningInputs) -> list[RankedOffer]:
    """The offers worth keeping, best first: of every hardware the best, then second ones, …

    Usable ones come before unusable ones, those within budget and deadline before the others, those
    that finish the recipe before those whose hours of training end earlier, those that fit at some
    micro-batch before those that may not, and those that can be launched on before those that
    cannot; then the objective decides. It compares equal work: a run that is ended earlier counts
    with the dollars and hours of the whole. It counts what an offer is planned at, an old quote
    with its surcharge; limits, the most it may be billed at. This machine comes last of what is
    usable where it takes longer than ``HORIZON_S``.
    """
    spec, recipe, now, local, tokens_available, measured, source, probed = given
    nodes = spec.nodes
    groups: dict[tuple[str, int, bool, bool, InterruptionRate | None, int], _Group] = {}
    outlooks: dict[tuple[str, int, bool], Estimates] = {}
    orders: list[_Order] = []
    chosen: dict[int, _Group] = {}

    def judged(
        offer: Offer, hardware: tuple[str, int, bool], interruptions: InterruptionRate | None
    ) -> _Group:
        machine = _machine(offer, local, measured, nodes)
        alike = outlooks.get(hardware)
        if spec.command is not None:
            outlook = command_outlook(
                spec, machine, probed, sent_bytes=source.sent_bytes if source is not None else 0
            )
        elif alike is not None and not spec.spot:
            outlook = with_machine(machine, alike, spec)
        else:
            outlook = outlook_on(
                recipe, spec, machine,
                fitted=alike.fitted if alike is not None else (),
                tokens_available=tokens_available, source=source, interruptions=interruptions,
            )  # fmt: skip
        outlooks[hardware] = outlook
        return _group(outlook, offer, spec, now)

    clusters = frozenset(brokered())
    # Of thousands of offers few are of another kind than those before them.
    kinds: dict[_Kind, tuple[_Group, int]] = {}
    for position in _worth_ranking(offers, now):
        offer = offers[position]
        kind = (offer.provider, offer.sku, offer.gpus, offer.spot)
        known = kinds.get(kind)
        if known is None:
            is_cluster = offer.provider in clusters
            disks = id(prices_of(offer.provider))
            interruptions = interruptions_of(offer.provider) if offer.spot else None
            key = (offer.sku, offer.gpus, offer.provider == LOCAL, is_cluster, interruptions, disks)
            group = groups.get(key)
            if group is None:
                group = groups[key] = judged(offer, key[:3], interruptions)
            place = group.rank_class + (0 if can_be_rented(offer) else _UNREACHABLE)
            known = kinds[kind] = group, place
        group, place = known
        chosen[position] = group
        _, _, storage, useful_most, within_most, a, b, c, d, fill, _, _ = group
        hourly = storage + offer.planned_micros(now)
        most: float = hourly
        if offer.spot or offer.ceiling is not None:
            billed = offer.most_rate(now)
            most = billed.micros + storage if billed is not None else math.inf
        if most > within_most or most == math.inf:
            place += _OVER
        if most > useful_most or most == math.inf:
            place += _UNUSABLE
        if fill is None:
            orders.append((place, a + hourly * b, c + hourly * d, position))
            continue
        tokens = fill.tokens(most) if most < math.inf else 0.0
        place &= _UNREACHABLE + _UNSURE + _TOO_LONG
        place += 0 if tokens and most <= useful_most else _UNUSABLE
        orders.append((place, -tokens, hourly, position))
    orders.sort()
    ranked = []
    for place, _, _, position in _keep(orders, chosen):
        offer, outlook, storage_there = offers[position], *chosen[position][:2]
        over = place >= _TOO_LONG if spec.fills else bool(place & (_OVER + _TOO_LONG))
        useful = place < _UNUSABLE or not outlook.fits
        rate = offer.planned_rate(now)
        billed = offer.most_rate(now) or rate
        ranked.append(RankedOffer(offer, rate, billed, outlook, not over, useful, storage_there))
    return ranked


_Kind = tuple[str, str, int, bool]
"""Provider, SKU, GPUs, and whether it is spot."""


def _worth_ranking(offers: Sequence[Offer], now: float) -> list[int]:
    """The positions of the offers that may be kept: of those that differ in their price alone, as
    many of the cheapest as any hardware can have among ``KEPT_CANDIDATES``."""
    margins = _Margins(now)
    alike: dict[_Kind, list[tuple[int, int]]] = {}
    found = []
    for position, offer in enumerate(offers):
        if offer.spot or offer.ceiling is not None:
            found.append(position)  # what may be billed is another price
            continue
        if offer.newer is None and not offer.own:
            micros = -(-offer.rate.micros * margins[offer.priced_at] // 100)
        else:
            micros = offer.planned_micros(now)
        kind = (offer.provider, offer.sku, offer.gpus, False)
        try:
            alike[kind].append((micros, position))
        except KeyError:
            alike[kind] = [(micros, position)]
    of_hardware: dict[tuple[str, int, bool], int] = {}
    for (provider, sku, gpus, _), some in alike.items():
        hardware = hardware_name(sku, gpus), gpus, provider == LOCAL
        of_hardware[hardware] = of_hardware.get(hardware, 0) + len(some)
    turns = next(
        (n for n in range(1, KEPT_CANDIDATES)
         if sum(min(n, some) for some in of_hardware.values()) >= KEPT_CANDIDATES),
        KEPT_CANDIDATES,
    )  # fmt: skip
    for some in alike.values():
        found += [position for _, position in sorted(some)[:turns]]
    return sorted(found)


class _Margins(dict[float, int]):
    """Hundredths of a quote that it is planned at, by the instant it was priced."""

    def __init__(self, now: float) -> None:
        self._now = now

    def __missing__(self, priced_at: float) -> int:
        found = self[priced_at] = 100 + age_margin_percent(self._now - priced_at)
        return found


class _Fill(NamedTuple):
    """The number of tokens that money buys where a run fills its budget."""

    outlook: Estimates
    room: float
    until_s: float
    latency_s: float

    def tokens(self, hourly: float) -> float:
        """Tokens at ``hourly`` micro-dollars; 0 where not one step fits."""
        last = self.outlook.phases[-1]
        bought_s = self.room * HOUR_S / hourly if hourly else math.inf
        allowed_s = min(bought_s, self.until_s) - self.latency_s
        if math.isinf(allowed_s):
            return self.outlook.tokens
        steps = last_phase_steps(self.outlook, allowed_s)
        if not steps:
            return 0.0
        return self.outlook.tokens + last.tokens * (steps / last.settings.steps - 1)


class _Group(NamedTuple):
    """The common part of all offers of one (SKU, count, way to rent): judging one is a few
    multiplications.

    ``storage_micros`` is what storage costs an hour; an hour may cost at most ``useful_most`` to
    buy a start, a step and a checkpoint, and ``within_most`` for P90 to keep all limits; the
    objective's keys are a + b·hourly and c + d·hourly.
    """

    outlook: Estimates
    storage: Storage
    storage_micros: int
    useful_most: float
    within_most: float
    a: float
    b: float
    c: float
    d: float
    fill: _Fill | None
    slot: tuple[str, bool]
    """Hardware, and whether it is this machine."""
    rank_class: int
    """What of an offer's class every one of them has."""


def _group(outlook: Estimates, offer: Offer, spec: RunSpec, now: float) -> _Group:
    storage = storage_of(outlook, offer.provider)
    after = storage.after.micros
    room = math.inf if spec.budget is None else spec.budget.micros - after
    until_s = math.inf if spec.deadline_at is None else spec.deadline_at - now
    latency_s = kill_latency_s(offer.provider)
    p50_s, p90_s = outlook.seconds.p50, outlook.seconds.p90 + outlook.landing_s
    useful_most = room * HOUR_S / (outlook.useful_s + latency_s)
    within_most = room * HOUR_S / p90_s
    p50_h = p50_s / HOUR_S
    share = max(trained_share(outlook, spec), _LEAST_SHARE)
    cost, time = (after, p50_h), (p50_s, 0.0)
    a, b, c, d = (after + p50_h * spec.hour_value.micros, p50_h, *time)
    if spec.objective == "fastest":
        a, b, c, d = (*time, *cost)
    elif spec.objective == "cheapest":
        a, b, c, d = (*cost, *time)
    return _Group(
        outlook,
        storage,
        storage.hourly.micros,
        useful_most if outlook.fits and outlook.useful_s <= until_s else -1.0,
        within_most if p90_s <= until_s else -1.0,
        a / share,
        b / share,
        c / share,
        d / share,
        _Fill(outlook, room, until_s, latency_s) if spec.fills else None,
        (outlook.hardware, outlook.machine.local is not None),
        (_TOO_LONG if is_too_long(outlook, spec) else 0)
        + (_UNFINISHED if share < 1.0 else 0)
        + (_UNSURE if outlook.is_unsure else 0),
    )


def _machine(
    offer: Offer, local: LocalMachine | None, measured: Sequence[MeasuredSpeed], nodes: int
) -> Machine:
    gpus = offer.gpus * nodes
    probe = pick_measured(measured, offer.sku, gpus=gpus, provider=offer.provider)
    if offer.provider == LOCAL:
        assert local is not None
        return this_machine(local, offer.gpus, probe)
    is_cluster = is_brokered(offer.provider)
    return rented_machine(offer.sku, offer.gpus, probe, nodes, is_cluster=is_cluster)


def _keep(orders: Sequence[_Order], groups: Mapping[int, _Group]) -> list[_Order]:
    """The best of every hardware first, then second ones, and so on; in rank order."""
    seen: dict[tuple[str, bool], int] = {}
    turns: list[tuple[int, int]] = []
    for place, order in enumerate(orders):
        slot = groups[order[3]].slot
        turn = seen.get(slot, 0)
        if turn < KEPT_CANDIDATES:
            seen[slot] = turn + 1
            turns.append((turn, place))
    turns.sort()
    return [orders[place] for place in sorted(place for _, place in turns[:KEPT_CANDIDATES])]
