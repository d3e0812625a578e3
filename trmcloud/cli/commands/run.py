"""``trmcloud run``: a command of the user's own under the same plan, guards and report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from trmcloud.app.commands import CommandRequest
from trmcloud.cli import options
from trmcloud.core.errors import UsageError
from trmcloud.options import LaunchRequest


@options.with_options("run")
def run(
    request: LaunchRequest,
    asked: CommandRequest,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print plan and files that would be sent, and leave.")
    ] = False,
    yes: options.Yes = False,
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
    from trmcloud.cli.telling import tell
    from trmcloud.cli.views import run as run_view
    from trmcloud.cli.views.command_probe import probe_lines
    from trmcloud.cli.views.launch import show_plan
    from trmcloud.cli.views.progress import Progress
    from trmcloud.cli.views.troubles import tell_unreached
    from trmcloud.cli.views.working_tree import tree_lines
    from trmcloud.wiring import build_context
    from trmcloud.wiring_plans import build_planner

    if as_json and not dry_run:
        raise UsageError("--json goes with --dry-run", next_step="trmcloud status --json")
    root = Path.cwd()
    context, planner = build_context(), build_planner()
    wished = commands.command_of(asked, request.data, root)
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
    driver = start(context, ready.plan, data=ready.data, detached=request.detach)
    tell(context)
    tell_unreached(context)
    code = run_view.carry(context, driver, detach=request.detach)
    if asked.probe and not request.detach:
        print(
            "\n".join(
                probe_lines(measured_commands.probed_in(context, driver.run()), request.steps)
            )
        )
    sys.exit(code)
