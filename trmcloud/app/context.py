"""Everything a use case may touch: the ports, filled in by ``wiring``; and a provider out of
reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.clock import DatedFact, Maybe, UnknownSince
from trmcloud.core.control import bookkeeping, ledger_facts
from trmcloud.core.control.actions import owes_sweep
from trmcloud.core.control.billing import awaiting_bill
from trmcloud.core.control.bookkeeping import require_run, require_whole
from trmcloud.core.control.run_book import (
    NAME,
    PROVIDER,
    TAG,
    find_runs,
    newest_runs,
    present_runs,
    terms_in_use,
)
from trmcloud.core.errors import (
    LinkError,
    NotFoundError,
    NotSupported,
    ProviderError,
    ProviderRefused,
    TrmcloudError,
)
from trmcloud.core.values import dataclass, replace
from trmcloud.ports.compute import Compute, PodLink

if TYPE_CHECKING:
    from trmcloud.core.contract.pod_contract import AgentReport
    from trmcloud.core.control.balance import AccountBalance
    from trmcloud.core.control.observation import PodSeen
    from trmcloud.core.control.run_state import RunState
    from trmcloud.core.money import Usd
    from trmcloud.ports.bucket import Bucket
    from trmcloud.ports.compute import StageItem
    from trmcloud.ports.ledger import ControllerId, Intents, Ledger
    from trmcloud.ports.machine import Clock, RunFiles, Workers

Tags = Sequence[tuple[str, str]]
_NEWEST = 4
"""Of so many records of launches the newest launch is looked for: clocks of a team differ."""


class Need(NamedTuple):
    """One program or right. ``missing``: it is not there, or does not work; ``detail`` says how."""

    name: str
    detail: str
    missing: bool = False
    fix: str = ""


@dataclass(frozen=True)
class BalanceReading:
    """One process's reading of an account's balance: ``account`` was read last at
    ``read_at``, and ``trouble`` why it could not be read at ``asked_at`` (both epoch s)."""

    asked_at: float
    account: AccountBalance | None = None
    read_at: float = 0.0
    trouble: str = ""


@dataclass(frozen=True)
class Context:
    """The ports of one trmcloud home. ``is_alive`` says whether a controller's process lives."""

    home: Path
    clock: Clock
    ledger: Ledger
    computes: Mapping[str, Compute]
    links: Mapping[str, PodLink]
    files: RunFiles
    who: ControllerId
    is_alive: Callable[[ControllerId], bool | None]
    """None where it cannot be told: the process is on another machine, or is stopped."""
    project: str
    workers: Workers
    stage_items: Callable[[RunState], Sequence[StageItem]]
    """Returns the items that a pod of the run needs from this machine before it can train."""
    folder_on_pod: Callable[[str, Path], str]
    """Returns a local folder's path on a rented pod, by its kind (data, weights)."""
    needs: Callable[[str], Sequence[Need]] = lambda provider: ()
    """Returns a provider's needs of this machine for renting, the missing ones marked."""
    was_used: Callable[[str], bool] = lambda provider: True
    """Whether this home has traces of a provider's pods, independent of its ledger."""
    bucket_items: Callable[[RunState], Sequence[StageItem]] = lambda run: ()
    """Of what a pod needs, the part that it fetches from the run's bucket by itself."""
    bucket: Callable[[str], Bucket] | None = None
    """The bucket that s3://… names; connected when it is first asked for something."""
    notes: MutableMapping[str, Mapping[str, Any]] | None = None
    """Launch notes by their runs' ids, where they are not kept below ``home``."""
    trainer_path: Callable[[], Sequence[str]] = list
    """Returns the paths from which a process of this machine imports ``trmcloud`` and the
    trainer."""
    pod_webhook: Callable[[], str] = lambda: ""
    """``webhook.json``, for a pod whose agent is to send notifications by itself; '' for none."""
    backup_trouble: Callable[[], str] = lambda: ""
    """Why a loss of the ledger's file would lose a run that has ended; empty where it would not."""
    is_elsewhere: Callable[[str], bool] = lambda run_id: False
    """Whether a run was launched from another home that shares the ledger: its files, keys and
    local pods are there, so that no look from here takes it over."""
    note_machine: Callable[[RunState, AgentReport], None] = lambda run, report: None
    """Adds what an agent reports of its machine to the run's history on this one."""
    listed: dict[str, Maybe[tuple[PodSeen, ...]]] = field(default_factory=dict)
    """The last answer of each provider's list to ``list_pods``."""
    balances: dict[str, BalanceReading] = field(default_factory=dict)
    """The last reading of each provider's balance by ``read_balance``."""
    troubles: dict[str, Exception] = field(default_factory=dict)
    """Why a run, by its id, could not be brought up to date by the last ``reconcile``."""
    unasked: frozenset[str] = frozenset()
    """Providers that this command leaves alone: what is known of their pods is what was heard."""
    hurried_ledger: Callable[[], Ledger] | None = None
    """Makes this ledger anew for one command that ends pods: it is waited for a moment in all, and
    then raises at once; see ``hurried``."""
    intents: Intents | None = None
    """The stops that users requested while the ledger could not be written."""
    principal: str = ""
    """Whom this process acts for, under a grant; empty: the ledger's owner."""
    is_bound: bool = False
    """Whether the process shows and steers the principal's runs alone, and changes no cap: a shell
    whose environment names one, or a ``Home`` of one."""
    configured_bucket: str = ""
    """The s3:// place of TRMCLOUD_BUCKET, which every principal may use; empty: none."""
    unswept: dict[str, float] = field(default_factory=dict)
    """When this process asked a bucket in vain: one that is down is not asked for every run."""

    def wall(self) -> float:
        return self.clock.now().wall


