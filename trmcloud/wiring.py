"""The place that builds adapters: which ones fill the ports of a ``Context``, who is told of it,
and what is asked of providers. ``wiring_plans`` builds what plans are made from."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from trmcloud.adapters.ledger.place import (
    ENV_LEDGER,
    has_ledger,
    ledger_url,
    open_existing,
    open_ledger,
    require_no_password,
    secrets_of_ledger,
)
from trmcloud.adapters.local.machine import (
    SystemClock,
    ThreadWorkers,
    is_controller_alive,
    this_controller,
)
from trmcloud.adapters.local.run_files import IntentFiles, LocalRunFiles, intent_folders
from trmcloud.core.catalog.providers import TRAITS, direct, find_traits
from trmcloud.core.errors import LedgerError, NotFoundError, TrmcloudError
from trmcloud.core.spec.settings import FAMILIES
from trmcloud.io.families import FamilyFolders
from trmcloud.operations.context import Buckets, Caller, Context, PodInputs
from trmcloud.operations.home import (
    bound_principal,
    bundle_root,
    close_home,
    families_folder,
    home_dir,
)
from trmcloud.operations.launch.run_notes import HomeNotes
from trmcloud.operations.machines import Machines, UnreachableProvider
from trmcloud.ports.ledger import Restoration
from trmcloud.providers.protocol import Site, no_smoke
from trmcloud.providers.registry import Providers

if TYPE_CHECKING:
    from trmcloud.adapters.ledger.moving import LedgerMove
    from trmcloud.adapters.ledger.recorded import RecordedLedger
    from trmcloud.adapters.local.timer import ReaperTimer
    from trmcloud.core.catalog.offers import Offer
    from trmcloud.core.control.balance import Funds
    from trmcloud.core.control.run_state import RunState
    from trmcloud.core.money import Usd
    from trmcloud.operations.checks.doctor import Finding
    from trmcloud.operations.checks.smoke_watch import SmokeSetting
    from trmcloud.operations.commands.trial import TrialGround
    from trmcloud.operations.notices.notifications import Notifier
    from trmcloud.ports.bucket import Bucket
    from trmcloud.ports.compute import PodItems
    from trmcloud.ports.machine import RunFiles, RunNotes
    from trmcloud.ports.notices import BackgroundNotifier, Board, Deliveries, Destination, Send
    from trmcloud.providers.protocol import Provider

FAMILIES.provide(FamilyFolders(families_folder))
ENV_PROJECT = "TRMCLOUD_PROJECT"
ENV_TRAINER = "TRMCLOUD_TRAINER"
"""A folder that holds another ``model`` package: a trainer of your own that keeps the contract of
``trmcloud.core.contract.trainer_contract``."""


def build_context(home: Path | None = None) -> Context:
    """The world as this process's environment describes it, around ``home`` or the user's own."""
    return _build(home)[0]


def build_ledger() -> tuple[RecordedLedger, Path]:
    """This home's ledger by itself, which no backup replaces unless that is asked for; the home.

    Raises:
        NotFoundError: this home has none: a home is not made by a look.
    """
    home = home_dir(os.environ)
    if not has_ledger(home, os.environ):
        raise NotFoundError(f"there is no ledger in {home}", next_step="trmcloud plan")
    return open_ledger(home, os.environ), home


def build_chain() -> RecordedLedger:
    """This home's ledger, whose records can be shown with their places in its chain."""
    return open_ledger(home_dir(os.environ), os.environ)


def chain_if_any() -> RecordedLedger | None:
    """Likewise, where there is one."""
    return open_existing(home_dir(os.environ), os.environ)


def ledger_secrets() -> set[str]:
    """Return what is never to be shown of the ledger's URL."""
    return secrets_of_ledger(home_dir(os.environ), os.environ)


