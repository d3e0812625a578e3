"""The agent's hold on the process that makes the training data: kept running, never waited for.

It is the trainer's own ``model.prepare``. The trainer itself waits for what it needs of the data
and ends where nothing more can come; all that is decided here is whether to start it again.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from trmcloud.core import pod_contract as contract
from trmcloud.pod.environment import for_trainers
from trmcloud.pod.files import read_small, write_atomic
from trmcloud.pod.prepare import TrainerSetup
from trmcloud.pod.processes import die_with_parent

LOG_NAME = "data.log"
STDERR_NAME = "data.err"
DATA_SET_NAME = "data_set.json"
SETTINGS_NAME = "settings.json"
CACHE_DIR = "data-cache"
_AGAIN_AFTER_S = 5.0
_TRIES = 4
#: Exit codes of model.prepare after which the same command cannot succeed here (decision 0014):
#: arguments, an extra that is missing, a folder that holds something else, data that are no good.
_FINAL = frozenset({0, 2, 6, 8, 9})


class DataMaking:
    """One pod's data, as its agent sees it. ``setup`` is what to run the trainer with, None until
    this machine is ready to."""

    def __init__(
        self,
        root: Path,
        pod_name: str,
        setup: Callable[[], TrainerSetup | None],
        log: Callable[[str], None],
    ) -> None:
        self._root, self._pod_name = root, pod_name
        self._pod_dir = root / contract.PODS_DIR / pod_name
        self._setup, self._log = setup, log
        self._job: contract.PhaseJob | None = None
        self._looked = False
        self._child: subprocess.Popen[bytes] | None = None
        self._start_at = 0.0
        self._tries = 0
        self._over = False

    def tend(self, boot: float, run_id: str, phases: tuple[str, ...]) -> None:
        """Start it once this machine can, and again a moment after it was killed."""
        if self._over or not run_id:
            return
        if not self._looked:
            self._job, self._looked = self._read_job(run_id, phases), True
        if self._job is None:
            self._over = True
            return
        if self._child is not None:
            code = self._child.poll()
            if code is None:
                return
            self._child, self._start_at = None, boot + _AGAIN_AFTER_S
            self._over = code in _FINAL or self._tries >= _TRIES
            self._log(f"the data's preparation ended with {code}")
            return
        setup = self._setup() if boot >= self._start_at else None
        if setup is not None:
            self._start(self._job, setup)

    def _start(self, job: contract.PhaseJob, setup: TrainerSetup) -> None:
        assert job.data is not None
        self._tries += 1
        out = Path(job.data_dir)
        words = [
            *("--source", job.data.source, "--out", str(out)),
            *("--settings", str(self._pod_dir / SETTINGS_NAME)),
            *("--tokens", str(job.data.tokens), "--cache", str(self._root / CACHE_DIR)),
        ]
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self._pod_dir / SETTINGS_NAME, json.dumps(dict(job.settings)))
            if job.data.data_set:
                path = self._pod_dir / DATA_SET_NAME
                write_atomic(path, json.dumps(dict(job.data.data_set)))
                words += ["--data-set", str(path)]
            if job.data.tokenizer:
                words += ["--tokenizer", job.data.tokenizer]
            with (
                open(self._pod_dir / LOG_NAME, "ab") as log,
                open(self._pod_dir / STDERR_NAME, "wb") as errors,
            ):
                self._child = subprocess.Popen(
                    [setup.python, "-P", "-m", "model.prepare", *words],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=errors,
                    env={
                        **setup.over(for_trainers(os.environ)),
                        contract.ENV_POD: self._pod_name,
                        contract.ENV_BESIDE: "1",
                    },
                    cwd=self._pod_dir,
                    preexec_fn=die_with_parent,
                )
        except OSError as error:
            self._log(f"the data's preparation cannot be started: {error.strerror}")
            self._over = self._tries >= _TRIES
            return
        self._log(f"making data of {job.data.source} in {out}")

    def _read_job(self, run_id: str, phases: tuple[str, ...]) -> contract.PhaseJob | None:
        for phase in phases:
            path = self._root / contract.RUNS_DIR / run_id / phase / contract.JOB_NAME
            with contextlib.suppress(ValueError, OSError):
                job = contract.load_job(read_small(path) or "")
                if job.data is not None:
                    return job
        return None
