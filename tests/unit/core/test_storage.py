"""One rule for disks: sizes, and prices by provider and state."""

from __future__ import annotations

import pytest

from trmcloud.core.money import Usd
from trmcloud.core.storage import (
    pod_disks_gb,
    running_rate,
    stopped_rate,
    volume_per_month,
    volume_rate,
    work_gb,
)


def test_runpods_list_prices() -> None:
    assert volume_per_month("runpod", 1000) == Usd(70)
    assert volume_per_month("runpod", 2000) == Usd(120)
    assert volume_rate("runpod", 730) == Usd("0.07")
    assert running_rate("runpod", 73) == Usd("0.01")
    assert stopped_rate("runpod", 73) == Usd("0.02"), "a stopped pod's disk costs double"
    assert running_rate("runpod", 0) == volume_rate("runpod", -1) == Usd(0)


def test_this_machines_own_disk_costs_nothing() -> None:
    assert running_rate("local", 10_000) == Usd(0)


@pytest.mark.parametrize(
    ("stored", "data", "gb"), [(0, 0, 30), (1, 1, 32), (5e9, 2.5e9, 43), (420e9, 0, 870)]
)
def test_a_work_disk_holds_twice_what_is_stored_and_the_data(
    stored: float, data: float, gb: int
) -> None:
    assert work_gb(stored, data) == gb


def test_a_pod_has_a_system_disk_too() -> None:
    assert pod_disks_gb("runpod", 1) == 20 + 10, "no smaller mount can be rented"
    assert pod_disks_gb("runpod", 500) == 520
    assert pod_disks_gb("runpod", 500, on_volume=True) == 20
    assert pod_disks_gb("aws", 50) == 120
