"""Final bills of pods that are gone: they come when nobody waits for them any more."""

from __future__ import annotations

from contextlib import suppress

from trmcloud.app.context import Context
from trmcloud.core.control import events as ev
from trmcloud.core.control.billing import awaiting_bill, late_bills
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import TrmcloudError


def final_bills(context: Context, run: RunState) -> tuple[ev.Billed, ...]:
    """Those that have come since the run was settled by an estimate."""
    bills = {}
    for generation in awaiting_bill(run):
        if generation.provider in context.unasked:
            continue
        with suppress(TrmcloudError):  # what cannot be asked now is asked another time
            compute = context.computes[generation.provider]
            bill = compute.bill(generation.pod_id or generation.pod_name)
            if bill is not None:
                bills[generation.number] = bill
    return late_bills(run, bills)
