"""What EC2 answers of a cluster's instances, in the fields of its published API.

``tests/contract/test_skypilot_aws.py`` asks moto's EC2 the same.
"""

from __future__ import annotations

from typing import Any

import pytest

from trmcloud.io.installation import install_command
from trmcloud.providers.skypilot.task import ShutdownLimit

boto3 = pytest.importorskip("boto3")
POD = "trmc-0a1b2c3d-r1-g1-1795267600"


class Ec2:
    """Instances by group, and what each says once it was told."""

    def __init__(self) -> None:
        self.groups: Any = [["i-1"], ["i-2"]]
        self.says: dict[str, Any] = {}
        self.asked: list[Any] = []
        self.told: list[str] = []

    def client(self, name: str, *, region_name: str, config: Any) -> Ec2:
        assert name == "ec2"
        assert (config.connect_timeout, config.read_timeout) == (10, 10)
        assert config.retries["max_attempts"] == 2
        self.asked.append(region_name)
        return self

    def describe_instances(self, *, Filters: Any) -> Any:
        self.asked.append({each["Name"]: each["Values"] for each in Filters})
        return {"Reservations": [
            {"Instances": [{"InstanceId": one} for one in group]} for group in self.groups
        ]}  # fmt: skip

    def modify_instance_attribute(self, *, InstanceId: str, Attribute: str, Value: str) -> None:
        assert (Attribute, Value) == ("instanceInitiatedShutdownBehavior", "terminate")
        self.told.append(InstanceId)

    def describe_instance_attribute(self, *, InstanceId: str, Attribute: str) -> Any:
        assert Attribute == "instanceInitiatedShutdownBehavior"
        return self.says.get(
            InstanceId, {"InstanceInitiatedShutdownBehavior": {"Value": "terminate"}}
        )


@pytest.fixture
def ec2(monkeypatch: pytest.MonkeyPatch) -> Ec2:
    made = Ec2()
    monkeypatch.setattr(boto3, "client", made.client)
    return made


def seen_to(instances: int = 2, region: str = "us-west-2") -> tuple[bool, str]:
    limit = ShutdownLimit()
    limit.see_to(POD, region, 0.0, instances)
    return limit.limit(POD).armed, limit.limit(POD).detail


def test_every_instance_of_the_name_is_told_and_asked(ec2: Ec2) -> None:
    assert seen_to() == (True, "EC2: powering off terminates it")
    assert ec2.told == ["i-1", "i-2"]
    states = ["pending", "running", "stopping", "stopped"]
    assert ec2.asked == [
        "us-west-2", {"tag:trmcloud-pod": [POD], "instance-state-name": states},
    ]  # fmt: skip


@pytest.mark.parametrize("answer", [{}, {"InstanceInitiatedShutdownBehavior": {}}])
def test_what_is_not_said_is_not_so(ec2: Ec2, answer: Any) -> None:
    ec2.says = {"i-2": answer}
    assert seen_to() == (False, "it could not be set: i-2 says None")


def test_each_that_says_otherwise_is_named(ec2: Ec2) -> None:
    stop = {"InstanceInitiatedShutdownBehavior": {"Value": "stop"}}
    ec2.says = {"i-1": stop, "i-2": stop}
    assert seen_to() == (False, "it could not be set: i-1 says stop, i-2 says stop")


def test_fewer_than_there_should_be_are_too_few(ec2: Ec2) -> None:
    said = "it could not be set: of 3 instances 2 in us-west-2 have its name"
    assert seen_to(3) == (False, said)
    assert seen_to(1)[0], "one more is told, too"


def test_a_cluster_is_of_one_machine_where_nobody_says_more(ec2: Ec2) -> None:
    for groups, armed in (([["i-1"]], True), ([[]], False)):
        ec2.groups, limit = groups, ShutdownLimit()
        limit.see_to(POD, "r", 0.0)
        assert limit.limit(POD).armed is armed


def test_without_a_region_nobody_is_asked(ec2: Ec2) -> None:
    assert seen_to(region="") == (False, "it could not be set: its region is not known yet")
    assert ec2.asked == []


@pytest.mark.parametrize("groups", [None, [None], [[None]], 5])
def test_an_answer_that_is_none_is_no_limit(ec2: Ec2, groups: Any) -> None:
    ec2.groups = groups
    armed, said = seen_to()
    assert not armed
    assert said.startswith("it could not be set: ")


def test_an_error_is_cut_and_tried_again_later(ec2: Ec2, monkeypatch: pytest.MonkeyPatch) -> None:
    limit, tries = ShutdownLimit(), []
    assert (limit.limit(POD).armed, limit.limit(POD).detail) == (False, "not checked yet")

    def refuse(**asked: Any) -> Any:
        tries.append(asked)
        raise ValueError("x" * 500)

    monkeypatch.setattr(ec2, "describe_instances", refuse)
    looks = (100.0, 1), (100.0, 1), (219.0, 1), (220.0, 2), (219.5, 3)
    for at, tried in looks:
        limit.see_to(POD, "r", at)
        assert len(tries) == tried
    said = limit.limit(POD).detail
    assert said == "it could not be set: " + f"ValueError: {'x' * 500}"[:160]
    monkeypatch.undo()
    monkeypatch.setattr(boto3, "client", ec2.client)
    limit.see_to(POD, "r", 219.5 + 120.0, 2)
    assert limit.limit(POD).armed
    asked = len(ec2.asked)
    limit.see_to(POD, "r", 1e9, 2)
    assert len(ec2.asked) == asked, "what is set stays so"


def test_without_boto3_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "boto3", None)
    said = f"it could not be set: boto3 is not installed: {install_command('s3')}"
    assert seen_to() == (False, said)
