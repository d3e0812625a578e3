"""The part of ``wiring`` that builds RunPod's side, once the account's key is asked for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from trmcloud.adapters.ssh.link import SshPodLink
    from trmcloud.app.smoke.setting import SmokeSetting
    from trmcloud.core.catalog.offers import Offer
    from trmcloud.providers.runpod.api import RunPodApi
    from trmcloud.providers.runpod.compute import RunPodCompute
    from trmcloud.providers.runpod.volumes import RunPodVolumes


class RunPodPods(NamedTuple):
    """RunPod's side of the ports, behind one connection."""

    compute: RunPodCompute
    link: SshPodLink
    volumes: RunPodVolumes
    api: RunPodApi


def runpod_pods(
    home: Path, ledger_id: Callable[[], str], trainer_package: Callable[[], Path]
) -> RunPodPods:
    """RunPod, with the account's key.

    Raises:
        AuthError: there is no key.
    """
    from trmcloud.core.errors import AuthError
    from trmcloud.providers.runpod import secrets

    key = secrets.account_key(os.environ)
    if key is None:
        raise AuthError(
            "there is no RunPod key", next_step=f"export {secrets.ENV_KEY}=…; trmcloud doctor"
        )
    secrets.require_client()
    from trmcloud.adapters.pod_history import Sightings
    from trmcloud.adapters.ssh.keys import KeyStore
    from trmcloud.adapters.ssh.link import SshPodLink
    from trmcloud.providers.runpod.account import RunPodGraphql
    from trmcloud.providers.runpod.api import RunPodApi
    from trmcloud.providers.runpod.bundle import boot_payload
    from trmcloud.providers.runpod.compute import RunPodCompute
    from trmcloud.providers.runpod.http import Http
    from trmcloud.providers.runpod.volumes import RunPodVolumes

    keys = KeyStore(home)
    http = Http(key)
    api = RunPodApi(http, secrets.api_base(os.environ))
    volumes = RunPodVolumes(api, ledger_id)
    compute = RunPodCompute(
        api,
        RunPodGraphql(http, secrets.graphql_url(os.environ)),
        keys.for_pod,
        lambda: boot_payload(trainer_package()),
        sightings=Sightings(home / "runpod"),
        image=secrets.image(os.environ),
        environment=secrets.pod_environment(os.environ),
        volumes=volumes,
    )
    link = SshPodLink(home, compute.address_of, now=time.time, keys=keys)
    return RunPodPods(compute, link, volumes, api)


def runpod_setting(pods: RunPodPods) -> SmokeSetting:
    from trmcloud.adapters.ssh.round_trip import round_trip
    from trmcloud.app.smoke.setting import AccountFigures, SmokeSetting
    from trmcloud.core.errors import AuthError, LinkError, ProviderError
    from trmcloud.core.storage import LEAST_WORK_GB, pod_disks_gb, running_rate
    from trmcloud.pod.agent.terminate import TERMINATION_NAME
    from trmcloud.providers.runpod.offers import live_offers
    from trmcloud.wiring_plans import known_offers

    def account() -> AccountFigures:
        try:
            return AccountFigures(*pods.compute.account())
        except ProviderError as error:
            return AccountFigures(None, None, None, error.what)

    def offers(now: float) -> list[Offer]:
        try:
            return live_offers(pods.api.catalogue, now, (1,))
        except AuthError:
            raise
        except ProviderError:
            # The dated table serves where the catalogue does not answer.
            return [offer for offer in known_offers(now) if offer.provider == "runpod"]

    def answers(pod_name: str) -> str:
        return (
            "" if pods.link.answers(pod_name) else str(pods.link.trouble(pod_name) or "no answer")
        )

    def termination(pod_name: str) -> str:
        try:
            return pods.link.read_pod_file(pod_name, TERMINATION_NAME)
        except LinkError:
            return ""

    return SmokeSetting(
        provider="runpod",
        account=account,
        offers=offers,
        disk_rate=running_rate("runpod", pod_disks_gb("runpod", LEAST_WORK_GB)),
        answers=answers,
        round_trip=lambda name, size: round_trip(pods.link.connection(name), size),
        termination=termination,
    )
