"""The fold over a run's events: everything that changes what a run *is* lives in this file.

``apply_event`` is pure; an event that the table of transitions does not allow raises and changes
nothing.
"""

from __future__ import annotations

from typing import Any, Iterable, Mapping

from trmcloud.core.control import events as ev
from trmcloud.core.control.action_key import ActionKey
from trmcloud.core.control.reason import ReasonKind, because
from trmcloud.core.control.run_state import (
    STAGE,
    STAYING,
    TRANSITIONS,
    ActionState,
    Generation,
    IllegalTransition,
    RunState,
)
from trmcloud.core.money import ZERO
from trmcloud.core.outcome import Outcome
from trmcloud.core.values import replace


def apply_event(run: RunState, record: ev.Record) -> RunState:
    """The run after one more event.

    Raises:
        IllegalTransition: the event cannot happen in the run's state; ``run`` is unchanged.
    """
    event = record.event
    kind = type(event)
    target = TRANSITIONS.get((run.state, kind))
    if target is None:
        if run.state not in STAYING.get(kind, frozenset()):
            raise IllegalTransition(f"{kind.__name__} in state {run.state.value} of {run.run_id}")
        target = run.state
    moved = replace(run, state=target, updated_at=record.at, epoch=record.epoch)
    return _CHANGES[kind](moved, event, record.at) if kind in _CHANGES else moved


def fold(run_id: str, records: Iterable[ev.Record]) -> RunState:
    run = RunState(run_id)
    for record in records:
        run = apply_event(run, record)
    return run


def _planned(run: RunState, event: ev.RunPlanned, at: float) -> RunState:
    from trmcloud.core.spec.plan import RecordedPlan  # nothing but a run asks for it

    return replace(
        run,
        recorded_plan=RecordedPlan(event.plan),
        cap=event.cap,
        project=event.project,
        created_at=at,
        detached=event.detached,
    )


def _reserved(run: RunState, event: ev.Reserved, at: float) -> RunState:
    fresh = replace(run, result=None, result_at=None, reason=None)
    return replace(fresh, reserved=event.amount, reservation=event.amount, reserved_at=at)


def _intended(run: RunState, event: ev.PodIntended, at: float) -> RunState:
    if event.generation != len(run.generations) + 1:
        raise IllegalTransition(f"generation {event.generation} of {run.run_id} is not the next")
    made = Generation(
        number=event.generation,
        pod_name=event.pod_name,
        provider=event.provider,
        candidate_id=event.candidate_id,
        rate=event.rate,
        soft_stop_at=event.soft_stop_at,
        hard_stop_at=event.hard_stop_at,
        intended_at=at,
        boot=event.boot,
        boot_id=event.boot_id,
    )
    return replace(run, generations=(*run.generations, made), candidate_id=event.candidate_id)


def _action_started(run: RunState, event: ev.ActionStarted, at: float) -> RunState:
    key = _key(run, event.action_id)
    return _with_action(run, key, ActionState(event.verb, started_at=at))


def _action_finished(run: RunState, event: ev.ActionFinished, at: float) -> RunState:
    key = _key(run, event.action_id)
    before = run.actions.get(key) or ActionState(event.verb, started_at=at)
    ended = replace(before, ended_at=at, taken=event.taken, reason=event.reason)
    done = _with_action(run, key, ended)
    generation = done.generation
    if event.verb == STAGE and generation is not None and generation.open:
        return _on_generation(done, generation.number, staged_at=at)
    return done


def _action_failed(run: RunState, event: ev.ActionFailed, at: float) -> RunState:
    key = _key(run, event.action_id)
    before = run.actions.get(key) or ActionState(event.verb, started_at=at)
    failed = replace(before, ended_at=at, failed_kind=event.kind, error=event.error)
    return _with_action(run, key, failed)


def _key(run: RunState, text: str) -> ActionKey:
    try:
        return ActionKey.parse(text)
    except ValueError:
        raise IllegalTransition(f"{text!r:.200} is no action of {run.run_id}") from None


