"""The only place that builds adapters: which ones fill the ports of a ``World``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.adapters.local.clock import SystemClock
from trmcloud.adapters.local.compute import LocalCompute
from trmcloud.adapters.local.run_files import LocalRunFiles
from trmcloud.adapters.local.workers import ThreadWorkers
from trmcloud.app.context import Context
from trmcloud.app.home import close_home, home_dir
from trmcloud.app.out_of_reach import OutOfReach
from trmcloud.app.staging.bundle import bundle_root
from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.catalog.providers import BY_SKYPILOT, RENTABLE
from trmcloud.core.errors import LedgerError, TrmcloudError, UsageError
from trmcloud.pod.machine import processes
from trmcloud.ports.ledger import ControllerId
from trmcloud.wiring_skypilot import SkyPilot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trmcloud.adapters.local.timer import ReaperTimer
    from trmcloud.adapters.runpod.api import RunPodApi
    from trmcloud.adapters.runpod.compute import RunPodCompute
    from trmcloud.adapters.runpod.volumes import RunPodVolumes
    from trmcloud.adapters.ssh.link import SshPodLink
    from trmcloud.app.context import Need
    from trmcloud.app.doctor import Finding
    from trmcloud.app.receipts import Check
    from trmcloud.app.smoke.setting import SmokeSetting
    from trmcloud.app.telling import Teller, Words
    from trmcloud.core.catalog.offers import Offer
    from trmcloud.core.control.run_state import RunState
    from trmcloud.core.money import Usd
    from trmcloud.ports.bucket import Bucket
    from trmcloud.ports.link import StageItem
    from trmcloud.ports.notices import Destination, Outbox, Send, Telling

ENV_PROJECT = "TRMCLOUD_PROJECT"
ENV_TRAINER = "TRMCLOUD_TRAINER"
"""A folder that holds another ``model`` package: a trainer of your own that keeps the contract of
``trmcloud.core.contract.trainer_contract``."""


def build_context(home: Path | None = None) -> Context:
    """The world as this process's environment describes it, around ``home`` or the user's own."""
    return _build(home)[0]


def build_chain() -> SqliteLedger:
    """This home's ledger, whose records can be shown with their places in its chain."""
    return SqliteLedger(home_dir(os.environ) / "ledger.db")


def chain_if_any() -> SqliteLedger | None:
    """Likewise, where there is one: a home is not made by a look."""
    path = home_dir(os.environ) / "ledger.db"
    return SqliteLedger(path) if path.exists() else None


def signature_check(path: Path, signers: Path | None) -> Check:
    """What is known of the signature beside a receipt."""
    from trmcloud.adapters.ssh.signatures import SUFFIX, signature_of
    from trmcloud.app.receipts import Check, Verdict

    found = signature_of(path, signers)
    if found is None:
        why = f"there is no {path.name}{SUFFIX}: nobody vouches for it"
        return Check("signature", Verdict.OPEN, why)
    if not found.good:
        return Check("signature", Verdict.BROKEN, found.why)
    if found.who:
        return Check("signature", Verdict.HOLDS, f"by {found.who}, with {found.key}")
    why = found.why or "whose that is says no file of known signers: --signers FILE"
    return Check("signature", Verdict.OPEN, f"of this file, with {found.key}; {why}")


def telling_thread(context: Context, words: Words) -> Telling | None:
    """What tells others while ``context`` is used; None where nobody is to be told."""
    teller = build_teller(context, words)
    if teller is None:
        return None
    from trmcloud.adapters.notify.thread import TellingThread

    return TellingThread(teller)


def build_teller(context: Context, words: Words) -> Teller | None:
    """What is to be told of this home, and whom. Its ledger is its own: another thread's to read.

    None where nobody is to be told, or where that cannot be read, which a command that is about
    something else is not held up by.
    """
    if not (context.home / "notify.json").exists():
        return None
    from trmcloud.adapters.notify.destinations import read_destinations
    from trmcloud.app.telling import Teller
    from trmcloud.core.errors import NotifyError
    from trmcloud.core.values import replace

    try:
        destinations = read_destinations(context.home)
    except NotifyError:
        return None
    if not destinations:
        return None
    own = replace(context, ledger=SqliteLedger(context.home / "ledger.db"))
    return Teller(own, outbox_of(context.home), destinations, sender_of, words)


