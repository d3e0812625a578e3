"""The stand-in's books: hardware, jobs and their stages, on a clock that is given."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from math import ceil
from typing import Any, Protocol

TOKEN = "hf_STANDINaccountTOKENaccountTOKEN"
USER = "stand-in"
DEFAULT_TIMEOUT_S = 1800
TERMINAL = ("COMPLETED", "CANCELED", "ERROR", "DELETED")
_LABEL = re.compile(r"[A-Za-z0-9._-]{0,100}")

#: name, pretty name, cpu, ram, disk, (model, quantity, vram), micro-USD a minute: as `hf jobs
#: hardware` printed them in hub-docs of 2026-08-22.
_HARDWARE = (
    ("cpu-basic", "CPU Basic", "2 vCPU", "16 GB", "50 GB", None, 167),
    ("t4-small", "Nvidia T4 - small", "4 vCPU", "15 GB", "50 GB", ("T4", 1, 16), 6667),
    ("a10g-small", "Nvidia A10G - small", "4 vCPU", "15 GB", "110 GB", ("A10G", 1, 24), 16667),
    ("a10g-large", "Nvidia A10G - large", "12 vCPU", "46 GB", "200 GB", ("A10G", 1, 24), 25000),
    ("l4x1", "1x Nvidia L4", "8 vCPU", "30 GB", "400 GB", ("L4", 1, 24), 13333),
    ("l4x4", "4x Nvidia L4", "48 vCPU", "186 GB", "3200 GB", ("L4", 4, 96), 63333),
    ("l40sx1", "1x Nvidia L40S", "8 vCPU", "62 GB", "380 GB", ("L40S", 1, 48), 30000),
    ("l40sx8", "8x Nvidia L40S", "192 vCPU", "1534 GB", "6500 GB", ("L40S", 8, 384), 391667),
    ("a100-large", "Nvidia A100 - large", "12 vCPU", "142 GB", "1000 GB", ("A100", 1, 80), 41667),
    ("a100x4", "4x Nvidia A100", "48 vCPU", "568 GB", "4000 GB", ("A100", 4, 320), 166667),
    ("a100x8", "8x Nvidia A100", "96 vCPU", "1136 GB", "8000 GB", ("A100", 8, 640), 333333),
    ("h200", "Nvidia H200", "23 vCPU", "256 GB", "3000 GB", ("H200", 1, 141), 83333),
    ("h200x8", "Nvidia H200", "184 vCPU", "2048 GB", "24000 GB", ("H200", 8, 1128), 666667),
    ("rtx-pro-6000", "Nvidia RTX PRO 6000", "23 vCPU", "256 GB", "475 GB",
     ("RTX PRO 6000", 1, 96), 45833),
)  # fmt: skip


class Refused(Exception):
    """An answer other than 2xx."""

    def __init__(self, status: int, error: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(error)
        self.status, self.error, self.headers = status, error, dict(headers or {})


@dataclass
class Knobs:
    """Settings that a test changes. Times are in seconds."""

    scheduling_s: float = 5.0
    stays_scheduling: bool = False
    recorded_timeout: int | None = -1
    """The time-out that every new job gets and shows, whatever was asked; -1: as asked."""
    throttled_until: float = 0.0
    throttle_headers: dict[str, str] = field(default_factory=lambda: {"Retry-After": "30"})
    credits_usd: float = 100.0
    hidden: set[str] = field(default_factory=set)
    """Jobs that no list has."""
    loses_answers: int = 0
    """So many creates are carried out and answered with 502."""
    no_capacity: bool = False
    refuses_cancels: int = 0
    page: int = 100


@dataclass
class StoodJob:
    """One job. Times are epoch s; ``secrets`` are kept, and never shown."""

    id: str
    spec: dict[str, Any]
    made_at: float
    timeout_s: int | None
    limit_s: float
    runs_at: float
    stage: str = "SCHEDULING"
    message: str | None = None
    started_at: float | None = None
    finished_at: float | None = None
    ended_by: str = ""
    """exit, timeout, or api."""
    ssh: tuple[str, str, int] | None = None
    """(user, host, port) of a gateway of its own, where there is one."""
    log: list[tuple[float, str]] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.stage in TERMINAL

    @property
    def name(self) -> str:
        return str(self.spec.get("labels", {}).get("name", ""))


class Machines(Protocol):
    """Where jobs' commands run. Calls return at once."""

    def boot(self, job: StoodJob) -> None: ...

    def halt(self, job: StoodJob) -> None: ...

    def close(self) -> None: ...


