"""Which offers are worth showing: judged as plain numbers, thousands in a few milliseconds."""

from __future__ import annotations

import math
from typing import NamedTuple, Sequence

from trmcloud.core.calibrated import Measured
from trmcloud.core.candidates import REACHABLE, Ranked, kill_latency_s, storage_micros_per_hour
from trmcloud.core.hardware import LOCAL, LocalMachine
from trmcloud.core.offers import DAY_S, STALE_AFTER_DAYS, STALE_MARGIN_PERCENT, Offer
from trmcloud.core.outlook import HOUR_S, Outlook, last_phase_steps, outlook_on
from trmcloud.core.recipe import Recipe
from trmcloud.core.spec import RunSpec
from trmcloud.core.speed import Machine, rented_machine, this_machine

KEPT_CANDIDATES = 40
_STALE_S = STALE_AFTER_DAYS * DAY_S
_WEEK_H = 7 * 24

#: cannot be used, P90 over a limit, cannot be reached, the objective's two keys, position
_Order = tuple[bool, bool, bool, float, float, int]


def rank(
    offers: Sequence[Offer],
    recipe: Recipe,
    spec: RunSpec,
    now: float,
    local: LocalMachine | None,
    tokens_available: int | None,
    measured: Sequence[Measured],
) -> list[Ranked]:
    """The offers worth keeping, best first: of every hardware the best, then second ones, …

    Usable ones come before unusable ones, those within budget and deadline before the others, and
    those that can be launched on before those that cannot; then the objective decides.
    """
    groups: dict[tuple[str, int, bool, bool], _Group] = {}
    orders: list[_Order] = []
    chosen: list[_Group] = []
    for position, offer in enumerate(offers):
        key = (offer.sku, offer.gpus, offer.provider == LOCAL, offer.spot)
        group = groups.get(key)
        if group is None:
            outlook = outlook_on(
                recipe, spec, _machine(offer, local, measured),
                tokens_available=tokens_available, spot=offer.spot,
            )  # fmt: skip
            group = groups[key] = _group(outlook, offer, spec, now)
        chosen.append(group)
        micros = offer.rate.micros
        if now - offer.priced_at > _STALE_S:
            micros = -(-micros * (100 + STALE_MARGIN_PERCENT) // 100)
        hopeless, over, first, second = group.judge(micros)
        unreachable = offer.provider not in REACHABLE
        orders.append((hopeless, over, unreachable, first, second, position))
    orders.sort()
    ranked = []
    for _, over, _, _, _, position in _keep(orders, chosen):
        offer, group = offers[position], chosen[position]
        rate = offer.planned_rate(now)
        ranked.append(Ranked(offer, rate, group.outlook, not over, group.is_useful(rate.micros)))
    return ranked


class _Group(NamedTuple):
    """What all offers of one (SKU, count) share, so that judging one is a few multiplications."""

    outlook: Outlook
    latency_s: float
    storage: int
    """Micro-dollars per hour."""
    after: int
    """Micro-dollars for the week after the run."""
    room: float
    """Micro-dollars of the budget without that week; ∞ without a budget."""
    until_s: float
    """Seconds to the deadline; ∞ without one."""
    fills: bool
    objective: str
    worth: int
    """Micro-dollars of an hour."""

    def is_useful(self, micros: int) -> bool:
        """The budget buys start-up, one step and a checkpoint, before the deadline."""
        hourly = micros + self.storage
        useful_s = self.outlook.useful_s
        return (
            hourly * (useful_s + self.latency_s) <= self.room * HOUR_S
            and useful_s <= self.until_s
            and (not self.fills or self._steps(hourly) > 0)
        )

    def judge(self, micros: int) -> tuple[bool, bool, float, float]:
        """(cannot be used, P90 is over a limit, and the objective's two keys) at ``micros``/h."""
        outlook = self.outlook
        hourly = micros + self.storage
        hopeless = not outlook.fits or not self.is_useful(micros)
        if self.fills:
            last = outlook.phases[-1]
            steps = self._steps(hourly)
            tokens = outlook.tokens + last.tokens * (steps / last.settings.steps - 1)
            return hopeless, hopeless, -tokens, hourly
        p50_s, p90_s = outlook.seconds.p50, outlook.seconds.p90 + outlook.landing_s
        over = hourly * p90_s > self.room * HOUR_S or p90_s > self.until_s
        p50_cost = hourly * p50_s / HOUR_S + self.after
        if self.objective == "fastest":
            return hopeless, over, p50_s, p50_cost
        if self.objective == "cheapest":
            return hopeless, over, p50_cost, p50_s
        return hopeless, over, p50_cost + p50_s / HOUR_S * self.worth, p50_s

    def _steps(self, hourly: int) -> int:
        bought_s = self.room * HOUR_S / hourly if hourly else math.inf
        allowed_s = min(bought_s, self.until_s) - self.latency_s
        if math.isinf(allowed_s):
            return self.outlook.phases[-1].settings.steps
        return last_phase_steps(self.outlook, allowed_s)


def _group(outlook: Outlook, offer: Offer, spec: RunSpec, now: float) -> _Group:
    storage = storage_micros_per_hour(outlook)
    after = storage * _WEEK_H
    return _Group(
        outlook=outlook,
        latency_s=kill_latency_s(offer),
        storage=storage,
        after=after,
        room=math.inf if spec.budget is None else float(spec.budget.micros - after),
        until_s=math.inf if spec.deadline_at is None else spec.deadline_at - now,
        fills=spec.fills,
        objective=spec.objective,
        worth=spec.hour_value.micros,
    )


def _machine(offer: Offer, local: LocalMachine | None, measured: Sequence[Measured]) -> Machine:
    probe = next((m for m in measured if m.sku == offer.sku), None)
    if offer.provider == LOCAL:
        assert local is not None
        return this_machine(local, offer.gpus, probe)
    return rented_machine(offer.sku, offer.gpus, probe)


def _keep(orders: Sequence[_Order], groups: Sequence[_Group]) -> list[_Order]:
    """The best of every hardware first, then second ones, and so on; in rank order."""
    seen: dict[tuple[str, bool], int] = {}
    turns: list[tuple[int, int]] = []
    for place, order in enumerate(orders):
        outlook = groups[order[5]].outlook
        key = (outlook.hardware, outlook.machine.local is not None)
        turn = seen.get(key, 0)
        if turn < KEPT_CANDIDATES:
            seen[key] = turn + 1
            turns.append((turn, place))
    turns.sort()
    return [orders[place] for place in sorted(place for _, place in turns[:KEPT_CANDIDATES])]
