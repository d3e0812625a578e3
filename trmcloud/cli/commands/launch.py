"""``trmcloud launch``: reserve the worst case, train, stop in time."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from trmcloud.cli import options
from trmcloud.core.control.action_key import FailureKind
from trmcloud.core.errors import UsageError
from trmcloud.options import LaunchRequest


@options.with_options("launch")
def launch(
    request: LaunchRequest,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan that would run, and leave.")
    ] = False,
    yes: options.Yes = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --dry-run: print the plan as JSON.")
    ] = False,
    verbose: options.Verbose = False,
) -> None:
    """Carry a plan out: reserve its worst case, rent, train, land in time, settle.

    Example: trmcloud launch local --recipe trm-tiny --rate 3.60 --budget 0.20
    """
    from trmcloud.app import preparing
    from trmcloud.app.launch_checks import check_capped
    from trmcloud.app.launching import start
    from trmcloud.cli.asking import confirmed
    from trmcloud.cli.telling import tell
    from trmcloud.cli.views import run as run_view
    from trmcloud.cli.views.data_progress import DataProgress
    from trmcloud.cli.views.launch import show_plan
    from trmcloud.cli.views.progress import Progress
    from trmcloud.cli.views.troubles import tell_unreached
    from trmcloud.core.outcome import Outcome
    from trmcloud.wiring import build_context
    from trmcloud.wiring_plans import build_planner

    if as_json and not dry_run:
        raise UsageError("--json goes with --dry-run", next_step="trmcloud status --json")
    context, planner = build_context(), build_planner()
    context.ledger.read()  # a ledger that cannot be used is told before any work is done
    if dry_run:
        plan = preparing.dry_run(context, planner, request)
        show_plan(context, plan, as_json=as_json, verbose=verbose)
        if plan.launchable and not as_json:
            print(f"Launch it: trmcloud launch {plan.id}")
        return
    ready = preparing.prepare(context, planner, request, DataProgress())
    show_plan(context, ready.plan, verbose=verbose)
    check_capped(context, ready.plan, confirmed=not yes)
    if not yes and not confirmed("  Proceed?"):
        print("nothing was started, nothing was spent")
        return
    preparing.upload_data(context, ready, Progress(f"to {ready.plan.spec.bucket}"))
    driver = start(
        context,
        ready.plan,
        data=ready.data,
        initial_weights=ready.initial_weights,
        detached=request.detach,
    )
    tell(context)
    tell_unreached(context)
    code = run_view.carry(context, driver, detach=request.detach)
    run = driver.run()
    sold_out = any(action.failed_kind is FailureKind.NO_CAPACITY for action in run.actions.values())
    if code == Outcome.NOT_STARTED.exit_code and sold_out:
        print(f"  try: {preparing.next_best(planner, ready.plan)}")
    sys.exit(code)
