"""The ports to machines: renting, a provider's services, and the way to a pod."""

from __future__ import annotations

import base64
import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from trmcloud.core.catalog.torch_builds import POD_BUILD, POD_IMAGE, POD_TORCH
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.errors import FinalRefusal, NotSupported, ProviderError, ProviderRefused
from trmcloud.core.values import Value

if TYPE_CHECKING:
    from trmcloud.core.contract.manifest import CheckpointManifest
    from trmcloud.core.contract.pod_contract import AgentReport, CheckpointRef, Lease, Orders
    from trmcloud.core.contract.trainer_contract import PhaseJob
    from trmcloud.core.control.balance import AccountBalance
    from trmcloud.core.control.observation import Bill, BootTrouble, PodSeen
    from trmcloud.core.errors import LinkError
    from trmcloud.core.money import Usd

# The way to a pod, and what may be asked of one beyond that.


class StageItem(Value):
    """Files that a pod needs before it trains, in a folder there that their content names.

    ``local`` is a file, or the folder that ``sha256``'s names (relative, with /) are in; ``remote``
    is the folder they go to, as an absolute path below the pod's root. Only what ``sha256`` names
    is sent. The same ``remote`` always means the same content.
    """

    local: Path
    remote: str
    sha256: Mapping[str, str]


class PodItems(NamedTuple):
    """What a pod needs before it trains: sent to it from here, and fetched by itself from the run's
    bucket."""

    sent: Sequence[StageItem] = ()
    fetched: Sequence[StageItem] = ()


class PodLink(ABC):
    """Words and files to and from one pod. Bytes and seconds only: what they are worth is decided
    elsewhere.

    All but ``report`` and ``trouble`` may raise ``LinkError``. What not every machine has does
    nothing, or is refused, unless an adapter says otherwise.
    """

    @abstractmethod
    def report(self, pod_name: str) -> AgentReport | None:
        """Return the agent's last report; None where it cannot be asked now, or has said
        nothing."""

    @abstractmethod
    def send_orders(self, pod_name: str, orders: Orders) -> None: ...

    @abstractmethod
    def stage(
        self, pod_name: str, items: Sequence[StageItem], progress: Callable[[int, int], None]
    ) -> None:
        """Bring every item to the pod, verified there, and say so to its agent at the end.

        What an earlier call has brought is not sent again. ``progress`` is called with bytes done
        and bytes in all.
        """

    @abstractmethod
    def pull(
        self,
        pod_name: str,
        run_id: str,
        manifest: CheckpointManifest,
        names: Sequence[str],
        progress: Callable[[int, int], None],
    ) -> None:
        """Bring files of a checkpoint to where this machine keeps the run's, every hash verified.

        Resumes what an interrupted call left; the manifest is written last.

        Raises:
            CheckpointError: a file is missing, a link, too large, or not what its hash says.
            DoesNotFit: too little room here.
        """

    @abstractmethod
    def fetch(
        self,
        pod_name: str,
        run_id: str,
        manifest: CheckpointManifest,
        names: Sequence[str],
        into: str,
        progress: Callable[[int, int], None],
    ) -> None:
        """Likewise into the folder ``into``, of which this home knows nothing; the manifest is the
        caller's to write."""

    @abstractmethod
    def manifest(self, pod_name: str, run_id: str, kept: CheckpointRef) -> CheckpointManifest:
        """The manifest of a checkpoint that the pod's agent has told of.

        Raises:
            CheckpointError: it is not there any more, or is not one, or another one.
        """

    @abstractmethod
    def grant(self, pod_name: str, text: str) -> None:
        """Give the pod its ``grants.json``, for its own user's eyes alone: with that it may upload
        by itself."""

    def give_environment(self, pod_name: str, text: str) -> None:
        """Let the pod's command have these variables: ``environment.json``, for its eyes alone."""
        raise NotSupported(f"{pod_name} cannot get variables")

    def give_webhook(self, pod_name: str, text: str) -> None:
        """Give the pod its ``webhook.json``, for its own user's eyes alone: with that its agent
        tells somebody by itself."""
        return None

    def trouble(self, pod_name: str) -> LinkError | None:
        """Why the pod could not be asked last time; None where it could. Asks nothing."""
        return None

    def left_behind(self, pod_name: str, earlier: str) -> AgentReport | None:
        """Return the last report that the agent of an ``earlier`` pod left on a disk that this one
        has now; None where there is none."""
        return None

    def delete(self, pod_name: str, run_id: str, manifest: CheckpointManifest) -> None:
        """Delete a checkpoint there, its manifest first; no error where it is gone already."""
        raise NotSupported("checkpoints on this pod cannot be deleted from here")

    def tensorboard(
        self, pod_name: str, local_port: int
    ) -> AbstractContextManager[Callable[[], bool]]:
        """TensorBoard beside the trainer, at 127.0.0.1:``local_port`` here until the block ends.

        Gives a question to be asked every few seconds: whether it runs still.
        """
        raise NotSupported("TensorBoard on this pod is not reachable from here")

    def login(
        self, pod_name: str, command: Sequence[str] = (), *, terminal: bool = True
    ) -> Sequence[str]:
        """The words of a program that logs in there, by the key that is pinned, and runs
        ``command``; a shell where that is empty. It is for the user at this ``terminal``.

        Raises:
            LinkError: the pod has no address now.
        """
        raise NotSupported("it is not possible to log in to this pod from here")


