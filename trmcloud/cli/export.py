"""``trmcloud export``: a launch as a script that stands by itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from trmcloud.core.errors import ConflictError, DataError, DoesNotFit, NotSupported, UsageError


def command(
    hardware: Annotated[
        str, typer.Argument(help="8xA100, other NxSKU, or local.", metavar="HARDWARE")
    ],
    form: Annotated[str, typer.Option("--as", help="bash or sbatch.")] = "bash",
    recipe: Annotated[str, typer.Option(help="Recipe: a name or a TOML file.")] = "trm",
    phase: Annotated[str, typer.Option(help="fast, extreme or both.")] = "both",
    budget: Annotated[
        str | None, typer.Option(help="Most that may be spent, in USD.", metavar="USD")
    ] = None,
    rate: Annotated[
        str | None, typer.Option(help="This machine's USD per hour (local).", metavar="USD")
    ] = None,
    hours: Annotated[float | None, typer.Option(help="Hours of training.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps of each phase.")] = None,
    data: Annotated[
        str, typer.Option(help="Text, or prepared data, on the machine that runs it.")
    ] = "",
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any recipe key, repeatable.", metavar="KEY=VALUE"),
    ] = None,
    processes: Annotated[int, typer.Option(help="torchrun processes (local).")] = 0,
    output: Annotated[
        str, typer.Option("-o", "--output", help="File to write; train_HARDWARE_PHASE otherwise.")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
) -> None:
    """Write the standalone equivalent of a launch: one script that stops at its budget.

    Example: trmcloud export 8xA100 --phase fast --as sbatch --data /data/text
    """
    from trmcloud.app.export.payload import make_payload
    from trmcloud.app.export.script import FORMS, script
    from trmcloud.cli.plan_making import make_spec, plan_for
    from trmcloud.wiring import trainer_package

    if form not in FORMS:
        raise UsageError(f"--as is one of {', '.join(FORMS)}, not {form!r}")
    spec = make_spec(
        budget=budget, recipe=recipe, phase=phase, hardware=hardware, rate=rate, data=data,
        steps=steps, hours=hours, settings=setting or [], processes=processes,
    )  # fmt: skip
    name = f"train_{spec.hardware}_{phase}." + ("sh" if form == "bash" else "sbatch")
    path = Path(output or name)
    if path.exists() and not force:
        raise ConflictError("the file exists", where=str(path), next_step="--force replaces it")
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
    source = data or chosen.phases[0].settings.data
    if not source:
        raise DataError(f"recipe {recipe} brings no data of its own", next_step="--data PATH")
    text = script(plan, chosen, make_payload(trainer_package()), form=form, data=source)
    path.write_text(text, encoding="utf-8")
    os.chmod(path, 0o755)
    print(f"{path}: {chosen.hardware}, about {chosen.hours.p50:,.2f} h and {chosen.cost_p50}")
    print(f"  killed {chosen.hard_stop_s:,.0f} s after its start, at most {chosen.worst_case}")
    for reason in chosen.reasons:
        print(f"  · {reason}")
