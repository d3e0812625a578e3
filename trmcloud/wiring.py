"""The only place that builds adapters: which ones fill the ports of a ``World``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from trmcloud.adapters.ledger_sqlite import SqliteLedger
from trmcloud.adapters.local import LocalCompute
from trmcloud.adapters.run_files import LocalRunFiles
from trmcloud.adapters.system_clock import SystemClock
from trmcloud.adapters.workers import ThreadWorkers
from trmcloud.app.bundle import bundle_root
from trmcloud.app.home import home_dir
from trmcloud.app.world import World
from trmcloud.pod import processes
from trmcloud.ports import ControllerId

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trmcloud.adapters.prices import Source
    from trmcloud.app.doctor import Finding
    from trmcloud.core.hardware import LocalMachine
    from trmcloud.core.money import Usd
    from trmcloud.core.offers import Offer

ENV_PROJECT = "TRMCLOUD_PROJECT"
ENV_TRAINER = "TRMCLOUD_TRAINER"
"""A folder that holds another ``model`` package: a trainer of your own that keeps the contract of
``trmcloud.core.pod_contract``."""


def build_world() -> World:
    """The world as this process's environment describes it."""
    home = home_dir(os.environ)
    local = LocalCompute(home, python_path())
    here = os.uname().nodename + ":" + processes.boot_id()
    who = ControllerId(here, os.getpid(), processes.started(os.getpid()) or "")

    def is_alive(controller: ControllerId) -> bool | None:
        if controller.host != here:
            return None
        if processes.alive(controller.pid, controller.pid_started):
            # One that is stopped may wake any moment, or never: its last beat has to tell.
            return None if processes.stopped(controller.pid) else True
        return False

    return World(
        home=home,
        clock=SystemClock(),
        ledger=SqliteLedger(home / "ledger.db"),
        computes={"local": local},
        links={"local": local},
        files=LocalRunFiles(home),
        who=who,
        is_alive=is_alive,
        project=os.environ.get(ENV_PROJECT, "default"),
        workers=ThreadWorkers(),
        stage_items=lambda run, plan, generation: (),
    )


def python_path() -> list[str]:
    """Where a subprocess imports ``trmcloud`` and ``model`` from."""
    package = Path(__file__).resolve().parent.parent
    own = os.environ.get(ENV_TRAINER)
    if own:
        return [str(Path(own).absolute()), str(package)]
    bundle = bundle_root()
    return [str(package)] if bundle == package else [str(package), str(bundle)]


def local_machine() -> LocalMachine:
    from trmcloud.adapters.local_machine import this_machine

    return this_machine()


def price_sources(environ: Mapping[str, str]) -> list[Source]:
    """Where live prices come from, the best first."""
    from trmcloud.adapters.price_sources import catalogues, read_skypilot
    from trmcloud.adapters.runpod.offers import price_rows

    return [
        lambda now: price_rows(environ, now),
        lambda now: read_skypilot(catalogues(environ)),
    ]


def account_checks(
    environ: Mapping[str, str], rates: Mapping[str, Usd]
) -> list[Callable[[], Sequence[Finding]]]:
    """What ``doctor`` asks of each provider; ``rates`` are USD/h of what is meant to be rented."""
    from trmcloud.adapters.runpod.checkup import check_account

    return [lambda: check_account(environ, rates.get("runpod"))]


def known_offers(now: float) -> list[Offer]:
    from trmcloud.adapters.prices import load_offers

    return load_offers(now, home_dir(os.environ))
