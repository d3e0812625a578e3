"""``trmcloud prune``: delete all checkpoints but the best and the latest."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trmcloud.cli.streams import as_is

if TYPE_CHECKING:
    from trmcloud.core.manifest import Pruning


def command(
    run: Annotated[str, typer.Argument(help="A run's id; the newest otherwise.")] = "",
    keep_best: Annotated[
        int | None, typer.Option(help="How many best of each phase stay (default: the recipe's).")
    ] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Delete checkpoints, never the best of a phase nor its latest; on a rented pod or in the run's
    bucket, there too. In a bucket the optimizer's state of what nothing goes on from goes first.

    Example: trmcloud prune r-1f3a9c --keep-best 1 -y
    """
    from trmcloud.app import bucket_checkpoints, checkpoints, pod_checkpoints
    from trmcloud.app.world import find_run
    from trmcloud.cli.asking import confirmed
    from trmcloud.cli.catching_up import catch_up
    from trmcloud.core.errors import ConflictError, LinkError, UsageError
    from trmcloud.wiring import build_world

    if keep_best is not None and keep_best < 1:
        raise UsageError("--keep-best is at least 1: the best checkpoint is never deleted")
    world = build_world()
    catch_up(world)
    state = find_run(world, run or None)
    pod = pod_checkpoints.live_pod(state)
    if state.live and (pod is None or state.bucket):
        raise ConflictError(
            f"{state.run_id} is running, and prunes by itself",
            next_step=f"trmcloud stop {state.run_id}, then prune",
        )
    asked = pod_checkpoints.on_pod(world, state)
    if asked.silent:
        raise LinkError(f"{state.run_id}'s pod does not answer now", next_step="try again later")
    here = checkpoints.plan_pruning(world, state, keep_best)
    there = checkpoints.what_to_prune(asked.manifests, keep_best)
    found = bucket_checkpoints.in_bucket(world, state)
    if found.trouble is not None:
        raise found.trouble
    stored = checkpoints.what_to_prune([one.manifest for one in found.shelf.whole], keep_best)
    dropped = bucket_checkpoints.optimizers_to_drop(stored)
    pruning = {"": here} | ({" on its pod": there} if pod is not None else {})
    freed = sum(each.freed_bytes for each in (here, there))
    freed += bucket_checkpoints.freed_bytes(stored)
    if as_json:
        more = {"pod": _as_json(there)} if pod else {}
        if found.place:
            more["bucket"] = _as_json(stored) | {"drop_optimizer": [m.label for m in dropped]}
        print(json.dumps(_as_json(here, freed) | more), file=as_is())
    else:
        for place, each in pruning.items():
            _show(each, place)
        if pod is not None:
            print(f"  {pod_checkpoints.what_keeping_costs(world, state, there)}")
        if found.place:
            _show(stored, f" in {found.place}")
            for manifest in dropped:
                print(f"  drop   {manifest.label}'s optimizer state: nothing goes on from it")
            print(f"  {bucket_checkpoints.what_keeping_costs(found, stored)}")
    if not any(each.checkpoints for each in (here, there, stored)) and not dropped:
        return
    if not yes and not confirmed("  Delete?"):
        return
    checkpoints.prune(world, here)
    if there.checkpoints:
        pod_checkpoints.prune_there(world, state, there)
    if found.place:
        bucket_checkpoints.prune_there(world, state, found, stored)
    if not as_json:
        print(f"freed {freed / 1e6:,.1f} MB")


def _as_json(pruning: Pruning, freed: int | None = None) -> dict[str, Any]:
    return {
        "delete": [manifest.label for manifest in pruning.checkpoints],
        "keep": [manifest.label for manifest in pruning.kept],
        "freed_bytes": pruning.freed_bytes if freed is None else freed,
    }


def _show(pruning: Pruning, place: str) -> None:
    for word, manifests in (("delete", pruning.checkpoints), ("keep  ", pruning.kept)):
        for manifest in manifests:
            print(f"  {word} {manifest.label}  {manifest.size_bytes / 1e6:,.1f} MB{place}")
