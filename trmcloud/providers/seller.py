"""A provider with an API of its own: one account key, one connection, one list of prices."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.errors import AuthError, ProviderError, TrmcloudError, UsageError
from trmcloud.providers.protocol import Provider

if TYPE_CHECKING:
    from trmcloud.adapters.pod_history import Sightings
    from trmcloud.adapters.prices.tables import Source
    from trmcloud.adapters.request_budget import RequestBudget
    from trmcloud.adapters.ssh.link import SshPodLink
    from trmcloud.core.catalog.offers import Offer
    from trmcloud.io.exchanges import ExchangeLog
    from trmcloud.operations.checks.doctor import Finding
    from trmcloud.operations.checks.smoke_watch import SmokeSetting
    from trmcloud.ports.compute import PodKeys
    from trmcloud.providers.listed import ListedCompute

ComputeT = TypeVar("ComputeT", bound="ListedCompute[Any]")
ApiT = TypeVar("ApiT")


LIVE_WITHIN_S = 4.0
"""For so long a plan waits for prices of today before it takes dated ones."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def require_safe(url: str, variable: str, secret: str = "key") -> str:
    """Return ``url``, which ``variable`` gives, without a slash at its end.

    Raises:
        UsageError: it is neither https nor this machine: ``secret`` would travel in the clear.
    """
    url = url.strip().rstrip("/")
    parts = urlsplit(url)
    if parts.scheme != "https" and not (
        parts.scheme == "http" and parts.hostname in _LOOPBACK and "@" not in parts.netloc
    ):
        raise UsageError(
            f"{url} is neither https nor this machine: the {secret} would be sent without "
            "encryption",
            where=variable,
            next_step=f"unset {variable}, or use an https:// address",
        )
    return url


def read_live(
    read: Callable[[float], list[Offer]], empty: str = "its list is empty"
) -> tuple[list[Offer], str]:
    """(what ``read``, called with ``LIVE_WITHIN_S``, returns; why it returned nothing within that
    time: ``empty`` where it has no offers). On a thread that is not waited for longer: a name that
    is being looked up has no timeout of its own."""
    from http.client import HTTPException
    from urllib.error import HTTPError

    found: list[Offer] = []
    failure = [f"no answer within {LIVE_WITHIN_S:.0f} s"]

    def run() -> None:
        try:
            found.extend(read(LIVE_WITHIN_S))
            failure[0] = "" if found else empty
        except HTTPError as error:
            failure[0] = f"HTTP {error.code}"
        except TrmcloudError as error:
            failure[0] = error.what[:80]
        except (OSError, ValueError, HTTPException, RecursionError) as error:
            failure[0] = f"{type(error).__name__}: {error}"[:80]

    reader = threading.Thread(target=run, daemon=True)
    reader.start()
    reader.join(LIVE_WITHIN_S)
    failed = failure[0]
    return ([] if failed else list(found)), failed


def check_scopes(name: str, questions: Mapping[str, Callable[[], object]], fix: str) -> Finding:
    """Ask one harmless question for each thing that a run needs. ``fix``: what the key needs."""
    from trmcloud.operations.checks.doctor import Finding

    refused, unclear = [], []
    for what, ask in questions.items():
        try:
            ask()
        except AuthError:
            refused.append(what)
        except ProviderError as error:
            unclear.append(f"{what}: {error.what}")
    if refused:
        return Finding(name, "bad", f"the key does not permit: {', '.join(refused)}", fix)
    if unclear:
        return Finding(name, "warn", "; ".join(unclear), "try again in a minute")
    return Finding(name, "ok", "the key permits: " + ", ".join(questions))


class Prices(Protocol):
    """A provider's module ``offers``."""

    def live_prices(self, environ: Mapping[str, str], now: float) -> tuple[list[Offer], str]: ...

    def price_rows(
        self, environ: Mapping[str, str], now: float
    ) -> tuple[list[dict[str, str]], list[str]]: ...


class Account(NamedTuple):
    """What an adapter needs beside its own settings. ``keys`` gives a pod's SSH keys by its name;
    ``budget`` is shared with the other processes of this home."""

    key: str
    keys: Callable[[str], PodKeys]
    budget: RequestBudget
    log: ExchangeLog
    sightings: Sightings


