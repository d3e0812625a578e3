"""vast.ai behind one connection, once the account's key is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

from trmcloud.core.errors import AuthError, ProviderError
from trmcloud.providers.protocol import Provider
from trmcloud.providers.vast import secrets
from trmcloud.providers.vast.traits import NAME

if TYPE_CHECKING:
    from trmcloud.adapters.prices.tables import Source
    from trmcloud.adapters.ssh.link import SshPodLink
    from trmcloud.app.doctor import Finding
    from trmcloud.app.smoke_watch import SmokeSetting
    from trmcloud.core.catalog.offers import Offer
    from trmcloud.core.money import Usd
    from trmcloud.providers.vast.api import VastApi
    from trmcloud.providers.vast.compute import VastCompute


class _Pods(NamedTuple):
    compute: VastCompute
    link: SshPodLink
    api: VastApi


class Vast(Provider):
    variables = (secrets.ENV_API, secrets.ENV_OWN_API)

    @cached_property
    def _pods(self) -> _Pods:
        site = self.site
        key = secrets.account_key(site.environ)
        if key is None:
            raise AuthError(
                "there is no vast.ai key", next_step=f"export {secrets.ENV_KEY}=…; trmcloud doctor"
            )
        from trmcloud.adapters.pod_history import Sightings
        from trmcloud.adapters.request_budget import budget_of
        from trmcloud.adapters.ssh.keys import KeyStore
        from trmcloud.adapters.ssh.link import SshPodLink
        from trmcloud.io.exchanges import exchange_log
        from trmcloud.providers.vast.api import VastApi
        from trmcloud.providers.vast.compute import VastCompute
        from trmcloud.providers.vast.create import boot_payload

        keys = KeyStore(site.home)
        budget = budget_of(site.home, NAME, key)
        log = exchange_log(site.home, NAME, key, site.environ, time.time)
        api = VastApi(key, secrets.api_base(site.environ), budget=budget, log=log)
        compute = VastCompute(
            api,
            keys.for_pod,
            lambda: boot_payload(site.trainer()),
            sightings=Sightings(site.home / NAME),
            image=secrets.image(site.environ),
            environment=secrets.pod_environment(site.environ),
        )
        link = SshPodLink(site.home, compute.address_of, now=time.time, keys=keys)
        return _Pods(compute, link, api)

    def compute(self, name: str) -> VastCompute:
        return self._pods.compute

    def link(self, name: str) -> SshPodLink:
        return self._pods.link

    def has_access(self) -> bool:
        return secrets.account_key(self.site.environ) is not None

    def unseen_keys(self, elsewhere: Mapping[str, str]) -> Sequence[tuple[str, str, str]]:
        if not self.has_access() or secrets.account_key(elsewhere) is not None:
            return ()
        return [(secrets.ENV_KEY, NAME, f"~/{secrets.KEY_FILES[0]} (with only the key, mode 0600)")]

    def checks(self, rates: Mapping[str, Usd]) -> Sequence[Callable[[], Sequence[Finding]]]:
        from trmcloud.providers.vast.checkup import check_account

        if not self.has_access() and not self.was_used(NAME):
            return ()
        return [lambda: check_account(self.site.environ, rates.get(NAME))]

    def live_prices(self, now: float) -> tuple[Sequence[Offer], str]:
        if not self.has_access():
            return (), ""  # and nothing is loaded to ask with
        from trmcloud.providers.vast.offers import live_prices

        return live_prices(self.site.environ, now)

    def price_sources(self) -> Sequence[Source]:
        from trmcloud.adapters.prices.tables import Source
        from trmcloud.providers.vast.offers import price_rows

        return [Source(NAME, partial(price_rows, self.site.environ))]

    def smoke(self, name: str, known: Callable[[float], Sequence[Offer]]) -> SmokeSetting:
        from trmcloud.adapters.ssh.checks import answers, round_trip, termination
        from trmcloud.app.smoke_watch import SmokeSetting
        from trmcloud.core.control.balance import AccountBalance
        from trmcloud.core.storage import LEAST_WORK_GB, pod_disks_price
        from trmcloud.providers.vast.offers import market

        pods = self._pods

        def account() -> AccountBalance:
            try:
                return pods.compute.balance()
            except ProviderError as error:
                return AccountBalance(why=error.what)

        def offers(now: float) -> Sequence[Offer]:
            try:
                return market(pods.api, now, community=False, counts=(1,))
            except AuthError:
                raise
            except ProviderError:
                # The dated table serves where the market does not answer.
                return [offer for offer in known(now) if offer.provider == NAME]

        return SmokeSetting(
            provider=NAME,
            account=account,
            offers=offers,
            disk_rate=pod_disks_price(NAME, LEAST_WORK_GB, 1, on_volume=False),
            answers=partial(answers, pods.link),
            round_trip=lambda pod_name, size: round_trip(pods.link.connection(pod_name), size),
            termination=partial(termination, pods.link),
        )


PROVIDER = Vast
