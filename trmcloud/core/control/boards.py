"""Comparison of the board that a machine has with the one that was planned. Pure.

A slower board is accepted where the work is done on it within the time that was reserved, by the
worst ratio of the two boards; else the machine is ended before it trains and the next candidate is
tried under the same reservation. A faster board, or one that is not known, is put on record alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trmcloud.core.catalog.hardware import GPUS, on_other_board, slowdown
from trmcloud.core.contract.boards import BOARD_NOTE, NVL, PCIE, board_from, is_worse
from trmcloud.core.contract.pod_contract import AgentReport
from trmcloud.core.control import events as ev
from trmcloud.core.control.reason import Reason, ReasonKind, make_reason
from trmcloud.core.control.run_state import Generation, RunState
from trmcloud.core.errors import Outcome
from trmcloud.core.spec.plan import Candidate, PhasePlan, Plan
from trmcloud.core.spec.spec import RunSpec


def planned_form(candidate: Candidate) -> str:
    """Return the form factor that was planned with; '' of a GPU that is not in the table."""
    gpu = GPUS.get(candidate.sku)
    return gpu.form if gpu is not None else ""


def slower_boards(
    candidate: Candidate, spec: RunSpec, phases: Sequence[PhasePlan], train_s: float
) -> Mapping[str, float]:
    """Return the slower form factors on which ``phases`` are done within ``train_s`` seconds, with
    their slowdown.

    None where the length of the work follows from the money (it would buy less of it), is not
    known, or was not expected to fit.
    """
    planned = GPUS.get(candidate.sku)
    if planned is None or spec.fills or spec.is_open_ended or not candidate.within_budget:
        return {}
    available_s = train_s - candidate.startup_s.p90
    needed_s = sum(phase.seconds.p90 for phase in phases)
    found: dict[str, float] = {}
    for form in (PCIE, NVL):
        other = on_other_board(candidate.sku, form)
        if other is None or not is_worse(form, planned.form):
            continue
        ratio = slowdown(planned, other, candidate.gpus)
        if needed_s * ratio <= available_s:
            found[form] = ratio
    return found


def board_events(
    run: RunState,
    plan: Plan,
    generation: Generation,
    phases: Sequence[PhasePlan],
    report: AgentReport,
) -> tuple[ev.BoardFound | ev.ResultKnown, ...]:
    """Return the events that follow from what a machine said of its board: none where that is the
    planned one, is on record, or where the machine said nothing. ``phases`` are those that it is to
    train."""
    seen = board_from(report.notes.get(BOARD_NOTE, ""))
    if seen is None or not phases or run.errand is not None:
        return ()
    candidate = plan.candidate(generation.candidate_id)
    planned = planned_form(candidate)
    if not planned:
        return ()
    board = seen.board
    if board.form == planned or generation.board is not None or run.result is not None:
        return ()
    named, found = _name(candidate, planned), board.text
    train_s = generation.soft_stop_at - generation.intended_at
    slower = slower_boards(candidate, plan.spec, phases, train_s)
    began = any(phase.attempts for phase in report.phases)
    if is_worse(board.form, planned):
        if board.form not in slower and not began:
            why = make_reason(ReasonKind.WRONG_BOARD, planned=named, found=found)
            return (ev.ResultKnown(Outcome.UNFIT.value, why),)
        other = on_other_board(candidate.sku, board.form)
        if other is not None:
            ratio = round(slowdown(GPUS[candidate.sku], other, candidate.gpus), 2)
            why = make_reason(ReasonKind.SLOWER_BOARD, planned=named, found=found, time_ratio=ratio)
            return (ev.BoardFound(generation.number, why),)
    why = make_reason(ReasonKind.OTHER_BOARD, planned=named, found=found)
    return (ev.BoardFound(generation.number, why),)


def wrong_board(
    plan: Plan, generation: Generation, report: AgentReport, said: Reason | None
) -> Reason | None:
    """Return the reason of a machine that its agent refused: that of its board, where the machine
    has a slower one than was planned; else what the agent said."""
    seen = board_from(report.notes.get(BOARD_NOTE, ""))
    if seen is None:
        return said
    candidate = plan.candidate(generation.candidate_id)
    planned = planned_form(candidate)
    if not is_worse(seen.board.form, planned):
        return said
    named = _name(candidate, planned)
    return make_reason(ReasonKind.WRONG_BOARD, said, planned=named, found=seen.board.text)


def _name(candidate: Candidate, form: str) -> str:
    return f"{candidate.sku.partition('-')[0]} {form}"