class _Connection(NamedTuple, Generic[ComputeT, ApiT]):
    compute: ComputeT
    api: ApiT
    link: SshPodLink


class Seller(Provider, Generic[ComputeT, ApiT]):
    """``name`` is that of its traits."""

    name: str
    key_variable: str
    key_file: str
    """The file from which every process would read the key, for ``unseen_keys``."""
    secret = "key"
    """The seller's word for it."""
    no_key_step: str
    """The next step where there is none."""
    unlimited_unless_told = False
    """As ``RequestBudget`` says."""

    @abstractmethod
    def account_key(self, environ: Mapping[str, str]) -> str | None: ...

    @abstractmethod
    def connect(self, account: Account) -> tuple[ComputeT, ApiT]: ...

    @abstractmethod
    def prices(self) -> Prices: ...

    @abstractmethod
    def single_gpus(self, api: ApiT, now: float) -> Sequence[Offer]:
        """Return the machines of one GPU that can be rented at ``now`` (epoch s)."""

    @cached_property
    def connection(self) -> _Connection[ComputeT, ApiT]:
        """
        Raises:
            AuthError: there is no key. ProviderError: what speaks to it is not installed.
        """
        site = self.site
        key = self.account_key(site.environ)
        if key is None:
            title = traits_of(self.name).title
            raise AuthError(f"there is no {title} {self.secret}", next_step=self.no_key_step)
        from trmcloud.adapters.pod_history import Sightings
        from trmcloud.adapters.request_budget import budget_of
        from trmcloud.adapters.ssh.keys import KeyStore
        from trmcloud.adapters.ssh.link import SshPodLink
        from trmcloud.io.exchanges import exchange_log

        keys = KeyStore(site.home)
        account = Account(
            key,
            keys.for_pod,
            budget_of(site.home, self.name, key, unlimited_unless_told=self.unlimited_unless_told),
            exchange_log(site.home, self.name, key, site.environ, time.time),
            Sightings(site.home / self.name),
        )
        compute, api = self.connect(account)
        link = SshPodLink(
            site.home, compute.address_of, now=time.time, keys=keys, way_to=compute.way_to
        )
        return _Connection(compute, api, link)

    def compute(self, name: str) -> ComputeT:
        return self.connection.compute

    def link(self, name: str) -> SshPodLink:
        return self.connection.link

    def has_access(self) -> bool:
        return self.account_key(self.site.environ) is not None

    def unseen_keys(self, elsewhere: Mapping[str, str]) -> Sequence[tuple[str, str, str]]:
        if not self.has_access() or self.account_key(elsewhere) is not None:
            return ()
        return [(self.key_variable, self.name, self.key_file)]

    def live_prices(self, now: float) -> tuple[Sequence[Offer], str]:
        if not self.has_access():
            return (), ""  # and nothing is loaded to ask with
        return self.prices().live_prices(self.site.environ, now)

    def price_sources(self) -> Sequence[Source]:
        from trmcloud.adapters.prices.tables import Source

        return [Source(self.name, partial(self.prices().price_rows, self.site.environ))]

    def smoke(self, name: str, known: Callable[[float], Sequence[Offer]]) -> SmokeSetting:
        from trmcloud.adapters.ssh.checks import answers, round_trip, termination
        from trmcloud.core.control.balance import AccountBalance
        from trmcloud.core.storage import LEAST_WORK_GB, pod_disks_price
        from trmcloud.operations.checks.smoke_watch import SmokeSetting

        compute, api, link = self.connection

        def account() -> AccountBalance:
            try:
                balance = compute.balance()
            except ProviderError as error:
                return AccountBalance(why=error.what)
            unknown = f"{traits_of(self.name).title}'s API shows no credits"
            return balance if balance is not None else AccountBalance(why=unknown)

        def offers(now: float) -> Sequence[Offer]:
            try:
                return self.single_gpus(api, now)
            except AuthError:
                raise
            except ProviderError:
                # The dated table serves where the provider does not answer.
                return [offer for offer in known(now) if offer.provider == self.name]

        return SmokeSetting(
            provider=self.name,
            account=account,
            offers=offers,
            disk_rate=pod_disks_price(self.name, LEAST_WORK_GB, 1, on_volume=False),
            answers=partial(answers, link),
            round_trip=lambda pod_name, size: round_trip(link.connection(pod_name), size),
            termination=partial(termination, link),
        )
