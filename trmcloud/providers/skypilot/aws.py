"""AWS's own limit: an instance that is shut down is terminated, once it is told to be.

SkyPilot leaves EC2's default, by which shutting down only stops an instance, whose disks go on
being billed. With the other setting the agent ends its machine without any credentials on it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from trmcloud.ports.compute import OwnLimit
from trmcloud.providers.skypilot.task import POD_LABEL

SHUTDOWN = "shutdown"
AGAIN_S = 120.0
_ATTRIBUTE = "instanceInitiatedShutdownBehavior"
_STATES = ("pending", "running", "stopping", "stopped")
_TIMEOUT_S = 10
_MAX_TEXT = 160


class ShutdownLimit:
    """Sets the behaviour of a cluster's instances, and reads it back: what EC2 says counts, not
    what it was asked. Credentials are those that boto3 finds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, OwnLimit] = {}
        self._tried_at: dict[str, float] = {}

    def limit(self, pod_name: str) -> OwnLimit:
        return self._known.get(pod_name) or OwnLimit(SHUTDOWN, False, "not looked at yet")

    def see_to(self, pod_name: str, region: str, at: float, instances: int = 1) -> None:
        """Set and verify it where it is not known to be, on as many ``instances`` as there should
        be; never fails, tries again in a while."""
        with self._lock:
            tried_at = self._tried_at.get(pod_name)
            if self.limit(pod_name).armed:
                return
            if tried_at is not None and 0 <= at - tried_at < AGAIN_S:
                return
            self._tried_at[pod_name] = at
            try:
                wrong = _set(pod_name, region, instances)
            except ImportError:
                wrong = "boto3 is not installed: pip install 'trmcloud[s3]'"
            except Exception as error:  # boto3 makes its own kinds as it goes
                wrong = f"{type(error).__name__}: {error}"[:_MAX_TEXT]
            text = f"it could not be set: {wrong}" if wrong else "EC2: powering off terminates it"
            self._known[pod_name] = OwnLimit(SHUTDOWN, not wrong, text)


def _set(pod_name: str, region: str, instances: int) -> str:
    """What is wrong; empty where every instance now says that it will be terminated."""
    import boto3
    from botocore.config import Config

    if not region:
        return "its region is not known yet"
    config = Config(
        connect_timeout=_TIMEOUT_S, read_timeout=_TIMEOUT_S, retries={"max_attempts": 2}
    )
    ec2 = boto3.client("ec2", region_name=region, config=config)
    found = ec2.describe_instances(
        Filters=[
            {"Name": f"tag:{POD_LABEL}", "Values": [pod_name]},
            {"Name": "instance-state-name", "Values": list(_STATES)},
        ]
    )
    ids = [one["InstanceId"] for group in found["Reservations"] for one in group["Instances"]]
    for instance in ids:
        ec2.modify_instance_attribute(InstanceId=instance, Attribute=_ATTRIBUTE, Value="terminate")
    said = {one: _behaviour(ec2, one) for one in ids}
    other = [f"{one} says {text}" for one, text in said.items() if text != "terminate"]
    if len(ids) < instances:
        return f"of {instances} instances {len(ids)} in {region} bear its name"
    return ", ".join(other)


def _behaviour(ec2: Any, instance: str) -> str:
    told: Mapping[str, Any] = ec2.describe_instance_attribute(
        InstanceId=instance, Attribute=_ATTRIBUTE
    )
    return str(told.get("InstanceInitiatedShutdownBehavior", {}).get("Value"))
