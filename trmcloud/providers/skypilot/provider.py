"""SkyPilot as a provider: its clusters in its own home and in the user's."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from trmcloud.core.errors import NotSupported, ProviderError
from trmcloud.core.money import ZERO, Usd
from trmcloud.providers.protocol import Provider
from trmcloud.providers.skypilot.command import ENV_SKY, INSTALL, Sky, find_sky, why_untested
from trmcloud.providers.skypilot.homes import EMPTY, FOLDER, SkyHome, environ_of_user
from trmcloud.providers.skypilot.secrets import is_there
from trmcloud.providers.skypilot.traits import (
    CLOUDS,
    RUNPOD_BY_SKYPILOT,
    RUNPOD_BY_SKYPILOT_ENDS,
    TRAITS,
)

if TYPE_CHECKING:
    from trmcloud.adapters.prices.tables import Source
    from trmcloud.adapters.ssh.link import SshPodLink
    from trmcloud.core.catalog.offers import Offer
    from trmcloud.export.script import SkyNames
    from trmcloud.operations.checks.doctor import Finding
    from trmcloud.operations.checks.smoke_watch import SmokeSetting
    from trmcloud.providers.skypilot.clusters import Clusters
    from trmcloud.providers.skypilot.compute import SkyPilotCompute, TwoHomeCompute

# SkyPilot: a home and a table of clusters for each cloud behind it, and one table of what was
# rented in the user's own home before.

_NAME = "skypilot"
CLOUD_NAMES = tuple(traits.name for traits in TRAITS if traits.route.can_be_named)


class SkyPilot(Provider):
    variables = ("SKYPILOT_API_SERVER_ENDPOINT",)

    @cached_property
    def _computes(self) -> dict[str, TwoHomeCompute]:
        return {}

    @cached_property
    def _shared(self) -> tuple[Sky, Clusters]:
        from trmcloud.providers.skypilot.clusters import Clusters

        empty = self.site.home / FOLDER / EMPTY
        sky = Sky(find_sky(self.site.environ), environ_of_user(self.site.environ), empty)
        return sky, Clusters(sky)

    def compute(self, name: str) -> TwoHomeCompute:
        if name in self._computes:
            return self._computes[name]
        from trmcloud.providers.skypilot.clusters import Clusters
        from trmcloud.providers.skypilot.compute import TwoHomeCompute

        home, seen = self.home_of(name), self.site.home / name
        in_own = Sky(find_sky(self.site.environ), home.environ(), home.empty)
        own = self._made(name, in_own, Clusters(in_own), home.seen, home)
        earlier = self._made(name, *self._shared, seen, None)
        self._computes[name] = TwoHomeCompute(own, home, earlier, Path.home(), seen, time.time)
        return self._computes[name]

    def _made(
        self, name: str, sky: Sky, clusters: Clusters, folder: Path, home: SkyHome | None
    ) -> SkyPilotCompute:
        from trmcloud.adapters.ssh.keys import KeyStore
        from trmcloud.operations.sending.packing import boot_payload
        from trmcloud.providers.skypilot import self_end
        from trmcloud.providers.skypilot.compute import SkyPilotCompute
        from trmcloud.providers.skypilot.task import ShutdownLimit

        return SkyPilotCompute(
            name,
            sky,
            KeyStore(self.site.home).for_pod,
            lambda: boot_payload(_NAME, Path(self_end.__file__), self.site.trainer()),
            folder,
            clusters=clusters,
            shutdown=ShutdownLimit() if name == "aws" else None,
            home=home,
            settings=self.site.environ,
        )

    def link(self, name: str) -> SshPodLink:
        """Through SkyPilot's own connection to the machine, to the pod's pinned server."""
        from trmcloud.adapters.ssh.link import SshPodLink

        compute = self.compute(name)
        return SshPodLink(
            self.site.home,
            compute.address_of,
            now=time.time,
            way_to=compute.way_to,
            ways_to_others=compute.ways_to_others,
        )

    def home_of(self, name: str) -> SkyHome:
        """Return the home of ``sky`` for a cloud."""
        return SkyHome(self.site.home, name, Path.home(), self.site.environ)

    def has_access(self) -> bool:
        return bool(self.site.environ.get(ENV_SKY))

    def was_used(self, name: str) -> bool:
        """Whether there are traces of its clusters, in a home of SkyPilot's for it, too."""
        return super().was_used(name) or (name in CLOUD_NAMES and self.home_of(name).is_used)

    def checks(self, rates: Mapping[str, Usd]) -> Sequence[Callable[[], Sequence[Finding]]]:
        return [lambda: check_skypilot(self.site.environ, self.was_used, self.home_of)]

    def enabled(self) -> Sequence[str]:
        """Those for which there is a credential here, and to which SkyPilot says that it has access
        with it. Each is asked in its own home, whose server is stopped again where it has no
        cluster."""
        program = find_sky(self.site.environ)
        there = [name for name in CLOUD_NAMES if is_there(name, Path.home(), self.site.environ)]
        homes = [self.home_of(name) for name in there]
        return [home.provider for home in homes if enabled_in(program, home)]

    def price_sources(self) -> Sequence[Source]:
        from trmcloud.adapters.prices.tables import Source
        from trmcloud.providers.skypilot.offers import PROVIDERS, read_cloud

        return [
            Source(f"SkyPilot's {cloud}", partial(read_cloud, cloud, self.site.environ))
            for cloud in PROVIDERS
        ]

    def smoke(self, name: str, known: Callable[[float], Sequence[Offer]]) -> SmokeSetting:
        from trmcloud.adapters.ssh.checks import answers, round_trip, termination
        from trmcloud.core.control.balance import AccountBalance
        from trmcloud.operations.checks.smoke_watch import SmokeSetting
        from trmcloud.providers.skypilot.task import knows_autodown

        if not knows_autodown(name):
            raise NotSupported(
                f"SkyPilot has no autodown at {name}: its machines cannot end themselves, so "
                "there is nothing to verify",
                next_step="run trmcloud admin guard install on a machine that is always on",
            )
        compute, link = self.compute(name), self.link(name)
        whose = next(t.prices.listed_as or name for t in TRAITS if t.name == name)

        def account() -> AccountBalance:
            compute.require_account(ZERO)
            return AccountBalance(why="SkyPilot does not report account balances")

        def offers(now: float) -> Sequence[Offer]:
            return [
                offer._replace(provider=name) for offer in known(now) if offer.provider == whose
            ]

        return SmokeSetting(
            provider=name,
            account=account,
            offers=offers,
            disk_rate=ZERO,
            answers=partial(answers, link),
            round_trip=lambda pod_name, size: round_trip(link.connection(pod_name), size),
            termination=partial(termination, link),
            limit=compute.limit_by,
            cut=compute.stop_server,
            on_machine=compute.on_machine(),
        )

    def task_names(self) -> SkyNames:
        from trmcloud.export.script import SkyNames
        from trmcloud.providers.skypilot.task import LIMIT_SLACK_MINUTES, accelerator

        clouds = {name: cloud for name, cloud in CLOUDS.items() if name != RUNPOD_BY_SKYPILOT}
        return SkyNames(clouds, accelerator, LIMIT_SLACK_MINUTES)