class OnPaper:
    """No processes: a job runs until its time-out or a cancel."""

    def boot(self, job: StoodJob) -> None:
        pass

    def halt(self, job: StoodJob) -> None:
        pass

    def close(self) -> None:
        pass


class Hub:
    """``lock`` guards everything."""

    def __init__(self, now: Callable[[], float], machines: Machines | None = None) -> None:
        self.now, self.knobs = now, Knobs()
        self.machines: Machines = machines if machines is not None else OnPaper()
        self.lock = threading.RLock()
        self.jobs: dict[str, StoodJob] = {}
        self.hardware: dict[str, dict[str, Any]] = {row[0]: _hardware(*row) for row in _HARDWARE}
        self._numbers = itertools.count(1)

    # -- what the API does -----------------------------------------------------------------------

    def start(self, spec: dict[str, Any]) -> StoodJob:
        """Make a job; a field that is not known is ignored, as the Hub ignores ``timeout``."""
        knobs, now = self.knobs, self.now()
        flavor = spec.get("flavor", "cpu-basic")
        if flavor not in self.hardware:
            raise Refused(400, f'Invalid flavor "{flavor}"')
        command = spec.get("command")
        if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
            raise Refused(400, "command: expected an array of strings")
        if not spec.get("dockerImage") and not spec.get("spaceId"):
            raise Refused(400, "either dockerImage or spaceId is required")
        for kind in ("environment", "secrets", "labels"):
            values = spec.get(kind, {})
            if not isinstance(values, dict) or not all(
                isinstance(text, str) for text in values.values()
            ):
                raise Refused(400, f"{kind}: expected an object of strings")
        for key, value in spec.get("labels", {}).items():
            if not _LABEL.fullmatch(key) or not _LABEL.fullmatch(value):
                raise Refused(400, f"labels: {key}={value} is not allowed")
        wanted = spec.get("timeoutSeconds")
        if wanted is not None and (type(wanted) is not int or wanted <= 0):
            raise Refused(400, "timeoutSeconds: expected a positive integer")
        if knobs.credits_usd <= 0:
            raise Refused(402, "Pre-paid credit balance is insufficient")
        if knobs.no_capacity:
            raise Refused(503, f"There is no capacity for {flavor} at the moment")
        timeout = wanted if wanted is not None else DEFAULT_TIMEOUT_S
        shown: int | None = timeout
        if knobs.recorded_timeout != -1:
            shown = knobs.recorded_timeout
            timeout = shown if shown is not None else DEFAULT_TIMEOUT_S
        job = StoodJob(
            id=f"6a{next(self._numbers):022x}", spec=spec, made_at=now, timeout_s=shown,
            limit_s=float(timeout), runs_at=now + knobs.scheduling_s,
        )  # fmt: skip
        self.jobs[job.id] = job
        if knobs.loses_answers > 0:
            knobs.loses_answers -= 1
            raise Refused(502, "Bad Gateway")
        return job

    def cancel(self, job_id: str) -> StoodJob:
        job = self.find(job_id)
        if self.knobs.refuses_cancels > 0:
            self.knobs.refuses_cancels -= 1
            raise Refused(500, "Internal Server Error")
        if job.ended:
            raise Refused(400, "Job is already finished")
        self.end(job, "CANCELED", None, "api")
        return job

    def find(self, job_id: str) -> StoodJob:
        if job_id not in self.jobs:
            raise Refused(404, "Job not found")
        return self.jobs[job_id]

    def end(self, job: StoodJob, stage: str, message: str | None, by: str) -> None:
        if job.ended:
            return
        job.stage, job.message, job.ended_by, job.finished_at = stage, message, by, self.now()
        self.machines.halt(job)

    def settle(self) -> None:
        """Carry out what is due: starts, and time-outs, which count from the start."""
        now = self.now()
        for job in list(self.jobs.values()):
            if job.stage == "SCHEDULING" and not self.knobs.stays_scheduling and now >= job.runs_at:
                job.stage, job.started_at = "RUNNING", job.runs_at
                self.machines.boot(job)
            if job.started_at is None or job.stage != "RUNNING":
                continue
            if now >= job.started_at + job.limit_s:
                self.end(job, "ERROR", "Job timeout", "timeout")
                job.finished_at = job.started_at + job.limit_s

    def exited(self, job: StoodJob, code: int) -> None:
        """Its command has ended by itself."""
        stage, message = ("COMPLETED", None) if code == 0 else ("ERROR", f"Exit code {code}")
        self.end(job, stage, message, "exit")

    # -- the truth -------------------------------------------------------------------------------

    def live(self) -> list[StoodJob]:
        return [job for job in self.jobs.values() if not job.ended]

    def billed(self, job: StoodJob) -> float:
        """USD: begun minutes of its running, at its flavor's price."""
        if job.started_at is None:
            return 0.0
        until = job.finished_at if job.finished_at is not None else self.now()
        row = self.hardware[job.spec.get("flavor", "cpu-basic")]
        per_minute = row["unitCostMicroUSD"] / (1 if row["unitLabel"] == "minute" else 60)
        return ceil(max(0.0, until - job.started_at) / 60) * per_minute / 1e6

    def told(self, job: StoodJob) -> dict[str, Any]:
        """The job as the API shows it."""
        spec, now = job.spec, self.now()
        started = job.started_at
        until = job.finished_at if job.finished_at is not None else now
        status: dict[str, Any] = {"stage": job.stage, "message": job.message, "failureCount": 0}
        if spec.get("ssh", {}).get("enabled"):
            user, host, port = job.ssh or (job.id, "ssh.hf.jobs", 22)
            status["sshUrl"] = f"ssh://{user}@{host}" + (f":{port}" if port != 22 else "")
        return {
            "type": "job",
            "id": job.id,
            "createdAt": iso(job.made_at),
            "startedAt": iso(started),
            "finishedAt": iso(job.finished_at),
            "dockerImage": spec.get("dockerImage"),
            "spaceId": spec.get("spaceId"),
            "command": spec["command"],
            "arguments": spec.get("arguments", []),
            "environment": spec.get("environment", {}),
            "secrets": sorted(spec.get("secrets", {})),
            "flavor": spec.get("flavor", "cpu-basic"),
            "arch": "amd64",
            "timeoutSeconds": job.timeout_s,
            "attempts": spec.get("attempts", 1),
            "labels": spec.get("labels", {}),
            "status": status,
            "durations": {
                "schedulingSecs": int(started - job.made_at) if started is not None else None,
                "runningSecs": int(until - started) if started is not None else None,
                "totalSecs": int(until - job.made_at),
            },
            "owner": {"id": "5e9e", "name": USER, "type": "user"},
            "initiator": {"id": "5e9e", "name": USER, "type": "user"},
        }


def _hardware(
    name: str, pretty: str, cpu: str, ram: str, disk: str,
    chip: tuple[str, int, int] | None, micros: int,
) -> dict[str, Any]:  # fmt: skip
    accelerator = None
    if chip is not None:
        accelerator = {
            "type": "gpu", "model": chip[0], "quantity": str(chip[1]),
            "vram": f"{chip[2]} GB", "manufacturer": "Nvidia",
        }  # fmt: skip
    return {
        "name": name, "prettyName": pretty, "cpu": cpu, "ram": ram, "ephemeralStorage": disk,
        "accelerator": accelerator, "unitCostMicroUSD": micros, "unitCostUSD": micros / 1e6,
        "unitLabel": "minute",
    }  # fmt: skip


def iso(at: float | None) -> str | None:
    if at is None:
        return None
    text = datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
