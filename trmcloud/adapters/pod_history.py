"""Sightings of each pod of ours: its rate and times, for when its provider shows it no more.

RunPod forgets a pod at once when it ends, and bills it by the hour some time later; SkyPilot tells
no rate at all. A controller that comes after a crash must still know when the pod was made, when it
was last alive, when it was first missed, and since when its billing records have stood still.
Losing a note loses no money: the bill then takes longer to become final.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

from trmcloud.core.contract.pod_contract import parse_pod_name
from trmcloud.core.contract.records import parse, record_of
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.values import Value
from trmcloud.io.files import load_small, write_atomic

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_WRITE_EVERY_S = 30.0


class Sighting(Value):
    """Epoch seconds by this machine's clock, ``made_at`` and ``started_at`` by its provider's; the
    rate is per hour."""

    pod_id: str
    name: str
    rate_micros: int = 0
    disk_gb: int = 0
    made_at: float | None = None
    started_at: float | None = None
    alive_at: float | None = None
    gone_at: float | None = None
    billed_micros: int | None = None
    billed_since: float | None = None
    never_made: str | None = None
    """Why its create, once taken, has made nothing; '' where it is known to be otherwise."""
    nodes: int = 1
    exited_at: float | None = None
    """Since when it is known that nothing runs on it any more, though it is listed."""

    @property
    def rate(self) -> Usd:
        return Usd.from_micros(self.rate_micros) if self.rate_micros > 0 else ZERO


class Sightings:
    """Kept below ``folder``, one file per pod; in memory alone where that is None."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._kept: dict[str, Sighting] = {}
        self._written: dict[str, Sighting] = {}
        self._expected: set[str] = set()
        for sighting in _read_all(folder):
            self._kept[sighting.pod_id] = self._written[sighting.pod_id] = sighting

    def get(self, pod_id: str) -> Sighting | None:
        return self._kept.get(pod_id)

    def all(self) -> list[Sighting]:
        return list(self._kept.values())

    def unmade(self) -> list[Sighting]:
        """Pods that were asked for, were never up, and are in no list now for no known reason."""
        return [
            sighting
            for sighting in self._kept.values()
            if sighting.gone_at is not None
            and sighting.started_at is None
            and sighting.never_made is None
        ]

    def named(self, name: str) -> list[Sighting]:
        return [sighting for sighting in self._kept.values() if sighting.name == name]

    def alive(
        self, pod_id: str, name: str, *, rate: Usd | None, disk_gb: int, made_at: float | None,
        started_at: float | None, at: float, nodes: int = 1, has_exited: bool = False,
    ) -> Sighting:  # fmt: skip
        """The pod stands in a list at ``at``, whatever was thought of it before."""
        old = self._kept.get(pod_id) or Sighting(pod_id, name)
        # A pod that was stopped costs nothing per hour: what it cost is still worth knowing.
        micros = rate.micros if rate is not None and rate.micros else old.rate_micros
        return self._keep(
            replace(
                old,
                name=name,
                rate_micros=micros,
                disk_gb=disk_gb or old.disk_gb,
                made_at=made_at if made_at is not None else (old.made_at or at),
                # A restart is a later start of the same rent.
                started_at=old.started_at if old.started_at is not None else started_at,
                alive_at=at,
                gone_at=None,
                never_made=None,
                nodes=max(nodes, old.nodes),
                exited_at=(old.exited_at if old.exited_at is not None else at)
                if has_exited
                else None,
            )
        )

    def expect(self, pod_id: str) -> None:
        """A ledger says that this pod may live: the next list should have it, though another home
        made it, or an earlier list lacked it."""
        self._expected.add(pod_id)

    def unlisted(self, present: Iterable[str]) -> list[str]:
        """Return the pods that may live and that a list, which holds ``present``, lacks: each is to
        be asked for by its id before it counts as missed."""
        living = {each.pod_id for each in self._kept.values() if each.gone_at is None}
        expected, self._expected = self._expected, set()
        return sorted((living | expected) - set(present))

    def missed(self, present: Iterable[str], at: float) -> None:
        """A whole list at ``at`` held only ``present``."""
        here = set(present)
        for pod_id, old in list(self._kept.items()):
            if pod_id not in here and old.gone_at is None:
                self._keep(replace(old, gone_at=at))

    def never_made(self, pod_id: str, why: str) -> None:
        """Put on record what became of its create; only another list takes that back."""
        old = self._kept.get(pod_id)
        if old is not None:
            self._keep(replace(old, never_made=why))

    def billed(self, pod_id: str, amount: Usd | None, at: float) -> Sighting | None:
        """Its records amount to this at ``at`` (None: there are none)."""
        old = self._kept.get(pod_id)
        if old is None:
            return None
        micros = amount.micros if amount is not None else None
        if old.billed_since is not None and micros == old.billed_micros:
            return old
        return self._keep(replace(old, billed_micros=micros, billed_since=at))

    def _keep(self, new: Sighting) -> Sighting:
        self._kept[new.pod_id] = new
        old = self._written.get(new.pod_id)
        if self._folder is None or parse_pod_name(new.name) is None:
            return new
        # That it is alive is true of most looks, and need not be written at each.
        if old is not None and replace(old, alive_at=new.alive_at) == new:
            known_at, alive_at = old.alive_at or 0.0, new.alive_at or 0.0
            if abs(alive_at - known_at) < _WRITE_EVERY_S:
                return new
        if _ID.fullmatch(new.pod_id):
            with contextlib.suppress(OSError):
                self._folder.mkdir(parents=True, exist_ok=True)
                write_atomic(self._folder / f"{new.pod_id}.json", json.dumps(asdict(new)))
                self._written[new.pod_id] = new
        return new


def _read_all(folder: Path | None) -> list[Sighting]:
    if folder is None or not folder.is_dir():
        return []
    found = (_read(path) for path in sorted(folder.glob("*.json")))
    return [sighting for sighting in found if sighting is not None]


def _read(path: Path) -> Sighting | None:
    sighting = load_small(path, lambda text: record_of(Sighting, parse(text)))
    return sighting if sighting is not None and sighting.pod_id == path.stem else None
