"""RunPod's catalogue as offers: list prices, and what is free where. Standard library only, since
``trmcloud prices refresh`` reads prices where nothing of RunPod's is installed."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any, Callable, Iterable, Mapping, NamedTuple, TypeGuard

from trmcloud.adapters.prices.downloads import failure_text
from trmcloud.adapters.prices.tables import row_of
from trmcloud.core.catalog.offers import COMMUNITY, Offer
from trmcloud.core.clock import utc_day
from trmcloud.core.errors import ProviderError, UsageError
from trmcloud.core.money import Usd
from trmcloud.io.network import send
from trmcloud.providers.runpod import secrets
from trmcloud.providers.seller import read_live

TIMEOUT_S = 20.0
MAX_BYTES = 32 << 20
COUNTS = (1, 2, 4, 8)
SOURCE = "runpod-v2-catalog"
PUBLIC_SOURCE = "runpod-graphql"
PUBLIC_QUERY = (
    "query { gpuTypes { id secureCloud communityCloud securePrice communityPrice"
    " maxGpuCountSecureCloud maxGpuCountCommunityCloud } }"
)
"""GraphQL asks for no key here; it is announced to end early in 2027."""
ANYWHERE = "any"

#: RunPod's id of each GPU. "NVIDIA H100 80GB HBM3" is the SXM part.
RUNPOD_IDS: Mapping[str, str] = {
    "NVIDIA B200": "B200",
    "NVIDIA H200": "H200",
    "NVIDIA H100 80GB HBM3": "H100-SXM",
    "NVIDIA H100 PCIe": "H100-PCIe",
    "NVIDIA H100 NVL": "H100-NVL",
    "NVIDIA A100-SXM4-80GB": "A100-80GB-SXM",
    "NVIDIA A100 80GB PCIe": "A100-80GB-PCIe",
    "NVIDIA L40S": "L40S",
    "NVIDIA L4": "L4",
    "NVIDIA GeForce RTX 4090": "RTX4090",
    "NVIDIA GeForce RTX 3090": "RTX3090",
    "NVIDIA B300 SXM6 AC": "B300",
    "NVIDIA GeForce RTX 5090": "RTX5090",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTX-PRO-6000",
    "AMD Instinct MI300X OAM": "MI300X",
}

Ask = Callable[[Mapping[str, str]], Any]
"""``GET /v2/catalog/gpus`` with these parameters: its JSON."""


class ListedOffer(NamedTuple):
    """One GPU type in one cloud at one count. ``stock`` is none, low, medium, high or unknown, and
    ``data_centres`` names where there is any, with how much."""

    sku: str
    gpus: int
    community: bool
    rate: Usd
    stock: str
    data_centres: Mapping[str, str]


def read_catalogue(
    ask: Ask, counts: Iterable[int] = (), *, community: bool = False
) -> list[ListedOffer]:
    """Return RunPod's offers, at its list prices.

    Without ``counts`` one question is asked: every count that a machine can have, stock as of one
    GPU, both clouds. With them, stock is asked for each count, in one cloud.

    Raises:
        ProviderError: the answer is not what the contract says.
    """
    wanted = tuple(counts)
    question = {"include": "AVAILABILITY", "product": "POD"}
    if not wanted:
        return [row for gpu in _gpus(ask(question)) for row in _rows(gpu, COUNTS, None)]
    found = []
    for count in wanted:
        asked = {**question, "count": str(count), "cloud": "COMMUNITY" if community else "SECURE"}
        found += [row for gpu in _gpus(ask(asked)) for row in _rows(gpu, (count,), community)]
    return found


def live_offers(ask: Ask, now: float, counts: Iterable[int], *, community: bool = False) -> list[
    Offer
]:  # fmt: skip
    """Offers that can be had at ``now`` (epoch s), one for each data centre that has some free."""
    return [
        _offer(row, now, region, level)
        for row in read_catalogue(ask, counts, community=community)
        for region, level in row.data_centres.items()
    ]


def live_prices(environ: Mapping[str, str], now: float) -> tuple[list[Offer], str]:
    """(what RunPod lists at ``now`` (epoch s), for any region; why it could not be read within a
    few seconds, empty where it was). Without a key no request is sent."""
    key = secrets.account_key(environ)
    if key is None:
        return [], ""
    try:
        base = secrets.api_base(environ)
    except UsageError as error:
        return [], error.what
    fixed = {secrets.ENV_API: base, secrets.ENV_KEY: key}

    def read(within_s: float) -> list[Offer]:
        listed = read_catalogue(lambda params: _fetch(fixed, params, within_s))
        return [_offer(row, now, ANYWHERE, row.stock) for row in listed]

    return read_live(read)


def price_rows(environ: Mapping[str, str], now: float) -> tuple[list[dict[str, str]], list[str]]:
    """(rows of ``prices.COLUMNS``, notes): RunPod's price list, by REST v2 where there is a key, by
    GraphQL, which asks for none, where there is not. What cannot be read is a note."""
    key = secrets.account_key(environ)
    try:
        if key is None:
            source, listed = PUBLIC_SOURCE, _public_list(environ)
        else:
            source = SOURCE
            listed = read_catalogue(lambda params: _fetch(environ, params))
    except UsageError as error:
        return [], [f"runpod: {error.what}: not read"]
    except urllib.error.HTTPError as error:
        return [], [f"runpod: {_refused(error.code, key is not None)}"]
    except (OSError, ValueError, HTTPException, ProviderError, RecursionError) as error:
        return [], [f"runpod: not read: {failure_text(error)}"]
    rows = [row_of(_offer(each, now, ANYWHERE, each.stock, source)) for each in listed]
    by = "v2" if key is not None else "GraphQL, without a key"
    as_of = utc_day(now)
    return rows, [f"runpod: {len(rows)} offers of {as_of} ({by})"]


def _refused(code: int, has_key: bool) -> str:
    if code in (401, 403):
        what = f"check {secrets.ENV_KEY}" if has_key else f"set {secrets.ENV_KEY}"
        return f"not read: HTTP {code}; {what}"
    if code in (410, 429):
        what = "gone" if code == 410 else "too many requests"
        hint = "" if has_key else f"; with {secrets.ENV_KEY} REST v2 is read instead"
        return f"unavailable: {what} (HTTP {code}){hint}"
    return f"not read: HTTP {code}"


def _public_list(environ: Mapping[str, str]) -> list[ListedOffer]:
    """
    Raises:
        ProviderError: the answer is none of GraphQL's.
    """
    body = json.dumps({"query": PUBLIC_QUERY}).encode("ascii")
    data = _ask(secrets.graphql_url(environ), TIMEOUT_S, body=body)
    inner = data.get("data") if isinstance(data, dict) else None
    types = inner.get("gpuTypes") if isinstance(inner, dict) else None
    if not isinstance(types, list):
        raise ProviderError("GraphQL answers without gpuTypes")
    gpus = [
        {
            "id": gpu.get("id"),
            "secure": gpu.get("secureCloud"),
            "community": gpu.get("communityCloud"),
            "price": {"secure": gpu.get("securePrice"), "community": gpu.get("communityPrice")},
            "maxCount": {
                "secure": gpu.get("maxGpuCountSecureCloud"),
                "community": gpu.get("maxGpuCountCommunityCloud"),
            },
        }
        for gpu in types
        if isinstance(gpu, dict)
    ]
    return [row for gpu in _gpus({"gpus": gpus}) for row in _rows(gpu, COUNTS, None)]


def _offer(row: ListedOffer, now: float, region: str, stock: str, source: str = SOURCE) -> Offer:
    tier = COMMUNITY if row.community else "secure"
    return Offer(
        sku=row.sku,
        gpus=row.gpus,
        provider="runpod",
        region=region,
        instance=f"{row.gpus}x_{row.sku}_{tier.upper()}",
        rate=row.rate,
        spot=False,
        priced_at=now,
        source=source,
        tier=tier,
        stock=stock,
    )


def _gpus(data: Any) -> list[Mapping[str, Any]]:
    gpus = data.get("gpus") if isinstance(data, dict) else None
    if not isinstance(gpus, list):
        raise ProviderError("RunPod's catalogue does not match its API contract")
    return [gpu for gpu in gpus if isinstance(gpu, dict) and str(gpu.get("id")) in RUNPOD_IDS]


def _rows(
    gpu: Mapping[str, Any], counts: tuple[int, ...], community: bool | None
) -> Iterable[ListedOffer]:
    """``community`` None: both clouds."""
    stock = gpu.get("availability")
    level = stock.lower() if isinstance(stock, str) else "unknown"
    places = gpu.get("dataCenters")
    data_centres = {
        place["id"]: place["availability"].lower()
        for place in (places if isinstance(places, list) else ())
        if isinstance(place, dict)
        and isinstance(place.get("id"), str)
        and isinstance(place.get("availability"), str)
        and place["availability"] != "NONE"
    }
    for tier in ("secure", "community"):
        if community is not None and community != (tier == "community"):
            continue
        price = _table(gpu, "price").get(tier)
        most = _table(gpu, "maxCount").get(tier)
        if not gpu.get(tier) or not _is_number(price) or not 0 < price < 1e6:
            continue
        for count in counts:
            if isinstance(most, int) and count <= most:
                # Six digits are what a 32-bit float, as the contract has it, can hold.
                rate = Usd(f"{float(f'{price:.6g}') * count:.6f}")
                yield ListedOffer(
                    RUNPOD_IDS[gpu["id"]], count, tier == "community", rate, level, data_centres
                )


def _table(gpu: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = gpu.get(name)
    return table if isinstance(table, dict) else {}


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _fetch(
    environ: Mapping[str, str], params: Mapping[str, str], timeout_s: float = TIMEOUT_S
) -> Any:
    query = "&".join(f"{name}={value}" for name, value in params.items())
    url = f"{secrets.api_base(environ)}/v2/catalog/gpus?{query}"
    return _ask(url, timeout_s, key=secrets.account_key(environ))


def _ask(url: str, timeout_s: float, *, key: str | None = None, body: bytes | None = None) -> Any:
    headers = {"User-Agent": "trmcloud", "Accept": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    if body is not None:
        headers["Content-Type"] = "application/json"
    request = urllib.request.Request(url, data=body, headers=headers)
    with send(request, timeout_s) as answer:
        return json.loads(answer.read(MAX_BYTES))
