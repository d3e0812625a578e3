"""Ranking of offers, and the nearest offer where the one asked for does not exist. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    storage_of,
)
from trmcloud.core.planner.command_outlook import CommandProbe, command_outlook
from trmcloud.core.planner.estimates import (
    HOUR_S,
    Estimates,
    outlook_on,
    with_machine,
)
from trmcloud.core.planner.roofline import MeasuredSpeed, pick_measured
from trmcloud.core.planner.rules import Case, broken, case_of, judged
from trmcloud.core.planner.speed import Machine, rented_machine, this_machine
from trmcloud.core.spec.recipe import Recipe
from trmcloud.core.spec.spec import CHEAPEST, DataSource, RunSpec

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


# Ranking.

KEPT_CANDIDATES = 40


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

    Those that keep all of ``rules.RULES`` come before those that a limit ends early, and those
    before the ones that are refused; those that finish the recipe before those whose hours of
    training end earlier, those that fit at some micro-batch before those that may not, and those
    that can be launched on before those that cannot; then the objective decides. It compares equal
    work: a run whose hours end it early counts with the dollars and hours of the whole.
    """
    spec, now = given.spec, given.now
    outlooks = _Outlooks(given)
    orders: list[tuple[tuple[float, ...], int, Case]] = []
    for position in _worth_ranking(offers, now):
        offer = offers[position]
        outlook, storage = outlooks.of(offer)
        rate = offer.planned_rate(now)
        most = offer.most_rate(now)
        row = RankedOffer(offer, rate, most or rate, outlook, storage, is_limited=most is not None)
        case = case_of(row, spec, now)
        orders.append((_order(case), position, case))
    orders.sort(key=lambda each: each[:2])
    return [judged(case) for case in _keep([case for _, _, case in orders])]


def _order(case: Case) -> tuple[float, ...]:
    """Return the sort key of an offer: what it breaks, then the objective's two keys."""
    spec, row = case.spec, case.row
    outlook, refuses = row.outlook, [rule.refuses for rule in broken(case)]
    hourly = row.rate.micros + row.storage.hourly.micros
    place = (
        True in refuses,
        False in refuses,
        spec.hours is not None and case.share < 1.0,
        outlook.is_unsure,
        not can_be_rented(row.offer),
    )
    if spec.fills:
        return (*place, -case.share * outlook.tokens, hourly)
    work = max(case.share, _LEAST_SHARE) if spec.hours is not None else 1.0
    hours = outlook.seconds.p50 / HOUR_S
    dollars = (row.storage.after.micros + hours * hourly) / work
    hours /= work
    if spec.objective == "fastest":
        return (*place, hours, dollars)
    if spec.objective == CHEAPEST:
        return (*place, dollars, hours)
    return (*place, dollars + hours * spec.hour_value.micros, hours)


_LEAST_SHARE = 1e-9
"""Of the recipe, that a run counts as training: dollars and hours of the whole stay finite."""


class _Outlooks:
    """The outlook and the storage of each kind of offer, computed once."""

    def __init__(self, given: PlanningInputs) -> None:
        self._given = given
        self._clusters = frozenset(brokered())
        self._alike: dict[tuple[str, int, bool], Estimates] = {}
        self._of: dict[tuple[object, ...], Estimates] = {}
        self._kinds: dict[_Kind, tuple[Estimates, Storage]] = {}

    def of(self, offer: Offer) -> tuple[Estimates, Storage]:
        kind = (offer.provider, offer.sku, offer.gpus, offer.spot)
        if kind not in self._kinds:
            hardware = (offer.sku, offer.gpus, offer.provider == LOCAL)
            interruptions = interruptions_of(offer.provider) if offer.spot else None
            setup = (hardware, offer.provider in self._clusters, interruptions)
            if setup not in self._of:
                self._of[setup] = self._outlook(offer, hardware, interruptions)
            outlook = self._of[setup]
            self._kinds[kind] = outlook, storage_of(outlook, offer.provider)
        return self._kinds[kind]

    def _outlook(
        self, offer: Offer, hardware: tuple[str, int, bool], interruptions: InterruptionRate | None
    ) -> Estimates:
        spec, recipe, _, local, tokens_available, measured, source, probed = self._given
        machine = _machine(offer, local, measured, spec.nodes)
        alike = self._alike.get(hardware)
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
        self._alike[hardware] = outlook
        return outlook


_Kind = tuple[str, str, int, bool]
"""Provider, SKU, GPUs, and whether it is spot."""


def _worth_ranking(offers: Sequence[Offer], now: float) -> list[int]:
    """The positions of the offers that may be kept: of those that differ in their price alone, as
    many of the cheapest as any hardware can have among ``KEPT_CANDIDATES``."""
    alike: dict[tuple[str, str, int, int], list[tuple[int, int]]] = {}
    found = []
    for position, offer in enumerate(offers):
        if offer.spot or offer.ceiling is not None:
            found.append(position)  # what may be billed is another price
            continue
        margin = age_margin_percent(now - max(offer.priced_at, offer.newer_at))
        kind = (offer.provider, offer.sku, offer.gpus, 0 if offer.own else margin)
        alike.setdefault(kind, []).append((offer.planned_micros(now), position))
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


def _keep(cases: Sequence[Case]) -> list[Case]:
    """The best of every hardware first, then second ones, and so on; in rank order."""
    seen: dict[tuple[str, bool], int] = {}
    turns: list[tuple[int, int]] = []
    for place, case in enumerate(cases):
        outlook = case.row.outlook
        slot = outlook.hardware, outlook.machine.local is not None
        turn = seen.get(slot, 0)
        seen[slot] = turn + 1
        turns.append((turn, place))
    return [cases[place] for place in sorted(place for _, place in sorted(turns)[:KEPT_CANDIDATES])]
