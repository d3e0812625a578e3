"""A run's life: its states, the one table of transitions, and the fold over events.

Everything that changes what a run *is* lives in this file. ``apply_event`` is pure; an event that
the table does not allow raises and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Iterable, Mapping

from trmcloud.core import events as ev
from trmcloud.core.hardware import LOCAL
from trmcloud.core.money import ZERO, Usd, total
from trmcloud.core.outcome import Outcome


class State(str, Enum):
    NEW = "new"
    PLANNED = "planned"
    RESERVED = "reserved"
    RENTING = "renting"
    BOOTING = "booting"
    RUNNING = "running"
    ENDING = "ending"
    SETTLING = "settling"
    SETTLED = "settled"
    CLOSED = "closed"


#: Which event leads from which state to which. An event that is not here is illegal.
TRANSITIONS: Mapping[tuple[State, type[Any]], State] = {
    (State.NEW, ev.RunPlanned): State.PLANNED,
    (State.PLANNED, ev.Reserved): State.RESERVED,
    (State.RESERVED, ev.PodIntended): State.RENTING,
    (State.RESERVED, ev.Closed): State.CLOSED,
    (State.RENTING, ev.PodUp): State.BOOTING,
    (State.RENTING, ev.PodNotMade): State.RESERVED,
    (State.BOOTING, ev.PodNotMade): State.RESERVED,
    (State.BOOTING, ev.AgentUp): State.RUNNING,
    (State.BOOTING, ev.ResultKnown): State.ENDING,
    (State.BOOTING, ev.PodGone): State.SETTLING,
    (State.RUNNING, ev.ResultKnown): State.ENDING,
    (State.RUNNING, ev.PodGone): State.SETTLING,
    (State.ENDING, ev.PodGone): State.SETTLING,
    (State.SETTLING, ev.Settled): State.SETTLED,
    (State.SETTLED, ev.Reserved): State.RESERVED,
    (State.SETTLED, ev.Closed): State.CLOSED,
    (State.CLOSED, ev.Reopened): State.SETTLED,
}
#: Events that are recorded in the states named and change none of them.
STAYING: Mapping[type[Any], frozenset[State]] = {
    ev.ActionStarted: frozenset(State) - {State.NEW, State.CLOSED},
    ev.ActionFinished: frozenset(State) - {State.NEW, State.CLOSED},
    ev.ActionFailed: frozenset(State) - {State.NEW, State.CLOSED},
    ev.StopRequested: frozenset(State) - {State.NEW, State.CLOSED},
    ev.PlanRevised: frozenset({State.RESERVED}),
    ev.PodMissed: frozenset({State.RENTING, State.BOOTING, State.RUNNING, State.ENDING}),
    ev.PodFound: frozenset({State.RENTING, State.BOOTING, State.RUNNING, State.ENDING}),
    ev.PhaseEnded: frozenset({State.RUNNING, State.ENDING, State.SETTLING, State.SETTLED}),
    ev.GateJudged: frozenset({State.RUNNING, State.ENDING, State.SETTLING, State.SETTLED}),
    ev.ResultKnown: frozenset({State.SETTLING}),
    ev.Pulled: frozenset({State.RUNNING, State.ENDING, State.SETTLING, State.SETTLED}),
    ev.Fetched: frozenset(State) - {State.NEW},
    ev.Heard: frozenset({State.RUNNING, State.ENDING, State.SETTLING, State.SETTLED}),
    ev.Billed: frozenset(State) - {State.NEW, State.PLANNED},
}


STAGE = "stage"
"""The action that sends code and data to a pod."""
GRANT = "grant"
"""The action that gives a pod the right to upload."""


class IllegalTransition(Exception):
    """An event that cannot happen in this state; the run is unchanged."""


@dataclass(frozen=True)
class ActionState:
    verb: str
    started_at: float
    ended_at: float | None = None
    failed_kind: str | None = None
    error: str = ""
    taken: bool = False
    """Whether the provider said that it does what it was asked to."""
    detail: str = ""
    """What was noted when it ended well: of a deletion, why."""

    @property
    def finished(self) -> bool:
        return self.ended_at is not None and self.failed_kind is None


@dataclass(frozen=True)
class Generation:
    """One pod's life within the run."""

    number: int
    pod_name: str
    provider: str
    candidate_id: str
    rate: Usd
    soft_stop_at: float
    hard_stop_at: float
    intended_at: float
    pod_id: str | None = None
    up_at: float | None = None
    billed_rate: Usd | None = None
    agent_at: float | None = None
    staged_at: float | None = None
    """When code and data had arrived on it, verified."""
    unfit: str = ""
    """Why this machine was refused before anything was trained on it."""
    missed_at: float | None = None
    """Since when every fresh list has lacked the pod."""
    ended_at: float | None = None
    gone_at: float | None = None
    """When its end was put on record, by the clock of whoever did."""
    boot: float = 0.0
    boot_id: str = ""
    """When its intent was put on record, by a clock that nobody sets."""
    lived_s: float | None = None
    """From intent to end on record by that clock; None where no one machine saw both."""
    not_made: str | None = None
    settled: Usd | None = None
    billed: Usd | None = None

    @property
    def open(self) -> bool:
        """Whether a pod of it may exist and cost money."""
        return self.not_made is None and self.ended_at is None


