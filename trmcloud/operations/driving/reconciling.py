"""Runs without a driver, brought up to what is true now: by whatever command is typed next."""

from __future__ import annotations

from trmcloud.core.control import events as ev
from trmcloud.core.control.run_book import present_runs
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.control.waiting import allows_waiting
from trmcloud.core.errors import LedgerError, StaleEpoch
from trmcloud.operations.checkpoints.bucket_grants import (
    delete_oversized,
    oversized_objects,
    pin_tokens,
    sweep_event,
)
from trmcloud.operations.context import Context, is_unasked
from trmcloud.operations.driving import reap
from trmcloud.operations.driving.drive import RunDriver, land_overdrawn
from trmcloud.operations.driving.ending import end_overdue, fold_intents
from trmcloud.operations.driving.observer import final_bills
from trmcloud.operations.run_queries import is_driven, is_rented

_PASS_S = 60.0
"""One list serves a look at all runs, however many: providers count the questions."""


def reconcile(context: Context) -> list[reap.Did]:
    """Bring every run without a driver up to date, and end pods of ours without an owner.

    Every command calls it first, so that a killed controller's money is settled by whatever the
    user types next. Returns each thing that it found and did.

    One run's trouble stops no other, nor the end of pods: it is left in ``context.troubles``.

    Raises:
        LedgerError: it cannot be used; pods that are overdue by their names are ended all the same.
    """
    try:
        return _reconcile(context)
    except StaleEpoch:
        raise
    except LedgerError:
        # What its ledger cannot say of them, the pods' own names do.
        end_overdue(context)
        raise


def _reconcile(context: Context) -> list[reap.Did]:
    said: list[reap.Did] = []
    fold_intents(context)
    land_overdrawn(context)
    context.machines.lists.clear()
    context.troubles.clear()
    for run in present_runs(context.ledger.read().runs):
        run_id = run.run_id
        if is_unasked(context, run):
            continue
        try:
            after = _look_after(context, run)
        except StaleEpoch:
            continue
        except LedgerError:
            raise  # which is all runs' trouble
        except Exception as error:
            context.troubles[run_id] = error
            continue
        if after.state is not run.state:
            outcome = after.outcome.value if after.outcome else after.state.value
            said.append(f"{run_id}: {run.state.value} → {outcome}")
        if after.swept.size_bytes > run.swept.size_bytes:
            size_gb = (after.swept.size_bytes - run.swept.size_bytes) / 1e9
            cost = after.swept.rent - run.swept.rent
            said.append(
                f"{run_id}: its pod uploaded {size_gb:,.1f} GB without a grant: they were deleted "
                f"from {run.bucket}, at most {cost} of storage cost is counted"
            )
    return said + reap.sweep(context, _PASS_S)


def continue_waits(context: Context) -> list[str]:
    """Ask for machines in place of commands that are not there any more, for runs that wait for
    one; stay with what is rented until it trains. Returns a line for each that does.

    One run's trouble stops no other: it is left in ``context.troubles``.

    Raises:
        LedgerError: it cannot be used.
    """
    said = []
    for run in present_runs(context.ledger.read().runs):
        run_id = run.run_id
        if not is_left_waiting(context, run):
            continue
        driver = RunDriver(context, run_id, context.take_over(run_id))

        def done(state: RunState, driver: RunDriver = driver) -> bool:
            has_ended = state.state in (State.ENDING, State.SETTLING)
            return state.trains or has_ended or driver.idle_s(state) > 0.0

        try:
            after = driver.until(done, lambda state: None)
        except StaleEpoch:
            continue
        except LedgerError:
            raise
        except Exception as error:
            context.troubles[run_id] = error
            context.ledger.release(run_id, driver.epoch)
            continue
        if after.live:
            context.ledger.release(run_id, driver.epoch)
        if after.trains:
            said.append(f"{run_id}: it has a machine and trains; trmcloud logs -f {run_id}")
    return said


def is_left_waiting(context: Context, run: RunState) -> bool:
    """Whether the run waits for a machine, or for its files on one, and no process drives it."""
    starts = (State.RESERVED, State.RENTING, State.BOOTING, State.RUNNING)
    if not allows_waiting(run) or run.state not in starts or run.trains:
        return False
    if is_unasked(context, run) or context.files.is_elsewhere(run.run_id):
        return False
    return not is_driven(context, context.ledger.driver(run.run_id))


def _look_after(context: Context, run: RunState) -> RunState:
    """The run once it is brought up to date, if it has no driver."""
    run_id = run.run_id
    if context.files.is_elsewhere(run_id):
        return run
    facts: tuple[ev.RunEvent, ...] = () if run.live else final_bills(context, run)
    beyond = oversized_objects(context, run)
    if beyond is not None:
        facts = (*facts, sweep_event(run, beyond, context.wall()))
        pin_tokens(context, run)
    if not (run.live or facts) or is_driven(context, context.ledger.driver(run_id)):
        return run
    epoch = context.take_over(run_id)
    if facts:
        context.ledger.append(run_id, epoch, facts, context.wall())
    if beyond and delete_oversized(context, run, beyond):
        context.ledger.append(run_id, epoch, [sweep_event(run, (), context.wall())], context.wall())
    looker = RunDriver(context, run_id, epoch, errands=False, list_age_s=_PASS_S)
    try:
        after = looker.step() if run.live else looker.run()
    except LedgerError:
        raise
    except Exception:
        context.ledger.release(run_id, epoch)
        raise
    context.ledger.release(run_id, epoch)
    return after


_POLL_S = 0.5
_POLL_POD_S = 2.0


def look_again(context: Context, run: RunState) -> None:
    """Wait a moment, and bring runs up to date. The driver of a rented run brings its files here;
    where there is none, this process asks the pod itself, over a new connection after each drop."""
    is_left = is_rented(run) and is_driven(context, context.ledger.driver(run.run_id))
    context.clock.sleep(_POLL_S if is_left or not is_rented(run) else _POLL_POD_S)
    if not is_left:
        reconcile(context)