def move_ledger(to: str) -> LedgerMove:
    """Move this home's ledger to the database at a URL, that of ``TRMCLOUD_LEDGER`` where none is
    given; or to this home's file: ``sqlite``.

    Raises:
        UsageError: no such place. ConflictError: another ledger is there. LedgerError, MissingExtra
    """
    from trmcloud.adapters.ledger.moving import move_to

    close_home(os.environ)
    return move_to(to, home_dir(os.environ), os.environ)


def migrate_ledger() -> tuple[int, int]:
    """Bring the tables of this home's database to this version: (version before, version now).

    Raises:
        UsageError: the ledger is a file, which needs no migration.
    """
    from trmcloud.adapters.ledger.moving import migrate

    return migrate(home_dir(os.environ), os.environ)


def build_trial(home: Path | None = None) -> TrialGround:
    """This machine for ``try``, with the environment that a pod here would give its command."""
    from trmcloud.operations.commands.trial import TrialGround
    from trmcloud.providers.local.compute import may_reach_pod

    if home is None:
        close_home(os.environ)
    return TrialGround(
        home=home_dir(os.environ) if home is None else home.absolute(),
        environment={name: v for name, v in os.environ.items() if may_reach_pod(name)},
        shell=dict(os.environ),
        python_path=python_path(),
        now=lambda: SystemClock().now().wall,
    )


def build_smoke(provider: str) -> tuple[Context, SmokeSetting]:
    """The world, and what a smoke run asks of it beyond the ports.

    Raises:
        UsageError: nothing is rented from ``provider``.
        AuthError: there is no key.
    """
    from trmcloud.wiring_plans import known_offers

    context, providers = _build()
    if provider not in context.machines.computes:
        raise no_smoke(provider)
    return context, providers[provider].smoke(provider, known_offers)


def _build(named: Path | None = None) -> tuple[Context, Providers]:
    home = home_dir(os.environ) if named is None else named.absolute()
    close_home(os.environ)
    clock, notes = SystemClock(), HomeNotes(home)
    files = LocalRunFiles(home, shares_ledger=bool(ledger_url(home, os.environ)))
    ledger = open_ledger(
        home,
        os.environ,
        wall=lambda: clock.now().wall,
        on_restored=lambda done: _tell_restored(home, ledger, done),
    )
    providers = providers_of(home, os.environ, lambda: ledger.ledger_id)
    principal = bound_principal(os.environ)
    world = Context(
        home=home,
        clock=clock,
        ledger=ledger,
        intents=IntentFiles(home, intent_folders(os.environ)),
        files=files,
        notes=notes,
        workers=ThreadWorkers(),
        machines=Machines(
            computes=LazyAdapters(providers, lambda provider, name: provider.compute(name)),
            links=LazyAdapters(providers, lambda provider, name: provider.link(name)),
            needs=lambda name: providers[name].needs(),
            was_used=lambda name: providers[name].was_used(name),
        ),
        buckets=Buckets(cache(_bucket)),
        caller=Caller(
            controller=this_controller(),
            is_alive=is_controller_alive,
            project=os.environ.get(ENV_PROJECT, "default"),
            principal=principal,
            bucket=os.environ.get("TRMCLOUD_BUCKET", ""),
        ),
        pods=PodInputs(
            items=lambda run: _pod_items(home, files, notes, run),
            folder=_folder_on_pod,
            trainer_path=python_path,
            webhook=lambda: pod_webhook(home),
        ),
    )
    return world, providers


def providers_of(home: Path, environ: Mapping[str, str], ledger_id: Callable[[], str]) -> Providers:
    """Every provider, as ``environ`` and the home at ``home`` give access to it."""
    return Providers(Site(home, environ, ledger_id, trainer_package, python_path))


def _tell_restored(home: Path, ledger: RecordedLedger, done: Restoration) -> None:
    from trmcloud.core.text import one_line
    from trmcloud.operations.money.ledger_care import restored_lines

    for line in restored_lines(home, ledger.read(), done):
        print(one_line(line), file=sys.stderr, flush=True)


_Adapter = TypeVar("_Adapter")


