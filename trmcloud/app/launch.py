"""Launch and resume: from a Plan to a reserved, driven run."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from trmcloud.app import smoke_plan
from trmcloud.app.drive import RunDriver, is_driven, reconcile, wish_to_stop
from trmcloud.app.jobs import LaunchData, write_launch_note
from trmcloud.app.layers import verified_layers
from trmcloud.app.needs import check_needs
from trmcloud.app.out_of_reach import require_reach
from trmcloud.app.world import World, bucket_at, find_run
from trmcloud.core import events as ev
from trmcloud.core.errors import (
    BudgetRefused,
    ConflictError,
    DoesNotFit,
    NotSupported,
    UsageError,
)
from trmcloud.core.exposure import why_not_exposed
from trmcloud.core.hardware import LOCAL
from trmcloud.core.memory import checkpoint_bytes
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.outcome import Outcome
from trmcloud.core.plan import Candidate, Plan, plan_to_json
from trmcloud.core.planning import untrained
from trmcloud.core.providers import BY_SKYPILOT, RUNPOD_BY_SKYPILOT, traits_of
from trmcloud.core.recipe import Recipe
from trmcloud.core.run_state import RunState
from trmcloud.core.spec import RunSpec
from trmcloud.ports.compute import Account

_DISK_MARGIN_BYTES = 64 << 20
_TRAINED = "--recipe trm or trm-tiny; --dry-run shows this plan"


def first_candidate(plan: Plan) -> Candidate:
    """The candidate that will be tried first.

    Raises:
        DoesNotFit: the plan has nothing to launch.
    """
    candidate = plan.recommended
    if candidate is None:
        raise DoesNotFit(
            "nothing in this plan can be launched",
            next_step="trmcloud plan, with more budget or other hardware",
        )
    return candidate


def check_launchable(world: World, plan: Plan) -> None:
    """
    Raises:
        DoesNotFit: the plan has nothing to launch.
        NotSupported: its provider cannot be rented from yet, or its recipe not be trained.
    """
    candidate = first_candidate(plan)
    if not plan.launchable:
        raise NotSupported(untrained(plan.spec.recipe), next_step=_TRAINED)
    if plan.spec.volume and candidate.provider in BY_SKYPILOT:
        raise NotSupported(
            f"{candidate.provider} has no network volumes that this version rents",
            next_step="leave --volume out, or rent at RunPod",
        )
    if candidate.spot and candidate.provider not in BY_SKYPILOT:
        raise NotSupported(
            f"spot machines of {candidate.provider} are not rented by this version",
            next_step="leave --spot out, or name a cloud: --provider aws",
        )
    if candidate.provider not in world.computes:
        raise NotSupported(
            f"renting {candidate.hardware} at {candidate.provider} is not built yet: "
            "this version plans clouds and launches local",
            next_step="trmcloud launch local --rate USD --budget USD, or --dry-run to see the plan",
        )


def check_machine(world: World, plan: Plan) -> None:
    """
    Raises:
        MissingTool: this machine could not reach a pod of the plan's.
    """
    for provider in sorted({plan.candidate(name).provider for name in plan.launchable}):
        check_needs(world, provider)


def check_trainer(recipe: Recipe) -> None:
    """Before anything else is asked of the user: no data, budget or account would help.

    Raises:
        NotSupported: the recipe can be planned alone.
    """
    if not recipe.has_trainer:
        raise NotSupported(untrained(recipe.name), next_step=_TRAINED)


def check_disk(home: Path, plan: Plan) -> None:
    """
    Raises:
        DoesNotFit: the disk has no room for the checkpoints that the plan keeps.
    """
    candidate = first_candidate(plan)
    needed = _DISK_MARGIN_BYTES
    for phase in candidate.phases:
        # keep_best best, the latest, and the one being written
        needed += checkpoint_bytes(phase.settings) * (phase.settings.keep_best + 2)
    existing = next(folder for folder in (home, *home.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise DoesNotFit(
            f"checkpoints need {needed / 1e9:.2f} GB and the disk has {free / 1e9:.2f} GB free",
            where=str(home),
            next_step="free some, or set TRMCLOUD_HOME to a larger disk",
        )


def check_capped(world: World, plan: Plan, *, confirmed: bool) -> None:
    """With nobody asked and no cap anywhere there is no promise to keep.

    Raises:
        BudgetRefused
    """
    if confirmed or plan.spec.budget is not None:
        return
    if not plan.reservation and first_candidate(plan).rate == ZERO:
        return
    if world.ledger.read().has_cap(world.project, world.wall()):
        return
    raise BudgetRefused(
        "-y with no budget anywhere would spend without a limit you named",
        next_step="--budget USD, or trmcloud budget set month USD",
    )


def check_loss(plan: Plan, *, detached: bool, accepted: bool) -> None:
    """
    Raises:
        UsageError: nobody would be there to pull what only a pull saves.
    """
    rented = first_candidate(plan).provider != LOCAL
    kept = plan.spec.volume or plan.spec.pod_uploads
    if rented and detached and not kept and not accepted:
        raise UsageError(
            "left alone, this run's checkpoints end with its pod: nobody would pull them",
            next_step="--bucket s3://… or --volume keeps them; --accept-loss accepts their loss",
        )


def check_bucket(world: World, spec: RunSpec) -> None:
    """
    Raises:
        AuthError, NotFoundError, ProviderError: the bucket that is named cannot be written, read
            and deleted in.
    """
    if spec.bucket:
        bucket_at(world, spec.bucket).check()


def check_exposure(world: World, plan: Plan, accepted: Usd | None) -> None:
    """
    Raises:
        BudgetRefused: a rented pod could outlive everything that would end it, or be billed above
            its rate, and neither two verified kill layers nor the user's word covers that.
    """
    now = world.wall()
    rates: dict[str, Usd] = {}
    for candidate in (plan.candidate(name) for name in plan.launchable):
        known = rates.get(candidate.provider, ZERO)
        rates[candidate.provider] = max(known, candidate.reserved_rate)
    for provider, rate in rates.items():
        verified = verified_layers(world, provider)
        why = why_not_exposed(traits_of(provider), verified, rate, accepted, now)
        if why:
            accept = f"--accept-exposure {max(rates.values()).plain()}"
            smoke = f"trmcloud smoke --provider {provider} --max-usd 0.25 verifies them; or "
            if provider in BY_SKYPILOT:
                smoke = ""
            raise BudgetRefused(why, next_step=f"{smoke}{accept}")


def check_account_key(plan: Plan, *, allowed: bool) -> None:
    """
    Raises:
        UsageError: whoever gets at the pod would get at the whole account, and nobody said so.
    """
    providers = {plan.candidate(name).provider for name in plan.launchable}
    if RUNPOD_BY_SKYPILOT in providers and not allowed:
        raise UsageError(
            "SkyPilot copies the RunPod account's own key to every pod it makes there",
            next_step="leave --via out to rent from RunPod without; or --allow-account-key-on-pod",
        )


def check_account(world: World, plan: Plan) -> None:
    """
    Raises:
        ProviderError: the plan's first provider would rent none of it to this account now.
    """
    provider = first_candidate(plan).provider
    launchable = [plan.candidate(name) for name in plan.launchable]
    rate = min(c.rate for c in launchable if c.provider == provider)
    _require_account(world, provider, rate)


def _require_account(world: World, provider: str, rate: Usd) -> None:
    compute = world.computes.get(provider)
    if isinstance(compute, Account):
        compute.require_account(rate)


def as_carried_out(world: World, plan: Plan) -> Plan:
    """The plan with those candidates alone that its launch would try, one after the other.

    Raises:
        DoesNotFit: the plan has nothing to launch.
    """
    first = first_candidate(plan).provider
    names = [name for name in plan.launchable if _may_follow(world, plan, name, first)]
    return replace(plan, launchable=tuple(names))


def start(
    world: World,
    plan: Plan,
    *,
    data: LaunchData,
    initial_weights: str = "",
    detached: bool = False,
) -> RunDriver:
    """Reserve the plan's worst case and become the run's driver. Nothing is rented yet.

    Raises:
        BudgetRefused: some level lacks the money.
        ProviderError: the provider's account does not allow it, or cannot be asked.
    """
    reconcile(world)
    check_launchable(world, plan)
    check_machine(world, plan)
    check_account(world, plan)
    run_id = _new_run_id(world)
    write_launch_note(world.home, run_id, data=data, initial_weights=initial_weights)
    plan = as_carried_out(world, plan)
    planned = ev.RunPlanned(
        plan=plan_to_json(plan),
        cap=plan.cap or ZERO,
        project=world.project,
        detached=detached,
    )
    try:
        epoch = world.ledger.open_run(run_id, planned, plan.reservation, world.who, world.wall())
    except BaseException:
        shutil.rmtree(world.home / "runs" / run_id, ignore_errors=True)
        raise
    return RunDriver(world, run_id, epoch)


def resume(world: World, run_id: str | None, *, cap: Usd | None) -> RunDriver:
    """Go on with a run: take a live one over if nobody drives it, reopen a closed one.

    Raises:
        ConflictError: it is being driven, or there is nothing left to do.
        BudgetRefused: its budget is spent.
    """
    reconcile(world)
    run = find_run(world, run_id)
    if run.live:
        if run.generation is not None:
            require_reach(world, run.generation.provider)
        if is_driven(world, world.ledger.driver(run.run_id)):
            raise ConflictError(
                f"{run.run_id} is running already",
                next_step=f"trmcloud status, or trmcloud logs -f {run.run_id}",
            )
        epoch = world.ledger.take_over(run.run_id, world.who, world.wall())
        return RunDriver(world, run.run_id, epoch)
    if run.outcome is Outcome.FINISHED:
        raise ConflictError(
            f"{run.run_id} has finished: there is nothing to resume",
            next_step="launch a new run; --from starts it from these weights",
        )
    if run.plan.get("recipe") == smoke_plan.RECIPE:
        raise ConflictError(
            f"{run.run_id} was a smoke run: there is nothing in it to go on with",
            next_step="trmcloud smoke --provider runpod --max-usd 0.25",
        )
    if run.outcome is Outcome.GATE_FAILED:
        raise ConflictError(
            f"the gate after {run.run_id}'s fast phase failed",
            next_step=f"trmcloud gate {run.run_id}; to go on all the same: "
            f"trmcloud launch HARDWARE --phase extreme --from {run.run_id}",
        )
    whole = run.cap if cap is None else cap
    line = replace(world.ledger.read().line("run", run.run_id), cap=whole)
    left = line.remaining or ZERO
    rate = _rate_of(run)
    if whole < run.cap:
        raise UsageError(
            f"{whole} is below the run's budget of {run.cap}",
            next_step="--budget names the whole run's budget, spent part included",
        )
    if rate and left <= ZERO:
        raise BudgetRefused(
            f"{run.run_id} has spent {line.settled + line.reserved} of {run.cap}",
            next_step=f"trmcloud resume {run.run_id} --budget USD (for the whole run)",
        )
    if run.generation is not None:
        check_needs(world, run.generation.provider)
        _require_account(world, run.generation.provider, rate)
    amount = left if rate else ZERO
    epoch = world.ledger.reopen_run(run.run_id, whole, amount, world.who, world.wall())
    return RunDriver(world, run.run_id, epoch)


def request_stop(world: World, run_id: str | None, reason: str) -> RunState:
    """Ask a run to land.

    Raises:
        ConflictError: it has ended already.
    """
    run = find_run(world, run_id)
    if not run.live or not wish_to_stop(world, run.run_id, by="user", reason=reason):
        run = find_run(world, run.run_id)
        ended = run.outcome.value if run.outcome else run.state.value
        raise ConflictError(
            f"{run.run_id} has ended already: {ended}", next_step="trmcloud status --all"
        )
    return find_run(world, run.run_id)


def follow_or_drive(
    world: World,
    run_id: str,
    done: Callable[[RunState], bool],
    watch: Callable[[RunState], None],
) -> RunState:
    """Until ``done``: drive the run where nobody does, else look on while another process does."""
    while True:
        if not is_driven(world, world.ledger.driver(run_id)):
            epoch = world.ledger.take_over(run_id, world.who, world.wall())
            driver = RunDriver(world, run_id, epoch)
            run = driver.until(done, watch)
            world.ledger.release(run_id, epoch)
            return run
        run = find_run(world, run_id)
        watch(run)
        if done(run) or not run.live:
            return run
        world.clock.sleep(0.5)


def _may_follow(world: World, plan: Plan, name: str, first: str) -> bool:
    """Whether a candidate may be tried where those before it are sold out. Accounts at clouds of
    SkyPilot's are taken for there only where the user named them."""
    provider = plan.candidate(name).provider
    named = provider == first or provider in plan.spec.providers
    return provider in world.computes and (named or provider not in BY_SKYPILOT)


def _rate_of(run: RunState) -> Usd:
    if run.generation is not None:
        return run.generation.rate
    return ZERO


def _new_run_id(world: World) -> str:
    known = world.ledger.read().runs
    while True:
        run_id = f"r-{secrets.token_hex(3)}"
        if run_id not in known:
            return run_id
