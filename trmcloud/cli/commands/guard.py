"""``trmcloud doctor`` and ``guard``: this machine's state, its guard over forgotten pods."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from trmcloud.cli import options
from trmcloud.cli.commands.evaluate import print_measured, run_trainer_command
from trmcloud.cli.confirm import is_confirmed
from trmcloud.cli.views.json_output import print_answer, print_document
from trmcloud.cli.views.text import duration
from trmcloud.core.errors import ConflictError, ProviderError, UsageError
from trmcloud.core.money import Usd
from trmcloud.io.redaction import Redactor, secrets_of
from trmcloud.operations import views
from trmcloud.operations.checks.doctor import Finding, check_funds, examine
from trmcloud.operations.context import find_run
from trmcloud.operations.driving.reap import last_visit
from trmcloud.operations.encoding import encode
from trmcloud.operations.home import bound_principal, home_dir
from trmcloud.operations.plans.planning import load_plan
from trmcloud.operations.runs.bundle import write_bundle
from trmcloud.operations.runs.run_facts import report_run
from trmcloud.operations.runs.run_views import run_account
from trmcloud.operations.views import filled, note
from trmcloud.wiring import (
    account_checks,
    build_chain,
    build_context,
    funds_at,
    keys_unseen,
    ledger_secrets,
    python_path,
    reaper_timer,
)
from trmcloud.wiring_plans import known_offers, local_machine


def doctor(
    plan: Annotated[
        str, typer.Argument(help="A saved plan, to compare with balance and spend limit.")
    ] = "",
    bucket: Annotated[
        str, typer.Option(help="A bucket to test, too.", envvar="TRMCLOUD_BUCKET", metavar="S3_URL")
    ] = "",
    gpu: Annotated[bool, typer.Option("--gpu", help="Only measure this machine's GPUs.")] = False,
    bundle: Annotated[
        bool, typer.Option("--bundle", help="Write a redacted archive of a run, for a bug report.")
    ] = False,
    run: Annotated[
        str,
        typer.Option(
            help="With --bundle: the run (default: the newest).",
            autocompletion=options.complete_run,
        ),
    ] = "",
    into: Annotated[
        str,
        typer.Option(
            help="With --bundle: the file to write (default: trmcloud-RUN.tar.gz).", metavar="FILE"
        ),
    ] = "",
    as_json: options.Json = False,
) -> None:
    """Check the setup of trmcloud, with a fix for each problem.

    Example: trmcloud doctor
    """
    if bundle:
        _write_bundle(run, into, as_json=as_json)
        return
    if run or into:
        raise UsageError("--run and --into need --bundle", next_step="trmcloud doctor --bundle")
    if gpu and as_json:
        print_measured("model.gpu", [])
        return
    if gpu:
        run_trainer_command("model.gpu", [])
        return

    checks = account_checks(os.environ, _rates(plan) if plan else {}, bucket)
    findings = examine(build_context, local_machine, python_path, known_offers, checks)
    findings += _funds_for(plan) if plan else []
    if as_json:
        print_document(_diagnosis(findings))
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            mark = {"ok": "✔", "warn": "!", "bad": "✘"}[finding.state]
            print(f"{mark} {finding.name:<{width}}  {finding.detail}")
            if finding.fix:
                print(f"    fix: {finding.fix}")
    sys.exit(1 if any(finding.state == "bad" for finding in findings) else 0)


def _write_bundle(name: str, into: str, *, as_json: bool) -> None:
    """
    Raises:
        ConflictError: the file already exists.
    """
    context = build_context()
    run = find_run(context, name or None)
    path = Path(into or f"trmcloud-{run.run_id}.tar.gz").expanduser()
    if path.exists():
        raise ConflictError("the file already exists", where=str(path), next_step="--into FILE")
    redactor = Redactor(
        secrets_of(os.environ) | ledger_secrets(),
        folders=(str(context.home), str(Path.home())),
        names=(getpass.getuser(), socket.gethostname()),
    )
    report = encode(run_account(context, run, report_run(context, run)))
    made = write_bundle(context, build_chain(), run, report, redactor, path)
    written = filled(
        views.BundleWritten, made, run_id=run.run_id, path=str(made.path), files=tuple(made.names)
    )
    lines = (
        f"{run.run_id}: written to {made.path}, {made.size_bytes / 1e3:,.0f} kB; nothing was sent",
        f"  {made.exchanges} requests to providers; {', '.join(made.names)}",
        "  read it before you send it: README.txt lists what was removed and what was not",
    )
    print_answer(written, lines, as_json=as_json)


def _diagnosis(findings: Sequence[Finding]) -> views.Diagnosis:
    marks = {"ok": True, "warn": None, "bad": False}
    return views.Diagnosis(
        passed=all(finding.state != "bad" for finding in findings),
        checks=tuple(
            views.CheckRow(
                code=each.name,
                passed=marks[each.state],
                message=each.detail,
                next=each.fix or None,
            )
            for each in findings
        ),
    )


def _rates(plan_id: str) -> dict[str, Usd]:
    """The dearest USD/h that the plan may rent at, by provider."""
    plan = load_plan(home_dir(os.environ), plan_id, time.time(), bound_principal(os.environ))
    rates: dict[str, Usd] = {}
    for candidate in map(plan.candidate, plan.launchable):
        known = rates.get(candidate.provider)
        rates[candidate.provider] = max(candidate.rate, known or candidate.rate)
    return rates


def _funds_for(plan_id: str) -> list[Finding]:
    """Hold the plan's worst case against the balance of its first provider."""
    plan = load_plan(home_dir(os.environ), plan_id, time.time(), bound_principal(os.environ))
    chosen = plan.recommended
    funds, _ = funds_at(chosen.provider) if chosen is not None else (None, "")
    return [] if funds is None else [check_funds(funds, plan)]


