"""Everything that a use case may touch: the ports in small groups, filled in by ``wiring``; and the
runs that it may show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.clock import UnknownSince
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
from trmcloud.core.errors import NotFoundError, NotSupported
from trmcloud.core.values import Value, replace
from trmcloud.operations.machines import Machines

if TYPE_CHECKING:
    from trmcloud.core.control.run_state import RunState
    from trmcloud.ports.bucket import Bucket
    from trmcloud.ports.compute import PodItems
    from trmcloud.ports.ledger import ControllerId, Intents, Ledger
    from trmcloud.ports.machine import Clock, RunFiles, RunNotes, Workers

Tags = Sequence[tuple[str, str]]
_NEWEST = 4
"""Of so many records of launches the newest launch is looked for: clocks of a team differ."""


class Caller(Value):
    """For whom this process acts, and by which name the ledger knows it."""

    controller: ControllerId
    is_alive: Callable[[ControllerId], bool | None]
    """Whether a controller's process lives; None where it cannot be told: it is on another machine,
    or is stopped."""
    project: str = "default"
    principal: str = ""
    """Whom this process acts for, under a grant; empty: the ledger's owner."""
    bucket: str = ""
    """The s3:// place of TRMCLOUD_BUCKET, which every principal may use; empty: none."""

    @property
    def is_bound(self) -> bool:
        """Whether the process shows and steers the principal's runs alone, and changes no cap."""
        return bool(self.principal)

    def acting_for(self, principal: str | None) -> Caller:
        """Return the caller who acts for ``principal``; None: for whom it acts already.

        Raises:
            UsageError: that is no principal's name.
        """
        if principal is not None:
            bookkeeping.require_principal(principal)
        return replace(self, principal=principal or self.principal)


class PodInputs(Value):
    """Files and settings that a trainer gets from this machine, on a pod or here."""

    items: Callable[[RunState], PodItems]
    """Returns what a pod of the run needs from this machine before it can train."""
    folder: Callable[[str, Path], str]
    """Returns a local folder's path on a rented pod, by its kind (data, weights)."""
    trainer_path: Callable[[], Sequence[str]] = list
    """Returns the paths from which a process of this machine imports ``trmcloud`` and the
    trainer."""
    webhook: Callable[[], str] = str
    """``webhook.json``, for a pod whose agent is to send notifications by itself; '' for none."""


class Buckets:
    """The buckets of runs; each is connected when it is first asked for something."""

    def __init__(self, connect: Callable[[str], Bucket] | None = None) -> None:
        self._connect = connect
        self._failed_at: dict[str, float] = {}

    def at(self, place: str) -> Bucket:
        """Return the bucket that s3://… names."""
        if self._connect is None:
            raise NotSupported(f"there are no credentials here for {place}")
        return self._connect(place)

    def fail(self, place: str, now: float) -> None:
        """Record that a bucket did not answer: it is not asked for every run."""
        self._failed_at[place] = now

    def succeed(self, place: str) -> None:
        self._failed_at.pop(place, None)

    def has_failed(self, place: str, now: float, within_s: float) -> bool:
        """Whether a bucket did not answer this process less than ``within_s`` ago."""
        at = self._failed_at.get(place)
        return at is not None and 0 <= now - at < within_s


class Context(Value):
    """The ports of one trmcloud home, and the folder where it keeps its files."""

    home: Path
    clock: Clock
    ledger: Ledger
    intents: Intents
    """The stops that users requested while the ledger could not be written."""
    files: RunFiles
    notes: RunNotes
    workers: Workers
    machines: Machines
    buckets: Buckets
    caller: Caller
    pods: PodInputs
    troubles: dict[str, Exception] = field(default_factory=dict)
    """Why a run, by its id, could not be brought up to date by the last ``reconcile``."""

    def wall(self) -> float:
        return self.clock.now().wall

    def take_over(self, run_id: str) -> int:
        """Become the run's driver, and return the new epoch."""
        return self.ledger.take_over(run_id, self.caller.controller, self.wall())


def hurried(context: Context) -> Context:
    """Return the context for ending pods: its ledger keeps nobody waiting."""
    return replace(context, ledger=context.ledger.hurried())


def providers_in_use(context: Context) -> tuple[str, ...]:
    """This machine, and each provider that this home ever asked for a pod: only they can have one.
    Those that are left alone are not among them."""
    unasked = context.machines.unasked
    return tuple(name for name in _ever_used(context) if name not in unasked)


def has_unasked_provider(context: Context) -> bool:
    """Whether a provider that may have a pod of ours is not asked."""
    unasked = context.machines.unasked
    return bool(unasked) and not unasked.isdisjoint(_ever_used(context))


def _ever_used(context: Context) -> list[str]:
    used = terms_in_use(context.ledger.read().runs, PROVIDER)
    known = dict.fromkeys((*context.machines.computes, *sorted(used)))
    there = (n for n in known if n in context.machines.computes)
    return [n for n in there if n == LOCAL or n in used or context.machines.was_used(n)]


def is_unasked(context: Context, run: RunState) -> bool:
    """Whether no provider is asked about the run's present pod."""
    return run.generation is not None and run.generation.provider in context.machines.unasked


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
        seen = context.machines.list_pods(name, context.wall())
        if isinstance(seen, UnknownSince) or any(not pod.gone for pod in seen.value):
            return False
    return True


def shows(context: Context, run: RunState) -> bool:
    """Whether the process may see a run: where its shell is bound, one of that principal."""
    mine = (run.payer.principal, run.creator)
    return not context.caller.is_bound or context.caller.principal in mine


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
    if not context.caller.is_bound and not tags:
        found: Iterable[RunState] = newest_runs(context.ledger.read().runs, _NEWEST)
    else:
        found = _shown_with(context, tags)
    return max(found, key=lambda run: run.created_at, default=None)


def count_shown_runs(context: Context, tags: Tags = ()) -> int:
    """Return the number of runs that may be shown and have all ``tags``."""
    if not context.caller.is_bound and not tags:
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
            who = f"{context.caller.principal} has" if context.caller.is_bound else "there are"
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
    shown = sorted(shown_runs(context) if context.caller.is_bound else runs)
    known = ", ".join(shown[-5:])
    if context.caller.is_bound:
        raise NotFoundError(
            f"{context.caller.principal} has no run {name:.80}", next_step=known or "launch one"
        )
    raise NotFoundError(f"no run {name!r}", next_step=f"trmcloud status (runs: {known or 'none'})")


def run_by_id(context: Context, run_id: str) -> RunState:
    """Return the run of that id as it stands now; no name is looked up.

    Raises:
        NotFoundError: there is none. RunQuarantined: its records are damaged.
    """
    return require_run(context.ledger.read(), run_id)
