"""``trmcloud resume``: go on with a run that was stopped, landed or lost."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from trmcloud.cli import options


def command(
    run: Annotated[str, typer.Argument(help="A run's id; the newest otherwise.")] = "",
    budget: Annotated[
        str | None,
        typer.Option(help="The whole run's budget, spent part included.", metavar="USD"),
    ] = None,
    detach: options.Detach = False,
    verbose: options.Verbose = False,
) -> None:
    """Go on from the last checkpoint, within what is left of the run's budget.

    Example: trmcloud resume r-1f3a9c --budget 0.40
    """
    from trmcloud.app.data import need_training_extra
    from trmcloud.app.launch import check_bucket, first_candidate, resume
    from trmcloud.app.world import find_run, plan_of
    from trmcloud.cli.launch_view import show_resume
    from trmcloud.cli.plan_making import parse_money
    from trmcloud.cli.run_view import carry
    from trmcloud.core.hardware import LOCAL
    from trmcloud.wiring import build_world

    world = build_world()
    before = find_run(world, run or None)
    plan = plan_of(world, before)
    if first_candidate(plan).provider == LOCAL:
        need_training_extra()
    check_bucket(world, plan.spec)
    driver = resume(world, run or None, cap=parse_money("--budget", budget))
    if not before.live:
        show_resume(world, driver.run(), plan, verbose=verbose)
    sys.exit(carry(world, driver, detach=detach))
