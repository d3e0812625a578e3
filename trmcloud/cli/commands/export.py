"""``trmcloud export``: a launch as a script that stands by itself."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from trmcloud.cli import options
from trmcloud.options import LaunchRequest


@options.with_options("export")
def export(
    request: LaunchRequest,
    form: Annotated[str, typer.Option("--as", help="bash, sbatch or sky.")] = "bash",
    nodes: Annotated[int, typer.Option(min=1, max=64, help="Machines (--as sky).")] = 1,
    output: Annotated[
        str, typer.Option("-o", "--output", help="File to write; train_HARDWARE_PHASE otherwise.")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
) -> None:
    """Write the standalone equivalent of a launch: a script, or a SkyPilot task and its script,
    that stops at its budget.

    Example: trmcloud export 8xA100 --phase fast --as sbatch --data /data/text
    """
    from trmcloud.export import writing
    from trmcloud.wiring import trainer_package
    from trmcloud.wiring_plans import build_planner, shipped_offers
    from trmcloud.wiring_skypilot import skypilot_names

    planner, names = build_planner(), skypilot_names()
    if request.hardware == "all" and form == writing.SKY:
        trm, now = planner.recipe("trm"), time.time()
        folder = Path(output or "sky")
        for path in writing.write_guides(folder, trm, shipped_offers, names, now, force=force):
            print(path)
        return
    asked = writing.ExportRequest(request, form, nodes, output, force)
    made = writing.write(asked, planner, trainer_package(), names)
    chosen, carrier = made.chosen, made.carrier
    print(f"{made.path}: {chosen.hardware}, about {chosen.hours.p50:,.2f} h and {chosen.cost_p50}")
    print(f"  killed {chosen.hard_stop_s:,.0f} s after its start, at most {chosen.worst_case}")
    if made.data_words:
        print(f"  · data: {made.data_words}")
    for reason in chosen.reasons:
        print(f"  · {reason.text}")
    if carrier != made.path:
        print(f"  · it sends {carrier.name}: sky launch {made.path.name}, from its folder")
