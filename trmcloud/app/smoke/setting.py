"""What a smoke run asks beyond the ports, and what it tells."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trmcloud.core.catalog.offers import Offer
from trmcloud.core.errors import TrmcloudError
from trmcloud.core.money import Usd
from trmcloud.core.values import dataclass


@dataclass(frozen=True)
class AccountFigures:
    """What a provider says of the account's money: USD, and USD/h. None: it did not say, for the
    reason in ``why``."""

    balance: Usd | None
    spending: Usd | None
    spend_limit: Usd | None
    why: str = ""


@dataclass(frozen=True)
class RoundTrip:
    """A file that went to the pod and came back, every byte the same."""

    size_bytes: int
    sent_s: float
    fetched_s: float


@dataclass(frozen=True)
class SmokeSetting:
    """What a smoke run asks beyond the ports.

    ``offers`` is what can be had now, ``disk_rate`` the USD/h of the pod's own disks. ``answers``
    says why a pod's SSH server does not let us in ("" where it does); ``termination`` is the text
    of its record of how it tries to end itself ("" where that cannot be read).
    """

    provider: str
    account: Callable[[], AccountFigures]
    offers: Callable[[float], Sequence[Offer]]
    disk_rate: Usd
    answers: Callable[[str], str]
    round_trip: Callable[[str, int], RoundTrip]
    termination: Callable[[str], str]
    limit: Callable[[str, float], None] | None = None
    """Sets the provider's own limit on a pod so that it ends it by then (epoch s) at the latest;
    None where there is none that can be set."""
    cut: Callable[[], None] | None = None
    """Stops whatever on this machine is in touch with the provider; the next question starts it
    again. None where nothing is."""
    on_machine: str = ""
    """Which credential of the account will be on the pod."""


@dataclass(frozen=True)
class Step:
    """One thing that was tried: ``at_s`` since the beginning, ``spent`` by our clock."""

    name: str
    good: bool | None
    """None: neither proven nor refuted."""
    detail: str
    at_s: float
    spent: Usd


@dataclass(frozen=True)
class Verdict:
    """``verified`` are kill layers now on record; ``trouble`` is what a user must act on."""

    verified: tuple[str, ...]
    trouble: TrmcloudError | None