def destinations_file() -> tuple[
    Callable[[], tuple[Destination, ...]], Callable[[Sequence[Destination]], None]
]:
    """(what reads who is to be told, what writes it)"""
    from trmcloud.adapters.notify.destinations import read_destinations, write_destinations

    close_home(os.environ)
    home = home_dir(os.environ)
    return partial(read_destinations, home), partial(write_destinations, home)


def outbox_of(home: Path) -> Outbox:
    from trmcloud.adapters.notify.outbox import NAME, SqliteOutbox

    return SqliteOutbox(home / NAME)


def sender_of(destination: Destination) -> Send:
    """By its way.

    Raises:
        MissingExtra, UsageError: it cannot be told.
    """
    if destination.way == "webhook":
        from trmcloud.adapters.notify.webhook import WebhookSender

        return WebhookSender(destination.where, destination.secret)
    from trmcloud.adapters.notify.by_apprise import AppriseSender

    return AppriseSender(destination.way, destination.where)


def _pod_webhook(home: Path) -> str:
    """``webhook.json`` for a pod; '' where no destination is to be told from there."""
    if not (home / "notify.json").exists():
        return ""
    from trmcloud.adapters.notify.destinations import read_destinations
    from trmcloud.core.contract.notices import Webhook
    from trmcloud.core.contract.pod_contract import dump
    from trmcloud.core.errors import NotifyError

    try:
        chosen = next((d for d in read_destinations(home) if d.on_pod), None)
    except NotifyError:
        return ""
    return "" if chosen is None else dump(Webhook(chosen.where, chosen.secret, chosen.only))


def build_smoke(provider: str) -> tuple[Context, SmokeSetting]:
    """The world, and what a smoke run asks of it beyond the ports.

    Raises:
        UsageError: nothing is rented from ``provider``.
        AuthError: there is no key.
    """
    if provider != "runpod":
        raise UsageError(
            f"there is no smoke run for {provider!r}: it proves what ends rented pods",
            next_step="trmcloud smoke --provider runpod --max-usd 0.25",
        )
    world, runpod = _build()
    return world, _runpod_ground(runpod())


def build_volumes() -> RunPodVolumes:
    """Network volumes of this home's ledger, wherever they are rented.

    Raises:
        AuthError: there is no key.
    """
    return _build()[1]().volumes


def _build(named: Path | None = None) -> tuple[Context, Callable[[], RunPodPods]]:
    home = home_dir(os.environ) if named is None else named.absolute()
    close_home(os.environ)
    local = LocalCompute(home, python_path())
    clock, ledger, files = SystemClock(), SqliteLedger(home / "ledger.db"), LocalRunFiles(home)
    runpod = cache(lambda: runpod_pods(home, lambda: ledger.ledger_id))
    skypilot = SkyPilot(home, trainer_package)
    here = os.uname().nodename + ":" + processes.boot_id()
    who = ControllerId(here, os.getpid(), processes.started(os.getpid()) or "")

    def is_alive(controller: ControllerId) -> bool | None:
        if controller.host != here:
            return None
        if processes.alive(controller.pid, controller.pid_started):
            # One that is stopped may wake any moment, or never: its last beat has to tell.
            return None if processes.stopped(controller.pid) else True
        return False

    world = Context(
        home=home,
        clock=clock,
        ledger=ledger,
        computes=WhenAsked(
            {
                "local": lambda: local,
                "runpod": lambda: runpod().compute,
                **{name: partial(skypilot.compute, name) for name in BY_SKYPILOT},
            }
        ),
        links=WhenAsked(
            {
                "local": lambda: local,
                "runpod": lambda: runpod().link,
                **{name: partial(skypilot.link, name) for name in BY_SKYPILOT},
            }
        ),
        files=files,
        who=who,
        is_alive=is_alive,
        project=os.environ.get(ENV_PROJECT, "default"),
        workers=ThreadWorkers(),
        stage_items=lambda run: _stage_items(home, files, run)[0],
        bucket_items=lambda run: _stage_items(home, files, run)[1],
        bucket=cache(_bucket),
        folder_on_pod=_folder_on_pod,
        needs=lambda provider: machine_needs(home, provider),
        trainer_path=python_path,
        was_used=lambda provider: (home / provider).is_dir(),
        pod_webhook=lambda: _pod_webhook(home),
    )
    return world, runpod


