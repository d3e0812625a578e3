"""``trmcloud fetch-best``: bring the best checkpoint home, verified."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from trmcloud.cli.views.progress import Progress
from trmcloud.cli.views.streams import as_is


def fetch_best(
    run: Annotated[str, typer.Argument(help="A run's id; the newest otherwise.")] = "",
    into: Annotated[
        str, typer.Option("--into", help="Folder to make (default: RUN-PHASE-STEP here).")
    ] = "",
    weights_only: Annotated[
        bool,
        typer.Option(
            "--for-inference",
            "--weights-only",
            help="Leave the optimizer's state behind.",
        ),
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
    alone comes from it.

    Example: trmcloud fetch-best r-1f3a9c --for-inference
    """
    from trmcloud.app.checkpoints import fetching
    from trmcloud.app.context import find_run
    from trmcloud.app.run_queries import told_by
    from trmcloud.cli.catching_up import catch_up
    from trmcloud.cli.fetch_errand import bring_from_volume
    from trmcloud.cli.views.metric import score_rows
    from trmcloud.cli.views.own_files import own_files
    from trmcloud.cli.views.text import not_evaluated
    from trmcloud.core.contract.command import RECIPE
    from trmcloud.wiring import build_context

    context = build_context()
    catch_up(context)
    state = bring_from_volume(context, find_run(context, run or None), yes=yes)
    found = fetching.find_best(
        context, state, phase=phase or None, step=step, weights_only=weights_only
    )
    best = found.manifest
    for missed in found.missed:
        print(f"{state.run_id}: {missed}", file=sys.stderr)
    if best.val_bpb is None and step is None:
        print(not_evaluated(best), file=sys.stderr)
    folder = Path(into).expanduser() if into else fetching.default_folder(best, Path.cwd())
    progress = Progress("" if found.source.durable else "from its pod")
    fetched = fetching.fetch(
        context, state, found, folder, weights_only=weights_only, progress=progress
    )
    if as_json:
        print(fetching.to_json(fetched), file=as_is())
        return
    word = "already there, verified" if fetched.already_there else "fetched and verified"
    print(f"{state.run_id} {best.label}: {word}")
    metric = score_rows(state.spec.command, told_by(state, best))
    if best.recipe == RECIPE:
        print("\n".join(own_files(fetched, metric)))
        return
    print("\n".join(metric))
    print(f"  weights         sha256 {best.sha256}")
    print(f"  lies in         {fetched.folder.absolute()}")
