"""The checks of a machine before any money is at stake."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from trmcloud.core.catalog.hardware import LocalMachine
from trmcloud.core.catalog.offers import FRESH_DAYS, Offer
from trmcloud.core.catalog.providers import TRAITS, direct, rentable
from trmcloud.core.control.balance import Funds, worst_at
from trmcloud.core.control.run_book import present_runs
from trmcloud.core.errors import TrmcloudError
from trmcloud.core.spec.plan import Plan
from trmcloud.io.installation import install_command
from trmcloud.operations.context import Context
from trmcloud.operations.home import make_home
from trmcloud.operations.machines import Need

_LOW_DISK_BYTES = 5 << 30
_WEEK_DAYS = 7
_EARLIEST_SANE_AT = 1_763_000_000.0
"""A clock before this program was written is wrong."""


class Finding(NamedTuple):
    """``state``: ok, warn or bad."""

    name: str
    state: str
    detail: str
    fix: str = ""


def examine(
    build_context: Callable[[], Context],
    machine: Callable[[], LocalMachine],
    python_path: Callable[[], Sequence[str]],
    offers: Callable[[float], Sequence[Offer]] | None = None,
    accounts: Sequence[Callable[[], Sequence[Finding]]] = (),
) -> list[Finding]:
    """All findings; what cannot be checked is a finding, too.

    ``offers`` gives every known offer at an instant (epoch s); each of ``accounts`` looks at one
    provider's.
    """
    found = [_python(), _machine(machine()), _bundle(python_path)]
    try:
        context = build_context()
        found += [_home(context), _ledger(context), _disk(context), _clock(context)]
        if offers is not None:
            found.append(_prices(offers(context.wall()), context.wall()))
    except TrmcloudError as error:
        found.append(Finding("ledger", "bad", str(error), error.next_step))
    found.append(_extra("train", "torch", "training on this machine"))
    found.append(_extra("data", "tokenizers", "byte-pair tokenizers"))
    for account in accounts:
        found += account()
    return found


def check_needs(needs: Sequence[Need], *, rents: bool) -> list[Finding]:
    """Check the needs of a launch before it reserves anything. ``rents``: machines are rented
    here."""
    bad = "bad" if rents else "warn"
    return [
        Finding(need.name, bad, f"{need.detail}: no machine can be rented", need.fix)
        if need.missing
        else Finding(need.name, "ok", need.detail)
        for need in needs
    ]


def rents_here(was_used: Callable[[str], bool], has_keys: Iterable[bool]) -> bool:
    """Whether machines are rented from here: there were pods of a provider, or there is a key.
    ``has_keys``: of each seller, looked for only where no pod is known."""
    return any(map(was_used, rentable())) or any(has_keys)


def check_funds(funds: Funds, plan: Plan) -> Finding:
    """Check a plan's worst case against what is free of the balance that it is paid from."""
    worst = worst_at(plan, funds.provider)
    told = (
        f"{funds.free} of {funds.balance} at {funds.provider} free, the plan's worst case {worst}"
    )
    if missing := funds.missing(worst):
        return Finding("funds", "bad", told, f"add {missing}, or plan with --fit-balance")
    return Finding("funds", "ok", told)


def _python() -> Finding:
    version = sys.version.split()[0]
    if sys.version_info < (3, 11):
        return Finding("python", "bad", version, "Python 3.11 or newer")
    return Finding("python", "ok", version)


def _machine(machine: LocalMachine) -> Finding:
    memory = f"{machine.memory_gb:.0f} GB memory"
    if machine.gpus:
        gpu = f"{machine.gpus} × {machine.name}, {machine.gpu_memory_gb:.0f} GB each"
        state = "ok" if machine.gpu_sku else "warn"
        fix = (
            ""
            if machine.gpu_sku
            else "its speed is not in our table: predictions for it are not reliable"
        )
        return Finding("machine", state, f"{gpu}; {machine.cpus} CPUs, {memory}", fix)
    return Finding("machine", "ok", f"{machine.cpus} CPUs, {memory}, no GPU")


def _bundle(python_path: Callable[[], Sequence[str]]) -> Finding:
    try:
        return Finding("trainer", "ok", python_path()[-1])
    except TrmcloudError as error:
        return Finding("trainer", "bad", str(error), error.next_step)


def _home(context: Context) -> Finding:
    home = context.home
    try:
        make_home(home)
        with tempfile.TemporaryFile(dir=home):
            pass
    except OSError as error:
        fix = "set TRMCLOUD_HOME to a folder that you own"
        return Finding("home", "bad", f"{home}: {error.strerror}", fix)
    loose = home.stat().st_mode & 0o022
    if loose:
        return Finding("home", "warn", f"other users can write to {home}", f"chmod go-w {home}")
    return Finding("home", "ok", str(home))


def _ledger(context: Context) -> Finding:
    state = context.ledger.read()
    live = sum(run.live for run in present_runs(state.runs))
    if state.quarantined or state.unread:
        names = [*state.quarantined, *(f"record {lost.seq}" for lost in state.unread)]
        text = f"{state.ledger_id}: damaged: {', '.join(names)}"
        return Finding("ledger", "bad", text, "trmcloud admin ledger check")
    if trouble := context.ledger.backup_trouble():
        fix = "free some disk space, then: trmcloud admin ledger backups --make"
        return Finding("ledger", "warn", f"{state.ledger_id}: {trouble}", fix)
    runs = f"{len(state.runs)} run{'s' if len(state.runs) != 1 else ''}"
    return Finding("ledger", "ok", f"{state.ledger_id}: {runs}, {live} live")


def _disk(context: Context) -> Finding:
    free = shutil.disk_usage(context.home).free
    text = f"{free / 1e9:.0f} GB free at {context.home}"
    if free < _LOW_DISK_BYTES:
        return Finding(
            "disk", "warn", text, "trmcloud prune RUN, or set TRMCLOUD_HOME to a larger disk"
        )
    return Finding("disk", "ok", text)


def _clock(context: Context) -> Finding:
    if context.wall() < _EARLIEST_SANE_AT:
        return Finding("clock", "bad", "the date is in the past", "set the clock (NTP)")
    if not os.path.exists("/proc/uptime"):
        return Finding("clock", "warn", "no /proc: launch local needs Linux", "use Linux or WSL")
    return Finding("clock", "ok", "wall clock and boot clock are readable")


def _extra(extra: str, package: str, purpose: str) -> Finding:
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        fix = install_command(extra)
        return Finding(package, "warn", f"not installed: needed for {purpose}", fix)
    return Finding(package, "ok", version)


def _prices(offers: Sequence[Offer], now: float) -> Finding:
    usual = TRAITS[direct()[0]]
    rented = [offer.age_days(now) for offer in offers if offer.provider == usual.name]
    if not rented:
        text = f"no prices of {usual.title} are known"
        return Finding("prices", "warn", text, "trmcloud prices refresh")
    text = f"prices of {usual.title} are {min(rented)} to {max(rented)} days old"
    if max(rented) > FRESH_DAYS:
        text += f"; those older than {FRESH_DAYS} days are planned with a surcharge"
    if min(rented) > _WEEK_DAYS:
        return Finding("prices", "warn", text, "trmcloud prices refresh")
    return Finding("prices", "ok", text)
