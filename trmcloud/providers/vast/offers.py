"""vast.ai's market as offers: what is asked for, what a row says, and its price. Standard library
only, since prices are read where nothing else is installed.

One GPU name is one board there: "H100 SXM", "H100 PCIE" and "H100 NVL" are three. A row whose
memory or power limit does not go with its name is left out.

A price has three parts. ``dph_base`` is USD an hour for the GPUs, and the offer's rate. The disk
(``storage_cost``, USD per GB and month) and traffic (``inet_up_cost``, ``inet_down_cost``, USD per
GB) are counted by ``core.storage`` at the most that we accept; hosts that ask more are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from trmcloud.adapters.prices.tables import row_of
from trmcloud.core.catalog.hardware import GPUS
from trmcloud.core.catalog.offers import ANYWHERE, COMMUNITY, Offer
from trmcloud.core.clock import utc_day
from trmcloud.core.errors import TrmcloudError
from trmcloud.core.money import Usd
from trmcloud.core.storage import LEAST_WORK_GB, pod_disks_gb
from trmcloud.ports.compute import MIN_CUDA
from trmcloud.providers.seller import read_live
from trmcloud.providers.vast import secrets
from trmcloud.providers.vast.api import VastApi, country_of, number, text_of, usd
from trmcloud.providers.vast.traits import NAME, STORAGE

SOURCE = "vast-search"
COUNTS = (1, 2, 4, 8)
RELIABILITY = 0.98
"""Of a host, by vast.ai's own score of 0 to 1."""
LIMIT = 1000
LEAST_DOWN_MBPS = 200
"""Megabits a second: an image of 16 GB takes eleven minutes at that."""
_MICROS = 1e6

#: vast.ai's name → SKU. An A100 says by its memory which one it is.
NAMES: Mapping[str, str] = {
    "B200": "B200",
    "H200": "H200",
    "H100 SXM": "H100-SXM",
    "H100 PCIE": "H100-PCIe",
    "H100 NVL": "H100-NVL",
    "A100 SXM4": "A100-80GB-SXM",
    "A100 PCIE": "A100-80GB-PCIe",
    "L40S": "L40S",
    "L40": "L40",
    "L4": "L4",
    "RTX 4090": "RTX4090",
    "RTX 3090": "RTX3090",
}
_OF_SKU: Mapping[str, str] = {sku: name for name, sku in NAMES.items()}
_A100_40GB = {"A100 SXM4": "A100-40GB"}


class VastOffer(NamedTuple):
    """One offer of the market. ``rate`` is USD/h of its GPUs; ``disk_cost`` USD per GB and month;
    ``traffic_cost`` USD per GB, the dearer way."""

    id: int
    sku: str
    gpus: int
    rate: Usd
    disk_cost: float
    traffic_cost: float
    country: str
    reliability: float
    cuda: float
    driver: str
    disk_gb: float
    lasts_until: float
    host: int
    vcpus: int = 0
    ram_gb: float = 0.0


def query(
    *,
    names: Sequence[str] = tuple(NAMES),
    counts: Sequence[int] = COUNTS,
    disk_gb: int,
    min_cuda: str = MIN_CUDA,
    datacenter: bool = True,
    country: str = "",
    lasts_s: float = 0.0,
    limit: int = LIMIT,
) -> dict[str, Any]:
    """The body of a search, as vast.ai's own client writes it. ``datacenter``: without hosts of
    private persons. ``lasts_s``: the least time for which the offer must stand."""
    asked: dict[str, Any] = {
        "verified": {"eq": True},
        "external": {"eq": False},
        "rentable": {"eq": True},
        "rented": {"eq": False},
        "gpu_name": {"in": list(names)},
        "num_gpus": {"in": list(counts)},
        "reliability": {"gte": RELIABILITY},
        "cuda_max_good": {"gte": float(min_cuda)},
        "disk_space": {"gte": disk_gb},
        "direct_port_count": {"gte": 1},
        "inet_down": {"gte": LEAST_DOWN_MBPS},
        "storage_cost": {"lte": STORAGE.running / _MICROS},
        "inet_up_cost": {"lte": STORAGE.traffic / _MICROS},
        "inet_down_cost": {"lte": STORAGE.traffic / _MICROS},
    }
    if datacenter:
        asked["datacenter"] = {"eq": True}
    if country:
        asked["geolocation"] = {"in": [country]}
    if lasts_s > 0:
        asked["duration"] = {"gte": round(lasts_s)}
    asked |= {
        "order": [["dph_total", "asc"]],
        "type": "on-demand",
        "limit": limit,
        "allocated_storage": disk_gb,
    }
    return asked


def asks_of(rows: Iterable[Mapping[str, Any]], *, min_cuda: str = MIN_CUDA) -> list[VastOffer]:
    """The offers among ``rows`` that can be planned with, the cheapest first. The server has
    filtered them; what it sent anyway is filtered again."""
    found = [ask for row in rows if (ask := _ask(row)) is not None]
    fitting = [
        ask
        for ask in found
        if ask.reliability >= RELIABILITY
        and ask.cuda >= float(min_cuda)
        and ask.disk_cost <= STORAGE.running / _MICROS
        and ask.traffic_cost <= STORAGE.traffic / _MICROS
    ]
    return sorted(fitting, key=lambda ask: (ask.rate.micros, ask.id))


def name_of(sku: str) -> str | None:
    """vast.ai's name of a GPU; None where it has none."""
    return _OF_SKU.get(sku) or next((n for n, known in _A100_40GB.items() if known == sku), None)


