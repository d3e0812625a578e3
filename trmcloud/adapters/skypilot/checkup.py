"""What ``doctor`` asks of SkyPilot: whether it is there, new enough, up, and what it may rent."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trmcloud.adapters.skypilot.command import ENV_SKY, Sky, find_sky
from trmcloud.adapters.skypilot.task import CLOUDS
from trmcloud.app.doctor import Finding
from trmcloud.core.catalog.providers import RUNPOD_BY_SKYPILOT, RUNPOD_BY_SKYPILOT_ENDS
from trmcloud.core.errors import ProviderError

_NAME = "skypilot"


def check_skypilot(environ: Mapping[str, str], used: Callable[[str], bool]) -> list[Finding]:
    """Nothing is started where it was neither named nor rented through: asking it which clouds it
    may rent from starts its server. ``used``: whether this home rented from a provider."""
    needed = bool(environ.get(ENV_SKY)) or any(used(provider) for provider in CLOUDS)
    try:
        sky = Sky(find_sky(environ), environ)
        version = sky.version()
        if not needed:
            return [Finding(_NAME, "ok", f"{version}; not asked which clouds it may rent from")]
        enabled = sky.enabled()
    except ProviderError as error:
        if not needed:
            detail = "not used: clouds other than RunPod are rented through it"
            return [Finding(_NAME, "ok", detail)]
        return [Finding(_NAME, "bad", error.what, error.next_step)]
    names = sorted(provider for provider, cloud in CLOUDS.items() if cloud in enabled)
    if not names:
        return [Finding(_NAME, "warn", f"{version}; no cloud is enabled", "sky check")]
    told = Finding(_NAME, "ok", f"{version}; enabled: {', '.join(names)}")
    if RUNPOD_BY_SKYPILOT not in names:
        return [told]
    return [told, Finding(RUNPOD_BY_SKYPILOT, "ok", RUNPOD_BY_SKYPILOT_ENDS)]
