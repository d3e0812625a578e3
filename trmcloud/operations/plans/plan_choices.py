"""Which candidates of a plan are worth a choice, or come closest to its limits."""

from __future__ import annotations

from collections.abc import Sequence

from trmcloud.core.catalog.hardware import GUIDE_HARDWARE, LOCAL
from trmcloud.core.planner.estimates import HOUR_S
from trmcloud.core.spec.plan import Candidate, Plan

SHOWN_ROWS = 10


def pareto(candidates: Sequence[Candidate]) -> set[str]:
    """Ids of those that none beats in both P50 cost and P50 hours."""
    front: set[str] = set()
    least: int | None = None
    usable = [c for c in candidates if c.fits_memory]
    for candidate in sorted(usable, key=lambda c: (c.hours.p50, c.cost_p50.micros)):
        if least is None or candidate.cost_p50.micros < least:
            front.add(candidate.id)
            least = candidate.cost_p50.micros
    return front


MOST_CHOICES = 5
LEAST_GAIN = 1.15
"""Choices differ by this factor in hours: less is within what a prediction knows."""


def choices(plan: Plan, most: int = MOST_CHOICES) -> dict[str, str]:
    """The candidates worth a choice, by id, and what speaks for each: the recommended, the
    cheapest, the soonest, and the best trade-offs between. Empty where nothing is recommended.
    They train as much as the recommended one: what is ended earlier is no bargain."""
    chosen = plan.recommended
    if chosen is None:
        return {}
    best: dict[str, Candidate] = {chosen.hardware: chosen}
    for candidate in plan.candidates:
        if candidate.fits_memory and candidate.within_budget and _trains_as_much(candidate, chosen):
            best.setdefault(candidate.hardware, candidate)
    found = list(best.values())
    labels = {chosen.id: ""}
    if len(found) == 1:
        return labels
    cheapest = min(found, key=lambda c: (c.cost_p50.micros, c.hours.p50))
    soonest = min(found, key=lambda c: (c.hours.p50, c.cost_p50.micros))
    if soonest.hours.p50 > chosen.hours.p50 / LEAST_GAIN:
        soonest = chosen
    for candidate, label in ((cheapest, "cheapest"), (soonest, "fastest")):
        told = labels.get(candidate.id)
        labels[candidate.id] = f"{told}, {label}" if told else label
    front = pareto(found)
    shown = [candidate for candidate in found if candidate.id in labels]
    for candidate in found:
        hours = candidate.hours.p50
        is_new = all(max(hours, c.hours.p50) >= LEAST_GAIN * min(hours, c.hours.p50) for c in shown)
        if candidate.id in front and is_new and len(shown) < most:
            shown.append(candidate)
            dearer = hours < chosen.hours.p50
            labels[candidate.id] = "faster" if dearer else "cheaper"
    return {
        candidate.id: labels[candidate.id] + _short_of(candidate, chosen)
        for candidate in found
        if candidate.id in labels
    }


AS_MUCH = 0.9
"""Of the recommended one's tokens, what counts as the same work."""


def _trains_as_much(candidate: Candidate, chosen: Candidate) -> bool:
    """Whether it does the work of ``chosen``, P50: what is ended earlier is no bargain."""
    if not sum(phase.tokens for phase in chosen.phases):
        return True  # a command's work is its own
    return _trained(candidate) >= AS_MUCH * _trained(chosen)


def _short_of(candidate: Candidate, chosen: Candidate) -> str:
    """Of a choice that ends a little earlier: how much of the work it does."""
    wanted = _trained(chosen)
    share = _trained(candidate) / wanted if wanted else 1.0
    return f", {share:.0%} trained" if share < 0.995 else ""


def _trained(candidate: Candidate) -> float:
    """The tokens that it trains until a limit ends it, P50."""
    left = candidate.hours.p50 * HOUR_S - candidate.startup_s.p50
    done = 0.0
    for phase in candidate.phases:
        before = sum(phase.parts_s.get(name, 0.0) for name in ("data", "start", "compile"))
        working = phase.seconds.p50 - before - phase.parts_s.get("landing", 0.0)
        share = min(1.0, max(0.0, left - before) / working) if working > 0 else 1.0
        done += share * phase.tokens
        left -= phase.seconds.p50
    return done


def shown_rows(plan: Plan) -> list[Candidate]:
    """The best candidate of each hardware: the guides' six, this machine, and the best others."""
    best: dict[str, Candidate] = {}
    for candidate in plan.candidates:
        key = LOCAL if candidate.provider == LOCAL else candidate.hardware
        best.setdefault(key, candidate)
    wanted = [c.id for key, c in best.items() if key in GUIDE_HARDWARE or key == LOCAL]
    recommended = plan.recommended
    if recommended is not None and recommended.id not in wanted:
        wanted.append(recommended.id)
    for candidate in best.values():
        if len(wanted) >= SHOWN_ROWS:
            break
        if candidate.id not in wanted:
            wanted.append(candidate.id)
    return [candidate for candidate in plan.candidates if candidate.id in wanted]


def nearest(plan: Plan) -> list[Candidate]:
    """The three candidates that are closest to being feasible, one per hardware: by the limit that
    each misses by most."""
    best: dict[str, Candidate] = {}
    for candidate in plan.candidates:
        if candidate.provider != LOCAL or plan.spec.hardware:
            best.setdefault(candidate.hardware, candidate)
    return sorted(best.values(), key=lambda c: (not c.fits_memory, _missed_by(plan, c)))[:3]


def _missed_by(plan: Plan, candidate: Candidate) -> tuple[float, int]:
    """(the factor by which P90 exceeds the limit that it exceeds most, P90's dollars)"""
    spec, over = plan.spec, [0.0]
    p90_s = candidate.hours.p90 * HOUR_S + candidate.landing_s
    if spec.budget:
        over.append(candidate.cost_p90.micros / spec.budget.micros)
    if spec.deadline_at is not None:
        over.append(p90_s / max(1.0, spec.deadline_at - plan.created_at))
    return max(over), candidate.cost_p90.micros
