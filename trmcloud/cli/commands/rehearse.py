"""``trmcloud rehearse``: play a planned run in a simulated world, with faults."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from trmcloud.cli import options
from trmcloud.cli.views.json_output import print_document
from trmcloud.cli.views.launch import show_plan, tree_lines
from trmcloud.cli.views.text import duration
from trmcloud.core.contract.command import Command
from trmcloud.core.errors import NotSupported, UsageError
from trmcloud.core.spec.plan import Candidate
from trmcloud.core.text import one_line
from trmcloud.io.redaction import mask_tokens
from trmcloud.operations import views
from trmcloud.operations.commands import commands
from trmcloud.operations.commands.commands import CommandRequest
from trmcloud.operations.plans import preparing
from trmcloud.operations.plans.launch_checks import check_launchable, check_loss, keep_launchable
from trmcloud.operations.plans.plan_views import amounts
from trmcloud.operations.sending.working_tree import WorkingTree
from trmcloud.operations.views import note
from trmcloud.options import LaunchRequest, refuse_others
from trmcloud.sim import rehearsal
from trmcloud.sim.play import timeline
from trmcloud.sim.rehearsal import (
    HABITS,
    LENGTHS,
    SAVES,
    Rehearsal,
    fault_names,
    is_length_known,
    spread,
)
from trmcloud.sim.world.trainer import Habit
from trmcloud.wiring import build_context
from trmcloud.wiring_plans import build_planner, simulate_providers

_MOST_RUNS = 100_000
_LINES, _ALL_LINES = 40, 1_000_000
"""Of the one play that is told."""


@options.with_options("rehearse")
def rehearse(
    request: LaunchRequest,
    asked: CommandRequest,
    runs: Annotated[int, typer.Option(help="Number of simulated plays.")] = 200,
    faults: Annotated[
        str,
        typer.Option(
            help="all, none, or numbers and words: 15,preempted,asleep; for a command also deaf, "
            "slow-to-save, …"
        ),
    ] = "all",
    seed: Annotated[
        int, typer.Option(help="Random seed of the first play; the others follow from it.")
    ] = 1,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Simulate a planned run: what it would spend, and what would stop it; also for a command, with
    the options of launch.

    Example: trmcloud rehearse 8xH100 --budget 400 --runs 500
    """
    if not 1 <= runs <= _MOST_RUNS:
        raise UsageError(f"--runs must be from 1 to {_MOST_RUNS:,}, not {runs}")
    names = fault_names(faults, of_command=bool(asked.words))
    context, planner = build_context(), build_planner()
    tree = None
    if asked.words:
        refuse_others(request, "run", "works only with a recipe, not with a command")
        here = Path.cwd()
        spec = commands.wish_of(planner, request, asked, here)
        plan, tree = commands.dry_run(planner, spec, here)
        commands.check_command(plan, tree)
    else:
        for each in (request, asked):
            refuse_others(each, "launch", "needs a command after --")
        plan = preparing.dry_run(context, planner, request)
    check_loss(plan, detached=request.detach, accepted=request.accept_loss)
    refusal = ""
    try:
        check_launchable(context, plan)
    except NotSupported as error:
        refusal = str(error)
    carried = keep_launchable(context, plan)
    simulate_providers()
    made = rehearsal.rehearse(carried, runs=runs, faults=names, seed=seed, detached=request.detach)
    if as_json:
        print_document(_document(made, refusal))
    else:
        if verbose:
            show_plan(context, made.plan, verbose=True)
        _show(made, names, tree, detach=request.detach, most=_ALL_LINES if verbose else _LINES)
        if refusal:
            print(f"  launch      would refuse this plan: {refusal}")
    if made.violations:
        sys.exit(1)


