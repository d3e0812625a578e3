"""The clock of a lease: first seen when, and kept on disk so that no restart moves a deadline."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Protocol

from trmcloud.core.clock import Anchor, Instant
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.values import Value, replace
from trmcloud.io.files import read_small, write_atomic

# When a pod first saw its lease: what a deadline by the clock since boot is counted from.


class AnchorNote(Value):
    """The elapsed time of a lease when both of this pod's clocks said ``seen``.

    ``known_s``: seconds since this pod first saw it. ``lost_s``: seconds that had passed by then
    since it was granted, by the wall clock.
    """

    seen: Instant
    known_s: float = 0.0
    lost_s: float = 0.0

    def renewed(self, now: Instant) -> AnchorNote:
        """The same, told now: what came before no longer hangs on what the clocks do from here."""
        return replace(self, seen=now, known_s=self.age_s(now))

    def age_s(self, now: Instant) -> float:
        """Since this pod first saw the lease; by the clock that no one sets, if it can."""
        same_boot = now.boot_id == self.seen.boot_id
        passed_s = now.boot - self.seen.boot if same_boot else now.wall - self.seen.wall
        return self.known_s + max(0.0, passed_s)

    def anchor(self, deadline_at: float, granted_at: float) -> Anchor:
        """A deadline of the lease, counted from here."""
        first_left_s = deadline_at - granted_at - self.lost_s
        return Anchor(deadline_at, self.seen, first_left_s - self.known_s)


class Anchors(Protocol):
    """The storage of a pod's ``AnchorNote`` across kills and restarts."""

    def read_anchor(self) -> AnchorNote | None: ...

    def write_anchor(self, note: AnchorNote) -> None:
        """One that cannot be written is passed over: the wall clock still counts."""


def anchor_note(anchors: Anchors, lease: contract.Lease, now: Instant) -> AnchorNote:
    """Return the note of this pod's lease: it is written the first time, and again by the clocks
    of a machine that was restarted. Counted from a reading before that, a deadline would hang on
    the wall clock alone, which may still be set. Where the lease was extended the time that has
    passed is the same: were it counted anew, a wrong clock at the grant would give more than was
    reserved."""
    note = anchors.read_anchor()
    if note is None:
        note = AnchorNote(now, lost_s=max(0.0, now.wall - lease.granted_at))
    elif note.seen.boot_id != now.boot_id:
        note = note.renewed(now)
    else:
        return note
    anchors.write_anchor(note)
    return note


# What has passed of this pod's lease, on disk, so that neither a kill nor a restart moves it.

_NAME = "anchor.json"


class AnchorFile:
    """``anchors.Anchors`` in a pod's folder; agent and watchdog share it."""

    def __init__(self, pod_dir: Path) -> None:
        self._path = pod_dir / _NAME

    def read_anchor(self) -> AnchorNote | None:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            data = json.loads(read_small(self._path) or "{}")
            seen = Instant(float(data["wall"]), float(data["boot"]), str(data["boot_id"]))
            times = float(data["known_s"]), float(data["lost_s"])
            return AnchorNote(seen, *times)
        return None

    def write_anchor(self, note: AnchorNote) -> None:
        seen = note.seen
        record = {"known_s": note.known_s, "lost_s": note.lost_s}
        text = json.dumps({**record, **vars(seen)})
        with contextlib.suppress(OSError):
            write_atomic(self._path, text)
