"""``make_plan``: from a wish and a table of offers to a frozen Plan. Pure: no clock, no I/O.

Each machine's outlook (memory, time) is computed once; offers are ranked as plain numbers, and only
those worth showing become Candidates.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, NoReturn, Sequence

from trmcloud.core.errors import BudgetRefused, DoesNotFit, NotFoundError, UsageError
from trmcloud.core.hardware import LOCAL, HardwareRequest, LocalMachine, parse_hardware
from trmcloud.core.money import ZERO, Usd, affordable_seconds, cost
from trmcloud.core.offers import DAY_S, STALE_MARGIN_PERCENT, Offer, local_offer
from trmcloud.core.outlook import HOUR_S, Outlook, lands_at, outlook_on
from trmcloud.core.plan import Candidate, Plan
from trmcloud.core.recipe import Recipe
from trmcloud.core.spec import OBJECTIVES, RunSpec
from trmcloud.core.speed import Machine, rented_machine, this_machine

PLAN_LIFETIME_S = DAY_S
KEPT_CANDIDATES = 40
FALLBACKS = 3
"""Candidates that a launch tries in order."""

KILL_LATENCY_S = {LOCAL: 3.0}
REMOTE_KILL_LATENCY_S = 15.0
FREE_HARD_STOP_S = 24 * HOUR_S
"""Where nothing costs anything, time alone ends a run: this, or four times its P90."""
STOP_SLACK = 1.1
"""Hard stop of a run without budget, relative to its P90."""

#: Who can be rented from at all: RunPod itself, and clouds that SkyPilot 0.14 knows.
REACHABLE = frozenset(
    [
        "local",
        "runpod",
        "aws",
        "azure",
        "gcp",
        "lambda",
        "nebius",
        "vast-ai",
        "verda",
        "hyperstack",
        "digitalocean",
    ]
)


class _Ranked(NamedTuple):
    order: tuple[object, ...]
    position: int
    offer: Offer
    rate: Usd
    outlook: Outlook
    within_budget: bool
    useful: bool


def make_plan(
    spec: RunSpec,
    recipe: Recipe,
    offers: Sequence[Offer],
    now: float,
    plan_id: str,
    *,
    local: LocalMachine | None = None,
    tokens_available: int | None = None,
) -> Plan:
    """The Plan for ``spec`` at ``now`` (epoch s).

    ``local`` is this machine: the only candidate of a ``local`` spec, and one row of a plan without
    hardware. ``tokens_available`` is the size of the training data, for the count of epochs.

    Raises:
        UsageError: unknown hardware, objective or phase, or more processes than is sane.
        NotFoundError: nobody offers the hardware.
        DoesNotFit: the recipe fits none of the machines asked for, at any micro-batch.
        BudgetRefused: the budget does not buy start-up, one step and a checkpoint.
    """
    if spec.objective not in OBJECTIVES:
        raise UsageError(
            f"unknown objective {spec.objective!r}", next_step=f"one of: {', '.join(OBJECTIVES)}"
        )
    request = parse_hardware(spec.hardware) if spec.hardware else None
    candidates_from = _matching(spec, request, offers, now, local)
    outlooks: dict[tuple[str, int, bool], Outlook] = {}
    ranked: list[_Ranked] = []
    for index, offer in enumerate(candidates_from):
        key = (offer.sku, offer.gpus, offer.provider == LOCAL)
        outlook = outlooks.get(key)
        if outlook is None:
            machine = _machine(offer, local)
            outlook = outlook_on(recipe, spec, machine, tokens_available=tokens_available)
            outlooks[key] = outlook
        ranked.append(_rank(index, offer, outlook, spec, now))
    ranked.sort(key=lambda row: (row.order, row.position))
    if request is not None:
        _refuse_hopeless(spec, request, ranked, recipe, offers, now)
    kept = _keep(ranked)
    made = tuple(_candidate(row, f"c{number}", spec, now) for number, row in enumerate(kept, 1))
    launchable = _launchable(spec, kept, made)
    by_id = {candidate.id: candidate for candidate in made}
    reservation = max((by_id[name].worst_case for name in launchable), default=ZERO)
    recommended = launchable[0] if launchable else None
    first = by_id[recommended] if recommended else (made[0] if made else None)
    return Plan(
        id=plan_id,
        created_at=now,
        expires_at=now + PLAN_LIFETIME_S,
        spec=spec,
        cap=(spec.budget or reservation) if launchable else None,
        candidates=made,
        launchable=launchable,
        recommended_id=recommended,
        reservation=reservation,
        survives=_survives(first),
        limits=_limits(spec, first, spec.budget or reservation),
        offers_total=len(candidates_from),
    )


def _matching(
    spec: RunSpec,
    request: HardwareRequest | None,
    offers: Sequence[Offer],
    now: float,
    local: LocalMachine | None,
) -> list[Offer]:
    mine: list[Offer] = []
    if local is not None:
        processes = spec.processes or local.default_processes
        most = local.gpus or max(2, local.cpus)
        if processes > most:
            raise UsageError(
                f"{processes} processes are more than {local.name} can run ({most})",
                next_step=f"--processes {local.default_processes}",
            )
        mine = [local_offer(local, processes, spec.rate, now)]
    if request is None:
        return [offer for offer in offers if not offer.spot] + mine
    if request.is_local:
        if local is None:
            raise UsageError("this machine could not be described")
        return mine
    found = [o for o in offers if not o.spot and request.accepts(o.sku, o.gpus)]
    if not found:
        counts = sorted({o.gpus for o in offers if o.sku in request.skus})
        raise NotFoundError(
            f"nobody in the price table offers {request.text}",
            next_step=(
                f"offered: {', '.join(f'{n}x' for n in counts)} of it"
                if counts
                else "trmcloud prices list"
            ),
        )
    return found


def _machine(offer: Offer, local: LocalMachine | None) -> Machine:
    if offer.provider == LOCAL:
        assert local is not None
        return this_machine(local, offer.gpus)
    return rented_machine(offer.sku, offer.gpus)


def _rank(index: int, offer: Offer, outlook: Outlook, spec: RunSpec, now: float) -> _Ranked:
    rate = offer.planned_rate(now)
    micros_per_s = rate.micros / HOUR_S
    p50_s, p90_s = outlook.seconds.p50, outlook.seconds.p90
    within, useful = True, True
    if spec.budget is not None:
        within = micros_per_s * (p90_s + outlook.landing_s) <= spec.budget.micros
        useful = micros_per_s * (outlook.useful_s + _kill_latency_s(offer)) <= spec.budget.micros
    p50_cost = micros_per_s * p50_s
    if spec.objective == "fastest":
        score = (p50_s, p50_cost)
    elif spec.objective == "cheapest":
        score = (p50_cost, p50_s)
    else:
        score = (p50_cost + p50_s / HOUR_S * spec.hour_value.micros, p50_s)
    order = (
        not (outlook.fits and useful),
        not within,
        offer.provider not in REACHABLE,
        *score,
    )
    return _Ranked(order, index, offer, rate, outlook, within, useful)


def _keep(ranked: Sequence[_Ranked]) -> list[_Ranked]:
    """The best offer of every hardware first, then second ones, and so on; in rank order."""
    seen: dict[tuple[str, str], int] = {}
    turns: list[tuple[int, int]] = []
    for position, row in enumerate(ranked):
        key = (row.outlook.hardware, "" if row.offer.provider != LOCAL else LOCAL)
        turn = seen.get(key, 0)
        seen[key] = turn + 1
        turns.append((turn, position))
    turns.sort()
    return [ranked[position] for position in sorted(p for _, p in turns[:KEPT_CANDIDATES])]


def _launchable(
    spec: RunSpec, kept: Sequence[_Ranked], made: Sequence[Candidate]
) -> tuple[str, ...]:
    """Ids to try in order: useful ones of the hardware asked for, else of the best hardware whose
    whole recipe fits the budget."""
    usable = [
        candidate
        for row, candidate in zip(kept, made, strict=True)
        if row.outlook.fits
        and row.useful
        and row.offer.provider in REACHABLE
        and (row.within_budget or spec.hardware)
    ]
    if not usable:
        return ()
    same = [c.id for c in usable if c.hardware == usable[0].hardware]
    return tuple(same[:FALLBACKS])


def _candidate(row: _Ranked, name: str, spec: RunSpec, now: float) -> Candidate:
    offer, outlook, rate = row.offer, row.outlook, row.rate
    latency_s = _kill_latency_s(offer)
    soft_s, hard_s = _stops(row, spec, latency_s)
    seconds = outlook.seconds
    return Candidate(
        id=name,
        hardware=outlook.hardware,
        sku=offer.sku,
        gpus=offer.gpus,
        provider=offer.provider,
        region=offer.region or "any",
        rate=offer.rate,
        spot=offer.spot,
        priced_at=offer.priced_at,
        source=offer.source,
        startup_s=outlook.startup,
        phases=outlook.phases,
        hours=seconds.scaled(1 / HOUR_S),
        cost_p10=cost(offer.rate, seconds.p10),
        cost_p50=cost(rate, seconds.p50),
        cost_p90=cost(rate, seconds.p90),
        memory_need_gb=outlook.memory.total,
        memory_gb=outlook.machine.memory_gb,
        fits_memory=outlook.fits,
        within_budget=row.within_budget,
        soft_stop_s=soft_s,
        hard_stop_s=hard_s,
        landing_s=outlook.landing_s,
        worst_case=cost(rate, hard_s + latency_s),
        reasons=_reasons(row, spec, soft_s, now),
        planned_rate=rate,
    )


def _stops(row: _Ranked, spec: RunSpec, latency_s: float) -> tuple[float, float]:
    """Seconds after the pod exists: when the trainer lands, and when all is killed."""
    outlook = row.outlook
    hard_s = outlook.startup.p90 + outlook.landing_s
    hard_s += STOP_SLACK * sum(time.seconds.p90 for time in outlook.times)
    if spec.hours is not None:
        hard_s = outlook.startup.p90 + spec.hours * HOUR_S + outlook.landing_s
    elif not row.rate:
        hard_s = max(FREE_HARD_STOP_S, 4 * outlook.seconds.p90)
    elif spec.budget is not None:
        hard_s = affordable_seconds(spec.budget, row.rate) - latency_s
    if spec.budget is not None:
        hard_s = min(hard_s, affordable_seconds(spec.budget, row.rate) - latency_s)
    hard_s = max(0.0, hard_s)
    return max(0.0, hard_s - outlook.landing_s), hard_s


def _reasons(row: _Ranked, spec: RunSpec, soft_s: float, now: float) -> tuple[str, ...]:
    offer, outlook = row.offer, row.outlook
    reasons = list(outlook.reasons)
    if not outlook.fits:
        reasons.insert(0, "does not fit in memory")
    if offer.is_stale(now):
        reasons.append(
            f"price {offer.age_days(now)} days old: planned {STALE_MARGIN_PERCENT} % dearer,"
            f" at {row.rate}/h"
        )
    early = lands_at(outlook, soft_s)
    if spec.budget is not None and not row.useful:
        reasons.append(
            f"{spec.budget} does not buy start-up, one step and a checkpoint"
            f" ({cost(row.rate, outlook.useful_s)})"
        )
    elif early is not None:
        phase, step, steps = early
        what = "the hours end" if spec.hours is not None else "the budget ends"
        reasons.append(
            f"{what} before the recipe: lands at about step {step:,} of {steps:,} of {phase}"
        )
    elif not row.within_budget:
        need = cost(row.rate, outlook.seconds.p90 + outlook.landing_s)
        reasons.append(f"P90 and the landing reserve need {need}: may land early")
    if offer.provider not in REACHABLE:
        reasons.append(f"{offer.provider} cannot be launched on: neither RunPod nor in SkyPilot")
    if offer.note:
        reasons.append(offer.note)
    return tuple(reasons)


def _refuse_hopeless(
    spec: RunSpec,
    request: HardwareRequest,
    ranked: Sequence[_Ranked],
    recipe: Recipe,
    offers: Sequence[Offer],
    now: float,
) -> None:
    best = ranked[0]
    if not any(row.outlook.fits for row in ranked):
        raise DoesNotFit(
            f"{recipe.name} does not fit on {request.text}: {'; '.join(best.outlook.reasons)}",
            next_step=f"trmcloud plan --recipe {recipe.name}   (shows what fits)",
        )
    if spec.budget is not None and not any(row.useful for row in ranked):
        _refuse_budget(spec, request, ranked, recipe, offers, now)


def _refuse_budget(
    spec: RunSpec,
    request: HardwareRequest,
    ranked: Sequence[_Ranked],
    recipe: Recipe,
    offers: Sequence[Offer],
    now: float,
) -> NoReturn:
    row = min(ranked, key=lambda r: r.rate.micros * r.outlook.useful_s)
    overhead = cost(row.rate, row.outlook.overhead_p90_s)
    least = cost(row.rate, row.outlook.useful_s + _kill_latency_s(row.offer))
    assert spec.budget is not None
    what = (
        f"{spec.budget} does not buy one useful step on {request.text}: boot, environment and"
        f" compile alone cost about {overhead} (p90)"
    )
    anywhere = dataclasses.replace(spec, hardware="", objective="cheapest")
    other = make_plan(anywhere, recipe, offers, now, "").recommended
    if other is None:
        raise BudgetRefused(what, next_step=f"a start and one step need {least} here")
    raise BudgetRefused(
        what,
        next_step=f"trmcloud plan --budget {spec.budget.plain()}   (cheapest that fits:"
        f" {other.hardware}, {other.hours.p50:,.1f} h, {other.cost_p50})",
    )


def _kill_latency_s(offer: Offer) -> float:
    return KILL_LATENCY_S.get(offer.provider, REMOTE_KILL_LATENCY_S)


def _survives(candidate: Candidate | None) -> str:
    if candidate is None:
        return "nothing: no candidate"
    if candidate.provider == LOCAL:
        return "this machine's disk"
    return "a network volume, else what the controller pulls while the pod runs"


def _limits(spec: RunSpec, candidate: Candidate | None, cap: Usd) -> dict[str, str]:
    limits = {
        "budget": str(spec.budget) if spec.budget is not None else f"off (cap {cap}: worst case)",
        "deadline": "off",
        "steps": f"{spec.steps:,} per phase" if spec.steps else "the recipe's",
        "hours": f"{spec.hours:g} h of training" if spec.hours else "off",
        "tokens": f"{spec.tokens:,} per phase" if spec.tokens else "off",
        "objective": spec.objective + (
            f", {spec.hour_value} per hour" if spec.objective == "value" else ""
        ),
        "spot": "off",
        "marginal-value stop": "off",
        "strict gate": "on" if spec.strict_gate else "off",
    }  # fmt: skip
    if candidate is not None:
        if not candidate.rate:
            limits["price"] = "no price: time limit only"
        limits["lands at"] = f"{candidate.soft_stop_s:,.0f} s after start"
        limits["hard stop"] = f"{candidate.hard_stop_s:,.0f} s after start"
        limits["landing reserve"] = f"{candidate.landing_s:,.0f} s"
    return limits
