"""Plans and what stands beside them as the documents of ``--json``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trmcloud.app.finetune_plans import FinetunePlan
from trmcloud.app.planning import Bought, OwnHardware
from trmcloud.app.working_tree import WorkingTree
from trmcloud.cli import documents as doc
from trmcloud.cli.documents import note
from trmcloud.cli.views.json_output import Verbatim
from trmcloud.core.catalog.goals import Goal
from trmcloud.core.control.balance import Funds, worst_at
from trmcloud.core.money import Usd
from trmcloud.core.spec.plan import Candidate, Interval, PhasePlan, Plan

_HOUR_S = 3600.0


def spread(interval: Interval, factor: float = 1.0) -> doc.Spread:
    return doc.Spread(
        p10=interval.p10 * factor, p50=interval.p50 * factor, p90=interval.p90 * factor
    )


def plan_document(
    plan: Plan,
    *,
    funds: Funds | None = None,
    unread: str = "",
    own: OwnHardware | None = None,
    tree: WorkingTree | None = None,
    rests_on: Iterable[str] = (),
) -> doc.Planned:
    """``unread``: why a balance could not be read; ``rests_on``: what a command's plan is made
    from."""
    spec, first = plan.spec, plan.recommended
    notes = [note("basis", text) for text in rests_on if text.strip()]
    notes += [note("balance_not_read", unread)] if unread else []
    limits = {"checkpoints": plan.survives, **plan.limits}
    return doc.Planned(
        id=plan.id,
        created_at=plan.created_at,
        expires_at=plan.expires_at,
        recipe=spec.recipe,
        phases=tuple(spec.phases),
        command=tuple(spec.command.words) if spec.command is not None else None,
        data=spec.data,
        objective=spec.objective,
        deadline_at=spec.deadline_at,
        budget_usd=spec.budget,
        cap_usd=plan.cap,
        reservation_usd=plan.reservation,
        fits=first is not None,
        recommended=plan.recommended_id,
        hardware=first.hardware if first is not None else None,
        launchable=tuple(plan.launchable),
        candidates=tuple(_machine(each) for each in plan.candidates),
        offers_total=plan.offers_total,
        limits=tuple(note(_code(name), text) for name, text in limits.items()),
        notes=tuple(notes),
        balance=_balance(plan, funds),
        own=own_machine(own) if own is not None else None,
        sent=doc.SentFiles(files=len(tree.names), size_bytes=tree.size_bytes)
        if tree is not None
        else None,
        goal=_goal(spec.goal) if spec.goal is not None else None,
    )


def _goal(goal: Goal) -> doc.PlannedGoal:
    return doc.PlannedGoal(
        **{name: getattr(goal, name) for name in ("name", "title", "metric", "threshold")},
        higher=goal.higher,
        evidence=tuple(
            doc.GoalEvidence(
                value=each.value,
                hardware=each.hardware,
                duration_s=each.hours * _HOUR_S,
                cost_usd=each.usd,
                by=each.by,
                source=each.source,
                day=each.day,
            )
            for each in goal.evidence
        ),
        not_shown=goal.not_shown,
    )


def _code(name: str) -> str:
    """``hard_stop`` of ``hard stop``."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _machine(candidate: Candidate) -> doc.PlannedMachine:
    as_is = (
        "id", "hardware", "sku", "gpus", "nodes", "provider", "region", "spot", "priced_at",
        "source", "soft_stop_s", "hard_stop_s", "landing_s", "memory_need_gb", "memory_least_gb",
        "memory_most_gb", "memory_gb", "fits_memory", "within_budget", "volume_gb", "work_gb",
    )  # fmt: skip
    values: dict[str, Any] = {name: getattr(candidate, name) for name in as_is}
    return doc.PlannedMachine(
        **values,
        rate_per_hour_usd=candidate.rate,
        planned_rate_per_hour_usd=candidate.planned_rate or candidate.rate,
        most_rate_per_hour_usd=candidate.reserved_rate,
        disk_rate_per_hour_usd=candidate.disk_rate,
        volume_rate_per_hour_usd=candidate.volume_rate,
        storage_usd=candidate.storage,
        cost_p10_usd=candidate.cost_p10,
        cost_p50_usd=candidate.cost_p50,
        cost_p90_usd=candidate.cost_p90,
        worst_case_usd=candidate.worst_case,
        duration_s=spread(candidate.hours, _HOUR_S),
        startup_s=spread(candidate.startup_s),
        phases=tuple(map(_phase, candidate.phases)),
        notes=tuple(note(remark.about.value, remark.text) for remark in candidate.reasons),
    )