class LazyAdapters(Mapping[str, _Adapter | UnreachableProvider]):
    """Adapters by provider, each made when it is first asked for: most commands need one of them.
    One that cannot be made raises its reason when it is asked; the others work."""

    def __init__(self, providers: Providers, make: Callable[[Provider, str], _Adapter]) -> None:
        self._providers, self._make = providers, make
        self._made: dict[str, _Adapter | UnreachableProvider] = {}

    def __getitem__(self, name: str) -> _Adapter | UnreachableProvider:
        if name not in self._made:
            try:
                self._made[name] = self._make(self._providers[name], name)
            except LedgerError:
                raise
            except TrmcloudError as error:
                self._made[name] = UnreachableProvider(error)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, traits in TRAITS.items() if traits.route.can_be_named)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        traits = find_traits(str(name))
        return traits is not None and traits.route.can_be_named


def funds_at(provider: str) -> tuple[Funds | None, str]:
    """(what is free of the account's balance at ``provider``, why that is not known); both empty
    where there is no account there, or it states no balance."""
    from trmcloud.operations.driving.balances import read_funds_if_any
    from trmcloud.wiring_plans import has_account

    return read_funds_if_any(provider, has_account, build_context)


def offers_for_errand(now: float) -> tuple[Sequence[Offer], Usd]:
    """Return the offers that can be rented now for minutes, and the USD/h of such a pod's own
    disks.

    Raises:
        AuthError: there is no key.
    """
    from trmcloud.operations.checks import smoke_watch

    return smoke_watch.offers_for_errand(lambda provider: build_smoke(provider)[1], now)


def _pod_items(home: Path, files: RunFiles, notes: RunNotes, run: RunState) -> PodItems:
    from trmcloud.operations.sending.staging import pod_items

    return pod_items(files, notes.launch(run.run_id), trainer_package(), run, home)


def _bucket(place: str) -> Bucket:
    from trmcloud.adapters.s3.bucket import S3Bucket
    from trmcloud.core.contract.bucket_layout import parse_place

    return S3Bucket(parse_place(place))


def _folder_on_pod(kind: str, folder: Path) -> str:
    from trmcloud.operations.sending.staging import remote_folder

    return remote_folder(kind, folder)


def event_files(folder: Path) -> Board:
    """Return the board of TensorBoard's event files below ``folder``."""
    from trmcloud.adapters.boards import EventFiles

    return EventFiles(folder)


def board_server(folder: Path, port: int) -> str:
    """The address at which TensorBoard shows ``folder``, as long as this process lives.

    Raises:
        UsageError: it cannot listen there.
    """
    from trmcloud.adapters.boards import serve_board

    return serve_board(folder, port)


def wandb_run(home: Path, run: RunState, *, project: str, entity: str | None) -> tuple[Board, str]:
    """(Weights & Biases' side of a run, where it is to be seen)

    Raises:
        UsageError: W&B refuses.
    """
    from trmcloud.adapters.boards import WandbRun
    from trmcloud.operations.curves.boards import board_facts

    folder = home / "runs" / run.run_id
    made = WandbRun(run.run_id, board_facts(run), folder=folder, project=project, entity=entity)
    return made, made.where


def run_files(root: Path) -> LocalRunFiles:
    """Return the files below ``root``/runs, wherever that is on this machine."""
    return LocalRunFiles(root)


def trainer_package() -> Path:
    """The ``model`` package that trains: the user's own, or the bundled one."""
    own = os.environ.get(ENV_TRAINER)
    return (Path(own).absolute() if own else bundle_root()) / "model"


def python_path() -> list[str]:
    """Return the paths from which a subprocess imports ``trmcloud`` and ``model``."""
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
    providers = _unledgered(environ)
    return [key for provider in providers.each() for key in provider.unseen_keys(elsewhere)]


