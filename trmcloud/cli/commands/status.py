"""``trmcloud status`` and ``attach``: the state of runs, and the live line of one."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from trmcloud.cli import options

if TYPE_CHECKING:
    from trmcloud.app.reap import Did


def status(
    run: Annotated[str, typer.Argument(help="A run's id; all live ones otherwise.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="Ended runs, too.")] = False,
    live: options.Live = False,
    tag: options.Tags = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Show runs, their money against their cap, and every kill layer's state.

    Example: trmcloud status r-1f3a9c
    """
    from trmcloud.app.context import find_run, is_quiet
    from trmcloud.cli.catch_up import catch_up, tell
    from trmcloud.cli.views.reasons import did_line, hurt_line, trouble_code
    from trmcloud.core.catalog.providers import brokered
    from trmcloud.wiring import build_context

    context = build_context()
    if not live:
        context = replace(context, unasked=frozenset(brokered()))
    did: list[Did] = []
    if is_quiet(context):
        tell(context)  # of what waits: the run it is about may have ended long ago
    else:
        did = catch_up(context)
    if not run and not as_json:
        for hurt in context.ledger.read().quarantined.values():
            print(f"damaged: {hurt_line(hurt)}")
        if trouble := context.backup_trouble():
            print(trouble, file=sys.stderr)
    wanted: tuple[tuple[str, str], ...] = ()
    if tag:
        from trmcloud.app.labels import parse_tags

        wanted = parse_tags("--tag", tag)
    if run:
        runs = [find_run(context, run)]
    else:
        known = sorted(context.ledger.read().runs.values(), key=lambda r: r.created_at)
        known = [each for each in known if set(wanted) <= set(each.tags)]
        runs = [r for r in known if r.live or everything] or known[-1:]
    code = trouble_code(context, runs[0].run_id if run else "")
    if not as_json:
        for each in did:
            print(f"· {did_line(each)}")
        if not runs and wanted:
            print("no run has these tags · trmcloud status --all")
            sys.exit(code)
        if not runs:
            print("no runs yet · trmcloud launch local --recipe trm-tiny --budget 1 --rate 3.60")
            sys.exit(code)
    from trmcloud.cli.views import status as status_view

    if as_json:
        from trmcloud.cli.views.as_documents import status_document
        from trmcloud.cli.views.json_output import print_document

        print_document(status_document(context, runs, did))
        sys.exit(code)
    if run:
        status_view.show_one(context, runs[0], verbose=verbose)
    else:
        status_view.show_table(context, runs)
        others = len(known) - len(runs)
        if others:
            ended = "1 more has ended" if others == 1 else f"{others} more have ended"
            print(f"{ended} · trmcloud status --all")
    sys.exit(code)


def attach(
    run: options.RunName = "",
    as_json: options.Json = False,
) -> None:
    """Watch a run as the command that launched it did, until it ends or you leave.

    Where no command drives it any more, this one does: it fetches checkpoints,
    and ends the pod when its work is done. Ctrl-C leaves the run as it is. The
    exit code is the run's, also where it has ended already.

    Example: trmcloud attach r-1f3a9c
    """
    from trmcloud.app.context import require_reach
    from trmcloud.cli.catch_up import find_caught_up
    from trmcloud.cli.views.run import look_on

    context, state = find_caught_up(run)
    if state.live and state.generation is not None:
        require_reach(context, state.generation.provider)
    sys.exit(look_on(context, state.run_id, as_json=as_json))
