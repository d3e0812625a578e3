"""The roles the outside world plays. Adapters fill them; ``wiring`` chooses which."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from trmcloud.core.errors import ProviderRefused

if TYPE_CHECKING:
    from pathlib import Path

    from trmcloud.core import events as ev
    from trmcloud.core.bucket import Grants
    from trmcloud.core.budget import LedgerState
    from trmcloud.core.clock import Instant
    from trmcloud.core.errors import LinkError, TrmcloudError
    from trmcloud.core.manifest import CheckpointManifest
    from trmcloud.core.money import Usd
    from trmcloud.core.observation import Bill, PodSeen
    from trmcloud.core.pod_contract import AgentReport, Heartbeat, Kept, Lease, Orders, PhaseJob


class Clock(Protocol):
    def now(self) -> Instant: ...

    def sleep(self, seconds: float) -> None: ...


@dataclass(frozen=True)
class ControllerId:
    """A process that drives runs: where it lives, and how to tell it from a later one."""

    host: str
    pid: int
    pid_started: str


@dataclass(frozen=True)
class Driver:
    """Who drives a run now; ``beat_at`` is when it last said so."""

    epoch: int
    controller: ControllerId | None
    beat_at: float


class Ledger(Protocol):
    """The one record of money and runs. Every write is durable before it returns.

    All methods may raise ``LedgerLocked``, ``LedgerDamaged`` or ``LedgerTooNew``.
    """

    @property
    def ledger_id(self) -> str: ...

    def read(self) -> LedgerState: ...

    def records(self, run_id: str | None = None) -> Sequence[ev.Record]: ...

    def driver(self, run_id: str) -> Driver | None: ...

    def open_run(
        self, run_id: str, planned: ev.RunPlanned, amount: Usd, who: ControllerId, at: float
    ) -> int:
        """Under the ledger's lock: check every budget, append plan and reservation, become the
        run's driver. Returns the epoch.

        Raises:
            BudgetRefused: a level lacks the money; nothing was written.
            ConflictError: the run exists.
        """

    def reopen_run(
        self,
        run_id: str,
        cap: Usd,
        amount: Usd,
        who: ControllerId,
        at: float,
        *,
        errand: Mapping[str, Any] | None = None,
    ) -> int:
        """Likewise for a closed run that goes on: ``Reopened`` and ``Reserved``."""

    def take_over(self, run_id: str, who: ControllerId, at: float) -> int:
        """Become the run's driver under a new epoch; whoever drove it before can write no more."""

    def release(self, run_id: str, epoch: int) -> None:
        """Stop driving; the next command may take over at once."""

    def beat(self, run_id: str, epoch: int, at: float) -> None: ...

    def append(self, run_id: str, epoch: int, events: Sequence[ev.RunEvent], at: float) -> None:
        """Append in one transaction, if ``epoch`` is still the run's newest.

        Raises:
            StaleEpoch: another controller took over; nothing was written.
            IllegalTransition: an event that cannot happen; nothing was written.
        """

    def request(self, run_id: str, event: ev.RunEvent, at: float) -> None:
        """Append a user's wish (stop, fetched) without becoming the driver."""

    def set_cap(self, event: ev.CapSet, at: float) -> None: ...

    def verify_layer(self, event: ev.LayerVerified, at: float) -> None:
        """Record that a kill layer was seen to work for this account."""

    def note(self, event: ev.Note, at: float) -> None:
        """Record what was found out about pods that no run owns.

        Raises:
            IllegalTransition: somebody else has noted it already; nothing was written.
        """

    def accept_restored(self, at: float) -> bool:
        """Go on from an older copy of this ledger; nothing is reserved until it is reconciled.

        False where it is no older copy: nothing was written.
        """


MIN_CUDA = "12.8"
"""What the trainer's pinned torch is built for."""


