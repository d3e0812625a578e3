"""The only place that builds adapters: which ones fill the ports of a ``World``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.adapters.local.clock import SystemClock
from trmcloud.adapters.local.compute import LocalCompute
from trmcloud.adapters.local.intent_files import IntentFiles, intent_folders
from trmcloud.adapters.local.run_files import LocalRunFiles
from trmcloud.adapters.local.workers import ThreadWorkers
from trmcloud.app.context import Context
from trmcloud.app.home import close_home, home_dir
from trmcloud.app.out_of_reach import OutOfReach
from trmcloud.app.staging.bundle import bundle_root, families_folder
from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.catalog.providers import BY_SKYPILOT, RENTABLE
from trmcloud.core.errors import LedgerError, NotFoundError, TrmcloudError, UsageError
from trmcloud.core.spec.settings import FAMILIES
from trmcloud.io.families import FamilyFolders
from trmcloud.pod.machine import processes
from trmcloud.ports.ledger import ControllerId, Restoration
from trmcloud.wiring_notices import pod_webhook
from trmcloud.wiring_runpod import runpod_pods, runpod_setting
from trmcloud.wiring_skypilot import (
    SkyPilot,
    sky_home,
    skypilot_setting,
    was_used_by_skypilot,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trmcloud.adapters.local.timer import ReaperTimer
    from trmcloud.adapters.runpod.volumes import RunPodVolumes
    from trmcloud.app.context import Need
    from trmcloud.app.doctor import Finding
    from trmcloud.app.receipts import Check
    from trmcloud.app.smoke.setting import SmokeSetting
    from trmcloud.core.catalog.offers import Offer
    from trmcloud.core.control.run_state import RunState
    from trmcloud.core.money import Usd
    from trmcloud.ports.boards import Board
    from trmcloud.ports.bucket import Bucket
    from trmcloud.ports.link import StageItem
    from trmcloud.wiring_runpod import RunPodPods

FAMILIES.provide(FamilyFolders(families_folder))
ENV_PROJECT = "TRMCLOUD_PROJECT"
ENV_TRAINER = "TRMCLOUD_TRAINER"
"""A folder that holds another ``model`` package: a trainer of your own that keeps the contract of
``trmcloud.core.contract.trainer_contract``."""


def build_context(home: Path | None = None) -> Context:
    """The world as this process's environment describes it, around ``home`` or the user's own."""
    return _build(home)[0]


def build_ledger() -> tuple[SqliteLedger, Path]:
    """This home's ledger by itself, which no backup replaces unless that is asked for; the home.

    Raises:
        NotFoundError: this home has none: a home is not made by a look.
    """
    home = home_dir(os.environ)
    if not any((home / name).exists() for name in ("ledger.db", "ledger.head", "backups")):
        raise NotFoundError(f"there is no ledger in {home}", next_step="trmcloud plan")
    return SqliteLedger(home / "ledger.db"), home


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
        return Check("signature", Verdict.SIGNED, f"by {found.who}, with {found.key}")
    why = found.why or "whose that is says no file of known signers: --signers FILE"
    return Check("signature", Verdict.OPEN, f"of this file, with {found.key}; {why}")


def build_smoke(provider: str) -> tuple[Context, SmokeSetting]:
    """The world, and what a smoke run asks of it beyond the ports.

    Raises:
        UsageError: nothing is rented from ``provider``.
        AuthError: there is no key.
    """
    if provider in BY_SKYPILOT:
        world, _, skypilot = _build()
        return world, skypilot_setting(skypilot, provider)
    if provider != "runpod":
        raise UsageError(
            f"there is no smoke run for {provider!r}: it proves what ends rented pods",
            next_step="trmcloud smoke --provider runpod --max-usd 0.25",
        )
    world, runpod, _ = _build()
    return world, runpod_setting(runpod())


def build_volumes() -> RunPodVolumes:
    """Network volumes of this home's ledger, wherever they are rented.

    Raises:
        AuthError: there is no key.
    """
    return _build()[1]().volumes


def _build(
    named: Path | None = None,
) -> tuple[Context, Callable[[], RunPodPods], SkyPilot]:
    home = home_dir(os.environ) if named is None else named.absolute()
    close_home(os.environ)
    local = LocalCompute(home, python_path())
    clock, files = SystemClock(), LocalRunFiles(home)
    ledger = SqliteLedger(
        home / "ledger.db",
        wall=lambda: clock.now().wall,
        on_restored=lambda done: _tell_restored(home, ledger, done),
    )
    runpod = cache(lambda: runpod_pods(home, lambda: ledger.ledger_id, trainer_package))
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
        was_used=lambda provider: _was_used(home, provider),
        pod_webhook=lambda: pod_webhook(home),
        backup_trouble=ledger.backup_trouble,
        intents=IntentFiles(home, intent_folders(os.environ)),
    )
    return world, runpod, skypilot


def _was_used(home: Path, provider: str) -> bool:
    return (home / provider).is_dir() or was_used_by_skypilot(home, provider)


def _tell_restored(home: Path, ledger: SqliteLedger, done: Restoration) -> None:
    from trmcloud.app.ledger_care import restored_lines
    from trmcloud.core.plain_text import one_line

    for line in restored_lines(home, ledger.read(), done):
        print(one_line(line), file=sys.stderr, flush=True)


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


def event_files(folder: Path) -> Board:
    """What TensorBoard reads, below ``folder``."""
    from trmcloud.adapters.boards.event_files import EventFiles

    return EventFiles(folder)


def board_server(folder: Path, port: int) -> str:
    """The address at which TensorBoard shows ``folder``, as long as this process lives.

    Raises:
        UsageError: it cannot listen there.
    """
    from trmcloud.adapters.boards.served import serve_board

    return serve_board(folder, port)


def wandb_run(home: Path, run: RunState, *, project: str, entity: str | None) -> tuple[Board, str]:
    """(Weights & Biases' side of a run, where it is to be seen)

    Raises:
        UsageError: W&B refuses.
    """
    from trmcloud.adapters.boards.wandb_run import WandbRun
    from trmcloud.app.boards import about

    folder = home / "runs" / run.run_id
    made = WandbRun(run.run_id, about(run), folder=folder, project=project, entity=entity)
    return made, made.where


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
        lambda: check_skypilot(
            environ, lambda provider: _was_used(home, provider), partial(sky_home, home)
        ),
        lambda: check_bucket(environ, bucket),
    ]


def _rents(environ: Mapping[str, str], home: Path) -> bool:
    """Whether machines are rented from here: there is a key, or were pods."""
    from trmcloud.adapters.runpod.settings import account_key
    from trmcloud.adapters.skypilot.command import ENV_SKY

    used = any(_was_used(home, provider) for provider in RENTABLE)
    return used or bool(environ.get(ENV_SKY)) or account_key(environ) is not None
