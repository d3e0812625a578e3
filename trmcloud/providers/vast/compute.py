"""vast.ai as a ``Compute``: instances by label, billed by its charges.

An offer is rented by its id, and offers go quickly: a create searches anew and takes the cheapest
that is within what was reserved, then the next. The label is a pod's name; an instance that bears
it is never made twice.

A stopped instance still bills its disk, and may not get its GPUs back. So nothing is ever stopped:
what is over is destroyed, and an instance that is found stopped counts as spending.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from trmcloud.adapters.pod_history import Sighting, Sightings
from trmcloud.core.catalog.torch_builds import POD_IMAGE
from trmcloud.core.control.balance import AccountBalance
from trmcloud.core.control.observation import Bill, BootTrouble, PodSeen, PodStatus
from trmcloud.core.errors import NoCapacity, NotSupported, PaymentRequired, ProviderError
from trmcloud.core.money import ZERO, Usd, total
from trmcloud.core.storage import pod_disks_gb, price_per_hour
from trmcloud.ports.compute import PodKeys, PodRequest
from trmcloud.providers.listed import ListedCompute, RecordBiller
from trmcloud.providers.vast.api import Charge, Instance, VastApi, labelled
from trmcloud.providers.vast.create import GREETING, create_body
from trmcloud.providers.vast.offers import VastOffer, asks_of, name_of, query
from trmcloud.providers.vast.traits import NAME

MOST_ASKS = 5
"""So many offers are tried, each taken by someone else in between."""
ADDRESS_FRESH_S = 60.0
ANYWHERE = ("", "any")
_STATUS: Mapping[str, PodStatus] = {
    "": PodStatus.CREATING,
    "loading": PodStatus.CREATING,
    "created": PodStatus.CREATING,
    "rebooting": PodStatus.CREATING,
    "running": PodStatus.RUNNING,
}
_STOPPED = ("exited", "stopped")
"""By ``actual_status``. All others (stopped, exited, frozen, offline, unknown) bill at least a disk
and are "unknown", which counts as spending."""


class VastCompute(ListedCompute[Instance]):
    """Instances are listed, made and ended through ``api``."""

    list_fresh_s = 3.0
    """vast.ai wants seconds between two requests."""
    untold_wait_s = 12.0
    """The penalty of its create (OpenAPI, ``x-rate-limit``)."""
    not_ours = "{pod_id} has the label {name!r}: not a pod of trmcloud"
    if_yours = "if it is yours, end it in vast.ai's console"

    def __init__(
        self,
        api: VastApi,
        keys: Callable[[str], PodKeys],
        payload: Callable[[], bytes],
        *,
        now: Callable[[], float] = time.time,
        sightings: Sightings | None = None,
        image: str = POD_IMAGE,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            keys, payload, image=image, environment=environment, sightings=sightings, now=now,
            sleep=api.sleep,
        )  # fmt: skip
        self._api = api
        self._biller = Biller(api, self._seen, now)
        self._given: dict[str, tuple[str, int]] = {}
        """Pods whose agent has its sources, with the address at which they were given."""

    # -- Compute ---------------------------------------------------------------------------------

    def _create(self, request: PodRequest) -> str:
        if request.volume or request.volume_gb:
            raise NotSupported("a volume of vast.ai is on one host: leave out --volume")
        body = self.body(request)
        with self._lock:
            existing = labelled(self._pods.read_before_create(), request.name)
            if existing:
                return existing[0].id
            asks = self._asks(request)
            taken: NoCapacity | None = None
            for ask in asks[:MOST_ASKS]:
                request.require_wanted()
                try:
                    made = self._api.create(ask.id, body)
                except NoCapacity as error:
                    taken = error
                    continue
                finally:
                    self._pods.forget()
                self._seen.alive(
                    made, request.name, rate=ask.rate, disk_gb=body["disk"], made_at=None,
                    started_at=None, at=self._now(),
                )  # fmt: skip
                return made
        raise taken if taken is not None else self._no_host(request)

    def _asks(self, request: PodRequest) -> list[VastOffer]:
        """Return the asks within the reserved rate, the cheapest first."""
        name = name_of(request.sku)
        if name is None:
            raise NotSupported(f"this version does not know {request.sku} at vast.ai")
        country = "" if request.region in ANYWHERE else request.region
        rest_s = request.latest_stop_at - self._now()
        asked = query(
            names=[name], counts=[request.gpus], disk_gb=pod_disks_gb(NAME, request.disk_gb),
            min_cuda=request.min_cuda, datacenter=not request.community, country=country,
            lasts_s=rest_s, limit=4 * MOST_ASKS,
        )  # fmt: skip
        rows = self._api.search(asked)
        return [
            ask
            for ask in asks_of(rows, min_cuda=request.min_cuda)
            if ask.sku == request.sku
            and ask.gpus == request.gpus
            and ask.rate <= request.rate
            and ask.lasts_until >= request.latest_stop_at
            and ask.disk_gb >= asked["allocated_storage"]
            and country in ("", ask.country)
        ]

    def _no_host(self, request: PodRequest) -> NoCapacity:
        where = "" if request.region in ANYWHERE else f" in {request.region}"
        hosts = "hosts" if request.community else "data centres"
        return NoCapacity(
            f"none of vast.ai's {hosts}{where} offers {request.gpus}x {request.sku} for "
            f"{request.rate}/h",
            next_step="see the present prices with trmcloud plan"
            + ("" if request.community else "; --community adds private hosts"),
        )

    def bill(self, pod_id: str) -> Bill | None:
        """Return what was charged, or its rate's worth where that is more, until it is final."""
        with self._lock:
            self._list()
        return super().bill(pod_id)

    # -- beyond Compute --------------------------------------------------------------------------

    def boot_trouble(self, pod_id: str) -> BootTrouble | None:
        """As the port says: by the host's own word in the list (``status_msg``)."""
        with self._lock:
            found = next((each for each in self._pods.rows if each.id == pod_id), None)
        return trouble_of(found) if found is not None else None

    def balance(self) -> AccountBalance:
        """As the port says: the credit, and the rent of every machine of the account that runs.

        Raises:
            AuthError, ThrottledError, ProviderError
        """
        credit = self._api.credit()
        with self._lock:
            self._list()
            rows = [row for row in self._pods.rows if _STATUS.get(row.actual) is PodStatus.RUNNING]
        spending = total((row.rate or ZERO) + (row.disk_rate or ZERO) for row in rows)
        return AccountBalance(credit, spending)

    def require_account(self, rate: Usd) -> None:
        """Where the credit cannot be read, nothing is said of it.

        Raises:
            AuthError, PaymentRequired, ProviderError
        """
        self._list(fresh=True)
        balance = None
        with suppress(ProviderError):
            balance = self._api.credit()
        if balance is not None and balance < rate:
            raise PaymentRequired(
                f"the vast.ai credit is {balance}: less than one hour of {rate}",
                next_step="add credit: vast.ai console → Billing",
            )

    def by_hand(self, pod_name: str) -> Sequence[str]:
        found = [each.id for each in labelled(self._pods.rows, pod_name)]
        ids = found or [sighting.pod_id for sighting in self._seen.named(pod_name)]
        return [line for i in ids for line in (f"vastai show instance {i}",
                                               f"vastai destroy instance {i} -y")]  # fmt: skip

    def address_of(self, pod_name: str) -> tuple[str, int] | None:
        """Return the address of the pod's own SSH server; None until it is up.

        A container that waits for the agent's sources is given them here: a caller that wants
        to speak to the pod needs them to be there.
        """
        with self._lock:
            fresh = self._pods.age_s < ADDRESS_FRESH_S
            address = _address_in(self._pods.rows, pod_name) if fresh else None
            if address is None:
                try:
                    address = _address_in(self._list(), pod_name)
                except ProviderError:
                    address = None
        if address is None:
            return None
        if self._given.get(pod_name) == address:
            return address
        if not give_sources(address, self._payload()):
            return None
        self._given[pod_name] = address
        return address

    def body(self, request: PodRequest) -> dict[str, Any]:
        """See ``create_body``."""
        return create_body(
            request, self._keys, self._payload(), self._image, self._environment, self._api.key
        )

    # -- how -------------------------------------------------------------------------------------

    def _end(self, pod_id: str) -> bool:
        # No instance of theirs has another id.
        return pod_id.isdecimal() and self._api.destroy(pod_id)

    def _bill_of(self, pod_id: str) -> Bill | None:
        return self._biller.bill(pod_id)

    def expect(self, pod_id: str) -> None:
        self._seen.expect(pod_id)

    def _look(self) -> list[Instance]:
        """All instances: those of the list, and those that it lacks and that exist all the same."""
        listed = self._api.instances()
        lacking = self._seen.unlisted(each.id for each in listed)
        asked = (self._api.instance(each) for each in lacking if each.isdecimal())
        listed += [each for each in asked if each is not None]
        at = self._now()
        for each in listed:
            self._seen.alive(
                each.id, each.name, rate=each.rate, disk_gb=each.disk_gb,
                made_at=each.made_at, started_at=each.made_at, at=at,
            )  # fmt: skip
        self._seen.missed((each.id for each in listed), at)
        return listed

    def _pod_seen(self, each: Instance) -> PodSeen:
        sighting = self._seen.get(each.id)
        rate = each.rate or (sighting.rate if sighting is not None else ZERO)
        status = _STATUS.get(each.actual, PodStatus.UNKNOWN)
        if each.intended not in ("", "running"):
            # By its host, a higher bid, its own key, or for want of credit.
            status = PodStatus.STOPPED if each.actual in _STOPPED else PodStatus.UNKNOWN
        if status is PodStatus.RUNNING and each.address is None:
            status = PodStatus.CREATING
        disk_rate = each.disk_rate
        if disk_rate is None:
            disk_rate = price_per_hour(NAME, "running", each.disk_gb)
        host, port = each.address or ("", 0)
        return PodSeen(
            pod_id=each.id,
            name=each.name,
            status=status,
            rate=rate,
            disk_rate=disk_rate,
            host=host,
            port=port,
            made_at=each.made_at,
            region=each.country,
        )


