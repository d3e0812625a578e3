"""A ``Compute`` whose pods are identified by their names in a list of one account.

A create is repeated only while the provider asks to be asked later, and never where the list has
the name. An end is requested by id. A pod counts as gone once lists stay without it, not when the
provider no longer knows its id.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from trmcloud.adapters.pod_history import Sighting, Sightings
from trmcloud.adapters.pod_lists import PodList
from trmcloud.core.contract.pod_contract import parse_pod_name
from trmcloud.core.control.observation import Bill, PodSeen
from trmcloud.core.errors import ProviderError
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.storage import price_per_hour
from trmcloud.core.values import Value
from trmcloud.ports.compute import Compute, PodKeys, PodRequest, Throttled, ThrottledError

THROTTLED_S = 90.0
"""A create that is only ever asked to come back is given up after this time."""


class Row(Protocol):
    """A pod in a list."""

    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str: ...


RowT = TypeVar("RowT", bound=Row)


class ListedCompute(Compute, Generic[RowT]):
    """``keys`` gives a pod's SSH keys by its name; ``payload`` makes the archive of the agent's
    sources, called where a pod is made; ``environment`` is added to every pod's (never a key of the
    account's)."""

    list_fresh_s: float
    """One list serves all who ask within this time."""
    untold_wait_s: float
    """The pause where the provider does not name one."""
    not_ours: str
    """The refusal to end a pod of another ``name``; ``pod_id`` is its id."""
    if_yours: str
    """The next step after that."""

    def __init__(
        self,
        keys: Callable[[str], PodKeys],
        payload: Callable[[], bytes],
        *,
        image: str,
        environment: Mapping[str, str] | None = None,
        sightings: Sightings | None = None,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._keys, self._payload = keys, payload
        self._image, self._environment = image, dict(environment or {})
        self._seen = sightings if sightings is not None else Sightings(None)
        self._now, self._sleep = now, sleep
        self._pods: PodList[RowT] = PodList(self._look, now)
        self._lock = self._pods.lock

    def create(self, request: PodRequest) -> str:
        """See ``Compute.create``; ``api`` says how the provider's answers are mapped.

        Where the provider asks to be asked later it is, from the look by name on, after the time
        that it names, and for ``THROTTLED_S`` in all at most; once only where the caller repeats
        the create later.

        Raises:
            Throttled: it went on asking for that; nothing was made.
            NoCapacity, NotSupported: nothing fits what was reserved.
            FinalRefusal: the pod would not have its limit; it was ended.
        """
        began_at = self._now()
        while True:
            try:
                return self._create(request)
            except ThrottledError as error:
                named_s = error.retry_after_s
                wait_s = max(1.0, named_s if named_s is not None else self.untold_wait_s)
                waited_s = self._now() - began_at
                if request.is_waited_for or not 0 <= waited_s <= THROTTLED_S - wait_s:
                    raise Throttled(
                        f"{error.what} (for {max(wait_s, waited_s):.0f} s; nothing was rented)",
                        where=error.where,
                        next_step="this account's quota of requests is used up; launch again "
                        "later, or with --wait-for",
                        retry_s=named_s or 0.0,
                    ) from None
                self._sleep(wait_s)

    def list_pods(self) -> Sequence[PodSeen]:
        return tuple(self._pod_seen(row) for row in self._list())

    def terminate(self, pod_id: str) -> bool:
        """By id, or by one of our names: then every pod that bears it.

        That the provider knows no such pod is no error and no proof: only lists that stay without
        it are.

        Raises:
            ProviderError: the provider did not take it, or the pod is not one of ours.
        """
        ids = [pod_id]
        if parse_pod_name(pod_id) is not None:
            found = [row.id for row in self._list(fresh=True) if row.name == pod_id]
            ids = found or [sighting.pod_id for sighting in self._unlisted(pod_id)]
        failed: ProviderError | None = None
        taken = False
        for one in ids:
            sighting = self._seen.get(one)
            if sighting is not None and parse_pod_name(sighting.name) is None:
                raise ProviderError(
                    self.not_ours.format(pod_id=one, name=sighting.name),
                    next_step=self.if_yours.format(pod_id=one),
                )
            try:
                taken = self._end(one) or taken
            except ProviderError as error:
                failed = error
        with self._lock:
            self._pods.forget()
        if failed is not None:
            raise failed
        return taken

    def bill(self, pod_id: str) -> Bill | None:
        """Return the bill of one pod, or of all that bear one of our names."""
        if parse_pod_name(pod_id) is None:
            return self._bill_of(pod_id)
        bills = [self._bill_of(sighting.pod_id) for sighting in self._seen.named(pod_id)]
        found = [bill for bill in bills if bill is not None]
        if not found:
            return None
        amount = sum((bill.amount for bill in found), ZERO)
        return Bill(found[0].pod_id, amount, final=all(bill.final for bill in found))

    @abstractmethod
    def address_of(self, pod_name: str) -> tuple[str, int] | None:
        """Return the address of the pod's own SSH server; None until there is a way to it."""

    def way_to(self, pod_name: str) -> str:
        """Return ssh's ProxyCommand; '' where the address is reached directly."""
        return ""

    # -- how -------------------------------------------------------------------------------------

    @abstractmethod
    def _create(self, request: PodRequest) -> str: ...

    @abstractmethod
    def _look(self) -> list[RowT]:
        """Read the list, and note what was seen and what was missed."""

    @abstractmethod
    def _pod_seen(self, row: RowT, /) -> PodSeen: ...

    @abstractmethod
    def _end(self, pod_id: str) -> bool: ...

    @abstractmethod
    def _bill_of(self, pod_id: str) -> Bill | None: ...

    def _unlisted(self, name: str) -> list[Sighting]:
        """Return the pods of this name to be ended where no list has one."""
        return self._seen.named(name)

    def _list(self, *, fresh: bool = False) -> list[RowT]:
        return self._pods.read() if fresh else self._pods.get(self.list_fresh_s)


# -- bills ---------------------------------------------------------------------------------------

ASK_EVERY_S = 20.0
LOOK_BACK_S = 30 * 86_400.0
"""The time before now from which records are read where it is not known when a pod was made."""
RecordT = TypeVar("RecordT")


class _BillAnswer(Value):
    at: float
    bill: Bill | None


class RecordBiller(ABC, Generic[RecordT]):
    """Bills of pods that ``sightings`` knows, by the provider's records. Until they are complete
    the bill is the larger of what they say and what rate × time says; a pod that has none is billed
    by its rate: unknown is never zero. Answers are kept for ``ASK_EVERY_S``."""

    def __init__(self, provider: str, sightings: Sightings, now: Callable[[], float]) -> None:
        self._provider, self._seen, self._now = provider, sightings, now
        self._asked: dict[str, _BillAnswer] = {}

    def bill(self, pod_id: str) -> Bill | None:
        """None where nothing at all is known of the pod.

        Raises:
            ProviderError: the records cannot be read.
        """
        now, asked = self._now(), self._asked.get(pod_id)
        sighting = self._seen.get(pod_id)
        # A bill that was final is not, once the pod stands in a list again.
        lives = sighting is not None and sighting.gone_at is None
        is_fresh = asked is not None and 0 <= now - asked.at < ASK_EVERY_S
        if asked is not None and is_fresh and not (asked.bill and asked.bill.final and lives):
            return asked.bill
        bill = self._ask(pod_id, sighting, now)
        self._asked[pod_id] = _BillAnswer(now, bill)
        return bill

    def rate_of(self, sighting: Sighting) -> Usd:
        """Return its USD/h, disks included."""
        return sighting.rate + self.disk_rate_of(sighting)

    def disk_rate_of(self, sighting: Sighting) -> Usd:
        return price_per_hour(self._provider, "running", sighting.disk_gb)

    @abstractmethod
    def _records(self, pod_id: str, since: float, now: float) -> list[RecordT]:
        """Return the pod's records from ``since`` (epoch s) on."""

    @abstractmethod
    def _total(self, records: list[RecordT]) -> Usd: ...

    @abstractmethod
    def _is_complete(
        self, sighting: Sighting, gone_at: float, records: list[RecordT], now: float
    ) -> bool:
        """Whether the records of a pod that has ended will not change any more."""

    def _ask(self, pod_id: str, sighting: Sighting | None, now: float) -> Bill | None:
        made_at = sighting.made_at if sighting is not None else None
        since = made_at if made_at is not None else now - LOOK_BACK_S
        records = self._records(pod_id, since, now)
        total = self._total(records)
        if sighting is None:
            return Bill(pod_id, total, final=False) if records else None
        sighting = self._seen.billed(pod_id, total if records else None, now) or sighting
        estimate, gone_at = self._estimate(sighting, now), sighting.gone_at
        if gone_at is None or not self._is_complete(sighting, gone_at, records, now):
            return Bill(pod_id, max(total, estimate), final=False)
        return Bill(pod_id, total if records else estimate, final=True)

    def _estimate(self, sighting: Sighting, now: float) -> Usd:
        """Return its rate × the longest life that it can have had."""
        if sighting.made_at is None:
            return ZERO
        until = sighting.gone_at if sighting.gone_at is not None else now
        return cost(self.rate_of(sighting), max(0.0, until - sighting.made_at))
