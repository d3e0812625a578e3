"""Hugging Face Jobs behind one connection, once the account's token is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trmcloud.core.values import replace
from trmcloud.providers.huggingface import secrets
from trmcloud.providers.huggingface.traits import NAME
from trmcloud.providers.seller import Account, Prices, Seller

if TYPE_CHECKING:
    from trmcloud.core.catalog.offers import Offer
    from trmcloud.core.money import Usd
    from trmcloud.operations.checks.doctor import Finding
    from trmcloud.operations.checks.smoke_watch import SmokeSetting
    from trmcloud.providers.huggingface.api import JobsApi
    from trmcloud.providers.huggingface.compute import HuggingFaceCompute


class HuggingFace(Seller["HuggingFaceCompute", "JobsApi"]):
    name = NAME
    variables = (
        secrets.ENV_ENDPOINT, secrets.ENV_NAMESPACE, secrets.ENV_SSH_KEY, secrets.ENV_IMAGE,
    )  # fmt: skip
    key_variable = secrets.ENV_TOKEN
    key_file = "~/.cache/huggingface/token (hf auth login)"
    secret = "token"
    no_key_step = "hf auth login, or export HF_TOKEN=…; trmcloud doctor"

    def account_key(self, environ: Mapping[str, str]) -> str | None:
        return secrets.account_token(environ)

    def connect(self, account: Account) -> tuple[HuggingFaceCompute, JobsApi]:
        from trmcloud.operations.sending.packing import boot_payload
        from trmcloud.pod.machine.environment import install_settings
        from trmcloud.providers.huggingface import self_end
        from trmcloud.providers.huggingface.api import JobsApi
        from trmcloud.providers.huggingface.compute import HuggingFaceCompute
        from trmcloud.providers.huggingface.http import Http

        site = self.site
        base = secrets.endpoint(site.environ)
        http = Http(base, account.key, budget=account.budget, log=account.log)
        api = JobsApi(http, secrets.namespace(site.environ))
        compute = HuggingFaceCompute(
            api,
            account.keys,
            lambda: boot_payload(NAME, Path(self_end.__file__), site.trainer()),
            token=account.key,
            sightings=account.sightings,
            image=secrets.image(site.environ),
            environment=install_settings(site.environ),
            ssh_key=secrets.ssh_key(site.environ),
            known_hosts=site.home / NAME / "known_hosts",
        )
        return compute, api

    def prices(self) -> Prices:
        from trmcloud.providers.huggingface import offers

        return offers

    def single_gpus(self, api: JobsApi, now: float) -> Sequence[Offer]:
        from trmcloud.providers.huggingface.offers import offers_of

        return [offer for offer in offers_of(api.hardware(), now) if offer.gpus == 1]

    def checks(self, rates: Mapping[str, Usd]) -> Sequence[Callable[[], Sequence[Finding]]]:
        from trmcloud.providers.huggingface.checkup import check_account

        used = self.was_used(NAME) or NAME in rates
        return [lambda: check_account(self.site.environ, needed=used)]

    def smoke(self, name: str, known: Callable[[float], Sequence[Offer]]) -> SmokeSetting:
        from trmcloud.operations.checks.smoke_watch import MadeLimit

        compute, usual = self.connection.compute, super().smoke(name, known)

        def ahead(seconds: float) -> None:
            compute.ahead_s = seconds

        return replace(
            usual,
            termination=lambda pod: compute.exit_record(pod) or usual.termination(pod),
            made_limit=MadeLimit("timeout", ahead, compute.ended_by_timeout),
        )


PROVIDER = HuggingFace