def machine_needs(home: Path, provider: str) -> Sequence[Need]:
    """What renting from ``provider`` needs of this machine; of its own it needs nothing."""
    if provider == LOCAL:
        return ()
    from trmcloud.adapters.ssh.needs import ssh_needs

    return ssh_needs(home)


_Adapter = TypeVar("_Adapter")


class WhenAsked(Mapping[str, _Adapter | OutOfReach]):
    """Adapters by name, each made when it is first asked for: most commands need one of them.
    Where one cannot be made, ``OutOfReach`` says why to whoever asks it, and the others work."""

    def __init__(self, makers: Mapping[str, Callable[[], _Adapter]]) -> None:
        self._makers = makers
        self._made: dict[str, _Adapter | OutOfReach] = {}

    def __getitem__(self, name: str) -> _Adapter | OutOfReach:
        if name not in self._made:
            try:
                self._made[name] = self._makers[name]()
            except LedgerError:
                raise
            except TrmcloudError as error:
                self._made[name] = OutOfReach(error)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def __contains__(self, name: object) -> bool:
        return name in self._makers


class RunPodPods(NamedTuple):
    """RunPod's side of the ports, behind one connection."""

    compute: RunPodCompute
    link: SshPodLink
    volumes: RunPodVolumes
    api: RunPodApi


def runpod_pods(home: Path, ledger_id: Callable[[], str]) -> RunPodPods:
    """RunPod, with the account's key.

    Raises:
        AuthError: there is no key.
    """
    from trmcloud.adapters.runpod import settings
    from trmcloud.core.errors import AuthError

    key = settings.account_key(os.environ)
    if key is None:
        raise AuthError(
            "there is no RunPod key", next_step=f"export {settings.ENV_KEY}=…; trmcloud doctor"
        )
    settings.require_client()
    from trmcloud.adapters.pod_history import Sightings
    from trmcloud.adapters.runpod.api import RunPodApi
    from trmcloud.adapters.runpod.bundle import boot_payload
    from trmcloud.adapters.runpod.compute import RunPodCompute
    from trmcloud.adapters.runpod.graphql import RunPodGraphql
    from trmcloud.adapters.runpod.http import Http
    from trmcloud.adapters.runpod.volumes import RunPodVolumes
    from trmcloud.adapters.ssh.keys import KeyStore
    from trmcloud.adapters.ssh.link import SshPodLink

    keys = KeyStore(home)
    http = Http(key)
    api = RunPodApi(http, settings.api_base(os.environ))
    volumes = RunPodVolumes(api, ledger_id())
    compute = RunPodCompute(
        api,
        RunPodGraphql(http, settings.graphql_url(os.environ)),
        keys.for_pod,
        lambda: boot_payload(trainer_package()),
        sightings=Sightings(home / "runpod"),
        image=settings.image(os.environ),
        environment=settings.pod_environment(os.environ),
        volumes=volumes,
    )
    link = SshPodLink(home, compute.address_of, now=time.time, keys=keys)
    return RunPodPods(compute, link, volumes, api)


def _runpod_ground(pods: RunPodPods) -> SmokeSetting:
    from trmcloud.adapters.runpod.create_request import CONTAINER_DISK_GB
    from trmcloud.adapters.runpod.offers import live_offers
    from trmcloud.adapters.runpod.storage_prices import pod_disk_rate
    from trmcloud.adapters.ssh.round_trip import round_trip
    from trmcloud.app.pod_request import LEAST_DISK_GB
    from trmcloud.app.smoke.setting import AccountFigures, SmokeSetting
    from trmcloud.core.errors import AuthError, LinkError, ProviderError
    from trmcloud.pod.agent.terminate import TERMINATION_NAME
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
        disk_rate=pod_disk_rate(CONTAINER_DISK_GB + LEAST_DISK_GB),
        answers=answers,
        round_trip=lambda name, size: round_trip(pods.link.connection(name), size),
        termination=termination,
    )


