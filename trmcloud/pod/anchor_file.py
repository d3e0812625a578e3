"""When this pod first saw its lease, on disk, so that neither a kill nor a restart moves it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from trmcloud.core.clock import Instant
from trmcloud.pod.anchors import AnchorNote
from trmcloud.pod.files import read_small, write_atomic

_NAME = "anchor.json"


class AnchorFile:
    """``anchors.Anchors`` in a pod's folder; agent and guardian share it."""

    def __init__(self, pod_dir: Path) -> None:
        self._path = pod_dir / _NAME

    def read_anchor(self) -> AnchorNote | None:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            data = json.loads(read_small(self._path) or "{}")
            seen = Instant(float(data["wall"]), float(data["boot"]), str(data["boot_id"]))
            return AnchorNote(int(data["epoch"]), seen)
        return None

    def write_anchor(self, note: AnchorNote) -> None:
        seen = note.seen
        record = {"epoch": note.epoch, "wall": seen.wall, "boot": seen.boot}
        text = json.dumps({**record, "boot_id": seen.boot_id})
        with contextlib.suppress(OSError):
            write_atomic(self._path, text)