def reaper_timer() -> ReaperTimer:
    """The timer of this user that runs the reaper for this home.

    Raises:
        UsageError: the timer's file would show a password.
    """
    from trmcloud.adapters.local.timer import ReaperTimer

    home = home_dir(os.environ)
    require_no_password(home, os.environ)
    variables = [name for each in _unledgered(os.environ).each() for name in each.variables]
    return ReaperTimer(os.environ, home, Path.home(), [*variables, ENV_LEDGER])


def account_checks(
    environ: Mapping[str, str], rates: Mapping[str, Usd], bucket: str = ""
) -> list[Callable[[], Sequence[Finding]]]:
    """Return ``doctor``'s checks of each provider, and of a bucket; ``rates`` are USD/h of planned
    rents."""
    from trmcloud.adapters.s3.checkup import check_bucket
    from trmcloud.operations.checks.doctor import check_needs, rents_here

    providers = _unledgered(environ)
    usual = providers[direct()[0]]

    def rents() -> bool:
        has_keys = (provider.has_access() for provider in providers.each())
        return rents_here(lambda name: providers[name].was_used(name), has_keys)

    return [
        lambda: check_needs(usual.needs(), rents=rents()),
        *(check for provider in providers.each() for check in provider.checks(rates)),
        lambda: check_bucket(environ, bucket),
    ]


def _unledgered(environ: Mapping[str, str]) -> Providers:
    """Providers that are asked for what needs no ledger."""
    home = home_dir(environ)
    return providers_of(home, environ, lambda: open_ledger(home, environ).ledger_id)


def notification_thread(context: Context) -> BackgroundNotifier | None:
    """Return the background sender of notices while ``context`` is used; None without a
    destination."""
    teller = build_notifier(context)
    if teller is None:
        return None
    from trmcloud.adapters.notify.notified import NotificationThread

    return NotificationThread(teller)


def build_notifier(context: Context) -> Notifier | None:
    """Return the sender of this home's notices to their destinations. Its ledger is its own:
    another thread's to read.

    None where there is no destination, or the list cannot be read: that stops no command.
    """
    destinations = _known_destinations(context.home)
    if not destinations:
        return None
    from trmcloud.core.values import replace
    from trmcloud.operations.notices.notifications import Notifier

    own = replace(context, ledger=open_ledger(context.home, os.environ))
    return Notifier(own, deliveries_of(context.home), destinations, sender_of)


def destinations_file() -> tuple[
    Callable[[], tuple[Destination, ...]], Callable[[Sequence[Destination]], None]
]:
    """(what reads who is to be told, what writes it)"""
    from trmcloud.adapters.notify.senders import read_destinations, write_destinations

    close_home(os.environ)
    home = home_dir(os.environ)
    return partial(read_destinations, home), partial(write_destinations, home)


def deliveries_of(home: Path) -> Deliveries:
    from trmcloud.adapters.notify.notified import NotifiedFile

    return NotifiedFile(home, lambda line: print(line, file=sys.stderr))


def sender_of(destination: Destination) -> Send:
    """By its way.

    Raises:
        MissingExtra, UsageError: it cannot be told.
    """
    if destination.way == "webhook":
        from trmcloud.adapters.notify.senders import WebhookSender

        return WebhookSender(destination.where, destination.secret)
    from trmcloud.adapters.notify.senders import AppriseSender

    return AppriseSender(destination.way, destination.where)


def pod_webhook(home: Path) -> str:
    """``webhook.json`` for a pod; '' where no destination is to be told from there."""
    destinations = _known_destinations(home)
    if not destinations:
        return ""
    from trmcloud.operations.notices.notifications import webhook_of

    return webhook_of(destinations)


def _known_destinations(home: Path) -> tuple[Destination, ...]:
    """None where there is no list, or it cannot be read: that stops no command."""
    if not (home / "notify.json").exists():
        return ()
    from trmcloud.adapters.notify.senders import read_destinations
    from trmcloud.core.errors import NotifyError

    try:
        return read_destinations(home)
    except NotifyError:
        return ()
