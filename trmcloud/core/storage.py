"""Disks: their sizes, and their price by provider and by what becomes of them. Pure.

A pod has a system disk and a work disk (checkpoints and data). With a network volume the work disk
is that volume, which outlives the pod. Plan, reservation, create request, bill and simulator take
size and price from here, the price of a stopped pod's volume too.
"""

from __future__ import annotations

from math import ceil
from typing import Literal

from trmcloud.core.catalog.providers import TRAITS, UNKNOWN_STORAGE, StoragePrices
from trmcloud.core.money import Usd

DiskUse = Literal["running", "stopped", "kept"]
"""``running``: all disks of a running pod. ``stopped``: the work disk of a stopped pod. ``kept``: a
network volume, used or not, until it is deleted."""
HOURS_PER_MONTH = 730
"""365 × 24 ÷ 12: RunPod does not say how it divides a month."""
LEAST_WORK_GB = 30
"""Of a work disk or volume, before what is kept and the data made there."""
_FIRST_KEPT_GB = 1000


def prices_of(provider: str) -> StoragePrices:
    traits = TRAITS.get(provider)
    return traits.prices.storage if traits is not None else UNKNOWN_STORAGE


def work_gb(stored_bytes: float, data_bytes: float) -> int:
    """Return the GB of a work disk. ``stored_bytes``: the checkpoints kept and the one being
    written, of every phase (twice that is asked for); ``data_bytes``: data made or sent there."""
    return LEAST_WORK_GB + ceil(2 * stored_bytes / 1e9) + ceil(data_bytes / 1e9)


def asked_work_gb(provider: str, wanted_gb: int) -> int:
    """Return the GB of the work disk to ask for: no less than can be rented there."""
    return max(prices_of(provider).least_work_gb, wanted_gb)


def pod_disks_gb(provider: str, wanted_gb: int, *, on_volume: bool = False) -> int:
    """Return the GB of one machine's own disks: system and work disk, or the system disk alone
    where the work disk is a network volume."""
    work = 0 if on_volume else asked_work_gb(provider, wanted_gb)
    return prices_of(provider).system_gb + work


def price_per_month(provider: str, use: DiskUse, gb: int) -> Usd:
    """Return the price of ``gb`` in USD per month."""
    prices, gb = prices_of(provider), max(0, gb)
    if use != "kept":
        return Usd.from_micros(gb * (prices.running if use == "running" else prices.stopped))
    first = min(gb, _FIRST_KEPT_GB)
    return Usd.from_micros(first * prices.kept + (gb - first) * prices.kept_beyond)


def price_per_hour(provider: str, use: DiskUse, gb: int) -> Usd:
    """Return the price of ``gb`` in USD per hour, rounded up."""
    return Usd.from_micros(-(-price_per_month(provider, use, gb).micros // HOURS_PER_MONTH))


def pod_disks_price(provider: str, wanted_gb: int, nodes: int, *, on_volume: bool) -> Usd:
    """Return the price in USD per hour of the own disks of a running pod of ``nodes`` machines."""
    each_gb = pod_disks_gb(provider, wanted_gb, on_volume=on_volume)
    return price_per_hour(provider, "running", nodes * each_gb)


def traffic_price(provider: str, wanted_gb: int, nodes: int) -> Usd:
    """Return the price in USD of what goes to and from a pod of ``nodes`` machines in its life,
    planned as much as its disks hold: image, data, and checkpoints once. Zero where traffic is not
    billed."""
    each_gb = pod_disks_gb(provider, wanted_gb)
    return Usd.from_micros(nodes * each_gb * prices_of(provider).traffic)