def _phase(phase: PhasePlan) -> doc.PlannedPhase:
    return doc.PlannedPhase(
        name=phase.name,
        steps=phase.settings.steps,
        tokens=phase.tokens,
        flops=phase.flops,
        step_s=spread(phase.step_s),
        duration_s=spread(phase.seconds),
        parts_s=dict(phase.parts_s),
        settings=Verbatim(phase.settings.to_json()),
    )


def _balance(plan: Plan, funds: Funds | None) -> doc.PlanBalance | None:
    if funds is None or plan.recommended is None:
        return None
    worst = worst_at(plan, plan.recommended.provider)
    return doc.PlanBalance(
        provider=funds.provider,
        balance_usd=funds.balance,
        held_usd=dict(funds.held),
        free_usd=funds.free,
        worst_case_usd=worst,
        missing_usd=funds.missing(worst),
    )


def own_machine(own: OwnHardware) -> doc.OwnMachine:
    rented = own.rented
    return doc.OwnMachine(
        hardware=own.hardware,
        watts=own.watts,
        per_kwh_usd=own.per_kwh,
        per_hour_usd=own.per_hour,
        power_usd=own.candidate.cost_p50,
        duration_s=spread(own.candidate.hours, _HOUR_S),
        rented_hardware=rented.hardware if rented is not None else None,
        dearer_usd=own.dearer if rented is not None else None,
        sooner_s=own.sooner_h * _HOUR_S if rented is not None else None,
        worth_from_per_hour_usd=own.worth_from if rented is not None else None,
        rent_per_own_hour_usd=own.rent_per_own_hour if rented is not None else None,
    )


def recipe_offers(found: Sequence[Bought]) -> doc.RecipeOffers:
    return doc.RecipeOffers(
        recipes=tuple(
            doc.RecipeOffer(
                recipe=each.recipe,
                hardware=each.candidate.hardware,
                duration_s=spread(each.candidate.hours, _HOUR_S),
                cost_p50_usd=each.candidate.cost_p50,
                cost_p90_usd=each.candidate.cost_p90,
                reached=each.reached,
            )
            for each in found
        )
    )


def finetune_document(plan: FinetunePlan) -> doc.FinetunePlanned:
    how: Mapping[str, Any] = plan.how._asdict()
    return doc.FinetunePlanned(
        model={**plan.model._asdict(), "parameters": plan.model.parameters},
        finetuning=how,
        tokens=plan.tokens,
        recommended=plan.recommended.hardware,
        candidates=tuple(
            doc.FinetuneMachine(
                hardware=row.hardware,
                sku=row.offer.sku,
                provider=row.offer.provider,
                region=row.offer.region,
                rate_per_hour_usd=row.rate,
                cost_p50_usd=row.cost_p50,
                cost_p90_usd=row.cost_p90,
                duration_s=spread(row.hours, _HOUR_S),
                memory_gb=row.memory_gb,
                need_gb=row.need._asdict(),
                fits_for_certain=row.is_sure,
                batch=row.batch,
            )
            for row in plan.rows
        ),
        too_small=tuple(plan.too_small),
    )


def amounts(values: Mapping[str, Usd]) -> doc.Amounts:
    return doc.Amounts(
        min_usd=values["min"], p50_usd=values["p50"], p90_usd=values["p90"], max_usd=values["max"]
    )
