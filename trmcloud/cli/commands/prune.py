"""``trmcloud prune``: delete all checkpoints but the best and the latest."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trmcloud.cli.views.streams import as_is

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trmcloud.app.checkpoints.pruning import SourcePruning


def prune(
    run: Annotated[str, typer.Argument(help="A run's id; the newest otherwise.")] = "",
    keep_best: Annotated[
        int | None, typer.Option(help="How many best of each phase stay (default: the recipe's).")
    ] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Delete checkpoints, never the best of a phase nor its latest, nor, in the week after the run,
    what was saved before the cooldown of that; on a rented pod or in the run's bucket, there too.
    In a bucket the optimizer's state of what nothing goes on from goes first.

    Example: trmcloud prune r-1f3a9c --keep-best 1 -y
    """
    from trmcloud.app.checkpoints import pruning
    from trmcloud.app.context import find_run
    from trmcloud.cli.asking import confirmed
    from trmcloud.cli.catching_up import catch_up
    from trmcloud.core.errors import UsageError
    from trmcloud.wiring import build_context

    if keep_best is not None and keep_best < 1:
        raise UsageError("--keep-best is at least 1: the best checkpoint is never deleted")
    context = build_context()
    catch_up(context)
    planned = pruning.plan(context, find_run(context, run or None), keep_best)
    freed = sum(each.freed_bytes for each in planned)
    if as_json:
        print(json.dumps(_as_json(planned, freed)), file=as_is())
    else:
        for each in planned:
            _show(each)
    if all(each.empty for each in planned):
        return
    if not yes and not confirmed("  Delete?"):
        return
    pruning.carry_out(planned)
    if not as_json:
        print(f"freed {freed / 1e6:,.1f} MB")


def _as_json(planned: Sequence[SourcePruning], freed: int) -> dict[str, Any]:
    here, *elsewhere = planned
    told: dict[str, Any] = {**_labels(here), "freed_bytes": freed}
    for each in elsewhere:
        told[each.source.name] = {**_labels(each), "freed_bytes": each.pruning.freed_bytes}
        if each.source.name == "bucket":
            told["bucket"]["drop_optimizer"] = [manifest.label for manifest in each.dropped]
    return told


def _labels(each: SourcePruning) -> dict[str, list[str]]:
    return {
        "delete": [manifest.label for manifest in each.pruning.checkpoints],
        "keep": [manifest.label for manifest in each.pruning.kept],
    }


def _show(each: SourcePruning) -> None:
    rows = (("delete", each.pruning.checkpoints), ("keep  ", each.pruning.kept))
    for word, manifests in rows:
        for manifest in manifests:
            print(
                f"  {word} {manifest.label}  {manifest.size_bytes / 1e6:,.1f} MB{each.source.place}"
            )
    for manifest in each.dropped:
        print(f"  drop   {manifest.label}'s optimizer state: nothing goes on from it")
    if cost := each.source.daily_cost(each.pruning):
        print(f"  {cost}")
