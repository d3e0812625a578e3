"""The reaper: ends what no live run owns. It is the layer that works without the user."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field

from trmcloud.core.catalog.providers import is_brokered, load_all
from trmcloud.core.clock import DatedFact
from trmcloud.core.contract.pod_contract import parse_pod_name
from trmcloud.core.control import bookkeeping, ledger_facts
from trmcloud.core.control import events as ev
from trmcloud.core.control.bookkeeping import Orphan, govern
from trmcloud.core.control.observation import PodSeen
from trmcloud.core.control.run_state import IllegalTransition
from trmcloud.core.errors import AuthError, LedgerError, ProviderError
from trmcloud.core.values import Value
from trmcloud.io.files import write_atomic
from trmcloud.operations.context import Context, has_unasked_provider, providers_in_use
from trmcloud.operations.machines import UnreachableProvider
from trmcloud.operations.reasons import sentence
from trmcloud.ports.compute import Compute

GUARD_NOTE_NAME = "guard.json"


class ReapFindings(Value):
    """The result of one look at every provider; ``unreachable`` names providers that gave no
    list."""

    orphans: tuple[tuple[str, Orphan], ...]
    unreachable: tuple[tuple[str, str], ...]
    charges: tuple[ev.StrayCharged, ...] = ()
    """The costs of this ledger's orphans, as far as they are not on record."""
    listed: Mapping[str, tuple[PodSeen, ...]] = field(default_factory=dict)
    """By provider that gave a list."""


class EndedOrphan(Value):
    """A pod without an owner that was ordered to end."""

    provider: str
    orphan: Orphan


Did = EndedOrphan | str
"""One thing that was done, or failed; a line where it has its own words."""


def did_line(did: Did) -> str:
    """Return one line about what was found and done."""
    if isinstance(did, str):
        return did
    return f"ended {did.orphan.pod.name} on {did.provider}: {sentence(did.orphan.reason)}"


def look(context: Context, *, own_only: bool = False, list_age_s: float = 0.0) -> ReapFindings:
    """Every pod that is ours by name and owned by nothing: (provider, orphan).

    ``own_only`` leaves out pods that another ledger made, even where their hard stop has passed.
    ``list_age_s``: how old a list that this process has may be.
    """
    orphans: list[tuple[str, Orphan]] = []
    unreachable: list[tuple[str, str]] = []
    charged: list[ev.StrayCharged] = []
    pods: dict[str, tuple[PodSeen, ...]] = {}
    lists = context.machines.lists
    in_use = providers_in_use(context)
    # A ledger that has forgotten runs may have forgotten whom it rented from; but asking what
    # is rented through a program may start a server: not where this home has no trace of it.
    everywhere = not own_only or bookkeeping.is_charge_pending(context.ledger.read())
    if everywhere:
        load_all()
    others = [n for n in context.machines.computes if n not in in_use and not is_brokered(n)]
    for provider in (*in_use, *others) if everywhere else in_use:
        compute = context.machines.computes[provider]
        try:
            # Listed before the ledger is read: a run launched in between owns its pod.
            listed = lists.read(provider, compute, context.wall(), list_age_s).value
        except ProviderError as error:
            # Without a key it is no account of ours, unless it was one. A key that is refused is
            # reported for any provider: the pods that it was meant to end are out of reach.
            keyless = isinstance(compute, UnreachableProvider) and isinstance(error, AuthError)
            if provider in in_use or not keyless:
                unreachable.append((provider, str(error)))
                lists.fail(provider, error, context.wall())
            continue
        if not own_only:
            # Not on every sweep of a driver: it is one more question, for what hardly ever is.
            try:
                listed += tuple(compute.cross_listed())
            except ProviderError as error:
                unreachable.append((provider, f"the second list: {error}"))
        ledger, now = context.ledger.read(), context.wall()
        pods[provider] = listed
        found = govern(ledger, DatedFact(listed, now), now).orphans
        ending = {orphan.pod.pod_id for orphan in found}
        charged += bookkeeping.make_charges(ledger, provider, listed, now, ending)
        orphans += [
            (provider, orphan) for orphan in found if not own_only or _is_own(context, orphan)
        ]
    return ReapFindings(tuple(orphans), tuple(unreachable), tuple(charged), pods)


def is_reconciled(context: Context) -> bool:
    """Whether the ledger accounts for all pods that may exist."""
    return not bookkeeping.is_charge_pending(context.ledger.read())


