"""Costs of a pod over time: paid hours, estimates, and the provider's bills. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trmcloud.core.clock import DatedFact, Maybe
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import TERMINATE
from trmcloud.core.control.observation import Bill
from trmcloud.core.control.reason import ReasonKind
from trmcloud.core.control.run_state import Generation, RunState
from trmcloud.core.money import ZERO, Usd, cost, total

# What an instant of a run's life means in paid hours and in dollars. Pure.
#
# Dollars are those of our clock, as ``report`` accrues them: each machine's rate from the order
# for it to its proven end. A trainer writes the instants of its own clock beside its numbers;
# where that differs from ours, points lie that much too far left or right, and never outside what
# the run has cost.

_S_PER_HOUR = 3600.0


def spent_at(run: RunState, at: float) -> Usd:
    """Return the run's accrued cost by an instant (epoch s), exactly."""
    return total(cost(run.hourly_rate(g), _lived_s(g, at)) for g in run.generations)


def hours_at(run: RunState, at: float) -> float:
    """Paid hours by then, of all its machines."""
    return sum(_lived_s(machine, at) for machine in run.generations) / _S_PER_HOUR


def paid_by(run: RunState, instants: Iterable[float]) -> tuple[list[float], list[float]]:
    """(paid hours, USD) by each of ``instants`` (epoch s), for the axes of a drawing: the same in
    binary floating point, which is quick for thousands of points."""
    machines = [(g, float(run.hourly_rate(g)) / _S_PER_HOUR) for g in run.generations]
    hours, dollars = [], []
    for at in instants:
        lived = [(_lived_s(machine, at), usd_per_s) for machine, usd_per_s in machines]
        hours.append(sum(lived_s for lived_s, _ in lived) / _S_PER_HOUR)
        dollars.append(sum(lived_s * usd_per_s for lived_s, usd_per_s in lived))
    return hours, dollars


def _lived_s(machine: Generation, at: float) -> float:
    if machine.not_made is not None:
        return 0.0
    until = at if machine.ended_at is None else min(at, machine.ended_at)
    return max(0.0, until - machine.intended_at)


# What a pod that is gone has cost: at first an estimate, then the provider's own figure. Pure.
#
# Providers bill late, by up to hours. A run does not wait for that: it settles at the most its
# pod can have cost, so that its reservation is free and another machine may be rented, and is
# corrected when the bill is final. Where a boot has failed by the provider's own log and another
# machine can be rented with what is left, it does so at once.

BILL_WAIT_S = 60.0
"""So long after a pod's end is on record its final bill is waited for before an estimate serves:
time, too, for a pod to be listed again that was not gone."""


CLOCK_SET_S = 5.0
"""Clocks that drift apart by more than this have been set."""


def settle(
    generation: Generation,
    reserved: Usd,
    bill: Maybe[Bill],
    kill_latency_s: float,
    storage: Usd,
    now: float,
    disks: Usd = ZERO,
) -> ev.Settled | None:
    """Settle the generation's cost now; None while its bill may still come in time, and where only
    the bill can tell how long its pod lived."""
    if isinstance(bill, DatedFact) and bill.value.final:
        amount = bill.value.amount
        return ev.Settled(generation.number, amount, amount)
    if generation.gone_at is None or now < generation.gone_at + BILL_WAIT_S:
        return None
    return settle_unbilled(generation, reserved, bill, kill_latency_s, storage, disks)


def settle_unbilled(
    generation: Generation,
    reserved: Usd,
    bill: Maybe[Bill],
    kill_latency_s: float,
    storage: Usd,
    disks: Usd = ZERO,
) -> ev.Settled | None:
    """The estimate in the bill's place, without waiting for it; None where the pod is not proven to
    be gone, and where nothing but the bill can tell how long it lived."""
    if generation.gone_at is None or generation.lived_s is None:
        return None
    amount = estimate(generation, reserved, bill, kill_latency_s, storage, disks)
    return ev.Settled(generation.number, amount, None)


def has_failed_to_boot(run: RunState, generation: Generation) -> bool:
    """Whether its pod was ended since its provider's log said that it cannot boot, and no agent was
    ever heard: nothing is left to wait for but its bill."""
    ends = run.tries(generation, TERMINATE)
    said_so = any(a.reason is not None and a.reason.kind is ReasonKind.BOOT_FAILED for a in ends)
    return said_so and generation.agent_at is None


def estimate(
    generation: Generation,
    reserved: Usd,
    bill: Maybe[Bill],
    kill_latency_s: float,
    storage: Usd,
    disks: Usd = ZERO,
) -> Usd:
    """The most that a generation whose pod is gone can have cost.

    (Rate + ``disks``, USD/h of its own) × its life from the intent on until nothing is billed any
    more, and ``storage``, which is billed on: no more than was reserved, since it may have ended
    long before somebody looked; but what is billed already, where that is more.
    """
    rate = max(generation.rate, generation.charged_rate) + disks
    most = min(cost(rate, _longest_life_s(generation) + kill_latency_s) + storage, reserved)
    return max(most, bill.value.amount) if isinstance(bill, DatedFact) else most


def _longest_life_s(generation: Generation) -> float:
    """By the wall clock, unless it was set meanwhile: then by the one that nobody sets."""
    ended_at = generation.ended_at if generation.ended_at is not None else generation.hard_stop_at
    gone_at = generation.gone_at if generation.gone_at is not None else ended_at
    by_wall = gone_at - generation.intended_at
    lived_s = generation.lived_s if generation.lived_s is not None else by_wall
    if abs(lived_s - by_wall) > CLOCK_SET_S:
        return max(0.0, lived_s)
    if generation.absence is not None and ended_at <= generation.absence.since:
        # From lists that lacked it, which they may have done for a while before it had ended.
        ended_at = gone_at
    return max(0.0, ended_at - generation.intended_at)


def awaiting_bill(run: RunState) -> tuple[Generation, ...]:
    """Generations that were settled at an estimate."""
    return tuple(g for g in run.generations if g.awaits_bill)


def late_bills(run: RunState, bills: Mapping[int, Bill]) -> tuple[ev.Billed, ...]:
    """Corrections that ``bills``, by generation, allow."""
    return tuple(
        ev.Billed(g.number, bills[g.number].amount)
        for g in awaiting_bill(run)
        if g.number in bills and bills[g.number].final
    )
