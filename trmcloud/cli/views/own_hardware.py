"""One's own hardware beside a plan, in words."""

from __future__ import annotations

from trmcloud.app.own_hardware import OwnHardware
from trmcloud.cli.views.plan import fits_text, hours_text


def own_lines(own: OwnHardware) -> list[str]:
    """What it takes there, and from when on renting is the better."""
    made = own.candidate
    power = f"{own.watts:,} W at {own.per_kwh}/kWh"
    lines = [
        f"Your {own.hardware}: {hours_text(made.hours)} h · {made.cost_p50} of power ({power}) · "
        f"{fits_text(made)}"
    ]
    if own.rented is None:
        return [*lines, "  nothing of this plan is quicker for money: train there"]
    lines.append(
        f"  an hour of it costs {own.per_hour}; what it trains in one costs "
        f"{own.rent_per_own_hour} on {own.rented.hardware}"
    )
    sooner = f"{own.rented.hardware} is {own.sooner_h:,.1f} h sooner"
    if own.dearer.micros <= 0:
        return [*lines, f"  {sooner}, and no dearer"]
    lines.append(
        f"  {sooner} for {own.dearer} more: worth it where an hour of yours is worth more than "
        f"{own.worth_from}"
    )
    return lines