def _address_in(instances: Sequence[Instance], pod_name: str) -> tuple[str, int] | None:
    named = labelled(instances, pod_name)
    return next((e.address for e in named if e.actual == "running" and e.address), None)


# -- a container that waits for the agent's sources ----------------------------------------------

CONNECT_S = 3.0
GIVE_S = 20.0
_MOST_GREETING = 256


def give_sources(address: tuple[str, int], payload: bytes) -> bool:
    """Whether an SSH server answers at ``address``. A container that waits there for the archive
    of the agent's sources is sent it, and has its SSH server a moment later. The archive is no
    secret, and the container takes no other than the one that it was created with."""
    try:
        with socket.create_connection(address, CONNECT_S) as to_pod:
            to_pod.settimeout(CONNECT_S)
            greeting = to_pod.recv(_MOST_GREETING)
            if greeting.startswith(b"SSH-"):
                return True
            if greeting.startswith(GREETING):
                to_pod.settimeout(GIVE_S)
                to_pod.sendall(payload)
                to_pod.recv(_MOST_GREETING)  # it has been taken, or refused: the next look tells
    except OSError:
        pass
    return False


# -- boot ----------------------------------------------------------------------------------------

_FATAL = (
    "manifest unknown",
    "manifest for",
    "pull access denied",
    "no space left on device",
    "toomanyrequests",
    "unsatisfied condition: cuda",
    "could not select device driver",
    "nvidia-container-cli",
    "failed to register layer",
    "oci runtime create failed",
)
_TROUBLE = ("error", "failed", "fail", "denied", "timeout", "unable")


