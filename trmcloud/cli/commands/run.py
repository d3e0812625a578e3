"""``trmcloud run``: a command of the user's own under the same plan, guards and report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from trmcloud.cli import options
from trmcloud.core.errors import UsageError


def command(
    typed: typer.Context,
    hardware: Annotated[
        str,
        typer.Argument(
            help="8xH100, 1xA100, other NxSKU, local, or any (8xany): the cheapest.",
            metavar="HARDWARE",
        ),
    ],
    words: Annotated[
        list[str],
        typer.Argument(help="What to run, after --, as in a shell here.", metavar="-- COMMAND…"),
    ],
    budget: options.Budget = None,
    rate: options.Rate = None,
    hours: options.Hours = None,
    steps: Annotated[
        int | None,
        typer.Option(
            help="How many steps it has, for the bar and for a plan by its probe; it is not told."
        ),
    ] = None,
    checkpoints: Annotated[
        str,
        typer.Option(
            help="Folder (or pattern: out/ckpt-*) that it saves in; what has stopped changing "
            "there is kept.",
            metavar="DIR",
        ),
    ] = "",
    metric: Annotated[
        str,
        typer.Option(
            help="What is best: a key in its lines of JSON or its TensorBoard files, or a pattern "
            "for its log: 'val_loss=([0-9.]+)'.",
            metavar="METRIC",
        ),
    ] = "",
    best: Annotated[str, typer.Option(help="min or max of the metric.")] = "min",
    keep_best: Annotated[int, typer.Option(help="Checkpoints kept beside the latest.")] = 2,
    checkpoint_gb: Annotated[
        float, typer.Option(help="The most one checkpoint may hold; reserved.", metavar="GB")
    ] = 2.0,
    data: Annotated[
        str, typer.Option(help="Folder of data, sent apart from the code.", metavar="DIR")
    ] = "",
    env: Annotated[
        list[str] | None,
        typer.Option(help="A variable of this shell that it is given, repeatable.", metavar="NAME"),
    ] = None,
    pip: Annotated[
        str, typer.Option(help="Requirements to install before it starts.", metavar="FILE")
    ] = "",
    image: Annotated[
        str, typer.Option(help="Container image in place of RunPod's own.", metavar="NAME")
    ] = "",
    stop_signal: Annotated[
        str,
        typer.Option(help="What tells it to stop: TERM, INT, USR1, USR2, HUP, QUIT or none."),
    ] = "",
    stop_file: Annotated[
        str, typer.Option(help="Or a file that is made there.", metavar="FILE")
    ] = "",
    grace: Annotated[
        float, typer.Option(help="Seconds it has to save and leave; reserved.", metavar="S")
    ] = 60.0,
    silent: Annotated[
        float,
        typer.Option(help="Seconds without a line, a step or a file until it counts as hung."),
    ] = 1800.0,
    resume: Annotated[
        str,
        typer.Option(
            help="The command that goes on from a checkpoint: 'python train.py --resume "
            "{checkpoint}'.",
            metavar="COMMAND",
        ),
    ] = "",
    probe: Annotated[
        int,
        typer.Option(
            help="Make and measure that many steps, and end: their pace, memory and what they may "
            "take on other hardware.",
            metavar="STEPS",
        ),
    ] = 0,
    memory: Annotated[
        float,
        typer.Option(help="With any: the least that one GPU must have.", metavar="GB"),
    ] = 0.0,
    processes: options.Processes = 0,
    accept_exposure: Annotated[
        str | None,
        typer.Option(
            help="Rent without two verified kill layers: the USD an hour that may be lost.",
            metavar="USD",
        ),
    ] = None,
    volume: options.Volume = False,
    volume_days: options.VolumeDays = 7.0,
    volume_then: options.VolumeThen = "keep",
    provider: options.RentFrom = None,
    via: options.Via = "",
    allow_key: options.AllowAccountKey = False,
    bucket: options.Bucket = "",
    region: options.Region = None,
    community: options.Community = False,
    spot: options.Spot = False,
    deadline: Annotated[
        str | None, typer.Option(help="When it must have ended: 12h, friday.", metavar="WHEN")
    ] = None,
    accept_loss: options.AcceptLoss = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print plan and files that would be sent, and leave.")
    ] = False,
    detach: options.Detach = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --dry-run: print the plan as JSON.")
    ] = False,
    verbose: options.Verbose = False,
) -> None:
    """Run any training script under a hard budget: stopped in time, its best checkpoint brought
    home. Run where the script is; what git lists there is sent.

    Example: trmcloud run local --rate 3.60 --budget 0.05 --checkpoints out -- python train.py
    """
    from trmcloud.app import commands, measured_commands, preparing
    from trmcloud.app.launch_checks import check_capped
    from trmcloud.app.launching import start
    from trmcloud.cli.asking import confirmed
    from trmcloud.cli.catching_up import tell_unreached
    from trmcloud.cli.launch_request import request_of
    from trmcloud.cli.telling import tell
    from trmcloud.cli.views import run as run_view
    from trmcloud.cli.views.command_probe import probe_lines
    from trmcloud.cli.views.launch import show_plan
    from trmcloud.cli.views.progress import Progress
    from trmcloud.cli.views.working_tree import tree_lines
    from trmcloud.wiring import build_context
    from trmcloud.wiring_plans import build_planner

    if as_json and not dry_run:
        raise UsageError("--json goes with --dry-run", next_step="trmcloud status --json")
    root = Path.cwd()
    request, context, planner = request_of(typed, setting=()), build_context(), build_planner()
    wished = commands.command_of(commands.request_of(typed.params), data, root)
    spec = commands.spec_to_run(planner, request, wished)
    context.ledger.read()  # a ledger that cannot be used is told before any work is done
    if dry_run:
        tree, plan = commands.tree_of(spec, root), planner.save(planner.plan(spec))
        show_plan(context, plan, as_json=as_json, verbose=verbose)
        if not as_json:
            print("\n".join(tree_lines(tree, verbose=verbose)))
        return
    ready, tree = commands.prepare(context, planner, request, spec, root)
    show_plan(context, ready.plan, verbose=verbose)
    print("\n".join(tree_lines(tree, verbose=verbose)))
    check_capped(context, ready.plan, confirmed=not yes)
    if not yes and not confirmed("  Proceed?"):
        print("nothing was started, nothing was spent")
        return
    preparing.upload_data(context, ready, Progress(f"to {ready.plan.spec.bucket}"))
    driver = start(context, ready.plan, data=ready.data, detached=detach)
    tell(context)
    tell_unreached(context)
    code = run_view.carry(context, driver, detach=detach)
    if probe and not detach:
        print("\n".join(probe_lines(measured_commands.probed_in(context, driver.run()), steps)))
    sys.exit(code)
