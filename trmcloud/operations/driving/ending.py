"""Ending pods that a person named, by a run's id or a ledger's, with or without a ledger.

The pods' own names say whose they are. That is enough to end them; what was done is put on record
as soon as something can be written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import field

from trmcloud.core.catalog.providers import is_brokered, load_all, traits_of
from trmcloud.core.clock import utc_second
from trmcloud.core.contract.pod_contract import PodName, parse_pod_name
from trmcloud.core.control import events as ev
from trmcloud.core.control.bookkeeping import make_charges
from trmcloud.core.control.budget import LedgerState
from trmcloud.core.control.observation import PodSeen
from trmcloud.core.control.reason import ReasonKind, make_reason, quoted_reason
from trmcloud.core.control.run_state import IllegalTransition, RunState
from trmcloud.core.errors import AuthError, ConflictError, LedgerError, StaleEpoch, TrmcloudError
from trmcloud.core.values import Value
from trmcloud.operations.context import Context, hurried, providers_in_use
from trmcloud.operations.driving import reap
from trmcloud.operations.driving.drive import RunDriver
from trmcloud.operations.machines import UnreachableProvider
from trmcloud.operations.run_queries import is_driven
from trmcloud.ports.ledger import Intent

_FORGET_AFTER_S = 30 * 86400.0
"""An intent that no ledger here has a run for is kept for so long."""


_RUN_ID = re.compile(r"[a-z]-[a-z0-9]{1,18}")


def is_run_id(text: str) -> bool:
    """Whether a run may have this id. By a name alone no pod is known."""
    return _RUN_ID.fullmatch(text) is not None


class NamedPod(Value):
    provider: str
    pod: PodSeen
    name: PodName


class PodListing(Value):
    """Pods that bear names of ours, and (provider, why) of each that gave no list."""

    pods: tuple[NamedPod, ...]
    unreachable: tuple[tuple[str, str], ...] = ()
    asked: tuple[str, ...] = ()


class NamedPodEnds(Value):
    """The pods that a provider was asked to end, as (provider, name); (provider, name, why) of each
    that it did not take; where the intent is kept until a ledger has it (empty: nowhere)."""

    asked: tuple[tuple[str, str], ...]
    failed: tuple[tuple[str, str, str], ...]
    listed: PodListing
    recorded: bool
    kept_at: str = field(default="")


class _Ending(Value):
    """Pods whose providers were asked to end them, and those that did not take it."""

    context: Context
    asked: list[tuple[str, str]] = field(default_factory=list)
    failed: list[tuple[str, str, str]] = field(default_factory=list)

    def end(self, provider: str, pod_name: str, pod_id: str | None) -> None:
        try:
            self.context.machines.computes[provider].terminate(pod_id or pod_name)
            self.asked.append((provider, pod_name))
        except (TrmcloudError, OSError) as error:
            self.failed.append((provider, pod_name, _reason_of(error)))


def _reason_of(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error)


def pods_of_run(context: Context, run_id: str) -> PodListing:
    """The run's living pods, as the providers list them.

    A ledger that can be read and has runs says which ledger's pods are meant; else the one whose
    pods bear the run's id.

    Raises:
        ConflictError: pods of two ledgers bear it, and this home's own cannot be read.
    """
    ledger = _readable(context)
    own = ledger.ledger_id if ledger is not None and ledger.runs else ""

    def is_meant(name: PodName) -> bool:
        return _run_id(name) == run_id and own in ("", name.ledger)

    found = list_named(context, is_meant, everywhere=not own or run_id not in _runs(ledger))
    ledgers = sorted({each.name.ledger for each in found.pods})
    if len(ledgers) > 1:
        raise ConflictError(
            f"pods of {len(ledgers)} ledgers have the name {run_id}: {', '.join(ledgers)}",
            next_step=f"trmcloud admin reap --all-of {ledgers[0]}",
        )
    return found


def list_named(
    context: Context, is_meant: Callable[[PodName], bool], *, everywhere: bool
) -> PodListing:
    """Living pods whose names are meant. ``everywhere``: by all providers that can be asked from
    here, not only by those that the ledger knows."""
    pods: list[NamedPod] = []
    unreachable: list[tuple[str, str]] = []
    asked: list[str] = []
    for provider, listed in _lists(context, everywhere=everywhere):
        if isinstance(listed, str):
            unreachable.append((provider, listed))
            continue
        asked.append(provider)
        for pod in listed:
            name = parse_pod_name(pod.name)
            if not pod.gone and name is not None and is_meant(name):
                pods.append(NamedPod(provider, pod, name))
    return PodListing(tuple(pods), tuple(unreachable), tuple(asked))


def end_run(patient: Context, run_id: str, quick: Context | None = None) -> NamedPodEnds:
    """End every pod of the run with this id, whether or not anything can be written: the ledger is
    waited for a moment before, and once more after the ends were sent. ``quick`` is the context
    with which it was asked in vain already, if it was.

    Raises:
        ConflictError: see ``pods_of_run``.
    """
    context = quick or hurried(patient)
    run = _runs(_readable(context)).get(run_id)
    recorded = _record(context, run_id)
    if recorded:
        context = patient
    at = context.wall()
    kept_at = "" if recorded else _keep(context, run_id, at, ())
    ending = _Ending(context)
    if recorded and run is not None:
        run = _with_its_pod(context, run)
    mine = run.open_generations if run is not None and run.live else ()
    for generation in mine:
        # What is known needs no list: it is asked for first.
        ending.end(generation.provider, generation.pod_name, generation.pod_id)
    if recorded:
        # What no generation owns is charged before it is ended: no list may show it again.
        with suppress(LedgerError):
            reap.end(context, reap.look(context, own_only=True))
    listed = pods_of_run(context, run_id)
    _charge(context, listed.pods)
    for each in listed.pods:
        done = (each.provider, each.pod.name) in ending.asked
        same = any(each.pod.pod_id in (known.pod_id, each.pod.name) for known in mine)
        if not (done and same):
            ending.end(each.provider, each.pod.name, each.pod.pod_id)
    if not recorded:
        recorded = _record(hurried(patient), run_id)
        if not recorded:
            kept_at = _keep(context, run_id, at, tuple(name for _, name in ending.asked)) or kept_at
        else:
            context.intents.drop(Intent(run_id, "", at))
    ended = tuple(dict.fromkeys(ending.asked))
    left = tuple(each for each in ending.failed if each[:2] not in ended)
    return NamedPodEnds(ended, left, listed, recorded, kept_at)


def _with_its_pod(context: Context, run: RunState) -> RunState:
    """The run once it knows the id of the pod that it asked for; that pod is ended, too.

    No list shows a pod that has ended, and by its name alone no provider bills it: ended before its
    id is known, it would cost the run nothing. A run that is driven is left to its driver.
    """
    generation = run.generation
    unknown = generation is not None and generation.open and generation.pod_id is None
    if context.files.is_elsewhere(run.run_id):
        return run
    if not run.live or not unknown or is_driven(context, context.ledger.driver(run.run_id)):
        return run
    # Whatever is in the way of this must not be in the way of the end.
    with suppress(TrmcloudError, OSError):
        epoch = context.take_over(run.run_id)
        run = RunDriver(context, run.run_id, epoch, errands=False).step()
        context.ledger.release(run.run_id, epoch)
    return run


def end_all(context: Context, found: PodListing) -> NamedPodEnds:
    """End pods that were listed by name alone; of runs that this ledger knows, that is recorded."""
    quick, ending = hurried(context), _Ending(context)
    at, recorded, kept_at = context.wall(), True, ""
    ledger = _readable(quick)
    own = ledger.ledger_id if ledger is not None else ""
    for each in found.pods:
        if own in ("", each.name.ledger):
            run_id = _run_id(each.name)
            if ledger is None or run_id in ledger.runs:
                known = _record(quick, run_id)
                if not known:
                    kept_at = _keep(quick, run_id, at, (each.pod.name,)) or kept_at
                elif ledger is not None:
                    _with_its_pod(context, ledger.runs[run_id])
                recorded = recorded and known
        _charge(quick, (each,))
        ending.end(each.provider, each.pod.name, each.pod.pod_id)
    return NamedPodEnds(tuple(ending.asked), tuple(ending.failed), found, recorded, kept_at)


def end_overdue(context: Context) -> list[tuple[str, str]]:
    """End pods of ours whose own hard stop, and the time that a kill takes, have passed: by their
    names alone, for whom the ledger cannot be used. (provider, name) of each."""
    now, ending = context.wall(), _Ending(context)
    for provider, listed in _lists(context, everywhere=False):
        if isinstance(listed, str):
            continue
        for pod in listed:
            name = parse_pod_name(pod.name)
            if pod.gone or name is None:
                continue
            if now > name.hard_stop_at + 1 + traits_of(provider).kill_latency_s:
                ending.end(provider, pod.name, pod.pod_id)
    return ending.asked


def fold_intents(context: Context) -> None:
    """Put on record what persons had ended while this ledger could not be written.

    Raises:
        LedgerError: it still cannot be.
    """
    for intent in context.intents.kept():
        ledger = context.ledger.read()
        run = ledger.runs.get(intent.run_id)
        if intent.ledger not in ("", ledger.ledger_id) or run is None:
            # It may be put back from a backup yet.
            if not 0 <= context.wall() - intent.at < _FORGET_AFTER_S:
                context.intents.drop(intent)
            continue
        if run.live and _reopened_at(context, intent.run_id) <= intent.at:
            _wish(context, intent.run_id, intent)
        context.intents.drop(intent)


def _lists(
    context: Context, *, everywhere: bool
) -> Iterator[tuple[str, tuple[PodSeen, ...] | str]]:
    """(provider, its list, or why there is none), one after the other."""
    in_use = _in_use(context)
    # Without a ledger every provider that can be asked is asked; those that are rented through a
    # program only where this home has a trace of them: asking may start a server.
    wide = everywhere or in_use is None
    if wide:
        load_all()
    machines = context.machines
    others = [n for n in machines.computes if not is_brokered(n) or machines.was_used(n)]
    known = in_use or ()
    for name in dict.fromkeys((*known, *others) if wide else known):
        try:
            compute = context.machines.computes[name]
            listed = tuple(compute.list_pods())
        except TrmcloudError as error:
            keyless = isinstance(context.machines.computes.get(name), UnreachableProvider)
            if name in known or not (keyless and isinstance(error, AuthError)):
                yield name, str(error)
        except OSError as error:
            yield name, _reason_of(error)
        else:
            yield name, listed


def _in_use(context: Context) -> tuple[str, ...] | None:
    """By the ledger; None where it cannot be read, or knows of no run."""
    try:
        return providers_in_use(context) if context.ledger.read().runs else None
    except LedgerError:
        return None


def _readable(context: Context) -> LedgerState | None:
    try:
        return context.ledger.read()
    except LedgerError:
        return None


def _runs(ledger: LedgerState | None) -> dict[str, RunState]:
    return dict(ledger.runs) if ledger is not None else {}


def _run_id(name: PodName) -> str:
    return f"{name.run_id[:1]}-{name.run_id[1:]}"


def _record(context: Context, run_id: str) -> bool:
    """Whether the ledger has the person's wish now, or needs none."""
    try:
        run = context.ledger.read().runs.get(run_id)
        if run is None:
            return False
        if run.live and not (run.stop is not None and run.stop.at_once):
            _wish(context, run_id)
        return True
    except StaleEpoch:
        raise
    except LedgerError:
        return False


