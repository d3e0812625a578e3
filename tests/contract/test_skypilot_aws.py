"""AWS's own limit, on moto's EC2: set, read back, and absent where it cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.standins.s3 import running
from trmcloud.providers.skypilot.task import AGAIN_S, ShutdownLimit

pytest.importorskip("moto")
POD = "trmc-0a1b2c3d-r1-g1-1795267600"
REGION = "us-west-2"


@pytest.fixture(scope="module")
def ec2() -> Iterator[Any]:
    """An EC2 with two instances that bear the pod's name, in one region."""
    import boto3

    with running() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name.replace("_S3", "_EC2"), value)
        client = boto3.client("ec2", region_name=REGION)
        image = client.describe_images()["Images"][0]["ImageId"]
        tags = [{"ResourceType": "instance", "Tags": [{"Key": "trmcloud-pod", "Value": POD}]}]
        client.run_instances(ImageId=image, MinCount=2, MaxCount=2, TagSpecifications=tags)
        client.run_instances(ImageId=image, MinCount=1, MaxCount=1)
        yield client


def behaviours(ec2: Any) -> list[str]:
    """Of every instance; the last is somebody else's."""
    groups = ec2.describe_instances()["Reservations"]
    ids = [instance["InstanceId"] for group in groups for instance in group["Instances"]]
    name = "instanceInitiatedShutdownBehavior"
    told = (ec2.describe_instance_attribute(InstanceId=one, Attribute=name) for one in ids)
    return [one["InstanceInitiatedShutdownBehavior"]["Value"] for one in told]


def test_powering_off_terminates_every_instance_of_the_pod_and_no_other(ec2: Any) -> None:
    limit = ShutdownLimit()
    assert not limit.limit(POD).armed
    limit.see_to(POD, "us-east-1", 0.0)
    told = limit.limit(POD)
    assert (told.armed, told.layer) == (False, "shutdown")
    assert "of 1 instances 0 in us-east-1 have its name" in told.detail
    limit.see_to(POD, REGION, AGAIN_S - 1)
    assert not limit.limit(POD).armed, "not asked again so soon"
    assert behaviours(ec2) == ["stop", "stop", "stop"]
    limit.see_to(POD, REGION, AGAIN_S)
    assert limit.limit(POD).armed
    assert behaviours(ec2) == ["terminate", "terminate", "stop"]
    more = ShutdownLimit()
    more.see_to(POD, REGION, 0.0, 3)
    assert (more.limit(POD).armed, "of 3 instances 2" in more.limit(POD).detail) == (False, True)


def test_where_ec2_refuses_the_layer_is_absent(ec2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", "http://127.0.0.1:9")
    limit = ShutdownLimit()
    limit.see_to(POD, REGION, 0.0)
    told = limit.limit(POD)
    assert not told.armed
    assert "could not be set: EndpointConnectionError" in told.detail
    monkeypatch.delenv("AWS_ENDPOINT_URL_EC2")
    limit.see_to(POD, "", AGAIN_S)
    assert "region is not known" in limit.limit(POD).detail