def _document(made: Rehearsal, refusal: str) -> views.Rehearsed:
    saved = [] if made.kept_s else made.steps_saved()  # of a command they are simulated
    return views.Rehearsed(
        plan=made.plan.id,
        plays=len(made.plays),
        cap_usd=made.plan.cap,
        spent=amounts(spread(made.spent)),
        outcomes=dict(made.outcomes()),
        ended_by=dict(made.ended_by()),
        steps_saved=dict(spread(saved)) if saved else {},
        habits=dict(Counter(made.habits)),
        plays_without_checkpoint=made.kept_s.count(0.0) if made.kept_s else None,
        training_kept_s=dict(spread(sorted(made.kept_s))) if made.kept_s else {},
        over_budget_exposed_usd=max(play.over_exposed_usd for play in made.plays),
        exposed_s=max(play.exposed_s for play in made.plays),
        faults_felt=dict(Counter(name for play in made.plays for name in play.observed)),
        violations=tuple(
            views.BrokenPlay(seed=play.seed, code=play.violation, message=play.detail)
            for play in made.violations
        ),
        timeline=tuple(
            views.TimelineEntry(after_s=line.at, code="event", message=line.text)
            for line in made.shown.timeline
        ),
        launch_refused=note("refused", refusal) if refusal else None,
    )


def _show(
    made: Rehearsal, faults: Sequence[str], tree: WorkingTree | None, *, detach: bool, most: int
) -> None:
    candidate = made.plan.recommended
    assert candidate is not None
    print(f"One play of {candidate.hardware} at {candidate.provider}, seed {made.shown.seed}:")
    how = "without a command once it trains" if detach else "launched and watched from here"
    print(f"  ({how}; checkpoints: {made.plan.survives})")
    if made.plan.spec.command is not None and tree is not None:
        lines = tree_lines(tree, verbose=False)
        print("\n".join([*lines, *_simulated(made.plan.spec.command, candidate, faults)]))
    print(timeline(made.shown.timeline, most=most))
    print()
    money = spread(made.spent)
    cap = made.plan.cap
    count = len(made.plays)
    print(f"{count} plays, budget {cap if cap is not None else 'off'}")
    words = (("least", "min"), ("median", "p50"), ("nine of ten below", "p90"), ("most", "max"))
    print("  spent       " + ", ".join(f"{word} {money[key]}" for word, key in words))
    print("  ended       " + _counts(made.outcomes(), count))
    print("  stopped by  " + _counts(made.ended_by(), sum(made.ended_by().values())))
    saved = made.steps_saved()
    if made.kept_s:
        print(f"  saved       {_kept(made)}")
    elif saved:
        steps = spread(saved)
        print(
            f"  saved       a checkpoint of step {steps['min']:,} or later, median {steps['p50']:,}"
        )
    over = max(p.over_exposed_usd for p in made.plays)
    exposed_s = max(p.exposed_s for p in made.plays)
    if exposed_s:
        print(
            f"  exposed     at most {exposed_s:,.0f} s without a working kill layer; they cost at "
            f"most ${over:,.2f} above the budget"
        )
    for play in made.violations[:5]:
        print(f"  BROKEN      seed {play.seed}: {play.detail}")


def _simulated(command: Command, candidate: Candidate, faults: Sequence[str]) -> list[str]:
    """Return the lines that say what is drawn of a command in place of what is not known of it."""
    low, high = LENGTHS
    length = f"{low:g} to {high:g} times its time limit"
    if is_length_known(candidate):
        length = "from its probe"
    often, seldom = SAVES
    habits = [name for name in faults if name in HABITS] or [Habit.PLAIN.value]
    again = "restarted from its checkpoint" if command.resume else "not restarted"
    return [
        f"  simulated in place of {mask_tokens(one_line(' '.join(command.words)))[:60]}, "
        "which is not run:",
        f"    length    {length}",
        f"    saves     every {often:.0%} to {seldom:.0%} of its length",
        f"    script    {', '.join(habits)}",
        f"    crashed   {again}",
    ]


def _kept(made: Rehearsal) -> str:
    """Return what is at home of a command after a play: of its time, since steps are unknown."""
    without = made.kept_s.count(0.0)
    kept = spread(sorted(made.kept_s))
    text = f"at least {duration(kept['min'])} of training, median {duration(kept['p50'])}"
    return f"{text}; no checkpoint in {without} of {len(made.kept_s)} plays"


def _counts(counts: Counter[str], whole: int) -> str:
    rows = counts.most_common()
    return ", ".join(f"{name} {number / max(1, whole):.0%}" for name, number in rows)
