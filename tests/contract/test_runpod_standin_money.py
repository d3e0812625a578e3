"""The RunPod stand-in's books, with a clock that the test moves."""

from __future__ import annotations

import pytest

from tests.standins.runpod.client import Client
from tests.standins.runpod.standin import GivenClock, StandIn

Clocked = tuple[StandIn, GivenClock]
DISK = 50 * 0.10 / 730
L4 = 0.49


def test_a_pod_is_billed_by_the_second_and_the_balance_by_the_tick(
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


def test_at_zero_pods_without_a_network_volume_are_gone_with_their_data(
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


def test_a_lost_host_is_not_billed_and_the_list_does_not_say_so(
    runpod_and_clock: Clocked,
) -> None:
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
