"""``trmcloud launch``, also called ``run``, and ``resume``: carry out a plan, a command of one's
own, a run that ended.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from trmcloud.cli import options
from trmcloud.cli.catch_up import catch_up, tell
from trmcloud.cli.confirm import is_confirmed
from trmcloud.cli.views.json_output import print_document
from trmcloud.cli.views.launch import show_plan, show_resume, tree_lines
from trmcloud.cli.views.plan_explain import probe_lines
from trmcloud.cli.views.run import carry
from trmcloud.cli.views.text import DataProgress, Progress
from trmcloud.cli.views.troubles import tell_unreached
from trmcloud.core.errors import Outcome, UsageError
from trmcloud.core.spec.plan import Plan
from trmcloud.core.spec.settings import parse_setting
from trmcloud.core.spec.spec import parse_wait
from trmcloud.core.values import Value
from trmcloud.operations import views
from trmcloud.operations.commands import commands
from trmcloud.operations.commands.commands import CommandRequest
from trmcloud.operations.commands.project_file import fill_in
from trmcloud.operations.context import Context, run_by_id
from trmcloud.operations.driving.balances import funds_reader, plan_funds
from trmcloud.operations.driving.drive import RunDriver
from trmcloud.operations.launch import launching
from trmcloud.operations.launch.labels import labels_of
from trmcloud.operations.launch.launch import (
    Caller,
    Earlier,
    Launch,
    Outlook,
    Prepared,
    Wish,
    find_started,
)
from trmcloud.operations.money import grants
from trmcloud.operations.plans import measurements, preparing
from trmcloud.operations.plans.plan_views import plan_document
from trmcloud.operations.runs.run_views import launched, state_of
from trmcloud.operations.sending.working_tree import WorkingTree
from trmcloud.options import (
    LaunchRequest,
    parse_balance_policy,
    parse_money,
    refuse_others,
    rows_of,
    words_of,
)
from trmcloud.wiring import build_context, trainer_package
from trmcloud.wiring_plans import build_planner


def launch_or_run(
    request: LaunchRequest,
    asked: CommandRequest,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print plan and files that would be sent, and leave.")
    ] = False,
    yes: options.Yes = False,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Launch a plan, a recipe, or your own command after --, under a hard budget: reserve its
    worst case, rent, train, stop and save in time, settle.

    Type a command in the script's folder: the files that git lists there are sent. Without a
    command or recipe, trmcloud.toml there gives the command and its options.

    Example: trmcloud launch local --rate 3.60 --budget 0.05 --checkpoints out -- python train.py
    """
    wish, from_file = _wish_of(request, asked, unseen=yes and not dry_run)
    asked = wish.asked or asked
    made = launch_of(wish, yes=yes)
    lines_of = _lines_of(made, from_file, verbose=verbose)
    if dry_run:
        show_outlook(made, lines_of, as_json=as_json, verbose=verbose)
        return
    begun = carry_out(made, lines_of, yes=yes, as_json=as_json, verbose=verbose)
    if begun is None:
        return
    launched_run = run_by_id(made.context, begun.run_id)
    if asked.words and asked.probe and not request.detach:
        measured = measurements.probed_in(made.context, launched_run)
        print("\n".join(probe_lines(measured, request.steps)))
    if not asked.words and begun.code == Outcome.NO_MACHINE.exit_code:
        print(f"  try: {preparing.next_best(made.planner, launched_run.plan)}")
    sys.exit(begun.code)


launch = options.with_options("launch", "run")(launch_or_run)
run = options.with_options("run", "launch")(launch_or_run)
"""The second name: here a command is needed."""


