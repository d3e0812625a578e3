"""The RunPod stand-in's answers and books: states, refusals, faults and bills, as RunPod was
seen to give them."""

from __future__ import annotations

import http.client
import json
import socket
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.standins.runpod import bodies, catalog, oracle
from tests.standins.runpod.client import Client, eventually
from tests.standins.runpod.knobs import BEHAVIOUR, Knobs
from tests.standins.runpod.standin import GivenClock, StandIn
from tests.standins.runpod.world import NO_CAPACITY, NO_FREE_GPUS
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


def test_no_capacity_is_a_400_told_by_its_detail(runpod_on_paper: StandIn) -> None:
    ask = Client(runpod_on_paper)
    runpod_on_paper.control.set(no_capacity=["NVIDIA L4"], forbidden_gpus=["NVIDIA B200"])
    answer = ask("POST", "/v2/pods", BODY)
    assert (answer.status, answer.data["detail"]) == (400, NO_CAPACITY)
    assert ask("POST", "/v2/pods", BODY | {"gpu": {"id": "NVIDIA B200"}}).status == 403
    runpod_on_paper.control.set(no_capacity=["NVIDIA L40S@US-KS-2"])
    assert ask.rent(gpu="NVIDIA L40S")["dataCenterId"] != "US-KS-2"
    gpus = ask("GET", "/v2/catalog/gpus?include=AVAILABILITY&product=POD").data["gpus"]
    l40s = next(gpu for gpu in gpus if gpu["id"] == "NVIDIA L40S")
    assert {place["id"]: place["availability"] for place in l40s["dataCenters"]} == {
        "US-KS-2": "NONE", "US-CA-2": "HIGH", "US-TX-3": "HIGH", "EU-RO-1": "HIGH"
    }  # fmt: skip


def test_keys_that_may_not(runpod_on_paper: StandIn) -> None:
    ask = Client(runpod_on_paper)
    mine, other = ask.rent("mine"), ask.rent("other")
    assert Client(runpod_on_paper, key="")("GET", "/v2/pods").status == 401
    assert Client(runpod_on_paper, key="rpa_wrong")("GET", "/v2/pods").status == 401
    inside = Client(runpod_on_paper, key=runpod_on_paper.control.pod("mine").key)
    assert inside("GET", "/v2/pods").status == 403
    assert inside("DELETE", f"/v2/pods/{other['id']}").status == 403
    assert "errors" in inside.graphql("{myself{clientBalance}}")
    runpod_on_paper.control.set(self_delete=False, self_action=False, self_graphql=False)
    assert inside("DELETE", f"/v2/pods/{mine['id']}").status == 403
    terminate = {"action": "terminate"}
    assert inside("POST", f"/v2/pods/{mine['id']}/action", terminate).status == 403
    query = f'mutation {{ podTerminate(input: {{podId: "{mine["id"]}"}}) }}'
    assert inside.graphql(query)["errors"][0]["extensions"]["code"] == "UNAUTHORIZED"
    runpod_on_paper.control.set(self_action=True)
    assert inside("POST", f"/v2/pods/{mine['id']}/action", terminate).status == 204
    assert runpod_on_paper.control.pod("mine").ended_by == "self"
    runpod_on_paper.control.set(read_only=True)
    assert ask("GET", "/v2/pods").status == 200
    assert ask("DELETE", f"/v2/pods/{other['id']}").status == 403
    runpod_on_paper.control.set(key_revoked=True)
    assert ask("GET", "/v2/pods").status == 401


