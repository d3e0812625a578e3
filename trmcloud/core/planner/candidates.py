"""From an offer and an outlook to a Candidate: storage, stops, worst case, reasons."""

from __future__ import annotations

import dataclasses
import math
from decimal import Decimal
from typing import NamedTuple

from trmcloud.core.catalog.hardware import GPUS, LOCAL
from trmcloud.core.catalog.interruptions import NOT_KNOWN, InterruptionRate
from trmcloud.core.catalog.offers import DAY_S, Offer
from trmcloud.core.catalog.providers import TRAITS, in_no_catalogue
from trmcloud.core.contract.bucket_layout import BUCKET_MICROS_PER_GB_MONTH
from trmcloud.core.money import ZERO, Usd, affordable_seconds, cost
from trmcloud.core.planner.estimates import (
    HORIZON_S,
    HOUR_S,
    Estimates,
    fill_steps,
)
from trmcloud.core.planner.interruptions import rate_words
from trmcloud.core.planner.memory import stored_bytes
from trmcloud.core.planner.speed import why_untrained
from trmcloud.core.spec.plan import Candidate, Remark, RemarkTopic
from trmcloud.core.spec.spec import RunSpec
from trmcloud.core.storage import (
    HOURS_PER_MONTH,
    pod_disks_price,
    price_per_hour,
    traffic_price,
    work_gb,
)

FREE_HARD_STOP_S = 24 * HOUR_S
"""The hard stop where nothing costs anything: this, or four times the run's P90."""
STOP_SLACK = 1.1
"""Hard stop of a run without budget, relative to its P90."""
TIGHT_SLACK, TIGHT_LEAST_S = 2.0, 1800.0
"""Hard stop of a run whose length is its work, relative to its P90; and by how much it is later at
least: a later one is reserved a quarter of an hour before, by the pace that was measured."""

SPOT_NOTE = "spot: e^(λR) · (e^(λ(τ+δ)) − 1) ÷ λ for each interval τ + δ, R a restart (Daly 2006)"
STORAGE_AFTER_S = 7 * DAY_S
"""The time that a checkpoint may be kept before it is fetched; reserved from the start."""

TENTH = Decimal("0.1")
_ROUNDING = Usd.from_micros(4)
"""Rent and storage are each rounded up by themselves."""


class Storage(NamedTuple):
    """The storage of one outlook at one provider, with its price."""

    work_gb: int
    """Of the work disk, or of the network volume in its place, that one machine is given."""
    disks: Usd
    """USD/h of a running pod's own disks, which come on top of its rate."""
    kept: Usd
    """USD/h of checkpoints and tokens that outlive the pod, in a bucket or on a network volume;
    where neither is rented, those kept are priced as on a volume."""
    kept_s: float
    """The time after the run for which its reservation pays that."""
    traffic: Usd = ZERO
    """USD of what goes to and from the machine, where its provider bills that."""

    @property
    def hourly(self) -> Usd:
        return self.disks + self.kept

    @property
    def after(self) -> Usd:
        return cost(self.kept, self.kept_s) + self.traffic

    def cost(self, seconds: float) -> Usd:
        return cost(self.hourly, seconds) + self.after


class RankedOffer(NamedTuple):
    """An offer with its outlook, judged."""

    offer: Offer
    rate: Usd
    """USD/h to plan with."""
    most: Usd
    """USD/h that it may be billed at: limits hold at this."""
    outlook: Estimates
    storage: Storage
    is_limited: bool = True
    """``most`` is known to be the most."""
    within: bool = True
    """P90 and the landing reserve fit budget, deadline and days: ``rules``."""
    useful: bool = True
    """It does enough to be recommended: ``rules``."""
    needs: tuple[str, ...] = ()
    """What ends it early, or what it would need, for a user."""

    def with_outlook(self, outlook: Estimates) -> RankedOffer:
        return self._replace(outlook=outlook, storage=storage_of(outlook, self.offer.provider))


def kill_latency_s(provider: str) -> float:
    """Seconds between the decision to kill and the end of the bill, as control counts them; the
    longest of all where a provider's own habits are not known."""
    traits = TRAITS.get(provider)
    if traits is None:
        return max(known.kill_latency_s for known in TRAITS.values())
    return traits.kill_latency_s


