"""A launch that SkyPilot took, and then found nothing to rent: known at once, and never wrongly."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.skypilot.rig import NAME, NOW, Rig, request
from trmcloud.core.control.observation import Bill, PodSeen
from trmcloud.core.errors import NoCapacity
from trmcloud.core.money import ZERO, cost
from trmcloud.core.storage import price_per_hour

WHY = "\nReason: \x1b[31mInsufficientInstanceCapacity\x1b[0m: no p5.48xlarge here"
NOTHING = "aws is sold out, or has none for us: Failed to acquire resources in all zones in aws/"


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.fixture
def failed(rig: Rig) -> Rig:
    """Its launch was taken, and has just failed; nobody has looked since."""
    rig.compute().create(request())
    rig.set(none_left=WHY)
    rig.on(30.0)
    return rig


def listed(rig: Rig) -> list[PodSeen]:
    """What a command that comes anew sees."""
    return list(rig.compute().list_pods())


def test_a_launch_that_found_nothing_is_gone_at_the_next_look_and_says_why(rig: Rig) -> None:
    compute = rig.compute()
    compute.create(request())
    assert [pod.status for pod in compute.list_pods()] == ["creating"]
    rig.set(none_left="")
    rig.on(30.0)
    (pod,) = compute.list_pods()
    assert (pod.pod_id, pod.name, pod.status, pod.rate) == (NAME, NAME, "gone", ZERO)
    (launch,) = rig.told()["requests"]
    look_up = f"(sky api logs {launch['request_id'][:8]})"
    assert pod.never_made == f"{NOTHING}us-east-1 {look_up}"
    assert compute.bill(NAME) == Bill(NAME, ZERO, final=True)
    with pytest.raises(NoCapacity, match="is sold out"):
        compute.create(request())
    assert len(rig.told()["requests"]) == 1


@pytest.mark.parametrize(("provider", "some"), [("aws", False), ("lambda", True)])
def test_of_several_machines_some_may_have_been_billed_where_each_is_asked_for_alone(
    rig: Rig, provider: str, some: bool
) -> None:
    compute = rig.compute(provider)
    compute.create(request(nodes=2))
    rig.set(none_left="")
    rig.on(36.0)
    (pod,) = compute.list_pods()
    assert (pod.status, bool(pod.never_made), bool(pod.rate)) == ("gone", True, some)
    rig.on(60.0)
    two_disks = price_per_hour(provider, "running", 2 * 120)
    estimate = cost(request().rate, 36.0) + cost(two_disks, 36.0) if some else ZERO
    assert compute.bill(NAME) == Bill(NAME, estimate, final=True)


def test_it_is_known_after_a_crash_and_asked_about_once(failed: Rig) -> None:
    (pod,) = listed(failed)
    assert pod.never_made
    assert listed(failed) == [pod]
    asked = [words for words in failed.told()["asked"] if words[:2] == ["api", "logs"]]
    assert len(asked) == 1
    failed.later(3601.0)
    assert listed(failed) == [], "nobody needs to know it behind its hard stop"


def test_what_is_listed_again_was_made(failed: Rig) -> None:
    before = failed.told()["clusters"]
    listed(failed)
    row = {"name": NAME, "status": "UP", "init_kind": None, "launched_at": int(NOW), "cloud": "AWS"}
    failed.set(clusters={**before, NAME: row})
    assert [(pod.status, pod.never_made) for pod in listed(failed)] == [("running", "")]


TRIED = "sky.exceptions.ResourcesUnavailableError: Failed to acquire resources"
SOLD_OUT = TRIED, f"sky.exceptions.ResourcesUnavailableError: Failed to provision{WHY}"
SET_UP = "sky.exceptions.CommandError: Command /bin/bash -i failed with return code 255"
GONE = "sky.exceptions.ClientError: Failed to stream logs: request not found"


def missing(rig: Rig, *states: str, log: tuple[str, str] = SOLD_OUT) -> None:
    """Its cluster is in no list, and its launches, whose log is this, are in these states."""
    rig.compute().create(request())
    (launch,) = rig.told()["requests"]
    ids = [f"{launch['request_id'][:-1]}{n}" for n, _ in enumerate(states)]
    launches = [launch | {"status": s, "request_id": i} for s, i in zip(states, ids, strict=True)]
    rig.set(clusters={}, requests=launches, logs=dict.fromkeys(ids, log))


@pytest.mark.parametrize("states", [["FAILED"], ["FAILED", "FAILED"]])
def test_it_need_not_have_been_listed_at_all(rig: Rig, states: list[str]) -> None:
    missing(rig, *states)
    (pod,) = listed(rig)
    assert "for us: Reason: InsufficientInstanceCapacity: no p5.48xlarge here (" in pod.never_made


OTHERWISE: dict[str, list[str]] = {
    "goes on": ["RUNNING"],
    "is parked": ["WAITING"],
    "was called off": ["CANCELLED"],
    "came through": ["SUCCEEDED"],
    "has a second": ["FAILED", "PENDING"],
    "had a second that was called off": ["FAILED", "CANCELLED"],
    "was forgotten": [],
}


@pytest.mark.parametrize("states", OTHERWISE.values(), ids=OTHERWISE.keys())
def test_what_was_made_or_may_still_be_is_not_given_up(rig: Rig, states: list[str]) -> None:
    missing(rig, *states)
    assert listed(rig) == []
    bill = rig.compute().bill(NAME)
    assert bill is not None
    assert not bill.final


@pytest.mark.parametrize("error", [SET_UP, "", GONE])
def test_one_that_failed_otherwise_may_have_made_a_machine(rig: Rig, error: str) -> None:
    """Also where another place, that was tried before, had nothing."""
    missing(rig, "FAILED", log=(TRIED, error))
    assert listed(rig) == []


def test_what_was_listed_before_its_launch_had_failed_proves_nothing(rig: Rig) -> None:
    """Between the list and the question its cluster is made, and its set-up fails."""
    rig.compute().create(request())
    there = rig.told()["clusters"]
    (launch,) = rig.told()["requests"]
    missing(rig, "FAILED")
    rig.set(then={"api logs": {"clusters": there}})
    assert launch["status"] == "RUNNING"
    assert [(pod.status, pod.never_made) for pod in listed(rig)] == [("creating", "")]


def test_no_cached_list_proves_it(rig: Rig) -> None:
    missing(rig, "FAILED")
    rig.set(fail={" -r": "KeyError: 'EXITED'"})
    assert listed(rig) == []
    rig.set(fail={"api": "sky.exceptions.ApiServerConnectionError: Could not connect"})
    assert listed(rig) == []
    rig.set(fail={})
    assert [pod.status for pod in listed(rig)] == ["gone"]


@pytest.mark.parametrize("by_us", [True, False])
def test_a_machine_that_was_there_and_was_taken_down_was_made(rig: Rig, by_us: bool) -> None:
    compute = rig.compute()
    compute.create(request())
    (launch,) = rig.told()["requests"]
    logs = {launch["request_id"]: SOLD_OUT}
    rig.set(requests=[launch | {"status": "FAILED"}], logs=logs)
    rig.row(init_kind="unhealthy", launched_at=int(NOW))
    rig.later(10.0)
    if by_us:
        assert compute.terminate(NAME) is True
    compute.list_pods()
    assert rig.told()["clusters"] == {}, "it has no agent: it was ended"
    assert listed(rig) == []
    rig.later(60.0)
    assert compute.list_pods() == ()
    bill = compute.bill(NAME)
    assert bill is not None
    assert bill.amount > ZERO
