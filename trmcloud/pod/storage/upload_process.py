"""The agent's hold on the process that uploads: kept running, never waited for."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.bucket import (
    GRANTS_NAME,
    MAX_GRANTS_BYTES,
    TOLD_NAME,
    UPLOADS_NAME,
    Uploads,
    load_grants,
    load_uploads,
)
from trmcloud.io.files import read_small
from trmcloud.pod.machine.environment import for_trainers
from trmcloud.pod.machine.prepare import TrainerSetup
from trmcloud.pod.machine.processes import die_with_parent

LOG_NAME = "upload.log"
UPLOADER = "trmcloud.pod.storage.upload"
_AGAIN_AFTER_S = 2.0


class Transfer:
    """One pod's uploading process, as its agent sees it."""

    def __init__(self, root: Path, pod_name: str, setup: Callable[[], TrainerSetup]) -> None:
        """``setup`` says where the sources lie that followed the agent's: the trainer's, and those
        of this process."""
        self._root, self._pod_name, self._setup = root, pod_name, setup
        self._pod_dir = root / contract.PODS_DIR / pod_name
        self._child: subprocess.Popen[bytes] | None = None
        self._start_at = 0.0
        self._stamp: tuple[int, int] | None = None
        self._until: float | None = None

    def pids(self) -> frozenset[int]:
        """The process, which what ends a trainer must not end."""
        child = self._child
        return (
            frozenset((child.pid,)) if child is not None and child.poll() is None else frozenset()
        )

    def tend(self, boot: float) -> None:
        """Start it where there are grants, and again a moment after it died."""
        if self._child is not None and self._child.poll() is None:
            return
        if self._child is not None:
            self._child, self._start_at = None, boot + _AGAIN_AFTER_S
        if boot < self._start_at or self.granted_until() is None:
            return
        environment = self._setup().over(for_trainers(os.environ))
        with contextlib.suppress(OSError), open(self._pod_dir / LOG_NAME, "ab") as log:
            self._child = subprocess.Popen(
                [
                    *(sys.executable, "-m", UPLOADER),
                    *("--root", str(self._root), "--pod", self._pod_name),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment, contract.ENV_POD: self._pod_name},
                cwd=self._pod_dir,
                preexec_fn=die_with_parent,
            )

    def granted_until(self) -> float | None:
        """Epoch s; None where there are no grants that can be read."""
        path = self._pod_dir / GRANTS_NAME
        try:
            about = os.stat(path)
            stamp = (about.st_mtime_ns, about.st_ino)
            if stamp != self._stamp:
                grants = load_grants(read_small(path, MAX_GRANTS_BYTES) or "")
                mine = grants.pod_name == self._pod_name
                self._stamp, self._until = stamp, grants.until if mine else None
        except (OSError, ValueError):
            self._stamp = self._until = None
        return self._until

    def uploads(self) -> Uploads:
        with contextlib.suppress(ValueError):
            text = read_small(self._pod_dir / UPLOADS_NAME)
            if text is not None:
                return load_uploads(text)
        return Uploads()

    def told(self) -> str:
        """The result that the report in the bucket bears; '' while it bears none."""
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return str(json.loads(read_small(self._pod_dir / TOLD_NAME) or "")["result"])
        return ""
