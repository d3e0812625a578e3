"""``trmcloud admin reap``: find and end what no live run owns."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from trmcloud.cli import options
from trmcloud.cli.catch_up import GRACE_S, tell
from trmcloud.cli.confirm import is_confirmed
from trmcloud.cli.views.json_output import print_document
from trmcloud.cli.views.run import ending_code, tell_ending, tell_listed
from trmcloud.cli.views.troubles import tell_troubles, trouble_code
from trmcloud.core.errors import LedgerError, NotFoundError, TrmcloudError, UsageError
from trmcloud.operations import views
from trmcloud.operations.context import Context, hurried
from trmcloud.operations.driving import ending
from trmcloud.operations.driving.drive import land_before_balance_ends
from trmcloud.operations.driving.ending import NamedPodEnds, end_overdue
from trmcloud.operations.driving.reap import (
    Did,
    ReapFindings,
    did_line,
    end,
    is_reconciled,
    look,
    note_visit,
)
from trmcloud.operations.driving.reconciling import continue_waits, reconcile
from trmcloud.operations.money import grants
from trmcloud.operations.reasons import sentence
from trmcloud.operations.runs.run_views import (
    done_note,
    named_ends,
    reason_note,
    unreachable,
    volume_notes,
)
from trmcloud.wiring import build_context

GUARD_GRACE_S = 30.0
"""The time that the guard stays to send due notices."""


def reap(
    run: Annotated[
        str,
        typer.Argument(
            help="End the pods of this run, also of a live one.",
            autocompletion=options.complete_run,
        ),
    ] = "",
    yes: Annotated[bool, typer.Option("-y", "--yes", help="End the pods that were found.")] = False,
    accept_restored: Annotated[
        bool, options.rare(help="Continue with a ledger that was restored from a backup.")
    ] = False,
    all_of: Annotated[
        str,
        options.rare(metavar="LEDGER_ID", help="End every pod with this ledger's id in its name."),
    ] = "",
    as_json: options.Json = False,
    guard_every: Annotated[
        int, typer.Option(help="Set by the guard: minutes between two checks.", hidden=True)
    ] = 0,
) -> None:
    """Search all providers for pods of trmcloud without a live run; with --yes, end them.

    Only pods with names made by trmcloud are touched: those of this ledger that it does not own,
    and those of any ledger whose hard stop has passed.

    --accept-restored accepts a ledger that was restored from a backup. Pods that it has lost are
    found and charged; no run can be launched until none can be left.

    With a run's id, or with --all-of, the pods with that name are listed and, after a question or
    with --yes, ended, also before their hard stop. This needs no ledger: it works with a full
    disk, a damaged or missing ledger, or a home that cannot be written to.

    Example: trmcloud admin reap --yes
    """
    context = build_context()
    if run or all_of:
        if (run and all_of) or accept_restored:
            raise UsageError("give a run or a ledger, and no other option than --yes")
        if all_of:
            grants.require_owner(context)
        named = _judged_id(context, run) if run else ""
        sys.exit(_end_named(context, named, all_of, yes=yes, as_json=as_json))
    found, did = _look_and_end(context, accept_restored, yes=yes, guard_every=guard_every)
    known = is_reconciled(context)
    if as_json:
        print_document(_reaped(found, did, asked=yes, known=known))
    else:
        _show(context, found, did, asked=yes, known=known)
    sys.exit(11 if found.unreachable else trouble_code(context))


def _look_and_end(
    context: Context, accept_restored: bool, *, yes: bool, guard_every: int
) -> tuple[ReapFindings, list[Did]]:
    """Look for pods that no live run owns and, with ``yes``, end them and settle what is left."""
    if accept_restored:
        grants.require_owner(context)
    # When its timer starts it no user waits for it, and no other process may be awake.
    tell(context, GUARD_GRACE_S if guard_every else GRACE_S)
    if accept_restored and not context.ledger.accept_restored(context.wall()):
        raise UsageError(
            "the ledger was not restored from a backup: there is nothing to accept",
            next_step="trmcloud admin reap --yes",
        )
    try:
        found = look(context)
    except LedgerError:
        # What it cannot say of them, the pods' own names do.
        for provider, name in end_overdue(context) if yes else ():
            print(f"ended {name} on {provider}: its hard stop has passed")
        raise
    did = end(context, found) if yes else []
    if yes:
        land_before_balance_ends(context)
        did += reconcile(context)
        tell_troubles(context)
    if guard_every:
        note_visit(context, guard_every * 60.0, found)
        did += continue_waits(context) if yes else []
    return found, did


def _reaped(found: ReapFindings, did: Sequence[Did], *, asked: bool, known: bool) -> views.Reaped:
    rows = tuple(
        views.EndedPod(
            provider=provider,
            pod=orphan.pod.name,
            rate_per_hour_usd=orphan.pod.rate,
            asked=asked,
            reason=reason_note(orphan.reason),
        )
        for provider, orphan in found.orphans
    )
    return views.Reaped(
        run=None,
        ledger=None,
        orphans=rows,
        done=tuple(map(done_note, did)),
        unreachable=unreachable(found.unreachable),
        reconciled=known,
        recorded=None,
    )


def _show(
    context: Context, found: ReapFindings, did: Sequence[Did], *, asked: bool, known: bool
) -> None:
    said = [did_line(each) for each in did]
    for provider, orphan in found.orphans if not asked else ():
        print(f"{orphan.pod.name} on {provider}: {sentence(orphan.reason)}")
    for line in said:
        print(line)
    for provider, why in found.unreachable:
        print(f"{provider} gave no list: {why}", file=sys.stderr)
    if not known:
        print(
            "the ledger is not reconciled yet: no run can be launched until trmcloud admin "
            "reap --yes"
        )
        print("reports it; a pod may appear up to 10 minutes after the request")
    elif not found.orphans and not said:
        seen = ", as far as could be seen" if found.unreachable else ""
        print(f"no pod without a run was found{seen}")
    elif found.orphans and not asked:
        print("trmcloud admin reap --yes ends them")
    for note in volume_notes(context.ledger.read(), context.wall()):
        print(note.message)


def _judged_id(context: Context, run: str) -> str:
    """Return the id of the run that is named. Where no ledger knows it, the id that was typed, for
    the ledger's owner.

    Raises:
        TrmcloudError: the run is not the principal's, or no ledger says which run has that name.
    """
    try:
        return grants.judge_run(hurried(context), run).run_id
    except TrmcloudError:
        if context.caller.is_bound or not ending.is_run_id(run):
            raise
        return run


def _end_named(context: Context, run: str, ledger_id: str, *, yes: bool, as_json: bool) -> int:
    """End the pods of a run, or of a ledger, by their names; the exit code."""
    if yes and run:
        ended = ending.end_run(context, run)
        tell_listed(ended.listed)
        found = ended.listed
    else:
        if run:
            found = ending.pods_of_run(context, run)
        else:
            found = ending.list_named(
                context, lambda name: name.ledger == ledger_id, everywhere=True
            )
        tell_listed(found)
        if found.pods:
            count = len(found.pods)
            question = f"end {'this pod' if count == 1 else f'these {count} pods'} now?"
            if not yes and not is_confirmed(question, before=f"{count} would be ended"):
                return 0
            ended = ending.end_run(context, run) if run else ending.end_all(context, found)
    if not found.pods and not (yes and run and ended.asked):
        if found.unreachable:
            if as_json:
                nothing = NamedPodEnds((), (), found, recorded=False)
                print_document(named_ends(nothing, run=run, ledger=ledger_id))
            return 11
        named = f"of {run}" if run else f"of ledger {ledger_id}"
        raise NotFoundError(
            f"{', '.join(found.asked) or 'any provider'} lists no pod {named}",
            next_step="trmcloud status --all",
        )
    why = ""
    try:
        if ended.recorded:
            reconcile(context)
    except LedgerError as error:
        why = str(error)
    except TrmcloudError:
        pass  # the pods were asked to end; the next command settles what is left
    tell_ending(run, ended, why)
    if as_json:
        print_document(named_ends(ended, run=run, ledger=ledger_id))
    return ending_code(ended)
