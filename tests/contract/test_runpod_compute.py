"""RunPod's adapter against the stand-in, on a clock that the test moves."""

from __future__ import annotations

import base64
import json
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.standins.runpod import oracle
from tests.standins.runpod.standin import GivenClock, StandIn
from trmcloud.adapters.runpod.api import RunPodApi
from trmcloud.adapters.runpod.bundle import boot_payload
from trmcloud.adapters.runpod.compute import RunPodCompute
from trmcloud.adapters.runpod.graphql import RunPodGraphql
from trmcloud.adapters.runpod.http import Http
from trmcloud.adapters.sightings import Sightings
from trmcloud.core import pod_contract as contract
from trmcloud.core.errors import (
    AccessDenied,
    AmbiguousCreate,
    AuthError,
    NoCapacity,
    NotSupported,
    PaymentRequired,
    ProviderError,
    ProviderRefused,
)
from trmcloud.core.money import Usd
from trmcloud.ports.compute import PodKeys, PodRequest

Clocked = tuple[StandIn, GivenClock]
PAYLOAD = boot_payload()
A100, L4 = "A100-80GB-SXM", "L4"
DISK_USD_H = 70 * 0.10 / 730
"""20 GB of the container's and 50 GB at /workspace."""
HOST_KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nHOST\n-----END OPENSSH PRIVATE KEY-----\n"


def keys(name: str) -> PodKeys:
    return PodKeys(HOST_KEY, f"ssh-ed25519 AAAAhost {name}", "ssh-ed25519 AAAAuser me\n")


@dataclass
class Rig:
    standin: StandIn
    clock: GivenClock
    compute: RunPodCompute
    api: RunPodApi

    def asked(self, method: str = "") -> list[str]:
        log = self.standin.requests
        return [f"{r.method} {r.path}" for r in log if not method or r.method == method]

    def on(self, seconds: float) -> None:
        self.standin.control.advance(seconds)


def build(clocked: Clocked, *, key: str | None = None, notes: Path | None = None) -> Rig:
    standin, clock = clocked
    http = Http(
        standin.api_key if key is None else key,
        now=clock,
        sleep=lambda seconds: standin.control.advance(seconds),
    )
    api = RunPodApi(http, standin.url)
    graphql = RunPodGraphql(http, f"{standin.url}/graphql")
    compute = RunPodCompute(api, graphql, keys, PAYLOAD, now=clock, sightings=Sightings(notes))
    return Rig(standin, clock, compute, api)


@pytest.fixture
def rig(runpod_and_clock: Clocked) -> Rig:
    return build(runpod_and_clock)


def request(rig: Rig, sku: str = L4, generation: int = 1, **more: Any) -> PodRequest:
    name = str(contract.PodName("0a1b2c3d", "r1", generation, int(rig.clock()) + 3600))
    lease = contract.Lease(
        run_id="r1", pod_name=name, epoch=1, granted_at=rig.clock(),
        soft_stop_at=rig.clock() + 3000, hard_stop_at=rig.clock() + 3600, landing_s=60.0,
        phases=(contract.PhaseLease("fast", 0.0, 100.0, 1e15),), fits_budget=True,
        min_useful_s=10.0,
    )  # fmt: skip
    job = contract.PhaseJob("r1", "fast", {"steps": 3}, "/d", "/o", processes=1)
    plain = PodRequest(name=name, sku=sku, gpus=1, rate=Usd("0.49"), lease=lease, jobs=(job,))
    return replace(plain, **more)


# -- creating -------------------------------------------------------------------------------------


def test_a_pod_is_made_seen_and_ended(rig: Rig) -> None:
    wanted = request(rig)
    pod_id = rig.compute.create(wanted)
    (seen,) = rig.compute.list_pods()
    assert (seen.pod_id, seen.name, seen.rate) == (pod_id, wanted.name, Usd("0.49"))
    assert seen.status == "creating"
    assert seen.made_at == rig.clock()
    rig.on(5)
    (seen,) = rig.compute.list_pods()
    assert seen.status == "running"
    rig.compute.terminate(pod_id)
    assert rig.compute.list_pods() == ()
    assert rig.standin.control.live() == []


def test_a_name_makes_one_pod(rig: Rig) -> None:
    wanted = request(rig)
    assert rig.compute.create(wanted) == rig.compute.create(wanted)
    assert len(rig.standin.control.live()) == 1
    assert rig.asked("POST") == ["POST /v2/pods"]


