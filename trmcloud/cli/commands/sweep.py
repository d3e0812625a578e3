"""``trmcloud sweep``: search settings of a recipe or a command under one budget."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from typing import IO, Annotated

import typer

from trmcloud.cli import options
from trmcloud.cli.catch_up import catch_up
from trmcloud.cli.commands.launch import carry_out, launch_of, show_outlook
from trmcloud.cli.confirm import is_confirmed
from trmcloud.cli.views.launch import tree_lines
from trmcloud.cli.views.streams import outlive_the_reader
from trmcloud.cli.views.sweep import joint_lines, terms_lines
from trmcloud.core.errors import UsageError
from trmcloud.operations.commands.commands import CommandRequest
from trmcloud.operations.launch.launch import Outlook, Prepared, Wish
from trmcloud.operations.launch.sweep_parts import command_line, found_runs, parts_of
from trmcloud.operations.launch.sweeping import SweepRequest, divide_words
from trmcloud.options import LaunchRequest
from trmcloud.wiring import build_context


@options.with_options("sweep")
def sweep(
    request: LaunchRequest,
    asked: CommandRequest,
    search: SweepRequest,
    machines: Annotated[
        int,
        typer.Option(
            "--machines",
            min=1,
            max=32,
            help="Machines to search on: a run on each, with its part of space and budget.",
        ),
    ] = 1,
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
    wish = Wish(request, asked, search, Path.cwd())
    parts: Sequence[Wish] = ()
    if machines > 1:
        if as_json:
            raise UsageError(
                "--json is about one run, and --machines makes several",
                next_step="leave --json out, and ask later: trmcloud status --json",
            )
        parts = parts_of(wish, machines, request.idempotency_key or f"sweep-{os.urandom(4).hex()}")
        wish = parts[0]
    made = launch_of(wish, yes=yes)

    def lines_of(found: Outlook | Prepared) -> list[str]:
        assert found.terms is not None
        assert found.priors is not None
        spec, tree = found.plan.spec, found.tree
        terms = terms_lines(found.terms, found.priors, spec.sweep.on if spec.sweep else "")
        return [
            *terms,
            *(tree_lines(tree, verbose=verbose) if tree is not None else ()),
            *_part_lines(parts),
        ]

    if dry_run or parts:
        show_outlook(made, lines_of, as_json=as_json, verbose=verbose)
        if dry_run:
            return
        if not yes and not is_confirmed("  Proceed?"):
            print("nothing was started, nothing was spent")
            return
        sys.exit(_carry_out_parts(parts))
    begun = carry_out(made, lines_of, yes=yes, as_json=as_json, verbose=verbose)
    if begun is not None:
        sys.exit(begun.code)


def _part_lines(parts: Sequence[Wish]) -> list[str]:
    """What the plan of the first of several machines does not say."""
    if not parts:
        return []
    lines = [f"  {len(parts)} such runs, each within ${parts[0].request.budget}:"]
    for number, part in enumerate(parts, 1):
        assert part.asked is not None
        space, _ = divide_words(part.asked.words)
        lines.append(f"    {number}  {' '.join(space)}")
    key, _, _ = parts[0].request.idempotency_key.rpartition(".")
    return [*lines, f"  if this command is killed, repeat it with --idempotency-key {key}"]


def _carry_out_parts(parts: Sequence[Wish]) -> int:
    """Have each part carried out by a command of its own, whose lines are passed on; then show one
    table. The commands outlive this one."""
    outlive_the_reader()
    children = [
        subprocess.Popen(
            [sys.executable, "-P", "-m", "trmcloud", "sweep", "-y", *command_line(part)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        for part in parts
    ]
    readers = [
        Thread(target=_pass_on, args=(child.stdout, f"{number}: "), daemon=True)
        for number, child in enumerate(children, 1)
    ]
    try:
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        codes = [child.wait() for child in children]
    except KeyboardInterrupt:
        print("the runs continue without this command: trmcloud status; trmcloud stop RUN")
        raise
    context = build_context()
    catch_up(context)
    found = found_runs(context, parts)
    print("\n".join(joint_lines([(run.run_id, facts) for run, facts in found if facts])))
    return max(codes, key=abs)


def _pass_on(lines: IO[str], before: str) -> None:
    with lines:  # closed where it is no longer read: a command must not wait for its reader
        for line in lines:
            print(f"{before}{line}", end="", flush=True)