def _with_action(run: RunState, key: ActionKey, action: ActionState) -> RunState:
    return replace(run, actions={**run.actions, key: action})


def _pod_up(run: RunState, event: ev.PodUp, at: float) -> RunState:
    return _on_generation(
        run,
        event.generation,
        pod_id=event.pod_id,
        up_at=at,
        billed_rate=event.rate,
        missed_at=None,
    )


def _pod_not_made(run: RunState, event: ev.PodNotMade, at: float) -> RunState:
    return _on_generation(run, event.generation, not_made=event.reason)


def _pod_missed(run: RunState, event: ev.PodMissed, at: float) -> RunState:
    return _on_generation(
        run,
        event.generation,
        missed_at=at,
        missed_boot=event.boot,
        missed_boot_id=event.boot_id,
    )


def _pod_found(run: RunState, event: ev.PodFound, at: float) -> RunState:
    return _on_generation(run, event.generation, missed_at=None)


def _agent_up(run: RunState, event: ev.AgentUp, at: float) -> RunState:
    return _on_generation(run, event.generation, agent_at=at)


def _pod_gone(run: RunState, event: ev.PodGone, at: float) -> RunState:
    lived_s = None
    if run.generation is not None and event.boot_id and event.boot_id == run.generation.boot_id:
        lived_s = event.boot - run.generation.boot
    return _on_generation(
        run, event.generation, ended_at=event.ended_at, gone_at=at, lived_s=lived_s
    )


def _settled(run: RunState, event: ev.Settled, at: float) -> RunState:
    changed = _on_generation(run, event.generation, settled=event.amount, billed=event.billed)
    return replace(changed, settled=run.settled + event.amount, reserved=ZERO)


def _billed(run: RunState, event: ev.Billed, at: float) -> RunState:
    """Whatever the run does by now: the bill of an earlier generation may come late."""
    known = {g.number: g for g in run.generations}.get(event.generation)
    if known is None or known.settled is None or known.billed is not None:
        raise IllegalTransition(f"generation {event.generation} of {run.run_id} awaits no bill")
    corrected = replace(known, settled=event.amount, billed=event.amount)
    generations = tuple(corrected if g is known else g for g in run.generations)
    settled = run.settled - known.settled + event.amount
    return replace(run, generations=generations, settled=settled)


def _bucket_swept(run: RunState, event: ev.BucketSwept, at: float) -> RunState:
    run = replace(run, swept_at=at)
    if not event.size_bytes:
        return replace(run, swept_generation=event.generation)
    # One that died before it had deleted what it found was followed by another, which finds the
    # same or what is left of it, and whose record counts both.
    size_bytes, rent = run.oversized.get(event.generation, (0, ZERO))
    most = max(size_bytes, event.size_bytes), max(rent, event.amount)
    oversized = {**run.oversized, event.generation: most}
    return replace(run, settled=run.settled + most[1] - rent, oversized=oversized)


def _on_generation(run: RunState, number: int, **changes: Any) -> RunState:
    if run.generation is None or run.generation.number != number:
        raise IllegalTransition(f"generation {number} of {run.run_id} is not the current one")
    return replace(run, generations=(*run.generations[:-1], replace(run.generation, **changes)))


def _phase_ended(run: RunState, event: ev.PhaseEnded, at: float) -> RunState:
    return replace(
        run,
        phases={**run.phases, event.phase: event},
        phase_accounts=(*run.phase_accounts, event),
    )


def _gate_judged(run: RunState, event: ev.GateJudged, at: float) -> RunState:
    return replace(run, gates={**run.gates, event.phase: event})


def _stop_requested(run: RunState, event: ev.StopRequested, at: float) -> RunState:
    if run.stop is None:
        return replace(run, stop=event, stop_at=at)
    # One that is landing may still be ended at once; its landing counts from the first wish on.
    sooner = event.reason.kind is ReasonKind.STOP_NOW and not run.stop.at_once
    return replace(run, stop=event) if sooner else run


