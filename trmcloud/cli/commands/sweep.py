"""``trmcloud sweep``: search settings of a recipe or a command under one budget."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from trmcloud.app import sweeping
from trmcloud.app.balances import funds_reader
from trmcloud.app.commands import CommandRequest
from trmcloud.app.labels import find_earlier, labels_of
from trmcloud.app.sweeping import SweepRequest
from trmcloud.cli import options
from trmcloud.cli.commands.launch import again, is_sold_out, planned_document, start
from trmcloud.cli.views import run as run_view
from trmcloud.cli.views.json_output import print_document
from trmcloud.cli.views.launch import show_plan, tree_lines
from trmcloud.cli.views.sweep import terms_lines
from trmcloud.cli.views.text import DataProgress
from trmcloud.core.errors import Outcome
from trmcloud.options import LaunchRequest
from trmcloud.wiring import build_context, trainer_package
from trmcloud.wiring_plans import build_planner


@options.with_options("sweep")
def sweep(
    request: LaunchRequest,
    asked: CommandRequest,
    search: SweepRequest,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan that would run, and leave.")
    ] = False,
    yes: options.Yes = False,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Search settings under one budget: many short trainings, of which the best are continued;
    one verified best checkpoint.

    Example: trmcloud sweep local --rate 3.60 --budget 0.50 --recipe shakespeare lr=log:1e-3,1e-1
    """
    here = Path.cwd()
    context = build_context()
    labels = labels_of("sweep", request, asked, search)
    planner = build_planner(funds=funds_reader(context))
    spec = sweeping.wish_of(planner, request, asked, search, here)
    on = spec.sweep.on if spec.sweep is not None else ""
    context.ledger.read()  # a ledger that cannot be used is told before any work is done
    if dry_run:
        spec = sweeping.informed(context, planner, spec, search, here)
        plan, terms, priors, tree = sweeping.dry_run(planner, spec, here)
        if as_json:
            print_document(planned_document(context, plan, tree))
            return
        show_plan(context, plan, verbose=verbose)
        files = tree_lines(tree, verbose=verbose) if tree is not None else []
        print("\n".join([*terms_lines(terms, priors, on), *files]))
        return
    if (earlier := find_earlier(context, labels)) is not None:
        sys.exit(again(context, request, earlier, as_json=as_json))
    spec = sweeping.informed(context, planner, spec, search, here)
    made = sweeping.prepare(
        context, planner, request, spec, here, trainer_package(), DataProgress()
    )
    show_plan(context, made.ready.plan, verbose=verbose)
    files = tree_lines(made.tree, verbose=verbose) if made.tree is not None else []
    print("\n".join([*terms_lines(made.terms, made.priors, on), *files]))
    driver = start(context, request, made.ready, labels, yes=yes, as_json=as_json)
    if driver is None:
        return
    code = run_view.carry(context, driver, detach=request.detach, as_json=as_json)
    if code == Outcome.NOT_STARTED.exit_code and is_sold_out(driver.run()):
        code = Outcome.NO_MACHINE.exit_code
    sys.exit(code)