# The port to machines: renting, and optional services of a provider.

MIN_CUDA = POD_BUILD.cuda_text
"""The version of CUDA that our images are of: their container is not started with an older driver,
though its torch would run with any of the same major release."""


class PodRequest(Value):
    """All a provider needs to make one pod, and all the pod's agent needs to start.

    ``region`` is the seller's data centre ("": any). ``disk_gb`` is the pod's own disk.
    ``volume`` is the id of a network volume that outlives the pod; without one, ``volume_gb`` is
    the size of the one to be found or made there (0: none). ``community`` allows hosts that nobody
    vouches for. ``min_cuda`` is the oldest CUDA version the host's driver may support. ``check`` is
    what the agent must find before it trains, as JSON. ``require_wanted`` is to be asked at the
    last instant before a create is sent: it raises ``ProviderRefused`` where whoever asks for the
    pod has slept, and nothing may be sent any more. ``nodes`` machines of ``gpus`` each make one
    pod, whose ``rate`` is the most that all of them together may be billed an hour. ``spot``: the
    provider may take it away. ``given`` are values of variables for a command of the user's own,
    which may be secret: no provider is told of them. ``image`` is what its container is made of;
    empty: the provider's usual one. ``is_waited_for``: it is asked for again later where it cannot
    be had, so that a provider that asks for time is not waited for, and the price of now is held
    against ``rate`` before the create.
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
    require_wanted: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)
    nodes: int = 1
    spot: bool = False
    given: Mapping[str, str] = field(default_factory=dict, repr=False)
    image: str = ""
    is_waited_for: bool = False

    @property
    def latest_stop_at(self) -> float:
        """When its machine has ended, however often its stop is moved (epoch s)."""
        return max(self.lease.hard_stop_at, self.lease.limit_at)

    def agent_words(self, keys: PodKeys, provider: str, image: str = "") -> dict[str, str]:
        """Return the environment of a rented pod's agent. ``provider`` names the ways to end it.
        Another torch than our image's is refused on the pod, where it is made of that image."""
        check = dict(self.check)
        if check and image == POD_IMAGE:
            check["torch"] = POD_TORCH
        packed = {
            contract.ENV_LEASE: contract.dump(self.lease),
            contract.ENV_JOBS: _compact([_told(job) for job in self.jobs]),
            contract.ENV_CHECK: _compact(check),
            contract.ENV_HOST_KEY: keys.host_private,
        }
        return {
            contract.ENV_POD: self.name,
            contract.ENV_PROVIDER: provider,
            contract.ENV_ROOT: contract.POD_ROOT,
            contract.ENV_AUTHORIZED_KEY: keys.user_public.strip(),
            **{name: base64.b64encode(text.encode()).decode() for name, text in packed.items()},
        }


def _told(job: PhaseJob) -> dict[str, Any]:
    """A job's fields without those that are empty and may be missing: a request has little room."""
    told: dict[str, Any] = json.loads(contract.dump(job))
    needed = {
        each.name
        for each in dataclasses.fields(job)
        if each.default is each.default_factory is dataclasses.MISSING
    }
    return {
        name: value for name, value in told.items() if name in needed or value not in ("", None, {})
    }


def _compact(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"), sort_keys=True)


class TransientError(ProviderError):
    """A request that failed and can be repeated: after ``retry_after_s``, where the provider names
    a time. ``sent`` is False where it cannot have reached the provider."""

    usual_step: ClassVar[str] = "wait a minute; check the network"

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        next_step: str = "",
        retry_after_s: float | None = None,
        sent: bool = True,
    ) -> None:
        super().__init__(what, where=where, next_step=next_step or self.usual_step)
        self.retry_after_s, self.sent = retry_after_s, sent


