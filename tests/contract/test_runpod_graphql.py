"""RunPod's lists a page at a time, GraphQL as clients write it, and its end."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.pod_requests import request
from tests.contract.runpod_rig import Clocked, Rig, build
from tests.contract.test_runpod_compute import checked, states
from tests.standins.runpod.client import Client
from tests.standins.runpod.standin import StandIn
from trmcloud.core.control.balance import Billing
from trmcloud.core.errors import AuthError, PaymentRequired
from trmcloud.core.money import Usd
from trmcloud.providers.runpod import models
from trmcloud.providers.runpod.account import GraphqlUnavailable

# -- The stand-in's GraphQL: the language as clients write it, and what is wrong in a 200 -------


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("{myself{", "GRAPHQL_PARSE_FAILED"),
        ("{nonsense}", "GRAPHQL_VALIDATION_FAILED"),
        ("{myself{nonsense}}", "GRAPHQL_VALIDATION_FAILED"),
        ('mutation{podTerminate(input:{podId:"none"})}', "RUNPOD"),
    ],
)
def test_errors_come_in_a_200(runpod_on_paper: StandIn, query: str, code: str) -> None:
    answer = Client(runpod_on_paper)("POST", "/graphql", {"query": query})
    assert answer.status == 200
    assert answer.data["errors"][0]["extensions"]["code"] == code


# -- runpod pages -------------------------------------------------------------------------------
# RunPod's lists, a page at a time: the stand-in cuts them as the contract says, and the adapter
# reads them to their end or not at all.


@pytest.fixture
def five(runpod_and_clock: Clocked) -> Clocked:
    """Pods named 0 to 4, 0 the oldest."""
    standin, clock = runpod_and_clock
    for number in range(5):
        Client(standin).rent(str(number))
        clock.advance(1)
    return standin, clock


def names(answer: Any) -> list[str]:
    assert answer.status == 200, answer.text
    return [pod["name"] for pod in answer.data["pods"]]


def test_the_newest_come_first_and_a_cursor_leads_on(five: Clocked) -> None:
    ask = Client(five[0])
    assert names(ask("GET", "/v2/pods")) == ["4", "3", "2", "1", "0"]
    seen, cursor = [], ""
    while True:
        answer = ask("GET", f"/v2/pods?limit=2{cursor}")
        seen.append(names(answer))
        pagination = answer.data["pagination"]
        assert pagination["hasNextPage"] is (pagination["nextCursor"] is not None)
        if not pagination["hasNextPage"]:
            break
        cursor = f"&cursor={pagination['nextCursor']}"
        ask.rent("newcomer")  # it stands before the cursor: nobody moves
    assert seen == [["4", "3"], ["2", "1"], ["0"]]


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=1001", "limit=ten", "limit=-1", "cursor=", "cursor=bogus",
     "cursor=dGVtcGxhdGVzPTEvYQ==", "includeClusterPods=yes"],
)  # fmt: skip
def test_a_question_that_breaks_the_contract(five: Clocked, query: str) -> None:
    answer = Client(five[0])("GET", f"/v2/pods?{query}")
    assert answer.status == 422
    assert answer.data["errors"][0].startswith(query.partition("=")[0])


# -- the adapter -----------------------------------------------------------------------------------


def test_the_adapter_reads_every_page(five: Clocked) -> None:
    rig = build(five)
    rig.standin.control.set(list_page=2, cluster_members=["4", "3"])
    assert [pod.name for pod in rig.api.pods()] == ["2", "1", "0"]
    assert len(rig.api.pods(cluster_members=True)) == 5
    assert rig.asked("GET") == ["GET /v2/pods"] * 6
    rig.standin.control.set(list_page=0, list_unpaged=True)
    assert len(rig.api.pods()) == 3


# -- runpod fading ------------------------------------------------------------------------------
# GraphQL's end: what only it knew is said to be unknown, and REST v2 gives the second look.


FADED = pytest.mark.parametrize(
    ("knobs", "code"),
    [
        ({"graphql_gone": True, "money_absent": True}, 410),
        ({"graphql_throttled": True, "retry_after_s": 30, "money_denied": True}, 429),
    ],
)


@FADED
def test_an_end_is_no_bad_key_or_empty_account(rig: Rig, knobs: dict[str, Any], code: int) -> None:
    rig.standin.control.set(**knobs)
    with pytest.raises(GraphqlUnavailable, match=f"answers {code}") as caught:
        rig.compute.balance()
    assert not isinstance(caught.value, AuthError)
    rig.compute.require_account(Usd(1))  # it can be rented all the same
    assert rig.compute.create(request(rig))


@FADED
def test_a_launch_without_money_fails_by_v2(rig: Rig, knobs: dict[str, Any], code: int) -> None:
    rig.standin.control.set(**knobs)
    rig.standin.control.set_balance(0.1)
    rig.compute.require_account(Usd(1))
    with pytest.raises(PaymentRequired, match="too low to rent a pod"):
        rig.compute.create(request(rig))


@FADED
def test_the_doctor_says_what_is_unknown(rig: Rig, knobs: dict[str, Any], code: int) -> None:
    rig.compute.create(request(rig))
    rig.standin.control.advance(1800)
    rig.standin.control.set(cluster_members=["member"], **knobs)
    Client(rig.standin).rent("member")
    found = checked(rig.standin, "31.92")
    assert states(found)["balance"] == "warn"
    assert f"GraphQL answers {code}" in found["balance"].detail
    assert "are not available" in found["balance"].detail
    assert "guard" in found["balance"].fix
    assert states(found)["runpod key"] == states(found)["scopes"] == "ok"
    assert "limit" not in found
    assert states(found)["pods"] == "ok"
    # Half an hour of an L4 at 0.49 with 70 GB of disk.
    assert "2, clusters included; $0.2498 billed to 1" in found["pods"].detail


@FADED
def test_the_second_list_is_v2s_with_clusters(rig: Rig, knobs: dict[str, Any], code: int) -> None:
    wanted = request(rig)
    pod_id = rig.compute.create(wanted)
    rig.on(5)
    rig.standin.control.set(cluster_members=[wanted.name], **knobs)
    assert rig.compute.list_pods() == ()
    (shown,) = rig.compute.cross_listed()
    assert (shown.pod_id, shown.name, shown.rate) == (pod_id, wanted.name, Usd("0.49"))
    rig.standin.control.set(cluster_members=[])
    rig.on(5)
    assert rig.compute.cross_listed() == ()


def test_what_is_billed_on_is_not_gone(rig: Rig) -> None:
    """A pod in no list at all, whose records grow: it lives, whatever the lists say."""
    wanted = request(rig)
    pod_id = rig.compute.create(wanted)
    rig.on(60)
    rig.compute.list_pods()
    rig.standin.control.set(list_omits=[wanted.name], graphql_gone=True)
    rig.on(60)
    assert rig.compute.list_pods() == ()
    assert rig.compute.cross_listed() == (), "so far its records may be of its life"
    rig.on(1800)
    (shown,) = rig.compute.cross_listed()
    assert (shown.pod_id, shown.name, shown.status) == (pod_id, wanted.name, "unknown")
    rig.compute.terminate(pod_id)
    assert rig.standin.control.live() == []


def test_what_ended_when_it_was_missed_is_not_billed_on(rig: Rig) -> None:
    rig.standin.control.set(graphql_gone=True)
    pod_id = rig.compute.create(request(rig))
    rig.on(1500)
    rig.compute.list_pods()
    rig.compute.terminate(pod_id)
    for seconds in (10, 600, 3600, 3600, 3600):
        rig.on(seconds)
        assert rig.compute.list_pods() == ()
        assert rig.compute.cross_listed() == ()


# -- how the account pays -----------------------------------------------------------------------
# REST v2 says whether it is prepaid: only then does its balance end anything. The paths and the
# fields are those of RunPod's reference of 2026-11-18 (billing/get-the-account-balance,
# account/get-account-limits); that shows no path, and of the limits no fields.


def test_a_prepaid_balance_is_a_limit_while_it_can_be_read(rig: Rig) -> None:
    (limit,) = rig.compute.own_limits("a-pod")
    assert (limit.layer, limit.armed) == ("prepaid", True)
    assert "$100.00" in limit.detail
    assert rig.compute.lapsing(rig.clock() + 3600) == {}
    rig.standin.requests.clear()
    rig.compute.own_limits("a-pod")
    rig.compute.lapsing(rig.clock() + 3600)
    assert rig.asked() == [], "not asked again for minutes"
    rig.on(400)
    rig.standin.control.set(money_absent=True, graphql_gone=True)
    (limit,) = rig.compute.own_limits("a-pod")
    assert (limit.armed, limit.detail) == (
        False,
        "the balance is not available: RunPod's GraphQL answers 410",
    )
    rig.on(400)
    rig.standin.control.set(money_absent=False, graphql_gone=False, down=True)
    assert rig.compute.own_limits("a-pod") == (), "an outage says nothing"
    assert rig.compute.lapsing(rig.clock() + 3600) == {
        "prepaid": "the balance cannot be read now"
    }, "and what is not known does not count for a launch"


@pytest.mark.parametrize(
    ("knobs", "billing", "says"),
    [
        ({"billing_mode": "POSTPAID"}, Billing.POSTPAID, "the account is invoiced (POSTPAID)"),
        ({"billing_mode": "A_NEW_ONE"}, Billing.UNKNOWN, "its API does not say"),
        ({"money_denied": True}, Billing.UNKNOWN, "the key lacks the scope billing:read"),
        ({"money_absent": True}, Billing.UNKNOWN, "has no balance at /v2/billing/balance"),
    ],
)
def test_a_balance_of_an_account_that_is_not_known_to_be_prepaid_is_no_layer(
    rig: Rig, knobs: dict[str, Any], billing: Billing, says: str
) -> None:
    rig.standin.control.set(**knobs)
    account = rig.compute.balance()
    assert account.billing is billing
    assert (account.balance, account.spend_limit) == (Usd(100), Usd(80)), "GraphQL tells those"
    (limit,) = rig.compute.own_limits("a-pod")
    assert not limit.armed
    assert says in limit.detail
    assert says in rig.compute.lapsing(rig.clock() + 3600)["prepaid"]
    finding = checked(rig.standin)["balance"]
    assert finding.state == "warn"
    assert says in finding.detail
    assert "guard install" in finding.fix


def test_a_low_balance_refuses_a_prepaid_account_alone(rig: Rig) -> None:
    rig.standin.control.set_balance(0.1)
    with pytest.raises(PaymentRequired, match="requires one hour"):
        rig.compute.require_account(Usd(1))
    rig.standin.control.set(billing_mode="POSTPAID")
    rig.on(60)
    rig.compute.require_account(Usd(1))


@pytest.mark.parametrize("knobs", [{}, {"money_absent": True}])
def test_the_spend_limit_is_asked_for_before_a_create(rig: Rig, knobs: dict[str, Any]) -> None:
    rig.standin.control.set(**knobs)
    rig.standin.requests.clear()
    with pytest.raises(PaymentRequired, match=r"spend limit is \$80.00/h"):
        rig.compute.require_account(Usd(81))
    asked = [path for path in rig.asked() if "limits" in path or "graphql" in path]
    assert len(asked) == (2 if knobs else 1), "GraphQL only where v2 does not say"
    assert "/v2/account/limits" in asked[0]


@pytest.mark.parametrize(
    "limits",
    [{}, {"spendRate": {}}, {"spendRate": None}, {"spendRate": {"limit": "80"}}, {"spendRate": 80}],
)
def test_limits_in_another_form_are_not_known(limits: dict[str, Any]) -> None:
    rate = models.read_spend_rate(limits, "here")
    assert (rate.limit, rate.current) == (None, None)


def test_limits_by_the_names_that_are_tried() -> None:
    rate = models.read_spend_rate({"spendRate": {"maximum": 80, "used": 2.5}}, "here")
    assert (rate.limit, rate.current) == (80.0, 2.5)
