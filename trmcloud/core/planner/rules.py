"""The rules that each candidate of a plan is held to, and the sentence that a plan prints for each
that it breaks. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.catalog.offers import DAY_S
from trmcloud.core.money import Usd, cost
from trmcloud.core.planner.candidates import (
    RankedOffer,
    horizon_s,
    seconds_allowed,
    stops,
)
from trmcloud.core.planner.estimates import (
    HORIZON_S,
    HOUR_S,
    landing_point,
    last_phase_steps,
)
from trmcloud.core.spec.spec import RunSpec

LEAST_SHARE = 0.05
"""Of the recipe, what a run trains at least where no shorter one was asked for."""


class Case(NamedTuple):
    """One offer under one wish, and how far a run gets on it at P50."""

    row: RankedOffer
    spec: RunSpec
    now: float
    allowed_s: float
    """Until the hard stop, by budget, deadline and days."""
    stopped: tuple[str, int, int] | None
    """(phase, step, of steps) where the soft stop ends it; None if it does not."""
    share: float
    """Of the recipe's tokens, those that it trains; above 1 where it fills more."""

    @property
    def p90_s(self) -> float:
        return self.row.outlook.seconds.p90 + self.row.outlook.landing_s

    @property
    def need(self) -> Usd:
        """What P90 costs."""
        return cost(self.row.most, self.p90_s) + self.row.storage.cost(self.p90_s)


class Rule(NamedTuple):
    """A rule: ``holds`` for a case, or its sentence is printed."""

    refuses: bool
    """Never recommended; else only on hardware that was asked for, where a limit ends it early."""
    holds: Callable[[Case], bool]
    sentence: Callable[[Case], str]


def case_of(row: RankedOffer, spec: RunSpec, now: float) -> Case:
    """Return how far a run gets on ``row``."""
    outlook, allowed_s = row.outlook, seconds_allowed(row, spec, now)
    soft_s, *_ = stops(row, spec, now)
    if spec.hours is not None:
        soft_s = min(soft_s, outlook.startup.p50 + spec.hours * HOUR_S)
    stopped, share = None, 1.0
    last = outlook.phases[-1]
    if spec.fills and (steps := last_phase_steps(outlook, allowed_s)):
        stopped = last.name, steps, max(steps, last.settings.steps)
        share += last.tokens * (steps / last.settings.steps - 1.0) / outlook.tokens
    elif not spec.is_open_ended and (stopped := landing_point(outlook, soft_s)) is not None:
        before = outlook.phases[: [phase.name for phase in outlook.phases].index(stopped[0])]
        cut = outlook.phases[len(before)].tokens * stopped[1] / stopped[2]
        share = (sum(phase.tokens for phase in before) + cut) / outlook.tokens
    return Case(row, spec, now, allowed_s, stopped, share)


def _starts(case: Case) -> bool:
    return case.row.outlook.useful_s <= case.allowed_s


def _start_needs(case: Case) -> str:
    outlook, row = case.row.outlook, case.row
    whole = cost(row.most, outlook.useful_s) + row.storage.cost(outlook.useful_s)
    hours = outlook.useful_s / HOUR_S
    return f"start-up, one step and a checkpoint need {whole} and {hours:,.2f} h"


def _trains_enough(case: Case) -> bool:
    """Where a shorter run was asked for, or this machine by its name and money ends it, one step is
    enough: the plan says how many it buys."""
    if case.stopped is None or not _starts(case):
        return True
    name, step, steps = case.stopped
    by_sum = case.spec.hardware == LOCAL and not _is_paid_for(case)
    if case.spec.steps or case.spec.hours or by_sum:
        return step > 0 or name != case.row.outlook.phases[0].name
    first = case.row.outlook.phases[0]
    before_evaluation = min(getattr(first.settings, "eval_every", 1) or steps, steps)
    evaluates = name != first.name or step >= before_evaluation
    return case.share >= LEAST_SHARE and evaluates


