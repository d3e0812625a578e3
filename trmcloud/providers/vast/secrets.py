"""vast.ai's address, key and image. Nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trmcloud.core.catalog.torch_builds import POD_IMAGE
from trmcloud.providers.seller import require_safe

ENV_KEY = "VAST_API_KEY"
ENV_API = "TRMCLOUD_VAST_API"
"""Base URL of the API; its part ``/api/v0`` may be left out."""
ENV_OWN_API = "VAST_URL"
"""The name that vast.ai's own client reads."""
ENV_IMAGE = "TRMCLOUD_VAST_IMAGE"

API = "https://console.vast.ai"
KEY_FILES = (Path(".config") / "vastai" / "vast_api_key", Path(".vast_api_key"))
"""The files where vast.ai's own client keeps the key, below HOME, newest first."""
_MAX_KEY_BYTES = 1 << 12


def account_key(environ: Mapping[str, str]) -> str | None:
    """The account's key: ``VAST_API_KEY``, else what vast.ai's own client keeps; None where there
    is none."""
    key = environ.get(ENV_KEY, "").strip()
    if key:
        return key
    home, found = Path(environ.get("HOME", "/")), ""
    config = environ.get("XDG_CONFIG_HOME", "")
    own = (Path(config) / "vastai" / "vast_api_key",) if config else ()
    for path in (*own, *(home / file for file in KEY_FILES)):
        try:
            with path.open("rb") as file:
                found = str(file.read(_MAX_KEY_BYTES), "ascii").strip()
        except (OSError, ValueError):
            continue
        if found and found.isprintable() and " " not in found:
            return found
    return None


def api_base(environ: Mapping[str, str]) -> str:
    """Base URL of the API, without ``/api/v0``.

    Raises:
        UsageError: it is neither https nor this machine: a key would travel in the clear.
    """
    named = ENV_API if environ.get(ENV_API) else ENV_OWN_API
    return require_safe(environ.get(named) or API, named).removesuffix("/api/v0")


def image(environ: Mapping[str, str]) -> str:
    return environ.get(ENV_IMAGE, "").strip() or POD_IMAGE


def pod_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The address by which a pod ends itself, where it is not vast.ai's own, and the settings for
    its installs. No key is in it: vast.ai gives each instance one of its own."""
    from trmcloud.pod.machine.environment import install_settings

    own = {ENV_API: api_base(environ)} if api_base(environ) != API else {}
    return {**own, **install_settings(environ)}