@dataclass(frozen=True)
class PodRequest:
    """All a provider needs to make one pod, and all the pod's agent needs to start.

    ``region`` is the seller's data centre ("": any). ``disk_gb`` is the pod's own disk.
    ``volume`` is the id of a network volume that outlives the pod; without one, ``volume_gb`` is
    the size of the one to be found or made there (0: none). ``community`` allows hosts that nobody
    vouches for. ``min_cuda`` is the oldest CUDA version the host's driver may support. ``check`` is
    what the agent must find before it trains, as JSON. ``send_by`` is the epoch second after which
    the create must not be sent any more.
    """

    name: str
    sku: str
    gpus: int
    rate: Usd
    lease: Lease
    jobs: tuple[PhaseJob, ...]
    region: str = ""
    disk_gb: int = 50
    volume: str = ""
    community: bool = False
    min_cuda: str = MIN_CUDA
    check: Mapping[str, Any] = field(default_factory=dict)
    volume_gb: int = 0
    send_by: float = math.inf

    def require_timely(self, now: float) -> None:
        """To be asked at the last instant before a create is sent.

        Raises:
            ProviderRefused: whoever asks for the pod has slept; nothing was sent.
        """
        if now > self.send_by:
            late_s = now - self.send_by
            raise ProviderRefused(f"the request for it came {late_s:.0f} s too late to be sent")


@dataclass(frozen=True)
class PodKeys:
    """SSH keys of one pod: its own host key, and the one key that may log in.

    ``host_private`` is an OpenSSH private key; the public ones are single lines. The host's private
    key is the pod's own and opens nothing else.
    """

    host_private: str = field(repr=False)
    host_public: str
    user_public: str


Progress = Callable[[int, int], None]
"""Told (bytes done, bytes in all) as a copy goes on; raises where the copy is not wanted."""


class Compute(Protocol):
    """Whoever rents machines. Provider words stop here."""

    def create(self, request: PodRequest) -> str:
        """Make the pod and start its agent; returns its id. The name is unique, so a second call
        with it makes no second pod.

        Raises:
            NoCapacity: nothing was made.
            AmbiguousCreate: something may have been made.
        """

    def list_pods(self) -> Sequence[PodSeen]: ...

    def terminate(self, pod_id: str) -> bool:
        """End the pod; no error where it is gone already.

        Whether the provider took it: False where it knows no such pod, which proves nothing.
        """

    def bill(self, pod_id: str) -> Bill | None: ...


@runtime_checkable
class Account(Protocol):
    """A ``Compute`` with an account behind it, which may lack a key, a right or money."""

    def require_account(self, rate: Usd) -> None:
        """See, before anything is reserved, that it could rent for ``rate`` an hour.

        Raises:
            AuthError, PaymentRequired: it could not. ProviderError: it cannot be asked.
        """


@dataclass(frozen=True)
class OwnLimit:
    """A kill layer of the provider's own on one pod; ``layer`` is its name in the traits."""

    layer: str
    armed: bool
    detail: str


@runtime_checkable
class Limiting(Protocol):
    """A ``Compute`` that can tell which of the provider's own limits stand on a pod."""

    def own_limits(self, pod_name: str) -> Sequence[OwnLimit]:
        """By the newest list; asks nothing."""


@runtime_checkable
class CrossListing(Protocol):
    """A ``Compute`` whose provider can be asked for its pods in a second way."""

    def cross_listed(self) -> Sequence[PodSeen]:
        """Pods of the second list that the first one omits."""


@dataclass(frozen=True)
class StageItem:
    """Files that a pod needs before it trains, in a folder there that their content names.

    ``local`` is a file, or the folder that ``sha256``'s names (relative, with /) are in; ``remote``
    is the folder they go to, as an absolute path below the pod's root. Only what ``sha256`` names
    is sent. The same ``remote`` always means the same content.
    """

    local: Path
    remote: str
    sha256: Mapping[str, str]


