"""Money for another run: the stop of a working machine is made earlier, seen to be, and then what
lies beyond it is free. See ``core.control.room``."""

from __future__ import annotations

from collections.abc import Callable

from trmcloud.app.context import Context
from trmcloud.app.kill_layers import reaper_elsewhere
from trmcloud.app.reap import GuardVisit, last_visit
from trmcloud.app.reconciling import reconcile
from trmcloud.core.control.room import Lowering, Room, find_room, is_told
from trmcloud.core.control.run_state import IllegalTransition
from trmcloud.core.errors import BudgetRefused
from trmcloud.core.spec.plan import Plan

LAYER = "guard-elsewhere"
_LOOK_S = 5.0
_RECONCILE_S = 30.0
_MOST_VISITS = 3
"""So many visits of the other machine's guard are waited for, and as long as a look takes."""
_LEAST_WAIT_S = 300.0


def room_for(context: Context, plan: Plan, visit: GuardVisit | None) -> Room | None:
    """Return how the money for ``plan`` is freed; None where it is free."""
    ledger, now = context.ledger.read(), context.wall()
    enforced = reaper_elsewhere(context, visit)
    return find_room(ledger, context.project, plan.reservation, now, enforced)


def advance(context: Context, plan: Plan, visit: GuardVisit | None) -> Room | None:
    """Do what can be done now to free the money for ``plan``: ask for earlier stops, and free what
    lies beyond those that are enforced. Returns what is still to be freed; None where nothing is.
    """
    room = room_for(context, plan, visit)
    for each in room.lowerings if room is not None else ():
        waits = not _is_enforced(context, each, visit) if each.is_known else each.is_asked
        if waits:
            continue
        event = each.lowered(LAYER) if each.is_known else each.event
        try:
            context.ledger.request(each.run_id, event, context.wall())
        except IllegalTransition:
            continue  # its state has changed since: the next look sees how
    return room


def _is_enforced(context: Context, lowering: Lowering, visit: GuardVisit | None) -> bool:
    """Whether the machine itself says that it ends then, and the guard of another machine, which
    still comes, has read that it is to."""
    if visit is None or visit.stops.get(lowering.pod_name, float("inf")) > lowering.hard_stop_at:
        return False
    run = context.ledger.read().runs.get(lowering.run_id)
    if run is None or run.generation is None:
        return False
    report = context.links[lowering.provider].report(lowering.pod_name)
    return is_told(run.generation, report)


def make_room(context: Context, plan: Plan, say: Callable[[str], None]) -> None:
    """Wait until the money for ``plan`` is free: three visits of the guard at most.

    Raises:
        BudgetRefused: it is not, and will not be.
    """
    began = reconciled = context.wall()
    shown: set[str] = set()
    while (room := advance(context, plan, visit := last_visit(context))) is not None:
        if not room.lowerings:
            return  # the reservation says which budget is short
        for each in room.lowerings:
            if each.run_id not in shown:
                say(
                    f"{each.run_id}: an earlier hard stop frees {each.frees}; waiting until the "
                    "guard on the other machine enforces it"
                )
                shown.add(each.run_id)
        now = context.wall()
        every_s = visit.every_s if visit is not None else 0.0
        if now - began > max(_LEAST_WAIT_S, _MOST_VISITS * every_s):
            waits = ", ".join(each.run_id for each in room.lowerings)
            raise BudgetRefused(
                f"the earlier stop of {waits} was not confirmed within {(now - began) / 60:.0f} "
                "min: its money stays reserved",
                next_step="check trmcloud admin guard status on the guarding machine, then run the "
                "same command again",
            )
        if now - reconciled > _RECONCILE_S:
            reconcile(context)  # it drives a run that has no driver
            reconciled = now
        context.clock.sleep(_LOOK_S)
