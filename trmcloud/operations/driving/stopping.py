"""Stopping a run: it lands, or its pods are ended at once, whether or not the ledger is there."""

from __future__ import annotations

from collections.abc import Callable

from trmcloud.core.control.reason import Reason, ReasonKind, make_reason
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import (
    ConflictError,
    LedgerError,
    NotFoundError,
    StaleEpoch,
    TrmcloudError,
)
from trmcloud.core.values import Value
from trmcloud.operations.context import Context, hurried, run_by_id
from trmcloud.operations.driving.drive import wish_to_stop
from trmcloud.operations.driving.ending import NamedPodEnds, end_run, is_run_id


def request_stop(context: Context, run_id: str, reason: Reason) -> RunState:
    """Ask a run to land, or, with a reason of ``STOP_NOW``, to end without that.

    Raises:
        ConflictError: it has ended already.
    """
    run = run_by_id(context, run_id)
    if not run.live or not wish_to_stop(context, run.run_id, by="user", reason=reason):
        run = run_by_id(context, run_id)
        ended = run.outcome.value if run.outcome else run.state.value
        raise ConflictError(
            f"{run.run_id} has already ended: {ended}", next_step="trmcloud status --all"
        )
    return run_by_id(context, run_id)


def require_no_stop_order(run: RunState, *, at_once: bool) -> None:
    """
    Raises:
        ConflictError: it was told to land, or to end, already; what lands may still be ended.
    """
    told = run.stop
    if run.live and told is not None and (told.at_once or not at_once):
        raise ConflictError(
            f"{run.run_id} was already asked to {'end' if told.at_once else 'land'}",
            next_step=f"trmcloud status {run.run_id}",
        )


def land(context: Context, run_id: str) -> RunState:
    """Tell a run to end its step, save and evaluate; its pod is ended then. It is not waited for.

    Raises:
        ConflictError: it has ended.
    """
    return request_stop(context, run_id, make_reason(ReasonKind.STOP_COMMAND))


def interrupt(context: Context, run_id: str) -> None:
    """Tell a run to land, since its user pressed Ctrl-C.

    Raises:
        ConflictError: it has ended.
    """
    request_stop(context, run_id, make_reason(ReasonKind.INTERRUPTED))


class EndedByName(Value):
    """A run whose pods were ended by their names, since ``error`` kept its end from the ledger."""

    run_id: str
    pods: NamedPodEnds
    error: TrmcloudError

    @property
    def words(self) -> str:
        """What was done, in a line."""
        told = [f"asked {provider} to end {name}" for provider, name in self.pods.asked]
        told += [f"could not end {n} on {provider}: {why}" for provider, n, why in self.pods.failed]
        told += [
            f"{provider} gave no list: {why}" for provider, why in self.pods.listed.unreachable
        ]
        if not self.pods.recorded:
            told.append(f"this is not in the ledger yet: {self.error}")
        return f"{self.run_id}: {'; '.join(told)}"


def end_now(
    context: Context,
    name: str,
    *,
    choose: Callable[[Context], str],
    agrees: Callable[[Context, str, TrmcloudError | None], bool],
    follow: Callable[[Context, str], None],
) -> EndedByName | None:
    """End a run's pods at once: what is not saved is lost. A ledger that cannot be read or written
    is in the way of no end: the owner's run is then known by the id that was named.

    Args:
        choose: returns the id of the run that is meant, by a ledger that keeps nobody waiting.
        agrees: whether that run is to be ended, or, where the ledger failed with the error that it
            is given, all pods of its name.
        follow: called with the run's id once its end is on record.

    Returns:
        None where the ledger has the end, or nobody agreed to it.

    Raises:
        NotFoundError, LedgerError: no run or pod was found. ConflictError: it has ended.
    """
    # Whose run it is, is not known before one is chosen: a principal ends none then.
    named = name if is_run_id(name) and not context.caller.is_bound else ""
    quick, agreed = hurried(context), False
    try:
        named = choose(quick)
        agreed = agrees(quick, named, None)
        if agreed:
            request_stop(quick, named, make_reason(ReasonKind.STOP_NOW))
            follow(quick, named)
        return None
    except StaleEpoch:
        raise
    except (LedgerError, NotFoundError) as error:
        if named:
            if not agreed and not agrees(quick, named, error):
                return None
            ended = end_run(context, named, quick)
            if ended.asked or ended.failed or ended.listed.unreachable:
                return EndedByName(named, ended, error)
        if not named and not context.caller.is_bound and isinstance(error, LedgerError):
            error.next_step = "give the run's id: trmcloud stop --now r-1f3a9c"
        raise
