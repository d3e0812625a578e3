"""``trmcloud plan``: what a budget buys, on which hardware, and when it would be done."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trmcloud.core.errors import UsageError
from trmcloud.core.hardware import LocalMachine
from trmcloud.core.money import Usd, parse_budget
from trmcloud.core.plan import Plan
from trmcloud.core.recipe import PHASES, SINGLE_PHASE, Recipe, parse_setting
from trmcloud.core.spec import GUIDE_HOUR_VALUE, RunSpec

BYTES_PER_TOKEN = {"bpe": 4.2, "char": 1.0}
"""English text per token: about 4.2 bytes at a vocabulary of 65,536."""
PHASE_CHOICES = (*PHASES, "both", SINGLE_PHASE)


def command(
    budget: Annotated[
        str | None, typer.Option(help="Most that may be spent, in USD.", metavar="USD")
    ] = None,
    recipe: Annotated[str, typer.Option(help="Recipe: a name or a TOML file.")] = "trm",
    phase: Annotated[str, typer.Option(help="fast, extreme or both.")] = "both",
    hardware: Annotated[
        str, typer.Option(help="8xA100, 1xRTX4090, local, … (default: everything offered).")
    ] = "",
    rate: Annotated[
        str | None, typer.Option(help="This machine's USD per hour.", metavar="USD")
    ] = None,
    data: Annotated[str, typer.Option(help="Text to train on: files or a folder.")] = "",
    steps: Annotated[int | None, typer.Option(help="Optimizer steps of each phase.")] = None,
    hours: Annotated[float | None, typer.Option(help="Hours of training.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Tokens of each phase.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any recipe key, repeatable.", metavar="KEY=VALUE"),
    ] = None,
    processes: Annotated[int, typer.Option(help="Processes on this machine.")] = 0,
    objective: Annotated[
        str, typer.Option(help="value, cheapest, fastest or most-training.")
    ] = "value",
    hour_value: Annotated[
        str | None, typer.Option(help="USD an hour of waiting is worth.", metavar="USD")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(help="12h, friday, 2026-11-27T18:00.", metavar="TIME")
    ] = None,
    provider: Annotated[
        list[str] | None, typer.Option(help="Rent from these alone, repeatable.")
    ] = None,
    region: Annotated[list[str] | None, typer.Option(help="Only there, repeatable.")] = None,
    gpus: Annotated[int, typer.Option(help="GPUs of the machine, 1 to 64 (0: any).")] = 0,
    spot: Annotated[bool, typer.Option("--spot", help="Interruptible offers, too.")] = False,
    community: Annotated[
        bool, typer.Option("--community", help="Private sellers' hosts, too.")
    ] = False,
    fill: Annotated[
        bool, typer.Option("--fill", help="As many tokens as budget or deadline buy.")
    ] = False,
    equal_work: Annotated[
        bool, typer.Option("--equal-work", help="The same tokens on every hardware.")
    ] = False,
    explain: Annotated[
        str | None, typer.Option(help="The arithmetic of one hardware.", metavar="HARDWARE")
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option(help="Cost against time: FILE.svg, .html or .png.", metavar="FILE"),
    ] = None,
    probe: Annotated[
        str, typer.Option(help="local: measure fifty real steps first.", metavar="local")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Show every candidate kept.")] = False,
) -> None:
    """Plan a run: hours, dollars and memory on every hardware, and which one to take.

    Example: trmcloud plan --budget 1000
    """
    spec = make_spec(
        budget=budget, recipe=recipe, phase=phase, hardware=hardware, rate=rate, data=data,
        steps=steps, hours=hours, tokens=tokens, settings=setting or [], processes=processes,
        objective=objective, hour_value=hour_value, deadline=deadline, providers=provider or [],
        regions=region or [], gpus=gpus, spot=spot, community=community, fill=fill,
        equal_work=equal_work,
    )  # fmt: skip
    if probe:
        from trmcloud.cli.plan_probe import run_probe

        run_probe(spec, probe)
    plan = prepare(spec)
    if plot is not None:
        from trmcloud.cli.plan_chart import write_plot

        write_plot(plan, Path(plot))
    if explain is not None and not as_json:
        from trmcloud.cli.plan_explain import explain as explained

        print("\n".join(explained(plan, explain)))
        return
    from trmcloud.cli import plan_view

    plan_view.show(plan, as_json=as_json, everything=everything)


def make_spec(
    *,
    budget: str | None = None,
    recipe: str = "trm",
    phase: str = "both",
    hardware: str = "",
    rate: str | None = None,
    data: str = "",
    steps: int | None = None,
    hours: float | None = None,
    tokens: int | None = None,
    settings: list[str],
    processes: int = 0,
    objective: str = "value",
    hour_value: str | None = None,
    initial_from: str = "",
    strict_gate: bool = False,
    deadline: str | None = None,
    providers: list[str] | None = None,
    regions: list[str] | None = None,
    gpus: int = 0,
    spot: bool = False,
    community: bool = False,
    fill: bool = False,
    equal_work: bool = False,
) -> RunSpec:
    """A checked RunSpec from what was typed; ``launch`` reads its options with this, too.

    Raises:
        UsageError: naming the option at fault.
    """
    if phase not in PHASE_CHOICES:
        raise UsageError(f"--phase is one of {', '.join(PHASE_CHOICES)}, not {phase!r}")
    if sum(limit is not None for limit in (steps, hours, tokens)) > 1:
        raise UsageError("--steps, --hours and --tokens exclude one another")
    for name, limit in (("--steps", steps), ("--hours", hours), ("--tokens", tokens)):
        if limit is not None and not 0 < limit < 1e15:
            raise UsageError(f"{name} must be above zero, not {limit}")
    if processes < 0:
        raise UsageError(f"--processes must be above zero, not {processes}")
    if not 0 <= gpus <= 64:
        raise UsageError(f"--gpus lies between 1 and 64, not {gpus}")
    deadline_at = None
    if deadline is not None:
        import time

        from trmcloud.core.deadline import parse_deadline

        deadline_at = parse_deadline(deadline, time.time(), None)
    canonical = ""
    if hardware:
        from trmcloud.core.hardware import parse_hardware

        canonical = parse_hardware(hardware).text
    if rate is not None and canonical not in ("", "local"):
        raise UsageError("--rate is the price of this machine; rented hardware has its own")
    return RunSpec(
        recipe=recipe,
        phases=PHASES if phase == "both" else (phase,),
        hardware=canonical,
        processes=processes,
        budget=parse_money("--budget", budget),
        rate=parse_money("--rate", rate),
        data=data,
        overrides=tuple(parse_setting(text) for text in settings),
        steps=steps,
        hours=hours,
        tokens=tokens,
        initial_from=initial_from,
        strict_gate=strict_gate,
        objective=objective,
        hour_value=parse_money("--hour-value", hour_value) or GUIDE_HOUR_VALUE,
        deadline_at=deadline_at,
        providers=tuple(providers or ()),
        regions=tuple(regions or ()),
        gpus=gpus,
        spot=spot,
        community=community,
        fill=fill,
        equal_work=equal_work,
    )


def prepare(
    spec: RunSpec,
    *,
    local: LocalMachine | None = None,
    tokens_available: int | None = None,
    now: float | None = None,
    home: Path | None = None,
    save: bool = True,
) -> Plan:
    """Loads recipe and offers, makes the plan, and saves it under the user's home."""
    import os
    import time

    from trmcloud.adapters.local_machine import this_machine
    from trmcloud.adapters.prices import load_offers
    from trmcloud.adapters.recipe_files import load_recipe
    from trmcloud.app import plans, probes
    from trmcloud.app.home import home_dir
    from trmcloud.core.planning import make_plan

    at = time.time() if now is None else now
    where = home_dir(os.environ) if home is None else home
    recipe = load_recipe(spec.recipe)
    offers = [] if spec.hardware == "local" else load_offers(at, where)
    plan = make_plan(
        spec,
        recipe,
        offers,
        at,
        plans.new_id(where, spec, at),
        local=local or this_machine(),
        tokens_available=tokens_available or _tokens_in(spec.data, recipe),
        measured=probes.load(where),
    )
    if save:
        plans.save(where, plan)
    return plan


def _tokens_in(data: str, recipe: Recipe) -> int | None:
    """About how many tokens a file or folder holds; None where it is no path."""
    path = Path(data).expanduser()
    if not data or not path.exists():
        return None
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    size = sum(each.stat().st_size for each in files)
    return int(size / BYTES_PER_TOKEN.get(str(recipe.shared.get("tokenizer", "bpe")), 1.0))


def parse_money(option: str, text: str | None) -> Usd | None:
    if text is None:
        return None
    try:
        return parse_budget(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}", next_step=f"{option} 1000") from None
