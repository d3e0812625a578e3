"""``trmcloud volumes``: network volumes of this ledger, which cost money until they are deleted."""

from __future__ import annotations

import getpass
import json
from typing import Annotated

import typer

from trmcloud.cli.views.streams import as_is

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
    from trmcloud.wiring import build_context, build_volumes

    found = sorted(build_volumes().ours(), key=lambda volume: (volume.data_centre, volume.id))
    if as_json:
        rows = [
            {
                "id": volume.id,
                "name": volume.name,
                "provider": volume.provider,
                "data_centre": volume.data_centre,
                "size_gb": volume.size_gb,
                "usd_per_month": float(volume.per_month),
                "usd_per_day": float(volume.rate * _HOURS_PER_DAY),
            }
            for volume in found
        ]
        print(json.dumps(rows, indent=1), file=as_is())
        return
    if not found:
        print("this ledger has no network volumes: nothing is charged for any")
        return
    header = ("volume", "data centre", "size", "a day", "a month")
    lines = [
        (
            volume.id,
            volume.data_centre,
            f"{volume.size_gb} GB",
            str(volume.rate * _HOURS_PER_DAY),
            str(volume.per_month),
        )
        for volume in found
    ]
    print("\n".join(table(header, lines)))
    month = total(volume.per_month for volume in found)
    print(f"{month} a month until deleted · trmcloud volumes delete ID")
    context = build_context()
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
    from trmcloud.wiring import build_context, build_volumes

    volumes = build_volumes()
    found = next((row for row in volumes.ours() if volume in (row.id, row.data_centre)), None)
    if found is None:
        raise NotFoundError(
            f"{volume} is no network volume of this ledger", next_step="trmcloud volumes"
        )
    if not yes:
        what = f"{found.size_gb} GB in {found.data_centre}, checkpoints and all"
        if not confirmed(f"  Delete {found.id} ({what})?"):
            print("nothing was deleted")
            return
    volumes.delete(found.id)
    context = build_context()
    # Where another one of the same place is left, its rent goes on.
    if all(row.data_centre != found.data_centre for row in volumes.ours()):
        deleted = VolumeDeleted(found.provider, found.data_centre, getpass.getuser())
        context.ledger.note(deleted, context.wall())
    print(f"deleted {found.id}: {found.per_month} a month less")
