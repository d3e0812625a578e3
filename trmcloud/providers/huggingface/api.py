"""The Jobs API of the Hub, with our errors; and its records, as far as they are read.

    what is answered to a create                what it means here
    2xx and a job                               the job
    400, 503 or 507 with a text of no capacity  NoCapacity: the next candidate
    any other 4xx                               as ``http`` says: PaymentRequired (402), AuthError …
    429                                         ThrottledError: nothing was made
    5xx, 408, silence, 2xx that cannot be read  AmbiguousCreate: a job may exist, and cost
    no connection at all                        ProviderError: nothing was asked

A create is sent once and never again: its job is looked for by the label that names it. What
identifies a job must be right, since one that cannot be identified could be ours; all the rest is
None where it is not what ``huggingface_hub`` 2.4.0 and ``@huggingface/hub`` read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlsplit

from trmcloud.adapters.request_budget import Priority
from trmcloud.core.errors import AmbiguousCreate, NoCapacity, ProviderError
from trmcloud.core.values import Value
from trmcloud.ports.compute import ThrottledError, TransientError
from trmcloud.providers.client import CREATE_S, NotThere
from trmcloud.providers.huggingface.http import Http

SCHEDULING, RUNNING = "SCHEDULING", "RUNNING"
LIVE = (SCHEDULING, RUNNING)
ENDED = ("COMPLETED", "CANCELED", "ERROR", "DELETED")
LABEL, NAME_LABEL = "trmcloud", "name"
"""The label that every job of ours bears, and that of its name, which the Hub's pages show."""
MOST_PAGES = 20
LIST_S = 60.0
NO_CAPACITY = ("no capacity", "not enough capacity", "out of capacity", "no available", "sold out")
"""Texts of refusals that mean that nothing was made; lower case, any part of the detail."""
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HOST = re.compile(r"[A-Za-z0-9.-]{1,253}")


class SshAddress(Value):
    """The gateway's address for one job."""

    user: str
    host: str
    port: int


class Job(Value):
    """``timeout_s`` is the time-out that the platform has on record, None where it does not say;
    instants are epoch seconds, durations seconds."""

    id: str
    stage: str
    message: str
    labels: Mapping[str, str]
    flavor: str
    timeout_s: int | None
    made_at: float | None
    started_at: float | None
    finished_at: float | None
    running_s: float | None
    ssh: SshAddress | None

    @property
    def name(self) -> str:
        return self.labels.get(NAME_LABEL, "")

    @property
    def ended(self) -> bool:
        return self.stage in ENDED


class Hardware(Value):
    """One flavor. ``micros`` is the price of one ``unit`` in micro-dollars; ``gpus`` is 0 of a CPU
    machine; ``disk_gb`` is None where it does not say."""

    name: str
    model: str
    gpus: int
    micros: int
    unit: str
    disk_gb: int | None
    vcpus: int
    ram_gb: float