app = options.make_group(
    "Check every few minutes for pods past their hard stop, and end them.",
    "trmcloud admin guard install --every 5",
)


@app.command("install")
def install(
    every: Annotated[int, typer.Option(help="Minutes between two checks.")] = 5,
    cron: Annotated[
        bool, typer.Option("--cron", help="Use cron even if systemd is available.")
    ] = False,
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> None:
    """Show what will be written, then write it: a systemd user timer, or a line for cron.

    Example: trmcloud admin guard install --every 5
    """
    command = shutil.which("trmcloud") or str(Path(sys.executable).parent / "trmcloud")
    timer = reaper_timer()
    planned = timer.plan(command, every_min=every, cron=cron)
    for name, provider, place in keys_unseen(os.environ, timer.environment):
        raise UsageError(
            f"{name} is set only in this shell: a timer starts without it and could not end pods "
            f"at {provider}",
            next_step=f"put the key into {place}, then run trmcloud admin guard install again",
        )
    trial = timer.try_out(command)
    if trial.error:
        raise ProviderError(
            f"the reaper fails in the environment of a timer: {trial.error}",
            next_step="trmcloud doctor",
        )
    for provider, why in trial.unreachable.items():
        raise ProviderError(
            f"in the environment of a timer the reaper gets no list from {provider}: {why}",
            next_step="run trmcloud doctor, then trmcloud admin guard install again",
        )
    for path, text in planned.writes:
        print(f"{path}:")
        print("".join(f"  {line}\n" for line in text.splitlines()))
    if not yes and not is_confirmed("Write this?"):
        return
    timer.install(planned)
    if as_json:
        _print_guard()
        return
    print(f"the reaper runs every {every} min ({planned.kind}); tested in the timer's environment")
    if weak := timer.weakness(planned.kind):
        print(f"  but {weak}")


@app.command("status")
def status(as_json: options.Json = False) -> None:
    """Show whether the guard is installed, and when its reaper last ran.

    Example: trmcloud admin guard status
    """
    if as_json:
        sys.exit(0 if _print_guard() else 3)
    context, timer = build_context(), reaper_timer()
    kind = timer.installed()
    print(f"installed  {kind or 'no'}")
    if kind and (weak := timer.weakness(kind)):
        print(f"           {weak}")
    visit = last_visit(context)
    if visit is None:
        print("reaper     has not run yet")
    else:
        reached = ", ".join(visit.reached) or "nobody"
        age = duration(context.wall() - visit.at)
        print(f"reaper     last ran {age} ago, on {visit.machine}; it reached {reached}")
    sys.exit(0 if kind else 3)


@app.command("remove")
def remove(as_json: options.Json = False) -> None:
    """Remove the guard.

    Example: trmcloud admin guard remove
    """
    kind = reaper_timer().remove()
    if as_json:
        _print_guard()
        return
    print(f"removed the {kind} guard" if kind else "no guard was installed")


def _print_guard() -> str:
    """Print the guard's state as JSON; return the kind that is installed, '' for none."""
    context, timer = build_context(), reaper_timer()
    kind, visit = timer.installed(), last_visit(context)
    weak = timer.weakness(kind) if kind else ""
    document = views.GuardStatus(
        installed=kind or None,
        every_s=visit.every_s if visit is not None else None,
        last_visit_at=visit.at if visit is not None else None,
        machine=visit.machine if visit is not None else None,
        reached=tuple(visit.reached) if visit is not None else (),
        notes=(note("weak", weak),) if weak else (),
    )
    print_document(document)
    return kind or ""
