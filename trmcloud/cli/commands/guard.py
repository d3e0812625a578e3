"""``trmcloud guard``: the reaper on a timer of this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    help="Let this machine end forgotten pods by itself, every few minutes.\n\n"
    "Example: trmcloud guard install --every 5",
)


@app.command("install")
def install(
    every: Annotated[int, typer.Option(help="Minutes between visits.")] = 5,
    cron: Annotated[bool, typer.Option("--cron", help="cron, even where systemd is.")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
) -> None:
    """Show what would be written, then write it: a systemd user timer, or a line for cron.

    Example: trmcloud guard install --every 5
    """
    import os
    import shutil

    from trmcloud.cli.asking import confirmed
    from trmcloud.core.errors import ProviderError, UsageError
    from trmcloud.wiring import keys_unseen, reaper_timer

    command = shutil.which("trmcloud") or str(Path(sys.executable).parent / "trmcloud")
    timer = reaper_timer()
    planned = timer.plan(command, every_min=every, cron=cron)
    for name, provider, place in keys_unseen(os.environ, timer.environment):
        raise UsageError(
            f"{name} is set in this shell alone: a timer starts without it and could end no pod"
            f" at {provider}",
            next_step=f"put the key into {place}, then trmcloud guard install again",
        )
    trial = timer.try_out(command)
    if trial.error:
        raise ProviderError(
            f"the reaper fails in the environment that a timer gives it: {trial.error}",
            next_step="trmcloud doctor",
        )
    for provider, why in trial.unreachable.items():
        raise ProviderError(
            f"as a timer would start it, the reaper gets no list from {provider}: {why}",
            next_step="trmcloud doctor, then trmcloud guard install again",
        )
    for path, text in planned.writes:
        print(f"{path}:")
        print("".join(f"  {line}\n" for line in text.splitlines()))
    if not yes and not confirmed("Write this?"):
        return
    timer.install(planned)
    print(f"the reaper runs every {every} min ({planned.kind}); tried as the timer will start it")
    if weak := timer.weakness(planned.kind):
        print(f"  but {weak}")


@app.command("status")
def status() -> None:
    """Whether the guard is in place, and when its reaper last ran.

    Example: trmcloud guard status
    """
    from trmcloud.app.reap import last_visit
    from trmcloud.cli.views.text import duration
    from trmcloud.wiring import build_context, reaper_timer

    context, timer = build_context(), reaper_timer()
    kind = timer.installed()
    print(f"installed  {kind or 'no'}")
    if kind and (weak := timer.weakness(kind)):
        print(f"           {weak}")
    visit = last_visit(context)
    if visit is None:
        print("reaper     never ran")
    else:
        reached = ", ".join(visit.reached) or "nobody"
        age = duration(context.wall() - visit.at)
        print(f"reaper     last ran {age} ago, on {visit.machine}; it reached {reached}")
    sys.exit(0 if kind else 3)


@app.command("remove")
def remove() -> None:
    """Take the guard out again.

    Example: trmcloud guard remove
    """
    from trmcloud.wiring import reaper_timer

    kind = reaper_timer().remove()
    print(f"removed the {kind} guard" if kind else "there was no guard")
