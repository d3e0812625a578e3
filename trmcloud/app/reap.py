"""The reaper: ends what no live run owns. It is the layer that works when nobody is looking."""

from __future__ import annotations

import json
from dataclasses import dataclass

from trmcloud.app.world import World, providers_in_use
from trmcloud.core.clock import Seen
from trmcloud.core.errors import AuthError, ProviderError
from trmcloud.core.governance import Orphan, govern
from trmcloud.core.pod_contract import parse_pod_name
from trmcloud.core.providers import BY_SKYPILOT
from trmcloud.pod.files import write_atomic
from trmcloud.ports import CrossListing

GUARD_NOTE_NAME = "guard.json"


@dataclass(frozen=True)
class Found:
    """What one look at every provider showed; ``unreachable`` names providers that gave no list."""

    orphans: tuple[tuple[str, Orphan], ...]
    unreachable: tuple[tuple[str, str], ...]


def look(world: World, *, own_only: bool = False) -> Found:
    """Every pod that is ours by name and owned by nothing: (provider, orphan).

    ``own_only`` leaves out pods that another ledger made, even where their hard stop has passed.
    """
    orphans: list[tuple[str, Orphan]] = []
    unreachable: list[tuple[str, str]] = []
    in_use = providers_in_use(world)
    # Asking SkyPilot starts a server: not where nothing was ever rented through it.
    asked = (
        in_use
        if own_only
        else [name for name in world.computes if name in in_use or name not in BY_SKYPILOT]
    )
    for provider in asked:
        try:
            compute = world.computes[provider]
            # Listed before the ledger is read: a run launched in between owns its pod.
            listed = tuple(compute.list_pods())
        except AuthError as error:
            if provider in in_use:
                unreachable.append((provider, str(error)))
            continue
        except ProviderError as error:
            unreachable.append((provider, str(error)))
            continue
        if not own_only and isinstance(compute, CrossListing):
            # Not on every sweep of a driver: it is one more question, for what hardly ever is.
            try:
                listed += tuple(compute.cross_listed())
            except ProviderError as error:
                unreachable.append((provider, f"its second list: {error}"))
        pods = Seen(listed, world.wall())
        found = govern(world.ledger.read(), pods, world.wall()).orphans
        orphans += [
            (provider, orphan) for orphan in found if not own_only or _is_own(world, orphan)
        ]
    return Found(tuple(orphans), tuple(unreachable))


def end(world: World, found: Found) -> list[str]:
    """End them all; a line for each, failures included."""
    said = []
    for provider, orphan in found.orphans:
        try:
            world.computes[provider].terminate(orphan.pod.pod_id)
            said.append(f"ended {orphan.pod.name} on {provider}: {orphan.reason}")
        except ProviderError as error:
            said.append(f"could not end {orphan.pod.name} on {provider}: {error}")
    return said


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
