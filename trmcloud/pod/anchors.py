"""When a pod first saw its lease: what a deadline by the clock since boot is counted from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from trmcloud.core import pod_contract as contract
from trmcloud.core.clock import Instant


@dataclass(frozen=True)
class AnchorNote:
    """When a lease of ``epoch`` was first seen on this pod, by both of its clocks."""

    epoch: int
    seen: Instant


class Anchors(Protocol):
    """Where a pod keeps its ``AnchorNote`` across kills and restarts."""

    def read_anchor(self) -> AnchorNote | None: ...

    def write_anchor(self, note: AnchorNote) -> None:
        """One that cannot be written is passed over: the wall clock still counts."""


def first_seen(anchors: Anchors, lease: contract.Lease, now: Instant) -> Instant:
    """When this pod first saw a lease of this epoch: noted down the first time it is asked."""
    note = anchors.read_anchor()
    if note is None or note.epoch != lease.epoch:
        note = AnchorNote(lease.epoch, now)
        anchors.write_anchor(note)
    return note.seen