class PodLink(Protocol):
    """Words and files to and from one pod. Bytes and seconds only: what they are worth is decided
    elsewhere.

    All but ``report`` may raise ``LinkError``.
    """

    def report(self, pod_name: str) -> AgentReport | None:
        """What the agent last said; None where it cannot be asked now, or has said nothing."""

    def send_orders(self, pod_name: str, orders: Orders) -> None: ...

    def stage(
        self, pod_name: str, items: Sequence[StageItem], progress: Callable[[int, int], None]
    ) -> None:
        """Bring every item to the pod, verified there, and say so to its agent at the end.

        What an earlier call has brought is not sent again. ``progress`` is called with bytes done
        and bytes in all.
        """

    def pull(
        self,
        pod_name: str,
        run_id: str,
        manifest: CheckpointManifest,
        names: Sequence[str],
        progress: Callable[[int, int], None],
    ) -> None:
        """Bring files of a checkpoint to where this machine keeps the run's, every hash verified.

        Goes on with what an interrupted call left; the manifest is written last.

        Raises:
            CheckpointError: a file is missing, a link, too large, or not what its hash says.
            DoesNotFit: too little room here.
        """

    def manifest(self, pod_name: str, run_id: str, kept: Kept) -> CheckpointManifest:
        """The manifest of a checkpoint that the pod's agent has told of.

        Raises:
            CheckpointError: it is not there any more, or is not one, or another one.
        """


@runtime_checkable
class TroubledLink(Protocol):
    """A ``PodLink`` that can say why a pod does not answer."""

    def trouble(self, pod_name: str) -> LinkError | None:
        """Why the pod could not be asked last time; None where it could. Asks nothing."""


@runtime_checkable
class HearingLink(Protocol):
    """A ``PodLink`` to machines whose disk an earlier one may have had."""

    def left_behind(self, pod_name: str, earlier: str) -> AgentReport | None:
        """What the agent of an ``earlier`` pod said last; None where there is no word of it.

        Raises:
            LinkError: the pod is out of reach.
        """


@runtime_checkable
class DeletingLink(Protocol):
    """A ``PodLink`` to a machine on which checkpoints can be deleted."""

    def delete(self, pod_name: str, run_id: str, manifest: CheckpointManifest) -> None:
        """Delete a checkpoint there, its manifest first; no error where it is gone already.

        Raises:
            LinkError: it could not be deleted, or the pod is out of reach.
        """


@runtime_checkable
class GrantingLink(Protocol):
    """A ``PodLink`` to a machine that may upload by itself."""

    def grant(self, pod_name: str, text: str) -> None:
        """Give the pod its ``grants.json``, for its own user's eyes alone.

        Raises:
            LinkError: the pod is out of reach.
        """


@dataclass(frozen=True)
class Stored:
    """A checkpoint that is whole in a bucket; ``at`` is the folder of its objects there. The other
    two are its manifest's own size and SHA-256."""

    manifest: CheckpointManifest
    at: str
    text_bytes: int = 0
    text_sha256: str = ""


@dataclass(frozen=True)
class Shelf:
    """What a bucket holds of a run. ``half``: (where, why) of what is no whole checkpoint."""

    whole: tuple[Stored, ...] = ()
    half: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class GrantRequest:
    """``phases``: how many best each keeps. ``folders`` are what the pod is to fetch, and
    ``go_on_from`` checkpoints with the folder there that each goes to. ``until`` is the epoch
    second at which nothing may be uploaded any more."""

    run_id: str
    pod_name: str
    generation: int
    phases: Mapping[str, int]
    until: float
    folders: Sequence[StageItem] = ()
    go_on_from: Sequence[tuple[Stored, str]] = ()


