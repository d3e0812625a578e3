"""``trmcloud launch``, ``run`` and ``resume``: carry out a plan, a command of one's own, a run
that ended.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from trmcloud.app import commands, launching, measurements, preparing
from trmcloud.app.balances import funds_reader
from trmcloud.app.commands import CommandRequest
from trmcloud.app.context import Context, find_run
from trmcloud.app.data import need_training_extra
from trmcloud.app.drive import RunDriver
from trmcloud.app.launch_checks import check_bucket, check_capped, first_candidate
from trmcloud.app.preparing import PreparedLaunch
from trmcloud.app.reap import last_visit
from trmcloud.app.room import make_room, room_for
from trmcloud.app.working_tree import pack
from trmcloud.cli import options
from trmcloud.cli.catch_up import tell
from trmcloud.cli.confirm import is_confirmed
from trmcloud.cli.views import run as run_view
from trmcloud.cli.views.launch import room_lines, show_plan, show_resume, tree_lines
from trmcloud.cli.views.plan_explain import probe_lines
from trmcloud.cli.views.reasons import tell_unreached
from trmcloud.cli.views.run import carry
from trmcloud.cli.views.text import DataProgress, Progress
from trmcloud.cli.views.trial import trial_lines
from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.control.events import FailureKind
from trmcloud.core.errors import Outcome, UsageError
from trmcloud.core.spec.settings import parse_setting
from trmcloud.core.spec.spec import parse_wait
from trmcloud.options import LaunchRequest, parse_balance_policy, parse_money
from trmcloud.wiring import build_context
from trmcloud.wiring_plans import build_planner


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
    if as_json and not dry_run:
        raise UsageError("--json goes with --dry-run", next_step="trmcloud status --json")
    context = build_context()
    planner = build_planner(funds=funds_reader(context))
    context.ledger.read()  # a ledger that cannot be used is told before any work is done
    if dry_run:
        plan = preparing.dry_run(context, planner, request)
        show_plan(context, plan, as_json=as_json, verbose=verbose)
        if plan.launchable and not as_json:
            print(f"Launch it: trmcloud launch {plan.id}")
        return
    ready = preparing.prepare(context, planner, request, DataProgress())
    show_plan(context, ready.plan, verbose=verbose)
    if (driver := _start(context, request, ready, yes=yes)) is None:
        return
    code = run_view.carry(context, driver, detach=request.detach)
    run = driver.run()
    sold_out = any(action.failed_kind is FailureKind.NO_CAPACITY for action in run.actions.values())
    if code == Outcome.NOT_STARTED.exit_code and sold_out:
        print(f"  try: {preparing.next_best(planner, ready.plan)}")
    sys.exit(code)


@options.with_options("resume")
def resume(
    request: LaunchRequest,
    run: options.RunName = "",
    accept_change: Annotated[
        bool,
        typer.Option(
            "--accept-change",
            help="Go on though settings differ that decide what is trained.",
        ),
    ] = False,
    verbose: options.Verbose = False,
) -> None:
    """Go on from the last checkpoint, within what is left of the run's budget.

    --set may change rates, steps and intervals. Of what decides what is trained
    (sequence, seed, batch, optimizer, …) each difference is named, and refused
    without --accept-change; shape and data stay.

    Example: trmcloud resume r-1f3a9c --budget 0.40
    """
    context = build_context()
    before = find_run(context, run or None)
    plan = before.plan
    if first_candidate(plan).provider == LOCAL:
        need_training_extra()
    check_bucket(context, plan.spec)
    driver = launching.resume(
        context,
        run or None,
        cap=parse_money("--budget", request.budget),
        settings=[parse_setting(text) for text in request.setting],
        accept_change=accept_change,
        processes=request.processes,
        balance=_typed_policy(request),
        fit_balance=request.fit_balance,
        wait_s=parse_wait("--wait-for", request.wait_for) if request.wait_for else 0.0,
        most_rate=parse_money("--max-price", request.max_price),
    )
    if not before.live:
        show_resume(context, driver.run(), driver.run().plan, verbose=verbose)
    tell(context)
    sys.exit(carry(context, driver, detach=request.detach))


def _typed_policy(request: LaunchRequest) -> str:
    typed = "balance" in request.typed
    return str(parse_balance_policy("--balance", request.balance)) if typed else ""


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
    if as_json and not dry_run:
        raise UsageError("--json goes with --dry-run", next_step="trmcloud status --json")
    here = Path.cwd()
    context = build_context()
    planner = build_planner(funds=funds_reader(context))
    spec = commands.wish_of(planner, request, asked, here)
    context.ledger.read()  # a ledger that cannot be used is told before any work is done
    if dry_run:
        plan, tree = commands.dry_run(planner, spec, here)
        show_plan(context, plan, as_json=as_json, verbose=verbose)
        if not as_json:
            tried = trial_lines(context, plan, lambda: pack(tree, context.home))
            print("\n".join([*tree_lines(tree, verbose=verbose), *tried]))
        return
    ready, tree = commands.prepare(context, planner, request, spec, here)
    show_plan(context, ready.plan, verbose=verbose)
    tried = trial_lines(context, ready.plan, lambda: Path(ready.data.code))
    print("\n".join([*tree_lines(tree, verbose=verbose), *tried]))
    if (driver := _start(context, request, ready, yes=yes)) is None:
        return
    code = run_view.carry(context, driver, detach=request.detach)
    if asked.probe and not request.detach:
        print("\n".join(probe_lines(measurements.probed_in(context, driver.run()), request.steps)))
    sys.exit(code)


def _start(
    context: Context, request: LaunchRequest, ready: PreparedLaunch, *, yes: bool
) -> RunDriver | None:
    """Ask, and reserve what was prepared; None where the user declines."""
    check_capped(context, ready.plan, confirmed=not yes)
    room = room_for(context, ready.plan, last_visit(context))
    for line in room_lines(room, context.wall()) if room is not None else ():
        print(line)
    if not yes and not is_confirmed("  Proceed?"):
        print("nothing was started, nothing was spent")
        return None
    make_room(context, ready.plan, lambda line: print(line, file=sys.stderr))
    preparing.upload_data(context, ready, Progress(f"to {ready.plan.spec.bucket}"))
    driver = launching.start(
        context,
        ready.plan,
        data=ready.data,
        initial_weights=ready.initial_weights,
        detached=request.detach,
    )
    tell(context)
    tell_unreached(context)
    return driver