def _too_little(case: Case) -> str:
    whole = f"needs {case.need}"
    if _is_paid_for(case):
        whole = f"takes {case.p90_s / DAY_S:,.1f} days (P90)"
    return (
        f"trains {case.share:.1%} of the recipe: less than {LEAST_SHARE:.0%}, or no evaluation, is "
        f"not recommended without --steps or --hours; finishing {whole}"
    )


def _is_paid_for(case: Case) -> bool:
    return case.spec.fills or case.spec.budget is None or case.need <= case.spec.budget


def _missing_money(case: Case) -> str:
    assert case.spec.budget is not None
    if case.stopped is not None and case.spec.hours is None:
        phase, step, steps = case.stopped
        bought = f"this budget buys about {step:,} of {steps:,} steps of {phase}"
        return f"{bought}; finishing needs {case.need}"
    missing = case.need - case.spec.budget
    over = case.p90_s / case.allowed_s if case.allowed_s else 0.0
    last = case.row.outlook.phases[-1]
    fewer = int(last.settings.steps / over) if over > 1 else 0
    buys = f"; this budget buys about {fewer:,} steps of {last.name}" if fewer else ""
    return f"likely to stop early: finishing needs {case.need}, {missing} more{buys}"


def _is_in_time(case: Case) -> bool:
    deadline = case.spec.deadline_at
    return case.spec.fills or deadline is None or case.p90_s <= deadline - case.now


def _late(case: Case) -> str:
    assert case.spec.deadline_at is not None
    late_h = (case.p90_s - (case.spec.deadline_at - case.now)) / HOUR_S
    hours = f"{case.p90_s / HOUR_S:,.1f} h (P90)"
    return f"finishing needs {hours}: set the deadline {late_h:,.1f} h later"


def _ends_in_days(case: Case) -> bool:
    return case.spec.fills or case.p90_s <= horizon_s(case.spec)


def _too_many_days(case: Case) -> str:
    days, most = case.p90_s / DAY_S, HORIZON_S / DAY_S
    return f"takes {days:,.0f} days (P90): over {most:.0f} days needs --deadline or --hours"


_FITS = Rule(True, lambda case: case.row.outlook.fits, lambda case: "does not fit in memory")
RULES = (
    _FITS,
    Rule(
        True,
        lambda case: case.row.is_limited,
        lambda case: "its on-demand price is not known, so its spot price has no known limit",
    ),
    Rule(True, _starts, _start_needs),
    Rule(True, _trains_enough, _too_little),
    Rule(False, _is_paid_for, _missing_money),
    Rule(False, _is_in_time, _late),
    Rule(False, _ends_in_days, _too_many_days),
)
"""In the order in which their sentences are printed."""


def broken(case: Case) -> list[Rule]:
    """Return the rules that ``case`` breaks."""
    return [rule for rule in RULES if not rule.holds(case)]


def judged(case: Case) -> RankedOffer:
    """Return the offer of ``case`` with what it breaks, and what is printed about that."""
    rules = broken(case)
    refused = [rule for rule in rules if rule.refuses]
    says = [rule.sentence(case) for rule in refused[:1] or rules]
    if not refused and _is_cut_by_time(case):
        says.insert(0, _cut_short(case))
    within = all(rule is _FITS for rule in rules)
    return case.row._replace(within=within, useful=not refused, needs=tuple(says))


def _is_cut_by_time(case: Case) -> bool:
    is_bought = case.spec.budget is not None and case.need > case.spec.budget
    by_money = is_bought and case.spec.hours is None
    return case.stopped is not None and not case.spec.fills and not by_money


def _cut_short(case: Case) -> str:
    assert case.stopped is not None
    phase, step, steps = case.stopped
    what = "the hours are used" if case.spec.hours is not None else "the deadline is reached"
    if case.spec.hours is None and case.spec.deadline_at is None:
        what = f"{HORIZON_S / DAY_S:.0f} days are over"
    stop = f"stops and saves at about step {step:,} of {steps:,} of {phase}"
    return f"{what} before the recipe ends: {stop}"
