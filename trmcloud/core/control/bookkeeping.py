"""The rules for writing to a ledger, whatever its storage.

Pure: every ledger asks here, under its own lock, and then stores the records it is given. Money
cannot be reserved past a cap by any way of writing, since each ``Reserved`` is judged here.
"""

from __future__ import annotations

import re
import shlex
from typing import Sequence

from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import (
    LedgerState,
    Refusal,
    admit,
    extend_ledger,
    is_owned,
    with_run_event,
)
from trmcloud.core.control.governance import is_charge_pending
from trmcloud.core.control.ledger_facts import LedgerFacts
from trmcloud.core.control.run_state import IllegalTransition, RunState, State
from trmcloud.core.errors import (
    BudgetRefused,
    ConflictError,
    NotFoundError,
    RunQuarantined,
    StaleEpoch,
    UsageError,
)
from trmcloud.core.money import ZERO, Usd

_MONTH = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])")
_WISHES = (ev.StopRequested, ev.SaveRequested, ev.Fetched)


def add_events(
    ledger: LedgerState,
    last_seq: int,
    run_id: str,
    epoch: int,
    events: Sequence[ev.RunEvent],
    at: float,
) -> tuple[LedgerState, tuple[ev.Record, ...]]:
    """The state after ``events`` of one run, and the records to be stored: all or none.

    Raises:
        IllegalTransition: an event that cannot happen.
        BudgetRefused: a reservation that a level has no money for.
    """
    records: list[ev.Record] = []
    run = ledger.runs.get(run_id) or RunState(run_id)
    for event in events:
        record = ev.Record(last_seq + len(records) + 1, run_id, epoch, at, event)
        moved = with_run_event(ledger, record)
        if isinstance(event, ev.Reserved):
            _require_money(ledger, run, event.amount, at)
        ledger, run = moved, moved.runs[run_id]
        records.append(record)
    return ledger, tuple(records)


def add_cap(
    ledger: LedgerState, last_seq: int, event: ev.CapSet, at: float
) -> tuple[LedgerState, ev.Record]:
    """
    Raises:
        UsageError: an unknown level, a key that names no budget, or a cap below zero.
    """
    if event.level == "run":
        raise UsageError(
            "a run's cap is not set by itself",
            next_step="give --budget to trmcloud launch or trmcloud resume",
        )
    if event.level not in ("account", "month", "project"):
        raise UsageError(
            f"{event.level!r} is no budget level", next_step="use account, month or project"
        )
    if event.level == "account" and event.key:
        raise UsageError(
            f"there is one account, {event.key!r} names none", next_step="leave the name away"
        )
    if event.level == "month" and event.key and not _MONTH.fullmatch(event.key):
        raise UsageError(f"{event.key!r} is no month", next_step="write it as 2026-11")
    if event.level == "project" and not event.key:
        raise UsageError("a project's cap needs the project's name")
    if event.cap is not None and event.cap < ZERO:
        raise UsageError(
            f"a cap of {event.cap} is below zero", next_step="use 0 to stop all spending"
        )
    record = ev.Record(last_seq + 1, "", 0, at, event)
    return extend_ledger(ledger, (record,)), record


def add_verified(
    ledger: LedgerState, last_seq: int, event: ev.LayerVerified, at: float
) -> tuple[LedgerState, ev.Record]:
    """
    Raises:
        UsageError: the provider has no such kill layer.
    """
    layers = traits_of(event.provider).independent_layers
    if event.layer not in layers:
        raise UsageError(
            f"{event.provider} has no kill layer {event.layer!r}",
            next_step=f"one of: {', '.join(layers) or 'none'}",
        )
    record = ev.Record(last_seq + 1, "", 0, at, event)
    return extend_ledger(ledger, (record,)), record


def add_note(
    ledger: LedgerState, last_seq: int, event: ev.Note | ev.LedgerRestored, at: float
) -> tuple[LedgerState, ev.Record]:
    """
    Raises:
        IllegalTransition: somebody else has noted it already, or a run owns what was a stray.
    """
    if isinstance(event, ev.StrayCharged) and is_owned(ledger.runs, event.pod_id):
        raise IllegalTransition(f"{event.pod_id} is a run's own by now")
    record = ev.Record(last_seq + 1, "", 0, at, event)
    return extend_ledger(ledger, (record,)), record


