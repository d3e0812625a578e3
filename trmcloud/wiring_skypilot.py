"""The part of ``wiring`` that builds whom SkyPilot rents from."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from trmcloud.core.catalog.providers import BY_SKYPILOT

if TYPE_CHECKING:
    from trmcloud.adapters.ssh.link import SshPodLink
    from trmcloud.app.smoke.setting import SmokeSetting
    from trmcloud.core.catalog.offers import Offer
    from trmcloud.export.task import SkyNames
    from trmcloud.providers.skypilot.both_homes import BothHomes
    from trmcloud.providers.skypilot.clusters import Clusters
    from trmcloud.providers.skypilot.command import Sky
    from trmcloud.providers.skypilot.compute import SkyPilotCompute
    from trmcloud.providers.skypilot.homes import SkyHome


class SkyPilot:
    """SkyPilot's side of the ports: a home and a table of clusters for each provider behind it,
    and one table of what was rented in the user's own home before.

    ``trainer`` is where the trainer's package is.
    """

    def __init__(self, home: Path, trainer: Callable[[], Path]) -> None:
        self.home = self._home = home
        self._trainer = trainer
        self._computes: dict[str, BothHomes] = {}
        self._shared: tuple[Sky, Clusters] | None = None

    def compute(self, provider: str) -> BothHomes:
        """
        Raises:
            ProviderRefused: SkyPilot is not installed.
        """
        if provider in self._computes:
            return self._computes[provider]
        from trmcloud.providers.skypilot.both_homes import BothHomes
        from trmcloud.providers.skypilot.clusters import Clusters
        from trmcloud.providers.skypilot.command import Sky, find_sky

        program = find_sky(os.environ)
        if self._shared is None:
            sky = Sky(program, os.environ)
            self._shared = sky, Clusters(sky)
        home = sky_home(self._home, provider)
        in_own = Sky(program, home.environ())
        own = self._made(provider, in_own, Clusters(in_own), home.seen, home)
        earlier = self._made(provider, *self._shared, self._home / provider, None)
        self._computes[provider] = BothHomes(
            own, home, earlier, Path.home(), self._home / provider, time.time
        )
        return self._computes[provider]

    def _made(
        self, provider: str, sky: Sky, clusters: Clusters, folder: Path, home: SkyHome | None
    ) -> SkyPilotCompute:
        from trmcloud.adapters.ssh.keys import KeyStore
        from trmcloud.providers.runpod.bundle import boot_payload
        from trmcloud.providers.skypilot.aws import ShutdownLimit
        from trmcloud.providers.skypilot.compute import SkyPilotCompute

        return SkyPilotCompute(
            provider,
            sky,
            KeyStore(self._home).for_pod,
            lambda: boot_payload(self._trainer()),
            folder,
            clusters=clusters,
            shutdown=ShutdownLimit() if provider == "aws" else None,
            home=home,
            settings=os.environ,
        )

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
    from trmcloud.core.catalog.providers import RUNPOD_BY_SKYPILOT
    from trmcloud.export.task import SkyNames
    from trmcloud.providers.skypilot.task import CLOUDS, LIMIT_SLACK_MINUTES, accelerator

    clouds = {name: cloud for name, cloud in CLOUDS.items() if name != RUNPOD_BY_SKYPILOT}
    return SkyNames(clouds, accelerator, LIMIT_SLACK_MINUTES)


def skypilot_setting(skypilot: SkyPilot, provider: str) -> SmokeSetting:
    """
    Raises:
        NotSupported: nothing on its machines ends them. ProviderRefused: there is no SkyPilot.
    """
    from trmcloud.adapters.prices.tables import load_offers
    from trmcloud.adapters.ssh.round_trip import round_trip
    from trmcloud.app.smoke.setting import AccountFigures, SmokeSetting
    from trmcloud.core.catalog.providers import traits_of
    from trmcloud.core.errors import LinkError, NotSupported
    from trmcloud.core.money import ZERO
    from trmcloud.pod.agent.terminate import TERMINATION_NAME
    from trmcloud.providers.skypilot.task import knows_autodown

    if not knows_autodown(provider):
        raise NotSupported(
            f"SkyPilot knows no autodown at {provider}: its machines cannot end themselves, and "
            "there is nothing to prove",
            next_step="trmcloud guard install on a machine that stays on",
        )
    compute, link = skypilot.compute(provider), skypilot.link(provider)

    def account() -> AccountFigures:
        compute.require_account(ZERO)
        return AccountFigures(None, None, None, "SkyPilot tells no account's money")

    def offers(now: float) -> list[Offer]:
        whose = traits_of(provider).prices_of or provider
        found = [offer for offer in load_offers(now, skypilot.home) if offer.provider == whose]
        return [offer._replace(provider=provider) for offer in found]

    def answers(pod_name: str) -> str:
        return "" if link.answers(pod_name) else str(link.trouble(pod_name) or "no answer")

    def termination(pod_name: str) -> str:
        try:
            return link.read_pod_file(pod_name, TERMINATION_NAME)
        except LinkError:
            return ""

    return SmokeSetting(
        provider=provider,
        account=account,
        offers=offers,
        disk_rate=ZERO,
        answers=answers,
        round_trip=lambda name, size: round_trip(link.connection(name), size),
        termination=termination,
        limit=compute.limit_by,
        cut=compute.stop_server,
        on_machine=compute.on_machine(),
    )


def sky_home(home: Path, provider: str) -> SkyHome:
    """Where ``sky`` runs for a provider, below the trmcloud home ``home``."""
    from trmcloud.providers.skypilot.homes import SkyHome

    return SkyHome(home, provider, Path.home(), os.environ)


def was_used_by_skypilot(home: Path, provider: str) -> bool:
    """Whether there are traces of its clusters in a home of SkyPilot's for it."""
    return provider in BY_SKYPILOT and sky_home(home, provider).is_used


def enabled_by_skypilot(home: Path) -> list[str]:
    """Providers for which there is a credential here, and to which SkyPilot says that it has access
    with it. Each is asked in its own home, whose server is stopped again where it has no cluster.

    Raises:
        ProviderError: it is not installed, too old, or cannot be asked.
    """
    from trmcloud.providers.skypilot.checkup import enabled_in
    from trmcloud.providers.skypilot.command import find_sky
    from trmcloud.providers.skypilot.secrets import is_there

    program = find_sky(os.environ)
    there = [name for name in BY_SKYPILOT if is_there(name, Path.home(), os.environ)]
    homes = [sky_home(home, name) for name in there]
    return [found.provider for found in homes if enabled_in(program, found)]