@dataclass(frozen=True)
class RunState:
    """What a run is now: a fold of its events and nothing else."""

    run_id: str
    state: State = State.NEW
    plan: Mapping[str, Any] = field(default_factory=dict)
    cap: Usd = ZERO
    project: str = ""
    detached: bool = False
    """Launched to be left alone: no controller is expected to be there."""
    created_at: float = 0.0
    updated_at: float = 0.0
    epoch: int = 0
    reserved: Usd = ZERO
    reserved_at: float = 0.0
    reservation: Usd = ZERO
    """What the latest reservation was when it was made."""
    first_generation: int = 1
    """The first one since the run was opened, or reopened."""
    settled: Usd = ZERO
    generations: tuple[Generation, ...] = ()
    actions: Mapping[str, ActionState] = field(default_factory=dict)
    candidate_id: str | None = None
    stop: ev.StopRequested | None = None
    stop_at: float | None = None
    result: str | None = None
    result_at: float | None = None
    message: str = ""
    outcome: Outcome | None = None
    phases: Mapping[str, ev.PhaseEnded] = field(default_factory=dict)
    phase_accounts: tuple[ev.PhaseEnded, ...] = ()
    gates: Mapping[str, ev.GateJudged] = field(default_factory=dict)
    errand: str | None = None
    """The candidate that is rented only to bring checkpoints home; None while it trains."""
    kept_outcome: Outcome | None = None
    kept_message: str = ""
    """What became of the training, while an errand is run."""
    pulled: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """(phase, step) → hash of each checkpoint that was copied here from its pod, verified."""
    fetched: tuple[ev.Fetched, ...] = ()

    @property
    def generation(self) -> Generation | None:
        return self.generations[-1] if self.generations else None

    @property
    def live(self) -> bool:
        return self.state not in (State.NEW, State.CLOSED)

    @property
    def bucket(self) -> str:
        """s3://… where its checkpoints go; '' for none."""
        return str(self.plan.get("spec", {}).get("bucket", ""))

    @property
    def trains(self) -> bool:
        """Whether its pod needs nobody here any more to train: code and data are on it, and it may
        upload where it is to."""
        generation = self.generation
        if self.state is not State.RUNNING or generation is None:
            return False
        spec = self.plan.get("spec", {})
        if spec.get("bucket") and not spec.get("bucket_relayed"):
            start = f"{self.run_id}/g{generation.number}/{GRANT}/"
            if not any(a.finished for name, a in self.actions.items() if name.startswith(start)):
                return False
        return generation.staged_at is not None or generation.provider == LOCAL

    @property
    def billed(self) -> Usd | None:
        """What providers billed; None while any generation's bill is not known."""
        made = [g for g in self.generations if g.not_made is None]
        amounts = [g.billed for g in made]
        if not made or any(amount is None for amount in amounts):
            return None
        return total(amount for amount in amounts if amount is not None)


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
    return replace(
        run,
        plan=event.plan,
        cap=event.cap,
        project=event.project,
        created_at=at,
        detached=event.detached,
    )


