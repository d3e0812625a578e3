"""``trmcloud doctor``: check this machine and the accounts it rents with."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from trmcloud.cli.views.streams import as_is

if TYPE_CHECKING:
    from trmcloud.core.money import Usd


def doctor(
    plan: Annotated[
        str, typer.Argument(help="A saved plan, to hold against balance and spend limit.")
    ] = "",
    bucket: Annotated[
        str, typer.Option(help="A bucket to try, too.", envvar="TRMCLOUD_BUCKET", metavar="S3_URL")
    ] = "",
    gpu: Annotated[
        bool, typer.Option("--gpu", help="Measure this machine's GPUs, and nothing else.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check what trmcloud needs here, each with its fix.

    Example: trmcloud doctor
    """
    if gpu:
        from trmcloud.cli.trainer_command import run_trainer_command

        run_trainer_command("model.gpu", ["--json"] if as_json else [])
        return
    from trmcloud.app.doctor import examine
    from trmcloud.wiring import account_checks, build_context, python_path
    from trmcloud.wiring_plans import known_offers, local_machine

    checks = account_checks(os.environ, _rates(plan) if plan else {}, bucket)
    findings = examine(build_context, local_machine, python_path, known_offers, checks)
    if as_json:
        print(json.dumps([finding._asdict() for finding in findings], indent=1), file=as_is())
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            mark = {"ok": "✔", "warn": "!", "bad": "✘"}[finding.state]
            print(f"{mark} {finding.name:<{width}}  {finding.detail}")
            if finding.fix:
                print(f"    fix: {finding.fix}")
    sys.exit(1 if any(finding.state == "bad" for finding in findings) else 0)


def _rates(plan_id: str) -> dict[str, Usd]:
    """The dearest USD/h that the plan may rent at, by provider."""
    from trmcloud.app.home import home_dir
    from trmcloud.app.plans import load

    plan = load(home_dir(os.environ), plan_id, time.time())
    rates: dict[str, Usd] = {}
    for candidate in map(plan.candidate, plan.launchable):
        known = rates.get(candidate.provider)
        rates[candidate.provider] = max(candidate.rate, known or candidate.rate)
    return rates
