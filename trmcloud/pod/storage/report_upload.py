"""The agent's report, brought to the bucket: it is known also of a pod that ended unseen.

Once a minute while the agent works, and at once when its report bears the result, which the agent
stays for. It has a thread and a connection of its own, so that no checkpoint holds it up.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.bucket import TOLD_NAME, Grants
from trmcloud.io.files import read_small, write_atomic
from trmcloud.pod.storage.presigned import Objects, StoreError

_EVERY_S = 60.0
_AGAIN_S = 1.0
"""From one try to the next where the report bears the result: the pod stays for it."""
_LOOK_EVERY_S = 0.25


class ReportUploader:
    """One pod's. ``grants`` gives what it may do now; ``now`` is the pod's boot-time clock."""

    def __init__(
        self,
        pod_dir: Path,
        grants: Callable[[], Grants | None],
        say: Callable[[str], None],
        *,
        now: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._pod_dir, self._grants, self._say, self._now = pod_dir, grants, say, now
        self._stamp: tuple[int, int] | None = None
        self._text = ""
        self._report: contract.AgentReport | None = None
        self._told: str | None = None
        self._tried_at = -1e9
        self._trouble = ""

    def run(self) -> None:
        """Until the process ends."""
        while True:
            self.once()
            time.sleep(_LOOK_EVERY_S)

    def once(self) -> bool:
        """Whether a report was stored."""
        grants = self._grants()
        if grants is None or not grants.report:
            return False
        self._read()
        report = self._report
        if report is None or report.pod_name != grants.pod_name:
            return False
        ended = report.result is not None and report.result != self._told
        if self._now() - self._tried_at < (_AGAIN_S if ended else _EVERY_S):
            return False
        self._tried_at = self._now()
        try:
            with contextlib.closing(Objects()) as objects:
                objects.put_bytes(grants.report, self._text.encode("utf-8"))
        except StoreError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                self._say(f"the report is not stored: {error}")
            return False
        self._told, self._trouble = report.result, ""
        if report.result is not None:
            with contextlib.suppress(OSError):
                write_atomic(self._pod_dir / TOLD_NAME, json.dumps({"result": report.result}))
        return True

    def _read(self) -> None:
        """Read the agent's report, where it is new."""
        path = self._pod_dir / contract.REPORT_NAME
        with contextlib.suppress(OSError, ValueError):
            about = os.stat(path)
            stamp = (about.st_mtime_ns, about.st_ino)
            if stamp != self._stamp:
                text = read_small(path) or ""
                self._report, self._text = contract.load_report(text), text
                self._stamp = stamp
