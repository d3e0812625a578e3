"""Network volumes: disks that outlive pods, one per ledger and data centre, made when first needed.

They cost money by the hour until they are deleted, whether a pod uses them or not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from trmcloud.core.contract.pod_contract import POD_PREFIX
from trmcloud.core.errors import AmbiguousCreate, NotFoundError, ProviderError, UsageError
from trmcloud.core.money import Usd
from trmcloud.core.storage import volume_per_month, volume_rate
from trmcloud.providers.runpod import models
from trmcloud.providers.runpod.api import RunPodApi

MIN_GB, MAX_GB = 10, 4096


class NetworkVolume(NamedTuple):
    """``rate`` is USD per hour, ``per_month`` USD, both by the list price of standard storage."""

    id: str
    name: str
    size_gb: int
    data_centre: str
    rate: Usd
    per_month: Usd
    provider: str = "runpod"


class RunPodVolumes:
    """``ledger_id`` is asked for when volumes are: pods are listed and ended without a ledger."""

    def __init__(self, api: RunPodApi, ledger_id: str | Callable[[], str]) -> None:
        self._api = api
        self._ledger_id = ledger_id

    @property
    def _prefix(self) -> str:
        named = self._ledger_id
        return f"{POD_PREFIX}-{named if isinstance(named, str) else named()}-"

    def ours(self) -> list[NetworkVolume]:
        """Volumes that this ledger made."""
        return [_made(row) for row in self._rows()]

    def ensure(self, data_centre: str, size_gb: int) -> NetworkVolume:
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
        return _made(found)

    def delete(self, volume_id: str) -> None:
        """End a volume of ours, and what it holds.

        Raises:
            NotFoundError: no volume of this ledger has this id.
            ProviderError: a pod still uses it, or RunPod did not take it.
        """
        if all(row.id != volume_id for row in self._rows()):
            raise NotFoundError(
                f"{volume_id} is no network volume of this ledger",
                next_step="one that another ledger made is deleted in RunPod's console",
            )
        self._api.delete_volume(volume_id)

    def _rows(self) -> list[models.Volume]:
        rows = self._api.volumes()
        return [row for row in rows if row.name == self._prefix + row.dataCenter]

    def _find(self, data_centre: str) -> models.Volume | None:
        rows = [row for row in self._rows() if row.dataCenter == data_centre]
        # Two exist where an ambiguous create came late: every look must choose the same.
        return max(rows, key=lambda row: (row.size, row.id), default=None)


def _made(row: models.Volume) -> NetworkVolume:
    if row.size < 0:
        raise ProviderError(f"RunPod says that volume {row.id} holds {row.size} GB")
    return NetworkVolume(
        row.id,
        row.name,
        row.size,
        row.dataCenter,
        volume_rate("runpod", row.size),
        volume_per_month("runpod", row.size),
    )