def end(context: Context, found: ReapFindings) -> list[Did]:
    """End them all; what came of each, failures included. Their cost is put on record first:
    no list may show them again."""
    if found.charges:
        _charge(context, found)
    said: list[Did] = []
    for provider, orphan in found.orphans:
        try:
            context.machines.computes[provider].terminate(orphan.pod.pod_id)
            said.append(EndedOrphan(provider, orphan))
        except ProviderError as error:
            said.append(f"could not end {orphan.pod.name} on {provider}: {error}")
    return said


def _charge(context: Context, found: ReapFindings) -> None:
    # By now, not as of the look: who slept since then, as a laptop does whose lid is shut, would
    # note what they had cost before, and no list may show them again.
    ledger, now = context.ledger.read(), context.wall()
    ending = {orphan.pod.pod_id for _, orphan in found.orphans}
    for provider, listed in found.listed.items():
        for charge in bookkeeping.make_charges(ledger, provider, listed, now, ending):
            _note(context, charge)


def sweep(context: Context, list_age_s: float = 0.0) -> list[Did]:
    """End this ledger's own orphans, see to their bills, and, where an older copy of the ledger
    was accepted, say so once it knows everything again."""
    found = look(context, own_only=True, list_age_s=list_age_s)
    said = [*end(context, found), *end_volumes(context)]
    ledger = context.ledger.read()
    for stray in bookkeeping.orphans_awaiting_bill(ledger):
        if stray.provider in context.machines.unasked:
            continue
        with suppress(ProviderError, KeyError):
            billed = bookkeeping.orphan_bill(
                stray, context.machines.computes[stray.provider].bill(stray.pod_id)
            )
            if billed is not None:
                _note(context, billed)
    complete = not found.unreachable and not has_unasked_provider(context)
    if complete and bookkeeping.is_orphan_reconciled(
        ledger, found.listed, len(found.orphans), context.wall()
    ):
        _note(context, ev.LedgerReconciled())
        said.append(
            "the ledger is reconciled: it knows all running pods; pods that ended before the "
            "restore are only in the provider's bill"
        )
    return said


def end_volumes(context: Context) -> list[str]:
    """Delete network volumes whose rent is reserved no more, where every run that used them agreed
    to that. A line for each; those that go on are told where money is shown."""
    said = []
    for due in ledger_facts.due_volumes(context.ledger.read(), context.wall()):
        if due.why_kept or due.provider in context.machines.unasked:
            continue
        try:
            compute = context.machines.computes[due.provider]
            said.append(_end_volume(context, compute, due))
        except ProviderError as error:
            said.append(f"could not delete the network volume in {due.place}: {error}")
    return said


def _end_volume(context: Context, compute: Compute, due: ledger_facts.DueVolume) -> str:
    there = [volume for volume in compute.kept_volumes() if volume.place == due.place]
    # A run may have been launched while they were listed: it keeps what it saves there.
    if due not in ledger_facts.due_volumes(context.ledger.read(), context.wall()):
        return f"the network volume in {due.place} is needed again"
    for volume in there:
        compute.delete_volume(volume.volume_id)
    _note(context, ev.VolumeDeleted(due.provider, due.place, "agreed at launch"))
    names = ", ".join(volume.volume_id for volume in there) or "it did not exist any more"
    return f"deleted the network volume in {due.place} ({names}): saves {due.per_day} a day"


def _note(context: Context, event: ev.Note) -> None:
    """A full disk keeps no pod alive, and what another process has noted is noted."""
    with suppress(LedgerError, IllegalTransition):
        context.ledger.note(event, context.wall())


def _is_own(context: Context, orphan: Orphan) -> bool:
    name = parse_pod_name(orphan.pod.name)
    return name is not None and name.ledger == context.ledger.ledger_id


class GuardVisit(Value):
    """The guard's last visit: epoch s, how often it should come (s), on which machine, and which
    providers gave it a list."""

    at: float
    every_s: float
    machine: str
    reached: tuple[str, ...]


def note_visit(context: Context, every_s: float, found: ReapFindings) -> None:
    """Leave word that the reaper ran by its timer, and whom it reached."""
    failed = {provider for provider, _ in found.unreachable}
    reached = [p for p in providers_in_use(context) if p not in failed]
    host = context.caller.controller.host
    note = {"at": context.wall(), "host": host, "every_s": every_s, "reached": reached}
    write_atomic(context.home / GUARD_NOTE_NAME, json.dumps(note))


def last_visit(context: Context) -> GuardVisit | None:
    """None where no timer ever ran it, or its note cannot be read."""
    try:
        note = json.loads((context.home / GUARD_NOTE_NAME).read_text(encoding="utf-8"))
        reached = tuple(str(name) for name in note.get("reached", ()))
        machine = str(note["host"]).partition(":")[0]
        return GuardVisit(float(note["at"]), float(note["every_s"]), machine, reached)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
