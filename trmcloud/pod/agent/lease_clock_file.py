"""What has passed of this pod's lease, on disk, so that neither a kill nor a restart moves it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from trmcloud.core.clock import Instant
from trmcloud.io.files import read_small, write_atomic
from trmcloud.pod.agent.lease_clock import AnchorNote

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
            return AnchorNote(int(data["epoch"]), seen, *times)
        return None

    def write_anchor(self, note: AnchorNote) -> None:
        seen = note.seen
        record = {"epoch": note.epoch, "known_s": note.known_s, "lost_s": note.lost_s}
        text = json.dumps({**record, **vars(seen)})
        with contextlib.suppress(OSError):
            write_atomic(self._path, text)