def test_what_a_pod_is_asked_for_is_what_the_contract_takes(rig: Rig) -> None:
    judge = oracle.required()
    for wanted in (
        request(rig),
        request(rig, A100, region="EU-RO-1", volume="vol1", gpus=8, min_cuda="12.8"),
        request(rig, community=True, region="any", disk_gb=1, min_cuda=""),
    ):
        assert judge.valid("CreatePodRequest", rig.compute.body(wanted)) == []


def test_what_a_pod_is_told(rig: Rig) -> None:
    wanted = request(rig, A100, gpus=8, region="EU-RO-1", check={"gpu": "A100", "count": 8})
    body = rig.compute.body(wanted)
    assert body["gpu"] == {"id": "NVIDIA A100-SXM4-80GB", "count": 8, "minCudaVersion": "12.8"}
    assert (body["cloud"], body["dataCenterIds"]) == ("SECURE", ["EU-RO-1"])
    assert (body["ports"], body["startSsh"]) == (["22/tcp"], False)
    assert body["mounts"] == {"persistent": {"size": 50, "path": "/workspace"}}
    told = body["env"]
    assert told[contract.ENV_POD] == wanted.name
    unpacked = {name: base64.b64decode(told[name]).decode() for name in (
        contract.ENV_LEASE, contract.ENV_JOBS, contract.ENV_CHECK, contract.ENV_HOST_KEY,
    )}  # fmt: skip
    assert contract.load_lease(unpacked[contract.ENV_LEASE]) == wanted.lease
    (job,) = json.loads(unpacked[contract.ENV_JOBS])
    assert contract.load_job(json.dumps(job)) == wanted.jobs[0]
    assert json.loads(unpacked[contract.ENV_CHECK]) == {"gpu": "A100", "count": 8}
    assert unpacked[contract.ENV_HOST_KEY] == HOST_KEY
    assert told[contract.ENV_AUTHORIZED_KEY] == "ssh-ed25519 AAAAuser me"
    assert rig.standin.api_key not in json.dumps(body)
    assert len(told) <= 50
    assert max(map(len, told.values())) <= 90_000

    volume = rig.compute.body(request(rig, volume="vol1", community=True))
    assert volume["mounts"] == {"network": [{"volumeId": "vol1", "path": "/workspace"}]}
    assert volume["cloud"] == "COMMUNITY"


def test_the_command_unpacks_the_agent_and_survives_a_restart(rig: Rig, tmp_path: Path) -> None:
    """The real command in a real shell, in a place of its own instead of /opt."""
    body = rig.compute.body(request(rig))
    line = body["args"].replace("/opt/trmcloud", str(tmp_path / "opt"))
    line = line.replace("exec python3 -m trmcloud.pod.boot", "exec ls trmcloud")
    assert line.count("'") == 2
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", **body["env"]}
    line = line.replace("exec ls trmcloud", f"exec ls {tmp_path}/opt/trmcloud/pod")
    for _ in range(2):
        done = subprocess.run(
            ["sh", "-c", line], env=environment, capture_output=True, text=True, timeout=60
        )
        assert "boot.py" in done.stdout.split(), done.stderr
    ours = Path(__file__).resolve().parents[2] / "trmcloud" / "core" / "pod_contract.py"
    unpacked = tmp_path / "opt" / "trmcloud" / "core" / "pod_contract.py"
    assert unpacked.read_bytes() == ours.read_bytes()
    assert boot_payload() == PAYLOAD


