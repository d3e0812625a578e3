"""What pods and volumes cost: by the second for pods, by the hour for network volumes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

HOUR_S = 3600.0
MONTH_H = 730.0
DISK_GB_MONTH = 0.10
STOPPED_DISK_GB_MONTH = 0.20
VOLUME_GB_MONTH = 0.07
VOLUME_BEYOND_GB_MONTH = 0.05
VOLUME_FIRST_GB = 1000
FAST_VOLUME_GB_MONTH = 0.14
BUCKETS = {"hour": HOUR_S, "day": 24 * HOUR_S}


@dataclass
class Stretch:
    """A time with one rate, in USD an hour; open while ``end`` is None."""

    start: float
    compute: float
    disk: float
    end: float | None = None

    def seconds(self, until: float) -> float:
        """Billed seconds by ``until``: whole ones, the last rounded up."""
        end = until if self.end is None else min(self.end, until)
        return float(math.ceil(round(max(0.0, end - self.start), 6)))


@dataclass
class Meter:
    """One pod's bill."""

    stretches: list[Stretch] = field(default_factory=list)

    def run(self, at: float, compute: float, disk: float) -> None:
        self.stop(at)
        self.stretches.append(Stretch(at, compute, disk))

    def stop(self, at: float) -> None:
        if self.stretches and self.stretches[-1].end is None:
            self.stretches[-1].end = max(at, self.stretches[-1].start)

    def rate(self) -> float:
        """USD an hour now."""
        last = self.stretches[-1] if self.stretches else None
        return last.compute + last.disk if last is not None and last.end is None else 0.0

    def amounts(self, until: float) -> tuple[float, float]:
        """(compute, disk) in USD, all that was used by ``until``."""
        compute = disk = 0.0
        for stretch in self.stretches:
            hours = stretch.seconds(until) / HOUR_S
            compute += stretch.compute * hours
            disk += stretch.disk * hours
        return compute, disk


def disk_rate(container_gb: int, persistent_gb: int) -> float:
    """USD an hour of a running pod's disks."""
    return (container_gb + persistent_gb) * DISK_GB_MONTH / MONTH_H


def stopped_rate(persistent_gb: int) -> float:
    return persistent_gb * STOPPED_DISK_GB_MONTH / MONTH_H


def volume_rate(size_gb: int, kind: str) -> float:
    """USD an hour of a network volume."""
    if kind == "HIGH_PERFORMANCE":
        return size_gb * FAST_VOLUME_GB_MONTH / MONTH_H
    first = min(size_gb, VOLUME_FIRST_GB)
    beyond = size_gb - first
    return (first * VOLUME_GB_MONTH + beyond * VOLUME_BEYOND_GB_MONTH) / MONTH_H


def volume_amount(rates: list[tuple[float, float]], end: float | None, until: float) -> float:
    """USD by ``until``: each begun hour at the rate it began with.

    ``rates`` are (from when, USD an hour), the first at the volume's creation.
    """
    start = rates[0][0]
    stop = until if end is None else min(end, until)
    hours = math.ceil(round(max(0.0, stop - start) / HOUR_S, 9))
    total = 0.0
    for hour in range(hours):
        began = start + hour * HOUR_S
        total += [rate for at, rate in rates if at <= began][-1]
    return total


def bucket_start(at: float, size: str) -> float:
    """The beginning of the bucket that ``at`` (epoch s) lies in, in UTC."""
    return at - at % BUCKETS[size]


def buckets(start: float, end: float, size: str) -> Iterator[tuple[float, float]]:
    """The buckets that cover [start, end), widened to whole ones."""
    at = bucket_start(start, size)
    while at < end:
        yield at, at + BUCKETS[size]
        at += BUCKETS[size]