def interruptions_of(provider: str) -> InterruptionRate:
    """How often a provider takes its spot machines back."""
    return TRAITS[provider].machines.interruptions if provider in TRAITS else NOT_KNOWN


def is_reachable(provider: str) -> bool:
    """Whether a run can be there at all; offers of others are shown, and cannot be taken."""
    return provider in TRAITS and TRAITS[provider].route.can_be_named


def can_be_rented(offer: Offer) -> bool:
    """Whether a run can be started on it: the others are planned, and shown after those that
    can."""
    gpu = GPUS.get(offer.sku)
    is_tried = gpu is None or gpu.is_tried or offer.provider == LOCAL
    return is_tried and is_reachable(offer.provider)


def storage_of(outlook: Estimates, provider: str) -> Storage:
    """Return an outlook's storage at ``provider``, with its price."""
    gb = work_gb(stored_bytes(p.settings for p in outlook.phases), outlook.data_gb * 1e9)
    on_volume, kept_s = outlook.volume_days is not None, STORAGE_AFTER_S
    if outlook.volume_days is not None:
        kept_s = outlook.volume_days * DAY_S
    kept = ZERO
    if outlook.bucket:
        kept_gb = outlook.kept_gb + outlook.tokens_gb
        kept = Usd.from_micros(-int(-kept_gb * BUCKET_MICROS_PER_GB_MONTH // HOURS_PER_MONTH))
    elif outlook.machine.local is None:
        # A volume costs the same, used or not.
        kept = price_per_hour(provider, "kept", gb if on_volume else math.ceil(outlook.kept_gb))
    disks = pod_disks_price(provider, gb, outlook.machine.nodes, on_volume=on_volume)
    traffic = traffic_price(provider, gb, outlook.machine.nodes)
    return Storage(gb, disks, kept, kept_s, traffic)


def horizon_s(spec: RunSpec) -> float:
    """Seconds that a run may last where no deadline and no hours say how long; a command's length
    is its own."""
    is_told = spec.deadline_at is not None or spec.hours is not None or spec.is_open_ended
    return math.inf if is_told else HORIZON_S


def seconds_allowed(row: RankedOffer, spec: RunSpec, now: float) -> float:
    """Seconds from the pod's start to its hard stop that budget, deadline and days allow; may be
    ∞."""
    latency_s = kill_latency_s(row.offer.provider)
    allowed = horizon_s(spec)
    if spec.budget is not None:
        money, hourly = spec.budget, row.storage.hourly
        if hourly:
            money = money - row.storage.after - _ROUNDING
        allowed = min(allowed, affordable_seconds(money, row.most + hourly) - latency_s)
    if spec.deadline_at is not None:
        allowed = min(allowed, spec.deadline_at - now - latency_s)
    return max(0.0, allowed)


def make_candidate(row: RankedOffer, name: str, spec: RunSpec, now: float) -> Candidate:
    """The Candidate of ``row`` under the id ``name``."""
    offer, outlook, rate, storage = row.offer, row.outlook, row.rate, row.storage
    on_volume = outlook.volume_days is not None
    soft_s, hard_s, limit_s = stops(row, spec, now)
    latency_s = kill_latency_s(offer.provider)
    billed_s = hard_s + latency_s
    rent = cost(row.most, billed_s)
    limit = ZERO
    if limit_s:
        limit = cost(row.most, limit_s + latency_s) + storage.cost(limit_s + latency_s)
    seconds = outlook.seconds
    if spec.sweep is not None:
        seconds = seconds.each(lambda part: soft_s)
    elif spec.fills or spec.command is not None:
        seconds = seconds.each(lambda part: min(part, hard_s))
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
        cost_p10=cost(offer.quoted, seconds.p10) + storage.cost(seconds.p10),
        cost_p50=cost(rate, seconds.p50) + storage.cost(seconds.p50),
        cost_p90=cost(offer.late_rate(now), seconds.p90) + storage.cost(seconds.p90),
        memory_need_gb=outlook.memory.total,
        memory_least_gb=outlook.memory.least,
        memory_most_gb=outlook.memory.most,
        memory_gb=outlook.machine.memory_gb,
        fits_memory=outlook.fits,
        within_budget=row.within,
        soft_stop_s=soft_s,
        hard_stop_s=hard_s,
        landing_s=outlook.landing_s,
        worst_case=rent + storage.cost(billed_s),
        reasons=_reasons(row, spec, rent, now),
        planned_rate=rate,
        most_rate=row.most,
        storage=storage.cost(min(seconds.p50, hard_s)),
        volume_rate=storage.kept if on_volume else ZERO,
        volume_gb=storage.work_gb if on_volume else 0,
        work_gb=storage.work_gb,
        disk_rate=storage.disks,
        nodes=outlook.machine.nodes,
        limit_s=limit_s,
        limit=limit,
    )


def with_break_even(made: Candidate, paid: Candidate | None) -> Candidate:
    """``made``, a free machine, with the worth of an hour at which ``paid`` becomes the better."""
    if paid is None or made.rate or not made.fits_memory or made.hours.p50 <= paid.hours.p50:
        return made
    saved_h = made.hours.p50 - paid.hours.p50
    micros = round((paid.cost_p50.micros - made.cost_p50.micros) / saved_h)
    text = (
        f"free, but slower: {paid.hardware} is worth its {paid.cost_p50} if your time is worth "
        f"more than {Usd.from_micros(max(0, micros))} per hour"
    )
    return dataclasses.replace(made, reasons=(*made.reasons, Remark(RemarkTopic.PRICE, text)))


def stops(row: RankedOffer, spec: RunSpec, now: float) -> tuple[float, float, float]:
    """Seconds after the pod exists: when the trainer lands, when all is killed, and the latest that
    this is moved to where the work needs it; 0: it is not moved."""
    outlook, limit_s = row.outlook, 0.0
    allowed_s = seconds_allowed(row, spec, now)
    if spec.hours is not None:
        wanted_s = outlook.startup.p90 + spec.hours * HOUR_S + outlook.landing_s
    elif not row.rate:
        wanted_s = max(FREE_HARD_STOP_S, 4 * outlook.seconds.p90)
        if spec.is_open_ended and not spec.steps:
            wanted_s = FREE_HARD_STOP_S  # nothing is known of its length
    elif spec.budget is not None or spec.fills:
        wanted_s = allowed_s
        if _has_own_length(outlook, spec):
            p90_s = outlook.seconds.p90
            wanted_s = max(TIGHT_SLACK * p90_s, p90_s + TIGHT_LEAST_S) + outlook.landing_s
            limit_s = allowed_s if wanted_s < allowed_s else 0.0
    else:
        wanted_s = outlook.startup.p90 + outlook.landing_s
        wanted_s += STOP_SLACK * sum(phase.seconds.p90 for phase in outlook.phases)
    hard_s = min(wanted_s, allowed_s)
    return max(0.0, hard_s - outlook.landing_s), hard_s, limit_s


def _has_own_length(outlook: Estimates, spec: RunSpec) -> bool:
    """Whether a run on one machine is as long as its work, by a recipe or by measured steps."""
    if spec.fills or spec.sweep is not None or outlook.machine.nodes > 1 or not outlook.phases:
        return False
    # Without a probe a command is planned to last until it is told to stop.
    last = outlook.phases[-1].seconds
    return spec.command is None or (bool(spec.steps) and last.p50 < last.p90)


def _reasons(row: RankedOffer, spec: RunSpec, rent: Usd, now: float) -> tuple[Remark, ...]:
    offer, outlook = row.offer, row.outlook
    reasons = list(outlook.reasons)

    def add(about: RemarkTopic, *texts: str, first: bool = False) -> None:
        made = [Remark(about, text) for text in texts]
        reasons[:] = [*made, *reasons] if first else [*reasons, *made]

    if outlook.data is not None:
        add(RemarkTopic.DATA, *outlook.data.words(row.rate))
        add(RemarkTopic.WARNING, *outlook.data.caveats)
    if untrained := next(filter(None, (why_untrained(p.settings) for p in outlook.phases)), ""):
        add(RemarkTopic.SETTINGS, f"plan only: {untrained}", first=True)
    add(RemarkTopic.OFFER, *_of_its_age(row, now))
    add(RemarkTopic.PRICE, *_of_the_price(row, rent))
    if offer.spot:
        add(RemarkTopic.PLACE, f"interruptions: {rate_words(interruptions_of(offer.provider))}")
    if spec.fills and row.useful:
        add(RemarkTopic.PRICE, *_of_filling(row, spec, now))
    if spec.is_open_ended and row.useful:
        add(RemarkTopic.NEED, *_of_a_command(row, spec))
    add(RemarkTopic.NEED, *row.needs, first=not outlook.fits)
    if outlook.kept_gb >= 100:
        price = row.storage.cost(outlook.seconds.p50)
        kept = (
            f"{outlook.kept_gb:,.0f} GB of kept checkpoints: {price}, a week after the run included"
        )
        add(RemarkTopic.STORAGE, kept)
    if not is_reachable(offer.provider):
        add(RemarkTopic.PLACE, f"{offer.provider} cannot be launched: {in_no_catalogue()}")
    elif not can_be_rented(offer):
        add(RemarkTopic.PLACE, f"can only be planned: no run was tested on a {offer.sku} yet")
    elif beware := TRAITS[offer.provider].route.beware:
        add(RemarkTopic.PLACE, beware)
    if words := offer.words:
        add(RemarkTopic.OFFER, f"the offer: {words}")
    return tuple(reasons)


def _of_its_age(row: RankedOffer, now: float) -> list[str]:
    """Why it may cost more than its quote."""
    offer = row.offer
    old = f"price {offer.age_days(now)} days old"
    late = offer.late_rate(now)
    if late > row.rate:
        return [f"{old}: planned at {row.rate}/h, and at {late}/h in P90 and limits"]
    if row.rate > offer.rate:
        since = max(0, int((now - offer.newer_at) // DAY_S))
        return [f"{old}: planned at {row.rate}/h, the same price as {since} days ago"]
    return []


def _of_the_price(row: RankedOffer, rent: Usd) -> list[str]:
    """What may be billed beyond ``rent``."""
    offer = row.offer
    traits = TRAITS.get(offer.provider)
    lines = []
    if offer.spot and row.is_limited:
        lines.append(
            "the spot price may rise to the on-demand price: stops and cap are computed at "
            f"{row.most}/h"
        )
    if traits is not None and not traits.prices.shows_rate and rent:
        lines.append(
            f"the rent at {offer.provider} has no cap, and its lists show no price: if it bills 10 "
            f"% more than {row.most}/h, {rent * TENTH} more can be spent"
        )
    return lines


def _of_a_command(row: RankedOffer, spec: RunSpec) -> list[str]:
    """Return a command's reason: the hours that a dollar buys."""
    hourly = row.rate + row.storage.hourly
    if not hourly:
        stop = f"{FREE_HARD_STOP_S / HOUR_S:.0f} h after its start; --hours sets another limit"
        if spec.hours is not None or spec.deadline_at is not None or spec.steps:
            return []
        without = ", and --budget has no effect" if spec.budget is not None else ""
        return [f"without --rate no cost is counted{without}: asked to stop {stop}"]
    per_dollar = 1 / float(hourly)
    until = "its hours are used" if spec.hours is not None else "the budget is used"
    if spec.budget is None and spec.hours is None:
        until = (
            "its deadline is reached"
            if spec.deadline_at is not None
            else "P90 of its steps has passed"
        )
    return [
        f"{per_dollar:,.2f} hours per dollar; asked to stop when {until}, unless it ends earlier"
    ]


def _of_filling(row: RankedOffer, spec: RunSpec, now: float) -> list[str]:
    """Return the steps that a run makes whose end is the clock's."""
    outlook, allowed_s = row.outlook, seconds_allowed(row, spec, now)
    if math.isinf(allowed_s):
        return []
    last, steps = outlook.phases[-1], fill_steps(outlook, allowed_s)
    per_hour = HOUR_S / outlook.times[-1].pace_s
    tokens = outlook.tokens - round(last.tokens * (1 - steps.likely / last.settings.steps))
    return [
        f"{last.name}: {steps.least:,} to {steps.most:,} steps (P90 to P10) in the given time",
        f"likely {steps.likely:,}, {per_hour:,.0f} per hour, {tokens:,} tokens in total",
    ]
