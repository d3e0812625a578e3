"""``trmcloud launch``: reserve the worst case, train, stop in time."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from trmcloud.cli import options
from trmcloud.core.errors import UsageError

_KEPT = (
    "dry_run", "detach", "yes", "as_json", "accept_loss", "accept_exposure", "allow_key", "verbose",
)  # fmt: skip
"""Options that go with a plan made before: they do not change it."""


def command(
    context: typer.Context,
    hardware: options.Hardware,
    recipe: options.Recipe = "trm",
    phase: options.Phase = "both",
    budget: options.Budget = None,
    rate: options.Rate = None,
    data: options.Data = "",
    steps: options.Steps = None,
    hours: options.Hours = None,
    tokens: options.Tokens = None,
    setting: options.Settings = None,
    processes: options.Processes = 0,
    initial_from: options.InitialFrom = "",
    strict_guide: options.StrictGuide = False,
    accept_exposure: Annotated[
        str | None,
        typer.Option(
            help="Rent without two verified kill layers, or where nothing caps the rent: the USD "
            "an hour that may be lost.",
            metavar="USD",
        ),
    ] = None,
    volume: options.Volume = False,
    volume_days: options.VolumeDays = 7.0,
    volume_then: options.VolumeThen = "keep",
    provider: options.RentFrom = None,
    via: options.Via = "",
    allow_key: options.AllowAccountKey = False,
    bucket: options.Bucket = "",
    region: options.Region = None,
    community: options.Community = False,
    spot: options.Spot = False,
    accept_loss: options.AcceptLoss = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan that would run, and leave.")
    ] = False,
    detach: options.Detach = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --dry-run: print the plan as JSON.")
    ] = False,
    verbose: options.Verbose = False,
) -> None:
    """Carry a plan out: reserve its worst case, rent, train, land in time, settle.

    Example: trmcloud launch local --recipe trm-tiny --rate 3.60 --budget 0.20
    """
    from trmcloud.app import launch as use_case
    from trmcloud.app.plans import is_plan_id
    from trmcloud.app.world import World
    from trmcloud.cli import launch_steps, run_view
    from trmcloud.cli.asking import confirmed
    from trmcloud.cli.catching_up import tell_unreached
    from trmcloud.cli.launch_view import show_plan
    from trmcloud.cli.launch_whom import rent_from
    from trmcloud.cli.plan_making import make_spec, parse_money
    from trmcloud.core.outcome import Outcome
    from trmcloud.core.plan import Plan
    from trmcloud.wiring import build_world
    from trmcloud.wiring_skypilot import enabled_by_skypilot

    if as_json and not dry_run:
        raise UsageError("--json goes with --dry-run", next_step="trmcloud status --json")
    world: World = build_world()
    world.ledger.read()  # a ledger that cannot be used is told before any work is done
    exposure = parse_money("--accept-exposure", accept_exposure)

    def check(plan: Plan) -> None:
        use_case.check_launchable(world, plan)
        use_case.check_account_key(plan, allowed=allow_key)
        use_case.check_disk(world.home, plan)
        use_case.check_loss(plan, detached=detach, accepted=accept_loss)
        use_case.check_exposure(world, plan, exposure)

    def check_before_data(plan: Plan) -> None:
        use_case.check_launchable(world, plan)
        use_case.check_machine(world, plan)
        use_case.check_account(world, plan)
        use_case.check_bucket(world, plan.spec)
        check(plan)

    check_first = None if dry_run else check_before_data
    plan: Plan
    if is_plan_id(hardware):
        launch_steps.refuse_changes(context, hardware, kept=_KEPT)
        plan, prepared = launch_steps.saved_plan(world, hardware, data, check_first)
    else:
        if not dry_run:
            launch_steps.require_trainer(recipe)
        spec = make_spec(
            budget=budget, recipe=recipe, phase=phase, hardware=hardware, rate=rate, data=data,
            steps=steps, hours=hours, tokens=tokens, settings=setting or [],
            processes=processes, initial_from=initial_from, strict_gate=strict_guide,
            volume=volume, volume_days=volume_days, volume_then=volume_then,
            regions=region, community=community, spot=spot, bucket=bucket,
            providers=rent_from(
                hardware, provider or [], via, key_allowed=allow_key, enabled=enabled_by_skypilot
            ),
        )  # fmt: skip
        plan, prepared = launch_steps.new_plan(world, spec, check_first)
    if dry_run:
        show_plan(world, plan, as_json=as_json, verbose=verbose)
        if plan.launchable and not as_json:
            print(f"Launch it: trmcloud launch {plan.id}")
        return
    check(plan)
    weights = launch_steps.initial_weights(world, plan.spec.initial_from)
    show_plan(world, plan, verbose=verbose)
    use_case.check_capped(world, plan, confirmed=not yes)
    if not yes and not confirmed("  Proceed?"):
        print("nothing was started, nothing was spent")
        return
    launch_steps.upload_data(world, plan, prepared, weights)
    driver = use_case.start(world, plan, data=prepared, initial_weights=weights, detached=detach)
    tell_unreached(world)
    code = run_view.carry(world, driver, detach=detach)
    run = driver.run()
    sold_out = any(action.failed_kind == "no_capacity" for action in run.actions.values())
    if code == Outcome.NOT_STARTED.exit_code and sold_out:
        print(f"  try: {launch_steps.next_best(world, plan)}")
    sys.exit(code)
