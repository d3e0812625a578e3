"""Machines rented for minutes: the plan of a smoke test, and fetching from a network volume."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from trmcloud.core.catalog.hardware import GPUS
from trmcloud.core.catalog.offers import Offer
from trmcloud.core.catalog.providers import ProviderTraits, traits_of
from trmcloud.core.control import events as ev
from trmcloud.core.control.ledger_facts import is_deleted
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import BudgetRefused, ConflictError, NoCapacity, NotFoundError
from trmcloud.core.money import Usd, cost
from trmcloud.core.spec.plan import Candidate, Interval, Plan, candidate_to_json
from trmcloud.core.spec.spec import RunSpec
from trmcloud.core.storage import LEAST_WORK_GB
from trmcloud.core.values import replace
from trmcloud.operations.context import Context
from trmcloud.operations.driving.drive import RunDriver
from trmcloud.operations.driving.reconciling import reconcile
from trmcloud.operations.plans.launch_checks import check_needs
from trmcloud.operations.runs.conditions import SMOKE

# The Plan of a smoke run: the cheapest machine there is, nothing to train, a stop minutes away.

MOST_CANDIDATES = 6
_LIFETIME_S = 600.0
_NOTHING = Interval(0.0, 0.0, 0.0)


def make_smoke_plan(
    offers: Sequence[Offer],
    traits: ProviderTraits,
    max_usd: Usd,
    hold_s: float,
    disk_rate: Usd,
    now: float,
) -> Plan:
    """A Plan without phases: single-GPU offers, cheapest first, killed ``hold_s`` after the intent.

    ``disk_rate`` is USD/h of the pod's own disks, which come on top of an offer's rate.

    Raises:
        NoCapacity: nothing is offered.
        BudgetRefused: the cheapest offer's worst case is above ``max_usd``.
    """
    usable = [o for o in offers if o.gpus == 1 and not o.spot and not o.is_community]
    usable.sort(key=lambda offer: (offer.planned_rate(now), offer.sku, offer.region))
    if not usable:
        raise NoCapacity(
            f"{traits.name} has no GPU in stock",
            next_step="try again in a few minutes",
        )
    made = [
        _candidate(f"c{number}", offer, traits, hold_s, disk_rate, now)
        for number, offer in enumerate(usable[:MOST_CANDIDATES], 1)
    ]
    fitting = [candidate for candidate in made if candidate.worst_case <= max_usd]
    if not fitting:
        cheapest = made[0]
        cents = -(-cheapest.worst_case.micros // 10_000)  # rounded up
        raise BudgetRefused(
            f"the cheapest pod, {cheapest.hardware} at {cheapest.planned_rate}/h, can cost up to "
            f"{cheapest.worst_case} in {hold_s / 60:g} min, the kill latency included",
            next_step=f"use --max-usd {cents / 100:.2f}, or fewer --minutes",
        )
    worst = max(candidate.worst_case for candidate in fitting)
    digest = hashlib.sha256(f"{now!r} {max_usd} {hold_s}".encode()).hexdigest()
    return Plan(
        id=f"p-{digest[:8]}",
        created_at=now,
        expires_at=now + _LIFETIME_S,
        spec=RunSpec(recipe=SMOKE, phases=(), budget=worst, providers=(traits.name,), gpus=1),
        cap=worst,
        candidates=tuple(fitting),
        launchable=tuple(candidate.id for candidate in fitting),
        recommended_id=fitting[0].id,
        reservation=worst,
        survives="nothing: it does not train",
        limits={},
        offers_total=len(offers),
    )


def with_only_candidate(plan: Plan, candidate_id: str) -> Plan:
    """The same plan for one of its candidates alone."""
    candidate = plan.candidate(candidate_id)
    worst = candidate.worst_case
    return replace(
        plan,
        spec=replace(plan.spec, budget=worst),
        cap=worst,
        candidates=(candidate,),
        launchable=(candidate.id,),
        recommended_id=candidate.id,
        reservation=worst,
    )


def _candidate(
    name: str, offer: Offer, traits: ProviderTraits, hold_s: float, disk_rate: Usd, now: float
) -> Candidate:
    rate = offer.late_rate(now)
    whole_s = hold_s + traits.kill_latency_s
    worst = cost(rate, whole_s) + cost(disk_rate, whole_s)
    gpu = GPUS.get(offer.sku)
    return Candidate(
        id=name,
        hardware=f"1x{offer.sku}",
        sku=offer.sku,
        gpus=1,
        provider=offer.provider,
        region=offer.region or "any",
        rate=rate,
        spot=False,
        priced_at=offer.priced_at,
        source=offer.source,
        startup_s=_NOTHING,
        phases=(),
        hours=Interval(*(hold_s / 3600.0,) * 3),
        cost_p10=worst,
        cost_p50=worst,
        cost_p90=worst,
        memory_need_gb=0.0,
        memory_gb=gpu.memory_gb if gpu is not None else 0.0,
        fits_memory=True,
        within_budget=True,
        soft_stop_s=hold_s,
        hard_stop_s=hold_s,
        landing_s=0.0,
        worst_case=worst,
        reasons=(),
        planned_rate=rate,
        most_rate=rate,
        storage=cost(disk_rate, hold_s),
        work_gb=LEAST_WORK_GB,
        disk_rate=disk_rate,
    )


# A machine rented for minutes, to bring checkpoints home from a network volume.
#
# The run is opened once more for it: same reservation, same names, same kill layers as for
# training. Its pod has nothing to train, and is held until what is best and what is latest are
# here.

_BOOT_S = 300.0
"""The time that a pod may take to boot and answer, before anything is copied."""
_SLOWEST_BYTES_PER_S = 4e6
_LEAST_S = 900.0
_ANYWHERE = ("", "any")


def lies_on_volume(run: RunState) -> bool:
    """Whether its checkpoints are on a network volume whose pod is gone, or seems to be."""
    generation = run.generation
    if generation is None or generation.up_at is None or run.errand is not None:
        return False
    seems_gone = generation.absence is not None or generation.ended_at is not None
    return (not run.live or seems_gone) and run.spec.volume


def is_needed(context: Context, run: RunState) -> bool:
    """Whether nothing of it is here, and all of it is there."""
    return lies_on_volume(run) and not context.files.manifests(run.run_id)


def errand_for(
    run: RunState, offers: Sequence[Offer], kept_bytes: int, disk_rate: Usd, now: float
) -> Candidate:
    """The cheapest machine in the volume's data centre, for as long as the copy may take.

    Raises:
        NoCapacity: nothing is offered there.
    """
    plan = run.plan
    generation = run.generation
    if generation is None:
        raise NotFoundError(f"{run.run_id} never had a machine")
    region = plan.candidate(generation.candidate_id).region
    if region in _ANYWHERE:
        region = plan.spec.regions[0] if plan.spec.regions else region
    there = [
        offer._replace(region=region) for offer in offers if offer.region in (region, *_ANYWHERE)
    ]
    hold_s = max(_LEAST_S, _BOOT_S + kept_bytes / _SLOWEST_BYTES_PER_S)
    traits = traits_of(generation.provider)
    made = make_smoke_plan(there, traits, Usd(1_000_000), hold_s, disk_rate, now)
    number = 1 + sum(c.id.startswith("fetch") for c in plan.candidates)
    return replace(made.candidates[0], id=f"fetch{number}")


def start(context: Context, run: RunState, candidate: Candidate) -> RunDriver:
    """Reserve the errand's worst case and become the run's driver.

    The run's own budget grows by it: asking for it was explicit.

    Raises:
        BudgetRefused: a level above the run lacks the money.
        ConflictError: the run is live.
        MissingTool: this machine could not reach it.
    """
    reconcile(context)
    ledger = context.ledger.read()
    run, line = ledger.runs[run.run_id], ledger.line("run", run.run_id)
    if is_deleted(ledger, run.run_id):
        raise NotFoundError(
            f"the network volume of {run.run_id} was deleted, with its files",
            next_step=f"trmcloud status {run.run_id}",
        )
    if run.live:
        raise ConflictError(
            f"{run.run_id} is {run.state.value}", next_step=f"trmcloud status {run.run_id}"
        )
    check_needs(context, candidate.provider)
    amount = candidate.worst_case
    cap = max(run.cap, line.settled + line.reserved + amount)
    reopened = ev.Reopened(cap, candidate_to_json(candidate), principal=context.caller.principal)
    who = context.caller.controller
    epoch = context.ledger.reopen_run(run.run_id, reopened, amount, who, context.wall())
    return RunDriver(context, run.run_id, epoch)


def carry_out(
    context: Context, run: RunState, candidate: Candidate, watch: Callable[[RunState], None]
) -> RunState:
    """``start``, and drive it until its checkpoints are here and its machine is gone, or it has
    ended without. ``watch`` is shown every state."""
    driver = start(context, run, candidate)

    def fetched(now: RunState) -> bool:
        generation = now.generation
        ended = generation is not None and generation.ended_at is not None
        return not now.live or (ended and bool(context.files.manifests(now.run_id)))

    after = driver.until(fetched, watch)
    if after.live:
        context.ledger.release(after.run_id, driver.epoch)
    return after
