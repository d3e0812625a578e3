"""``make_plan``: from a wish and a table of offers to a frozen Plan. Pure: no clock, no I/O.

Each machine's outlook (memory, time) is computed once; offers are ranked as plain numbers, and only
those worth showing become Candidates. Feasible means: it fits in memory, P90 and the landing
reserve are within the budget, and P90 is before the deadline.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Sequence

from trmcloud.core.catalog.hardware import (
    GPUS,
    LOCAL,
    HardwareRequest,
    LocalMachine,
    hardware_name,
    parse_hardware,
)
from trmcloud.core.catalog.offers import (
    AGE_MARGINS,
    ANYWHERE,
    DAY_S,
    Offer,
    local_offer,
    with_newer_quotes,
    without_odd,
)
from trmcloud.core.catalog.providers import max_nodes
from trmcloud.core.clock import utc_day
from trmcloud.core.contract.bucket_layout import (
    BUCKET_MICROS_PER_GB_MONTH,
    BUCKET_PRICE_AS_OF,
    LONGEST_GRANT_S,
)
from trmcloud.core.durations import duration
from trmcloud.core.errors import BudgetRefused, DoesNotFit, NotFoundError, UsageError
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.nearest import suggest_name
from trmcloud.core.planner.candidates import (
    FREE_HARD_STOP_S,
    RankedOffer,
    can_be_rented,
    interruptions_of,
    make_candidate,
    seconds_allowed,
    with_break_even,
)
from trmcloud.core.planner.command_outlook import CommandProbe, command_outlook
from trmcloud.core.planner.estimates import HOUR_S, fill_steps, filled_outlook, outlook_on
from trmcloud.core.planner.ranking import PlanningInputs, nearest_offer, rank
from trmcloud.core.planner.roofline import MeasuredSpeed, needs_float8, refuse_float8
from trmcloud.core.planner.speed import is_trained, why_untrained
from trmcloud.core.spec.boots import ASK_EVERY_S, boot_budget, boot_limit_s
from trmcloud.core.spec.plan import (
    GOAL,
    SET_ASIDE,
    TRAINER,
    UNPRICED,
    Candidate,
    Plan,
    Remark,
    RemarkTopic,
    stop_limits,
)
from trmcloud.core.spec.recipe import Recipe
from trmcloud.core.spec.settings import CHAT, PHASES, as_option
from trmcloud.core.spec.spec import (
    DELETE,
    DELETE_FETCHED,
    IGNORE,
    KEEP,
    OBJECTIVES,
    STOP,
    WARN,
    DataSource,
    RunSpec,
)
from trmcloud.core.spec.stop_rules import check_rules

PLAN_LIFETIME_S = DAY_S
FALLBACKS = 3
"""Candidates that a launch tries in order."""


_MARGINS = ", ".join(
    f"P50 {percent // 2} % and P90 {percent} % above a quote of {days} days"
    for days, percent in AGE_MARGINS[::-1]
)


def make_plan(
    spec: RunSpec,
    recipe: Recipe,
    offers: Sequence[Offer],
    now: float,
    plan_id: str,
    *,
    local: LocalMachine | None = None,
    tokens_available: int | None = None,
    measured: Sequence[MeasuredSpeed] = (),
    source: DataSource | None = None,
    probed: CommandProbe | None = None,
) -> Plan:
    """The Plan for ``spec`` at ``now`` (epoch s).

    ``local`` is this machine: the only candidate of a ``local`` spec, and one row of a plan without
    hardware. ``tokens_available`` is the size of the training data, for the count of epochs;
    ``source`` says where the data is made, and with it what that takes.
    ``measured`` are probes; where a chip has one, it replaces the prior. ``probed`` is a command's.

    Raises:
        UsageError: unknown hardware, objective or phase, or more processes than is sane.
        NotFoundError: no provider offers the hardware.
        DoesNotFit: the recipe fits none of the machines asked for, at any micro-batch.
        BudgetRefused: on the hardware asked for, the budget buys too little: ``rules``.
    """
    spec = _checked(spec, recipe, now)
    request = parse_hardware(spec.hardware) if spec.hardware else None
    given = PlanningInputs(spec, recipe, now, local, tokens_available, measured, source, probed)
    found, odd = _matching(request, offers, spec, now, local, probed)
    chosen_from = _within_price(found, spec, now)
    ranked = rank(chosen_from, given)
    if request is not None:
        _refuse_hopeless(request, ranked, given)
    kept = ranked
    if spec.fills:
        kept = [_filled(row, given) for row in ranked]
    if spec.command is not None:
        kept = [_lasting(row, given) for row in ranked]
    made = [make_candidate(row, f"c{number}", spec, now) for number, row in enumerate(kept, 1)]
    paid = next((c for c in made if c.rate and c.fits_memory and c.within_budget), None)
    made = [with_break_even(candidate, paid) for candidate in made]
    if spec.nodes > 1 and spec.command is None:
        alone = _one_machine(given, offers)
        made = [_beside_one_machine(candidate, alone) for candidate in made]
    usable = _usable(spec, kept, made)
    trained = [c for c in usable if all(is_trained(phase.settings) for phase in c.phases)]
    reservation = max((c.worst_case for c in trained), default=ZERO)
    cap = spec.budget or reservation
    first = next(iter((*trained, *usable, *made)), None)
    if first is not None:
        check_rules(spec, first)
    untold = ""
    if first is not None and first not in trained:
        why = next(filter(None, (why_untrained(phase.settings) for phase in first.phases)), "")
        if not recipe.has_trainer:
            untold = untrained_message(recipe.name)
        elif why:
            untold = untrained_message(recipe.name, f"{why} ({first.hardware})")
    return Plan(
        id=plan_id,
        created_at=now,
        expires_at=min(now + PLAN_LIFETIME_S, spec.deadline_at or math.inf),
        spec=spec,
        cap=cap if trained else None,
        candidates=tuple(made),
        launchable=tuple(c.id for c in trained),
        recommended_id=first.id if usable and first is not None else None,
        reservation=reservation,
        survives=_survives(spec, first),
        limits=_limits(spec, first, cap, now)
        | _capacity_limits(spec, chosen_from, trained, reservation)
        | _price_limits(chosen_from, odd, offers, now)
        | _slow_limits(spec)
        | _idle_limits(spec)
        | ({TRAINER: untold} if untold else {}),
        offers_total=len(chosen_from),
    )


def _checked(spec: RunSpec, recipe: Recipe, now: float) -> RunSpec:
    if spec.objective not in OBJECTIVES:
        raise UsageError(
            f"--objective must be one of {', '.join(OBJECTIVES)}, not {spec.objective!r}",
            next_step=suggest_name(spec.objective, OBJECTIVES),
        )
    if spec.bucket and spec.volume:
        raise UsageError(
            "use a network volume or a bucket, not both",
            next_step="leave out --volume, or --bucket",
        )
    check_spot(spec)
    if spec.bucket_relayed and spec.hardware == LOCAL:
        raise UsageError(
            "this bucket does not accept presigned requests, and on this machine no bucket is "
            "needed",
            where=spec.bucket,
            next_step="leave out --bucket: checkpoints stay on this machine's disk",
        )
    if spec.deadline_at is not None and spec.deadline_at <= now:
        raise UsageError("the deadline has passed", next_step="--deadline 12h")
    if spec.fills and spec.budget is None and spec.deadline_at is None:
        raise UsageError(
            "--fill needs a budget or a deadline",
            next_step="--budget 100",
        )
    if spec.fills and (spec.steps or spec.tokens or spec.hours):
        raise UsageError("--fill sets the length: leave out --steps, --hours, --tokens")
    if spec.phases == PHASES and not set(PHASES) & set(recipe.phases):
        phases = recipe.usual_phases
        if spec.chat_data and CHAT in recipe.phases and CHAT not in phases:
            phases = (*phases, CHAT)
        spec = dataclasses.replace(spec, phases=phases)
    if spec.chat_data and CHAT not in spec.phases:
        told = f"recipe {recipe.name} has no chat phase"
        if CHAT in recipe.phases:
            told = f"--phase {','.join(spec.phases)} leaves the chat phase out"
        raise UsageError(f"--chat-data is for the chat phase, but {told}")
    if spec.nodes > 1 and len(spec.phases) > 1:
        first, second = spec.phases[:2]
        raise UsageError(
            "several machines train one phase at a time, because only the first could judge the "
            "gate",
            next_step=f"--phase {first}; then --phase {second} --from RUN",
        )
    return spec


def check_spot(spec: RunSpec) -> None:
    """
    Raises:
        UsageError: a spot machine is asked for without a place that keeps its checkpoints.
    """
    if not spec.spot or spec.hardware == LOCAL:
        return
    without = "leave out --spot"
    if not (spec.bucket or spec.volume):
        raise UsageError(
            "a spot machine may be taken back at any time, and its checkpoints would be lost",
            next_step=f"keep them with --bucket s3://BUCKET/PREFIX; or {without}",
        )
    if spec.command is not None and spec.sweep is None and not spec.command.resume:
        raise UsageError(
            "a spot machine may be taken back at any time, and this command has no --resume: it "
            "would start again from the beginning",
            next_step=f"add --resume with the command that continues; or {without}",
        )


def rented_offers(spec: RunSpec, offers: Sequence[Offer], now: float) -> list[Offer]:
    """The offers of other machines that ``spec`` leaves to choose from, by any of its limits but
    those of money.

    Raises:
        NotFoundError: there is none. UsageError: unknown hardware, or this machine.
    """
    request = parse_hardware(spec.hardware) if spec.hardware else None
    return _within_price(_matching(request, offers, spec, now)[0], spec, now)


def _matching(
    request: HardwareRequest | None,
    offers: Sequence[Offer],
    spec: RunSpec,
    now: float,
    local: LocalMachine | None = None,
    probed: CommandProbe | None = None,
) -> tuple[list[Offer], list[Offer]]:
    """(offers that hardware, provider, region, number of GPUs, their memory and spot leave over;
    those set aside as odd, where no provider is named)

    Where any hardware will do, that must hold what the command's probe saw in use.
    """
    refuse_float8(spec, request, local)
    if request is not None and request.is_local:
        if local is None:
            raise UsageError("the hardware of this machine could not be read")
        return [_own_offer(spec, local, now)], []
    nodes = request.nodes if request is not None else 1
    # Quotes tell of their own kind alone: what is not asked for need not be looked through.
    of_a_kind = [
        offer
        for offer in offers
        if (spec.spot or not offer.spot) and (spec.community or not offer.is_community)
    ]
    quoted = with_newer_quotes(of_a_kind, now)
    odd: list[Offer] = []
    if not spec.providers:
        quoted, odd = without_odd(quoted, now)
    found = _in_regions(quoted, spec.regions)
    if request is not None or spec.gpus or spec.providers:
        found = [
            offer
            for offer in found
            if (request is None or request.accepts(offer.sku, offer.gpus))
            and (not spec.gpus or offer.gpus == spec.gpus)
            and (not spec.providers or offer.provider in spec.providers)
        ]
    if nodes > 1:
        found = [o.on_machines(nodes) for o in found if max_nodes(o.provider) >= nodes]
    if needs_float8(spec):
        found = [offer for offer in found if GPUS[offer.sku].fp8_tflops]
    if request is None and spec.command is not None:
        found = _with_memory(found, spec, probed)
    if (
        request is None
        and local is not None
        and spec.command is None
        and not (spec.providers or spec.regions or spec.gpus or needs_float8(spec))
    ):
        found.append(_own_offer(spec, local, now))
    if not found:
        what, next_step = nearest_offer(spec, request, with_newer_quotes(offers, now), now)
        raise NotFoundError(what, next_step=next_step)
    return found, odd


def _within_price(offers: list[Offer], spec: RunSpec, now: float) -> list[Offer]:
    """The offers that ``max_rate`` allows, each with its ceiling. A run that waits reserves all of
    them at that price, those that cost more now among them: each is asked for once it does not.

    Raises:
        UsageError: all cost more, and nothing is to be waited for.
    """
    most = spec.max_rate
    if most is None:
        return offers
    rented = [offer for offer in offers if offer.provider != LOCAL]
    within = [offer for offer in rented if offer.planned_rate(now) <= most]
    if rented and not within and not spec.wait_s:
        cheapest = min(rented, key=lambda offer: offer.planned_micros(now))
        rate = cheapest.planned_rate(now)
        raise UsageError(
            f"no offer is planned at {most}/h or less: the cheapest is {_priced(cheapest)}",
            next_step=f"--max-price {rate.plain()}; or wait for a lower price with --wait-for 6h",
        )
    if spec.wait_s:
        return [o._replace(ceiling=most) if o.provider != LOCAL else o for o in offers]
    own = [offer for offer in offers if offer.provider == LOCAL]
    return own + [o._replace(ceiling=min(most, o.most_rate(now) or most)) for o in within]


def _priced(offer: Offer) -> str:
    return f"{hardware_name(offer.sku, offer.gpus)} at {offer.provider} for {offer.rate}/h"


def _with_memory(offers: list[Offer], spec: RunSpec, probed: CommandProbe | None) -> list[Offer]:
    """
    Raises:
        NotFoundError: there are offers, and all have less memory than was asked for, or was in use.
    """
    least_gb = max(spec.gpu_memory_gb, probed.least_gb if probed is not None else 0.0)
    most_gb = max((GPUS[offer.sku].memory_gb for offer in offers), default=math.inf)
    if most_gb < least_gb:
        raise NotFoundError(
            f"no offered GPU has {least_gb:.1f} GB: the largest has {most_gb:g}",
            next_step=f"use any --memory {most_gb:g}, or NxSKU",
        )
    return [offer for offer in offers if GPUS[offer.sku].memory_gb >= least_gb]


def _in_regions(offers: Sequence[Offer], regions: tuple[str, ...]) -> list[Offer]:
    """A price that holds anywhere at its seller holds in each of the regions asked for."""
    if not regions:
        return list(offers)
    there = [offer for offer in offers if offer.region in regions]
    anywhere = [offer for offer in offers if offer.region == ANYWHERE]
    return there + [o._replace(region=name) for o in anywhere for name in regions]


def _own_offer(spec: RunSpec, local: LocalMachine, now: float) -> Offer:
    processes = spec.processes or local.default_processes
    most = local.gpus or max(2, local.cpus)
    if processes > most:
        raise UsageError(
            f"{local.name} cannot run {processes} processes ({most})",
            next_step=f"--processes {local.default_processes}",
        )
    return local_offer(local, processes, spec.rate, now)


def _filled(row: RankedOffer, given: PlanningInputs) -> RankedOffer:
    """``row`` with the last phase as long as its money and time. The clock ends it: it is planned
    with more steps than a machine at P50 makes, so that a faster one does not end early."""
    allowed_s = seconds_allowed(row, given.spec, given.now)
    if not row.useful or math.isinf(allowed_s):
        return row
    steps = fill_steps(row.outlook, allowed_s)
    likely, planned = (
        outlook_on(
            given.recipe, given.spec, row.outlook.machine,
            fitted=row.outlook.fitted, tokens_available=given.tokens_available,
            source=given.source, last_steps=count,
            interruptions=interruptions_of(row.offer.provider) if row.offer.spot else None,
        )
        for count in (steps.likely, steps.planned)
    )  # fmt: skip
    return row.with_outlook(filled_outlook(likely, planned))


def _lasting(row: RankedOffer, given: PlanningInputs) -> RankedOffer:
    """``row`` with its command running for as long as there are money and time."""
    allowed_s = seconds_allowed(row, given.spec, given.now)
    if not row.rate and not given.spec.steps:
        allowed_s = min(allowed_s, FREE_HARD_STOP_S)
    if not row.useful or given.spec.hours is not None or math.isinf(allowed_s):
        return row
    until_s = allowed_s - row.outlook.landing_s
    sent_bytes = round(row.outlook.sent_gb * 1e9)
    machine = row.outlook.machine
    return row.with_outlook(command_outlook(given.spec, machine, given.probed, until_s, sent_bytes))


def _one_machine(given: PlanningInputs, offers: Sequence[Offer]) -> Candidate | None:
    """Return what is recommended where one machine of the same trains alone."""
    spec = dataclasses.replace(given.spec, hardware=given.spec.hardware.partition("x")[2])
    try:
        return make_plan(
            spec, given.recipe, offers, given.now, "",
            tokens_available=given.tokens_available, measured=given.measured, source=given.source,
        ).recommended  # fmt: skip
    except (NotFoundError, DoesNotFit, BudgetRefused):
        return None


def _beside_one_machine(made: Candidate, alone: Candidate | None) -> Candidate:
    """``made``, of several machines, with a warning where one is cheaper and no slower."""
    if alone is None or alone.cost_p50 >= made.cost_p50 or alone.hours.p50 > made.hours.p50:
        return made
    text = (
        f"{made.nodes} machines do not pay with this network: one {alone.hardware} takes "
        f"{alone.hours.p50:,.1f} h and {alone.cost_p50}"
    )
    return dataclasses.replace(made, reasons=(Remark(RemarkTopic.WARNING, text), *made.reasons))


def _usable(
    spec: RunSpec, kept: Sequence[RankedOffer], made: Sequence[Candidate]
) -> list[Candidate]:
    """Candidates to try in order: useful ones of the hardware asked for, else of the best hardware
    that the whole recipe fits on."""
    usable = [
        candidate
        for row, candidate in zip(kept, made, strict=True)
        if row.outlook.fits
        and row.useful
        and can_be_rented(row.offer)
        and (row.within or spec.hardware or spec.is_open_ended)
    ]
    if not usable:
        return []
    alike = [c for c in usable if c.hardware == usable[0].hardware]
    tried = alike[:FALLBACKS]
    if spec.wait_s:
        # Whoever waits asks each provider, and has time for several of its offers.
        names = dict.fromkeys(c.provider for c in alike)
        first = [[c for c in alike if c.provider == name][:FALLBACKS] for name in names]
        tried = [c for c in alike if any(c in each for each in first)]
    if spec.pod_uploads:
        # A run whose machine is lost continues at any provider that was named: its best of each.
        for name in spec.providers:
            there = next((c for c in alike if c.provider == name), None)
            if there is not None and all(c.provider != name for c in tried):
                tried.append(there)
    return tried


def _refuse_hopeless(
    request: HardwareRequest,
    ranked: Sequence[RankedOffer],
    given: PlanningInputs,
) -> None:
    spec, recipe = given.spec, given.recipe
    if not any(row.outlook.fits for row in ranked):
        why = "; ".join(remark.text for remark in ranked[0].outlook.reasons)
        words = (f"trmcloud plan --recipe {recipe.name}", *(as_option(*o) for o in spec.overrides))
        raise DoesNotFit(
            f"{recipe.name} does not fit on {request.text}: {why}",
            next_step=f"{' '.join(words)}   (shows the hardware that fits)",
        )
    if spec.budget is not None and not any(row.useful for row in ranked):
        why = f"{spec.budget} is too little for {recipe.name} on {request.text}"
        raise BudgetRefused(f"{why}: {ranked[0].needs[0]}", next_step="a larger --budget")


def untrained_message(recipe: str, why: str = "its trainer does not exist yet") -> str:
    """Return the message about a recipe that cannot be trained."""
    return f"{recipe} can be planned, not launched: {why}"


def _survives(spec: RunSpec, candidate: Candidate | None) -> str:
    if candidate is None:
        return "nothing: there is no candidate"
    if spec.bucket:
        how = (
            "pulled, then uploaded from here"
            if spec.bucket_relayed
            else "uploaded when they are saved"
        )
        return f"{spec.bucket}, {how}, until trmcloud prune"
    if candidate.provider == LOCAL:
        return "this machine's disk"
    if spec.volume:
        return "a network volume, until you fetch them and delete it"
    return "this machine's disk: pulled while the pod runs, and before it ends"


def _volume_line(spec: RunSpec, candidate: Candidate, now: float) -> str:
    """Until when its rent is reserved, at the latest, and what becomes of it then."""
    until = now + candidate.hard_stop_s + spec.volume_days * DAY_S
    day = utc_day(until)
    per_day = cost(candidate.volume_rate, DAY_S)
    then = {
        KEEP: f"then it still costs {per_day} a day, outside all budgets: trmcloud admin "
        "volumes delete ID",
        DELETE_FETCHED: "then it is deleted if best and latest were fetched, else kept",
        DELETE: "then it is deleted with all its files",
    }[spec.volume_then]
    return (
        f"{candidate.volume_gb} GB at {per_day} a day, reserved until {spec.volume_days:g} days "
        f"after the run, at the latest {day}; {then}"
    )


_ON_LOW_BALANCE = {
    STOP: "the run stops and saves before the provider's balance ends, if a command or the guard "
    "runs here",
    IGNORE: "the provider's balance is not read",
}


def _capacity_limits(
    spec: RunSpec, offers: Sequence[Offer], tried: Sequence[Candidate], reservation: Usd
) -> dict[str, str]:
    """The limits of a wait for a machine, and of machines that do not boot, with their cost."""
    limits = {"max price": "off", "waits": "off"}
    if spec.max_rate is not None:
        limits["max price"] = f"{spec.max_rate}/h"
        rented = [offer for offer in offers if offer.provider != LOCAL]
        cheapest = min(rented, key=lambda offer: offer.rate, default=None)
        if cheapest is not None and cheapest.rate > spec.max_rate:
            limits["max price"] += f": less than all offers; the cheapest is {_priced(cheapest)}"
    if spec.wait_s:
        limits["waits"] = (
            f"up to {spec.wait_s / HOUR_S:g} h for a machine, with a request to each provider "
            f"about every {ASK_EVERY_S / 60:.0f} min; then exit code 75"
        )
    boot_s = max(map(boot_limit_s, tried), default=0.0)
    if boot_s:
        limits["boot budget"] = (
            f"{boot_s / 60:g} min per machine, at most {boot_budget(tried, reservation)} for "
            "machines that never start"
        )
    return limits


def _price_limits(
    offers: Sequence[Offer], odd: Sequence[Offer], known: Sequence[Offer], now: float
) -> dict[str, str]:
    """The quotes that were set aside, and the GPUs that no seller has a price for."""
    if all(offer.provider == LOCAL for offer in offers):
        return {}
    limits = {}
    if odd:
        texts = [
            f"{hardware_name(o.sku, o.gpus)} at {o.provider} {o.rate}/h ({o.age_days(now)} d)"
            for o in sorted(odd, key=lambda o: o.planned_micros(now) / o.gpus)
        ]
        more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
        limits[SET_ASIDE] = f"old quotes far below other sellers': {', '.join(texts[:3])}{more}"
    priced = {offer.sku for offer in known}
    if unpriced := [sku for sku in GPUS if sku not in priced and GPUS[sku].is_tried]:
        limits[UNPRICED] = ", ".join(unpriced)
    return limits


def _idle_limits(spec: RunSpec) -> dict[str, str]:
    if not spec.idle_s:
        return {}
    return {"idle": f"lands after {spec.idle_s / 60:g} min without a step, or with idle GPUs"}


def _slow_limits(spec: RunSpec) -> dict[str, str]:
    """The limit of what follows where the machine is slow, where that is more than a line."""
    if spec.if_slow != STOP:
        return {}
    return {"if slow": "saves a checkpoint and stops: outcome stopped, exit code 21"}


def goal_limits(spec: RunSpec) -> dict[str, str]:
    """A plan's rows about its goal: the result asked for, who reached it and how, and what this
    project has not shown."""
    goal = spec.goal
    if goal is None:
        return {}
    limits = {GOAL: f"{goal.title}: {goal.words}"}
    changed = spec.overrides[len(goal.settings) :]
    if changed:
        own = ", ".join(f"{key} = {value}" for key, value in changed)
        limits["not the goal's recipe"] = f"{own}: what was reached was reached without it"
    for number, each in enumerate(goal.evidence, 1):
        rent = f", {each.usd}" if each.usd is not None else ""
        limits["reached by" if number == 1 else f"reached by ({number})"] = (
            f"{each.by}: {each.value:g} on {each.hardware} in {each.hours:g} h{rent}, {each.day}; "
            f"{each.source}"
        )
    if goal.not_shown:
        limits["not shown here"] = "; ".join(goal.not_shown)
    return limits


def _limits(spec: RunSpec, candidate: Candidate | None, cap: Usd, now: float) -> dict[str, str]:
    worth = f", {spec.hour_value} per hour" if spec.objective == "value" else ""
    deadline = "off"
    if spec.deadline_at is not None:
        deadline = f"{(spec.deadline_at - now) / HOUR_S:,.1f} h from the plan"
    own = "not known" if spec.command is not None else "the recipe's"
    limits = {
        "budget": str(spec.budget) if spec.budget is not None else f"off (cap {cap}: worst case)",
        "deadline": deadline,
        "steps": f"{spec.steps:,} per phase" if spec.steps else own,
        "hours": f"{spec.hours:g} h of training" if spec.hours else "off",
        "tokens": f"{spec.tokens:,} per phase" if spec.tokens else "off",
        "fill": "on: as many steps as the budget buys" if spec.fills else "off",
        "equal work": "on" if spec.equal_work else "off",
        "objective": spec.objective + worth,
        "providers": ", ".join(spec.providers) or "any",
        "regions": ", ".join(spec.regions) or "any",
        "spot": "on" if spec.spot else "off",
        "community hosts": "on" if spec.community else "off",
        "patience": f"{spec.patience} evaluations" if spec.patience else "off",
        "old prices": _MARGINS,
    }
    limits |= goal_limits(spec)
    if candidate is not None:
        if not candidate.rate:
            limits["price"] = "no rate set (--rate): the budget cannot apply"
        limits |= stop_limits(candidate)
        limits["landing reserve"] = duration(candidate.landing_s)
        limits["storage"] = f"{candidate.storage} until a week after the run"
        if candidate.provider != LOCAL and spec.balance != WARN:
            limits["low balance"] = _ON_LOW_BALANCE[spec.balance]
        if candidate.volume_rate:
            limits["storage"] = f"{candidate.storage} until the volume's planned end"
            limits["volume"] = _volume_line(spec, candidate, now)
        if spec.bucket:
            each = Usd.from_micros(BUCKET_MICROS_PER_GB_MONTH)
            limits["storage"] += f", at {each} per GB-month (S3 Standard, {BUCKET_PRICE_AS_OF})"
        if spec.pod_uploads and candidate.hard_stop_s > LONGEST_GRANT_S:
            limits["uploads"] = (
                "granted for 7 days at a time, the longest that S3 allows: without a command the "
                "run uploads nothing after that"
            )
    return limits