def _wish_of(
    request: LaunchRequest, asked: CommandRequest, *, unseen: bool
) -> tuple[Wish, list[str]]:
    """Return the wish, and a line about the file that completed it. ``unseen``: -y was typed.

    Raises:
        UsageError: an option of a recipe beside a command, or of a command without one; or
            trmcloud.toml is not valid.
    """
    if asked.words:
        refuse_others(request, "run", "works only with a recipe, not with a command")
        return Wish(request, asked, here=Path.cwd()), []
    if (filled := fill_in(request, asked, Path.cwd(), unseen=unseen)) is not None:
        return Wish(filled.request, filled.asked, here=filled.here), [f"  {filled.line}"]
    for each in (request, asked):
        refuse_others(each, "launch", "needs a command after --")
    if not request.hardware:
        raise UsageError("missing argument 'HARDWARE'", next_step="trmcloud launch --help")
    return Wish(request), []


def _lines_of(
    made: Launch, from_file: list[str], *, verbose: bool
) -> Callable[[Outlook | Prepared], list[str]]:
    """Return what makes the lines beneath a plan: of a command, its files and its trial."""
    context, wish = made.context, made.wish

    def lines_of(found: Outlook | Prepared) -> list[str]:
        if wish.asked is None or found.tree is None:
            return []
        from trmcloud.cli.views.trial import trial_lines  # it loads what tries a command

        tried = trial_lines(context, found.plan, lambda: found.code(context.home))
        note = commands.misplaced(wish.asked.words, wish.here)
        notes = [f"  note: {note}"] if note else []
        return [*from_file, *tree_lines(found.tree, verbose=verbose), *tried, *notes]

    return lines_of


def show_outlook(
    made: Launch,
    lines_of: Callable[[Outlook | Prepared], list[str]],
    *,
    as_json: bool,
    verbose: bool,
) -> None:
    """Show what would be launched, for ``--dry-run``."""
    found, request = made.look(), made.wish.request
    if as_json:
        print_document(planned_document(made.context, found.plan, found.tree))
        return
    show_plan(made.context, found.plan, verbose=verbose)
    if lines := lines_of(found):
        print("\n".join(lines))
    if made.wish.asked is None and found.plan.launchable:
        beside = [name for name, row in rows_of(LaunchRequest).items() if row.place == ""]
        words = words_of(request, "launch", [name for name in beside if name != "goal"])
        print(f"Launch it: {shlex.join(['trmcloud', 'launch', found.plan.id, *words])}")


class Carried(Value):
    """A run that was carried out, and the exit code for its end."""

    run_id: str
    code: int


def launch_of(wish: Wish, *, yes: bool) -> Launch:
    """Return the launch of what was typed; with ``yes`` the user is not asked."""
    context = build_context()
    planner = build_planner(funds=funds_reader(context))
    caller = Caller(confirms=not yes, follows=True)
    return Launch(context, planner, wish, caller, trainer_package)


def carry_out(
    made: Launch,
    lines_of: Callable[[Prepared], list[str]],
    *,
    yes: bool,
    as_json: bool,
    verbose: bool,
) -> Carried | None:
    """Prepare a launch, show it with ``lines_of`` beneath its plan, ask, and carry it out. None
    where the user declines; it exits where the run was launched with its key before."""
    context, detach = made.context, made.wish.request.detach
    if (earlier := made.earlier()) is not None:
        sys.exit(again(context, earlier, detach=detach, as_json=as_json))
    prepared = made.prepare(DataProgress())
    show_plan(context, prepared.plan, verbose=verbose)
    if lines := lines_of(prepared):
        print("\n".join(lines))
    made.check(prepared)
    if not yes and not is_confirmed("  Proceed?"):
        print("nothing was started, nothing was spent")
        return None
    begun = made.begin(prepared, Progress(f"to {prepared.plan.spec.bucket}"))
    if isinstance(begun, Earlier):  # by another command, while this one prepared or asked
        sys.exit(again(context, begun, detach=detach, as_json=as_json))
    tell(context)
    tell_unreached(context)
    return _carried(context, begun, detach=detach, as_json=as_json)