def offers_of(
    asks: Iterable[VastOffer], now: float, *, community: bool, counts: Iterable[int] = COUNTS
) -> list[Offer]:
    """One offer for each GPU, count and country, at the price of the cheapest host there."""
    wanted, best = set(counts), dict[tuple[str, int, str], tuple[VastOffer, int]]()
    for ask in asks:
        if ask.gpus not in wanted:
            continue
        key = (ask.sku, ask.gpus, ask.country)
        known, hosts = best.get(key, (ask, 0))
        best[key] = (known if known.rate.micros <= ask.rate.micros else ask, hosts + 1)
    return [_offer(ask, hosts, now, community) for ask, hosts in best.values()]


def market(api: VastApi, now: float, *, community: bool, counts: Sequence[int] = COUNTS,
           bound_s: float | None = None) -> list[Offer]:  # fmt: skip
    """Return the offers of ``now`` (epoch s): data centres' hosts, with ``community`` those of
    private persons instead.

    Raises:
        AuthError, ProviderError
    """
    disk_gb = pod_disks_gb(NAME, LEAST_WORK_GB)
    asked = query(counts=counts, disk_gb=disk_gb, datacenter=not community)
    return offers_of(asks_of(api.search(asked, bound_s)), now, community=community, counts=counts)


def live_prices(environ: Mapping[str, str], now: float) -> tuple[list[Offer], str]:
    """(what is on the market at ``now`` (epoch s); why it could not be read within a few seconds).
    Without a key no request is sent."""
    key = secrets.account_key(environ)
    if key is None:
        return [], ""
    empty = f"no fitting host has a driver for CUDA {MIN_CUDA}"
    return read_live(lambda within_s: _both(environ, key, now, within_s), empty)


def price_rows(environ: Mapping[str, str], now: float) -> tuple[list[dict[str, str]], list[str]]:
    """(rows of ``prices.COLUMNS``, notes): the market of today. What cannot be read is a note."""
    key = secrets.account_key(environ)
    if key is None:
        return [], [f"{NAME}: not read: set {secrets.ENV_KEY}"]
    try:
        offers = _both(environ, key, now, None)
    except TrmcloudError as error:
        return [], [f"{NAME}: not read: {error.what}"]
    as_of = utc_day(now)
    return [row_of(offer) for offer in offers], [f"{NAME}: {len(offers)} offers of {as_of}"]


def _both(environ: Mapping[str, str], key: str, now: float, bound_s: float | None) -> list[Offer]:
    api = VastApi(key, secrets.api_base(environ))
    sold = market(api, now, community=False, bound_s=bound_s)
    return [*sold, *market(api, now, community=True, bound_s=bound_s)]


def _offer(ask: VastOffer, hosts: int, now: float, community: bool) -> Offer:
    facts = (f"{hosts} hosts", f"reliability {ask.reliability:.3f}", f"driver {ask.driver or '?'}")
    return Offer(
        sku=ask.sku,
        gpus=ask.gpus,
        provider=NAME,
        region=ask.country or ANYWHERE,
        instance=f"{ask.gpus}x_{ask.sku}_{'HOST' if community else 'DC'}",
        rate=ask.rate,
        spot=False,
        priced_at=now,
        source=SOURCE,
        vcpus=ask.vcpus,
        ram_gb=ask.ram_gb,
        tier=COMMUNITY if community else "data centre",
        note="; ".join(facts),
    )


def _ask(row: Mapping[str, Any]) -> VastOffer | None:
    """None where the row is no offer that can be rented and told apart."""
    sku = _sku(row)
    ask_id, gpus = number(row, "id"), number(row, "num_gpus")
    rate, whole_rate = number(row, "dph_base"), number(row, "dph_total")
    rate = rate if rate is not None else whole_rate
    if sku is None or ask_id is None or not gpus or rate is None or not 0 < rate < 1e4:
        return None
    if row.get("rentable") is False or row.get("rented") is True or row.get("is_bid") is True:
        return None
    if row.get("verification") not in (None, "verified"):
        return None
    up, down = number(row, "inet_up_cost"), number(row, "inet_down_cost")
    disk = number(row, "storage_cost")
    if up is None or down is None or disk is None:
        return None
    score = number(row, "reliability")
    score = score if score is not None else number(row, "reliability2")
    return VastOffer(
        id=int(ask_id),
        sku=sku,
        gpus=int(gpus),
        rate=usd(rate),
        disk_cost=disk,
        traffic_cost=max(up, down),
        country=country_of(text_of(row, "geolocation")),
        reliability=score or 0.0,
        cuda=number(row, "cuda_max_good") or 0.0,
        driver=text_of(row, "driver_version"),
        disk_gb=number(row, "disk_space") or 0.0,
        lasts_until=number(row, "end_date") or float("inf"),
        host=int(number(row, "machine_id") or 0),
        vcpus=int(number(row, "cpu_cores_effective") or 0),
        ram_gb=round((number(row, "cpu_ram") or 0.0) / 1000, 1),
    )


def _sku(row: Mapping[str, Any]) -> str | None:
    """The SKU of a row; None where name, memory and power limit do not go together."""
    name = text_of(row, "gpu_name")
    sku, memory_mb = NAMES.get(name), number(row, "gpu_ram")
    if sku is None or memory_mb is None:
        return None
    if name in ("A100 SXM4", "A100 PCIE") and memory_mb < 60_000:
        sku = _A100_40GB.get(name, "")
    gpu = GPUS.get(sku)
    if gpu is None or not 0.9 <= memory_mb / (gpu.memory_gb * 1000) <= 1.1:
        return None
    watts = number(row, "gpu_max_power")
    # A PCIe card that is sold as an SXM board shows itself by its power limit.
    if watts and not 0.55 <= watts / gpu.tdp_w <= 1.5:
        return None
    return sku