def _save_requested(run: RunState, event: ev.SaveRequested, at: float) -> RunState:
    asked = run.generation.saves_asked if run.generation is not None else 0
    return _on_generation(run, event.generation, saves_asked=asked + 1)


def _result_known(run: RunState, event: ev.ResultKnown, at: float) -> RunState:
    result = _outcome(run, event.result)
    if result is Outcome.UNFIT and run.generation is not None:
        unfit = event.reason or because(ReasonKind.REFUSED)
        run = _on_generation(run, run.generation.number, unfit=unfit)
    return replace(run, result=result.value, result_at=at, reason=event.reason)


def _late_report(run: RunState, event: ev.LateReport, at: float) -> RunState:
    if run.errand is None:
        raise IllegalTransition(f"{run.run_id} is on no errand: no report is missing")
    return replace(run, kept_outcome=_outcome(run, event.result), kept_reason=event.reason)


def _closed(run: RunState, event: ev.Closed, at: float) -> RunState:
    reason = event.reason or run.reason
    outcome = _outcome(run, event.outcome)
    if run.errand is not None:
        outcome, reason = run.kept_outcome or outcome, run.kept_reason
    done = replace(run, outcome=outcome, reason=reason, reserved=ZERO)
    return replace(done, errand=None, kept_outcome=None, kept_reason=None)


def _outcome(run: RunState, name: str) -> Outcome:
    try:
        return Outcome(name)
    except ValueError:
        raise IllegalTransition(f"{name!r} is no outcome of {run.run_id}") from None


def _reopened(run: RunState, event: ev.Reopened, at: float) -> RunState:
    plan, errand = run.recorded_plan, None
    if event.errand is not None and plan is not None:
        errand = str(event.errand["id"])
        plan = plan.with_errand(event.errand)
    elif (event.settings or event.processes) and plan is not None:
        plan = plan.with_settings(event.settings, event.processes)
    return replace(
        run,
        recorded_plan=plan,
        errand=errand,
        resumed=event if errand is None else run.resumed,
        phases={name: ended for name, ended in run.phases.items() if name not in event.settings},
        kept_outcome=run.outcome if errand is not None else None,
        kept_reason=run.reason if errand is not None else None,
        cap=event.cap,
        first_generation=len(run.generations) + 1,
        outcome=None,
        result=None,
        result_at=None,
        reason=None,
        stop=None,
        stop_at=None,
    )


def _plan_revised(run: RunState, event: ev.PlanRevised, at: float) -> RunState:
    return replace(run, candidate_id=event.candidate_id)


def _pulled(run: RunState, event: ev.Pulled, at: float) -> RunState:
    return replace(run, pulled={**run.pulled, (event.phase, event.step): event})


def _fetched(run: RunState, event: ev.Fetched, at: float) -> RunState:
    return replace(run, fetched=(*run.fetched, event))


_CHANGES: Mapping[type[Any], Any] = {
    ev.RunPlanned: _planned,
    ev.Reserved: _reserved,
    ev.PodIntended: _intended,
    ev.ActionStarted: _action_started,
    ev.ActionFinished: _action_finished,
    ev.ActionFailed: _action_failed,
    ev.PodUp: _pod_up,
    ev.PodNotMade: _pod_not_made,
    ev.PodMissed: _pod_missed,
    ev.PodFound: _pod_found,
    ev.AgentUp: _agent_up,
    ev.PodGone: _pod_gone,
    ev.Settled: _settled,
    ev.Billed: _billed,
    ev.PhaseEnded: _phase_ended,
    ev.GateJudged: _gate_judged,
    ev.StopRequested: _stop_requested,
    ev.SaveRequested: _save_requested,
    ev.ResultKnown: _result_known,
    ev.LateReport: _late_report,
    ev.Closed: _closed,
    ev.Reopened: _reopened,
    ev.PlanRevised: _plan_revised,
    ev.Pulled: _pulled,
    ev.Fetched: _fetched,
    ev.BucketSwept: _bucket_swept,
}
