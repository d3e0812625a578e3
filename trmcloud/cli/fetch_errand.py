"""Checkpoints that lie on a network volume: a machine is rented for minutes to bring them here."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from trmcloud.core.errors import UsageError

if TYPE_CHECKING:
    from trmcloud.app.context import Context
    from trmcloud.core.control.run_state import RunState


def bring_from_volume(context: Context, run: RunState, *, yes: bool) -> RunState:
    """The run once its best and latest checkpoints are here; itself where they are already.

    Raises:
        UsageError: it costs money, and nobody is there to agree.
    """
    from trmcloud.app import volume_fetch
    from trmcloud.app.launching import follow_or_drive
    from trmcloud.cli.asking import confirmed
    from trmcloud.cli.views.run_bar import RunBar
    from trmcloud.cli.views.text import duration
    from trmcloud.core.money import Usd
    from trmcloud.wiring import offers_for_errand

    if not volume_fetch.is_needed(context, run):
        return run
    if run.live:
        print(
            f"{run.run_id}: waiting until its pod is proven gone; "
            "Ctrl-C leaves, and nothing is lost",
            file=sys.stderr,
        )
        with RunBar(context) as bar:
            run = follow_or_drive(context, run.run_id, lambda state: not state.live, bar.watch)
    offers, disk_rate = offers_for_errand(context.wall())
    candidate = volume_fetch.errand_for(run, offers, 0, disk_rate, context.wall())
    most = candidate.worst_case
    print(
        f"{run.run_id}'s checkpoints lie on a network volume in {candidate.region}: a "
        f"{candidate.hardware} at {candidate.rate}/h brings them here, {most} at most "
        f"({duration(candidate.hard_stop_s)})",
        file=sys.stderr,
    )
    if not yes and not confirmed("  Proceed?", before="this rents a machine"):
        raise UsageError("nothing was rented, nothing was fetched")
    with RunBar(context) as bar:
        state = volume_fetch.carry_out(context, run, candidate, bar.watch)
    spent = state.settled - run.settled if not state.live else Usd(0)
    if spent:
        print(f"  the machine cost {spent}", file=sys.stderr)
    return state
