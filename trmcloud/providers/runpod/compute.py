"""RunPod as a ``Compute``: pods by REST v2, cross-checked by GraphQL while it lasts, billed by
its records; and network volumes.

Those are disks that outlive pods, one per ledger and data centre, made when first needed. They cost
money by the hour until they are deleted, whether a pod uses them or not.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from trmcloud.adapters.pod_history import Sightings
from trmcloud.core.catalog.torch_builds import POD_IMAGE
from trmcloud.core.contract.pod_contract import POD_PREFIX
from trmcloud.core.control.balance import AccountBalance
from trmcloud.core.control.observation import Bill, BootTrouble, PodSeen, PodStatus
from trmcloud.core.errors import (
    AmbiguousCreate,
    NotFoundError,
    NotSupported,
    ProviderError,
    ProviderRefused,
    UsageError,
)
from trmcloud.core.money import ZERO, Usd
from trmcloud.ports.compute import PodKeys, PodRequest, ProviderLimit, ThrottledError, VolumeSeen
from trmcloud.providers.listed import ListedCompute
from trmcloud.providers.runpod import models
from trmcloud.providers.runpod.account import GraphqlUnavailable, RunPodGraphql, RunPodMoney
from trmcloud.providers.runpod.api import RunPodApi
from trmcloud.providers.runpod.create import ANYWHERE, create_body
from trmcloud.providers.runpod.offers import read_catalogue
from trmcloud.providers.runpod.records import Biller, BootLogs

LIST_FRESH_NEW_S = 1.0
NEW_S = 20.0
"""For so long after a creation lists are looked at more often: a pod may be up in moments."""
ADDRESS_FRESH_S = 60.0
#: PodStatus in our words. RUNNING may be said from creation on, whether anything runs or not: a pod
#: runs once its SSH address is known, and that it answers there is the link's to find out. EXITED
#: still rents its disk, ERROR may rent everything; a status that is not in the contract may be
#: anything. All of them are "unknown", which counts as spending.
_STATUS: Mapping[str, PodStatus] = {
    "PROVISIONING": PodStatus.CREATING,
    "STARTING": PodStatus.CREATING,
    "RUNNING": PodStatus.RUNNING,
    "TERMINATED": PodStatus.GONE,
}


class RunPodCompute(ListedCompute[models.Pod]):
    """``volumes`` is None where none are to be made or found."""

    list_fresh_s = 2.0
    """RunPod allows 60 requests a minute."""
    untold_wait_s = 5.0
    not_ours = "{pod_id} has the name {name!r}: not a pod of trmcloud"
    if_yours = "if it is yours, end it in RunPod's console"

    def __init__(
        self,
        api: RunPodApi,
        graphql: RunPodGraphql,
        keys: Callable[[str], PodKeys],
        payload: Callable[[], bytes],
        *,
        now: Callable[[], float] = time.time,
        sightings: Sightings | None = None,
        image: str = POD_IMAGE,
        environment: Mapping[str, str] | None = None,
        volumes: RunPodVolumes | None = None,
    ) -> None:
        super().__init__(
            keys, payload, image=image, environment=environment, sightings=sightings, now=now,
            sleep=api.http.sleep,
        )  # fmt: skip
        self._api, self._graphql, self._volumes = api, graphql, volumes
        self._biller = Biller(api, self._seen, now)
        self._boot_logs = BootLogs(api, now)
        self._made_at = -inf
        self._money = RunPodMoney(api, graphql, now)

    # -- Compute ---------------------------------------------------------------------------------

    def _create(self, request: PodRequest) -> str:
        body = self.body(request)
        if request.volume_gb and not request.volume:
            if self._volumes is None or request.region in ANYWHERE:
                raise NotSupported(
                    "a network volume is in one data centre, but the offer has none",
                    next_step="--region DATA-CENTRE, or leave out --volume",
                )
            volume = self._volumes.ensure(request.region, request.volume_gb)
            body = self.body(replace(request, volume=volume.volume_id))
        with self._lock:
            # One that is asked for again and again was listed when that was decided.
            fresh_s = self.list_fresh_s if request.is_waited_for else 0.0
            listed = self._pods.read_before_create(fresh_s)
            existing = [pod for pod in listed if pod.name == request.name]
            if existing:
                return existing[0].id
            if request.is_waited_for:
                self._require_price(request)
            request.require_wanted()
            try:
                made = self._api.create_pod(body)
            finally:
                self._pods.forget()
                self._money.forget()
                self._made_at = self._now()
            self._note(made, self._now())
            return made.id

    def _require_price(self, request: PodRequest) -> None:
        """
        Raises:
            ProviderRefused: the catalogue lists this hardware for more than was reserved. One that
                cannot be read refuses nothing: what a pod bills is held against it, too.
        """
        try:
            listed = read_catalogue(self._api.catalogue)
        except ThrottledError:
            raise
        except ProviderError:
            return
        rates = [
            row.rate * request.nodes
            for row in listed
            if (row.sku, row.gpus) == (request.sku, request.gpus)
            and (request.community or not row.community)
        ]
        if rates and min(rates) > request.rate:
            raise ProviderRefused(
                f"RunPod lists {request.gpus}x {request.sku} for {min(rates)}/h now, more than the "
                f"limit of {request.rate}/h"
            )

    def bill(self, pod_id: str) -> Bill | None:
        """Return the bill of its records, or of its rate where that is more, until they are
        complete."""
        with self._lock:
            self._list()
        return super().bill(pod_id)

    # -- beyond Compute --------------------------------------------------------------------------

    def cross_listed(self) -> Sequence[PodSeen]:
        """Pods that v2's list does not show: by GraphQL's list; where GraphQL cannot be had any
        more, by v2's list with the members of clusters in it, and by what is still billed."""
        known = {pod.id for pod in self._list()}
        try:
            second = self._graphql.pods()
        except GraphqlUnavailable:
            members = [self._pod_seen(pod) for pod in self._api.pods(cluster_members=True)]
            known_too = known | {pod.pod_id for pod in members}
            second = [*members, *self._biller.billed_on(known_too)]
        return tuple(pod for pod in second if pod.pod_id not in known)

    def boot_trouble(self, pod_id: str) -> BootTrouble | None:
        """As the port says: by the pod's log, read every ten seconds at most."""
        return self._boot_logs.trouble(pod_id)

    def kept_volumes(self) -> Sequence[VolumeSeen]:
        """As the port says: those that bear this ledger's name and stand where that says."""
        return self._volumes.ours() if self._volumes is not None else []

    def delete_volume(self, volume_id: str) -> None:
        """As the port says."""
        if self._volumes is not None:
            with contextlib.suppress(NotFoundError):  # somebody was quicker
                self._volumes.delete(volume_id)

    def balance(self) -> AccountBalance:
        """As the port says."""
        return self._money.account()

    def own_limits(self, pod_name: str) -> Sequence[ProviderLimit]:
        """The balance, where the account is prepaid."""
        return self._money.limits()

    def lapsing(self, until: float, pod_name: str = "") -> Mapping[str, str]:
        """As the port says: a balance that is not known to end everything counts as absent."""
        limit = next(iter(self._money.limits()), None)
        if limit is not None and limit.armed:
            return {}
        return {"prepaid": limit.detail if limit is not None else "the balance cannot be read now"}

    def require_account(self, rate: Usd) -> None:
        """Money is looked at where the key may: a create is refused
        without it all the same.

        Raises:
            AuthError, PaymentRequired, ProviderError
        """
        self._list(fresh=True)
        self._money.require(rate)

    def address_of(self, pod_name: str) -> tuple[str, int] | None:
        """Return the address of the pod's own SSH server; None until RunPod has named it.

        One that is known serves for a minute: it changes only when a pod restarts, and
        ``status`` over many pods must not ask for each.
        """
        with self._lock:
            pods = self._pods.rows
            known = next(
                (pod.address for pod in pods if pod.name == pod_name and pod.address), None
            )
            if known is not None and self._pods.age_s < ADDRESS_FRESH_S:
                return known
            try:
                return _address_in(self._list(), pod_name)
            except ProviderError:
                return known

    def body(self, request: PodRequest) -> dict[str, Any]:
        """See ``create_body``."""
        return create_body(request, self._keys, self._payload(), self._image, self._environment)

    # -- how -------------------------------------------------------------------------------------

    def _list(self, *, fresh: bool = False) -> list[models.Pod]:
        if fresh:
            return self._pods.read()
        is_new = 0 <= self._now() - self._made_at < NEW_S
        return self._pods.get(LIST_FRESH_NEW_S if is_new else self.list_fresh_s)

    def _end(self, pod_id: str) -> bool:
        return self._api.delete_pod(pod_id)

    def _bill_of(self, pod_id: str) -> Bill | None:
        return self._biller.bill(pod_id)

    def _look(self) -> list[models.Pod]:
        listed = self._api.pods()
        at = self._now()
        alive = [pod for pod in listed if _STATUS.get(pod.status or "") is not PodStatus.GONE]
        for pod in alive:
            self._note(pod, at)
        self._seen.missed((pod.id for pod in alive), at)
        return listed

    def _note(self, pod: models.Pod, at: float) -> None:
        self._seen.alive(
            pod.id,
            pod.name,
            rate=pod.rate,
            disk_gb=pod.disk_gb,
            made_at=pod.made_at,
            started_at=pod.started_at,
            at=at,
        )

    def _pod_seen(self, pod: models.Pod) -> PodSeen:
        sighting = self._seen.get(pod.id)
        rate = pod.rate
        if not rate and sighting is not None:
            rate = sighting.rate
        host, port = pod.address or ("", 0)
        status = _STATUS.get(pod.status or "", PodStatus.UNKNOWN)
        if status is PodStatus.RUNNING and pod.address is None:
            status = PodStatus.CREATING
        return PodSeen(
            pod_id=pod.id,
            name=pod.name,
            status=status,
            rate=rate if rate is not None else ZERO,
            disk_rate=pod.disk_rate,
            host=host,
            port=port,
            made_at=pod.made_at,
            region=pod.dataCenterId or "",
        )