def test_without_python_the_command_waits_and_says_so(rig: Rig, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "mkdir", "sleep"):
        found = subprocess.run(["which", name], capture_output=True, text=True, check=True)
        (tools / name).symlink_to(found.stdout.strip())
    body = rig.compute.body(request(rig))
    line = body["args"].replace("/opt/trmcloud", str(tmp_path / "opt"))
    with subprocess.Popen(
        ["/bin/sh", "-c", line], env={"PATH": str(tools), **body["env"]},
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as waiting:  # fmt: skip
        assert waiting.stderr is not None
        assert waiting.stderr.readline() == "trmcloud: no python3 in this image\n"
        assert waiting.poll() is None
        subprocess.run(["kill", "-KILL", "--", f"-{waiting.pid}"], check=True)


@pytest.mark.parametrize(
    ("knobs", "error"),
    [
        ({"no_capacity": ["*"]}, NoCapacity),
        ({"no_capacity": ["NVIDIA L4"]}, NoCapacity),
        ({"forbidden_gpus": ["NVIDIA L4"]}, AccessDenied),
        ({"read_only": True}, AccessDenied),
        ({"create_500": 1}, AmbiguousCreate),
    ],
)
def test_a_refused_create_makes_nothing(
    rig: Rig, knobs: dict[str, Any], error: type[ProviderError]
) -> None:
    rig.standin.control.set(**knobs)
    with pytest.raises(error):
        rig.compute.create(request(rig))
    assert rig.standin.control.live() == []
    assert rig.asked("POST") == ["POST /v2/pods"]


def test_money_that_is_not_there(rig: Rig) -> None:
    rig.standin.control.set_balance(0.2)
    with pytest.raises(PaymentRequired, match="hour") as caught:
        rig.compute.create(request(rig))
    assert caught.value.exit_code == 14
    rig.standin.control.set_balance(1000)
    rig.compute.create(request(rig, "B200", gpus=8))
    with pytest.raises(PaymentRequired):
        rig.compute.create(request(rig, "B200", generation=2, gpus=8))


def test_a_wrong_key(runpod_and_clock: Clocked) -> None:
    rig = build(runpod_and_clock, key="rpa_wrong")
    with pytest.raises(AuthError) as caught:
        rig.compute.create(request(rig))
    assert caught.value.exit_code == 15
    assert "RUNPOD_API_KEY" in caught.value.next_step
    assert "rpa_wrong" not in str(caught.value)
    assert rig.asked("POST") == [], "a key that may not list is not tried on a create"
    with pytest.raises(AuthError):
        build(runpod_and_clock, key="clé")


def test_a_request_that_is_wrong(rig: Rig) -> None:
    with pytest.raises(ProviderRefused):
        rig.compute.create(request(rig, volume="no-such-volume"))
    with pytest.raises(NotSupported, match="A10G"):
        rig.compute.create(request(rig, "A10G"))
    assert rig.standin.control.live() == []


@pytest.mark.parametrize("knob", ["create_500_but_made", "create_dropped_but_made", "create_late"])
def test_an_unclear_create_is_found_by_its_name(rig: Rig, knob: str) -> None:
    rig.standin.control.set(**{knob: 1})
    wanted = request(rig)
    with pytest.raises(AmbiguousCreate):
        rig.compute.create(wanted)
    rig.on(120)
    (seen,) = rig.compute.list_pods()
    assert seen.name == wanted.name
    assert rig.compute.create(wanted) == seen.pod_id
    assert len(rig.standin.control.live()) == 1
    rig.compute.terminate(wanted.name)
    assert rig.standin.control.live() == []


def test_an_answer_cut_short_is_unclear(rig: Rig) -> None:
    wanted = request(rig)
    rig.compute.list_pods()
    for knob in ("malformed", "html"):
        body = rig.compute.body(wanted)
        rig.standin.control.set(**{knob: 1})
        with pytest.raises(AmbiguousCreate):
            rig.api.create_pod(body)
    assert len(rig.standin.control.live()) == 2
    rig.compute.terminate(wanted.name)
    assert rig.standin.control.live() == []


# -- looking --------------------------------------------------------------------------------------


def test_reads_outlast_trouble(rig: Rig) -> None:
    rig.compute.create(request(rig))
    for knobs in ({"errors_502": 3}, {"throttle": 2, "retry_after_s": 3}):
        rig.standin.control.set(**knobs)
        rig.on(5)
        assert len(rig.compute.list_pods()) == 1
    rig.standin.control.down(8)
    assert len(rig.compute.list_pods()) == 1


def test_an_outage_is_an_error_and_not_an_empty_list(rig: Rig) -> None:
    rig.compute.create(request(rig))
    rig.on(5)
    rig.standin.control.set(down=True)
    began = rig.clock()
    with pytest.raises(ProviderError, match="503"):
        rig.compute.list_pods()
    assert rig.clock() - began <= 20.0
    before = len(rig.standin.requests)
    with pytest.raises(ProviderError):
        rig.compute.list_pods()
    assert len(rig.standin.requests) == before, "nor is it asked again at once"
    rig.on(5)
    rig.standin.control.set(down=False)
    assert len(rig.compute.list_pods()) == 1


@pytest.mark.parametrize("knob", ["malformed", "html"])
def test_a_garbled_list_is_an_error(rig: Rig, knob: str) -> None:
    rig.compute.create(request(rig))
    rig.standin.control.set(**{knob: 1})
    with pytest.raises(ProviderError, match="not what its contract says"):
        rig.compute.list_pods()
    rig.on(5)
    assert len(rig.compute.list_pods()) == 1


def test_many_pods_take_one_look(runpod_and_clock: Clocked) -> None:
    rig = build(runpod_and_clock)
    rig.standin.control.set_balance(10_000)
    wanted = [request(rig, generation=number) for number in range(1, 51)]
    for one in wanted:
        rig.compute.create(one)
    rig.on(30)
    rig.standin.requests.clear()
    assert len(rig.compute.list_pods()) == 50
    for one in wanted:
        rig.on(0.15)
        assert rig.compute.address_of(one.name) is not None
    assert len(rig.compute.list_pods()) == 50
    assert rig.asked() == ["GET /v2/pods"] * 2, "the second after two seconds, for the list's sake"


def test_states_that_are_not_in_the_contract_spend(rig: Rig) -> None:
    rig.standin.control.set(boot_error=True)
    rig.compute.create(request(rig))
    rig.on(30)
    (seen,) = rig.compute.list_pods()
    assert seen.status == "unknown"


def test_a_stopped_pod_is_no_free_pod(rig: Rig) -> None:
    pod_id = rig.compute.create(request(rig))
    rig.on(30)
    rig.compute.list_pods()
    rig.api.http.send("POST", f"{rig.standin.url}/v2/pods/{pod_id}/action", body={"action": "stop"})
    rig.on(5)
    (seen,) = rig.compute.list_pods()
    assert (seen.status, seen.rate) == ("unknown", Usd("0.49"))


def test_an_address_comes_when_the_port_does(rig: Rig) -> None:
    rig.standin.control.set(ssh_after_s=20.0)
    wanted = request(rig)
    rig.compute.create(wanted)
    rig.on(5)
    assert rig.compute.address_of(wanted.name) is None
    rig.on(30)
    address = rig.compute.address_of(wanted.name)
    assert address is not None
    (seen,) = rig.compute.list_pods()
    assert (seen.host, seen.port) == address
    assert rig.compute.address_of("trmc-0a1b2c3d-r2-g1-1800003600") is None
    rig.standin.control.set(down=True)
    rig.on(300)
    assert rig.compute.address_of(wanted.name) == address, (
        "the last one known, while RunPod is down"
    )


def test_the_second_list_shows_what_the_first_omits(rig: Rig) -> None:
    pod_id = rig.compute.create(request(rig))
    rig.on(5)
    assert rig.compute.cross_listed() == ()
    rig.on(5)
    rig.standin.control.set(list_empty=1)
    (shown,) = rig.compute.cross_listed()
    assert (shown.pod_id, shown.rate) == (pod_id, Usd("0.49"))
    assert contract.parse_pod_name(shown.name) is not None


# -- ending ---------------------------------------------------------------------------------------


def test_404_is_no_error_and_no_proof(rig: Rig) -> None:
    pod_id = rig.compute.create(request(rig))
    rig.standin.control.set(delete_404=1)
    rig.compute.terminate(pod_id)
    rig.on(5)
    assert [pod.pod_id for pod in rig.compute.list_pods()] == [pod_id]
    rig.standin.control.set(delete_noop=1)
    rig.compute.terminate(pod_id)
    rig.on(5)
    assert len(rig.compute.list_pods()) == 1
    rig.standin.control.set(delete_500=1)
    rig.compute.terminate(pod_id)
    rig.compute.terminate(pod_id)
    assert rig.standin.control.live() == []


def test_what_is_not_ours_is_left_alone(rig: Rig) -> None:
    body = {**rig.compute.body(request(rig)), "name": "somebody-elses"}
    foreign = rig.api.create_pod(body)
    rig.compute.list_pods()
    with pytest.raises(ProviderError, match="not a pod of ours"):
        rig.compute.terminate(foreign.id)
    assert len(rig.standin.control.live()) == 1


# -- paying ---------------------------------------------------------------------------------------


def truth(rig: Rig, pod_id: str) -> float:
    return rig.standin.control.billed(pod_id)


def test_the_bill_is_what_the_records_say(rig: Rig) -> None:
    pod_id = rig.compute.create(request(rig))
    for _ in range(60):
        rig.on(30)
        rig.compute.list_pods()
    live = rig.compute.bill(pod_id)
    assert live is not None
    assert not live.final
    assert float(live.amount) == pytest.approx((0.49 + DISK_USD_H) * 0.5, rel=0.01)
    rig.compute.terminate(pod_id)
    rig.on(3)
    assert rig.compute.list_pods() == ()
    early = rig.compute.bill(pod_id)
    assert early is not None
    assert not early.final, "a list may omit a pod for a moment"
    rig.on(300)
    final = rig.compute.bill(pod_id)
    assert final is not None
    assert final.final
    assert float(final.amount) == pytest.approx(truth(rig, pod_id), abs=2e-6)


def test_a_pod_that_is_back_has_no_final_bill(rig: Rig) -> None:
    pod_id = rig.compute.create(request(rig))
    rig.on(600)
    rig.compute.list_pods()
    rig.on(5)
    rig.standin.control.set(list_empty=1)
    assert rig.compute.list_pods() == ()
    for _ in range(40):
        rig.on(60)
        bill = rig.compute.bill(pod_id)
        assert bill is not None
        assert not bill.final
        assert float(bill.amount) >= truth(rig, pod_id) - 1e-6


def test_records_that_come_late_are_waited_for(rig: Rig, tmp_path: Path) -> None:
    rig.standin.control.set(billing_lag_s=900.0)
    pod_id = rig.compute.create(request(rig))
    for _ in range(120):
        rig.on(60)
        rig.compute.list_pods()
    rig.compute.terminate(pod_id)
    ended, paid = rig.clock(), truth(rig, pod_id)
    waited = 0
    while waited < 200:
        rig.on(30)
        waited += 1
        bill = rig.compute.bill(pod_id)
        assert bill is not None
        assert float(bill.amount) >= paid - 1e-6, "never less than it cost"
        if bill.final:
            break
    assert rig.clock() - ended >= 870
    assert float(bill.amount) == pytest.approx(paid, abs=2e-6)


def test_a_controller_that_comes_later_knows_the_pod(
    runpod_and_clock: Clocked, tmp_path: Path
) -> None:
    first = build(runpod_and_clock, notes=tmp_path / "notes")
    pod_id = first.compute.create(request(first))
    first.on(600)
    first.compute.list_pods()
    second = build(runpod_and_clock, notes=tmp_path / "notes")
    second.api.delete_pod(pod_id)
    paid = truth(second, pod_id)
    second.on(7200)
    bill = second.compute.bill(pod_id)
    assert bill is not None
    assert not bill.final, "when it ended within two hours nobody knows: its records may yet grow"
    third = build(runpod_and_clock, notes=tmp_path / "notes")
    third.on(1900)
    bill = third.compute.bill(pod_id)
    assert bill is not None
    assert bill.final
    assert float(bill.amount) == pytest.approx(paid, abs=2e-6)


def test_a_bill_by_name(rig: Rig) -> None:
    wanted = request(rig)
    assert rig.compute.bill(wanted.name) is None
    pod_id = rig.compute.create(wanted)
    rig.on(600)
    by_name, by_id = rig.compute.bill(wanted.name), rig.compute.bill(pod_id)
    assert by_name is not None
    assert by_id is not None
    assert by_name == by_id
    assert not by_id.final


def test_no_records_are_never_nothing(rig: Rig) -> None:
    rig.standin.control.set(billing_lag_s=1e9)
    pod_id = rig.compute.create(request(rig))
    rig.on(1800)
    rig.compute.list_pods()
    rig.compute.terminate(pod_id)
    for after in (60, 3600):
        rig.on(after)
        bill = rig.compute.bill(pod_id)
        assert bill is not None
        assert not bill.final
    rig.on(6 * 3600)
    bill = rig.compute.bill(pod_id)
    assert bill is not None
    assert bill.final
    assert float(bill.amount) >= 0.49 / 2


def test_the_price_that_is_billed_is_seen(rig: Rig) -> None:
    rig.standin.control.set(price_factor=1.25)
    rig.compute.create(request(rig))
    (seen,) = rig.compute.list_pods()
    assert seen.rate == Usd("0.6125")


def test_the_account(rig: Rig) -> None:
    account = rig.compute.account()
    assert account.balance == Usd(100)
    assert account.spend_limit == Usd(80)
    rig.standin.control.set(graphql_errors=1)
    with pytest.raises(ProviderError):
        rig.compute.account()
