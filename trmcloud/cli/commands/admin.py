"""``trmcloud admin``: the ledger, forgotten pods, volumes, the guard's timer, notifications."""

from __future__ import annotations

from trmcloud.cli import options
from trmcloud.cli.commands import checkpoints, guard, ledger, notify
from trmcloud.cli.commands.reap import reap

app = options.make_group(
    "Keep the ledger, pods, volumes, timer and notifications of this home in order.",
    "trmcloud admin reap --yes",
)
app.add_typer(ledger.app, name="ledger")
app.command("reap")(reap)
app.add_typer(checkpoints.app, name="volumes")
app.add_typer(guard.app, name="guard")
app.add_typer(notify.app, name="notify")
