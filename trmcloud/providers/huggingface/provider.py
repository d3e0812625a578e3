"""Hugging Face Jobs behind one connection, once the account's token is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trmcloud.core.errors import AuthError, ProviderError
from trmcloud.core.money import ZERO
from trmcloud.providers.huggingface import secrets
from trmcloud.providers.huggingface.traits import NAME
from trmcloud.providers.protocol import Provider

if TYPE_CHECKING:
    from trmcloud.adapters.prices.tables import Source
    from trmcloud.adapters.ssh.link import SshPodLink
    from trmcloud.app.doctor import Finding
    from trmcloud.app.smoke_watch import SmokeSetting
    from trmcloud.core.catalog.offers import Offer
    from trmcloud.core.money import Usd
    from trmcloud.providers.huggingface.api import JobsApi
    from trmcloud.providers.huggingface.compute import HuggingFaceCompute


class _Jobs(NamedTuple):
    compute: HuggingFaceCompute
    link: SshPodLink
    api: JobsApi


class HuggingFace(Provider):
    variables = (
        secrets.ENV_ENDPOINT, secrets.ENV_NAMESPACE, secrets.ENV_SSH_KEY, secrets.ENV_IMAGE,
    )  # fmt: skip

    @cached_property
    def _jobs(self) -> _Jobs:
        site = self.site
        token = secrets.account_token(site.environ)
        if token is None:
            raise AuthError(
                "there is no Hugging Face token",
                next_step="hf auth login, or export HF_TOKEN=…; trmcloud doctor",
            )
        from trmcloud.adapters.pod_history import Sightings
        from trmcloud.adapters.request_budget import budget_of
        from trmcloud.adapters.ssh.keys import KeyStore
        from trmcloud.adapters.ssh.link import SshPodLink
        from trmcloud.app.packing import boot_payload
        from trmcloud.io.exchanges import exchange_log
        from trmcloud.pod.machine.environment import install_settings
        from trmcloud.providers.huggingface import self_end
        from trmcloud.providers.huggingface.api import JobsApi
        from trmcloud.providers.huggingface.compute import HuggingFaceCompute
        from trmcloud.providers.huggingface.http import Http

        keys = KeyStore(site.home)
        budget = budget_of(site.home, NAME, token)
        log = exchange_log(site.home, NAME, token, site.environ, time.time)
        http = Http(secrets.endpoint(site.environ), token, budget=budget, log=log)
        api = JobsApi(http, secrets.namespace(site.environ))
        compute = HuggingFaceCompute(
            api,
            keys.for_pod,
            lambda: boot_payload(NAME, Path(self_end.__file__), site.trainer()),
            token=token,
            sightings=Sightings(site.home / NAME),
            image=secrets.image(site.environ),
            environment=install_settings(site.environ),
            ssh_key=secrets.ssh_key(site.environ),
            known_hosts=site.home / NAME / "known_hosts",
        )
        link = SshPodLink(
            site.home, compute.address_of, now=time.time, keys=keys, way_to=compute.way_to
        )
        return _Jobs(compute, link, api)

    def compute(self, name: str) -> HuggingFaceCompute:
        return self._jobs.compute

    def link(self, name: str) -> SshPodLink:
        return self._jobs.link

    def has_access(self) -> bool:
        return secrets.account_token(self.site.environ) is not None

    def unseen_keys(self, elsewhere: Mapping[str, str]) -> Sequence[tuple[str, str, str]]:
        if not self.has_access() or secrets.account_token(elsewhere) is not None:
            return ()
        return [(secrets.ENV_TOKEN, NAME, "~/.cache/huggingface/token (hf auth login)")]

    def checks(self, rates: Mapping[str, Usd]) -> Sequence[Callable[[], Sequence[Finding]]]:
        from trmcloud.providers.huggingface.checkup import check_account

        used = self.was_used(NAME) or NAME in rates
        return [lambda: check_account(self.site.environ, needed=used)]

    def live_prices(self, now: float) -> tuple[Sequence[Offer], str]:
        if not self.has_access():
            return (), ""  # and nothing is loaded to ask with
        from trmcloud.providers.huggingface.offers import live_prices

        return live_prices(self.site.environ, now)

    def price_sources(self) -> Sequence[Source]:
        from trmcloud.adapters.prices.tables import Source
        from trmcloud.providers.huggingface.offers import price_rows

        return [Source(NAME, partial(price_rows, self.site.environ))]

    def smoke(self, name: str, known: Callable[[float], Sequence[Offer]]) -> SmokeSetting:
        from trmcloud.adapters.ssh.checks import answers, round_trip, termination
        from trmcloud.app.smoke_watch import MadeLimit, SmokeSetting
        from trmcloud.core.control.balance import AccountBalance
        from trmcloud.providers.huggingface.offers import offers_of

        jobs = self._jobs
        compute = jobs.compute

        def account() -> AccountBalance:
            return AccountBalance(why="Hugging Face's API shows no credits")

        def ahead(seconds: float) -> None:
            compute.ahead_s = seconds

        def own_end(pod_name: str) -> str:
            return compute.exit_record(pod_name) or termination(jobs.link, pod_name)

        def offers(now: float) -> Sequence[Offer]:
            try:
                return [offer for offer in offers_of(jobs.api.hardware(), now) if offer.gpus == 1]
            except AuthError:
                raise
            except ProviderError:
                # The dated table serves where the list does not answer.
                return [offer for offer in known(now) if offer.provider == NAME]

        return SmokeSetting(
            provider=NAME,
            account=account,
            offers=offers,
            disk_rate=ZERO,
            answers=partial(answers, jobs.link),
            round_trip=lambda pod_name, size: round_trip(jobs.link.connection(pod_name), size),
            termination=own_end,
            made_limit=MadeLimit("timeout", ahead, compute.ended_by_timeout),
        )


PROVIDER = HuggingFace
