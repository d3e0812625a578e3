"""The part of ``wiring`` that builds whom SkyPilot rents from."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trmcloud.adapters.skypilot.clusters import Clusters
    from trmcloud.adapters.skypilot.command import Sky
    from trmcloud.adapters.skypilot.compute import SkyPilotCompute
    from trmcloud.adapters.ssh.link import SshPodLink
    from trmcloud.export.task import SkyNames


class SkyPilot:
    """SkyPilot's side of the ports: one table of clusters for all providers behind it.

    ``trainer`` is where the trainer's package is.
    """

    def __init__(self, home: Path, trainer: Callable[[], Path]) -> None:
        self._home, self._trainer = home, trainer
        self._computes: dict[str, SkyPilotCompute] = {}
        self._shared: tuple[Sky, Clusters] | None = None

    def compute(self, provider: str) -> SkyPilotCompute:
        """
        Raises:
            ProviderRefused: SkyPilot is not installed.
        """
        if provider in self._computes:
            return self._computes[provider]
        from trmcloud.adapters.runpod.bundle import boot_payload
        from trmcloud.adapters.skypilot.aws import ShutdownLimit
        from trmcloud.adapters.skypilot.clusters import Clusters
        from trmcloud.adapters.skypilot.command import Sky, find_sky
        from trmcloud.adapters.skypilot.compute import SkyPilotCompute
        from trmcloud.adapters.ssh.keys import KeyStore

        if self._shared is None:
            sky = Sky(find_sky(os.environ), os.environ)
            self._shared = sky, Clusters(sky)
        sky, clusters = self._shared
        self._computes[provider] = SkyPilotCompute(
            provider,
            sky,
            KeyStore(self._home).for_pod,
            lambda: boot_payload(self._trainer()),
            self._home / provider,
            clusters=clusters,
            shutdown=ShutdownLimit() if provider == "aws" else None,
        )
        return self._computes[provider]

    def link(self, provider: str) -> SshPodLink:
        """Through SkyPilot's own connection to the machine, to the pod's server, which is pinned.

        Raises:
            ProviderRefused: SkyPilot is not installed.
        """
        from trmcloud.adapters.ssh.link import SshPodLink

        compute = self.compute(provider)
        return SshPodLink(
            self._home,
            compute.address_of,
            now=time.time,
            way_to=compute.way_to,
            ways_to_others=compute.ways_to_others,
        )


def skypilot_names() -> SkyNames:
    """Its words for what is exported to it."""
    from trmcloud.adapters.skypilot.task import CLOUDS, LIMIT_SLACK_MINUTES, accelerator
    from trmcloud.core.catalog.providers import RUNPOD_BY_SKYPILOT
    from trmcloud.export.task import SkyNames

    clouds = {name: cloud for name, cloud in CLOUDS.items() if name != RUNPOD_BY_SKYPILOT}
    return SkyNames(clouds, accelerator, LIMIT_SLACK_MINUTES)


def enabled_by_skypilot() -> list[str]:
    """Providers that SkyPilot has access to.

    Raises:
        ProviderError: it is not installed, too old, or cannot be asked.
    """
    from trmcloud.adapters.skypilot.command import Sky, find_sky
    from trmcloud.adapters.skypilot.task import CLOUDS

    sky = Sky(find_sky(os.environ), os.environ)
    sky.version()
    enabled = sky.enabled()
    return [provider for provider, cloud in CLOUDS.items() if cloud in enabled]
