"""RunPod's address and key.

Nothing heavy is imported here, so that a command can ask whether there is a key at all before it
pays for an HTTP client.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Mapping

from trmcloud.core.catalog.torch_builds import POD_IMAGE
from trmcloud.core.errors import MissingExtra
from trmcloud.io.installation import install_command
from trmcloud.providers.seller import require_safe

ENV_KEY = "RUNPOD_API_KEY"
ENV_API = "TRMCLOUD_RUNPOD_API"
"""Base URL of REST v2; the part ``/v2`` may be left out."""
ENV_GRAPHQL = "RUNPOD_API_BASE_URL"
"""Base URL of GraphQL, the name that RunPod's own tools read."""
ENV_IMAGE = "TRMCLOUD_RUNPOD_IMAGE"

API = "https://api.runpod.io"

CONFIG = Path(".runpod") / "config.toml"
_MAX_CONFIG_BYTES = 1 << 16
_NEEDS = ("httpx2", "pydantic")


def account_key(environ: Mapping[str, str]) -> str | None:
    """The account's key: ``RUNPOD_API_KEY``, else what RunPod's own tools keep in
    ``~/.runpod/config.toml``; None where there is none."""
    key = environ.get(ENV_KEY, "").strip()
    if key:
        return key
    import tomllib  # of no use to most commands

    path = Path(environ.get("HOME", "/")) / CONFIG
    try:
        with path.open("rb") as file:
            data = tomllib.loads(file.read(_MAX_CONFIG_BYTES).decode("utf-8"))
    except (OSError, ValueError):
        return None
    # runpodctl writes the first at the top, the SDK the second in a profile.
    default = data.get("default")
    for table in (data, default if isinstance(default, dict) else {}):
        for name in ("apikey", "apiKey", "api_key"):
            if isinstance(table.get(name), str) and table[name].strip():
                return str(table[name]).strip()
    return None


def api_base(environ: Mapping[str, str]) -> str:
    """Base URL of REST v2, without ``/v2``.

    Raises:
        UsageError: it is neither https nor this machine: a key would travel in the clear.
    """
    return require_safe(environ.get(ENV_API) or API, ENV_API).removesuffix("/v2")


def graphql_url(environ: Mapping[str, str]) -> str:
    """URL of GraphQL. Where only v2's base is overridden, GraphQL is looked for beside it.

    Raises:
        UsageError: as ``api_base``.
    """
    base = environ.get(ENV_GRAPHQL)
    if base:
        return require_safe(base, ENV_GRAPHQL) + "/graphql"
    return api_base(environ) + "/graphql"


def image(environ: Mapping[str, str]) -> str:
    return environ.get(ENV_IMAGE, "").strip() or POD_IMAGE


def require_client() -> None:
    """
    Raises:
        MissingExtra: what speaks to RunPod is not installed.
    """
    if any(importlib.util.find_spec(name) is None for name in _NEEDS):
        raise MissingExtra("renting from RunPod", "runpod", install_command("runpod"))


def pod_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Addresses that a pod needs to end itself, where they are not RunPod's own, and whence it is
    to install. No key is in it: RunPod gives each pod one of its own."""
    from trmcloud.pod.machine.environment import install_settings

    addresses = {name: environ[name] for name in (ENV_API, ENV_GRAPHQL) if environ.get(name)}
    return {**addresses, **install_settings(environ)}