class ThrottledError(TransientError):
    """The account has sent too many requests: the provider answered 429, or this home's budget has
    none left. Nothing was done."""

    usual_step = "wait a minute; run fewer commands at once"


class Throttled(FinalRefusal):
    """The provider asks to be asked later: in ``retry_s`` seconds; 0: it did not say when."""

    def __init__(
        self, what: str, *, where: str = "", next_step: str = "", retry_s: float = 0.0
    ) -> None:
        super().__init__(what, where=where, next_step=next_step)
        self.retry_s = retry_s


class PodKeys(Value):
    """SSH keys of one pod: its own host key, and the one key that may log in.

    ``host_private`` is an OpenSSH private key; the public ones are single lines. The host's private
    key is the pod's own and opens nothing else.
    """

    host_private: str = field(repr=False)
    host_public: str
    user_public: str


class ProviderLimit(Value):
    """A kill layer of the provider's own on one pod; ``layer`` is its name in the traits."""

    layer: str
    armed: bool
    detail: str


class VolumeSeen(Value):
    """A network volume that this ledger made, as its provider lists it."""

    volume_id: str
    place: str
    size_gb: int
    name: str = ""


class Compute(ABC):
    """A source of machines, rented or local. Provider words stop here.

    What not every provider has does nothing unless an adapter says otherwise.
    """

    @abstractmethod
    def create(self, request: PodRequest) -> str:
        """Make the pod and start its agent; returns its id. The name is unique, so a second call
        with it makes no second pod.

        Raises:
            NoCapacity: nothing was made.
            AmbiguousCreate: something may have been made.
        """

    @abstractmethod
    def list_pods(self) -> Sequence[PodSeen]: ...

    def expect(self, pod_id: str) -> None:
        """The ledger says that this pod may live. Where the provider can be asked for one pod, the
        next list asks for it by its id if it lacks it: an omission is no proof of an end."""
        return None

    @abstractmethod
    def terminate(self, pod_id: str) -> bool:
        """End the pod; no error where it is gone already.

        Whether the provider took it: False where it knows no such pod, which proves nothing.
        """

    @abstractmethod
    def bill(self, pod_id: str) -> Bill | None: ...

    def require_account(self, rate: Usd) -> None:
        """See, before anything is reserved, that it could rent for ``rate`` an hour: an account
        may lack a key, a right or money.

        Raises:
            AuthError, PaymentRequired: it could not. ProviderError: it cannot be asked.
        """
        return None

    def balance(self) -> AccountBalance | None:
        """Return the account's money as the provider tells it now; None where no provider's API
        tells it. What was read some seconds ago serves as well.

        Raises:
            ProviderError: it cannot be read now.
        """
        return None

    def own_limits(self, pod_name: str) -> Sequence[ProviderLimit]:
        """Which of the provider's own limits stand on a pod: by what is known already, or one
        short question that is not asked again for minutes."""
        return ()

    def lapsing(self, until: float, pod_name: str = "") -> Mapping[str, str]:
        """Kill layers, by name, that do not count for a pod (without a name: for the next one),
        each with the reason: its credential there may be valid no more by ``until`` (epoch s), or
        the account is not known to be prepaid."""
        return {}

    def on_machine(self, pod_name: str = "") -> str:
        """Which credential of the account lies on a pod (without a name: on the next one), what it
        opens, and how long it is valid; '' where none does."""
        return ""

    def by_hand(self, pod_name: str) -> Sequence[str]:
        """Lines that a person can type to see the pod and to end it by the provider's own client;
        none where that needs no word of ours."""
        return ()

    def boot_trouble(self, pod_id: str) -> BootTrouble | None:
        """Return the trouble of a booting pod in the provider's own log.

        None where it says nothing, cannot be read, or the provider has no such log. It may be asked
        at any time: an adapter reads no more often than the provider allows.
        """
        return None

    def cross_listed(self) -> Sequence[PodSeen]:
        """Pods that a second list of the provider's has and the first one omits."""
        return ()

    def kept_volumes(self) -> Sequence[VolumeSeen]:
        """Network volumes that this ledger made, and no other.

        Raises:
            ProviderError: they cannot be listed.
        """
        raise ProviderRefused("this provider cannot list network volumes")

    def delete_volume(self, volume_id: str) -> None:
        """End one of those, and what it holds.

        Raises:
            ProviderError: a pod still uses it, it is not ours, or the provider did not take it.
        """
        raise ProviderRefused("this provider cannot delete network volumes")