class JobsApi:
    """The jobs of ``namespace``; of the token's user where that is empty, who is asked for once."""

    def __init__(self, http: Http, namespace: str = "") -> None:
        self.http = http
        self._namespace = namespace

    def namespace(self) -> str:
        """
        Raises:
            ProviderError: the token's user cannot be read.
        """
        if not self._namespace:
            url = f"{self.http.base}/api/whoami-v2"
            data = self.http.read(url).data
            name = data.get("name") if isinstance(data, dict) else None
            if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9._-]{1,96}", name):
                raise _odd("whoami-v2 without a name", self.http.where("GET", url))
            self._namespace = name
        return self._namespace

    def hardware(self, once_within_s: float | None = None) -> list[Hardware]:
        """Every flavor; no token is needed. With ``once_within_s`` it is asked for once: dated
        prices take its place."""
        url = f"{self.http.base}/api/jobs/hardware"
        if once_within_s is None:
            answer = self.http.read(url)
        else:
            answer = self.http.once("GET", url, timeout_s=once_within_s)
        return read_hardware(answer.data, self.http.where("GET", url))

    def jobs(
        self, *, labels: Mapping[str, str] | None = None, stages: Sequence[str] = LIVE
    ) -> list[Job]:
        """Jobs in one of ``stages`` that bear all ``labels``, page by page.

        Raises:
            ProviderError: the list could not be read to its end. A part of it is no list: a job
                that is missing from one counts as gone.
        """
        url, where = self._url(), ""
        params = [("stage", stage) for stage in stages]
        params += [("label", f"{key}={value}") for key, value in (labels or {}).items()]
        found: dict[str, Job] = {}
        began_at, seen = self.http.now(), set[str]()
        answer = self.http.read(url, params, priority=Priority.LIST)
        for _ in range(MOST_PAGES):
            where = self.http.where("GET", url)
            if not isinstance(answer.data, list):
                raise _odd("a list of jobs", where)
            found |= {job.id: job for job in (read_job(row, where) for row in answer.data)}
            if not answer.next_url:
                return [job for job in found.values() if job.stage in stages or not job.ended]
            if answer.next_url in seen:
                raise _odd("a list whose pages repeat", where)
            if not 0 <= self.http.now() - began_at < LIST_S:
                raise _odd(f"a list that was not read within {LIST_S:.0f} s", where)
            seen.add(answer.next_url)
            answer = self.http.read(answer.next_url, priority=Priority.LIST)
        raise _odd(f"a list of more than {MOST_PAGES} pages", where)

    def job(self, job_id: str) -> Job | None:
        """None where the namespace has no such job."""
        url = self._url(job_id)
        try:
            data = self.http.read(url, priority=Priority.LIST).data
            return read_job(data, self.http.where("GET", url))
        except NotThere:
            return None

    def create(self, spec: Mapping[str, Any]) -> Job:
        """See this module's table.

        Raises:
            NoCapacity, ProviderRefused, AmbiguousCreate, ProviderError
        """
        url = self._url()
        where = self.http.where("POST", url)
        try:
            answer = self.http.once("POST", url, dict(spec), CREATE_S)
        except ThrottledError:
            raise
        except TransientError as error:
            if any(text in error.what.casefold() for text in NO_CAPACITY):
                raise _no_capacity(error, where) from None
            if not error.sent:
                raise ProviderError(error.what, where=where, next_step=error.next_step) from None
            raise _ambiguous(error.what, where) from None
        except ProviderError as error:
            if type(error) is ProviderError:
                raise _ambiguous(error.what, where) from None
            if any(text in error.what.casefold() for text in NO_CAPACITY):
                raise _no_capacity(error, where) from None
            raise
        try:
            return read_job(answer.data, where)
        except ProviderError as error:
            raise _ambiguous(error.what, where) from None

    def cancel(self, job_id: str) -> bool:
        """Whether the platform took it; False where it knows no such job, which proves nothing.

        Raises:
            ProviderError: it did not, and the job has not ended.
        """
        try:
            self.http.once("POST", f"{self._url(job_id)}/cancel", priority=Priority.END)
            return True
        except NotThere:
            return False
        except ProviderError:
            job = self.job(job_id)
            if job is not None and job.ended:
                return True
            raise

    def log(self, job_id: str, tail: int) -> list[str]:
        """The newest lines of the job's log."""
        events = self.http.read_events(f"{self._url(job_id)}/logs", (("tail", str(tail)),))
        lines = [str(event.get("data", "")) for event in events if isinstance(event, dict)]
        return [line for line in lines if not line.startswith("===== Job started")]

    def _url(self, job_id: str = "") -> str:
        url = f"{self.http.base}/api/jobs/{quote(self.namespace(), safe='')}"
        return f"{url}/{quote(job_id, safe='')}" if job_id else url


# -- records ------------------------------------------------------------