def test_ambiguous_creates(runpod_and_clock: Clocked) -> None:
    standin, _ = runpod_and_clock
    ask = Client(standin)
    standin.control.set(create_500=1, create_500_but_made=1)
    assert [ask("POST", "/v2/pods", BODY).status for _ in range(3)] == [500, 500, 201]
    assert len(standin.control.live()) == 2
    standin.control.set(create_late=1, create_late_s=30)
    assert ask("POST", "/v2/pods", BODY | {"name": "late"}).status == 504
    assert len(standin.control.live()) == 2
    standin.control.advance(30)
    assert standin.control.pod("late").status == "PROVISIONING"
    standin.control.set(create_dropped_but_made=1)
    with pytest.raises((http.client.HTTPException, OSError)):
        ask("POST", "/v2/pods", BODY | {"name": "dropped"})
    assert standin.control.pod("dropped").alive
    standin.control.set(list_omits_new_s=10)
    ask.rent("unlisted")
    names = [pod["name"] for pod in ask("GET", "/v2/pods").data["pods"]]
    standin.control.advance(10)
    later = [pod["name"] for pod in ask("GET", "/v2/pods").data["pods"]]
    assert ("unlisted" in names, "unlisted" in later) == (False, True)


def test_deletes_that_lie(runpod_on_paper: StandIn) -> None:
    ask, control = Client(runpod_on_paper), runpod_on_paper.control
    pod = ask.rent()
    control.set(delete_noop=1, delete_404=1, delete_500=1)
    path = f"/v2/pods/{pod['id']}"
    assert {ask("DELETE", path).status for _ in range(3)} == {204, 404, 500}
    assert [pod.name for pod in control.live()] == ["a-pod"]
    control.set(delete_500_but_done=1)
    assert ask("DELETE", path).status == 500
    assert control.live() == []


def test_outages_quotas_and_bad_answers(runpod_and_clock: Clocked) -> None:
    standin, _ = runpod_and_clock
    ask = Client(standin)
    standin.control.down(5)
    assert ask("GET", "/v2/pods").status == 503
    standin.control.advance(5)
    answer = ask("GET", "/v2/pods")
    assert answer.status == 200
    assert '"minute";r=5999;t=' in answer.headers["RateLimit"]
    standin.control.set(throttle=1, retry_after_s=7)
    answer = ask("GET", "/v2/pods")
    assert (answer.status, answer.headers["Retry-After"]) == (429, "7")
    standin.control.set(malformed=1, html=1, errors_502=1)
    assert ask("GET", "/v2/pods").status == 502
    for _ in range(2):
        answer = ask("GET", "/v2/pods")
        with pytest.raises(json.JSONDecodeError):
            answer.data  # noqa: B018
    assert ask("GET", "/v2/pods").data["pods"] == []


def test_pods_that_do_not_come_up(runpod_and_clock: Clocked) -> None:
    standin, _ = runpod_and_clock
    ask = Client(standin)
    standin.control.set(never_boots=True)
    stuck = ask.rent("stuck")
    standin.control.reset()
    standin.control.set(boot_error=True)
    broken = ask.rent("broken")
    standin.control.reset()
    standin.control.set(ssh_never=True)
    deaf = ask.rent("deaf")
    standin.control.advance(600)
    pods = [ask.pod(pod["id"]) for pod in (stuck, broken, deaf)]
    assert [pod["status"] for pod in pods] == ["PROVISIONING", "ERROR", "RUNNING"]
    assert [pod["actions"] for pod in pods][:2] == [["stop", "terminate"], ["start", "terminate"]]
    assert pods[2]["ssh"]["direct"] is None
    assert all(standin.control.billed(pod["id"]) > 0.08 for pod in pods)


def test_an_api_that_does_not_answer(runpod_on_paper: StandIn) -> None:
    ask = Client(runpod_on_paper)
    pod = ask.rent()
    inside = Client(runpod_on_paper, key=runpod_on_paper.control.pod("a-pod").key)
    runpod_on_paper.control.set(self_down=True)
    with pytest.raises((http.client.HTTPException, OSError)):
        inside("GET", f"/v2/pods/{pod['id']}")
    assert ask("GET", "/v2/pods").status == 200
    runpod_on_paper.control.set(unreachable=True)
    with pytest.raises((http.client.HTTPException, OSError)):
        ask("GET", "/v2/pods")


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


