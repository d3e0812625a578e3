"""Checkpoints in a bucket: which must be there, what a pod is granted, what it has done with it.

``bucket_layout`` says where they lie. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from math import isfinite
from operator import attrgetter

from trmcloud.core.contract.manifest import goodness, is_before_cooldown, own_bests
from trmcloud.core.contract.pod_contract import CONTRACT_VERSION, CheckpointRef
from trmcloud.core.contract.records import (
    ContractError,
    Instant,
    Label,
    Sha256,
    load,
    parse,
    record_of,
)
from trmcloud.core.values import Value, replace

RENEW_BEFORE_S = 3600.0
"""The time before its end at which a grant that ends before the hard stop is renewed."""

GRANTS_NAME = "grants.json"
UPLOADS_NAME = "uploads.json"
TOLD_NAME = "told.json"
"""On the pod: which result the report in the bucket bears."""
MAX_GRANTS_BYTES = 64 << 20
_MOST_GRANTED = 1 << 16
MOST_GRANTED_FILES = 30_000
"""Of the data of a run: a signed URL has up to 2 kB."""
_step_of = attrgetter("step")


# -- what must be there -----------------------------------------------------------------------
def worth_saving(kept: Sequence[CheckpointRef]) -> tuple[CheckpointRef, ...]:
    """Of each phase the best by its metric, then a command's own best without one, the latest, and
    what was saved before its cooldown, where these are others; last, what is unjudged."""
    return tuple(each for mine in _by_phase(kept) for each in _wanted(mine, 1))


def unstored(
    kept: Sequence[CheckpointRef],
    uploaded: Sequence[CheckpointRef],
    given_up: Sequence[CheckpointRef] = (),
) -> tuple[CheckpointRef, ...]:
    """Return the kept checkpoints worth saving that are neither stored nor ``given_up`` as damaged;
    unjudged outputs come last.

    One that was stored before it was evaluated is owed again, for its metric: see ``lacks_metric``.
    A best one is not owed where the bucket has one as good: a pod that lost its disk and trains
    again would write the two in turn into the one slot that is free, for as long as it is paid for.
    """
    if not kept:
        return ()
    stored = {each.bits for each in uploaded}
    scored = {each.bits for each in uploaded if each.val_bpb is not None}
    damaged = {each.bits for each in given_up}
    sound = [each for each in kept if each.bits not in damaged] if damaged else kept
    return tuple(
        k
        for mine in _by_phase(sound)
        for k in _wanted(mine, 1)
        if k.bits not in (stored if k.val_bpb is None else scored)
        and (k in _to_go_on_from(mine) or not _is_surpassed(k, uploaded))
    )


def lacks_metric(held: Mapping[str, CheckpointRef | None], kept: CheckpointRef) -> str | None:
    """The slot that holds ``kept`` as it was before it was evaluated: only its manifest is owed."""
    if kept.val_bpb is None:
        return None
    for name, there in held.items():
        if there is not None and there.bits == kept.bits and there.val_bpb is None:
            return name
    return None


def _is_surpassed(kept: CheckpointRef, uploaded: Sequence[CheckpointRef]) -> bool:
    best = _best([each for each in uploaded if each.phase == kept.phase], 1)
    mine, there = kept.val_bpb, best[0].val_bpb if best else None
    return mine is not None and there is not None and there <= mine


def _by_phase(kept: Sequence[CheckpointRef]) -> list[list[CheckpointRef]]:
    """Unjudged outputs count as a phase of their own, the last."""
    phases: dict[tuple[bool, str], list[CheckpointRef]] = {}
    for each in kept:
        phases.setdefault((each.is_output, each.phase), []).append(each)
    return sorted(phases.values(), key=lambda mine: mine[0].is_output)


def free_slot(held: Mapping[str, CheckpointRef | None], keep_best: int) -> str:
    """The slot of a phase to write into next: an empty one, else the oldest superseded one.

    There always is one: slots are three more than the best that are kept, and two of these hold
    the latest and what was saved before its cooldown.
    """
    for name, kept in held.items():
        if kept is None:
            return name
    there = {name: kept for name, kept in held.items() if kept is not None}
    judged = tuple(kept for kept in there.values() if not kept.is_output)
    needed = _wanted(judged, max(1, keep_best)) if judged else []
    spare = []
    for name, kept in there.items():
        if kept in needed:
            needed.remove(kept)
        else:
            spare.append(name)
    return min(spare, key=lambda name: there[name].step)


def _wanted(kept: Sequence[CheckpointRef], count: int) -> list[CheckpointRef]:
    """Of one phase the best ``count``, those of ``own_bests``, and what is gone on from."""
    best = _best(kept, count)
    wanted = best + [each for each in own_bests(kept) if each not in best]
    return wanted + [each for each in _to_go_on_from(kept) if each not in wanted]


def _to_go_on_from(kept: Sequence[CheckpointRef]) -> list[CheckpointRef]:
    """Of one phase the latest, and what was saved before its cooldown: one, where a pod that lost
    its disk has trained that step again."""
    latest = max(kept, key=_step_of)
    if latest.cooldown_from is None:
        return [latest]
    return [latest, *[each for each in kept if is_before_cooldown(each, latest)][-1:]]


def _best(kept: Sequence[CheckpointRef], count: int) -> list[CheckpointRef]:
    scored = [k for k in kept if k.val_bpb is not None and isfinite(k.val_bpb)]
    if count == 1 and scored:
        return [min(scored, key=goodness)]
    return sorted(scored, key=goodness)[:count]


# -- what a pod is granted --------------------------------------------------------------------
class PhaseSlots(Value):
    """``held``: what the slots hold by the store's own word, for a pod that lost its notes."""

    keep_best: int
    slots: tuple[str, ...]
    held: Mapping[str, CheckpointRef] = field(default_factory=dict)


