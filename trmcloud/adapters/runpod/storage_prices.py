"""What RunPod's storage costs: list prices of its documentation in August 2026."""

from __future__ import annotations

from decimal import Decimal

from trmcloud.core.money import Usd

HOURS_PER_MONTH = 730
"""RunPod does not say how it divides a month; 730 is the customary 365 × 24 ÷ 12."""
_POD_DISK_PER_GB_MONTH = Decimal("0.10")
_VOLUME_PER_GB_MONTH = Decimal("0.07")
_VOLUME_BEYOND_TB_PER_GB_MONTH = Decimal("0.05")
_GB_PER_TB = 1000


def pod_disk_rate(gb: int) -> Usd:
    """USD per hour of a running pod's own disks."""
    return Usd.rounded_up(_POD_DISK_PER_GB_MONTH * max(0, gb) / HOURS_PER_MONTH)


def volume_rate(gb: int) -> Usd:
    """USD per hour of a network volume, used or not; billed by the hour until it is deleted."""
    return Usd.rounded_up(_volume_month(gb) / HOURS_PER_MONTH)


def volume_per_month(gb: int) -> Usd:
    return Usd.rounded_up(_volume_month(gb))


def _volume_month(gb: int) -> Decimal:
    first = min(max(0, gb), _GB_PER_TB)
    beyond = max(0, gb - _GB_PER_TB)
    return _VOLUME_PER_GB_MONTH * first + _VOLUME_BEYOND_TB_PER_GB_MONTH * beyond