def test_a_list_may_omit_what_the_other_shows(runpod_on_paper: StandIn) -> None:
    ask = Client(runpod_on_paper)
    ask.rent("seen")
    ask.rent("unseen")
    runpod_on_paper.control.set(list_omits=["unseen"])
    assert [pod["name"] for pod in ask("GET", "/v2/pods").data["pods"]] == ["seen"]
    other = ask.graphql("{myself{pods{name}}}")["data"]["myself"]["pods"]
    assert [pod["name"] for pod in other] == ["seen", "unseen"]


def test_logs_resume_where_the_reader_left(runpod_on_paper: StandIn) -> None:
    ask = Client(runpod_on_paper)
    pod = ask.rent()
    eventually(lambda: ask.pod(pod["id"])["status"] == "RUNNING")

    def read(headers: dict[str, str], query: str = "") -> list[str]:
        """Ids and data of all events up to now."""
        keyed = headers | {"Authorization": f"Bearer {runpod_on_paper.api_key}"}
        keyed["User-Agent"] = "a-test"
        url = f"{runpod_on_paper.url}/v2/pods/{pod['id']}/logs{query}"
        found: list[str] = []
        with urllib.request.urlopen(urllib.request.Request(url, headers=keyed)) as stream:
            for line in stream:
                if line.startswith(b":"):
                    return found
                found += [line.decode().strip()] if line.strip() else []
        return found

    first = read({})
    assert [json.loads(line[6:])["source"] for line in first[1::2]] == ["system", "system"]
    assert read({"Last-Event-ID": first[0].removeprefix("id: ")}) == first[2:]
    assert read({}, "?tail=1") == first[2:]
    assert read({}, "?source=container") == []
    assert ask("GET", f"/v2/pods/{pod['id']}/logs?tail=9999").status == 422
    assert ask("GET", f"/v2/pods/{pod['id']}/logs?source=kernel").status == 422


def test_network_volumes(runpod_and_clock: Clocked) -> None:
    standin, _ = runpod_and_clock
    ask = Client(standin)
    wish = {"name": "data", "size": 1100, "dataCenter": "EU-RO-1"}
    volume = ask("POST", "/v2/network-volumes", wish).data
    assert volume["type"] == "STANDARD"
    path = f"/v2/network-volumes/{volume['id']}"
    assert ask("POST", "/v2/network-volumes", wish | {"size": 9}).status == 422
    assert ask("POST", "/v2/network-volumes", wish | {"dataCenter": "US-TX-3"}).status == 400
    assert ask("PATCH", path, {"size": 1000}).status == 400
    assert ask("PATCH", path, {}).status == 422
    assert ask("PATCH", path, {"name": "new"}).data["name"] == "new"
    mounts = {"network": [{"volumeId": volume["id"], "path": "/workspace"}]}
    assert ask.rent(mounts=mounts)["dataCenterId"] == "EU-RO-1"
    for change in ({"cloud": "COMMUNITY"}, {"dataCenterIds": ["US-KS-2"]}):
        assert ask("POST", "/v2/pods", BODY | {"mounts": mounts} | change).status == 400
    assert ask("DELETE", path).status == 400
    for pod in standin.control.live():
        ask("DELETE", f"/v2/pods/{pod.id}")
    standin.control.advance(5400)
    records = ask("GET", "/v2/billing/network-volumes?bucketSize=day").data
    hourly = (1000 * 0.07 + 100 * 0.05) / 730
    assert records["metadata"]["totals"]["totalAmount"] == pytest.approx(2 * hourly)
    assert ask("GET", "/v2/network-volumes").data["networkVolumes"] == [volume | {"name": "new"}]
    assert ask("DELETE", path).status == 204
    assert ask("GET", path).status == 404