class FileGet(Value):
    """One file of a folder to be fetched: flat or relative name, size, SHA-256, and where: one
    object, or the pieces that ``pieces_of`` cuts it into."""

    name: str
    size_bytes: int
    sha256: str
    urls: tuple[str, ...]


class FolderGet(Value):
    """``folder`` is an absolute path on the pod. Where it is not ``needed``, what cannot be had is
    done without; of several that would lie beside one another the first that can be had is enough,
    and what is to lie ``beside`` it comes with it.
    """

    folder: str
    files: tuple[FileGet, ...]
    needed: bool = True
    beside: bool = False


class CachedFile(Value):
    """A file of a token cache, by its path in it, and the slot of the bucket that holds it."""

    name: str
    slot: str
    size_bytes: int
    sha256: Sha256
    version: int = 1


class CacheGrants(Value):
    """A pod's part in the tokens that a bucket keeps; see ``token_cache``.

    ``folder`` is its own cache, an absolute path. ``gets`` go there, as far as they can be had, by
    the hashes that the ledger pinned; ``held`` says the same with their slots. ``puts`` go by slot,
    and by a slot's entry. ``index`` is for pods of earlier versions: they are granted none.
    """

    folder: str
    gets: tuple[FileGet, ...]
    held: tuple[CachedFile, ...]
    puts: Mapping[str, str]
    index: str = ""


class Grants(Value):
    """``grants.json``: each URL is one object and one verb, until ``until`` (epoch s).

    ``puts`` go by ``put_key``; ``report`` is where the agent's report is put, ''
    in a record that knows of none; ``cache`` is for a pod that makes tokens.
    """

    pod_name: Label
    until: Instant
    phases: Mapping[str, PhaseSlots]
    puts: Mapping[str, str]
    gets: tuple[FolderGet, ...] = ()
    report: str = ""
    cache: CacheGrants | None = None
    version: int = CONTRACT_VERSION


def dump_grants(grants: Grants) -> str:
    return json.dumps(asdict(grants), sort_keys=True)


def load_grants(text: str | bytes) -> Grants:
    """
    Raises:
        ContractError: it is no such record.
    """
    grants = load(Grants, CONTRACT_VERSION, text, most=MAX_GRANTS_BYTES, items=_MOST_GRANTED)
    folders = [(get.folder, get.files) for get in grants.gets]
    if grants.cache is not None:
        folders.append((grants.cache.folder, grants.cache.gets))
    for folder, files in folders:
        if not folder.startswith("/") or any(not _is_inside(file.name) for file in files):
            raise ContractError("Grants: a path that leads elsewhere")
    return grants


def _is_inside(name: str) -> bool:
    parts = name.split("/")
    return bool(name) and "\0" not in name and not {"", ".", ".."} & set(parts)


# -- what a pod has done with it --------------------------------------------------------------
class Uploads(Value):
    """``uploads.json``: the transfer process's account to the agent.

    ``given_up`` are damaged on the pod itself, or have a file that no grant covers. ``moved_boot``
    is when a byte last arrived anywhere, on the pod's boot-time clock. ``fetched``: every folder
    that was to be brought is in place.
    """

    uploaded: tuple[CheckpointRef, ...] = ()
    given_up: tuple[CheckpointRef, ...] = ()
    moved_boot: float = 0.0
    fetched: bool = False
    trouble: str = ""


def load_uploads(text: str) -> Uploads:
    """
    Raises:
        ContractError: it is no such record.
    """
    record = record_of(Uploads, parse(text))
    return replace(record, trouble=record.trouble[:200])
