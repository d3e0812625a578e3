"""RunPod's lists, a page at a time: the stand-in cuts them as the contract says, and the adapter
reads them to their end or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.runpod_rig import Clocked, Rig, build, request
from tests.standins.runpod import pages
from tests.standins.runpod.client import Client
from trmcloud.core.errors import ProviderError


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


def test_members_of_clusters_leave_holes_in_pages(five: Clocked) -> None:
    standin, _ = five
    standin.control.set(cluster_members=["4", "3"], list_page=2)
    first = Client(standin)("GET", "/v2/pods")
    assert (names(first), first.data["pagination"]["hasNextPage"]) == ([], True)
    assert names(Client(standin)("GET", "/v2/pods?includeClusterPods=true")) == ["4", "3"]


def test_a_cursor_is_opaque_and_of_its_own_collection() -> None:
    assert pages.cursor(12.5, "abc") == "cG9kcz0xMi41L2FiYw=="


# -- the adapter -----------------------------------------------------------------------------------


def test_the_adapter_reads_every_page(five: Clocked) -> None:
    rig = build(five)
    rig.standin.control.set(list_page=2, cluster_members=["4", "3"])
    assert [pod.name for pod in rig.api.pods()] == ["2", "1", "0"]
    assert len(rig.api.pods(cluster_members=True)) == 5
    assert rig.asked("GET") == ["GET /v2/pods"] * 6
    rig.standin.control.set(list_page=0, list_unpaged=True)
    assert len(rig.api.pods()) == 3


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"list_endless": True}, "does not end"),
        ({"list_circle": True}, "in a circle"),
        ({"list_lacks_pods": 1}, "pods: Field required"),
        ({"errors_502": 99}, "answers 502: a web page"),
        ({"html": 1}, "not what its contract says"),
    ],
)
def test_a_list_that_is_not_whole_says_nothing_of_pods(
    rig: Rig, knobs: dict[str, Any], says: str
) -> None:
    """A pod is missed where a list lacks it: what is no list must miss nobody."""
    pod_id = rig.compute.create(request(rig))
    rig.on(30)
    rig.compute.list_pods()
    rig.on(5)
    rig.standin.control.set(**knobs)
    with pytest.raises(ProviderError, match=says):
        rig.compute.list_pods()
    with pytest.raises(ProviderError, match=says):
        rig.compute.list_pods()
    rig.standin.control.reset()
    rig.on(5)
    (seen,) = rig.compute.list_pods()
    assert seen.pod_id == pod_id
    bill = rig.compute.bill(pod_id)
    assert bill is not None
    assert not bill.final, "it was never thought to be gone"


def test_a_create_looks_through_every_page_first(rig: Rig) -> None:
    wanted = request(rig)
    pod_id = rig.compute.create(wanted)
    for number in range(4):
        rig.on(1)
        Client(rig.standin).rent(f"newer-{number}")
    rig.standin.control.set(list_page=1)
    assert rig.compute.create(wanted) == pod_id
    assert len(rig.standin.control.live()) == 5
    rig.standin.control.set(list_circle=True)
    with pytest.raises(ProviderError):
        rig.compute.create(request(rig, generation=2))
    assert len(rig.standin.control.live()) == 5, "nothing is asked for where nobody can look"
