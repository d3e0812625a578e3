"""The agent's hold on the process that tells somebody: started where there is a webhook, never
waited for, and no part of its pod: what ends a trainer, or the pod's own processes, need not end
it, and it ends by itself."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from trmcloud.core.contract import pod_contract as contract
from trmcloud.pod.machine.environment import for_trainers
from trmcloud.pod.machine.prepare import TrainerSetup

_PROGRAM = "trmcloud.pod.notify.process"
_WEBHOOK_NAME = "webhook.json"
_LOG_NAME = "notices.log"


class NoticesProcess:
    """``setup`` says where the sources lie that followed the agent's; None: not here yet."""

    def __init__(self, root: Path, pod_name: str, setup: Callable[[], TrainerSetup | None]) -> None:
        self._root, self._pod_name, self._setup = root, pod_name, setup
        self._pod_dir = root / contract.PODS_DIR / pod_name
        self._child: subprocess.Popen[bytes] | None = None

    def tend(self) -> None:
        """Start it, once: one that failed is not what a training hangs on."""
        if self._child is not None:
            self._child.poll()
            return
        setup = self._setup() if (self._pod_dir / _WEBHOOK_NAME).exists() else None
        if setup is None:
            return
        environment = setup.over(for_trainers(os.environ))
        environment[contract.ENV_POD] = ""  # of no pod: it outlives its own
        with contextlib.suppress(OSError), open(self._pod_dir / _LOG_NAME, "ab") as log:
            self._child = subprocess.Popen(
                [
                    *(sys.executable, "-m", _PROGRAM),
                    *("--root", str(self._root), "--pod", self._pod_name),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self._pod_dir,
                start_new_session=True,
            )
