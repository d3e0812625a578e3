"""One rule for disks: sizes, and prices by provider and use."""

from __future__ import annotations

import pytest

from trmcloud.core.money import Usd
from trmcloud.core.storage import (
    pod_disks_gb,
    pod_disks_price,
    price_per_hour,
    price_per_month,
    work_gb,
)


def test_runpods_list_prices() -> None:
    assert price_per_month("runpod", "kept", 1000) == Usd(70)
    assert price_per_month("runpod", "kept", 2000) == Usd(120)
    assert price_per_hour("runpod", "kept", 730) == Usd("0.07")
    assert price_per_hour("runpod", "running", 73) == Usd("0.01")
    assert price_per_hour("runpod", "stopped", 73) == Usd("0.02"), "a stopped volume costs double"
    assert price_per_hour("runpod", "running", 0) == price_per_hour("runpod", "kept", -1) == Usd(0)
    assert price_per_hour("runpod", "running", 1) == Usd("0.000137"), "rounded up"


def test_this_machines_own_disk_costs_nothing() -> None:
    assert pod_disks_price("local", 10_000, 1, on_volume=False) == Usd(0)


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
    two = pod_disks_price("aws", 50, 2, on_volume=False)
    assert two == price_per_hour("aws", "running", 240)
