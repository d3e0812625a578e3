"""A plan as a SkyPilot task that needs no trmcloud to be launched: YAML, to be read and edited.

It runs what an exported script runs. SkyPilot's own limit stands behind the watchdog's hard stop.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping

from trmcloud.core.spec.node_share import shared
from trmcloud.core.spec.plan import Candidate, Plan
from trmcloud.core.storage import pod_disks_gb
from trmcloud.core.values import dataclass
from trmcloud.export.script import PinnedData, estimate, spec_text
from trmcloud.export.shell import comment

_ENTRY = "trmcloud/export/task.sh"
_CARRIED = "~/.trmcloud/train.sh"
_INDENT = "    "


@dataclass(frozen=True)
class Ground:
    """What SkyPilot calls it: the cloud, the GPU, and the minutes after which its limit may end the
    cluster. ``script`` is the exported script that carries the sources; where it is empty, the
    task is launched from a checkout."""

    infra: str
    accelerator: str
    limit_minutes: int
    script: str = ""
    nodes: int = 1


@dataclass(frozen=True)
class SkyNames:
    """How SkyPilot calls what is exported: its ``clouds`` by our names of those that need no key of
    theirs on the pod, a GPU at one of them by ``accelerator`` (provider, sku), and by how many
    minutes its own limit lies behind the hard stop."""

    clouds: Mapping[str, str]
    accelerator: Callable[[str, str], str]
    limit_slack_minutes: int


def limit_minutes(candidate: Candidate, slack_minutes: int, nodes: int = 1) -> int:
    """Minutes from the first start to just behind the hard stop.

    Raises:
        UsageError: so many nodes cannot carry it out.
    """
    return math.ceil(shared(candidate, nodes).hard_stop_s / 60.0) + slack_minutes


def task(
    plan: Plan,
    candidate: Candidate,
    ground: Ground,
    *,
    data: str,
    launch: str,
    pinned: PinnedData | None = None,
) -> str:
    """The task, as YAML. ``data`` is a path on the cluster or python-stdlib; ``launch`` is the
    command that its head shows."""
    phases = "-".join(plan.spec.phases)
    script = _CARRIED if ground.script else _ENTRY
    disk_gb = pod_disks_gb("skypilot", candidate.work_gb)
    mounts = ["file_mounts:", f"  {_CARRIED}: {_text(ground.script)}"] if ground.script else []
    lines = [
        *(f"# {comment(line)}".rstrip() for line in estimate(plan, candidate, data, pinned)),
        *_on_several(candidate, ground.nodes),
        f"#   {comment(launch)}",
        "#",
        "# The clock runs from the first line of setup. What was trained lies below",
        "# ~/trmcloud-run/runs until the hard stop; fetch it before, or name a bucket below.",
        f"name: {_name(plan.spec.recipe, candidate.hardware, phases)}",
        f"num_nodes: {ground.nodes}",
        *([] if ground.script else ["workdir: ."]),
        "resources:",
        f"  infra: {ground.infra}",
        f"  accelerators: {{{ground.accelerator}: {candidate.gpus}}}",
        f"  max_hourly_cost: {candidate.reserved_rate.plain()}",
        f"  disk_size: {disk_gb}",
        "  # Behind the watchdog's own end of the cluster, should that fail.",
        f"  autostop: {{idle_minutes: {ground.limit_minutes}, down: true, wait_for: none}}",
        "envs:",
        "  # Text, or a folder of text or of prepared data, on the cluster.",
        f"  DATA: {_text(data)}",
        "  # A folder that outlives the cluster: every finished checkpoint is copied into it.",
        '  TRMCLOUD_KEEP: ""',
        "  # At the end the cluster is taken down: at the hard stop where anything was saved,",
        "  # or as many seconds after the end as are given here instead (with a bucket: 120).",
        "  TRMCLOUD_AT_END: skypilot",
        "  TRMCLOUD_LINGER_S: hard-stop",
        *(() if ground.script else _spec_lines(plan, candidate)),
        "# Storage: a bucket of yours; then set TRMCLOUD_KEEP to /kept.",
        *(mounts or ["# file_mounts:"]),
        "#   /kept:",
        "#     source: s3://NAME",
        "#     mode: MOUNT_CACHED",
        "setup: |",
        *_command(f"bash {script} set-up"),
        "run: |",
        *_command(f"bash {script}"),
        "",
    ]
    return "\n".join(lines)


def _on_several(candidate: Candidate, count: int) -> list[str]:
    if count == 1:
        return []
    each = shared(candidate, count)
    accumulation = "/".join(str(phase.settings.accumulation) for phase in each.phases)
    return [
        f"# On {count} nodes: {each.rate}/h together, so all is killed after "
        f"{each.hard_stop_s:,.0f} s, for the same",
        f"# most; {accumulation} micro-batches a step on each GPU. How it scales is not known.",
        "#",
    ]


def _spec_lines(plan: Plan, candidate: Candidate) -> list[str]:
    text = spec_text(plan, candidate)
    return ["  TRMCLOUD_SPEC: |", *(_INDENT + line for line in text.splitlines())]


def _command(command: str) -> list[str]:
    return [
        '  export RUN_DIR="$HOME/trmcloud-run"',
        '  TRMCLOUD_SKY_USER="$(id -un)"',
        '  export TRMCLOUD_SKY_USER TRMCLOUD_SKY_HOME="$HOME"',
        f"  {command}",
    ]


def _name(recipe: str, hardware: str, phases: str) -> str:
    """A recipe may be a file, whose path is no name of a task."""
    stem = recipe.rpartition("/")[2].removesuffix(".toml")
    return re.sub(r"[^a-z0-9]+", "-", f"{stem}-{hardware}-{phases}".lower()).strip("-")


def _text(value: str) -> str:
    """A JSON string is one of YAML's, too."""
    return json.dumps(value, ensure_ascii=True)