def enabled_in(program: str, home: SkyHome) -> bool:
    """Whether SkyPilot has access to its cloud from its own home. A server that was started for
    the question alone is stopped again.

    Raises:
        ProviderError: SkyPilot is too old, or cannot be asked.
    """
    home.lay()
    sky = Sky(program, home.environ(), home.empty)
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
    from trmcloud.operations.checks.doctor import Finding

    needed = bool(environ.get(ENV_SKY)) or any(used(provider) for provider in CLOUDS)
    user_home = Path(environ.get("HOME") or Path.home())
    try:
        program = find_sky(environ)
        version = Sky(program, environ_of_user(environ), None).version()
        untested = why_untested(version)
        version, state, fix = (untested, "warn", INSTALL) if untested else (version, "ok", "")
        if not needed:
            return [Finding(_NAME, state, f"{version}; its enabled clouds were not checked", fix)]
        asked = [name for name in CLOUDS if is_there(name, user_home, environ)]
        names = sorted(name for name in asked if enabled_in(program, home_of(name)))
    except ProviderError as error:
        if not needed:
            detail = "not used: only needed for clouds other than RunPod"
            return [Finding(_NAME, "ok", detail)]
        return [Finding(_NAME, "bad", error.what, error.next_step)]
    if not names:
        why = f"no cloud is enabled; credentials found: {', '.join(asked) or 'none'}"
        return [Finding(_NAME, "warn", f"{version}; {why}", "docs/guide/skypilot.md")]
    told = Finding(_NAME, state, f"{version}; enabled: {', '.join(names)}", fix)
    if RUNPOD_BY_SKYPILOT not in names:
        return [told]
    return [told, Finding(RUNPOD_BY_SKYPILOT, "ok", RUNPOD_BY_SKYPILOT_ENDS)]


PROVIDER = SkyPilot