def hurried(context: Context) -> Context:
    """Return the context for ending pods: its ledger keeps nobody waiting."""
    if context.hurried_ledger is None:
        return context
    return replace(context, ledger=context.hurried_ledger())


def bucket_at(context: Context, place: str) -> Bucket:
    if context.bucket is None:
        raise NotSupported(f"there are no credentials here for {place}")
    return context.bucket(place)


def list_pods(
    context: Context, provider: str, at_most_s: float = 0.0
) -> Maybe[tuple[PodSeen, ...]]:
    """List the provider's pods now, or return the list of less than ``at_most_s`` ago; or the
    reason why they are unknown."""
    at = context.wall()
    if provider in context.unasked:
        return UnknownSince(at, "it was not queried")
    known = context.listed.get(provider)
    if isinstance(known, DatedFact) and 0 <= at - known.at < at_most_s:
        return known
    try:
        seen: Maybe[tuple[PodSeen, ...]] = DatedFact(
            tuple(context.computes[provider].list_pods()), at
        )
    except ProviderError as error:
        seen = UnknownSince(at, str(error))
    context.listed[provider] = seen
    return seen


def providers_in_use(context: Context) -> tuple[str, ...]:
    """This machine, and each provider that this home ever asked for a pod: only they can have one.
    Those that are left alone are not among them."""
    used = _ever_used(context)
    return tuple(n for n in used if n not in context.unasked) if context.unasked else tuple(used)


def has_unasked_provider(context: Context) -> bool:
    """Whether a provider that may have a pod of ours is not asked."""
    return bool(context.unasked) and any(name in context.unasked for name in _ever_used(context))


def _ever_used(context: Context) -> list[str]:
    used = terms_in_use(context.ledger.read().runs, PROVIDER)
    known = dict.fromkeys((*context.computes, *sorted(used)))
    there = (n for n in known if n in context.computes)
    return [n for n in there if n == LOCAL or n in used or context.was_used(n)]


def is_unasked(context: Context, run: RunState) -> bool:
    """Whether no provider is asked about the run's present pod."""
    return run.generation is not None and run.generation.provider in context.unasked


def unreached_providers(context: Context) -> tuple[tuple[str, str], ...]:
    """(provider, why) of each whose list was asked for last without an answer."""
    return tuple(
        (name, seen.why)
        for name, seen in sorted(context.listed.items())
        if isinstance(seen, UnknownSince) and seen.why
    )


def is_quiet(context: Context) -> bool:
    """Whether nothing is owed: no run to drive, no bill to come, no bucket to sweep, no pod to
    end. Reconciling would find nothing."""
    ledger = context.ledger.read()
    runs, now = present_runs(ledger.runs), context.wall()
    if any(run.live or awaiting_bill(run) or owes_sweep(run, now) for run in runs):
        return False
    if bookkeeping.orphans_awaiting_bill(ledger) or bookkeeping.is_charge_pending(ledger):
        return False
    if any(not due.why_kept for due in ledger_facts.due_volumes(ledger, context.wall())):
        return False
    for name in providers_in_use(context):
        seen = list_pods(context, name)
        if isinstance(seen, UnknownSince) or any(not pod.gone for pod in seen.value):
            return False
    return True


def shows(context: Context, run: RunState) -> bool:
    """Whether the process may see a run: where its shell is bound, one of that principal."""
    return not context.is_bound or context.principal in (run.principal, run.creator)


