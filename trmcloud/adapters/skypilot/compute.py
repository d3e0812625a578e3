"""SkyPilot as a ``Compute`` for one provider: a pod is a cluster that bears its name.

Its table of clusters is what can be listed: a cached row may be stale, a fresh one ambiguous. What
is not plainly running or being made is "unknown", which counts as spending.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trmcloud.adapters.skypilot.command import Sky
from trmcloud.adapters.skypilot.task import CLOUDS, limit_minutes, make_task
from trmcloud.core.errors import AmbiguousCreate, NoCapacity, ProviderError, ProviderRefused
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.observation import PodSeen
from trmcloud.core.pod_contract import POD_PREFIX, parse_pod_name
from trmcloud.ports import PodKeys, PodRequest

LIST_FRESH_S = 20.0
"""A list takes SkyPilot seconds of a processor: one serves all who ask within this time."""
_QUIET = ("--no-show-managed-jobs", "--no-show-services", "--no-show-pools")
_SUBMITTED = re.compile(r"Submitted sky\.launch request: ([0-9a-f-]{8,36})")
_ID = re.compile(r"[0-9a-f-]{8,36}")
_ACTIVE = ("PENDING", "RUNNING")
_STATUS: Mapping[str, str] = {
    "PENDING": "creating",
    "UP": "running",
    "AUTOSTOPPING": "running",
}


@dataclass(frozen=True)
class Limit:
    """A cluster's own limit, as its row tells: ``armed`` once it would end the cluster."""

    armed: bool
    minutes: int


