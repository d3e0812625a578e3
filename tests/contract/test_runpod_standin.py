"""The RunPod stand-in's answers and books: states, refusals, faults and bills, as RunPod was
seen to give them."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.standins.runpod import bodies, oracle
from tests.standins.runpod.client import Client
from tests.standins.runpod.knobs import BEHAVIOUR, Knobs
from tests.standins.runpod.standin import StandIn
from tests.standins.runpod.world import NO_FREE_GPUS
from tests.standins.web import GivenClock
from trmcloud.sim.world.provider_profiles import PROFILES

# -- runpod standin -----------------------------------------------------------------------------
# The RunPod stand-in's answers: states, refusals, faults, as RunPod was seen to give them.


Clocked = tuple[StandIn, GivenClock]

BODY: dict[str, Any] = {"name": "a", "image": "i", "gpu": {"id": "NVIDIA L4"}}


def test_a_pod_goes_through_its_states_and_is_404_once_deleted(runpod_and_clock: Clocked) -> None:
    standin, _ = runpod_and_clock
    standin.control.set(provisioning_s=10, starting_s=5, ssh_after_s=3, delete_s=4)
    ask = Client(standin)
    pod = ask.rent()
    seen = [(pod["status"], pod["runtime"], pod["ssh"]["direct"], pod["actions"])]
    for seconds in (10, 5, 3):
        standin.control.advance(seconds)
        pod = ask.pod(pod["id"])
        seen.append((pod["status"], pod["runtime"], pod["ssh"]["direct"], pod["actions"]))
    assert [row[0] for row in seen] == ["PROVISIONING", "STARTING", "RUNNING", "RUNNING"]
    assert [row[1] is not None for row in seen] == [False, False, False, True]
    assert [row[2] is not None for row in seen] == [False, False, False, True]
    assert seen[-1][3] == ["stop", "restart", "terminate"]
    assert ask("DELETE", f"/v2/pods/{pod['id']}").status == 204
    assert len(ask("GET", "/v2/pods").data["pods"]) == 1
    standin.control.advance(4)
    answer = ask("GET", f"/v2/pods/{pod['id']}")
    assert (answer.status, answer.data["detail"]) == (404, "pod not found")
    assert ask("GET", "/v2/pods").data["pods"] == []


def test_a_stopped_pod_keeps_its_disk_and_may_not_come_back(runpod_and_clock: Clocked) -> None:
    standin, _ = runpod_and_clock
    ask = Client(standin)
    pod = ask.rent(mounts={"persistent": {"size": 100, "path": "/workspace"}})
    standin.control.advance(60)
    stopped = ask("POST", f"/v2/pods/{pod['id']}/action", {"action": "stop"}).data
    assert (stopped["status"], stopped["cost"]) == ("EXITED", 0.0)
    before = standin.control.billed(pod["id"])
    standin.control.advance(3600)
    assert standin.control.billed(pod["id"]) - before == pytest.approx(100 * 0.20 / 730)
    assert ask("POST", f"/v2/pods/{pod['id']}/action", {"action": "stop"}).status == 409
    standin.control.set(no_capacity=["NVIDIA L4"])
    answer = ask("POST", f"/v2/pods/{pod['id']}/action", {"action": "start"})
    assert (answer.status, answer.data["detail"]) == (400, NO_FREE_GPUS)
    standin.control.reset()
    assert ask("POST", f"/v2/pods/{pod['id']}/action", {"action": "start"}).status == 200
    assert ask("POST", f"/v2/pods/{pod['id']}/action", {"action": "terminate"}).status == 204


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"gpu": {"id": "NVIDIA L4", "count": 9}}, 400),
        ({"gpu": {"id": "NVIDIA L5"}}, 400),
        ({"gpu": {"id": "NVIDIA L4", "minCudaVersion": "14.0"}}, 400),
        ({"dataCenterIds": ["US-CA-2"]}, 400),
        ({"dataCenterIds": ["MOON-1"]}, 400),
        ({"cpu": {"id": "cpu3c", "vcpuCount": 2}}, 400),
        ({"mounts": {"network": [{"volumeId": "none", "path": "/workspace"}]}}, 400),
        ({"env": {f"V{i}": "" for i in range(51)}}, 400),
        ({"interruptible": True}, 422),
        ({"gpu": {"id": "NVIDIA L4", "kind": 1}}, 422),
        ({"disk": 0}, 422),
        ({"disk": "50"}, 422),
        ({"name": ""}, 422),
        ({"cloud": "ALL"}, 422),
        ({"env": {"A": 1}}, 422),
        ({"mounts": {"persistent": {"size": 5, "path": "/workspace"}}}, 422),
        ({"templateId": "unknown"}, 404),
    ],
)
def test_creates_are_refused(runpod_on_paper: StandIn, change: dict[str, Any], status: int) -> None:
    answer = Client(runpod_on_paper)("POST", "/v2/pods", BODY | change)
    assert answer.status == status
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.data["status"] == status
    assert runpod_on_paper.control.live() == []


def test_the_edge_turns_pythons_own_name_away(runpod_on_paper: StandIn) -> None:
    request = urllib.request.Request(f"{runpod_on_paper.url}/v2/pods")
    request.add_header("Authorization", f"Bearer {runpod_on_paper.api_key}")
    with pytest.raises(urllib.error.HTTPError, match=r"403"):
        urllib.request.urlopen(request)
    bare = socket.create_connection(
        ("127.0.0.1", int(runpod_on_paper.url.rpartition(":")[2])), timeout=10
    )
    with bare, bare.makefile("rb") as answer:
        key = f"Authorization: Bearer {runpod_on_paper.api_key}"
        bare.sendall(f"GET /v2/pods HTTP/1.1\r\nHost: x\r\n{key}\r\n\r\n".encode())
        assert answer.readline().split()[1] == b"403", "nor does it take who gives no name"


def test_knobs_refuse_names_and_types_that_are_none() -> None:
    knobs = Knobs()
    for wrong in ({"delete_nop": 1}, {"delete_noop": "1"}, {"no_capacity": "L4"}, {"down": 1}):
        with pytest.raises(ValueError, match=r"knob|takes"):
            knobs.set({"delete_s": 1.0} | wrong)
        assert knobs == Knobs()


def test_the_control_over_http(runpod_on_paper: StandIn) -> None:
    ask = Client(runpod_on_paper, key="")
    assert ask("POST", "/_control", {"set": {"delete_noop": 2}}).data["knobs"]["delete_noop"] == 2
    assert ask("POST", "/_control", {"set": {"nonsense": 2}}).status == 400
    assert ask("POST", "/_control", {"sett": {}}).status == 400
    Client(runpod_on_paper).rent("mine")
    truth = ask("POST", "/_control", {"balance": 1.5, "end": "mine"}).data
    assert truth["balance"] == pytest.approx(1.5)
    assert truth["pods"][0]["ended_by"] == "provider"
    assert [(r["method"], r["status"]) for r in truth["requests"]] == [("POST", 201)]
    assert "STANDIN0ACCOUNT0KEY" not in json.dumps(truth)


def test_the_simulator_and_the_stand_in_share_their_habits() -> None:
    habits = PROFILES["runpod"]
    assert BEHAVIOUR.boot_s == habits.boot_s
    assert BEHAVIOUR.delete_s == habits.delete_s
    assert BEHAVIOUR.lists_new_after_s == habits.lists_new_after_s
    assert BEHAVIOUR.quantum_s == habits.least_billed_s
    assert BEHAVIOUR.self_ends == habits.self_ends
    assert BEHAVIOUR.restarts == habits.restarts
    assert BEHAVIOUR.ignores_timer == habits.ignores_timer
    assert BEHAVIOUR.lists_gone == habits.lists_gone
    assert BEHAVIOUR.prepaid == habits.prepaid
    for seed in range(20):
        knobs = Knobs()
        knobs.lifelike(seed)
        boot_s = knobs.provisioning_s + knobs.starting_s
        assert habits.boot_s[0] <= boot_s <= habits.boot_s[1]
        assert habits.delete_s[0] <= knobs.delete_s <= habits.delete_s[1]
        assert habits.lists_new_after_s[0] <= knobs.list_omits_new_s
        assert knobs.list_omits_new_s <= habits.lists_new_after_s[1]


CREATES: list[Any] = [
    {}, [], None, "x", BODY, BODY | {"bogus": 1}, BODY | {"gpu": {}}, BODY | {"gpu": "x"},
    BODY | {"gpu": {"id": 1}}, BODY | {"gpu": {"id": "a", "count": 0}}, {"name": "a"},
    BODY | {"gpu": {"id": "a", "minCudaVersion": "12"}}, {"name": "a", "templateId": "t"},
    BODY | {"gpu": {"id": "a", "allowedCudaVersions": ["12.8", "x"]}}, BODY | {"ports": "22/tcp"},
    BODY | {"ports": [22]}, BODY | {"env": {"A": None}}, BODY | {"registry": None},
    BODY | {"registry": 1}, BODY | {"disk": 1.5}, BODY | {"disk": 2.0}, BODY | {"disk": True},
    BODY | {"cloud": None}, BODY | {"mounts": {}}, BODY | {"mounts": {"other": 1}},
    BODY | {"mounts": {"network": [{"volumeId": "v"}]}}, BODY | {"startSsh": 1},
    BODY | {"mounts": {"network": [{"volumeId": "v", "path": "/w"}] * 2}},
    BODY | {"cpu": {"id": "c", "vcpuCount": 1}}, BODY | {"cpu": {"id": "c", "vcpuCount": 2}},
    BODY | {"dataCenterIds": [1]}, BODY | {"globalNetworking": "no"}, BODY | {"args": ["a"]},
]  # fmt: skip


@pytest.mark.parametrize("wish", CREATES, ids=lambda wish: json.dumps(wish)[:60])
def test_the_published_contract_refuses_the_same_creates(wish: Any) -> None:
    broken = oracle.required().valid("CreatePodRequest", wish)
    assert bool(bodies.wrong_with("create pod", wish)) == bool(broken), broken


# -- The RunPod stand-in's books, with a clock that the test moves ------------------------------


DISK = 50 * 0.10 / 730
L4 = 0.49


def test_a_pod_is_billed_by_the_second_the_balance_by_tick(
    runpod_and_clock: Clocked,
) -> None:
    standin, _ = runpod_and_clock
    ask = Client(standin)
    pod = ask.rent()
    assert pod["cost"] == L4
    standin.control.advance(100.5)
    assert standin.control.billed(pod["id"]) == pytest.approx((L4 + DISK) * 101 / 3600)
    myself = ask.graphql("{myself{clientBalance currentSpendPerHr spendLimit}}")["data"]["myself"]
    assert myself["clientBalance"] == 100.0
    assert myself["currentSpendPerHr"] == pytest.approx(L4 + DISK, abs=1e-6)
    assert myself["spendLimit"] == 80.0
    standin.control.advance(199.5)
    balance = ask.graphql("{myself{clientBalance}}")["data"]["myself"]["clientBalance"]
    assert balance == pytest.approx(100 - (L4 + DISK) * 300 / 3600, abs=1e-6)
    standin.control.set(delete_s=7)
    ask("DELETE", f"/v2/pods/{pod['id']}")
    standin.control.advance(1000)
    assert standin.control.billed(pod["id"]) == pytest.approx((L4 + DISK) * 307 / 3600)


def test_at_zero_pods_without_network_volumes_are_gone_with_data(
    runpod_and_clock: Clocked,
) -> None:
    standin, clock = runpod_and_clock
    ask = Client(standin)
    wish = {"name": "v", "size": 10, "dataCenter": "US-KS-2"}
    volume = ask("POST", "/v2/network-volumes", wish).data
    mounts = {"network": [{"volumeId": volume["id"], "path": "/workspace"}]}
    kept, lost = ask.rent("kept", mounts=mounts), ask.rent("lost")
    born = clock()
    standin.control.set_balance(0.9)
    standin.control.advance(7200)
    assert ask.pod(kept["id"])["status"] == "EXITED"
    assert ask("GET", f"/v2/pods/{lost['id']}").status == 404
    truth = standin.control.pod("lost")
    assert truth.ended_by == "balance"
    assert truth.gone_at is not None
    assert (truth.gone_at - born) % 300 == 0
    assert standin.control.world.balance <= 0


def test_billing_records_add_up_to_the_bill_and_come_late(runpod_and_clock: Clocked) -> None:
    standin, clock = runpod_and_clock
    ask = Client(standin)
    standin.control.advance(3600 - clock() % 3600 + 1800)
    first, second = ask.rent("one"), ask.rent("two")
    standin.control.advance(5400)
    ask("DELETE", f"/v2/pods/{first['id']}")
    standin.control.advance(60)
    path = f"/v2/billing/pods?bucketSize=hour&podId={first['id']}"
    records = ask("GET", path).data["records"]
    assert [round(record["gpuAmount"] / L4, 6) for record in records] == [0.5, 1.0]
    assert {record["podId"] for record in records} == {first["id"]}
    total = sum(record["totalAmount"] for record in records)
    assert total == pytest.approx(standin.control.billed(first["id"]))
    everything = ask("GET", "/v2/billing/pods?lastN=2&bucketSize=hour").data
    assert everything["metadata"]["uniquePodCount"] == 2
    assert everything["metadata"]["query"]["podId"] is None
    standin.control.set(billing_lag_s=3600)
    late = ask("GET", path).data["metadata"]["totals"]["gpuAmount"]
    assert late == pytest.approx(L4 * (5400 + 60 - 3600) / 3600)
    assert ask("GET", "/v2/billing/pods?lastN=2&startTime=2026-01-01T00:00:00Z").status == 400
    assert ask("GET", "/v2/billing/pods?bucketSize=minute").status == 422
    assert standin.control.billed(second["id"]) > 0


def test_a_lost_host_is_not_billed_and_the_list_does_not_say_so(runpod_and_clock: Clocked) -> None:
    standin, _ = runpod_and_clock
    ask = Client(standin)
    pod = ask.rent()
    standin.control.advance(60)
    standin.control.lose_host(pod["id"])
    before = standin.control.billed(pod["id"])
    standin.control.advance(600)
    assert standin.control.billed(pod["id"]) == before
    shown = ask.pod(pod["id"])
    assert (shown["status"], shown["runtime"]) == ("RUNNING", None)
    assert ask("DELETE", f"/v2/pods/{pod['id']}").status == 204