def offers_for_errand(now: float) -> tuple[Sequence[Offer], Usd]:
    """What can be rented now for minutes, and the USD/h of such a pod's own disks.

    Raises:
        AuthError: there is no key.
    """
    _, ground = build_smoke("runpod")
    return ground.offers(now), ground.disk_rate


def _stage_items(
    home: Path, files: LocalRunFiles, run: RunState
) -> tuple[Sequence[StageItem], Sequence[StageItem]]:
    """(what is sent to the run's pod from here, what it fetches from its bucket)"""
    from trmcloud.app.pod_request import read_launch_note
    from trmcloud.app.staging.stage import stage_items, through_bucket

    note = read_launch_note(home, run.run_id)
    items = stage_items(files, note, trainer_package(), run, home)
    fetched = through_bucket(run, items)
    return tuple(item for item in items if item not in fetched), fetched


def _bucket(place: str) -> Bucket:
    from trmcloud.adapters.s3.bucket import S3Bucket
    from trmcloud.core.contract.bucket_layout import parse_place

    return S3Bucket(parse_place(place))


def _folder_on_pod(kind: str, folder: Path) -> str:
    from trmcloud.app.staging.stage import remote_folder

    return remote_folder(kind, folder)


def run_files(root: Path) -> LocalRunFiles:
    """What lies below ``root``/runs, wherever that is on this machine."""
    return LocalRunFiles(root)


def trainer_package() -> Path:
    """The ``model`` package that trains: the user's own, or the bundled one."""
    own = os.environ.get(ENV_TRAINER)
    return (Path(own).absolute() if own else bundle_root()) / "model"


def python_path() -> list[str]:
    """Where a subprocess imports ``trmcloud`` and ``model`` from."""
    package = Path(__file__).resolve().parent.parent
    own = os.environ.get(ENV_TRAINER)
    if own:
        return [str(Path(own).absolute()), str(package)]
    bundle = bundle_root()
    return [str(package)] if bundle == package else [str(package), str(bundle)]


def keys_unseen(
    environ: Mapping[str, str], elsewhere: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """Account keys that ``environ`` gives and ``elsewhere`` does not: (variable, provider, the file
    from which both would read it)."""
    from trmcloud.adapters.runpod import settings

    if settings.account_key(environ) is None or settings.account_key(elsewhere) is not None:
        return []
    return [(settings.ENV_KEY, "runpod", f'~/{settings.CONFIG} (apikey = "…", mode 0600)')]


def reaper_timer() -> ReaperTimer:
    """The timer of this user that runs the reaper for this home."""
    from trmcloud.adapters.local.timer import ReaperTimer

    return ReaperTimer(os.environ, home_dir(os.environ), Path.home())


def account_checks(
    environ: Mapping[str, str], rates: Mapping[str, Usd], bucket: str = ""
) -> list[Callable[[], Sequence[Finding]]]:
    """What ``doctor`` asks of each provider, and of a bucket; ``rates`` are USD/h of what is meant
    to be rented."""
    from trmcloud.adapters.runpod.checkup import check_account
    from trmcloud.adapters.s3.checkup import check_bucket
    from trmcloud.adapters.skypilot.checkup import check_skypilot
    from trmcloud.app.doctor import check_needs

    home = home_dir(environ)
    return [
        lambda: check_needs(machine_needs(home, "runpod"), rents=_rents(environ, home)),
        lambda: check_account(environ, rates.get("runpod")),
        lambda: check_skypilot(environ, lambda provider: (home / provider).is_dir()),
        lambda: check_bucket(environ, bucket),
    ]


def _rents(environ: Mapping[str, str], home: Path) -> bool:
    """Whether machines are rented from here: there is a key, or were pods."""
    from trmcloud.adapters.runpod.settings import account_key
    from trmcloud.adapters.skypilot.command import ENV_SKY

    used = any((home / provider).is_dir() for provider in RENTABLE)
    return used or bool(environ.get(ENV_SKY)) or account_key(environ) is not None
