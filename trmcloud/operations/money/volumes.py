"""Network volumes of a ledger: which there are, their price, and their deletion."""

from __future__ import annotations

from trmcloud.core.catalog.providers import TRAITS, rentable
from trmcloud.core.control.events import VolumeDeleted
from trmcloud.core.storage import price_per_hour, price_per_month
from trmcloud.operations.context import Context
from trmcloud.operations.machines import UnreachableProvider
from trmcloud.operations.views import VolumeRow
from trmcloud.ports.compute import VolumeSeen

_HOURS_PER_DAY = 24


def kept_volumes(context: Context) -> list[tuple[str, VolumeSeen]]:
    """Return (provider, volume), wherever they are rented.

    Raises:
        AuthError: there is no key.
    """
    names = [name for name in rentable() if TRAITS[name].machines.network_volumes]
    computes = context.machines.computes
    there = [name for name in names if not isinstance(computes[name], UnreachableProvider)]
    for name in there or names:
        context.machines.require_reach(name)
    found = [(name, row) for name in there for row in computes[name].kept_volumes()]
    return sorted(found, key=lambda row: (row[1].place, row[1].volume_id))


def volume_row(provider: str, volume: VolumeSeen) -> VolumeRow:
    return VolumeRow(
        id=volume.volume_id,
        name=volume.name,
        provider=provider,
        data_centre=volume.place,
        size_gb=volume.size_gb,
        per_month_usd=price_per_month(provider, "kept", volume.size_gb),
        per_day_usd=price_per_hour(provider, "kept", volume.size_gb) * _HOURS_PER_DAY,
    )


def delete(context: Context, provider: str, volume: VolumeSeen) -> None:
    """Delete a volume and everything on it, and put that on record."""
    compute = context.machines.computes[provider]
    compute.delete_volume(volume.volume_id)
    # Where another one of the same place is left, its rent goes on.
    if all(row.place != volume.place for row in compute.kept_volumes()):
        context.ledger.note(VolumeDeleted(provider, volume.place, ""), context.wall())
