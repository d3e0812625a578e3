"""``trmcloud export``: a launch as a script that stands by itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from trmcloud.cli import options
from trmcloud.core.errors import DataError, DoesNotFit, NotSupported, UsageError


def command(
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
    from trmcloud.app.export.payload import make_payload
    from trmcloud.app.export.script import BASH, FORMS, SBATCH, script
    from trmcloud.cli import export_task
    from trmcloud.cli.plan_making import make_spec, plan_for
    from trmcloud.wiring import trainer_package

    sky = form == "sky"
    if form not in FORMS and not sky:
        raise UsageError(f"--as is one of {', '.join(FORMS)}, sky, not {form!r}")
    if hardware == "all":
        if not sky:
            raise UsageError("all goes with --as sky", next_step="name the hardware: 8xA100")
        for path in export_task.write_all(Path(output or "sky"), force=force):
            print(path)
        return
    if nodes > 1 and not sky:
        raise UsageError(
            "--nodes goes with --as sky", next_step="a script reads NODES, NODE_RANK and HEAD"
        )
    if sky and hardware == "local":
        raise UsageError("SkyPilot rents; this machine needs none", next_step="--as bash")
    spec = make_spec(
        budget=budget, recipe=recipe, phase=phase, hardware=hardware, rate=rate, data=data,
        steps=steps, hours=hours, settings=setting or [], processes=processes,
        providers=export_task.clouds() if sky else None,
    )  # fmt: skip
    if spec.nodes > 1:
        raise UsageError(
            f"an exported script is made for one machine, and shares it out: {spec.hardware}",
            next_step=f"{spec.hardware.partition('x')[2]} --as sky --nodes {spec.nodes}",
        )
    suffix = {BASH: ".sh", SBATCH: ".sbatch"}.get(form, ".yaml")
    path = Path(output or f"train_{spec.hardware}_{phase}{suffix}")
    carrier = path.with_suffix(".sh") if sky else path
    for each in {path, carrier}:
        if each.exists() and not force:
            export_task.refuse_to_replace(each)
    plan = plan_for(spec)
    chosen = plan.recommended
    if chosen is None:
        raise DoesNotFit(
            "nothing in this plan can be run",
            next_step="trmcloud plan, with more budget or other hardware",
        )
    if not plan.launchable:
        raise NotSupported(
            f"{recipe} can be planned, not trained: its trainer is not there yet",
            next_step="--recipe trm or trm-tiny",
        )
    source = data or chosen.phases[0].settings.data or (export_task.DEFAULT_DATA if sky else "")
    if not source:
        raise DataError(f"recipe {recipe} brings no data of its own", next_step="--data PATH")
    payload = make_payload(trainer_package())
    text = script(plan, chosen, payload, form=BASH if sky else form, data=source)
    carrier.write_text(text, encoding="utf-8")
    os.chmod(carrier, 0o755)
    if sky:
        beside = f"./{carrier.name}"
        task = export_task.make(
            plan, chosen, data=source, path=Path(path.name), script=beside, nodes=nodes
        )
        path.write_text(task, encoding="utf-8")
    print(f"{path}: {chosen.hardware}, about {chosen.hours.p50:,.2f} h and {chosen.cost_p50}")
    print(f"  killed {chosen.hard_stop_s:,.0f} s after its start, at most {chosen.worst_case}")
    for reason in chosen.reasons:
        print(f"  · {reason}")
    if sky:
        print(f"  · it sends {carrier.name}: sky launch {path.name}, from its folder")
