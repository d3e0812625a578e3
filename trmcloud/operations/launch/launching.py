"""Launch and resume: from a Plan to a reserved, driven run."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.contract.command_resuming import checkpoints_to_put_back
from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.contract.pod_contract import HOURS
from trmcloud.core.control import events as ev
from trmcloud.core.control.balance import require_funds, require_known
from trmcloud.core.control.bookkeeping import require_run
from trmcloud.core.control.controller import foreseen_end
from trmcloud.core.control.renting import TimeLeft, next_candidate, time_left
from trmcloud.core.control.run_state import RunState, State, apply_event
from trmcloud.core.durations import duration
from trmcloud.core.errors import (
    BudgetRefused,
    ConflictError,
    DoesNotFit,
    Outcome,
    StaleEpoch,
    UsageError,
)
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.spec.boots import boot_budget
from trmcloud.core.spec.plan import Candidate, Plan, plan_to_json
from trmcloud.core.spec.spec import IGNORE
from trmcloud.core.values import Value, replace
from trmcloud.operations.context import Context, run_by_id
from trmcloud.operations.driving.balances import AT_LAUNCH_S, read_funds
from trmcloud.operations.driving.drive import RunDriver, append_events
from trmcloud.operations.driving.reconciling import reconcile
from trmcloud.operations.launch.steering import changed_settings, known_checkpoints
from trmcloud.operations.plans.launch_checks import (
    check_account,
    check_bucket,
    check_machine,
    check_needs,
    first_candidate,
    keep_launchable,
    require_account,
    require_own_machine,
)
from trmcloud.operations.pod_request import LaunchData, write_launch_note
from trmcloud.operations.run_queries import is_driven
from trmcloud.operations.runs.conditions import SMOKE
from trmcloud.operations.sending.data import need_training_extra
from trmcloud.options import require_fitting_policy


def start(
    context: Context,
    plan: Plan,
    *,
    data: LaunchData,
    initial_weights: str = "",
    detached: bool = False,
    run_id: str = "",
    name: str = "",
    tags: tuple[tuple[str, str], ...] = (),
    key: str = "",
    request: str = "",
) -> RunDriver:
    """Reserve the worst case of a plan that was checked, and become the run's driver. Nothing is
    rented yet. ``run_id``: a new one is drawn where it is empty. ``key`` is an idempotency key, and
    ``request`` the hash of the launch's arguments: see ``labels``.

    Raises:
        KeyUsed: there is a run of that key. ConflictError: a live run has that name.
        DoesNotFit: the plan has nothing to launch.
        BudgetRefused: some level lacks the money.
        ProviderError: the provider's account does not allow it any more, or cannot be asked.
    """
    reconcile(context)
    # Both may have changed while data was made ready and the user thought it over.
    plan = keep_launchable(context, plan)
    check_machine(context, plan)
    check_account(context, plan)
    run_id = run_id or _new_run_id(context)
    write_launch_note(context, run_id, data=data, initial_weights=initial_weights)
    planned = ev.RunPlanned(
        plan=plan_to_json(plan),
        cap=plan.cap or ZERO,
        project=context.caller.project,
        detached=detached,
        name=name,
        tags=tags,
        key=key,
        request=request,
        principal=context.caller.principal,
    )
    try:
        epoch = context.ledger.open_run(
            run_id, planned, plan.reservation, context.caller.controller, context.wall()
        )
    except Exception:
        # Not where it is killed or interrupted right here: it may have been opened.
        context.notes.drop_launch(run_id)
        raise
    if plan.spec.wait_s:
        wait_from_now(context, plan, run_id, epoch, plan.spec.wait_s, plan.spec.max_rate)
    return RunDriver(context, run_id, epoch)


def wait_from_now(
    context: Context, plan: Plan, run_id: str, epoch: int, wait_s: float, most_rate: Usd | None
) -> None:
    """Put on record that the run waits where no machine can be had, and for how long."""
    tried = [plan.candidate(name) for name in plan.launchable]
    budget = boot_budget(tried, run_by_id(context, run_id).reserved, most_rate)
    wait = ev.WaitStarted(context.wall() + wait_s, budget, most_rate)
    append_events(context, run_id, epoch, wait)


class Continuation(Value):
    """A resume that was checked; nothing has changed yet.

    ``after`` is the run as it would be reopened, with ``reopened`` and its reservation.
    ``begins_at``: the checkpoint that a command continues from.
    """

    after: RunState
    reopened: ev.Reopened
    candidate: Candidate
    time: TimeLeft
    begins_at: CheckpointManifest | None = None
    wait_s: float = 0.0
    most_rate: Usd | None = None

    @property
    def starts_again(self) -> bool:
        """Whether a command begins at its beginning, since nothing says how it would continue, or
        nothing is known that it could continue from."""
        spec = self.after.spec
        if spec.command is None or spec.sweep is not None:
            return False
        return not spec.command.resume or (self.begins_at is None and not spec.volume)


def resume(
    context: Context,
    run: RunState,
    *,
    uses_machine: bool = True,
    agrees: Callable[[Continuation], bool] = lambda _: True,
    **asked: Any,
) -> RunDriver | None:
    """Continue a run: take a live one over if it has no driver, reopen a closed one.

    Args:
        uses_machine: see ``require_own_machine``.
        agrees: whether a closed run is to be reopened so.
        asked: the arguments of ``check_resume``.

    Returns:
        The run's driver; None where it was not agreed to.

    Raises:
        NotSupported, MissingExtra, AuthError, NotFoundError, ProviderError: nothing could train
            here, or checkpoints not be kept. Others as in ``check_resume``.
    """
    plan = run.plan
    require_own_machine(plan, uses_machine=uses_machine)
    if first_candidate(plan).provider == LOCAL and plan.spec.command is None:
        need_training_extra()
    check_bucket(context, plan.spec)
    checked = check_resume(context, run.run_id, **asked)
    if isinstance(checked, Continuation) and not agrees(checked):
        return None
    return carry_on(context, checked)


def carry_on(context: Context, checked: RunState | Continuation) -> RunDriver:
    """Do what ``check_resume`` has allowed.

    Raises:
        ConflictError, KeyUsed, BudgetRefused: what it found has changed since.
    """
    if isinstance(checked, RunState):
        epoch = context.take_over(checked.run_id)
        return RunDriver(context, checked.run_id, epoch)
    run, amount = checked.after, checked.after.reserved
    epoch = context.ledger.reopen_run(
        run.run_id, checked.reopened, amount, context.caller.controller, context.wall()
    )
    if checked.wait_s:
        wait_from_now(context, run.plan, run.run_id, epoch, checked.wait_s, checked.most_rate)
    return RunDriver(context, run.run_id, epoch)


def check_resume(
    context: Context,
    run_id: str,
    *,
    cap: Usd | None,
    settings: Sequence[tuple[str, Any]] = (),
    accept_change: bool = False,
    processes: int = 0,
    balance: str = "",
    fit_balance: bool = False,
    wait_s: float = 0.0,
    most_rate: Usd | None = None,
    key: str = "",
    request: str = "",
) -> RunState | Continuation:
    """Check that a run can be resumed, and return what would follow: a live run without a driver,
    or how a closed one would be reopened. The run and its outcome stay as they are.

    Args:
        cap: the whole run's budget from now on; None: as it is.
        settings: what takes the place of its plan's, by key.
        accept_change: though some of that decides what is trained.
        processes: so many from now on, on this machine; 0: as many as before.
        balance: what follows where the provider's balance will not last; empty: as before.
        fit_balance: reserve no more than what that balance leaves free.
        wait_s: for so long it asks again where no machine can be had; 0: each candidate once.
        most_rate: USD/h that the machine is billed at most at; it goes with ``wait_s``.
        key, request: as in ``start``; recorded where the run is reopened.

    Raises:
        ConflictError: it is being driven, or there is nothing left to do. KeyUsed: the key was.
        BudgetRefused: its budget is spent, or too little of it is left to train and save.
        PaymentRequired: the provider's balance does not cover what would be reserved.
        UsageError, CheckpointError, DoesNotFit: see ``changed_settings``; or its hours are used.
    """
    if most_rate is not None and not wait_s:
        raise UsageError(
            "--max-price needs --wait-for: without it the reservation limits the price",
            next_step="--wait-for 6h",
        )
    require_fitting_policy(balance, fits=fit_balance)
    reconcile(context)
    ledger = context.ledger.read()  # once: another command may reopen the run between two readings
    run = require_run(ledger, run_id)
    if run.live:
        if run.generation is not None:
            context.machines.require_reach(run.generation.provider)
        if settings or accept_change or processes or balance or fit_balance or wait_s:
            raise UsageError(
                f"{run.run_id} has not ended: its settings cannot be changed",
                next_step=f"trmcloud stop {run.run_id}, then resume it with other settings",
            )
        if is_driven(context, context.ledger.driver(run.run_id)):
            raise ConflictError(
                f"{run.run_id} is running already",
                next_step=f"trmcloud status, or trmcloud logs -f {run.run_id}",
            )
        return run
    if run.spec.recipe == SMOKE:
        raise ConflictError(
            f"{run.run_id} was a smoke run: there is nothing to resume",
            next_step="trmcloud smoke --provider runpod --max-usd 0.25",
        )
    if run.spec.sweep is not None and run.spec.nodes > 1:  # of an earlier version
        raise ConflictError(
            f"{run.run_id} was a sweep on {run.spec.nodes} machines, and a sweep runs on one now",
            next_step=f"trmcloud fetch-best {run.run_id}; trmcloud report {run.run_id}",
        )
    if run.outcome is Outcome.GATE_FAILED:
        raise ConflictError(
            f"the gate after the fast phase of {run.run_id} failed",
            next_step=f"trmcloud status {run.run_id}; to continue anyway: trmcloud launch HARDWARE "
            f"--phase extreme --from {run.run_id}",
        )

    changed = changed_settings(context, run, settings, accept=accept_change, processes=processes)
    whole = run.cap if cap is None else cap
    line = replace(ledger.line("run", run.run_id), cap=whole)
    left = line.remaining or ZERO
    rate = run.generation.rate if run.generation is not None else first_candidate(run.plan).rate
    if whole < run.cap:
        raise UsageError(
            f"{whole} is less than the run's budget of {run.cap}",
            next_step="--budget is the budget of the whole run, the spent part included",
        )
    spent = line.settled + line.reserved
    if rate and left <= ZERO:
        raise BudgetRefused(
            f"{run.run_id} has spent {spent} of {run.cap}",
            next_step=f"trmcloud resume {run.run_id} --budget USD (for the whole run)",
        )
    if run.generation is not None:
        check_needs(context, run.generation.provider)
        require_account(context, run.generation.provider, rate)
    amount, policy = left if rate else ZERO, balance or run.balance_policy
    if rate and run.generation is not None and (policy != IGNORE or fit_balance):
        provider = run.generation.provider
        funds, why = read_funds(context, provider, AT_LAUNCH_S, but=run.run_id)
        if fit_balance:
            funds = require_known(funds, provider, why)
            amount = min(amount, max(funds.fitting, ZERO))
        if funds is not None:
            fits = "" if fit_balance else "--fit-balance reserves only the free balance"
            require_funds(funds, max(amount, rate), fits)  # an hour is the least
    reopened = ev.Reopened(
        whole,
        settings=changed.settings,
        accepted=changed.accepted,
        processes=changed.processes,
        balance="" if policy == run.spec.balance else policy,
        key=key,
        request=request,
        principal=context.caller.principal,
    )
    after, now = run, context.wall()
    for event in (reopened, ev.Reserved(amount)):
        after = apply_event(after, ev.Record(0, run.run_id, run.epoch, now, event))
    candidate = next_candidate(after, after.plan) or first_candidate(after.plan)
    time = time_left(after, after.plan, candidate, traits_of(candidate.provider), now)
    _require_time(run, candidate, time, spent)
    begins_at = None
    if run.spec.command is not None and run.spec.command.resume and run.spec.sweep is None:
        begins_at = next(iter(checkpoints_to_put_back(known_checkpoints(context, run))), None)
    return Continuation(after, reopened, candidate, time, begins_at, wait_s, most_rate)


def _require_time(run: RunState, candidate: Candidate, time: TimeLeft, spent: Usd) -> None:
    """
    Raises:
        BudgetRefused: the rest of the budget ends before a step could be trained and saved.
        DoesNotFit: the run's hours do.
    """
    if time.is_enough:
        return
    needs = f"start-up, a step and a save need {duration(time.needs_s)} on {candidate.hardware}"
    if time.by == HOURS:
        raise DoesNotFit(
            f"{run.run_id} has used its {run.spec.hours:g} h: {needs}",
            next_step=f"trmcloud fetch-best {run.run_id}; or another run, with more --hours",
        )
    cents = -(-(spent + time.least).micros // 10_000)
    raise BudgetRefused(
        f"too little of {run.run_id}'s budget is left: {needs}, which cost {time.least}",
        next_step=f"trmcloud resume {run.run_id} --budget {cents / 100:.2f}",
    )


def follow_or_drive(
    context: Context,
    run_id: str,
    done: Callable[[RunState], bool],
    watch: Callable[[RunState], None],
) -> RunState:
    """Until ``done``: drive the run where no process does, else watch while another one does."""
    while True:
        if not is_driven(context, context.ledger.driver(run_id)):
            epoch = context.take_over(run_id)
            driver = RunDriver(context, run_id, epoch)
            try:
                run = driver.until(done, watch)
            except StaleEpoch:
                continue  # another command has taken it over
            context.ledger.release(run_id, epoch)
            return run
        run = run_by_id(context, run_id)
        watch(run)
        if done(run) or not run.live:
            return run
        context.clock.sleep(0.5)


class OnlyBillPending:
    """A condition that a run is over except for its bill: it is closed, or its pod is proven gone
    and only the provider's bill is late."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settling_at: float | None = None
        self.reached = False

    def __call__(self, run: RunState) -> bool:
        if not run.live:
            self.reached = True
        elif run.state is not State.SETTLING:
            self._settling_at = None
        else:
            now = self._context.wall()
            if self._settling_at is None:
                self._settling_at = now
            generation = run.generation
            # This machine's bill is there at once, a provider's may lag by an hour.
            self.reached = (
                generation is not None
                and now - self._settling_at >= traits_of(generation.provider).bill_wait_s
                and foreseen_closing(run) is not None
            )
        return self.reached

    def or_begun(self, run: RunState) -> bool:
        """Whether it is over, or trains by itself."""
        return self(run) or has_begun(run)


def found_no_machine(run: RunState) -> bool:
    """Whether a machine was asked for where none was free."""
    kinds = [action.failed_kind for action in run.actions.values()]
    return ev.FailureKind.NO_CAPACITY in kinds


def has_begun(run: RunState) -> bool:
    """Whether the run trains by itself, or has ended."""
    return run.trains or run.state is State.ENDING or not run.live


def foreseen_closing(run: RunState) -> ev.Closed | None:
    """Return the closing event of a run that only waits for its bill; None where more is open."""
    generation = run.generation
    if generation is None or run.state is not State.SETTLING:
        return None
    return foreseen_end(run, run.plan, traits_of(generation.provider))


def _new_run_id(context: Context) -> str:
    known = context.ledger.read().runs
    while True:
        run_id = f"r-{secrets.token_hex(3)}"
        if run_id not in known:
            return run_id