def trouble_of(instance: Instance) -> BootTrouble | None:
    """The trouble of an instance that boots, by its host's message; None where it tells none.

    A message of an instance that runs, or a "success", is no trouble.
    """
    text = instance.message.casefold()
    if not text or instance.actual == "running" or text.startswith("success"):
        return None
    if any(words in text for words in _FATAL):
        return BootTrouble(instance.message, fatal=True)
    if any(words in text for words in _TROUBLE) or instance.actual in ("exited", "offline"):
        return BootTrouble(instance.message, fatal=False)
    return None


# -- bills ---------------------------------------------------------------------------------------

UNCHANGED_S = 1800.0
"""vast.ai does not say how late charges come: a bill that stood still for so long is complete."""
NO_CHARGES_S = 6 * 3600.0
_DAY_S = 86_400.0


class Biller(RecordBiller[Charge]):
    """By vast.ai's charges. An instance that was never charged is billed by its rate after
    ``NO_CHARGES_S``."""

    def __init__(self, api: VastApi, sightings: Sightings, now: Callable[[], float]) -> None:
        super().__init__(NAME, sightings, now)
        self._api = api

    def _records(self, pod_id: str, since: float, now: float) -> list[Charge]:
        charges = self._api.charges(since // _DAY_S * _DAY_S, now)
        return [charge for charge in charges if charge.instance == pod_id]

    def _total(self, records: list[Charge]) -> Usd:
        return sum((charge.amount for charge in records), ZERO)

    def _is_complete(
        self, sighting: Sighting, gone_at: float, records: list[Charge], now: float
    ) -> bool:
        since = sighting.billed_since if sighting.billed_since is not None else now
        return now - max(gone_at, since) >= (UNCHANGED_S if records else NO_CHARGES_S)
