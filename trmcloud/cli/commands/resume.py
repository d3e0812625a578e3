"""``trmcloud resume``: go on with a run that was stopped, landed or lost."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from trmcloud.cli import options
from trmcloud.options import LaunchRequest, parse_money


@options.with_options("resume")
def resume(
    request: LaunchRequest,
    run: Annotated[str, typer.Argument(help="A run's id; the newest otherwise.")] = "",
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
    from trmcloud.app.context import find_run
    from trmcloud.app.data.prepare import need_training_extra
    from trmcloud.app.launch_checks import check_bucket, first_candidate
    from trmcloud.app.launching import resume
    from trmcloud.cli.telling import tell
    from trmcloud.cli.views.launch import show_resume
    from trmcloud.cli.views.run import carry
    from trmcloud.core.catalog.hardware import LOCAL
    from trmcloud.core.spec.settings import parse_setting
    from trmcloud.wiring import build_context

    context = build_context()
    before = find_run(context, run or None)
    plan = before.plan
    if first_candidate(plan).provider == LOCAL:
        need_training_extra()
    check_bucket(context, plan.spec)
    driver = resume(
        context,
        run or None,
        cap=parse_money("--budget", request.budget),
        settings=[parse_setting(text) for text in request.setting],
        accept_change=accept_change,
        processes=request.processes,
    )
    if not before.live:
        show_resume(context, driver.run(), driver.run().plan, verbose=verbose)
    tell(context)
    sys.exit(carry(context, driver, detach=request.detach))
