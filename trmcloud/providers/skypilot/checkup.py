"""What ``doctor`` asks of SkyPilot: whether it is there, new enough, up, and what it may rent."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

from trmcloud.app.doctor import Finding
from trmcloud.core.catalog.providers import RUNPOD_BY_SKYPILOT, RUNPOD_BY_SKYPILOT_ENDS
from trmcloud.core.errors import ProviderError
from trmcloud.providers.skypilot.command import ENV_SKY, Sky, find_sky
from trmcloud.providers.skypilot.homes import SkyHome
from trmcloud.providers.skypilot.secrets import is_there
from trmcloud.providers.skypilot.task import CLOUDS

_NAME = "skypilot"


def enabled_in(program: str, home: SkyHome) -> bool:
    """Whether SkyPilot has access to its cloud from its own home. A server that was started for
    the question alone is stopped again.

    Raises:
        ProviderError: SkyPilot is too old, or cannot be asked.
    """
    home.lay()
    sky = Sky(program, home.environ())
    sky.version()
    is_enabled = CLOUDS[home.provider] in sky.enabled(CLOUDS[home.provider])
    if not home.has_clusters:
        with contextlib.suppress(ProviderError):
            sky.run("api", "stop")
    return is_enabled


def check_skypilot(
    environ: Mapping[str, str],
    used: Callable[[str], bool],
    home_of: Callable[[str], SkyHome],
) -> list[Finding]:
    """Nothing is started where it was neither named nor rented through: asking it whether it may
    rent starts a server. ``used``: whether this home rented from a provider; ``home_of``: where
    ``sky`` runs for it."""
    needed = bool(environ.get(ENV_SKY)) or any(used(provider) for provider in CLOUDS)
    user_home = Path(environ.get("HOME") or Path.home())
    try:
        program = find_sky(environ)
        version = Sky(program, environ).version()
        if not needed:
            return [Finding(_NAME, "ok", f"{version}; not asked which clouds it may rent from")]
        asked = [name for name in CLOUDS if is_there(name, user_home, environ)]
        names = sorted(name for name in asked if enabled_in(program, home_of(name)))
    except ProviderError as error:
        if not needed:
            detail = "not used: clouds other than RunPod are rented through it"
            return [Finding(_NAME, "ok", detail)]
        return [Finding(_NAME, "bad", error.what, error.next_step)]
    if not names:
        why = f"no cloud is enabled; credentials found: {', '.join(asked) or 'none'}"
        return [Finding(_NAME, "warn", f"{version}; {why}", "docs/guide/skypilot.md")]
    told = Finding(_NAME, "ok", f"{version}; enabled: {', '.join(names)}")
    if RUNPOD_BY_SKYPILOT not in names:
        return [told]
    return [told, Finding(RUNPOD_BY_SKYPILOT, "ok", RUNPOD_BY_SKYPILOT_ENDS)]