def shown_runs(context: Context) -> dict[str, RunState]:
    """The runs that may be shown, by their ids. Money and pods are those of all runs."""
    runs = context.ledger.read().runs
    return {run_id: run for run_id, run in runs.items() if shows(context, run)}


def shown_present_runs(context: Context) -> list[RunState]:
    """Those of the runs that may be shown which have not ended, and perhaps others; in the order of
    their launches."""
    shown = (run for run in present_runs(context.ledger.read().runs) if shows(context, run))
    return sorted(shown, key=lambda run: run.created_at)


def newest_shown_run(context: Context, tags: Tags = ()) -> RunState | None:
    """Return the run that was launched last, of those that may be shown and have all ``tags``."""
    if not context.is_bound and not tags:
        found: Iterable[RunState] = newest_runs(context.ledger.read().runs, _NEWEST)
    else:
        found = _shown_with(context, tags)
    return max(found, key=lambda run: run.created_at, default=None)


def count_shown_runs(context: Context, tags: Tags = ()) -> int:
    """Return the number of runs that may be shown and have all ``tags``."""
    if not context.is_bound and not tags:
        return len(context.ledger.read().runs)
    return len(_shown_with(context, tags))


def _shown_with(context: Context, tags: Tags) -> list[RunState]:
    runs = context.ledger.read().runs
    found = find_runs(runs, TAG, "=".join(tags[0])) if tags else runs.values()
    shown = {run.run_id: run for run in found if shows(context, run) and set(tags) <= set(run.tags)}
    return list(shown.values())


def find_run(context: Context, name: str | None) -> RunState:
    """The run of that id or name, or the newest one where none is given, of those that may be
    shown. Of runs of one name the live one is meant, else the newest.

    This is the only place where a name becomes a run. What is done after that is given the run's
    id (``run_by_id``): the name may be another run's by then.

    Raises:
        NotFoundError: naming what there is.
    """
    if name is None:
        newest = newest_shown_run(context)
        if newest is None:
            who = f"{context.principal} has" if context.is_bound else "there are"
            raise NotFoundError(
                f"{who} no runs yet",
                next_step="trmcloud launch local --recipe trm-tiny --budget 0.06 --rate 3.60",
            )
        return newest
    runs = context.ledger.read().runs
    if name in runs and shows(context, runs[name]):
        return runs[name]
    named = [run for run in find_runs(runs, NAME, name) if run.name == name] if name else []
    named = [run for run in named if shows(context, run)]
    if named:
        return max(named, key=lambda run: (run.live, run.created_at))
    require_whole(context.ledger.read(), name)
    shown = sorted(shown_runs(context) if context.is_bound else runs)
    known = ", ".join(shown[-5:])
    if context.is_bound:
        raise NotFoundError(
            f"{context.principal} has no run {name:.80}", next_step=known or "launch one"
        )
    raise NotFoundError(f"no run {name!r}", next_step=f"trmcloud status (runs: {known or 'none'})")


def run_by_id(context: Context, run_id: str) -> RunState:
    """Return the run of that id as it stands now; no name is looked up.

    Raises:
        NotFoundError: there is none. RunQuarantined: its records are damaged.
    """
    return require_run(context.ledger.read(), run_id)


# A provider that is out of reach: it has no key here, or its client is not installed. This class
# stands in the adapter's place, so that every question is answered like that of a provider that
# does not answer.


class UnreachableProvider(Compute, PodLink):
    """``Compute`` and ``PodLink`` of a provider whose adapters could not be made; ``error`` is
    why."""

    def __init__(self, error: TrmcloudError) -> None:
        self.error = error

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        if isinstance(self.error, ProviderError):
            raise self.error
        raise ProviderRefused(str(self.error), next_step=self.error.next_step)

    create = list_pods = terminate = bill = balance = kept_volumes = _refuse

    def require_account(self, rate: Usd) -> None:
        raise self.error

    def report(self, pod_name: str) -> AgentReport | None:
        return None

    def trouble(self, pod_name: str) -> LinkError | None:
        return LinkError(str(self.error), next_step=self.error.next_step)

    def _cut(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise LinkError(str(self.error), next_step=self.error.next_step)

    grant = send_orders = stage = pull = fetch = manifest = _cut


def require_reach(context: Context, provider: str) -> None:
    """
    Raises:
        TrmcloudError: the provider cannot be had from here at all, and why.
    """
    compute = context.computes.get(provider)
    if isinstance(compute, UnreachableProvider):
        raise compute.error
