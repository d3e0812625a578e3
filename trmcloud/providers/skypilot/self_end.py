"""The ways in which a machine that SkyPilot made ends itself. Runs there: standard library only,
Python 3.10."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

_AUTODOWN_WITHIN_S = 60.0
"""Importing SkyPilot alone takes seconds."""
_TEARDOWN_WITHIN_S = 240.0
"""It waits for the cloud to have ended them, which its own end cuts short."""
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_PYTHON = "skypilot-runtime/bin/python"
_AUTODOWN_NOW = (
    "from sky.skylet import autostop_lib as a; "
    "a.set_autostop(0, 'cloudvmray', a.AutostopWaitFor.NONE, True)"
)
"""SkyPilot's daemon on the machine looks once a minute, and ends it with what it was given."""
_TEARDOWN_NOW = (
    "import os; os.environ.update(dict.fromkeys("
    "('AWS_SHARED_CREDENTIALS_FILE', 'AWS_CONFIG_FILE'), '/dev/null')); "
    "from sky import provision; from sky.utils import cluster_utils as u, yaml_utils; "
    "c = yaml_utils.read_yaml(os.path.expanduser(u.SKY_CLUSTER_YAML_REMOTE_PATH)); "
    "provision.terminate_instances(u.get_provider_name(c), c['cluster_name'], c['provider'])"
)
"""The action of that daemon, which runs on the first machine alone; all machines have the files
that it needs. On AWS by the role of the machine, as there."""

_Ways = list[tuple[str, Callable[[], Any]]]


def ways(environment: Mapping[str, str], tools: Any) -> _Ways:
    """(name, what tries it): its autodown, at once."""
    return _by_sky("skypilot autodown", _AUTODOWN_NOW, _AUTODOWN_WITHIN_S, environment, tools)


def cluster_ways(environment: Mapping[str, str], tools: Any) -> _Ways:
    """Likewise, by which any machine of a cluster ends them all."""
    return _by_sky("skypilot teardown", _TEARDOWN_NOW, _TEARDOWN_WITHIN_S, environment, tools)


def _by_sky(
    name: str, script: str, within_s: float, environment: Mapping[str, str], tools: Any
) -> _Ways:
    """Its settings lie in the home of the user who made the cluster, whom root acts for here."""
    user, home = environment.get("TRMCLOUD_SKY_USER", "root"), environment.get("TRMCLOUD_SKY_HOME")
    if not home or not _USER.fullmatch(user):
        return []
    words = [f"{home}/{_PYTHON}", "-c", script]
    if user != "root" and os.geteuid() == 0:
        words = ["sudo", "-n", "-H", "-u", user, *words]
    own = {"HOME": home, "PATH": environment.get("PATH", os.defpath)}
    return [(name, partial(tools.command, words, own, within_s=within_s))]