def require_new(ledger: LedgerState, run_id: str) -> None:
    require_whole(ledger, run_id)
    if run_id in ledger.runs:
        raise ConflictError(
            f"run {run_id} exists already", next_step=f"see it with: trmcloud status {run_id}"
        )


def require_run(ledger: LedgerState, run_id: str) -> RunState:
    require_whole(ledger, run_id)
    run = ledger.runs.get(run_id)
    if run is None:
        raise NotFoundError(
            f"the ledger knows no run {run_id}", next_step="list the runs with: trmcloud status"
        )
    return run


def require_whole(ledger: LedgerFacts, run_id: str) -> None:
    """
    Raises:
        RunQuarantined: the run has damaged records: nothing is written to it.
    """
    hurt = ledger.quarantined.get(run_id)
    if hurt is not None:
        raise RunQuarantined(
            f"run {run_id} is in quarantine: {hurt.words}",
            next_step="put its records back from a backup: trmcloud ledger restore; or say what it"
            f" cost: trmcloud ledger settle {run_id} USD",
        )


def require_closed(ledger: LedgerState, run_id: str) -> RunState:
    run = require_run(ledger, run_id)
    if run.state is not State.CLOSED:
        raise ConflictError(
            f"run {run_id} has not ended: it is {run.state.value}",
            next_step=f"end it first with: trmcloud stop {run_id}",
        )
    return run


def require_epoch(run_id: str, epoch: int, newest: int) -> None:
    """
    Raises:
        StaleEpoch: ``epoch`` is not the run's newest.
    """
    if epoch != newest:
        raise StaleEpoch(
            f"another controller has taken over run {run_id}: epoch {epoch} is not {newest}",
            next_step=f"see who drives it with: trmcloud status {run_id}",
        )


def require_wish(event: ev.RunEvent) -> None:
    """Only a wish may be written by somebody who does not drive the run."""
    if not isinstance(event, _WISHES):
        raise IllegalTransition(f"{type(event).__name__} is for the run's driver alone")


def _require_money(ledger: LedgerState, run: RunState, amount: Usd, at: float) -> None:
    if amount < ZERO:
        raise UsageError(f"a reservation of {amount} is below zero")
    for hurt in ledger.quarantined.values():
        if hurt.is_open:
            raise BudgetRefused(
                f"what run {hurt.run_id} cost is not known: {hurt.words}",
                next_step="trmcloud ledger restore, or say what it cost: trmcloud ledger settle"
                f" {hurt.run_id} USD",
            )
    for lost in ledger.unread:
        is_cap = lost.kind == "CapSet"
        what = "which set a cap" if is_cap else "of the whole ledger"
        raise BudgetRefused(
            f"record {lost.seq}, {what}, is damaged: what may be spent is not known",
            next_step="trmcloud ledger restore, or see trmcloud budget show and set the cap that"
            " is missing again"
            if is_cap
            else f"trmcloud ledger restore, or trmcloud ledger settle {lost.name} USD",
        )
    if is_charge_pending(ledger):
        raise BudgetRefused(
            "the ledger was restored from a backup: what its pods have cost since is not known yet",
            next_step="trmcloud reap --yes, until it says that the ledger is reconciled",
        )
    refusal = admit(ledger, run, amount, at)
    if refusal is not None:
        raise BudgetRefused(str(refusal), next_step=_raise_hint(refusal))


def _raise_hint(refusal: Refusal) -> str:
    line = refusal.line
    need = (line.settled + line.reserved + refusal.asked).plain()
    if line.level == "run":
        return f"give it a larger budget: --budget {need}"
    if line.level == "project":
        return f"trmcloud budget raise project {need} --for {shlex.quote(line.key)}"
    return f"trmcloud budget raise {line.level} {need}"
