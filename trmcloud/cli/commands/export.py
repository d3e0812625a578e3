"""``trmcloud export``: a launch as a script that stands by itself."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from trmcloud.cli import options


def command(
    typed: typer.Context,
    hardware: Annotated[
        str,
        typer.Argument(help="8xA100, other NxSKU, local, or all (--as sky).", metavar="HARDWARE"),
    ],
    form: Annotated[str, typer.Option("--as", help="bash, sbatch or sky.")] = "bash",
    recipe: options.Recipe = "trm",
    phase: options.Phase = "both",
    budget: options.Budget = None,
    rate: options.Rate = None,
    hours: options.Hours = None,
    steps: options.Steps = None,
    data: Annotated[
        str, typer.Option(help="Text, or prepared data, on the machine that runs it.")
    ] = "",
    setting: options.Settings = None,
    precision: options.Precision = "",
    scale_lr: options.ScaleLr = "",
    processes: options.Processes = 0,
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
    from trmcloud.cli.launch_request import request_of
    from trmcloud.export import writing
    from trmcloud.wiring import trainer_package
    from trmcloud.wiring_plans import build_planner, shipped_offers, task_names

    planner, names = build_planner(), task_names()
    if hardware == "all" and form == writing.SKY:
        trm, now = planner.recipe("trm"), time.time()
        folder = Path(output or "sky")
        for path in writing.write_guides(folder, trm, shipped_offers, names, now, force=force):
            print(path)
        return
    request = writing.ExportRequest(request_of(typed), form, nodes, output, force)
    made = writing.write(request, planner, trainer_package(), names)
    chosen, carrier = made.chosen, made.carrier
    print(f"{made.path}: {chosen.hardware}, about {chosen.hours.p50:,.2f} h and {chosen.cost_p50}")
    print(f"  killed {chosen.hard_stop_s:,.0f} s after its start, at most {chosen.worst_case}")
    if made.data_words:
        print(f"  · data: {made.data_words}")
    for reason in chosen.reasons:
        print(f"  · {reason.text}")
    if carrier != made.path:
        print(f"  · it sends {carrier.name}: sky launch {made.path.name}, from its folder")
