"""The way in which a vast.ai instance ends itself. Runs on the pod: standard library only,
Python 3.10.

vast.ai gives every container ``CONTAINER_ID`` and ``CONTAINER_API_KEY``, a key that can start, stop
or destroy that instance and nothing else. A stopped instance still bills its disk, so it is
destroyed; it is stopped only where that is refused, since then its GPUs at least cost nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

MARK = "CONTAINER_API_KEY"
"""vast.ai sets it in every container."""
SECRETS = ("CONTAINER_API_KEY",)
"""Never in the environment of a trainer, of what it starts, or of a login."""
TOLD_BY_PREFIX = ("CONTAINER_", "VAST_")
"""The prefixes of variables that vast.ai sets for a container's first process."""

_DEFAULT_API = "https://console.vast.ai"
_ENV_API = "TRMCLOUD_VAST_API"
_ID = re.compile(r"[0-9]{1,18}")


def ways(environment: Mapping[str, str], tools: Any) -> list[tuple[str, Callable[[], Any]]]:
    """(name, what tries it), in the order in which they are tried."""
    instance, key = environment.get("CONTAINER_ID", ""), environment.get(MARK, "")
    if not _ID.fullmatch(instance) or not key:
        return []
    base = (environment.get(_ENV_API) or _DEFAULT_API).rstrip("/").removesuffix("/api/v0")
    url = f"{base}/api/v0/instances/{instance}/"
    request, command = partial(tools.request, key=key), partial(tools.command, hide=key)
    words = ("vastai", "destroy", "instance", instance, "-y")
    own = {**environment, "VAST_API_KEY": key, "VAST_URL": base}
    return [
        ("destroy", partial(request, "DELETE", url, {})),
        ("vastai destroy", partial(command, words, own)),
        ("stop", partial(request, "PUT", url, {"state": "stopped"})),
    ]