def _carried(context: Context, driver: RunDriver, *, detach: bool, as_json: bool) -> Carried:
    code = carry(context, driver, detach=detach, as_json=as_json)
    if code == Outcome.NOT_STARTED.exit_code and launching.found_no_machine(driver.run()):
        code = Outcome.NO_MACHINE.exit_code
    return Carried(driver.run_id, code)


def planned_document(
    context: Context, plan: Plan, tree: WorkingTree | None = None
) -> views.Planned:
    """The document of a plan, and of the files that would be sent."""
    funds, unread = plan_funds(context, plan)
    return plan_document(plan, funds=funds, unread=unread, tree=tree)


@options.with_options("resume")
def resume(
    request: LaunchRequest,
    run: options.RunName = "",
    accept_change: Annotated[
        bool,
        typer.Option(
            "--accept-change", help="Continue although settings differ that decide what is trained."
        ),
    ] = False,
    yes: options.Yes = False,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Continue from the last checkpoint, within the rest of the run's budget.

    It shows what it may spend, on which machine and from which step, and asks.
    A command without --resume starts again from its beginning.

    --set may change rates, steps and intervals. Settings that decide what is
    trained (sequence, seed, batch, optimizer, …) are refused without
    --accept-change, each by its name. Shape and data cannot change.

    Example: trmcloud resume r-1f3a9c --budget 0.40
    """
    context = build_context()
    before = grants.judge_run(context, run or None)
    changes = f"{'accepts' if accept_change else 'keeps'} what decides"
    labels = labels_of(f"resume {before.run_id} {changes}", request)
    if (earlier := find_started(context, labels)) is not None:
        sys.exit(again(context, earlier, detach=request.detach, as_json=as_json))

    def agrees(checked: launching.Continuation) -> bool:
        named = "" if run else ", the newest run"
        print(f"{before.run_id}{named}")
        show_resume(context, checked, verbose=verbose)
        typed = sys.argv[2:] if sys.argv[1:2] == ["resume"] else []
        words = typed if run and typed else [before.run_id, *typed]
        line = shlex.join(["trmcloud", "resume", *words, "-y"])
        question = f"  Resume {before.run_id} for at most {checked.time.at_most}?"
        return yes or is_confirmed(question, before=before.run_id + named, line=line)

    driver = launching.resume(
        context,
        before,
        agrees=agrees,
        cap=parse_money("--budget", request.budget),
        settings=[parse_setting(text) for text in request.setting],
        accept_change=accept_change,
        processes=request.processes,
        balance=_typed_policy(request),
        fit_balance=request.fit_balance,
        wait_s=parse_wait("--wait-for", request.wait_for) if request.wait_for else 0.0,
        most_rate=parse_money("--max-price", request.max_price),
        key=labels.key,
        request=labels.request,
    )
    if driver is None:
        print("nothing was started, nothing was spent")
        return
    tell(context)
    sys.exit(_carried(context, driver, detach=request.detach, as_json=as_json).code)


def _typed_policy(request: LaunchRequest) -> str:
    typed = "balance" in request.typed
    return str(parse_balance_policy("--balance", request.balance)) if typed else ""


def again(context: Context, earlier: Earlier, *, detach: bool, as_json: bool) -> int:
    """Show the run that was launched with this key before, and continue it where its launch was
    killed before it trained; the exit code."""
    run = earlier.run
    tell(context)
    if earlier.driver is not None:
        print(f"{run.run_id}: launched with this key before; no command drove it, so this one does")
        return carry(context, earlier.driver, detach=detach, as_json=as_json, existing=True)
    catch_up(context)
    run = run_by_id(context, run.run_id)
    if as_json:
        print_document(launched(context, run, detached=run.detached, existing=True))
    else:
        print(f"{run.run_id}: launched with this key before: {state_of(run)}; nothing is rented")
        print(f"  trmcloud status {run.run_id}")
    return 0