class SkyPilotCompute:
    """``keys`` gives a pod's SSH keys by its name; ``payload`` is the agent's archive, kept below
    ``folder`` for SkyPilot to send; ``now`` is epoch seconds."""

    def __init__(
        self,
        provider: str,
        sky: Sky,
        keys: Callable[[str], PodKeys],
        payload: bytes,
        folder: Path,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._provider, self._sky, self._keys = provider, sky, keys
        self._payload, self._folder, self._now = payload, folder, now
        self._lock = threading.RLock()
        self._rows: list[Mapping[str, Any]] = []
        self._listed_at: float | None = None
        self._is_cached = False
        self._rates: dict[str, Usd] = {}

    def require_account(self, rate: Usd) -> None:
        """See ``ports.Account``.

        Raises:
            AuthError: the cloud is not enabled. ProviderError: SkyPilot is too old, or down.
        """
        self._sky.version()
        self._sky.require_cloud(CLOUDS[self._provider])

    def create(self, request: PodRequest) -> str:
        """Submit the launch; its provisioning is not waited for. The cluster's id is its name.

        Raises:
            NoCapacity: SkyPilot's catalogue has nothing of the kind at the planned rate.
            AmbiguousCreate: something may have been submitted.
        """
        if parse_pod_name(request.name) is None:
            raise ProviderRefused(f"{request.name!r:.80} is not a name of ours")
        with self._lock:
            if any(pod.name == request.name for pod in self._pods(fresh=True)):
                return request.name
            if self._requests(request.name, active=True):
                return request.name
            text = make_task(
                self._provider, request, self._keys(request.name), str(self._archive()), self._now()
            )
            request.require_timely(self._now())
            self._listed_at = None
            self._rates[request.name] = request.rate
            self._submit(request.name, text)
            return request.name

    def list_pods(self) -> Sequence[PodSeen]:
        return tuple(self._pods())

    def terminate(self, pod_id: str) -> bool:
        """Call off its launch, which may go on for ever, then end the cluster. Never purges: that
        would forget a machine that is still there.

        Raises:
            ProviderError: it was not taken, or the cluster is not one of ours.
        """
        if parse_pod_name(pod_id) is None:
            raise ProviderError(
                f"{pod_id!r:.80} is not a pod of ours", next_step="sky down it, if it is yours"
            )
        with self._lock:
            self._listed_at = None
            active = self._requests(pod_id, active=True)
            for request_id in active:
                self._sky.run("api", "cancel", "-y", request_id)
            said = self._sky.run("down", "-y", pod_id)
            return bool(active) or "not found" not in said

    def limit(self, pod_name: str) -> Limit | None:
        """The cluster's own limit by its newest row; None where there is no such row."""
        for row in self._rows:
            if row.get("name") == pod_name:
                minutes = row.get("autostop")
                whole = minutes if isinstance(minutes, int) else -1
                return Limit(whole >= 0 and row.get("to_down") is True, whole)
        return None

    def arm(self, pod_name: str, hard_stop_at: float) -> None:
        """Set the limit anew, just behind the hard stop: it counts from when it is set, and of
        clusters launched side by side some have been left without one.

        Raises:
            ProviderError: SkyPilot did not take it.
        """
        minutes = str(limit_minutes(hard_stop_at, self._now()))
        limit = ("-i", minutes, "--down", "--wait-for", "none")
        self._sky.run("autostop", "-y", pod_name, *limit)
        with self._lock:
            self._listed_at = None

    # -- how -------------------------------------------------------------------------------------

    def _submit(self, name: str, text: str) -> None:
        with tempfile.TemporaryDirectory(prefix="trmcloud-sky-") as folder:
            path = Path(folder) / "task.yaml"
            path.touch(mode=0o600)
            path.write_text(text, encoding="utf-8")
            try:
                said = self._sky.run("launch", "--async", "-y", "-c", name, str(path))
            except ProviderRefused:
                raise
            except ProviderError as error:
                self._reconcile(name, error)
                return
        if not _SUBMITTED.search(said):
            self._reconcile(name, ProviderError("sky launch named no request"))

    def _reconcile(self, name: str, error: ProviderError) -> None:
        """A launch that failed to say that it was submitted may have been: ask, by its name."""
        try:
            known = self._requests(name, active=False)
        except ProviderError:
            raise AmbiguousCreate(error.what, next_step="sky api status") from error
        if known:
            return
        if "ResourcesUnavailable" in error.what:
            raise NoCapacity(error.what) from error
        raise AmbiguousCreate(error.what, next_step=error.next_step) from error

    def _requests(self, name: str, *, active: bool) -> list[str]:
        words = ("api", "status", "-c", name) if active else ("api", "status", "-a", "-c", name)
        rows = self._sky.read(*words)
        if not isinstance(rows, list):
            raise ProviderError("sky api status printed no list")
        return [
            str(row["request_id"])
            for row in rows
            if isinstance(row, dict)
            and row.get("name") == "sky.launch"
            and _ID.fullmatch(str(row.get("request_id")))
            and (not active or row.get("status") in _ACTIVE)
        ]

    def _pods(self, *, fresh: bool = False) -> list[PodSeen]:
        with self._lock:
            age_s = self._now() - self._listed_at if self._listed_at is not None else -1.0
            if fresh or not 0 <= age_s < LIST_FRESH_S:
                self._rows, self._is_cached = self._read_rows()
                self._listed_at = self._now()
            mine = [row for row in self._rows if self._is_mine(row)]
            return [self._seen(row) for row in mine]

    def _read_rows(self) -> tuple[list[Mapping[str, Any]], bool]:
        """Fresh rows; where one of them cannot be refreshed (a RunPod pod that has exited makes
        SkyPilot fail), what it last knew, of which nothing is believed but that it is there."""
        words = ("status", *_QUIET, f"{POD_PREFIX}-*")
        try:
            return _checked(self._sky.read(*words, "-r")), False
        except ProviderRefused:
            raise
        except ProviderError as error:
            if "KeyError" not in error.what:
                raise
        return _checked(self._sky.read(*words)), True

    def _is_mine(self, row: Mapping[str, Any]) -> bool:
        if parse_pod_name(str(row.get("name"))) is None:
            return False
        cloud = row.get("cloud")
        return cloud is None or str(cloud).lower() == CLOUDS[self._provider]

    def _seen(self, row: Mapping[str, Any]) -> PodSeen:
        name, status = str(row["name"]), row.get("status")
        word = _STATUS.get(str(status), "unknown")
        if status == "INIT" and row.get("init_kind") == "launching":
            word = "creating"
        if self._is_cached:
            word = "unknown"
        made = row.get("launched_at")
        made_at = float(made) if isinstance(made, int | float) else None
        return PodSeen(name, name, word, self._rates.get(name, ZERO), made_at=made_at)

    def _archive(self) -> Path:
        """SkyPilot reads it when the machine is up, long after the launch was submitted."""
        path = self._folder / "boot.tar.gz"
        self._folder.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != self._payload:
            part = path.with_suffix(f".{os.getpid()}")
            part.write_bytes(self._payload)
            os.replace(part, path)
        return path


def _checked(rows: Any) -> list[Mapping[str, Any]]:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ProviderError("sky status printed no list of clusters")
    return rows
