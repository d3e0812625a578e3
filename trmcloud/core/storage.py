"""The one rule for disks: how large they are, and their price by provider and state. Pure.

A pod has a system disk and a work disk (checkpoints and data). With a network volume the work disk
is that volume, which outlives the pod. What is planned, reserved, asked for and billed is sized and
priced here.
"""

from __future__ import annotations

from math import ceil

from trmcloud.core.catalog.providers import TRAITS, UNKNOWN_STORAGE, StoragePrices
from trmcloud.core.money import Usd

HOURS_PER_MONTH = 730
"""365 × 24 ÷ 12: RunPod does not say how it divides a month."""
LEAST_WORK_GB = 30
"""Of a work disk or volume, before what is kept and the data made there."""


def prices_of(provider: str) -> StoragePrices:
    traits = TRAITS.get(provider)
    return traits.storage if traits is not None else UNKNOWN_STORAGE


def work_gb(stored_bytes: float, data_bytes: float) -> int:
    """GB of a work disk. ``stored_bytes``: the checkpoints kept and the one being written, of every
    phase (twice that is asked for); ``data_bytes``: data made or sent there."""
    return LEAST_WORK_GB + ceil(2 * stored_bytes / 1e9) + ceil(data_bytes / 1e9)


def asked_work_gb(provider: str, wanted_gb: int) -> int:
    """GB of the work disk that is asked for: no less than can be rented there."""
    return max(prices_of(provider).least_work_gb, wanted_gb)


def pod_disks_gb(provider: str, wanted_gb: int, *, on_volume: bool = False) -> int:
    """GB of one machine's own disks: system and work disk, or the system disk alone where the work
    disk is a network volume."""
    work = 0 if on_volume else asked_work_gb(provider, wanted_gb)
    return prices_of(provider).system_gb + work


def running_rate(provider: str, gb: int) -> Usd:
    """USD per hour of ``gb`` of a running pod's own disks."""
    return _hourly(prices_of(provider).running * max(0, gb))


def stopped_rate(provider: str, gb: int) -> Usd:
    """USD per hour of a stopped pod's work disk of ``gb``."""
    return _hourly(prices_of(provider).stopped * max(0, gb))


def volume_rate(provider: str, gb: int) -> Usd:
    """USD per hour of a network volume of ``gb``, used or not, until it is deleted."""
    return _hourly(_volume_month(provider, gb))


def volume_per_month(provider: str, gb: int) -> Usd:
    """USD per month of a network volume of ``gb``."""
    return Usd.from_micros(_volume_month(provider, gb))


def _volume_month(provider: str, gb: int) -> int:
    prices, first = prices_of(provider), min(max(0, gb), 1000)
    return prices.volume * first + prices.volume_beyond * max(0, gb - 1000)


def _hourly(micros_per_month: int) -> Usd:
    return Usd.from_micros(-(-micros_per_month // HOURS_PER_MONTH))
