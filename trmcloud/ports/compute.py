"""Whoever gives machines, and what may be asked of one beyond that."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from trmcloud.core.errors import ProviderRefused

if TYPE_CHECKING:
    from trmcloud.core.money import Usd
    from trmcloud.core.observation import Bill, PodSeen
    from trmcloud.core.pod_contract import Lease, PhaseJob


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
    the create must not be sent any more. ``nodes`` machines of ``gpus`` each make one pod, whose
    ``rate`` is the most that all of them together may be billed an hour. ``spot``: the provider may
    take it away.
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
    nodes: int = 1
    spot: bool = False

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
        """By what is known already, or one short question that is not asked again for minutes."""


@dataclass(frozen=True)
class VolumeSeen:
    """A network volume that this ledger made, as its provider lists it."""

    volume_id: str
    place: str
    size_gb: int


@runtime_checkable
class Volumes(Protocol):
    """A ``Compute`` whose network volumes outlive pods."""

    def kept_volumes(self) -> Sequence[VolumeSeen]:
        """Those that this ledger made, and no other."""

    def delete_volume(self, volume_id: str) -> None:
        """End one of those, and what it holds.

        Raises:
            ProviderError: a pod still uses it, it is not ours, or the provider did not take it.
        """


@runtime_checkable
class CrossListing(Protocol):
    """A ``Compute`` whose provider can be asked for its pods in a second way."""

    def cross_listed(self) -> Sequence[PodSeen]:
        """Pods of the second list that the first one omits."""
