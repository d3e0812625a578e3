"""From a planned sweep to its dollars, rungs and reservations."""

from __future__ import annotations

from typing import Any

from trmcloud.core.catalog.hardware import GPUS
from trmcloud.core.errors import UsageError
from trmcloud.core.money import Usd, cost
from trmcloud.core.planner.memory import checkpoint_bytes
from trmcloud.core.spec.plan import Candidate, PhasePlan, Plan
from trmcloud.core.spec.settings import RATES
from trmcloud.core.spec.sweep_wish import METRIC, SweepWish
from trmcloud.core.spec.trials import LR, trial_settings
from trmcloud.core.sweep.space import Point, Space, read_words
from trmcloud.core.sweep.terms import Goal, SweepTerms, make_terms
from trmcloud.pod.sweep.children import filled

_FULL_PARTS = 4
"""A whole training takes no more than one of so many parts of what a slot can spend."""
_LEAST_TRIAL_S = 5.0
"""A trial's first interval trains at least so long."""
_START_S = 5.0
_START_TIMES = 2.0
"""Of what a start is expected to take, so much is reserved for it."""
_LEAST_LANDING_S = 5.0
_LANDING_TIMES = 4.0
"""Of what a landing is expected to take, so much is reserved for that of a trial."""
_MOVED_BYTES_PER_S = 200e6
"""Of a checkpoint between the machines of a sweep that an earlier version launched on several."""
_MOST_CORNERS = 64


def terms_of(plan: Plan) -> SweepTerms:
    """Return the dollars, rungs and reservations of a planned sweep.

    Raises:
        UsageError: the budget starts no trial, or a setting cannot be.
    """
    chosen, wish = plan.recommended, plan.spec.sweep
    assert wish is not None
    if chosen is None:
        raise UsageError("no machine fits this sweep", next_step="trmcloud plan")
    [phase] = chosen.phases
    slots = slots_of(chosen, wish)
    hourly = max((plan.candidate(name).reserved_rate for name in plan.launchable), default=None)
    rate = hourly or chosen.reserved_rate
    unit = "usd" if rate else "s"
    slot_rate = Usd.from_micros(rate.micros // slots) if rate else Usd(3600)
    available_s = max(0.0, chosen.soft_stop_s - chosen.startup_s.p50)
    if plan.spec.hours is not None:
        available_s = min(available_s, plan.spec.hours * 3600.0)
    usd = Usd.from_micros(int(slot_rate.micros * slots * available_s / 3600))
    command = plan.spec.command
    start_s = _START_S
    if command is None:
        start_s = phase.parts_s.get("start", _START_S) + phase.parts_s.get("compile", 0.0)
    least = cost(slot_rate, start_s + _LEAST_TRIAL_S)
    share = usd.micros // slots  # no slot can spend more
    full = Usd.from_micros(share // _FULL_PARTS)
    if full < least * wish.eta**2:  # with fewer than three rungs, more trials instead
        full = max(Usd.from_micros(share // (3 * _FULL_PARTS)), least)
    if command is None:
        full = min(full, cost(slot_rate, phase.seconds.p50 * slots))
    goal = Goal.MAX if command is not None and command.higher_is_better else Goal.MIN
    if command is not None:
        landing_s = command.grace_s
    else:
        landing_s = max(_LEAST_LANDING_S, _LANDING_TIMES * phase.parts_s.get("landing", 0.0))
        landing_s = min(landing_s, chosen.landing_s)
    moving_s = 0.0
    if chosen.nodes > 1:  # of an earlier version, as it was launched
        moving_s = checkpoint_bytes(phase.settings) / _MOVED_BYTES_PER_S
    space = read_words(wish.space)
    return make_terms(
        space,
        default_of(plan, phase, space),
        metric=command.metric_name if command is not None else METRIC,
        goal=goal,
        usd=usd,
        full_usd=full,
        slot_rate=slot_rate,
        slots=slots,
        least_usd=least,
        finish_s=landing_s,
        overrun_s=landing_s + moving_s,
        restart_s=_START_TIMES * start_s + moving_s,
        eta=wish.eta,
        rungs=wish.rungs or None,
        can_resume=command is None or bool(command.resume),
        seed=wish.seed,
        unit=unit,
        sampler=wish.sampler or SweepTerms.sampler,
    )


def slots_of(chosen: Candidate, wish: SweepWish) -> int:
    """Return how many trials run at a time on ``chosen``; on all of its machines, where an earlier
    version launched it on several.

    Raises:
        UsageError: more than it has GPUs, or a number that they cannot be divided by.
    """
    gpus = chosen.gpus * chosen.nodes if chosen.sku in GPUS else 0
    if not gpus or wish.on:
        return wish.slots or gpus or 1
    slots = wish.slots or gpus
    if slots > gpus or gpus % slots:
        one = f"{gpus} GPU" + ("" if gpus == 1 else "s")
        raise UsageError(
            f"--slots {slots}: {one} cannot be divided so", next_step=f"--slots {gpus}"
        )
    return slots


def default_of(plan: Plan, phase: PhasePlan, space: Space) -> Point:
    """Return the point that all trials are compared with: what was said, else the recipe's own."""
    assert plan.spec.sweep is not None
    known: dict[str, Any] = {}
    if plan.spec.command is None:
        settings = phase.settings
        for each in space.parameters:
            name = RATES[0] if each.name == LR else each.name
            if hasattr(settings, name):
                known[each.name] = getattr(settings, name)
    point, _ = space.default(known | dict(plan.spec.sweep.default))
    return point


def expected_trials(terms: SweepTerms) -> int:
    """Return how many trials are begun where every rung takes its share and nothing more."""
    left = terms.usd - terms.winner_usd - terms.confirm_usd
    each = 0.0
    for rung in range(terms.last + 1):
        step = terms.train_usd(rung - 1, rung) + terms.restart_usd
        each += float(step) / terms.eta**rung
    found = int(float(left) / each) if each else 1
    count = terms.space.count
    return max(1, min(found, int(count) if count < 1e9 else found))


def first_words(plan: Plan, terms: SweepTerms) -> tuple[str, ...]:
    """Return the words of a command at the point that all trials are compared with; none for a
    recipe."""
    command = plan.spec.command
    return filled(command, dict(terms.default)).words if command is not None else ()


def check_points(plan: Plan, terms: SweepTerms) -> None:
    """Check the default and the ends of the space against the recipe.

    Raises:
        UsageError: settings that cannot be.
    """
    chosen = plan.recommended
    if plan.spec.command is not None or chosen is None:
        return
    [phase] = chosen.phases
    trial_settings(phase.settings, dict(terms.default))
    free = terms.space.free
    corners = 2 ** min(len(free), 6)
    for number in range(min(corners, _MOST_CORNERS)):
        shares = [float(number >> place & 1) for place in range(len(free))]
        trial_settings(phase.settings, dict(terms.space.point(shares)))
