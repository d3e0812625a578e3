"""``trmcloud status``: the state of runs."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from trmcloud.cli import options

if TYPE_CHECKING:
    from trmcloud.operations.context import Context
    from trmcloud.operations.driving.reap import Did


_WATCH_EVERY_S = 10.0
"""Of ``--watch``: each pass may ask every provider once."""


def status(
    run: Annotated[
        str,
        typer.Argument(
            help="A run's id; all live ones otherwise.", autocompletion=options.complete_run
        ),
    ] = "",
    everything: Annotated[bool, typer.Option("--all", help="Ended runs, too.")] = False,
    watch: Annotated[
        bool, typer.Option("-w", "--watch", help="Show it again every 10 s; Ctrl-C leaves.")
    ] = False,
    live: options.Live = False,
    tag: options.Tags = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Show runs, their money against their cap, and every kill layer's state.

    With --watch it is shown again until you leave, or until the named run has ended; with --json
    each time as one line.

    Example: trmcloud status r-1f3a9c
    """
    from trmcloud.cli.views.streams import clear_screen
    from trmcloud.operations.context import run_by_id

    wanted: tuple[tuple[str, str], ...] = ()
    if tag:
        from trmcloud.operations.launch.labels import parse_tags

        wanted = parse_tags("--tag", tag)
    while True:
        with clear_screen(watch and not as_json, f"every {_WATCH_EVERY_S:g} s · Ctrl-C leaves"):
            code, context, first = _show_once(
                run, everything=everything, live=live, wanted=wanted, as_json=as_json,
                verbose=verbose, is_line=watch,
            )  # fmt: skip
        if not watch or (run and not run_by_id(context, first).live):
            sys.exit(code)
        run = first if run else ""  # its name may become another run's meanwhile
        try:
            context.clock.sleep(_WATCH_EVERY_S)
        except KeyboardInterrupt:
            sys.exit(code)


def _show_once(
    run: str,
    *,
    everything: bool,
    live: bool,
    wanted: tuple[tuple[str, str], ...],
    as_json: bool,
    verbose: bool,
    is_line: bool,
) -> tuple[int, Context, str]:
    """Catch up and show; return the exit code and the first run that was shown, '' for none."""
    from trmcloud.cli.catch_up import catch_up, tell
    from trmcloud.cli.views.troubles import trouble_code
    from trmcloud.core.catalog.providers import brokered
    from trmcloud.operations.context import (
        count_shown_runs,
        find_run,
        is_quiet,
        newest_shown_run,
        shown_present_runs,
        shown_runs,
    )
    from trmcloud.operations.driving.reap import did_line
    from trmcloud.wiring import build_context

    context = build_context()
    if not live:
        machines = replace(context.machines, unasked=frozenset(brokered()))
        context = replace(context, machines=machines)
    did: list[Did] = []
    if is_quiet(context):
        tell(context)  # of what waits: the run it is about may have ended long ago
    else:
        did = catch_up(context)
    if not run and not as_json:
        _tell_damaged(context)
        if trouble := context.ledger.backup_trouble():
            print(trouble, file=sys.stderr)
    if run:
        runs = [find_run(context, run)]
    elif everything:
        known = sorted(shown_runs(context).values(), key=lambda r: r.created_at)
        runs = [each for each in known if set(wanted) <= set(each.tags)]
    else:
        known = [r for r in shown_present_runs(context) if set(wanted) <= set(r.tags)]
        runs = [r for r in known if r.live]
        if not runs:
            newest = newest_shown_run(context, wanted)
            runs = [newest] if newest is not None else []
    first = runs[0].run_id if runs else ""
    code = trouble_code(context, first if run else "")
    if as_json:
        from trmcloud.cli.views.json_output import print_document, print_line
        from trmcloud.operations.runs.run_views import statuses

        (print_line if is_line else print_document)(statuses(context, runs, did))
        return code, context, first
    for each in did:
        print(f"· {did_line(each)}")
    if not runs and wanted:
        print("no run has these tags · trmcloud status --all")
    elif not runs:
        print("no runs yet · trmcloud launch local --recipe trm-tiny --budget 0.06 --rate 3.60")
    else:
        from trmcloud.cli.views.status import show_one, show_table
        from trmcloud.operations.runs.run_views import run_row, run_view, volume_notes

        if run:
            trials = []
            if runs[0].spec.sweep is not None:
                trials = _trials(context, first, verbose=verbose)
            show_one(run_view(context, runs[0]), trials, verbose=verbose)
        else:
            volumes = volume_notes(context.ledger.read(), context.wall())
            show_table([run_row(context, each) for each in runs], volumes)
            if others := 0 if everything else count_shown_runs(context, wanted) - len(runs):
                ended = "1 more has ended" if others == 1 else f"{others} more have ended"
                print(f"{ended} · trmcloud status --all")
    return code, context, first


def _tell_damaged(context: Context) -> None:
    for hurt in context.ledger.read().quarantined.values():
        from trmcloud.cli.views.troubles import hurt_line
        from trmcloud.operations.runs.run_views import damaged_run

        print(f"damaged: {hurt_line(damaged_run(hurt))}")


def _trials(context: Context, run_id: str, *, verbose: bool) -> list[str]:
    """Return the lines of a sweep's trials; the modules that read them are of no use to others."""
    from trmcloud.cli.views.sweep import progress_words, trial_lines
    from trmcloud.operations.context import run_by_id
    from trmcloud.operations.sweeps.sweep_facts import sweep_of

    swept = sweep_of(context, run_by_id(context, run_id))
    if swept is None:
        return []
    return [progress_words(swept), *trial_lines(swept, verbose=verbose)]
