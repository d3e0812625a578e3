"""Plans and what stands beside them as the documents of ``--json``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trmcloud.core.catalog.goals import Goal
from trmcloud.core.control.balance import Funds, worst_at
from trmcloud.core.money import Usd
from trmcloud.core.spec.plan import Candidate, Interval, PhasePlan, Plan
from trmcloud.operations import views
from trmcloud.operations.encoding import Verbatim
from trmcloud.operations.plans.finetune_plans import FinetunePlan
from trmcloud.operations.plans.planning import Bought, OwnHardware
from trmcloud.operations.sending.working_tree import WorkingTree
from trmcloud.operations.views import filled, note

_HOUR_S = 3600.0


def spread(interval: Interval, factor: float = 1.0) -> views.Spread:
    return views.Spread(
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
    next_step: str = "",
) -> views.Planned:
    """``unread``: why a balance could not be read; ``rests_on``: what a command's plan is made
    from; ``next_step``: the command of a plan that there is, where this recommends nothing."""
    spec, first = plan.spec, plan.recommended
    notes = [note("basis", text) for text in rests_on if text.strip()]
    notes += [note("balance_not_read", unread)] if unread else []
    if first is None:
        notes.append(note("no_plan", "no plan keeps these limits", next_step=next_step))
    limits = {"checkpoints": plan.survives, **plan.limits}
    return filled(
        views.Planned,
        plan,
        recipe=spec.recipe,
        phases=tuple(spec.phases),
        command=tuple(spec.command.words) if spec.command is not None else None,
        data=spec.data,
        objective=spec.objective,
        deadline_at=spec.deadline_at,
        budget_usd=spec.budget,
        fits=first is not None,
        recommended=plan.recommended_id,
        hardware=first.hardware if first is not None else None,
        launchable=tuple(plan.launchable),
        candidates=tuple(_machine(each) for each in plan.candidates),
        limits=tuple(note(_code(name), text) for name, text in limits.items()),
        notes=tuple(notes),
        balance=plan_balance(plan, funds),
        own=own_machine(own) if own is not None else None,
        sent=views.SentFiles(files=len(tree.names), size_bytes=tree.size_bytes)
        if tree is not None
        else None,
        goal=_goal(spec.goal) if spec.goal is not None else None,
    )


def _goal(goal: Goal) -> views.PlannedGoal:
    return filled(
        views.PlannedGoal,
        goal,
        evidence=tuple(
            filled(views.GoalEvidence, each, duration_s=each.hours * _HOUR_S, cost_usd=each.usd)
            for each in goal.evidence
        ),
    )


def _code(name: str) -> str:
    """``hard_stop`` of ``hard stop``."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _machine(candidate: Candidate) -> views.PlannedMachine:
    return filled(
        views.PlannedMachine,
        candidate,
        planned_rate_per_hour_usd=candidate.planned_rate or candidate.rate,
        most_rate_per_hour_usd=candidate.reserved_rate,
        limit_s=candidate.limit_s or None,
        limit_usd=candidate.limit if candidate.limit_s else None,
        duration_s=spread(candidate.hours, _HOUR_S),
        startup_s=spread(candidate.startup_s),
        phases=tuple(map(_phase, candidate.phases)),
        notes=tuple(note(remark.about.value, remark.text) for remark in candidate.reasons),
    )


def _phase(phase: PhasePlan) -> views.PlannedPhase:
    return views.PlannedPhase(
        name=phase.name,
        steps=phase.settings.steps,
        tokens=phase.tokens,
        flops=phase.flops,
        step_s=spread(phase.step_s),
        duration_s=spread(phase.seconds),
        parts_s=dict(phase.parts_s),
        settings=Verbatim(phase.settings.to_json()),
    )


def plan_balance(plan: Plan, funds: Funds | None) -> views.PlanBalance | None:
    """Return the balance that the plan's first machine is paid from; None where none is known."""
    if funds is None or plan.recommended is None:
        return None
    worst = worst_at(plan, plan.recommended.provider)
    held, missing = dict(funds.held), funds.missing(worst)
    return filled(
        views.PlanBalance, funds, held_usd=held, worst_case_usd=worst, missing_usd=missing
    )


def own_machine(own: OwnHardware) -> views.OwnMachine:
    rented = own.rented
    return filled(
        views.OwnMachine,
        own,
        power_usd=own.candidate.cost_p50,
        duration_s=spread(own.candidate.hours, _HOUR_S),
        rented_hardware=rented.hardware if rented is not None else None,
        dearer_usd=own.dearer if rented is not None else None,
        sooner_s=own.sooner_h * _HOUR_S if rented is not None else None,
        worth_from_per_hour_usd=own.worth_from if rented is not None else None,
        rent_per_own_hour_usd=own.rent_per_own_hour if rented is not None else None,
    )


def recipe_offers(found: Sequence[Bought]) -> views.RecipeOffers:
    return views.RecipeOffers(
        recipes=tuple(
            views.RecipeOffer(
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


def finetune_document(plan: FinetunePlan) -> views.FinetunePlanned:
    how: Mapping[str, Any] = plan.how._asdict()
    return views.FinetunePlanned(
        name=plan.name,
        model={**plan.model._asdict(), "parameters": plan.model.parameters},
        finetuning=how,
        tokens=plan.tokens,
        recommended=plan.recommended.hardware,
        candidates=tuple(
            filled(
                views.FinetuneMachine,
                row,
                sku=row.offer.sku,
                provider=row.offer.provider,
                region=row.offer.region,
                duration_s=spread(row.hours, _HOUR_S),
                need_gb=row.need._asdict(),
                fits_for_certain=row.is_sure,
                spot=row.offer.spot,
            )
            for row in plan.rows
        ),
        too_small=tuple(plan.too_small),
    )


def amounts(values: Mapping[str, Usd]) -> views.Amounts:
    return views.Amounts(
        min_usd=values["min"], p50_usd=values["p50"], p90_usd=values["p90"], max_usd=values["max"]
    )
