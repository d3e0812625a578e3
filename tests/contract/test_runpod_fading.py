"""GraphQL's end: what only it knew is said to be unknown, and REST v2 gives the second look."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.runpod_rig import Rig, request
from tests.contract.test_runpod_account import checked, states
from tests.standins.runpod.client import Client
from trmcloud.core.errors import AuthError, PaymentRequired
from trmcloud.core.money import Usd
from trmcloud.providers.runpod.account import GraphqlUnavailable

FADED = pytest.mark.parametrize(
    ("knobs", "code"),
    [({"graphql_gone": True}, 410), ({"graphql_throttled": True, "retry_after_s": 30}, 429)],
)


@FADED
def test_an_end_is_no_bad_key_and_no_empty_account(
    rig: Rig, knobs: dict[str, Any], code: int
) -> None:
    rig.standin.control.set(**knobs)
    with pytest.raises(GraphqlUnavailable, match=f"answers {code}") as caught:
        rig.compute.account()
    assert not isinstance(caught.value, AuthError)
    rig.compute.require_account(Usd(1))  # it can be rented all the same
    assert rig.compute.create(request(rig))


@FADED
def test_a_launch_without_money_is_still_refused_by_v2(
    rig: Rig, knobs: dict[str, Any], code: int
) -> None:
    rig.standin.control.set(**knobs)
    rig.standin.control.set_balance(0.1)
    rig.compute.require_account(Usd(1))
    with pytest.raises(PaymentRequired, match="too low to rent a pod"):
        rig.compute.create(request(rig))


@FADED
def test_the_doctor_says_what_is_not_known_any_more(
    rig: Rig, knobs: dict[str, Any], code: int
) -> None:
    rig.compute.create(request(rig))
    rig.standin.control.advance(1800)
    rig.standin.control.set(cluster_members=["member"], **knobs)
    Client(rig.standin).rent("member")
    found = checked(rig.standin, "31.92")
    assert states(found)["balance"] == "warn"
    assert f"GraphQL answers {code}" in found["balance"].detail
    assert "not known any more" in found["balance"].detail
    assert "guard" in found["balance"].fix
    assert states(found)["runpod key"] == states(found)["scopes"] == "ok"
    assert "limit" not in found
    assert states(found)["pods"] == "ok"
    # Half an hour of an L4 at 0.49 with 70 GB of disk.
    assert "2, those of clusters included; $0.2498 billed to 1" in found["pods"].detail


@FADED
def test_the_second_list_is_v2s_with_the_members_of_clusters(
    rig: Rig, knobs: dict[str, Any], code: int
) -> None:
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


def test_a_balance_is_a_limit_while_it_can_be_read(rig: Rig) -> None:
    (limit,) = rig.compute.own_limits("a-pod")
    assert (limit.layer, limit.armed) == ("prepaid", True)
    assert "$100.00" in limit.detail
    rig.standin.requests.clear()
    rig.compute.own_limits("a-pod")
    assert rig.asked() == [], "not asked again for minutes"
    rig.on(400)
    rig.standin.control.set(graphql_gone=True)
    (limit,) = rig.compute.own_limits("a-pod")
    assert (limit.armed, limit.detail) == (
        False,
        "the balance is not known any more: RunPod's GraphQL answers 410",
    )
    rig.on(400)
    rig.standin.control.set(graphql_gone=False, down=True)
    assert rig.compute.own_limits("a-pod") == (), "an outage says nothing"
