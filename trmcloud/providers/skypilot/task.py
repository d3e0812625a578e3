"""From a PodRequest to a SkyPilot task: a cluster that carries our agent, and limits of its own.

A task is written as JSON, which is YAML too.

AWS has a limit of its own: an instance that is shut down is terminated, once it is told to be.
SkyPilot leaves EC2's default, by which shutting down only stops an instance, whose disks go on
being billed. With the other setting the agent ends its machine without any credentials on it.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping
from typing import Any

from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.errors import NotSupported
from trmcloud.core.storage import pod_disks_gb
from trmcloud.io.installation import install_command
from trmcloud.pod.machine.environment import install_settings
from trmcloud.ports.compute import PodKeys, PodRequest, ProviderLimit
from trmcloud.providers.skypilot.traits import CLOUDS, RUNPOD_BY_SKYPILOT

#: One name is several chips: elsewhere H100 and A100-80GB are the SXM boards.
_RUNPOD_NAMES: Mapping[str, str] = {
    "A100-80GB-SXM": "A100-80GB-SXM",
    "A100-80GB-PCIe": "A100-80GB",
    "H100-SXM": "H100-SXM",
    "H100-PCIe": "H100",
    "H100-NVL": "H100-NVL",
    "H200": "H200-SXM",
}
_NAMES: Mapping[str, str] = {
    "A100-80GB-SXM": "A100-80GB",
    "A100-40GB": "A100",
    "H100-SXM": "H100",
    "H200": "H200",
}
_AZURE_NAMES: Mapping[str, str] = {"A100-80GB-PCIe": "A100-80GB", "H100-NVL": "H100"}
_EVERYWHERE = ("B200", "L40S", "RTX4090", "RTX3090", "L4", "A10G")
LIMIT_SLACK_MINUTES = 3
"""The time by which the cluster's own limit comes after the hard stop."""
POD_LABEL = "trmcloud-pod"
"""The tag of an AWS instance that holds our name: SkyPilot shortens its own."""
BOOT_ARCHIVE = "~/.trmcloud/boot.tar.gz"

_SKY_WORDS = ("TRMCLOUD_SKY_HOME", "TRMCLOUD_SKY_USER", contract.ENV_NODES)
"""The variables that the job finds by itself."""

#: The guard needs Python 3.10 alone: the image's, or SkyPilot's own, which it brings along where
#: the image has none or an older one. It leaves the job's session at once: SkyPilot ends a job with
#: all that belongs to it, and the guard must outlive it. The job itself goes on showing what the
#: agent says, without the pod's mark: whatever bears that is the agent's to kill.
_RUN = f"""\
set -eu
export TRMCLOUD_SKY_HOME="$HOME" TRMCLOUD_SKY_USER="$(id -un)"
if [ "${{SKYPILOT_NUM_NODES:-1}}" -gt 1 ]; then
    head="$(printf '%s\\n' "$SKYPILOT_NODE_IPS" | head -n 1)"
    export {contract.ENV_NODES}="$SKYPILOT_NUM_NODES $SKYPILOT_NODE_RANK $head"
fi
python=""
for each in python3 "$HOME/skypilot-runtime/bin/python"; do
    "$each" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || continue
    python="$(command -v "$each")"
    break
done
[ -n "$python" ] || {{ echo "trmcloud: this machine has no Python 3.10 or newer" >&2; exit 1; }}
as=""
[ "$(id -u)" -eq 0 ] || as="sudo -n --preserve-env=WORDS"
archive={BOOT_ARCHIVE}
$as mkdir -p /opt/trmcloud {contract.POD_ROOT}
$as tar xzf "$archive" -C /opt/trmcloud
$as env PYTHONPATH=/opt/trmcloud sh -c \
'exec setsid -f "$0" -m trmcloud.pod.boot > /var/log/trmcloud.log 2>&1 < /dev/null' "$python"
exec env -i PATH="$PATH" tail -n +1 -F /var/log/trmcloud.log
"""


def accelerator(provider: str, sku: str) -> str:
    """SkyPilot's name of a GPU at a provider.

    Raises:
        NotSupported: SkyPilot has none for it there.
    """
    known = _RUNPOD_NAMES if provider == RUNPOD_BY_SKYPILOT else _NAMES
    if provider == "azure":
        known = {"A100-40GB": "A100", "H200": "H200", **_AZURE_NAMES}
    name = known.get(sku) or (sku if sku in _EVERYWHERE else None)
    if name is None:
        raise NotSupported(f"this version does not know {sku} at {provider} through SkyPilot")
    return name


