"""Compute on the machine trmcloud stands on: a pod is a tree of real processes.

Its first process is the watchdog, in a session of its own, so that a closed terminal or a killed
command does not end it. What the pod is and how it ended stand in files; whether it lives is asked
of the processes themselves, never of a pid alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trmcloud.core.catalog.providers import local_terminate_wait_s
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.command import GIVEN_NAME
from trmcloud.core.control.observation import Bill, PodSeen, PodStatus
from trmcloud.core.errors import LinkError, NotFoundError, ProviderError
from trmcloud.core.money import Usd, cost
from trmcloud.io.files import load_small, write_atomic
from trmcloud.pod.agent.watchdog import (
    POD_NAME,
    last_sign_of,
    noted_end,
    spawn_watchdog,
    watchdog_of,
)
from trmcloud.pod.machine import processes
from trmcloud.ports.compute import Compute, PodLink, PodRequest, StageItem

if TYPE_CHECKING:
    from trmcloud.core.contract.manifest import CheckpointManifest

_KILL_FOR_S = 5.0


class LocalCompute(Compute, PodLink):
    """Pods on this machine, below ``home``. ``python_path`` is where trainer and agent import
    from; ``python`` runs them."""

    def __init__(
        self,
        home: Path,
        python_path: Sequence[str],
        python: str = sys.executable,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._home = home
        self._python_path = tuple(python_path)
        self._python = python
        self._now = now

    def create(self, request: PodRequest) -> str:
        request.require_wanted()
        folder = self._folder(request.name)
        with contextlib.suppress(FileNotFoundError):
            if self._record(folder) is not None and self._seen(request.name) is not None:
                return request.name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(folder / contract.LEASE_NAME, contract.dump(request.lease))
            for job in request.jobs:
                phase_dir = Path(job.out_dir)
                phase_dir.mkdir(parents=True, exist_ok=True)
                write_atomic(phase_dir / contract.JOB_NAME, contract.dump(job))
            if request.given:
                given = json.dumps(dict(request.given))
                write_atomic(folder / GIVEN_NAME, given, mode=0o600)
            record = {"created_at": self._now(), "rate_usd_per_hour": request.rate.plain()}
            write_atomic(folder / POD_NAME, json.dumps(record))
            self._spawn(request.name, folder)
        except OSError as error:
            raise ProviderError(
                f"the pod could not be started: {error.strerror or error}", where=str(folder)
            ) from error
        return request.name

    def list_pods(self) -> Sequence[PodSeen]:
        root = self._home / contract.PODS_DIR
        names = sorted(entry.name for entry in root.iterdir()) if root.is_dir() else []
        seen = (self._seen(name) for name in names if contract.parse_pod_name(name))
        return tuple(pod for pod in seen if pod is not None)

    def terminate(self, pod_id: str) -> bool:
        if contract.parse_pod_name(pod_id) is None:
            raise ProviderError(f"{pod_id!r} is not a pod of trmcloud")
        folder = self._folder(pod_id)
        pids = processes.of_pod(pod_id)
        lived = bool(pids)
        watchdog = watchdog_of(folder)
        if watchdog is not None and processes.send(*watchdog, signal.SIGTERM):
            began = time.monotonic()
            while pids:
                stopped = processes.stopped(watchdog[0])
                if time.monotonic() >= began + local_terminate_wait_s(watchdog_stopped=stopped):
                    break
                time.sleep(0.05)
                pids = processes.of_pod(pod_id)
        give_up_at = time.monotonic() + _KILL_FOR_S
        while left := processes.kill_pod(pod_id):
            if time.monotonic() > give_up_at:
                raise ProviderError(f"{left} of its processes cannot be killed", where=pod_id)
            time.sleep(0.02)
        if pids and folder.is_dir():
            self._freeze_end(folder, self._now(), "terminated")
        return lived

    def bill(self, pod_id: str) -> Bill | None:
        """Rate × the pod's life, as this machine saw it; final once the pod is gone."""
        folder = self._folder(pod_id)
        record = self._record(folder)
        pod = self._seen(pod_id)
        if record is None or pod is None:
            return None
        until = pod.ended_at if pod.ended_at is not None else self._now()
        amount = cost(pod.rate, max(0.0, until - record["created_at"]))
        return Bill(pod_id, amount, final=pod.gone)

    # -- words to and from the agent -----------------------------------------------------------

    def report(self, pod_name: str) -> contract.AgentReport | None:
        return load_small(self._folder(pod_name) / contract.REPORT_NAME, contract.load_report)

    def send_orders(self, pod_name: str, orders: contract.Orders) -> None:
        write_atomic(self._folder(pod_name) / contract.ORDERS_NAME, contract.dump(orders))

    def grant(self, pod_name: str, text: str) -> None:
        from trmcloud.core.contract.bucket import GRANTS_NAME

        self._give(pod_name, GRANTS_NAME, text, "granted uploads")

    def give_webhook(self, pod_name: str, text: str) -> None:
        from trmcloud.core.contract.notices import WEBHOOK_NAME

        self._give(pod_name, WEBHOOK_NAME, text, "given a webhook")

    def _give(self, pod_name: str, name: str, text: str, what: str) -> None:
        try:
            write_atomic(self._folder(pod_name) / name, text, mode=0o600)
        except OSError as error:
            raise LinkError(f"{pod_name} cannot be {what}: {error.strerror}") from error

    def stage(
        self, pod_name: str, items: Sequence[StageItem], progress: Callable[[int, int], None]
    ) -> None:
        """Nothing to do: a pod on this machine reads the user's own files."""

    def pull(
        self,
        pod_name: str,
        run_id: str,
        manifest: CheckpointManifest,
        names: Sequence[str],
        progress: Callable[[int, int], None],
    ) -> None:
        """Nothing to do: a pod on this machine writes to where the run's files are kept."""

    def fetch(
        self,
        pod_name: str,
        run_id: str,
        manifest: CheckpointManifest,
        names: Sequence[str],
        into: str,
        progress: Callable[[int, int], None],
    ) -> None:
        raise NotFoundError(f"{pod_name} keeps no files of its own")

    def manifest(
        self, pod_name: str, run_id: str, kept: contract.CheckpointRef
    ) -> CheckpointManifest:
        raise NotFoundError(f"{pod_name} keeps no files of its own")

    # -- the pod's files and processes ---------------------------------------------------------

    def _folder(self, pod_name: str) -> Path:
        return self._home / contract.PODS_DIR / pod_name

    def _spawn(self, pod_name: str, folder: Path) -> None:
        environment = {key: value for key, value in os.environ.items() if may_reach_pod(key)}
        environment[contract.ENV_POD] = pod_name
        environment["PYTHONPATH"] = os.pathsep.join(self._python_path)
        environment["PYTHONUNBUFFERED"] = "1"
        words = (
            *(self._python, "-m", "trmcloud.pod.agent.watchdog"),
            *("--root", str(self._home), "--pod", pod_name),
        )
        record = (self._record(folder) or {}) | spawn_watchdog(words, folder, environment)
        write_atomic(folder / POD_NAME, json.dumps(record))

    def _record(self, folder: Path) -> dict[str, Any] | None:
        data = load_small(folder / POD_NAME, json.loads)
        return data if isinstance(data, dict) and "created_at" in data else None

    def _seen(self, pod_name: str) -> PodSeen | None:
        """The pod as it is; None where nothing was ever started under that name."""
        folder = self._folder(pod_name)
        record = self._record(folder)
        if record is None:
            return None
        rate = Usd(record["rate_usd_per_hour"])
        ended = noted_end(folder)
        # Read before its processes are looked for: one that appears meanwhile was not looked for.
        watchdog = watchdog_of(folder)
        if ended is None and not self._lives(pod_name, watchdog):
            ended = noted_end(folder)
            if ended is None:
                last = self._last_sign_of_life(folder, watchdog)
                if last is None:
                    return None
                ended = self._freeze_end(folder, last, "its processes are gone")
        status = PodStatus.RUNNING if ended is None else PodStatus.GONE
        if status is PodStatus.GONE:
            with contextlib.suppress(OSError):  # its watchdog does, where it lives to the end
                os.unlink(folder / GIVEN_NAME)
        return PodSeen(pod_name, pod_name, status, rate, ended)

    def _lives(self, pod_name: str, watchdog: tuple[int, str] | None) -> bool:
        if watchdog is not None and processes.alive(*watchdog):
            return True
        return bool(processes.of_pod(pod_name))

    def _freeze_end(self, folder: Path, at: float, reason: str) -> float:
        with contextlib.suppress(OSError):
            record = json.dumps({"at": at, "reason": reason})
            write_atomic(folder / contract.ENDED_NAME, record)
        return at

    def _last_sign_of_life(self, folder: Path, watchdog: tuple[int, str] | None) -> float | None:
        """When a pod whose end was not seen was last alive; None where it never had a process."""
        name = contract.parse_pod_name(folder.name)
        if watchdog is None or name is None:
            return None
        lease = load_small(folder / contract.LEASE_NAME, contract.load_lease)
        run_dir = self._home / contract.RUNS_DIR / lease.run_id if lease is not None else folder
        return min(last_sign_of(folder, run_dir), self._now())


