"""Hugging Face Jobs as a ``Compute``: a job is a pod, identified by its labels.

The list of live jobs is read by our label. A job that was in it and is missing is asked for by its
id: only an ended stage, or 404, takes it off. The time-out that a job was made with is read back
before anything else is done with it; a job that has another one is cancelled.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from math import ceil, inf
from pathlib import Path

from trmcloud.adapters.pod_history import Sighting, Sightings
from trmcloud.core.catalog.torch_builds import POD_IMAGE
from trmcloud.core.contract.pod_contract import INNER_SSH_PORT, parse_pod_name
from trmcloud.core.control.observation import Bill, BootTrouble, PodSeen, PodStatus
from trmcloud.core.errors import (
    AmbiguousCreate,
    FinalRefusal,
    NotSupported,
    ProviderError,
    ProviderRefused,
)
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.text import one_line
from trmcloud.ports.compute import PodKeys, PodRequest, ProviderLimit
from trmcloud.providers.huggingface.api import (
    LABEL,
    NAME_LABEL,
    RUNNING,
    SCHEDULING,
    Hardware,
    Job,
    JobsApi,
)
from trmcloud.providers.huggingface.create import job_spec, timeout_s
from trmcloud.providers.huggingface.offers import flavors_of, hourly
from trmcloud.providers.listed import ListedCompute

HARDWARE_FRESH_S = 600.0
CANCEL_TRIES = 3
WAITS_S = 60.0
WAITS = "in SCHEDULING: it waits for a machine, at no cost"
QUANTUM_S = 60.0
"""Billing is by the minute."""
TIMEOUT_SLACK_S = 120.0
"""So much later than its hard stop a job's time-out may end it: until it was made, and its kill."""
_LOG_LINES = 20
_OURS = "trmcloud: "
"""The beginning of a line that a job's first command prints where the agent cannot be started."""
_STATUS: Mapping[str, PodStatus] = {
    SCHEDULING: PodStatus.CREATING,
    RUNNING: PodStatus.RUNNING,
    "COMPLETED": PodStatus.GONE,
    "CANCELED": PodStatus.GONE,
    "ERROR": PodStatus.GONE,
    "DELETED": PodStatus.GONE,
}
"""A stage that is not in the API's list may be anything: unknown, which counts as spending."""


