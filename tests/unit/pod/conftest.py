"""A lease, a pod's folder to put it in, and a container that is started with it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.pod.container import KEY, ROOT, RUNPOD_POD, Container, given_environment, stage
from tests.unit.pod.leases import a_lease, job_of
from tests.unit.pod.machine import Machine, Reach
from tests.unit.pod.provider import Provider
from tests.waiting import until
from trmcloud.core.contract import pod_contract as contract
from trmcloud.pod.machine.prepare import Preparation, PreparingProgress


@pytest.fixture
def lease() -> contract.Lease:
    return a_lease(time.time())


@pytest.fixture
def pod_dir(tmp_path: Path, lease: contract.Lease) -> Path:
    folder = tmp_path / contract.PODS_DIR / lease.pod_name
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def provider() -> Iterator[Provider]:
    made = Provider()
    yield made
    made.close()


@pytest.fixture
def boot(tmp_path: Path, provider: Provider) -> Iterator[Callable[..., Container]]:
    """Start a container whose pod trains, with the variables that are asked for ('-': without)."""
    made: list[Container] = []

    def start(lease: contract.Lease, steps: int = 100_000, **changes: str) -> Container:
        root = tmp_path / "workspace"
        root.mkdir(exist_ok=True)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PYTHONPATH": str(ROOT),
            "RUNPOD_POD_ID": RUNPOD_POD,
            "RUNPOD_API_KEY": KEY,
            "RUNPOD_API_BASE_URL": provider.url,
            "TRMCLOUD_RUNPOD_API": provider.url,
            **given_environment(lease, root, [job_of(lease, root, steps)]),
            **changes,
        }
        stage(root, lease.pod_name)
        made.append(Container(tmp_path, {k: v for k, v in environment.items() if v != "-"}))
        return made[-1]

    yield start
    for container in made:
        container.stop()
        print(container.log.read_text())  # pytest shows it where the test failed


@pytest.fixture
def machine(tmp_path: Path, pod_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    folder = tmp_path / "machine"
    folder.mkdir()
    return Machine(folder, pod_dir, monkeypatch)


@pytest.fixture
def reach(machine: Machine) -> Iterator[Reach]:
    """Poll, half a second of the machine's clock at a time, until a state is reached."""

    def poll(preparation: Preparation, state: str) -> PreparingProgress:
        progress = preparation.poll(machine.now)

        def there() -> bool:
            nonlocal progress
            machine.now += 0.5
            progress = preparation.poll(machine.now)
            return progress.state == state

        if progress.state != state:
            until(there, what=state)
        return progress

    yield poll
    for preparation in machine.made:
        preparation.stop()