def test_ssh_keys_and_data_centers(runpod_on_paper: StandIn) -> None:
    ask = Client(runpod_on_paper)
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHVubwo me@here"
    assert ask("PUT", "/v2/account/ssh-keys", {"keys": [key]}).data == {"keys": [key]}
    assert ask("PUT", "/v2/account/ssh-keys", {"keys": ["no key"]}).status == 422
    assert ask("GET", "/v2/account/ssh-keys").data == {"keys": [key]}
    path = "/v2/catalog/datacenters?regions=EUROPE&include=GPU_AVAILABILITY"
    places = ask("GET", path).data["dataCenters"]
    assert [place["id"] for place in places] == ["EU-RO-1", "EUR-IS-1"]
    assert ask("GET", "/v2/catalog/gpus?count=2").status == 400
    assert len(ask("GET", "/v2/catalog/gpus").data["gpus"]) == len(catalog.GPUS)


def test_what_a_patch_may_change(runpod_on_paper: StandIn) -> None:
    ask = Client(runpod_on_paper)
    pod = ask.rent(mounts={"persistent": {"size": 20, "path": "/workspace"}})
    path = f"/v2/pods/{pod['id']}"
    assert ask("PATCH", path, {"name": "renamed", "locked": True}).data["name"] == "renamed"
    eventually(lambda: ask.pod(pod["id"])["status"] == "RUNNING")
    assert ask("POST", f"{path}/action", {"action": "restart"}).status == 409
    assert ask("PATCH", path, {"cost": 1}).status == 422
    network = {"network": [{"volumeId": "x", "path": "/workspace"}]}
    assert ask("PATCH", path, {"mounts": network}).status == 400
    boots = runpod_on_paper.control.pod("renamed").boots
    ask("PATCH", path, {"env": {"A": "1"}})
    assert runpod_on_paper.control.pod("renamed").boots == boots + 1


def test_knobs_refuse_names_and_types_that_are_none() -> None:
    knobs = Knobs()
    for wrong in ({"creat_500": 1}, {"create_500": "1"}, {"no_capacity": "L4"}, {"down": 1}):
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


def test_the_price_may_be_another_than_the_lists(runpod_and_clock: Clocked) -> None:
    standin, _ = runpod_and_clock
    standin.control.set(price_factor=1.5)
    assert Client(standin).rent(gpu="NVIDIA L40S")["cost"] == pytest.approx(0.99 * 1.5)
    community = Client(standin).rent(gpu="NVIDIA L40S", cloud="COMMUNITY")
    assert community["cost"] == pytest.approx(0.79 * 1.5)


def test_an_hour_of_credit_is_needed_and_the_spend_limit_holds(runpod_and_clock: Clocked) -> None:
    standin, _ = runpod_and_clock
    ask = Client(standin)
    body = {"name": "a", "image": "i", "gpu": {"id": "NVIDIA L4"}}
    standin.control.set_balance(0.45)
    assert ask("POST", "/v2/pods", body).status == 402
    standin.control.set_balance(1000)
    big = body | {"gpu": {"id": "NVIDIA B200", "count": 8}}
    assert [ask("POST", "/v2/pods", big).status for _ in range(2)] == [201, 402]


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


def test_the_providers_own_timer_is_taken_and_forgotten(runpod_and_clock: Clocked) -> None:
    standin, _ = runpod_and_clock
    ask = Client(standin)
    made = ask.graphql(
        'mutation { podFindAndDeployOnDemand(input: {name: "t", imageName: "i", cloudType: SECURE,'
        ' gpuTypeId: "NVIDIA L4", terminateAfter: "2026-09-21T00:00:00Z",'
        ' stopAfter: "2026-09-21T00:00:00Z"}) { id costPerHr desiredStatus } }'
    )["data"]["podFindAndDeployOnDemand"]
    standin.control.advance(86_400)
    assert ask.pod(made["id"])["status"] == "RUNNING"
