"""The ways in which a RunPod pod ends itself. Runs on the pod: standard library only, Python 3.10.

Which of RunPod's ways a pod-scoped key may use is documented nowhere, so all are tried. First comes
the one that was seen to work, v2's action; v2 takes such keys, which its predecessor refused;
GraphQL did, and ends early in 2027; what ``runpodctl`` speaks depends on its age.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

MARK = "RUNPOD_POD_ID"
"""RunPod sets it in every container."""
SECRETS = ("RUNPOD_API_KEY",)
"""Never in the environment of a trainer, of what it starts, or of a login."""
TOLD_BY_PREFIX = ("RUNPOD_",)
"""The prefixes of variables that RunPod sets for a container's first process alone."""

_DEFAULT_API = "https://api.runpod.io"
_ENV_API = "TRMCLOUD_RUNPOD_API"
_ENV_GRAPHQL = "RUNPOD_API_BASE_URL"
_POD_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def ways(environment: Mapping[str, str], tools: Any) -> list[tuple[str, Callable[[], Any]]]:
    """(name, what tries it), in the order in which they are tried."""
    pod_id = environment.get(MARK, "")
    key = environment.get(SECRETS[0], "")
    if not _POD_ID.fullmatch(pod_id):
        return []
    # With or without its last part, as on the controller; GraphQL lies beside it.
    base = (environment.get(_ENV_API) or _DEFAULT_API).rstrip("/").removesuffix("/v2")
    graphql = (environment.get(_ENV_GRAPHQL) or base).rstrip("/") + "/graphql"
    pod = f"{base}/v2/pods/{pod_id}"
    mutation = f"mutation {{ podTerminate(input: {{podId: {json.dumps(pod_id)}}}) }}"
    request, command = partial(tools.request, key=key), partial(tools.command, hide=key)
    return [
        ("v2 action terminate", partial(request, "POST", f"{pod}/action", {"action": "terminate"})),
        ("v2 delete", partial(request, "DELETE", pod)),
        # GraphQL answers 200 whatever happened.
        (
            "graphql podTerminate",
            partial(request, "POST", graphql, {"query": mutation}, errors_in_body=True),
        ),
        (
            "runpodctl remove pod",
            partial(command, ("runpodctl", "remove", "pod", pod_id), environment),
        ),
        (
            "runpodctl pod delete",
            partial(command, ("runpodctl", "pod", "delete", pod_id), environment),
        ),
    ]
