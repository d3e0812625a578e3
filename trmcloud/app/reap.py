"""The reaper: ends what no live run owns. It is the layer that works when nobody is looking."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from trmcloud.app.out_of_reach import OutOfReach
from trmcloud.app.world import World, left_alone, providers_in_use
from trmcloud.core import events as ev
from trmcloud.core import kept_volumes, strays
from trmcloud.core.clock import Seen, Unknown
from trmcloud.core.errors import AuthError, LedgerError, ProviderError
from trmcloud.core.governance import Orphan, govern
from trmcloud.core.observation import PodSeen
from trmcloud.core.pod_contract import parse_pod_name
from trmcloud.core.providers import BY_SKYPILOT
from trmcloud.core.run_state import IllegalTransition
from trmcloud.pod.files import write_atomic
from trmcloud.ports.compute import CrossListing, Volumes

GUARD_NOTE_NAME = "guard.json"


@dataclass(frozen=True)
class Found:
    """What one look at every provider showed; ``unreachable`` names providers that gave no list."""

    orphans: tuple[tuple[str, Orphan], ...]
    unreachable: tuple[tuple[str, str], ...]
    charges: tuple[ev.StrayCharged, ...] = ()
    """What those of this ledger cost, as far as it is not on record."""
    listed: Mapping[str, tuple[PodSeen, ...]] = field(default_factory=dict)
    """By provider that gave a list."""


def look(world: World, *, own_only: bool = False, list_age_s: float = 0.0) -> Found:
    """Every pod that is ours by name and owned by nothing: (provider, orphan).

    ``own_only`` leaves out pods that another ledger made, even where their hard stop has passed.
    ``list_age_s``: how old a list that this process has may be.
    """
    orphans: list[tuple[str, Orphan]] = []
    unreachable: list[tuple[str, str]] = []
    charged: list[ev.StrayCharged] = []
    lists: dict[str, tuple[PodSeen, ...]] = {}
    in_use = providers_in_use(world)
    # A ledger that has forgotten runs may have forgotten whom it rented from; but asking SkyPilot
    # starts a server: not where this home has no trace of anything rented through it.
    everywhere = not own_only or strays.is_pending(world.ledger.read())
    others = [n for n in world.computes if n not in in_use and n not in BY_SKYPILOT]
    for provider in (*in_use, *others) if everywhere else in_use:
        compute = world.computes[provider]
        try:
            # Listed before the ledger is read: a run launched in between owns its pod.
            known = world.listed.get(provider)
            if not (isinstance(known, Seen) and 0 <= world.wall() - known.at < list_age_s):
                known = Seen(tuple(compute.list_pods()), world.wall())
            world.listed[provider], listed = known, known.value
        except ProviderError as error:
            # Without a key it is no account of ours, unless it was one. A key that is refused is
            # told, whoever is rented from: what it was meant to end is out of reach.
            keyless = isinstance(compute, OutOfReach) and isinstance(error, AuthError)
            if provider in in_use or not keyless:
                unreachable.append((provider, str(error)))
                world.listed[provider] = Unknown(world.wall(), str(error))
            continue
        if not own_only and isinstance(compute, CrossListing):
            # Not on every sweep of a driver: it is one more question, for what hardly ever is.
            try:
                listed += tuple(compute.cross_listed())
            except ProviderError as error:
                unreachable.append((provider, f"its second list: {error}"))
        ledger, now = world.ledger.read(), world.wall()
        lists[provider] = listed
        found = govern(ledger, Seen(listed, now), now).orphans
        charged += strays.charges(ledger, provider, listed, now)
        orphans += [
            (provider, orphan) for orphan in found if not own_only or _is_own(world, orphan)
        ]
    return Found(tuple(orphans), tuple(unreachable), tuple(charged), lists)


def end(world: World, found: Found) -> list[str]:
    """End them all; a line for each, failures included. What they cost is put on record first:
    nobody may see them again."""
    for charge in found.charges:
        _note(world, charge)
    said = []
    for provider, orphan in found.orphans:
        try:
            world.computes[provider].terminate(orphan.pod.pod_id)
            said.append(f"ended {orphan.pod.name} on {provider}: {orphan.reason}")
        except ProviderError as error:
            said.append(f"could not end {orphan.pod.name} on {provider}: {error}")
    return said


def sweep(world: World, list_age_s: float = 0.0) -> list[str]:
    """End this ledger's own orphans, see to their bills, and, where an older copy of the ledger
    was accepted, say so once it knows everything again. A line for each thing done."""
    found = look(world, own_only=True, list_age_s=list_age_s)
    said = end(world, found) + end_volumes(world)
    ledger = world.ledger.read()
    for stray in strays.awaiting_bill(ledger):
        if stray.provider in world.unasked:
            continue
        with suppress(ProviderError, KeyError):
            billed = strays.final_bill(stray, world.computes[stray.provider].bill(stray.pod_id))
            if billed is not None:
                _note(world, billed)
    complete = not found.unreachable and not left_alone(world)
    if complete and strays.is_reconciled(ledger, found.listed, len(found.orphans), world.wall()):
        _note(world, ev.LedgerReconciled())
        said.append(
            "the ledger is reconciled: no pod lives that it does not know; what ended before it was"
            " restored stands in the provider's bill alone"
        )
    return said


def end_volumes(world: World) -> list[str]:
    """Delete network volumes whose rent is reserved no more, where every run that used them agreed
    to that. A line for each; those that go on are told where money is shown."""
    said = []
    for due in kept_volumes.due(world.ledger.read(), world.wall()):
        if due.why_kept or due.provider in world.unasked:
            continue
        try:
            compute = world.computes[due.provider]
            if isinstance(compute, Volumes):
                said.append(_end_volume(world, compute, due))
        except ProviderError as error:
            said.append(f"could not delete the network volume in {due.place}: {error}")
    return said


def _end_volume(world: World, compute: Volumes, due: kept_volumes.Due) -> str:
    there = [volume for volume in compute.kept_volumes() if volume.place == due.place]
    # A run may have been launched while they were listed: it keeps what it saves there.
    if due not in kept_volumes.due(world.ledger.read(), world.wall()):
        return f"the network volume in {due.place} is wanted again"
    for volume in there:
        compute.delete_volume(volume.volume_id)
    _note(world, ev.VolumeDeleted(due.provider, due.place, "agreed at launch"))
    names = ", ".join(volume.volume_id for volume in there) or "none was there any more"
    return f"deleted the network volume in {due.place} ({names}): {due.per_day} a day less"


def _note(world: World, event: ev.Note) -> None:
    """A full disk keeps no pod alive, and what another process has noted is noted."""
    with suppress(LedgerError, IllegalTransition):
        world.ledger.note(event, world.wall())


def _is_own(world: World, orphan: Orphan) -> bool:
    name = parse_pod_name(orphan.pod.name)
    return name is not None and name.ledger == world.ledger.ledger_id


@dataclass(frozen=True)
class GuardVisit:
    """The guard's last visit: epoch s, how often it should come (s), on which machine, and which
    providers gave it a list."""

    at: float
    every_s: float
    machine: str
    reached: tuple[str, ...]


def note_visit(world: World, every_s: float, found: Found) -> None:
    """Leave word that the guard came by, and whom it reached."""
    failed = {provider for provider, _ in found.unreachable}
    reached = [p for p in providers_in_use(world) if p not in failed]
    note = {"at": world.wall(), "host": world.who.host, "every_s": every_s, "reached": reached}
    write_atomic(world.home / GUARD_NOTE_NAME, json.dumps(note))


def last_visit(world: World) -> GuardVisit | None:
    """None where the guard never came by, or its note cannot be read."""
    try:
        note = json.loads((world.home / GUARD_NOTE_NAME).read_text(encoding="utf-8"))
        reached = tuple(str(name) for name in note.get("reached", ()))
        machine = str(note["host"]).partition(":")[0]
        return GuardVisit(float(note["at"]), float(note["every_s"]), machine, reached)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