class HuggingFaceCompute(ListedCompute[Job]):
    """``token`` is the account's, which no job may have; ``ssh_key`` is the file of the key for the
    gateway ('': ssh's own choice), ``known_hosts`` the file in which the gateway's own key is kept
    once it was seen (None: ssh's). ``ahead_s``: so long before its hard stop the time-out of the
    next job ends it (behind it where negative): a smoke run sets it to prove one layer after
    another."""

    list_fresh_s = 2.0
    untold_wait_s = 5.0
    not_ours = "{pod_id} has the name {name!r}: not a job of trmcloud"
    if_yours = "if it is yours: hf jobs cancel {pod_id}"

    def __init__(
        self,
        api: JobsApi,
        keys: Callable[[str], PodKeys],
        payload: Callable[[], bytes],
        *,
        token: str,
        now: Callable[[], float] = time.time,
        sightings: Sightings | None = None,
        image: str = POD_IMAGE,
        environment: Mapping[str, str] | None = None,
        ssh_key: str = "",
        known_hosts: Path | None = None,
    ) -> None:
        super().__init__(
            keys, payload, image=image, environment=environment, sightings=sightings, now=now,
            sleep=api.http.sleep,
        )  # fmt: skip
        self._api, self._token = api, token
        self._ssh_key, self._known_hosts = ssh_key, known_hosts
        self.ahead_s = 0.0
        self._ended: dict[str, tuple[Job, str]] = {}
        self._refused: dict[str, str] = {}
        self._hardware: tuple[float, Sequence[Hardware]] = (-inf, ())

    # -- Compute ---------------------------------------------------------------------------------

    def _create(self, request: PodRequest) -> str:
        if request.nodes > 1 or request.spot or request.volume or request.volume_gb:
            raise NotSupported(
                "a job is one machine on demand, with a disk that ends with it",
                next_step="leave out --spot, --volume and a number of machines",
            )
        with self._lock:
            for job in self._pods.read_before_create():
                if job.name == request.name:
                    # Made by a create whose answer was lost: its time-out was never read.
                    stop_at = request.latest_stop_at - self.ahead_s
                    self._require_timeout(job, timeout_s(stop_at, job.made_at or self._now()))
                    return job.id
            flavor = self._flavor(request)
            timeout = timeout_s(request.latest_stop_at - self.ahead_s, self._now())
            spec = job_spec(
                request, flavor.name, self._keys, self._payload(), self._image,
                self._environment, token=self._token, timeout=timeout,
            )  # fmt: skip
            request.require_wanted()
            try:
                job = self._api.create(spec)
            finally:
                self._pods.forget()
            self._note(job, self._now(), request.rate)
            self._require_timeout(job, timeout, slack_s=0.0)
            return job.id

    def _flavor(self, request: PodRequest) -> Hardware:
        """The dearest flavor of this hardware that the rate covers, by the prices of now."""
        found = flavors_of(request.sku, request.gpus, self._prices(fresh=True))
        if not found:
            raise NotSupported(
                f"Hugging Face lists no {request.gpus}x {request.sku} now",
                next_step="trmcloud plan --provider huggingface shows what it lists",
            )
        fits = [each for rate, each in found if rate <= request.rate]
        if not fits:
            raise ProviderRefused(
                f"{found[-1][1].name} costs {found[-1][0]}/h now; {request.rate}/h was planned",
                next_step="trmcloud prices refresh, then plan again",
            )
        roomy = [each for each in fits if each.disk_gb is None or each.disk_gb >= request.disk_gb]
        if not roomy:
            raise NotSupported(
                f"{request.disk_gb} GB of disk are needed; {fits[0].name} has {fits[0].disk_gb} GB",
                next_step="use more GPUs, or keep checkpoints in a --bucket",
            )
        return roomy[0]

    def _require_timeout(
        self, job: Job, wanted_s: int, *, slack_s: float = TIMEOUT_SLACK_S
    ) -> None:
        """See that the platform has the time-out on record, within ``slack_s``, by a second look
        where the answer to the create does not say.

        Raises:
            FinalRefusal: it has another; the job was cancelled.
            AmbiguousCreate: likewise, and it could not be cancelled.
        """
        seen = job.timeout_s
        if seen is None:
            try:
                again = self._api.job(job.id)
            except ProviderError:
                again = None
            seen = again.timeout_s if again is not None else None
        if seen is not None and abs(seen - wanted_s) <= slack_s:
            return
        said = "none" if seen is None else f"{seen} s"
        what = f"a job was made with a time-out of {said}, not the {wanted_s} s asked for"
        self._refused[job.id] = f"{what}: it was cancelled"
        for tries_left in reversed(range(CANCEL_TRIES)):
            try:
                self._api.cancel(job.id)
                break
            except ProviderError as error:
                if not tries_left:
                    raise AmbiguousCreate(
                        f"{what}, and could not be cancelled: {error.what}",
                        where=error.where,
                        next_step=f"hf jobs cancel {job.id}",
                    ) from None
                self._sleep(1.0)
        raise FinalRefusal(
            f"{what}: it was cancelled",
            where=f"job {job.id}",
            next_step="report it: the platform would not end this job at its limit",
        )

    def list_pods(self) -> Sequence[PodSeen]:
        with self._lock:
            live = [self._pod_seen(job) for job in self._list()]
            known = {pod.pod_id for pod in live}
            ended = [self._gone(*each) for id_, each in self._ended.items() if id_ not in known]
        return (*live, *ended)

    # -- beyond Compute --------------------------------------------------------------------------

    def cross_listed(self) -> Sequence[PodSeen]:
        """Jobs of ours in the list of all live jobs, which is not filtered by a label."""
        known = {pod.pod_id for pod in self.list_pods()}
        found = (job for job in self._api.jobs() if parse_pod_name(job.name) is not None)
        return tuple(self._pod_seen(job) for job in found if job.id not in known)

    def boot_trouble(self, pod_id: str) -> BootTrouble | None:
        """Return the platform's message of a job that waits, or that it has waited for a minute;
        never
        fatal: the boot deadline ends it."""
        job = next((job for job in self._known() if job.id == pod_id), None)
        if job is None or job.stage != SCHEDULING:
            return None
        if job.message:
            return BootTrouble(self._api.http.clean(job.message))
        has_waited = job.made_at is not None and self._now() - job.made_at >= WAITS_S
        return BootTrouble(WAITS) if has_waited else None

    def require_account(self, rate: Usd) -> None:
        """
        Raises:
            AuthError, ProviderError: the token is wrong, or may not list jobs. No API
                shows credits: a create without them is refused with 402.
        """
        self._list(fresh=True)

    def own_limits(self, pod_name: str) -> Sequence[ProviderLimit]:
        """The job's time-out, as it was read back."""
        job = self._named(pod_name)
        name = parse_pod_name(pod_name)
        if job is None or name is None:
            return ()
        if job.timeout_s is None:
            return (
                ProviderLimit("timeout", False, "the platform does not say which one the job has"),
            )
        late_s = (job.made_at or name.hard_stop_at) + job.timeout_s - name.hard_stop_at
        detail = f"the platform ends the job after {job.timeout_s} s, by its documentation"
        if job.made_at is not None and late_s > TIMEOUT_SLACK_S:
            return (
                ProviderLimit("timeout", False, f"{detail}: {late_s:.0f} s past its hard stop"),
            )
        return (ProviderLimit("timeout", True, f"{detail}; read back"),)

    def ended_by_timeout(self, pod_name: str) -> str:
        """Return the platform's message of a job that its time-out ended; '' for any other."""
        with self._lock:
            jobs = [job for job, _ in self._ended.values() if job.name == pod_name]
        for job in jobs:
            if job.stage == "ERROR" and "timeout" in job.message.casefold().replace("-", ""):
                said = self._api.http.clean(job.message)
                return f"the platform ended the job with {said!r} after its {job.timeout_s} s"
        return ""

    def exit_record(self, pod_name: str) -> str:
        """The record of its own end that a job leaves as ``pod.agent.terminate`` writes one, by the
        platform's record: COMPLETED is a command that ended by itself, with 0. '' of any other."""
        with self._lock:
            jobs = [job for job, _ in self._ended.values() if job.name == pod_name]
        if not any(job.stage == "COMPLETED" for job in jobs):
            return ""
        return json.dumps({"attempts": [{"way": "exit", "ok": None, "code": 0}]})

    def by_hand(self, pod_name: str) -> Sequence[str]:
        job = self._named(pod_name)
        if job is None:
            return (f"hf jobs ps --filter label={NAME_LABEL}={pod_name}",)
        return (f"hf jobs inspect {job.id}", f"hf jobs cancel {job.id}")

    def address_of(self, pod_name: str) -> tuple[str, int] | None:
        """Where the job's own SSH server listens inside it; None until the gateway has a way."""
        job = self._named(pod_name)
        there = job is not None and job.stage == RUNNING and job.ssh is not None
        return ("127.0.0.1", INNER_SSH_PORT) if there else None

    def way_to(self, pod_name: str) -> str:
        """ssh's ProxyCommand through the gateway. The job's own server is pinned: the gateway
        forwards bytes that it cannot read."""
        job = self._named(pod_name)
        if job is None or job.ssh is None:
            return ""
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": "10",
            "ControlMaster": "no",
            "ControlPath": "none",
            "ForwardAgent": "no",
            "ForwardX11": "no",
            "LogLevel": "ERROR",
            "PermitLocalCommand": "no",
            "ServerAliveInterval": "5",
            "ServerAliveCountMax": "3",
            "StrictHostKeyChecking": "accept-new",
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        if self._known_hosts is not None:
            words += ["-o", f"UserKnownHostsFile={self._known_hosts}"]
        if self._ssh_key:
            words += ["-o", "IdentitiesOnly=yes", "-i", self._ssh_key]
        words += ["-p", str(job.ssh.port)]
        command = shlex.join(["ssh", *words])
        # ssh expands % in the whole command; the two that it is to expand come last.
        return f"{command.replace('%', '%%')} -W %h:%p {job.ssh.user}@{job.ssh.host}"

    # -- how -------------------------------------------------------------------------------------

    def _named(self, pod_name: str) -> Job | None:
        return next((job for job in self._known() if job.name == pod_name), None)

    def _known(self) -> list[Job]:
        """The live jobs, by the last list where a new one cannot be read."""
        with self._lock:
            try:
                return self._list()
            except ProviderError:
                return self._pods.rows

    def _end(self, pod_id: str) -> bool:
        return self._api.cancel(pod_id)

    def _unlisted(self, name: str) -> list[Sighting]:
        return [sighting for sighting in self._seen.named(name) if sighting.gone_at is None]

    def expect(self, pod_id: str) -> None:
        self._seen.expect(pod_id)

    def _look(self) -> list[Job]:
        """The live jobs: those of the list, and those that it lacks and that live all the same."""
        live = {job.id: job for job in self._api.jobs(labels={LABEL: "pod"})}
        at = self._now()
        for pod_id in self._seen.unlisted(live):
            job = self._api.job(pod_id)
            if job is not None and job.ended:
                self._ended[job.id] = (job, self._why_ended(job))
            elif job is not None:
                live[job.id] = job
        for job in live.values():
            self._ended.pop(job.id, None)
            self._note(job, at, None)
        self._seen.missed(live, at)
        return list(live.values())

    def _why_ended(self, job: Job) -> str:
        """Why a job came to nothing: that it was refused here, its status message where it never
        started, or what its first command has printed; '' where it did its work."""
        if job.id in self._refused:
            return self._refused[job.id]
        if job.started_at is None:
            return one_line(job.message)[:200] or f"{job.stage} before it started"
        if job.stage != "ERROR":
            return ""
        try:
            lines = self._api.log(job.id, _LOG_LINES)
        except ProviderError:
            return ""
        ours = [line for line in lines if line.startswith(_OURS)]
        return self._api.http.clean(ours[-1].removeprefix(_OURS))[:200] if ours else ""

    def _note(self, job: Job, at: float, rate: Usd | None) -> None:
        old = self._seen.get(job.id)
        known = self._rate_of(job) or rate
        if known is None and old is not None:
            known = old.rate
        self._seen.alive(
            job.id, job.name, rate=known, disk_gb=0, made_at=job.made_at,
            started_at=job.started_at, at=at,
        )  # fmt: skip

    def _rate_of(self, job: Job) -> Usd | None:
        """USD/h of the job's flavor in the hardware list; None where it is not in it."""
        try:
            listed = self._prices()
        except ProviderError:
            return None
        return next((hourly(each) for each in listed if each.name == job.flavor), None)

    def _prices(self, *, fresh: bool = False) -> Sequence[Hardware]:
        read_at, listed = self._hardware
        if fresh or not 0 <= self._now() - read_at < HARDWARE_FRESH_S:
            listed = self._api.hardware()
            self._hardware = (self._now(), listed)
        return listed

    def _pod_seen(self, job: Job) -> PodSeen:
        sighting = self._seen.get(job.id)
        rate = self._rate_of(job) or (sighting.rate if sighting is not None else ZERO)
        return PodSeen(
            pod_id=job.id,
            name=job.name,
            status=_STATUS.get(job.stage, PodStatus.UNKNOWN),
            rate=rate,
            host=job.ssh.host if job.ssh is not None else "",
            port=job.ssh.port if job.ssh is not None else 0,
            made_at=job.made_at,
        )

    def _gone(self, job: Job, why: str) -> PodSeen:
        sighting = self._seen.get(job.id)
        rate = sighting.rate if sighting is not None and job.started_at is not None else ZERO
        return PodSeen(
            pod_id=job.id, name=job.name, status=PodStatus.GONE, rate=rate,
            ended_at=job.finished_at, made_at=job.made_at, never_made=why,
        )  # fmt: skip

    def _bill_of(self, pod_id: str) -> Bill | None:
        """Rate × the minutes that the platform says a job ran, begun ones whole; final once it has
        ended. There is no record of what was charged: see docs/decisions/0067."""
        sighting = self._seen.get(pod_id)
        ended = self._ended.get(pod_id)
        job = ended[0] if ended is not None else self._api.job(pod_id)
        if job is None:
            if sighting is None or sighting.made_at is None:
                return None
            until = sighting.gone_at if sighting.gone_at is not None else self._now()
            ran_s, final = until - sighting.made_at, sighting.gone_at is not None
        else:
            ran_s, final = _ran_s(job, self._now()), job.ended
        rate = sighting.rate if sighting is not None else ZERO
        if not rate and job is not None:
            rate = self._rate_of(job) or ZERO
        minutes = ceil(max(0.0, ran_s) / QUANTUM_S)
        return Bill(pod_id, cost(rate, minutes * QUANTUM_S), final)


def _ran_s(job: Job, now: float) -> float:
    """Seconds for which a job ran, the longer of two accounts; 0 for one that never started: what
    waits for a machine is not billed."""
    if job.started_at is None:
        return job.running_s or 0.0
    finished_at = job.finished_at
    if finished_at is None:
        finished_at = job.started_at + (job.running_s or 0.0) if job.ended else now
    return max(job.running_s or 0.0, finished_at - job.started_at)
