"""Processes that run beside the agent: notices, uploads, and data preparation."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trmcloud.core.clock import Instant
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract import trainer_contract
from trmcloud.core.contract.bucket import (
    GRANTS_NAME,
    MAX_GRANTS_BYTES,
    TOLD_NAME,
    UPLOADS_NAME,
    Uploads,
    load_grants,
    load_uploads,
)
from trmcloud.core.contract.pod_contract import ENV_DATA_HOSTS
from trmcloud.core.contract.records import parse
from trmcloud.core.contract.trainer_contract import DataProgress, PhaseJob, load_job
from trmcloud.core.values import replace
from trmcloud.io.files import load_small, read_small, write_atomic
from trmcloud.pod.machine.environment import for_trainers
from trmcloud.pod.machine.prepare import TrainerSetup
from trmcloud.pod.machine.processes import die_with_parent

# The agent's hold on the process that tells somebody: started where there is a webhook, never
# waited for, and no part of its pod: what ends a trainer, or the pod's own processes, need not
# end it, and it ends by itself.

_PROGRAM = "trmcloud.pod.notify"
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
        words = (_PROGRAM, "--root", str(self._root), "--pod", self._pod_name)
        log = self._pod_dir / _LOG_NAME
        self._child = _start_beside(words, log, environment, start_new_session=True)


def _start_beside(
    words: Sequence[str], log: Path, environment: Mapping[str, str], **options: Any
) -> subprocess.Popen[bytes] | None:
    """Start a module of ours in the folder of its log; None where that is not possible now."""
    with contextlib.suppress(OSError), open(log, "ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=log.parent,
            **options,
        )
    return None


# The process that uploads: kept running, never waited for.

UPLOAD_LOG_NAME = "upload.log"
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
        runs = child is not None and child.poll() is None
        return frozenset((child.pid,)) if child is not None and runs else frozenset()

    def tend(self, boot: float) -> None:
        """Start it where there are grants, and again a moment after it died."""
        if self._child is not None and self._child.poll() is None:
            return
        if self._child is not None:
            self._child, self._start_at = None, boot + _AGAIN_AFTER_S
        if boot < self._start_at or self.granted_until() is None:
            return
        environment = self._setup().over(for_trainers(os.environ))
        environment[contract.ENV_POD] = self._pod_name
        words = (UPLOADER, "--root", str(self._root), "--pod", self._pod_name)
        log = self._pod_dir / UPLOAD_LOG_NAME
        self._child = _start_beside(words, log, environment, preexec_fn=die_with_parent)

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
        return load_small(self._pod_dir / UPLOADS_NAME, load_uploads) or Uploads()

    def stored_result(self) -> str:
        """The result that the report in the bucket bears; '' while it bears none."""
        with contextlib.suppress(KeyError, TypeError):
            told: Any = load_small(self._pod_dir / TOLD_NAME, json.loads)
            return str(told["result"])
        return ""


# The agent's hold on the process that makes the training data: kept running, never waited for.
#
# It is the trainer's own ``model.prepare``. The trainer itself waits for what it needs of the
# data and ends where nothing more can come; all that is decided here is whether to start it
# again.

DATA_LOG_NAME = "data.log"
STDERR_NAME = "data.err"
DATA_SET_NAME = "data_set.json"
SETTINGS_NAME = "settings.json"

_DATA_RETRY_AFTER_S = 5.0
_TRIES = 4
#: Exit codes of model.prepare after which the same command cannot succeed here (decision 0014):
#: done, arguments, an extra that is missing, data that are no good. One that found another at work
#: may: that one ends with the agent that started it.
_FINAL = frozenset({0, 2, 6, 9})
_STOP_S = 3.0
_LAST_LINE_BYTES = 1 << 14


class DataPreparation:
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
        self._job: PhaseJob | None = None
        self._looked = False
        self._child: subprocess.Popen[bytes] | None = None
        self._start_at = 0.0
        self._tries = 0
        self._over = False

    def tend(self, now: Instant, run_id: str, phases: tuple[str, ...]) -> None:
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
            self._child, self._start_at = None, now.boot + _DATA_RETRY_AFTER_S
            self._log(f"the data's preparation ended with {code}")
            self._over = code in _FINAL or self._tries >= _TRIES
            if self._over and code != 0:
                self._tell_failure(self._job, now, code)
            return
        setup = self._setup() if now.boot >= self._start_at else None
        if setup is not None:
            self._start(self._job, setup, now)

    def stop(self) -> None:
        """End it: what it has done so far is kept for another time."""
        self._over = True
        if self._child is None or self._child.poll() is not None:
            return
        self._child.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout=_STOP_S)
            return
        self._child.kill()

    def notes(self) -> Mapping[str, str]:
        """Describe its progress for the report; empty where this machine makes none."""
        if self._job is None:
            return {}
        progress = self._progress(self._job)
        return {contract.DATA_NOTE: words_of(progress)} if progress is not None else {}

    # -- how -------------------------------------------------------------------------------------

    def _start(self, job: PhaseJob, setup: TrainerSetup, now: Instant) -> None:
        assert job.data is not None
        self._tries += 1
        out = Path(job.data_dir)
        words = [
            *("--source", job.data.source, "--out", str(out)),
            *("--settings", str(self._pod_dir / SETTINGS_NAME)),
            *("--tokens", str(job.data.tokens)),
            *("--cache", str(self._root / contract.DATA_CACHE_DIR), "--doubt-cache"),
        ]
        hosts = {ENV_DATA_HOSTS: job.data.hosts} if job.data.hosts else {}
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
                open(self._pod_dir / DATA_LOG_NAME, "ab") as log,
                open(self._pod_dir / STDERR_NAME, "wb") as errors,
            ):
                self._child = subprocess.Popen(
                    [setup.python, "-P", "-m", "model.prepare", *words],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=errors,
                    env={
                        **setup.over(for_trainers(os.environ)),
                        **hosts,
                        contract.ENV_POD: self._pod_name,
                        contract.ENV_BESIDE: "1",
                    },
                    cwd=self._pod_dir,
                    preexec_fn=die_with_parent,
                )
        except OSError as error:
            self._log(f"the data's preparation cannot be started: {error.strerror}")
            self._start_at = now.boot + _DATA_RETRY_AFTER_S
            self._over = self._tries >= _TRIES
            if self._over:
                self._tell_failure(job, now, -1)
            return
        self._log(f"making data of {job.data.source} in {out}")

    def _progress(self, job: PhaseJob) -> DataProgress | None:
        path = Path(job.data_dir) / trainer_contract.PROGRESS_NAME
        return load_small(path, trainer_contract.load_progress)

    def _tell_failure(self, job: PhaseJob, now: Instant, code: int) -> None:
        """The trainer and the report read why from the folder, also where the process could not
        write it there itself."""
        assert job.data is not None
        told = self._progress(job)
        if told is not None and told.state == "failed":
            return
        what, next_step = self._last_words()
        if told is None:
            told = DataProgress(job.data.source, "failed", now.wall, 0, "")
        failed = replace(
            told,
            state="failed",
            at=now.wall,
            message=what or f"model.prepare ended with {code}",
            next_step=next_step,
        )
        with contextlib.suppress(OSError):
            folder = Path(job.data_dir)
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(folder / trainer_contract.PROGRESS_NAME, contract.dump(failed))

    def _last_words(self) -> tuple[str, str]:
        """(what it died of, what to do), from the last line of its stderr."""
        try:
            with open(self._pod_dir / STDERR_NAME, "rb") as file:
                file.seek(max(0, file.seek(0, 2) - _LAST_LINE_BYTES))
                lines = file.read().decode("utf-8", "replace").strip().splitlines()
        except OSError:
            return "", ""
        last = lines[-1] if lines else ""
        with contextlib.suppress(ValueError, AttributeError):
            said = parse(last)
            what, where = str(said.get("what", "")), str(said.get("where") or "")
            return f"{what} ({where})" if where else what, str(said.get("next_step") or "")
        return contract.strip_control(last)[:500], ""

    def _read_job(self, run_id: str, phases: tuple[str, ...]) -> PhaseJob | None:
        for phase in phases:
            path = self._root / contract.RUNS_DIR / run_id / phase / contract.JOB_NAME
            job = load_small(path, load_job)
            if job is not None and job.data is not None:
                return job
        return None


def words_of(progress: DataProgress) -> str:
    """``download · 312 of 900 MB · 3 of 12 shards``, as much of it as is known."""
    if progress.state == "failed":
        return contract.strip_control(progress.message)[:300]
    words = [progress.stage if progress.state == "working" else progress.state]
    if progress.state == "working" and progress.download_bytes:
        done, whole = progress.downloaded_bytes / 1e6, progress.download_bytes / 1e6
        words.append(f"{done:,.1f} of {max(done, whole):,.1f} MB")
    if progress.planned_shards:
        words.append(f"{progress.shards:,} of {progress.planned_shards:,} shards")
    if progress.tokens:
        share = min(1.0, progress.tokens / max(1, progress.wanted_tokens))
        words.append(f"{progress.tokens:,} tokens ({100 * share:.0f} %)")
    words.append(progress.note)
    return contract.strip_control(" · ".join(filter(None, words)))[:300]
