"""``trmcloud fetch-best``: bring the best checkpoint home, verified."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from trmcloud.cli.streams import as_is, draw
from trmcloud.cli.text import duration
from trmcloud.core.plain_text import one_line


def command(
    run: Annotated[str, typer.Argument(help="A run's id; the newest otherwise.")] = "",
    into: Annotated[
        str, typer.Option("--into", help="Folder to make (default: RUN-PHASE-STEP here).")
    ] = "",
    weights_only: Annotated[
        bool, typer.Option("--weights-only", help="Leave the optimizer's state behind.")
    ] = False,
    phase: Annotated[str, typer.Option(help="fast or extreme; the last one otherwise.")] = "",
    step: Annotated[int | None, typer.Option(help="This step, not the best one.")] = None,
    yes: Annotated[
        bool, typer.Option("-y", "--yes", help="Rent a machine for it without asking.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Copy the best checkpoint (lowest validation bits per byte), verifying every hash. Where none
    was evaluated yet it is the latest.

    What lies in the run's bucket comes from there, with or without a pod; what lies on a rented pod
    alone is pulled from it first.

    Example: trmcloud fetch-best r-1f3a9c --weights-only
    """
    from trmcloud.app import bucket_checkpoints, checkpoints, pod_checkpoints
    from trmcloud.app.world import find_run
    from trmcloud.cli.catching_up import catch_up
    from trmcloud.cli.fetch_errand import bring_from_volume
    from trmcloud.cli.text import bpb, losses, not_evaluated
    from trmcloud.wiring import build_world

    world = build_world()
    catch_up(world)
    state = bring_from_volume(world, find_run(world, run or None), yes=yes)
    asked = pod_checkpoints.on_pod(world, state)
    found = bucket_checkpoints.in_bucket(world, state)
    on_pod = [m for m in asked.manifests if found.stored(m) is None]
    there = pod_checkpoints.lacking_here(world, state, on_pod, weights_only=weights_only)
    stored = [one.manifest for one in found.shelf.whole]
    elsewhere = pod_checkpoints.lacking_here(world, state, stored, weights_only=weights_only)
    if found.trouble is not None:
        if not (there or world.files.manifests(state.run_id)):
            raise found.trouble
        print(
            f"{state.run_id}: {found.trouble}; this is what is to be had without it",
            file=sys.stderr,
        )
    if asked.silent and not found.place:
        print(
            f"{state.run_id}: its pod does not answer now; this is what is here of its checkpoints",
            file=sys.stderr,
        )
    best = checkpoints.choose(
        world, state, phase=phase or None, step=step, also=[*there, *elsewhere],
        told=[*on_pod, *stored], half=found.shelf.half,
    )  # fmt: skip
    if best.val_bpb is None and step is None:
        print(not_evaluated(best), file=sys.stderr)
    if (best.label, best.sha256) in {(m.label, m.sha256) for m in there}:
        names = pod_checkpoints.wanted_names(best, weights_only=weights_only)
        pod_checkpoints.bring(world, state, best, names, Progress("from its pod"))
    chosen = Path(into).expanduser() if into else None
    folder = chosen or checkpoints.default_folder(best, Path.cwd())
    fetched = checkpoints.fetch(
        world, state, best, folder, weights_only=weights_only, progress=Progress(),
        source=bucket_checkpoints.fetching(world, state, found, best, weights_only=weights_only),
    )  # fmt: skip
    if as_json:
        print(checkpoints.to_json(fetched), file=as_is())
        return
    word = "already there, verified" if fetched.already_there else "fetched and verified"
    print(f"{state.run_id} {best.label}: {word}")
    print(f"  final-step bpb  {bpb(best.val_bpb)}   ℓ {losses(best.step_losses)}")
    print(f"  weights         sha256 {best.sha256}")
    print(f"  lies in         {fetched.folder.absolute()}")


class Progress:
    """Megabytes on a terminal, with their speed and what is left; silence elsewhere."""

    def __init__(self, source: str = "") -> None:
        self._source = source
        self._began: float | None = None
        self._before = 0

    def __call__(self, done: int, total: int) -> None:
        if not sys.stderr.isatty():
            return
        now = time.monotonic()
        if self._began is None:
            self._began, self._before = now, done
        words = [f"{done / 1e6:,.1f} of {total / 1e6:,.1f} MB", self._source]
        took_s = now - self._began
        if took_s > 0.5 and done > self._before:
            rate = (done - self._before) / took_s
            words += [f"{rate / 1e6:,.1f} MB/s", f"{duration((total - done) / rate)} left"]
        end = "\r\x1b[K" if done == total else ""
        text = "\r\x1b[K  " + one_line(" · ".join(filter(None, words)))
        draw(text + end)
