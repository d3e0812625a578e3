"""``trmcloud export``: a launch as a script."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from trmcloud.cli import options
from trmcloud.cli.views.json_output import print_document
from trmcloud.cli.views.text import duration
from trmcloud.export import writing
from trmcloud.operations import views
from trmcloud.operations.commands.commands import CommandRequest
from trmcloud.operations.launch.sweeping import SweepRequest
from trmcloud.operations.plans.plan_views import spread
from trmcloud.operations.views import filled, note
from trmcloud.options import LaunchRequest
from trmcloud.wiring import trainer_package
from trmcloud.wiring_plans import build_planner, shipped_offers, task_names


@options.with_options("export")
def export(
    request: LaunchRequest,
    asked: CommandRequest,
    search: SweepRequest,
    form: Annotated[str, typer.Option("--as", help="Format: bash, sbatch or sky.")] = "bash",
    nodes: Annotated[int, typer.Option(min=1, max=64, help="Number of machines (--as sky).")] = 1,
    output: Annotated[
        str, typer.Option("-o", "--output", help="File to write (default: train_HARDWARE_PHASE).")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: options.Json = False,
) -> None:
    """Write a standalone version of a launch that stops at its budget: a script, or a SkyPilot task
    with its script. With settings to search (lr=log:1e-3,1e-1), of a sweep.

    Example: trmcloud export 8xA100 --phase fast --as sbatch --data /data/text
    """
    planner, names = build_planner(), task_names()
    if request.hardware == "all" and form == writing.SKY:
        trm, now = planner.recipe("trm"), time.time()
        folder = Path(output or "sky")
        written = writing.write_guides(folder, trm, shipped_offers, names, now, force=force)
        if as_json:
            files = tuple(map(str, written))
            empty = dict.fromkeys(("hardware", "duration_s", "cost_p50_usd", "worst_case_usd"))
            print_document(
                views.ExportedFiles(form=form, files=files, hard_stop_s=None, notes=(), **empty)
            )
            return
        for path in written:
            print(path)
        return
    wished = writing.ExportRequest(request, form, nodes, output, force, asked, search)
    made = writing.write(wished, planner, trainer_package(), names)
    chosen, carrier = made.chosen, made.carrier
    if as_json:
        said = [note(reason.about.value, reason.text) for reason in chosen.reasons]
        said += [note("data_source", made.data_words)] if made.data_words else []
        exported = filled(
            views.ExportedFiles,
            chosen,
            form=form,
            files=tuple(dict.fromkeys((str(made.path), str(carrier)))),
            duration_s=spread(chosen.hours, 3600.0),
            notes=tuple(said),
        )
        print_document(exported)
        return
    print(f"{made.path}: {chosen.hardware}, about {chosen.hours.p50:,.2f} h and {chosen.cost_p50}")
    print(f"  killed {duration(chosen.hard_stop_s)} after its start, at most {chosen.worst_case}")
    if made.data_words:
        print(f"  · data: {made.data_words}")
    for reason in chosen.reasons:
        print(f"  · {reason.text}")
    if carrier != made.path:
        print(f"  · it sends {carrier.name}: run sky launch {made.path.name} in its folder")
