"""A lease, and a pod's folder to put it in."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.pod.provider import Provider
from trmcloud.core import pod_contract as contract

HARD_STOP_S = 600.0


def pod_name_until(hard_stop_at: float) -> str:
    return str(contract.PodName("0badcafe", "r1", 1, int(hard_stop_at)))


def a_lease(granted_at: float, hard_stop_s: float = HARD_STOP_S, epoch: int = 1) -> contract.Lease:
    hard_stop_at = granted_at + hard_stop_s
    return contract.Lease(
        run_id="r1",
        pod_name=pod_name_until(hard_stop_at),
        epoch=epoch,
        granted_at=granted_at,
        soft_stop_at=hard_stop_at - 0.1 * hard_stop_s,
        hard_stop_at=hard_stop_at,
        landing_s=0.1 * hard_stop_s,
        phases=(contract.PhaseLease("fast", 0.0, 1e6, 1e9),),
        fits_budget=False,
        min_useful_s=0.0,
    )


@pytest.fixture
def lease() -> contract.Lease:
    return a_lease(time.time())


@pytest.fixture
def pod_dir(tmp_path: Path, lease: contract.Lease) -> Path:
    folder = tmp_path / contract.PODS_DIR / lease.pod_name
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def until() -> Callable[..., None]:
    """Poll until something holds; fails with the name of what did not come to hold."""

    def wait(holds: Callable[[], object], what: str = "it", seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
            time.sleep(0.02)

    return wait


@pytest.fixture
def provider() -> Iterator[Provider]:
    made = Provider()
    yield made
    made.close()
