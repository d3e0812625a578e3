"""``trmcloud volumes``: network volumes of this ledger, which cost money until they are deleted."""

from __future__ import annotations

import getpass
import json
from typing import TYPE_CHECKING, Annotated

import typer

from trmcloud.cli.views.streams import as_is

if TYPE_CHECKING:
    from trmcloud.app.context import Context
    from trmcloud.ports.compute import VolumeSeen

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    invoke_without_command=True,
    help="Network volumes that this ledger made, and what they cost until they are deleted.\n\n"
    "Example: trmcloud volumes",
)

_HOURS_PER_DAY = 24


@app.callback()
def show(
    typed: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    if typed.invoked_subcommand is not None:
        return
    from trmcloud.cli.views.text import table
    from trmcloud.cli.views.volumes import volume_lines
    from trmcloud.core.money import total
    from trmcloud.core.storage import volume_per_month, volume_rate
    from trmcloud.wiring import build_context

    context = build_context()
    found = _there(context)
    priced = [
        (name, row, volume_rate(name, row.size_gb) * _HOURS_PER_DAY,
         volume_per_month(name, row.size_gb))
        for name, row in found
    ]  # fmt: skip
    if as_json:
        rows = [
            {
                "id": volume.volume_id,
                "name": volume.name,
                "provider": provider,
                "data_centre": volume.place,
                "size_gb": volume.size_gb,
                "usd_per_month": float(month),
                "usd_per_day": float(day),
            }
            for provider, volume, day, month in priced
        ]
        print(json.dumps(rows, indent=1), file=as_is())
        return
    if not found:
        print("this ledger has no network volumes: nothing is charged for any")
        return
    header = ("volume", "data centre", "size", "a day", "a month")
    lines = [
        (volume.volume_id, volume.place, f"{volume.size_gb} GB", str(day), str(month))
        for _, volume, day, month in priced
    ]
    print("\n".join(table(header, lines)))
    print(
        f"{total(month for *_, month in priced)} a month until deleted · trmcloud volumes delete ID"
    )
    for text in volume_lines(context.ledger.read(), context.wall()):
        print(text)


@app.command("delete")
def delete(
    volume: Annotated[
        str, typer.Argument(help="Its id, or its data centre, as trmcloud volumes shows them.")
    ],
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
) -> None:
    """Delete a network volume and everything on it.

    Example: trmcloud volumes delete 3k2j1h9g8f
    """
    from trmcloud.cli.asking import confirmed
    from trmcloud.core.control.events import VolumeDeleted
    from trmcloud.core.errors import NotFoundError
    from trmcloud.core.storage import volume_per_month
    from trmcloud.wiring import build_context

    context = build_context()
    there = _there(context)
    found = next((row for row in there if volume in (row[1].volume_id, row[1].place)), None)
    if found is None:
        raise NotFoundError(
            f"{volume} is no network volume of this ledger", next_step="trmcloud volumes"
        )
    provider, own = found
    if not yes:
        what = f"{own.size_gb} GB in {own.place}, checkpoints and all"
        if not confirmed(f"  Delete {own.volume_id} ({what})?"):
            print("nothing was deleted")
            return
    compute = context.computes[provider]
    compute.delete_volume(own.volume_id)
    # Where another one of the same place is left, its rent goes on.
    if all(row.place != own.place for row in compute.kept_volumes()):
        deleted = VolumeDeleted(provider, own.place, getpass.getuser())
        context.ledger.note(deleted, context.wall())
    month = volume_per_month(provider, own.size_gb)
    print(f"deleted {own.volume_id}: {month} a month less")


def _there(context: Context) -> list[tuple[str, VolumeSeen]]:
    """(provider, volume), wherever they are rented.

    Raises:
        AuthError: there is no key.
    """
    from trmcloud.app.out_of_reach import OutOfReach, require_reach
    from trmcloud.core.catalog.providers import TRAITS, rentable

    names = [name for name in rentable() if TRAITS[name].network_volumes]
    there = [name for name in names if not isinstance(context.computes[name], OutOfReach)]
    for name in there or names:
        require_reach(context, name)
    found = [(name, row) for name in there for row in context.computes[name].kept_volumes()]
    return sorted(found, key=lambda row: (row[1].place, row[1].volume_id))