def _address_in(pods: Sequence[models.Pod], pod_name: str) -> tuple[str, int] | None:
    return next((pod.address for pod in pods if pod.name == pod_name and pod.address), None)


# -- volumes ------------------------------------------------------------

MIN_GB, MAX_GB = 10, 4096


class RunPodVolumes:
    """``ledger_id`` is asked for when volumes are: pods are listed and ended without a ledger."""

    def __init__(self, api: RunPodApi, ledger_id: str | Callable[[], str]) -> None:
        self._api = api
        self._ledger_id = ledger_id

    @property
    def _prefix(self) -> str:
        named = self._ledger_id
        return f"{POD_PREFIX}-{named if isinstance(named, str) else named()}-"

    def ours(self) -> list[VolumeSeen]:
        """Volumes that this ledger made."""
        return [_seen(row) for row in self._rows()]

    def ensure(self, data_centre: str, size_gb: int) -> VolumeSeen:
        """The volume of this ledger in ``data_centre``, of at least ``size_gb``: reused, grown, or
        made.

        Raises:
            UsageError: a size that RunPod does not rent.
            AmbiguousCreate: one may have been made, and cannot be found (yet).
            ProviderError: as ``RunPodApi`` says.
        """
        if size_gb > MAX_GB:
            raise UsageError(f"a network volume holds at most {MAX_GB} GB, not {size_gb}")
        wanted = max(MIN_GB, size_gb)
        found = self._find(data_centre)
        if found is None:
            try:
                found = self._api.create_volume(self._prefix + data_centre, wanted, data_centre)
            except AmbiguousCreate:
                found = self._find(data_centre)
                if found is None:
                    raise
        if found.size < wanted:
            found = self._api.grow_volume(found.id, wanted)
        return _seen(found)

    def delete(self, volume_id: str) -> None:
        """End a volume of ours, and what it holds.

        Raises:
            NotFoundError: no volume of this ledger has this id.
            ProviderError: a pod still uses it, or RunPod did not take it.
        """
        if all(row.id != volume_id for row in self._rows()):
            raise NotFoundError(
                f"this ledger has no network volume {volume_id}",
                next_step="if another ledger made it, delete it in RunPod's console",
            )
        self._api.delete_volume(volume_id)

    def _rows(self) -> list[models.Volume]:
        rows = self._api.volumes()
        return [row for row in rows if row.name == self._prefix + row.dataCenter]

    def _find(self, data_centre: str) -> models.Volume | None:
        rows = [row for row in self._rows() if row.dataCenter == data_centre]
        # Two exist where an ambiguous create came late: every look must choose the same.
        return max(rows, key=lambda row: (row.size, row.id), default=None)


def _seen(row: models.Volume) -> VolumeSeen:
    if row.size < 0:
        raise ProviderError(f"RunPod says that volume {row.id} holds {row.size} GB")
    return VolumeSeen(row.id, row.dataCenter, row.size, row.name)
