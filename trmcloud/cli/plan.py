"""``trmcloud plan``: what a budget buys, on which hardware, and when it would be done."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trmcloud.cli import options
from trmcloud.cli.plan_making import make_spec, plan_for


def command(
    budget: options.Budget = None,
    recipe: options.Recipe = "trm",
    phase: options.Phase = "both",
    hardware: Annotated[
        str,
        typer.Option(
            help="8xA100, 2x8xA100 (two machines), local, … (default: everything offered)."
        ),
    ] = "",
    rate: options.Rate = None,
    data: Annotated[str, typer.Option(help="Text to train on: files or a folder.")] = "",
    steps: options.Steps = None,
    hours: options.Hours = None,
    tokens: options.Tokens = None,
    setting: options.Settings = None,
    processes: Annotated[int, typer.Option(help="Processes on this machine.")] = 0,
    objective: Annotated[
        str, typer.Option(help="value, cheapest, fastest or most-training.")
    ] = "value",
    hour_value: Annotated[
        str | None, typer.Option(help="USD an hour of waiting is worth.", metavar="USD")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(help="12h, friday, 2026-11-27T18:00.", metavar="TIME")
    ] = None,
    provider: Annotated[
        list[str] | None, typer.Option(help="Rent from these alone, repeatable.")
    ] = None,
    region: Annotated[list[str] | None, typer.Option(help="Only there, repeatable.")] = None,
    gpus: Annotated[int, typer.Option(help="GPUs of the machine, 1 to 64 (0: any).")] = 0,
    spot: Annotated[bool, typer.Option("--spot", help="Interruptible offers, too.")] = False,
    community: Annotated[
        bool, typer.Option("--community", help="Private sellers' hosts, too.")
    ] = False,
    fill: Annotated[
        bool, typer.Option("--fill", help="As many tokens as budget or deadline buy.")
    ] = False,
    equal_work: Annotated[
        bool, typer.Option("--equal-work", help="The same tokens on every hardware.")
    ] = False,
    bucket: options.Bucket = "",
    explain: Annotated[
        str | None, typer.Option(help="The arithmetic of one hardware.", metavar="HARDWARE")
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option(help="Cost against time: FILE.svg, .html or .png.", metavar="FILE"),
    ] = None,
    probe: Annotated[
        str, typer.Option(help="local: measure fifty real steps first.", metavar="local")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Show every candidate kept.")] = False,
    verbose: options.Verbose = False,
) -> None:
    """Plan a run: hours, dollars and memory on every hardware, and which one to take.

    Example: trmcloud plan --budget 1000
    """
    spec = make_spec(
        budget=budget, recipe=recipe, phase=phase, hardware=hardware, rate=rate, data=data,
        steps=steps, hours=hours, tokens=tokens, settings=setting or [], processes=processes,
        objective=objective, hour_value=hour_value, deadline=deadline, providers=provider or [],
        regions=region or [], gpus=gpus, spot=spot, community=community, fill=fill,
        equal_work=equal_work, bucket=bucket,
    )  # fmt: skip
    if probe:
        from trmcloud.cli.plan_probe import run_probe

        run_probe(spec, probe)
    plan = plan_for(spec)
    if plot is not None:
        from trmcloud.cli.plan_chart import write_plot

        write_plot(plan, Path(plot))
    if explain is not None and not as_json:
        from trmcloud.cli.plan_explain import explain as explained

        print("\n".join(explained(plan, explain)))
        return
    from trmcloud.cli import plan_view

    plan_view.show(plan, as_json=as_json, everything=everything, verbose=verbose)
