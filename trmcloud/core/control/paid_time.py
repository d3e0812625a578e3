"""What an instant of a run's life means in paid hours and in dollars. Pure.

Dollars are those of our clock, as ``report`` accrues them: each machine's rate from the order for
it to its proven end. A trainer writes the instants of its own clock beside its numbers; where that
differs from ours, points lie that much too far left or right, and never outside what the run has
cost.
"""

from __future__ import annotations

from collections.abc import Iterable

from trmcloud.core.control.run_state import Generation, RunState
from trmcloud.core.money import Usd, cost, total

_S_PER_HOUR = 3600.0


def spent_at(run: RunState, at: float) -> Usd:
    """What the run's machines had accrued by an instant (epoch s), exactly."""
    return total(cost(_rate(run, machine), _lived_s(machine, at)) for machine in run.generations)


def hours_at(run: RunState, at: float) -> float:
    """Paid hours by then, of all its machines."""
    return sum(_lived_s(machine, at) for machine in run.generations) / _S_PER_HOUR


def paid_by(run: RunState, instants: Iterable[float]) -> tuple[list[float], list[float]]:
    """(paid hours, USD) by each of ``instants`` (epoch s), for the axes of a drawing: the same in
    binary floating point, which is quick for thousands of points."""
    machines = [(machine, float(_rate(run, machine)) / _S_PER_HOUR) for machine in run.generations]
    hours, dollars = [], []
    for at in instants:
        lived = [(_lived_s(machine, at), usd_per_s) for machine, usd_per_s in machines]
        hours.append(sum(lived_s for lived_s, _ in lived) / _S_PER_HOUR)
        dollars.append(sum(lived_s * usd_per_s for lived_s, usd_per_s in lived))
    return hours, dollars


def _rate(run: RunState, machine: Generation) -> Usd:
    """USD/h that is billed, its own disks included, as far as that is known."""
    return (machine.billed_rate or machine.rate) + run.disk_rate(machine)


def _lived_s(machine: Generation, at: float) -> float:
    if machine.not_made is not None:
        return 0.0
    until = at if machine.ended_at is None else min(at, machine.ended_at)
    return max(0.0, until - machine.intended_at)