def _charge(context: Context, pods: tuple[NamedPod, ...]) -> None:
    """Put on record what pods cost that no run is known to own, before they are ended: no list may
    show them again. A ledger that cannot be written is in the way of no end."""
    with suppress(LedgerError):
        ledger, now = context.ledger.read(), context.wall()
        for each in pods:
            ending = {each.pod.pod_id}
            for charge in make_charges(ledger, each.provider, (each.pod,), now, ending):
                with suppress(IllegalTransition):  # another process has noted it, or a run owns it
                    context.ledger.note(charge, now)


def _wish(context: Context, run_id: str, done: Intent | None = None) -> None:
    more = None
    if done is not None:
        pods = ", ".join(done.pods) or "no pod was found"
        more = quoted_reason(
            ReasonKind.SAID, f"done at {utc_second(done.at)} without the ledger: {pods}"
        )
    reason = make_reason(ReasonKind.STOP_NOW, more)
    with suppress(IllegalTransition):  # it has ended meanwhile
        context.ledger.request(run_id, ev.StopRequested("user", reason), context.wall())


def _keep(context: Context, run_id: str, at: float, pods: tuple[str, ...]) -> str:
    ledger = _readable(context)
    own = ledger.ledger_id if ledger is not None and ledger.runs else ""
    return context.intents.keep(Intent(run_id, own, at, pods))


def _reopened_at(context: Context, run_id: str) -> float:
    """When the run was resumed last; 0 where it never was."""
    records = context.ledger.records(run_id)
    return max((each.at for each in records if isinstance(each.event, ev.Reopened)), default=0.0)