#: What of the user's environment reaches a pod: an allow-list, so that no key has to be guessed.
_TRAVELS = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR"),
        *("LD_LIBRARY_PATH", "VIRTUAL_ENV"),
        # Of a sweep on Ray, whose token and keys are files that these name.
        *("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "RAY_USE_TLS", "RAY_TLS_CA_CERT"),
        *("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY"),
    )
)
_TRAVELS_BY_PREFIX = (
    *("LC_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "OMP_", "MKL_", "KMP_", "TORCH"),
    *("PYTORCH_", "TRITON_", "TRMCLOUD_"),
)


#: Words of names that may hold a secret; the ledger's URL holds a password.
_SECRET = re.compile(
    r"^TRMCLOUD_LEDGER$|"
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|COOKIE|WEBHOOK|SIGNATURE|PRIVATE|BEARER|AUTHORI"
    r"|KEYS?(?=_|$)|(?<![^_])(?:AUTH|PASS|PWD|DSN|PAT)(?=_|$)"
)


def may_reach_pod(name: str) -> bool:
    """Whether a pod sees the user's variable: none by its prefix that may hold a secret."""
    by_prefix = name.startswith(_TRAVELS_BY_PREFIX) and not _SECRET.search(name.upper())
    return name in _TRAVELS or by_prefix
