"""Hugging Face's hardware list as offers. It is public, and asks for no token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trmcloud.adapters.prices.tables import row_of
from trmcloud.core.catalog.offers import Offer
from trmcloud.core.clock import utc_day
from trmcloud.core.errors import TrmcloudError
from trmcloud.core.money import Usd
from trmcloud.providers.huggingface import secrets
from trmcloud.providers.huggingface.api import Hardware, JobsApi
from trmcloud.providers.huggingface.http import Http
from trmcloud.providers.huggingface.traits import NAME
from trmcloud.providers.seller import read_live

REFRESH_WITHIN_S = 20.0
SOURCE = "huggingface-jobs-hardware"
ANYWHERE = "any"
SKUS: Mapping[str, str] = {
    "A10G": "A10G",
    # 96 vCPU and 1.1 TB beside eight of them: the machine has SXM boards.
    "A100": "A100-80GB-SXM",
    "H200": "H200",
    "L4": "L4",
    "L40S": "L40S",
}
"""Its models of GPUs in our words; others are not planned for."""
_UNITS_PER_HOUR = {"minute": 60, "hour": 1}


def hourly(hardware: Hardware) -> Usd | None:
    """Return its price in USD/h; None where the unit is not known."""
    units = _UNITS_PER_HOUR.get(hardware.unit)
    return Usd.from_micros(hardware.micros * units) if units else None


def flavors_of(sku: str, gpus: int, listed: Sequence[Hardware]) -> list[tuple[Usd, Hardware]]:
    """Flavors of this hardware with their USD/h, the dearest first: it has more CPU and disk."""
    fits = [h for h in listed if SKUS.get(h.model) == sku and h.gpus == gpus]
    priced = [(rate, each) for each in fits if (rate := hourly(each)) is not None]
    return sorted(priced, key=lambda row: (-row[0].micros, row[1].name))


def offers_of(listed: Sequence[Hardware], now: float) -> list[Offer]:
    """Return the offers that can be planned at ``now`` (epoch s)."""
    found = []
    for each in listed:
        sku, rate = SKUS.get(each.model), hourly(each)
        if sku is not None and rate is not None and each.gpus:
            found.append(
                Offer(
                    sku=sku, gpus=each.gpus, provider=NAME, region=ANYWHERE, instance=each.name,
                    rate=rate, spot=False, priced_at=now, source=SOURCE, vcpus=each.vcpus,
                    ram_gb=each.ram_gb, note="a job; stock is not listed",
                )
            )  # fmt: skip
    return found


def live_prices(environ: Mapping[str, str], now: float) -> tuple[list[Offer], str]:
    """(what is listed at ``now`` (epoch s); why it could not be read within a few seconds, empty
    where it was)."""
    return read_live(lambda within_s: _listed(environ, now, within_s))


def price_rows(environ: Mapping[str, str], now: float) -> tuple[list[dict[str, str]], list[str]]:
    """(rows of ``prices.COLUMNS``, notes): the hardware list. What cannot be read is a note."""
    try:
        offers = _listed(environ, now, REFRESH_WITHIN_S)
    except TrmcloudError as error:
        return [], [f"{NAME}: not read: {error.what[:100]}"]
    as_of = utc_day(now)
    return [row_of(offer) for offer in offers], [f"{NAME}: {len(offers)} offers of {as_of}"]


def _listed(environ: Mapping[str, str], now: float, within_s: float) -> list[Offer]:
    api = JobsApi(Http(secrets.endpoint(environ), ""))
    return offers_of(api.hardware(within_s), now)
