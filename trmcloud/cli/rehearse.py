"""``trmcloud rehearse``: play a planned run in a simulated world, with faults."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from trmcloud.core.errors import UsageError

_MOST_RUNS = 100_000


def command(
    hardware: Annotated[
        str,
        typer.Argument(
            help="8xB200 8xH200 8xH100 8xA100 4xH100 4xA100, other NxSKU, local, or a plan's id.",
            metavar="HARDWARE",
        ),
    ],
    recipe: Annotated[str, typer.Option(help="Recipe: a name or a TOML file.")] = "trm",
    phase: Annotated[str, typer.Option(help="fast, extreme or both.")] = "both",
    budget: Annotated[
        str | None, typer.Option(help="Most that may be spent, in USD.", metavar="USD")
    ] = None,
    rate: Annotated[
        str | None, typer.Option(help="This machine's USD per hour (local).", metavar="USD")
    ] = None,
    data: Annotated[
        str, typer.Option(help="Text to train on: a file, a folder, or python-stdlib.")
    ] = "",
    steps: Annotated[int | None, typer.Option(help="Optimizer steps of each phase.")] = None,
    hours: Annotated[float | None, typer.Option(help="Hours of training.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Tokens of each phase.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any recipe key, repeatable.", metavar="KEY=VALUE"),
    ] = None,
    processes: Annotated[int, typer.Option(help="torchrun processes (local).")] = 0,
    initial_from: Annotated[
        str, typer.Option("--from", help="Start from the weights of a run or checkpoint folder.")
    ] = "",
    strict_guide: Annotated[
        bool, typer.Option("--strict-guide", help="The guide's bands block the gate, too.")
    ] = False,
    runs: Annotated[int, typer.Option(help="How often the run is played.")] = 200,
    faults: Annotated[
        str, typer.Option(help="all, none, or numbers and words: 15,preempted,asleep.")
    ] = "all",
    seed: Annotated[int, typer.Option(help="The first play's dice; the rest follow.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON.")] = False,
) -> None:
    """Play a planned run in a simulated world: what it would spend, and who would stop it.

    Example: trmcloud rehearse 8xH100 --budget 400 --runs 500
    """
    from trmcloud.app.plans import is_plan_id
    from trmcloud.cli import launch_steps
    from trmcloud.cli.plan_making import make_spec
    from trmcloud.sim.rehearsal import fault_names, rehearse
    from trmcloud.wiring import build_world

    if not 1 <= runs <= _MOST_RUNS:
        raise UsageError(f"--runs is from 1 to {_MOST_RUNS:,}, not {runs}")
    names = fault_names(faults)
    world = build_world()
    if is_plan_id(hardware):
        plan, _ = launch_steps.saved_plan(world, hardware, data)
    else:
        spec = make_spec(
            budget=budget, recipe=recipe, phase=phase, hardware=hardware, rate=rate, data=data,
            steps=steps, hours=hours, tokens=tokens, settings=setting or [],
            processes=processes, initial_from=initial_from, strict_gate=strict_guide,
        )  # fmt: skip
        plan, _ = launch_steps.new_plan(world, spec)
    made = rehearse(plan, runs=runs, faults=names, seed=seed)
    if as_json:
        print(json.dumps(made.to_json()))
    else:
        _show(made)
    if made.violations:
        sys.exit(1)


def _show(made: object) -> None:
    from trmcloud.sim.rehearsal import Rehearsal, spread
    from trmcloud.sim.shrink import timeline

    assert isinstance(made, Rehearsal)
    candidate = made.plan.recommended
    assert candidate is not None
    print(f"One play of {candidate.hardware} at {candidate.provider}, seed {made.shown.seed}:")
    print(timeline(made.shown.told, most=40))
    print()
    money = spread(made.spent)
    cap = made.plan.cap
    count = len(made.plays)
    print(f"{count} plays, budget {cap if cap is not None else 'off'}")
    words = (("least", "min"), ("median", "p50"), ("nine in ten below", "p90"), ("most", "max"))
    print("  spent     " + ", ".join(f"{word} {money[key]}" for word, key in words))
    print("  ended     " + _counts(made.outcomes(), count))
    print("  stopped by  " + _counts(made.ended_by(), sum(made.ended_by().values())))
    saved = made.steps_saved()
    if saved:
        steps = spread(saved)
        print(
            f"  saved     a checkpoint of step {steps['min']:,} at least, {steps['p50']:,} median"
        )
    over = max(p.over_exposed_usd for p in made.plays)
    exposed_s = max(p.exposed_s for p in made.plays)
    if exposed_s:
        print(
            f"  exposed   at most {exposed_s:,.0f} s in which no layer could act;"
            f" at most ${over:,.2f} above the budget in them"
        )
    for play in made.violations[:5]:
        print(f"  BROKEN    seed {play.seed}: {play.detail}")


def _counts(counts: object, whole: int) -> str:
    rows = counts.most_common()  # type: ignore[attr-defined]
    return ", ".join(f"{name} {number / max(1, whole):.0%}" for name, number in rows)
