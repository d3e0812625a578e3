"""``trmcloud try``: run a command here for a minute, free, before anything is rented."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Annotated

import typer

from trmcloud.cli import options
from trmcloud.cli.views.json_output import print_document
from trmcloud.cli.views.streams import as_is
from trmcloud.cli.views.trial import TrialProgress, check_lines, contained_lines
from trmcloud.core.errors import TrialFailed, UsageError
from trmcloud.core.money import Usd
from trmcloud.operations import views
from trmcloud.operations.commands.commands import CommandRequest, check_hardware
from trmcloud.operations.commands.project_file import write_file
from trmcloud.operations.commands.trial import Trial, TrialBounds, log_path
from trmcloud.operations.commands.trial import try_command as run_trial
from trmcloud.operations.commands.trial_checks import RequestedMachine
from trmcloud.operations.home import PROJECT_FILE
from trmcloud.operations.views import note
from trmcloud.options import LaunchRequest, parse_money
from trmcloud.wiring import build_trial

_INTERRUPTED = 130


@options.with_options("try")
def try_command(
    request: LaunchRequest,
    asked: CommandRequest,
    for_s: Annotated[
        float, typer.Option("--for", metavar="S", help="Seconds before it is asked to stop.")
    ] = 60.0,
    steps: Annotated[
        int, typer.Option("--steps", help="Ask it to stop after this many steps, if earlier.")
    ] = 0,
    gigabytes: Annotated[
        float, typer.Option("--gb", metavar="GB", help="Most that it may write.")
    ] = 5.0,
    online: Annotated[
        bool, typer.Option("--online", help="Allow downloads; uploads need a key in --env.")
    ] = False,
    write: Annotated[
        bool, typer.Option("--write", help="Write trmcloud.toml, which launch reads, from it.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Test a command here for a minute, free, in a copy of the files that would be sent: what it
    needs and writes, whether it stops and resumes, and the command line that runs it.

    Example: trmcloud try --metric val_loss -- python train.py
    """
    file = Path.cwd() / PROJECT_FILE
    if write and (file.exists() or file.is_symlink()):
        raise UsageError(
            f"{PROJECT_FILE} is here already, and is not overwritten",
            where=str(file),
            next_step=f"rm {PROJECT_FILE}, or leave out --write",
        )
    ground = build_trial()
    hired = RequestedMachine(
        check_hardware(request.hardware),
        _plain(parse_money("--rate", request.rate)),
        _plain(parse_money("--budget", request.budget)),
    )
    bounds = TrialBounds(for_s=for_s, steps=steps, gigabytes=gigabytes, online=online)
    progress = TrialProgress(for_s)
    try:
        trial = run_trial(ground, asked, bounds, hired, Path.cwd(), request.data, progress)
    except KeyboardInterrupt:
        progress.clear()
        print("interrupted: the command and all its processes have ended", file=sys.stderr)
        sys.exit(_INTERRUPTED)
    finally:
        progress.clear()
    if as_json:
        print_document(_document(trial))
    else:
        _show(trial, hired, log_path(ground.home, trial))
    if write and trial.line:
        write_file(file, trial.line)
        print(f"wrote {file}: trmcloud launch reads it", file=sys.stderr)
    if trial.has_failed:
        sys.exit(TrialFailed.exit_code)


def _document(trial: Trial) -> views.Tried:
    return views.Tried(
        code_sha256=trial.code_sha256,
        command=tuple(trial.words),
        tried_at=trial.at,
        ran_for_s=trial.for_s,
        passed=not trial.has_failed,
        checks=tuple(
            views.TrialCheck(
                code=check.name,
                result=check.result.value,
                message=check.evidence,
                next=check.fix or None,
                details=tuple(note("detail", text) for text in check.details),
            )
            for check in trial.checks
        ),
        run_command=trial.line or None,
        not_contained=tuple(note("not_contained", text) for text in trial.contained),
        differences=tuple(note("differs", text) for text in trial.differences),
    )


def _show(trial: Trial, hired: RequestedMachine, log: Path) -> None:
    print("\n".join([*check_lines(trial), *contained_lines(trial)]))
    if not trial.line:
        print(f"  its log: {log}")
        return
    if not hired.is_rented:
        pip = packages_to_rent(trial)
        print(f"  to rent, replace local --rate{pip} by 1xH100 or any --memory 24:")
    print(trial.line, file=as_is())  # to be copied: whole, however wide the terminal is


def packages_to_rent(trial: Trial) -> str:
    """Return words that name the requirements a rented machine lacks; '' for none."""
    words = [word for check in trial.checks for word in check.fix.split()]
    named = next((b for a, b in itertools.pairwise(words) if a == "--pip"), "")
    return f", and add --pip {named}" if named and "--pip" not in trial.line.split() else ""


def _plain(amount: Usd | None) -> str:
    return amount.plain() if amount is not None else ""
