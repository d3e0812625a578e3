"""RunPod behind one connection, once the account's key is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from trmcloud.providers.runpod import secrets
from trmcloud.providers.runpod.traits import NAME
from trmcloud.providers.seller import Account, Prices, Seller

if TYPE_CHECKING:
    from trmcloud.core.catalog.offers import Offer
    from trmcloud.core.money import Usd
    from trmcloud.operations.checks.doctor import Finding
    from trmcloud.providers.runpod.api import RunPodApi
    from trmcloud.providers.runpod.compute import RunPodCompute


class RunPod(Seller["RunPodCompute", "RunPodApi"]):
    name = NAME
    variables = (secrets.ENV_API, secrets.ENV_GRAPHQL)
    key_variable = secrets.ENV_KEY
    key_file = f'~/{secrets.CONFIG} (apikey = "…", mode 0600)'
    no_key_step = f"export {secrets.ENV_KEY}=…; trmcloud doctor"
    # Its answers say which limits hold; without a word of them none does.
    unlimited_unless_told = True

    def account_key(self, environ: Mapping[str, str]) -> str | None:
        return secrets.account_key(environ)

    def connect(self, account: Account) -> tuple[RunPodCompute, RunPodApi]:
        secrets.require_client()
        from trmcloud.providers.runpod.account import RunPodGraphql
        from trmcloud.providers.runpod.api import RunPodApi
        from trmcloud.providers.runpod.compute import RunPodCompute, RunPodVolumes
        from trmcloud.providers.runpod.create import boot_payload
        from trmcloud.providers.runpod.http import Http

        site = self.site
        http = Http(account.key, budget=account.budget, log=account.log)
        api = RunPodApi(http, secrets.api_base(site.environ))
        compute = RunPodCompute(
            api,
            RunPodGraphql(http, secrets.graphql_url(site.environ)),
            account.keys,
            lambda: boot_payload(site.trainer()),
            sightings=account.sightings,
            image=secrets.image(site.environ),
            environment=secrets.pod_environment(site.environ),
            volumes=RunPodVolumes(api, site.ledger_id),
        )
        return compute, api

    def prices(self) -> Prices:
        from trmcloud.providers.runpod import offers

        return offers

    def single_gpus(self, api: RunPodApi, now: float) -> Sequence[Offer]:
        from trmcloud.providers.runpod.offers import live_offers

        return live_offers(api.catalogue, now, (1,))

    def checks(self, rates: Mapping[str, Usd]) -> Sequence[Callable[[], Sequence[Finding]]]:
        from trmcloud.providers.runpod.checkup import check_account

        return [lambda: check_account(self.site.environ, rates.get(NAME))]


PROVIDER = RunPod
