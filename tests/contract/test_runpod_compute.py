"""RunPod's adapter makes and ends pods, against the stand-in on a clock that the test moves."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.contract.runpod_rig import A100, HOST_KEY, Clocked, Rig, build, request
from tests.standins.runpod import oracle
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.trainer_contract import load_job
from trmcloud.core.errors import (
    AmbiguousCreate,
    AuthError,
    NoCapacity,
    NotSupported,
    PaymentRequired,
    ProviderError,
    ProviderRefused,
)
from trmcloud.core.money import Usd

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
    assert load_job(json.dumps(job)) == wanted.jobs[0]
    assert json.loads(unpacked[contract.ENV_CHECK]) == {
        "gpu": "A100", "count": 8, "torch": "2.9.1+cu128",
    }  # fmt: skip
    assert unpacked[contract.ENV_HOST_KEY] == HOST_KEY
    assert told[contract.ENV_AUTHORIZED_KEY] == "ssh-ed25519 AAAAuser me"
    assert rig.standin.api_key not in json.dumps(body)
    assert len(told) <= 50
    assert max(len(f"{name}={value}") for name, value in told.items()) < 1 << 17

    volume = rig.compute.body(request(rig, volume="vol1", community=True))
    assert volume["mounts"] == {"network": [{"volumeId": "vol1", "path": "/workspace"}]}
    assert volume["cloud"] == "COMMUNITY"


@pytest.mark.parametrize(
    ("knobs", "error"),
    [
        ({"no_capacity": ["*"]}, NoCapacity),
        ({"no_capacity": ["NVIDIA L4"]}, NoCapacity),
        ({"forbidden_gpus": ["NVIDIA L4"]}, ProviderRefused),
        ({"read_only": True}, ProviderRefused),
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
