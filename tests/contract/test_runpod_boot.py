"""The real entry command, as RunPod's adapter asks for it, in the stand-in's isolated pods."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.standins.runpod.client import Client, eventually
from tests.standins.runpod.fixture import judged
from tests.standins.runpod.machines import no_namespaces
from tests.standins.runpod.standin import StandIn
from tests.standins.sshd import find_sshd
from tests.unit.pod.leases import a_lease, job_of
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.money import Usd
from trmcloud.ports.compute import PodKeys, PodRequest
from trmcloud.providers.runpod.account import RunPodGraphql
from trmcloud.providers.runpod.api import RunPodApi
from trmcloud.providers.runpod.compute import RunPodCompute
from trmcloud.providers.runpod.create import boot_payload
from trmcloud.providers.runpod.http import Http

WHY_NOT = no_namespaces()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=f"pods: {WHY_NOT}")
needs_sshd = pytest.mark.skipif(find_sshd() is None, reason="no openssh-server")
ROOT = Path(contract.POD_ROOT)


@pytest.fixture
def standin(tmp_path: Path) -> Iterator[StandIn]:
    with judged(tmp_path / "runpod") as one:
        one.control.set(restart_after_s=0.05)
        yield one


@pytest.fixture
def keys(tmp_path: Path) -> PodKeys:
    for name in ("host", "user"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(words, check=True)
    host, user = tmp_path / "host", tmp_path / "user"
    return PodKeys(
        host.read_text(),
        host.with_suffix(".pub").read_text().strip(),
        user.with_suffix(".pub").read_text().strip(),
    )


def rent(
    standin: StandIn,
    keys: PodKeys,
    *,
    hard_stop_s: float = 600.0,
    damage: bool = False,
    volume: str = "",
) -> str:
    """Rent a pod as the adapter does; returns its name."""
    http = Http(standin.api_key)
    compute = RunPodCompute(
        RunPodApi(http, standin.url),
        RunPodGraphql(http, f"{standin.url}/graphql"),
        lambda name: keys,
        boot_payload,
        environment={contract.ENV_LINGER_S: "0"},
        image="an/image:with-this-machines-torch",  # RunPod's own stands for another
    )
    lease = a_lease(time.time(), hard_stop_s)
    request = PodRequest(
        name=lease.pod_name,
        sku="L4",
        gpus=1,
        rate=Usd("0.43"),
        lease=replace(lease, pod_name="trmc-0badcafe-r9-g1-1700000000") if damage else lease,
        jobs=(job_of(lease, ROOT),),
        region="US-KS-2" if volume else "",
        volume=volume,
        check={"gpu": "NVIDIA L4", "count": 1, "volume": True},
    )
    compute.create(request)
    return request.name


def a_volume(standin: StandIn) -> str:
    wish = {"name": "v", "size": 10, "dataCenter": "US-KS-2"}
    made: str = Client(standin)("POST", "/v2/network-volumes", wish).data["id"]
    return made


def record_of(folder: Path) -> dict[str, Any]:
    """What the one pod wrote of its own end, on the volume that outlives it."""
    paths = [path for path in folder.rglob("termination.json") if contract.PODS_DIR in path.parts]
    found: dict[str, Any] = json.loads(paths[0].read_text()) if paths else {"attempts": []}
    return found


@needs_sshd
def test_a_rented_pod_is_reached_with_its_pinned_key_and_checks_itself(
    standin: StandIn, keys: PodKeys, tmp_path: Path
) -> None:
    name = rent(standin, keys)
    ask = Client(standin)
    pod_id = eventually(lambda: standin.control.pod(name).id)
    direct = eventually(lambda: ask.pod(pod_id)["ssh"]["direct"])
    known = tmp_path / "known_hosts"
    known.write_text(f"[{direct['host']}]:{direct['port']} {keys.host_public}\n")
    command = [
        *("ssh", "-F", "none", "-i", str(tmp_path / "user"), "-o", "BatchMode=yes"),
        *("-o", "StrictHostKeyChecking=yes", "-o", f"UserKnownHostsFile={known}"),
        *("-p", str(direct["port"]), f"root@{direct['host']}"),
    ]

    def over_ssh(words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, words], input=given, capture_output=True, text=True, timeout=60
        )

    eventually(lambda: over_ssh("true").returncode == 0)
    pod_dir = f"{ROOT}/{contract.PODS_DIR}/{name}"
    there = eventually(lambda: over_ssh(f"cat {pod_dir}/{contract.LEASE_NAME}").stdout)
    lease = contract.load_lease(there)
    assert lease.pod_name == name
    assert "TRMCLOUD" not in over_ssh("env").stdout
    script = (
        "import time\n"
        "from pathlib import Path\n"
        "from trmcloud.pod.machine.prepare import Preparation\n"
        "empty = Path('/tmp/none.txt'); empty.write_text('# none')\n"
        f"made = Preparation(Path({str(ROOT)!r}), {name!r}, wanted=empty)\n"
        "while (now := made.poll(time.monotonic())).state == 'checking': time.sleep(0.1)\n"
        "print(now.state, now.message)\n"
    )
    ran = over_ssh("PYTHONPATH=/opt/trmcloud python3 -", script)
    assert ran.stdout.strip() == "waiting code and data to be sent", ran.stderr
    assert len(standin.control.live()) == 1


@pytest.mark.parametrize(
    ("knobs", "way"),
    [
        ({}, "v2 action terminate"),
        ({"self_action": False}, "v2 delete"),
        ({"self_action": False, "self_delete": False}, "graphql podTerminate"),
    ],
)
def test_the_way_that_worked_is_the_last_one_written_down(
    standin: StandIn, keys: PodKeys, knobs: dict[str, Any], way: str, tmp_path: Path
) -> None:
    standin.control.set(**knobs)
    name = rent(standin, keys, damage=True, volume=a_volume(standin))
    eventually(lambda: not standin.control.live(), within_s=40.0)
    assert standin.control.pod(name).ended_by == "self"
    record = record_of(tmp_path)
    assert record["why"].startswith("what it was started with is damaged")
    assert record["attempts"][-1]["way"] == way
    assert record["attempts"][-1]["ok"] in (None, True)
    assert not any(attempt["ok"] for attempt in record["attempts"][:-1])


def test_a_restart_loop_does_not_outlive_the_hard_stop(standin: StandIn, keys: PodKeys) -> None:
    """The container is started again and again; the deadline stays where it was."""
    standin.control.set(restart_loop=True, restart_loop_s=4.0)
    began = time.monotonic()
    rent(standin, keys, hard_stop_s=9.0)
    eventually(lambda: standin.control.live(), within_s=10.0)
    eventually(lambda: not standin.control.live(), within_s=60.0)
    assert time.monotonic() - began < 40.0


def test_a_pod_that_may_not_end_itself_stays_and_goes_on_trying(
    standin: StandIn, keys: PodKeys, tmp_path: Path
) -> None:
    standin.control.set(self_graphql=False, self_action=False, self_delete=False)
    name = rent(standin, keys, damage=True, volume=a_volume(standin))

    eventually(lambda: len(record_of(tmp_path)["attempts"]) > 5, within_s=60.0)
    (pod,) = standin.control.live()
    assert pod.name == name
    assert all(not attempt["ok"] for attempt in record_of(tmp_path)["attempts"])