class Bucket(Protocol):
    """Where checkpoints survive without a pod or this machine.

    All may raise ``AuthError``, ``NotFoundError`` (no such bucket), ``ProviderError``.
    """

    def check(self) -> None:
        """See, before anything is reserved, that it can be written, read and deleted in."""

    def claim(self, run_id: str, ledger_id: str) -> None:
        """Mark the run's folder as this ledger's, once.

        Raises:
            ConflictError: it is another ledger's.
        """

    def grant(self, request: GrantRequest) -> Grants:
        """Everything a pod may write and read there, as requests signed one by one.

        Raises:
            NotSupported: this store takes no presigned requests.
        """

    def checkpoints(self, run_id: str) -> Shelf: ...

    def fetch(
        self,
        stored: Stored,
        names: Sequence[str],
        target: Path,
        progress: Callable[[int, int], None],
    ) -> None:
        """Bring files of a checkpoint into ``target``, resuming what is there, every hash
        verified. Its manifest is the caller's to write.

        Raises:
            CheckpointError: an object is missing, of another size, or not what its hash says.
            DoesNotFit: too little room here.
        """

    def delete(self, stored: Stored, names: Sequence[str] = ()) -> None:
        """Delete a checkpoint, its manifest first; with ``names``, these files of it alone."""

    def send(self, item: StageItem, progress: Callable[[int, int], None]) -> None:
        """Store a folder under what its content names, once; what is there is not sent again."""

    def store(
        self,
        folder: Path,
        manifest: CheckpointManifest,
        slot: str,
        progress: Callable[[int, int], None],
    ) -> None:
        """Upload a checkpoint from this machine.

        Raises:
            CheckpointError: it is not what its manifest says.
        """


@runtime_checkable
class BoardLink(Protocol):
    """A ``PodLink`` through which TensorBoard can be seen that runs beside the trainer."""

    def tensorboard(
        self, pod_name: str, local_port: int
    ) -> AbstractContextManager[Callable[[], bool]]:
        """TensorBoard on the pod, at 127.0.0.1:``local_port`` here until the block ends.

        Gives a question to be asked every few seconds: whether it runs still.

        Raises:
            LinkError: there is none on the pod, or it is out of reach.
        """


@dataclass(frozen=True)
class WorkDone:
    """A piece of work that has ended: ``error`` is None where it was done."""

    key: str
    error: TrmcloudError | None


class Workers(Protocol):
    """Who carries what takes long, while the controller goes on looking and deciding."""

    def start(self, key: str, work: Callable[[Progress], None]) -> None: ...

    def running(self) -> frozenset[str]: ...

    def finished(self) -> Sequence[WorkDone]:
        """What has ended since this was last asked."""

    def progress(self, key: str) -> tuple[int, int] | None:
        """(bytes done, bytes in all) of work that is going on."""

    def cancel(self) -> None:
        """Nothing that is going on is wanted any more; it ends soon, and is not told of."""


class RunFiles(Protocol):
    """What a run leaves behind, wherever it survives."""

    def phases(self, run_id: str) -> Sequence[str]: ...

    def heartbeat(self, run_id: str, phase: str) -> Heartbeat | None: ...

    def metrics(self, run_id: str, phase: str) -> Sequence[Mapping[str, object]]: ...

    def manifests(self, run_id: str) -> Sequence[CheckpointManifest]: ...

    def damaged(self, run_id: str) -> Sequence[tuple[str, str]]:
        """Checkpoint folders whose manifest cannot be read: (label, why)."""

    def fetch(
        self,
        manifest: CheckpointManifest,
        names: Sequence[str],
        into: str,
        progress: Callable[[int, int], None],
    ) -> None:
        """Copy files of a checkpoint into a folder, resuming what is there, verifying each hash.

        Raises:
            CheckpointError: a file is missing, too large, or not what its hash says.
        """

    def delete(self, manifest: CheckpointManifest) -> None: ...

    def folder_of(self, manifest: CheckpointManifest) -> str:
        """Path of the checkpoint on this machine."""

    def folder(self, run_id: str) -> str:
        """Path of the run's files on this machine."""

    def logs(self, run_id: str, phase: str) -> str:
        """Path of the phase's log on this machine."""
