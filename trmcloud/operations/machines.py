"""Providers as one process may ask them: their adapters, and their last answers with their age."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from trmcloud.core.clock import DatedFact, Maybe, UnknownSince
from trmcloud.core.errors import LinkError, ProviderError, ProviderRefused, TrmcloudError
from trmcloud.core.values import Value, replace
from trmcloud.ports.compute import Compute, PodLink

if TYPE_CHECKING:
    from trmcloud.core.contract.pod_contract import AgentReport
    from trmcloud.core.control.balance import AccountBalance
    from trmcloud.core.control.observation import PodSeen
    from trmcloud.core.money import Usd

PodList = Maybe[tuple["PodSeen", ...]]


class Need(NamedTuple):
    """One program or right. ``missing``: it is not there, or does not work; ``detail`` says how."""

    name: str
    detail: str
    missing: bool = False
    fix: str = ""


class PodLists:
    """The last answer of each provider to a request for its pods."""

    def __init__(self) -> None:
        self._last: dict[str, PodList] = {}

    def read(
        self, provider: str, compute: Compute, now: float, at_most_s: float = 0.0
    ) -> DatedFact[tuple[PodSeen, ...]]:
        """List the pods at ``now``, or return the list of less than ``at_most_s`` ago.

        Raises:
            ProviderError: they cannot be listed. The answer before that one stays the last.
        """
        known = self._last.get(provider)
        if isinstance(known, DatedFact) and 0 <= now - known.at < at_most_s:
            return known
        made = DatedFact(tuple(compute.list_pods()), now)
        self._last[provider] = made
        return made

    def fail(self, provider: str, error: ProviderError, now: float) -> UnknownSince:
        """Record that there is no list, and return that as the provider's last answer."""
        self._last[provider] = failed = UnknownSince(now, str(error))
        return failed

    def last(self, provider: str) -> PodList | None:
        """Return the last answer, however old; None where the provider was not asked."""
        return self._last.get(provider)

    def unreached(self) -> tuple[tuple[str, str], ...]:
        """(provider, why) of each whose list was asked for last without an answer."""
        return tuple(
            (name, seen.why)
            for name, seen in sorted(self._last.items())
            if isinstance(seen, UnknownSince) and seen.why
        )

    def clear(self) -> None:
        self._last.clear()


class BalanceReading(Value):
    """One process's reading of an account's balance: ``account`` was read last at
    ``read_at``, and ``trouble`` why it could not be read at ``asked_at`` (both epoch s)."""

    asked_at: float
    account: AccountBalance | None = None
    read_at: float = 0.0
    trouble: str = ""


class Balances:
    """The last reading of the balance of each account."""

    def __init__(self) -> None:
        self._last: dict[str, BalanceReading] = {}

    def read(
        self, provider: str, compute: Compute, now: float, at_most_s: float = 0.0
    ) -> BalanceReading:
        """Read a balance at ``now``, or return the reading of less than ``at_most_s`` ago. After a
        failure the last balance that was read stands beside its reason."""
        known = self._last.get(provider)
        if known is not None and 0 <= now - known.asked_at < at_most_s:
            return known
        try:
            made = BalanceReading(now, compute.balance(), now)
        except ProviderError as error:
            made = replace(known or BalanceReading(now), asked_at=now, trouble=str(error))
        self._last[provider] = made
        return made

    def last(self, provider: str) -> BalanceReading | None:
        """Return the last reading, however old; None where there was none."""
        return self._last.get(provider)


class Machines(Value):
    """The providers that can be named, by their names."""

    computes: Mapping[str, Compute]
    links: Mapping[str, PodLink]
    needs: Callable[[str], Sequence[Need]] = lambda provider: ()
    """Returns a provider's needs of this machine for renting, the missing ones marked."""
    was_used: Callable[[str], bool] = lambda provider: True
    """Whether this home has traces of a provider's pods, independent of its ledger."""
    unasked: frozenset[str] = frozenset()
    """Providers that this command leaves alone: what is known of their pods is what was heard."""
    lists: PodLists = field(default_factory=PodLists)
    balances: Balances = field(default_factory=Balances)

    def list_pods(self, provider: str, now: float, at_most_s: float = 0.0) -> PodList:
        """List the provider's pods at ``now``, or return the list of less than ``at_most_s`` ago;
        or the reason why they are unknown."""
        if provider in self.unasked:
            return UnknownSince(now, "it was not queried")
        try:
            return self.lists.read(provider, self.computes[provider], now, at_most_s)
        except ProviderError as error:
            return self.lists.fail(provider, error, now)

    def read_balance(self, provider: str, now: float, at_most_s: float = 0.0) -> BalanceReading:
        return self.balances.read(provider, self.computes[provider], now, at_most_s)

    def require_reach(self, provider: str) -> None:
        """
        Raises:
            TrmcloudError: the provider cannot be had from here at all, and why.
        """
        compute = self.computes.get(provider)
        if isinstance(compute, UnreachableProvider):
            raise compute.error


# A provider that is out of reach: it has no key here, or its client is not installed. This class
# stands in the adapter's place, so that every question is answered like that of a provider that
# does not answer.


class UnreachableProvider(Compute, PodLink):
    """``Compute`` and ``PodLink`` of a provider whose adapters could not be made; ``error`` is
    why."""

    def __init__(self, error: TrmcloudError) -> None:
        self.error = error

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        if isinstance(self.error, ProviderError):
            raise self.error
        raise ProviderRefused(str(self.error), next_step=self.error.next_step)

    create = list_pods = terminate = bill = balance = kept_volumes = _refuse

    def require_account(self, rate: Usd) -> None:
        raise self.error

    def report(self, pod_name: str) -> AgentReport | None:
        return None

    def trouble(self, pod_name: str) -> LinkError | None:
        return LinkError(str(self.error), next_step=self.error.next_step)

    def _cut(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise LinkError(str(self.error), next_step=self.error.next_step)

    grant = send_orders = stage = pull = fetch = manifest = _cut