def _place(provider: str, region: str) -> str:
    """A region in SkyPilot's words: RunPod's data centres are zones of countries."""
    parts = region.split("-")
    if provider != RUNPOD_BY_SKYPILOT or len(parts) < 3:
        return region
    return f"{parts[0] if parts[0] in ('US', 'CA') else parts[1]}/{region}"


def limit_minutes(hard_stop_at: float, now: float) -> int:
    """Minutes from ``now`` to just behind the hard stop: the cluster's own limit."""
    return max(1, math.ceil((hard_stop_at - now) / 60.0) + LIMIT_SLACK_MINUTES)


def make_task(
    provider: str,
    request: PodRequest,
    keys: PodKeys,
    boot_archive: str,
    now: float,
    environ: Mapping[str, str],
) -> str:
    """The task, as text. It holds the pod's own host key: for its owner's eyes alone. Of the user's
    ``environ`` it carries what says whence the pod is to install.

    Raises:
        NotSupported: SkyPilot cannot rent this.
    """
    if request.volume or request.volume_gb:
        raise NotSupported(
            "only RunPod has network volumes", next_step="leave out --volume, or rent at RunPod"
        )
    if request.nodes > traits_of(provider).machines.max_nodes:
        raise NotSupported(f"at {provider} SkyPilot rents one machine at a time")
    infra = CLOUDS.get(provider)
    if infra is None:
        raise NotSupported(f"SkyPilot does not rent from {provider}")
    if request.region not in ("", "any"):
        infra = f"{infra}/{_place(provider, request.region)}"
    resources: dict[str, Any] = {
        "infra": infra,
        "accelerators": {accelerator(provider, request.sku): request.gpus},
        # SkyPilot holds it against the price of one machine.
        "max_hourly_cost": float(request.rate) / request.nodes,
        "disk_size": pod_disks_gb(provider, request.disk_gb),
    }
    if request.spot:
        resources["use_spot"] = True
    if provider == "aws":
        resources["labels"] = {POD_LABEL: request.name}
    if knows_autodown(provider):
        resources["autostop"] = {
            "idle_minutes": limit_minutes(request.latest_stop_at, now),
            "down": True,
            "wait_for": "none",
        }
    words = {**_words(provider, request, keys), **install_settings(environ)}
    return json.dumps(
        {
            "name": request.name,
            "num_nodes": request.nodes,
            "resources": resources,
            "file_mounts": {BOOT_ARCHIVE: boot_archive},
            "secrets": words,
            "run": _RUN.replace("WORDS", ",".join([*words, *_SKY_WORDS])),
        },
        indent=1,
    )


def knows_autodown(provider: str) -> bool:
    """Whether SkyPilot ends clusters of this provider by its own limit."""
    return "autostop" in traits_of(provider).layers.standard


def _words(provider: str, request: PodRequest, keys: PodKeys) -> dict[str, str]:
    ways = ["skypilot"] if knows_autodown(provider) else []
    if provider == "aws":
        # At once, once the instance is set to be terminated by it; else it stops the rent at least.
        ways.append("shutdown")
    return {
        **request.agent_words(keys, "+".join(ways) or "none"),
        contract.ENV_SSH_PORT: str(contract.INNER_SSH_PORT),
        contract.ENV_SSH_LISTEN: "127.0.0.1",
    }


# -- aws ------------------------------------------------------------

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
        self._known: dict[str, ProviderLimit] = {}
        self._tried_at: dict[str, float] = {}

    def limit(self, pod_name: str) -> ProviderLimit:
        return self._known.get(pod_name) or ProviderLimit(SHUTDOWN, False, "not checked yet")

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
                wrong = f"boto3 is not installed: {install_command('s3')}"
            except Exception as error:  # boto3 makes its own kinds as it goes
                wrong = f"{type(error).__name__}: {error}"[:_MAX_TEXT]
            text = f"it could not be set: {wrong}" if wrong else "EC2: powering off terminates it"
            self._known[pod_name] = ProviderLimit(SHUTDOWN, not wrong, text)


def _set(pod_name: str, region: str, instances: int) -> str:
    """Set every instance to be terminated at its shutdown; return the trouble, '' on success."""
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
        return f"of {instances} instances {len(ids)} in {region} have its name"
    return ", ".join(other)


def _behaviour(ec2: Any, instance: str) -> str:
    told: Mapping[str, Any] = ec2.describe_instance_attribute(
        InstanceId=instance, Attribute=_ATTRIBUTE
    )
    return str(told.get("InstanceInitiatedShutdownBehavior", {}).get("Value"))
