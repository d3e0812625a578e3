"""A pod of this machine as another process sees it while it is being started."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.control.observation import PodStatus
from trmcloud.pod.agent.watchdog import POD_NAME
from trmcloud.pod.machine import processes
from trmcloud.providers.local.compute import LocalCompute

POD = str(contract.PodName(f"{os.getpid():08x}", "r1", 1, 2_000_000_000))
BEGUN = {"created_at": 1e9, "rate_usd_per_hour": "3.60"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / contract.PODS_DIR / POD
    made.mkdir(parents=True)
    (made / POD_NAME).write_text(json.dumps(BEGUN))
    return made


def test_one_that_is_started_while_it_is_looked_for_has_not_ended(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = os.getpid()
    started = BEGUN | {"pid": here, "started": processes.started(here)}

    def look(pod_name: str) -> list[int]:
        # Its creator comes to the end of its work just after this look at all processes.
        (folder / POD_NAME).write_text(json.dumps(started))
        return []

    monkeypatch.setattr(processes, "of_pod", look)
    compute = LocalCompute(tmp_path, [])
    assert compute.list_pods() == ()
    assert not (folder / contract.ENDED_NAME).exists()
    (pod,) = compute.list_pods()
    assert pod.status is PodStatus.RUNNING


def test_one_whose_first_process_is_gone_has_ended(folder: Path, tmp_path: Path) -> None:
    (folder / POD_NAME).write_text(json.dumps(BEGUN | {"pid": os.getpid(), "started": "1"}))
    (pod,) = LocalCompute(tmp_path, []).list_pods()
    assert pod.status is PodStatus.GONE
    assert (folder / contract.ENDED_NAME).exists()
