"""What to say where nobody offers what was asked for: the nearest that is offered."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trmcloud.core.catalog.hardware import HardwareRequest, hardware_name
from trmcloud.core.catalog.offers import ANYWHERE, Offer
from trmcloud.core.catalog.providers import TRAITS, max_nodes
from trmcloud.core.planner.candidates import is_reachable
from trmcloud.core.spec.spec import RunSpec

_Test = Callable[[Offer], bool]


def nearest_offer(
    spec: RunSpec, request: HardwareRequest | None, offers: Sequence[Offer], now: float
) -> tuple[str, str]:
    """(what nobody offers, and what is offered instead; what to type for it).

    Each limit is dropped in turn, the one that changes least first: private sellers, spot, region,
    provider, and last the number of GPUs.
    """
    nodes = request.nodes if request is not None else 1
    what = _nobody(spec, request)
    if nodes > 1:
        able = [name for name in sorted(TRAITS) if max_nodes(name) >= nodes and is_reachable(name)]
        if spec.providers and not set(spec.providers) & set(able):
            return what, f"machines that train together come from: {', '.join(able)}"
    known = sorted({offer.provider for offer in offers})
    unknown = [name for name in spec.providers if name not in known]
    if unknown and len(unknown) == len(spec.providers):
        return what, f"providers: {', '.join(known)}"
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
    return f"nobody in the price table offers {what}"


def _distance(
    offer: Offer, spec: RunSpec, request: HardwareRequest | None, now: float
) -> tuple[bool, bool, int, int]:
    """Who cannot be rented from and old quotes last; then the nearest count, then the price."""
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
