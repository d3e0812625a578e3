"""Checks before anything is rented or reserved; each says what is wrong and what to do."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from pathlib import Path

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.catalog.providers import direct, is_brokered, require_rented, traits_of
from trmcloud.core.control.bookkeeping import require_money
from trmcloud.core.control.budget import LAYERS_NEEDED, UnacceptedExposure, unaccepted_exposure
from trmcloud.core.control.run_state import RunState
from trmcloud.core.durations import duration
from trmcloud.core.errors import (
    BudgetRefused,
    DoesNotFit,
    MissingTool,
    NotSupported,
    TrmcloudError,
    UsageError,
)
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.planner.memory import checkpoint_bytes
from trmcloud.core.planner.planning import check_spot, untrained_message
from trmcloud.core.spec.plan import TRAINER, Candidate, Plan, RemarkTopic
from trmcloud.core.spec.recipe import Recipe
from trmcloud.core.spec.settings import FAMILIES
from trmcloud.core.spec.spec import RunSpec
from trmcloud.core.values import replace
from trmcloud.operations.context import Context
from trmcloud.operations.driving.balances import check_balance
from trmcloud.operations.machines import UnreachableProvider
from trmcloud.operations.plans.kill_layers import verified_layers


def check_needs(context: Context, provider: str) -> None:
    """
    Raises:
        MissingTool: this machine could not reach what it would rent from ``provider``.
    """
    for need in context.machines.needs(provider):
        if need.missing:
            raise MissingTool(
                "this machine could not reach a rented machine, so nothing was rented: "
                f"{need.name}: {need.detail}",
                next_step=need.fix,
            )


_DISK_MARGIN_BYTES = 64 << 20


def first_candidate(plan: Plan) -> Candidate:
    """The candidate that will be tried first.

    Raises:
        DoesNotFit: the plan has nothing to launch.
    """
    candidate = plan.recommended
    if candidate is None:
        needs = (
            r.text for c in plan.candidates[:1] for r in c.reasons if r.about is RemarkTopic.NEED
        )
        why = next(needs, "it has no candidate")
        raise DoesNotFit(
            f"no candidate of this plan can be launched: {why}",
            next_step="trmcloud plan, with a larger budget or other hardware",
        )
    return candidate


def check_launchable(context: Context, plan: Plan) -> None:
    """
    Raises:
        DoesNotFit: the plan has nothing to launch.
        NotSupported: its provider cannot be rented from yet, or its recipe not be trained.
    """
    candidate = first_candidate(plan)
    if not plan.launchable:
        raise NotSupported(
            plan.limits.get(TRAINER, untrained_message(plan.spec.recipe)), next_step=_trained()
        )
    traits = traits_of(candidate.provider)
    if plan.spec.volume and traits.rented and not traits.machines.network_volumes:
        rows = map(traits_of, direct())
        able = " or ".join(row.title for row in rows if row.machines.network_volumes)
        raise NotSupported(
            f"this version cannot rent network volumes at {candidate.provider}",
            next_step=f"leave out --volume, or rent at {able}",
        )
    check_spot(plan.spec)  # a saved plan may be from before it was refused
    if candidate.spot and traits.rented and not traits.machines.has_spot:
        raise NotSupported(
            f"this version cannot rent spot machines at {candidate.provider}",
            next_step="leave out --spot, or choose a cloud: --provider aws",
        )
    if candidate.provider not in context.machines.computes:
        raise NotSupported(
            f"this version cannot rent {candidate.hardware} at {candidate.provider}: it can only "
            "plan with that cloud",
            next_step="trmcloud launch local --rate USD --budget USD, or --dry-run to see the plan",
        )


def keep_launchable(context: Context, plan: Plan) -> Plan:
    """The plan with those candidates alone that its launch would try, one after the other.

    Raises:
        DoesNotFit: the plan has nothing to launch.
    """
    first = first_candidate(plan).provider
    names = [name for name in plan.launchable if _may_follow(context, plan, name, first)]
    return replace(plan, launchable=tuple(names))


def _may_follow(context: Context, plan: Plan, name: str, first: str) -> bool:
    """Whether a candidate may be tried where those before it are sold out. Where the user named no
    provider, that is one with an account, and not through a program."""
    provider, there = plan.candidate(name).provider, context.machines.computes
    if provider not in there or provider == first or provider in plan.spec.providers:
        return provider in there
    return not is_brokered(provider) and not isinstance(there[provider], UnreachableProvider)


def check_goal(plan: Plan) -> None:
    """
    Raises:
        BudgetRefused, DoesNotFit: budget or deadline end the run, P50, before its goal can be
            reached.
    """
    goal, first = plan.spec.goal, first_candidate(plan)
    if goal is None:
        return
    takes = f"{goal.name} takes {first.cost_p50} (p90 {first.cost_p90}) on {first.hardware}"
    if plan.spec.budget is not None and first.cost_p50 > plan.spec.budget:
        cents = math.ceil(first.cost_p90.micros / 10_000)
        raise BudgetRefused(
            f"{takes}, and the budget is {plan.spec.budget}",
            next_step=f"--budget {cents / 100:.2f}, or cheaper hardware",
        )
    deadline_at = plan.spec.deadline_at
    if deadline_at is not None and plan.created_at + first.hours.p50 * 3600 > deadline_at:
        raise DoesNotFit(
            f"{takes} and {duration(first.hours.p50 * 3600)}, and the deadline is in "
            f"{duration(deadline_at - plan.created_at)}",
            next_step="a later --deadline, or faster hardware",
        )


def check_machine(context: Context, plan: Plan) -> None:
    """
    Raises:
        MissingTool: this machine could not reach a pod of the plan's.
    """
    for provider in sorted({plan.candidate(name).provider for name in plan.launchable}):
        check_needs(context, provider)


def check_trainer(recipe: Recipe) -> None:
    """Before anything else is asked of the user: no data, budget or account would help.

    Raises:
        NotSupported: the recipe can be planned alone.
    """
    if not recipe.has_trainer:
        raise NotSupported(untrained_message(recipe.name), next_step=_trained())


def _trained() -> str:
    named = ", ".join(name for name, family in FAMILIES.items() if family.has_trainer)
    return f"--dry-run shows this plan; trainers exist for {named}"


def check_disk(home: Path, plan: Plan) -> None:
    """
    Raises:
        DoesNotFit: the disk has no room for the checkpoints that the plan keeps.
    """
    candidate = first_candidate(plan)
    needed = _DISK_MARGIN_BYTES
    for phase in candidate.phases:
        # those that are kept, and the one being written
        needed += checkpoint_bytes(phase.settings) * (phase.settings.kept_checkpoints + 1)
    existing = next(folder for folder in (home, *home.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise DoesNotFit(
            f"checkpoints need {needed / 1e9:.2f} GB, but the disk has {free / 1e9:.2f} GB free",
            where=str(home),
            next_step="free some disk space, or set TRMCLOUD_HOME to a larger disk",
        )


def check_capped(context: Context, plan: Plan, *, confirmed: bool) -> None:
    """Without a question and without a cap there is no limit to keep.

    Raises:
        BudgetRefused
    """
    if confirmed or plan.spec.budget is not None:
        return
    if not plan.reservation and first_candidate(plan).rate == ZERO:
        return
    if context.ledger.read().has_cap(context.caller.project, context.wall()):
        return
    raise BudgetRefused(
        "no budget is set: this would spend without a limit",
        next_step="--budget USD, or trmcloud budget set month USD",
    )


def check_loss(plan: Plan, *, detached: bool, accepted: bool) -> None:
    """
    Raises:
        UsageError: no process would be there to pull what only a pull saves.
    """
    rented = first_candidate(plan).provider != LOCAL
    kept = plan.spec.volume or plan.spec.pod_uploads
    if rented and detached and not kept and not accepted:
        raise UsageError(
            "with -d no command pulls the checkpoints: they would be deleted with the pod",
            next_step="keep them with --bucket s3://… or --volume, or accept their loss with "
            "--accept-loss",
        )


def require_user(what: str, *, uses_machine: bool) -> None:
    """
    Raises:
        NotSupported: the client may be another user of this machine than this process's.
    """
    if not uses_machine:
        raise NotSupported(
            f"{what} is refused: which user of this machine asks cannot be seen",
            next_step="start trmcloud mcp --grant NAME as the agent's client does, by stdio",
        )


def require_own_machine(plan: Plan, *, uses_machine: bool) -> None:
    """
    Raises:
        NotSupported: it would start a command here for a client who may be another user.
    """
    if any(plan.candidate(name).provider == LOCAL for name in plan.launchable):
        require_user(LOCAL, uses_machine=uses_machine)


def check_bucket(context: Context, spec: RunSpec) -> None:
    """
    Raises:
        AuthError, NotFoundError, ProviderError: the bucket that is named cannot be written, read
            and deleted in.
    """
    if spec.bucket:
        context.buckets.at(spec.bucket).check()


def check_exposure(context: Context, plan: Plan, accepted: Usd | None) -> None:
    """
    Raises:
        BudgetRefused: a rented pod could outlive everything that would end it, or be billed above
            its rate, and neither two verified kill layers nor the user's word covers that.
    """
    now = context.wall()
    rates: dict[str, Usd] = {}
    last_s: dict[str, float] = {}
    for candidate in (plan.candidate(name) for name in plan.launchable):
        latest_s = max(candidate.hard_stop_s, candidate.limit_s)
        last_s[candidate.provider] = max(last_s.get(candidate.provider, 0.0), latest_s)
        known = rates.get(candidate.provider, ZERO)
        rates[candidate.provider] = max(known, candidate.reserved_rate)
    for provider, rate in rates.items():
        verified = verified_layers(context, provider)
        lapsed = context.machines.computes[provider].lapsing(now + last_s[provider])
        counted = {key: at for key, at in verified.items() if key[1] not in lapsed}
        exposed = unaccepted_exposure(traits_of(provider), counted, rate, accepted, now)
        if exposed is not None:
            accept = f"--accept-exposure {max(rates.values()).plain()}"
            smoke = f"verify them with trmcloud smoke --provider {provider} --max-usd 0.25; or "
            if not {"autostop", "agent"} & {*traits_of(provider).layers.independent}:
                smoke = ""  # there is no layer there that it could prove
            # How an account pays is asked now; all else counts only once it was seen to work.
            gone = {
                layer: why
                for layer, why in lapsed.items()
                if (provider, layer) in verified or layer == "prepaid"
            }
            guard = (
                "trmcloud admin guard install on another machine that stays on; " if gone else ""
            )
            raise BudgetRefused(_exposed(exposed, gone), next_step=f"{guard}{smoke}{accept}")


def _exposed(exposed: UnacceptedExposure, lapsed: Mapping[str, str]) -> str:
    """``lapsed``: layers that do not count for this launch, and why."""
    rate, why = exposed.rate, []
    if not exposed.is_capped:
        why.append(
            f"the rent has no cap; {rate}/h is reserved. If {exposed.provider} bills more, the run "
            "costs more than the budget"
        )
    if exposed.verified is not None and len(exposed.verified) < LAYERS_NEEDED:
        why.append(
            "verified kill layers that work without this machine: "
            f"{', '.join(exposed.verified) or 'none'}; {LAYERS_NEEDED} are needed, or your "
            f"consent: if all failed while this machine is off, {rate}/h would still be spent"
        )
    if exposed.begins_exposed and exposed.verified:
        why.append(
            f"no verified kill layer ({', '.join(exposed.verified)}) works before the machine is "
            "set up, some minutes after the rent begins: until then only a command or another "
            f"machine's guard could end it, at {rate}/h"
        )
    if exposed.verified is not None and lapsed:
        why += [f"{name} does not count: {reason}" for name, reason in sorted(lapsed.items())]
    return f"{exposed.provider}: {'; '.join(why)}"


def check_account_key(plan: Plan, *, allowed: bool) -> None:
    """
    Raises:
        UsageError: access to the pod would be access to the whole account, and the user did not
            allow that; or another provider took the place of one of the plan's.
    """
    providers = {plan.candidate(name).provider for name in plan.launchable}
    for name in sorted(providers):
        require_rented(name)
    holding = next((t for t in map(traits_of, providers) if t.route.account_key_on_pod), None)
    if holding is not None and not allowed:
        if holding.prices.listed_as:
            title = traits_of(holding.prices.listed_as).title
            way = f"leave out --via to rent from {title} without it; or --allow-account-key-on-pod"
            whose = f"the key of the {title} account to every pod"
        else:
            way = (
                "use another cloud with --provider (runpod needs no key there), or "
                "--allow-account-key-on-pod"
            )
            whose = (
                f"the key of the {holding.name} account to every machine, and these are computers "
                "of private persons"
            )
        raise UsageError(f"{holding.route.via or holding.name} copies {whose}", next_step=way)


def check_account(context: Context, plan: Plan) -> None:
    """
    Raises:
        ProviderError: the plan's first provider would rent none of it to this account now.
        PaymentRequired: its balance does not cover the plan's worst case.
    """
    provider = first_candidate(plan).provider
    launchable = [plan.candidate(name) for name in plan.launchable]
    rate = min(c.rate for c in launchable if c.provider == provider)
    others = [c.provider for c in launchable if c.provider != provider]
    try:
        require_account(context, provider, rate)
    except TrmcloudError as error:
        way = f"--provider {others[0]}, or " if others else ""  # which has an account here
        if not error.next_step.startswith(way):
            error.next_step = way + error.next_step
        raise
    check_balance(context, plan)


def require_account(context: Context, provider: str, rate: Usd) -> None:
    """
    Raises:
        ProviderError: ``provider`` would rent nothing to this account at ``rate`` (USD/h) now.
    """
    compute = context.machines.computes.get(provider)
    if compute is not None:
        compute.require_account(rate)


def check_money(context: Context, plan: Plan) -> None:
    """
    Raises:
        BudgetRefused: a budget lacks the plan's worst case now.
    """
    new = RunState("", project=context.caller.project, cap=plan.reservation)
    require_money(context.ledger.read(), new, plan.reservation, context.wall())
