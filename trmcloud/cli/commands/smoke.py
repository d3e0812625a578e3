"""``trmcloud smoke``: what a user runs first with real money, and ``--train``: what they run first
on GPUs."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from trmcloud.cli import options
from trmcloud.cli.commands.launch import carry_out
from trmcloud.cli.confirm import is_confirmed
from trmcloud.cli.views import training_checks as view
from trmcloud.cli.views.json_output import print_line
from trmcloud.cli.views.streams import outlive_the_reader
from trmcloud.core.catalog.hardware import LOCAL, parse_hardware
from trmcloud.core.catalog.providers import find_traits
from trmcloud.core.contract.training_checks import MOST_HOURS
from trmcloud.core.errors import NotVerified, Outcome, UsageError
from trmcloud.core.money import Usd
from trmcloud.core.text import one_line
from trmcloud.operations import views
from trmcloud.operations.checks import smoke_training
from trmcloud.operations.checks.smoke import Smoke
from trmcloud.operations.checks.smoke_watch import Step
from trmcloud.operations.context import run_by_id
from trmcloud.operations.driving.balances import funds_reader
from trmcloud.operations.launch.launch import Caller, Launch, Wish
from trmcloud.operations.reasons import sentence
from trmcloud.options import LaunchRequest, parse_money
from trmcloud.wiring import build_context, build_smoke, trainer_package
from trmcloud.wiring_plans import build_planner

LEAST_MINUTES, MOST_MINUTES = 0.25, 60.0
DEFAULT_RECIPE = "speedrun"


def smoke(
    max_usd: Annotated[
        str, typer.Option(help="Most to spend, in USD.", metavar="USD", show_default=False)
    ] = "",
    provider: Annotated[str, typer.Option(help="Provider.")] = "runpod",
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Lifetime of each pod, boot included (default: 10 at RunPod, where a boot takes "
            "up to 7; 30 through SkyPilot).",
            show_default=False,
        ),
    ] = None,
    train: Annotated[
        bool,
        typer.Option(
            "--train", help="Check the trainer instead: compile, steps, resume, links, memory."
        ),
    ] = False,
    hardware: Annotated[
        str,
        typer.Option(
            "--hardware",
            help="With --train: 8xH100, other NxSKU, or local (default: list what it costs).",
            metavar="HARDWARE",
            show_default=False,
        ),
    ] = "",
    recipe: Annotated[
        str, typer.Option("--recipe", help="With --train: the recipe whose shape is checked.")
    ] = DEFAULT_RECIPE,
    accept_exposure: Annotated[
        str,
        typer.Option(
            "--accept-exposure",
            help="With --train: accept at most this loss where too few kill layers are verified.",
            metavar="USD",
            show_default=False,
        ),
    ] = "",
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> None:
    """Rent the cheapest pod, test which kill layers work for this account, end it, show the bill.

    With --train: check on rented GPUs, or on this machine, that the trainer
    does what plans count on, and teach the planner what a step takes.

    Exit code 17: the pod did not end itself (it was ended from here, and the
    layer stays unverified), or a check of --train failed.

    Example: trmcloud smoke --provider runpod --max-usd 0.25
    """
    if train:
        check_training(max_usd, hardware, recipe, accept_exposure, yes=yes, as_json=as_json)
        return
    of_training = {
        "--hardware": hardware,
        "--recipe": recipe.removeprefix(DEFAULT_RECIPE),
        "--accept-exposure": accept_exposure,
    }
    for flag, value in of_training.items():
        if value:
            raise UsageError(f"{flag} works only with --train", next_step=f"--train {flag} {value}")
    if not max_usd:
        raise UsageError("--max-usd is missing: the most to spend", next_step="--max-usd 0.25")
    check_layers(provider, max_usd, minutes, yes=yes, as_json=as_json)


def check_layers(
    provider: str, max_usd: str, minutes: float | None, *, yes: bool, as_json: bool
) -> None:
    """Test the kill layers on the cheapest pod of a provider."""
    if minutes is None:
        traits = find_traits(provider)
        minutes = traits.smoke_minutes if traits is not None else 10.0
    amount = parse_money("--max-usd", max_usd) or Usd(0)
    if not LEAST_MINUTES <= minutes <= MOST_MINUTES:
        raise UsageError(
            f"--minutes must be from {LEAST_MINUTES} to {MOST_MINUTES:g}, not {minutes:g}",
            next_step="--minutes 10",
        )
    context, ground = build_smoke(provider)
    tell = print_step if as_json else show
    smoke = Smoke(context, ground, amount, minutes * 60.0, tell, sentence)
    smoke.check_account()
    plan = smoke.plan()
    first = plan.recommended
    assert first is not None
    print(
        f"{first.hardware} at {ground.provider}, {first.region}, {first.rate}/h, gone after "
        f"{minutes:g} min: at most {plan.reservation} per pod, {amount} in total\nif all kill "
        f"layers failed while this machine is off, {first.rate} an hour would still be spent: the "
        "smoke run tests them",
        flush=True,
    )
    if ground.on_machine:
        print(f"on the machine: {one_line(ground.on_machine)}", flush=True)
    if not yes and not is_confirmed("  Proceed?"):
        print("nothing was rented or spent")
        return
    outlive_the_reader()
    verdict = smoke.run(plan)
    layers = ", ".join(verdict.verified) or "none"
    print(f"verified for this account: {layers}")
    if verdict.trouble is not None:
        raise verdict.trouble
    if as_json:
        ended = views.SmokeEnded(
            provider=ground.provider,
            hardware=first.hardware,
            region=first.region,
            rate_per_hour_usd=first.rate,
            reservation_usd=plan.reservation,
            verified=tuple(verdict.verified),
        )
        print_line(ended)
        return
    print("next: trmcloud plan --budget 100")


def check_training(
    max_usd: str, hardware: str, recipe: str, accept_exposure: str, *, yes: bool, as_json: bool
) -> None:
    """The trainer's checks on ``hardware``; without any, what they cost on each machine."""
    amount = parse_money("--max-usd", max_usd) if max_usd else None
    parse_money("--accept-exposure", accept_exposure or None)
    context = build_context()
    planner = build_planner(funds=funds_reader(context))
    if not hardware:
        print("\n".join(view.machine_lines(smoke_training.machines(planner, recipe), recipe)))
        return
    typed = parse_hardware(hardware).text
    wanted = smoke_training.wanted_checks(planner, recipe, typed)
    if amount is None and typed != LOCAL:
        raise UsageError(
            "--max-usd is missing: the most to spend",
            next_step=f"--max-usd {wanted.least.micros / 1e6:.2f}",
        )
    wanted.check_sum(amount)
    request = LaunchRequest(
        hardware=typed,
        budget=max_usd or None,
        hours=MOST_HOURS,
        accept_exposure=accept_exposure or None,
    )
    with tempfile.TemporaryDirectory(prefix="trmcloud-smoke-") as name:
        folder = Path(name)
        wanted.write(folder)
        begun = carry_out(
            Launch(context, planner, Wish(request, wanted.command(), here=folder),
                   Caller(confirms=not yes), trainer_package),
            lambda _: view.wanted_lines(wanted), yes=yes, as_json=as_json, verbose=False,
        )  # fmt: skip
    if begun is None:
        return
    run, code = run_by_id(context, begun.run_id), begun.code
    results = smoke_training.results_of(context, run)
    taught = smoke_training.note_step(context, run, wanted, planner.machine(), results)
    if as_json:
        print_line(smoke_training.checked_view(context, run, wanted, results, taught))
    else:
        print("\n".join(view.result_lines(results, taught)))
    if not results:
        sys.exit(code or Outcome.FAILED.exit_code)
    failed = [each.name for each in results if each.passed is False]
    if failed:
        raise NotVerified(
            f"{len(failed)} of {len(results)} checks failed: {', '.join(failed)}",
            next_step=f"trmcloud logs {run.run_id}; for a report: trmcloud doctor --bundle",
        )
    if code not in (0, Outcome.LANDED.exit_code):
        sys.exit(code)


def print_step(step: Step) -> None:
    """The step as a line of JSON."""
    print_line(
        views.SmokeStep(
            elapsed_s=step.at_s,
            spent_usd=step.spent,
            code=step.name,
            passed=step.good,
            message=one_line(step.detail),
        )
    )


def show(step: Step) -> None:
    """One line: mark, clock, money, what was tried, what came of it."""
    mark = {True: "✔", False: "✘", None: "·"}[step.good]
    minutes, seconds = divmod(int(step.at_s), 60)

    detail = one_line(step.detail)
    spent = f"${float(step.spent):.4f}"
    print(f"{mark} {minutes:02d}:{seconds:02d} {spent}  {step.name:<11} {detail}", flush=True)
