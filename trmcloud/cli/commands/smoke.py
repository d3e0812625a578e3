"""``trmcloud smoke``: what a user runs first with real money."""

from __future__ import annotations

from typing import Annotated

import typer

from trmcloud.app.smoke import Smoke
from trmcloud.app.smoke_watch import Step
from trmcloud.cli import documents as doc
from trmcloud.cli import options
from trmcloud.cli.confirm import is_confirmed
from trmcloud.cli.views.json_output import print_line
from trmcloud.cli.views.reasons import sentence
from trmcloud.cli.views.streams import outlive_the_reader
from trmcloud.core.catalog.providers import find_traits
from trmcloud.core.errors import UsageError
from trmcloud.core.money import Usd
from trmcloud.core.text import one_line
from trmcloud.options import parse_money
from trmcloud.wiring import build_smoke

LEAST_MINUTES, MOST_MINUTES = 0.25, 60.0


def smoke(
    max_usd: Annotated[str, typer.Option(help="Most to spend, in USD.", metavar="USD")],
    provider: Annotated[str, typer.Option(help="Provider.")] = "runpod",
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Lifetime of each pod, boot included (default: 10 at RunPod, where a boot takes "
            "up to 7; 30 through SkyPilot).",
            show_default=False,
        ),
    ] = None,
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> None:
    """Rent the cheapest pod, test which kill layers work for this account, end it, show the bill.

    Exit code 17: the pod did not end itself; it was ended from here, and the layer stays
    unverified.

    Example: trmcloud smoke --provider runpod --max-usd 0.25
    """
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
        ended = doc.SmokeEnded(
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


def print_step(step: Step) -> None:
    """The step as a line of JSON."""
    print_line(
        doc.SmokeStep(
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
