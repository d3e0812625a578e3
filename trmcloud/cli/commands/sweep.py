"""``trmcloud sweep``: search settings of a recipe or a command under one budget."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from trmcloud.cli import options
from trmcloud.cli.commands.launch import carry_out, launch_of, show_outlook
from trmcloud.cli.views.launch import tree_lines
from trmcloud.cli.views.sweep import terms_lines
from trmcloud.operations.commands.commands import CommandRequest
from trmcloud.operations.launch.launch import Outlook, Prepared, Wish
from trmcloud.operations.launch.sweeping import SweepRequest
from trmcloud.options import LaunchRequest


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
    made = launch_of(Wish(request, asked, search, Path.cwd()), yes=yes)

    def lines_of(found: Outlook | Prepared) -> list[str]:
        assert found.terms is not None
        assert found.priors is not None
        spec, tree = found.plan.spec, found.tree
        terms = terms_lines(found.terms, found.priors, spec.sweep.on if spec.sweep else "")
        return [*terms, *(tree_lines(tree, verbose=verbose) if tree is not None else ())]

    if dry_run:
        show_outlook(made, lines_of, as_json=as_json, verbose=verbose)
        return
    begun = carry_out(made, lines_of, yes=yes, as_json=as_json, verbose=verbose)
    if begun is not None:
        sys.exit(begun.code)