def _reserved(run: RunState, event: ev.Reserved, at: float) -> RunState:
    fresh = replace(run, result=None, result_at=None, message="")
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
    return _with_action(run, event.action_id, ActionState(event.verb, started_at=at))


def _action_finished(run: RunState, event: ev.ActionFinished, at: float) -> RunState:
    before = run.actions.get(event.action_id) or ActionState(event.verb, started_at=at)
    ended = replace(before, ended_at=at, taken=event.taken, detail=event.detail)
    done = _with_action(run, event.action_id, ended)
    generation = done.generation
    if event.verb == STAGE and generation is not None and generation.open:
        return _on_generation(done, generation.number, staged_at=at)
    return done


def _action_failed(run: RunState, event: ev.ActionFailed, at: float) -> RunState:
    before = run.actions.get(event.action_id) or ActionState(event.verb, started_at=at)
    failed = replace(before, ended_at=at, failed_kind=event.kind, error=event.error)
    return _with_action(run, event.action_id, failed)


def _with_action(run: RunState, action_id: str, action: ActionState) -> RunState:
    return replace(run, actions={**run.actions, action_id: action})


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
    return _on_generation(run, event.generation, missed_at=at)


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
    return run if run.stop is not None else replace(run, stop=event, stop_at=at)


def _result_known(run: RunState, event: ev.ResultKnown, at: float) -> RunState:
    result = _outcome(run, event.result)
    if result is Outcome.UNFIT and run.generation is not None:
        run = _on_generation(run, run.generation.number, unfit=event.message or "refused")
    return replace(run, result=result.value, result_at=at, message=event.message)


def _heard(run: RunState, event: ev.Heard, at: float) -> RunState:
    if run.errand is None:
        raise IllegalTransition(f"{run.run_id} is on no errand: nothing was left to be heard")
    return replace(run, kept_outcome=_outcome(run, event.result), kept_message=event.message)


def _closed(run: RunState, event: ev.Closed, at: float) -> RunState:
    message = event.message or run.message
    outcome = _outcome(run, event.outcome)
    if run.errand is not None:
        outcome, message = run.kept_outcome or outcome, run.kept_message
    done = replace(run, outcome=outcome, message=message, reserved=ZERO)
    return replace(done, errand=None, kept_outcome=None, kept_message="")


def _outcome(run: RunState, name: str) -> Outcome:
    try:
        return Outcome(name)
    except ValueError:
        raise IllegalTransition(f"{name!r} is no outcome of {run.run_id}") from None


def _reopened(run: RunState, event: ev.Reopened, at: float) -> RunState:
    plan, errand = run.plan, None
    if event.errand is not None:
        errand = str(event.errand["id"])
        candidates = [*plan.get("candidates", ()), event.errand]
        plan = {**plan, "candidates": candidates, "launchable": [errand]}
    return replace(
        run,
        plan=plan,
        errand=errand,
        kept_outcome=run.outcome if errand is not None else None,
        kept_message=run.message if errand is not None else "",
        cap=event.cap,
        first_generation=len(run.generations) + 1,
        outcome=None,
        result=None,
        result_at=None,
        message="",
        stop=None,
        stop_at=None,
    )


def _plan_revised(run: RunState, event: ev.PlanRevised, at: float) -> RunState:
    return replace(run, candidate_id=event.candidate_id)


def _pulled(run: RunState, event: ev.Pulled, at: float) -> RunState:
    return replace(run, pulled={**run.pulled, (event.phase, event.step): event.sha256})


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
    ev.ResultKnown: _result_known,
    ev.Heard: _heard,
    ev.Closed: _closed,
    ev.Reopened: _reopened,
    ev.PlanRevised: _plan_revised,
    ev.Pulled: _pulled,
    ev.Fetched: _fetched,
}