def read_job(data: Any, where: str) -> Job:
    """
    Raises:
        ProviderError: it is no job, or one that cannot be identified.
    """
    status = data.get("status") if isinstance(data, dict) else None
    stage = status.get("stage") if isinstance(status, dict) else None
    if not isinstance(data, dict) or not isinstance(status, dict) or not isinstance(stage, str):
        raise _odd("a job without a stage", where)
    job_id = data.get("id")
    if not isinstance(job_id, str) or not _ID.fullmatch(job_id):
        raise _odd("a job without an id", where)
    labels = data.get("labels")
    durations = data.get("durations")
    timeout = data.get("timeoutSeconds")
    return Job(
        id=job_id,
        stage=stage,
        message=str(status.get("message") or ""),
        labels={str(key): str(value) for key, value in labels.items()}
        if isinstance(labels, dict)
        else {},
        flavor=str(data.get("flavor") or ""),
        timeout_s=timeout if type(timeout) is int else None,
        made_at=_instant(data.get("createdAt")),
        started_at=_instant(data.get("startedAt")),
        finished_at=_instant(data.get("finishedAt")),
        running_s=_seconds(durations.get("runningSecs")) if isinstance(durations, dict) else None,
        ssh=_ssh(status.get("sshUrl")),
    )


def read_hardware(data: Any, where: str) -> list[Hardware]:
    """Every flavor that can be read; one of a form that is not known is left out.

    Raises:
        ProviderError: it is no list.
    """
    if not isinstance(data, list):
        raise _odd("a list of hardware", where)
    found = []
    for row in data:
        if not isinstance(row, dict):
            continue
        chip = row.get("accelerator")
        chip = chip if isinstance(chip, dict) else {}
        micros, count = row.get("unitCostMicroUSD"), _leading(chip.get("quantity"))
        if type(micros) is not int or not 0 < micros < 10**10 or (chip and count is None):
            continue
        found.append(
            Hardware(
                name=str(row.get("name") or ""),
                model=str(chip.get("model") or ""),
                gpus=int(count or 0),
                micros=micros,
                unit=str(row.get("unitLabel") or ""),
                disk_gb=_whole(_leading(row.get("ephemeralStorage"))),
                vcpus=int(_leading(row.get("cpu")) or 0),
                ram_gb=_leading(row.get("ram")) or 0.0,
            )
        )
    return found


def _ssh(url: Any) -> SshAddress | None:
    """``ssh://JOB@ssh.hf.jobs``; None of anything that ssh could take for an option."""
    if not isinstance(url, str):
        return None
    try:
        parts = urlsplit(url)
        user, host, port = parts.username or "", parts.hostname or "", parts.port or 22
    except ValueError:
        return None
    if parts.scheme != "ssh" or not _ID.fullmatch(user) or not _HOST.fullmatch(host):
        return None
    return None if user.startswith("-") or host.startswith("-") else SshAddress(user, host, port)


def _instant(text: Any) -> float | None:
    if not isinstance(text, str):
        return None
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return at.timestamp() if at.tzinfo is not None else None


def _seconds(value: Any) -> float | None:
    is_number = type(value) in (int, float)
    return float(value) if is_number and 0 <= value < 1e9 else None


def _leading(text: Any) -> float | None:
    """The number that a text such as ``8 vCPU`` or ``80 GB`` begins with."""
    match = re.match(r"\s*([0-9]{1,7}(?:\.[0-9]{1,3})?)", str(text)) if text is not None else None
    return float(match.group(1)) if match else None


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None else None


def _odd(what: str, where: str) -> ProviderError:
    return ProviderError(
        f"Hugging Face's answer has an unexpected form: {what}",
        where=where,
        next_step="try again; if this happens again, the API has changed",
    )


def _ambiguous(why: str, where: str) -> AmbiguousCreate:
    return AmbiguousCreate(
        f"Hugging Face may have made a job anyway: {why}",
        where=where,
        next_step="nothing to do: it will be found by its label",
    )


def _no_capacity(error: ProviderError, where: str) -> NoCapacity:
    return NoCapacity(
        f"Hugging Face has no free machine: {error.what}",
        where=where,
        next_step="use the next best offer, or other hardware with trmcloud plan",
    )
