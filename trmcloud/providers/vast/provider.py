"""vast.ai behind one connection, once the account's key is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from trmcloud.providers.seller import Account, Prices, Seller
from trmcloud.providers.vast import secrets
from trmcloud.providers.vast.traits import NAME

if TYPE_CHECKING:
    from trmcloud.core.catalog.offers import Offer
    from trmcloud.core.money import Usd
    from trmcloud.operations.checks.doctor import Finding
    from trmcloud.providers.vast.api import VastApi
    from trmcloud.providers.vast.compute import VastCompute


class Vast(Seller["VastCompute", "VastApi"]):
    name = NAME
    variables = (secrets.ENV_API, secrets.ENV_OWN_API)
    key_variable = secrets.ENV_KEY
    key_file = f"~/{secrets.KEY_FILES[0]} (with only the key, mode 0600)"
    no_key_step = f"export {secrets.ENV_KEY}=…; trmcloud doctor"

    def account_key(self, environ: Mapping[str, str]) -> str | None:
        return secrets.account_key(environ)

    def connect(self, account: Account) -> tuple[VastCompute, VastApi]:
        from trmcloud.providers.vast.api import VastApi
        from trmcloud.providers.vast.compute import VastCompute
        from trmcloud.providers.vast.create import boot_payload

        site = self.site
        base = secrets.api_base(site.environ)
        api = VastApi(account.key, base, budget=account.budget, log=account.log)
        compute = VastCompute(
            api,
            account.keys,
            lambda: boot_payload(site.trainer()),
            sightings=account.sightings,
            image=secrets.image(site.environ),
            environment=secrets.pod_environment(site.environ),
        )
        return compute, api

    def prices(self) -> Prices:
        from trmcloud.providers.vast import offers

        return offers

    def single_gpus(self, api: VastApi, now: float) -> Sequence[Offer]:
        from trmcloud.providers.vast.offers import market

        return market(api, now, community=False, counts=(1,))

    def checks(self, rates: Mapping[str, Usd]) -> Sequence[Callable[[], Sequence[Finding]]]:
        from trmcloud.providers.vast.checkup import check_account

        if not self.has_access() and not self.was_used(NAME):
            return ()
        return [lambda: check_account(self.site.environ, rates.get(NAME))]


PROVIDER = Vast
