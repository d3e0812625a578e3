"""The states of a run, its one table of transitions, and the fold over its events. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.clock import Instant
from trmcloud.core.control import events as ev
from trmcloud.core.control.events import ActionKey, FailureKind
from trmcloud.core.control.reason import Reason, ReasonKind, make_reason
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO, Usd, total
from trmcloud.core.values import Value, replace

if TYPE_CHECKING:
    from trmcloud.core.spec.plan import Candidate, Plan, RecordedPlan
    from trmcloud.core.spec.spec import RunSpec

# A run's states, the record of a run in them, and the one table of transitions.


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
    (State.SETTLED, ev.Moved): State.RUNNING,
    (State.SETTLED, ev.Closed): State.CLOSED,
    (State.CLOSED, ev.Reopened): State.SETTLED,
}
_OPEN = frozenset(State) - {State.NEW, State.CLOSED}
_WITH_POD = frozenset({State.RENTING, State.BOOTING, State.RUNNING, State.ENDING})
_REPORTED = frozenset({State.RUNNING, State.ENDING, State.SETTLING, State.SETTLED})
#: Events that are recorded in the states named and change none of them.
STAYING: Mapping[type[Any], frozenset[State]] = {
    **dict.fromkeys((ev.ActionStarted, ev.ActionFinished, ev.ActionFailed), _OPEN),
    ev.StopRequested: _OPEN,
    ev.SaveRequested: frozenset({State.RUNNING}),
    **dict.fromkeys((ev.StopLowering, ev.StopKnown), frozenset({State.RUNNING})),
    ev.StopLowered: frozenset({State.RUNNING, State.ENDING}),
    ev.PlanRevised: frozenset({State.RESERVED}),
    ev.Extended: frozenset({State.RUNNING}),
    **dict.fromkeys((ev.BoardFound, ev.PaceMeasured), frozenset({State.RUNNING})),
    **dict.fromkeys((ev.MoveStarted, ev.HandedOver), frozenset({State.RUNNING})),
    ev.WaitStarted: frozenset({State.RESERVED}),
    **dict.fromkeys((ev.PodMissed, ev.PodFound), _WITH_POD),
    **dict.fromkeys((ev.PhaseEnded, ev.GateJudged, ev.Pulled, ev.LateReport), _REPORTED),
    ev.ResultKnown: frozenset({State.SETTLING}),
    ev.Fetched: frozenset(State) - {State.NEW},
    ev.Billed: frozenset(State) - {State.NEW, State.PLANNED},
    ev.BucketSwept: frozenset({State.CLOSED}),
}


STAGE = "stage"
"""The action that sends code and data to a pod."""
GRANT = "grant"
"""The action that gives a pod the right to upload."""


class IllegalTransition(Exception):
    """An event that cannot happen in this state; the run is unchanged."""


class ActionState(Value):
    verb: str
    started_at: float
    ended_at: float | None = None
    failed_kind: FailureKind | None = None
    error: str = ""
    retry_s: float = 0.0
    """In so many seconds the provider wants to be asked again; 0: it did not say."""
    taken: bool = False
    """Whether the provider said that it does what it was asked to."""
    reason: Reason | None = None
    """Why a pod was told to land or to end, once it was."""

    @property
    def finished(self) -> bool:
        return self.ended_at is not None and self.failed_kind is None


class Payer(Value):
    """The principal whose grant pays for something, and the number of that grant among theirs."""

    principal: str = ""
    """Empty: the ledger's owner pays."""
    grant: int = 0
    """0: none was there."""


class Absence(Value):
    """Every fresh list has lacked a pod since it ``began``."""

    began: Instant
    heard_at: float = 0.0
    """See ``events.PodMissed.heard_at``."""

    @property
    def since(self) -> float:
        """Epoch seconds, as ends and bills are reckoned."""
        return self.began.wall


class Legacy(Value):
    """Facts that only earlier versions recorded about a machine: that a run moved to it from a
    machine that worked, and that its hard stop was lowered."""

    stands_by: bool = False
    """Whether it was asked for while another one worked, and the run has not moved to it."""
    hands_over: bool = False
    """Whether it was told to land for such a machine."""
    adopted: bool = False
    """Whether the run moved to it."""
    lower_to: float | None = None
    """The earlier hard stop that was asked for."""
    first_stop_at: float | None = None
    """Its hard stop before that was lowered; None: it keeps its own."""


class Generation(Value):
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
    unfit: Reason | None = None
    """Why this machine was refused before anything was trained on it."""
    board: Reason | None = None
    """How its board differs from the planned one, where it trains on that."""
    absence: Absence | None = None
    """None while lists show its pod, or are not known to lack it."""
    ended_at: float | None = None
    gone_at: float | None = None
    """When its end was put on record, by the clock of the process that did."""
    boot: float = 0.0
    boot_id: str = ""
    """When its intent was put on record, by a clock that cannot be set."""
    lived_s: float | None = None
    """From intent to end on record by that clock; None where no one machine saw both."""
    saves_asked: int = 0
    """The number of checkpoints that were requested of its pod."""
    not_made: Reason | None = None
    settled: Usd | None = None
    billed: Usd | None = None
    legacy: Legacy = field(default_factory=Legacy)
    payer: Payer = field(default_factory=Payer)
    limit_at: float = 0.0
    """See ``events.PodIntended.limit_at``."""
    is_extended: bool = False
    """Whether its stops were moved."""

    @property
    def latest_stop_at(self) -> float:
        """When its machine has ended, however often its stop is moved."""
        return max(self.hard_stop_at, self.limit_at)

    @property
    def granted_until(self) -> float:
        """The latest stop that it was started with: what it was given is good until then."""
        first_stop_at = self.legacy.first_stop_at
        return self.latest_stop_at if first_stop_at is None else first_stop_at

    @property
    def charged_rate(self) -> Usd:
        """The USD per hour that its provider was seen to charge; until then, what was planned."""
        return self.billed_rate or self.rate

    @property
    def awaits_bill(self) -> bool:
        """Whether it is settled by an estimate, which the provider's final figure replaces."""
        return self.settled is not None and self.billed is None

    @property
    def open(self) -> bool:
        """Whether a pod of it may exist and cost money."""
        return self.not_made is None and self.ended_at is None


class Errand(Value):
    """A machine is rented only to bring checkpoints home. How the training ended is kept meanwhile,
    and is the run's end again after it."""

    candidate_id: str
    outcome: Outcome | None = None
    reason: Reason | None = None


class Swept(Value):
    """The deletion of objects that a run's pods stored in its bucket without a grant, and their
    cost."""

    generation: int = 0
    """Up to which one the bucket was rid of it; 0: none."""
    at: float = 0.0
    """When the bucket was last read for that: all that was there is counted up to then."""
    found: Mapping[int, tuple[int, Usd]] = field(default_factory=dict)
    """By the last generation that could have put it there: how many bytes that was, and what it has
    cost, which is in the run's ``settled``."""

    def of(self, number: int) -> tuple[int, Usd]:
        return self.found.get(number, (0, ZERO))

    @property
    def size_bytes(self) -> int:
        return sum(size for size, _ in self.found.values())

    @property
    def rent(self) -> Usd:
        return total(rent for _, rent in self.found.values())


class RunState(Value):
    """A run's state: a fold of its events and nothing else."""

    run_id: str
    state: State = State.NEW
    recorded_plan: RecordedPlan | None = None
    """None in state new alone: see ``plan``."""
    cap: Usd = ZERO
    project: str = ""
    creator: str = ""
    """The principal that launched it; empty: the ledger's owner."""
    payer: Payer = field(default_factory=Payer)
    """For what is reserved: who launched it, or reopened it last."""
    detached: bool = False
    """Launched to be left alone: no controller is expected to be there."""
    name: str = ""
    """The user's own name for it; empty for none."""
    tags: tuple[tuple[str, str], ...] = ()
    key: str = ""
    """The idempotency key of its launch; empty for none."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """By idempotency key of its launch and of what reopened it, SHA-256 of the arguments."""
    created_at: float = 0.0
    updated_at: float = 0.0
    epoch: int = 0
    reserved: Usd = ZERO
    reserved_at: float = 0.0
    reservation: Usd = ZERO
    """The latest reservation at the time when it was made."""
    first_generation: int = 1
    """The first one since the run was opened, or reopened."""
    wait: ev.WaitStarted | None = None
    """The last request to wait where no machine can be had, since it was opened or reopened."""
    wait_at: float = 0.0
    settled: Usd = ZERO
    generations: tuple[Generation, ...] = ()
    standby_usd: Usd | None = None
    """Of what is reserved, the part of a second machine that an earlier version asked for, until
    that is settled; None: there is none."""
    actions: Mapping[ActionKey, ActionState] = field(default_factory=dict)
    candidate_id: str | None = None
    stop: ev.StopRequested | None = None
    stop_at: float | None = None
    result: str | None = None
    result_at: float | None = None
    reason: Reason | None = None
    """Why it ended so."""
    outcome: Outcome | None = None
    phases: Mapping[str, ev.PhaseEnded] = field(default_factory=dict)
    phase_accounts: tuple[ev.PhaseEnded, ...] = ()
    gates: Mapping[str, ev.GateJudged] = field(default_factory=dict)
    paces: tuple[ev.PaceMeasured, ...] = ()
    """The measurements of its machines, believed or not."""
    errand: Errand | None = None
    """None while it trains."""
    resumed: ev.Reopened | None = None
    """The last request to continue training."""
    pulled: Mapping[tuple[str, int], ev.Pulled] = field(default_factory=dict)
    """By (phase, step): each checkpoint that was copied here from its pod, verified."""
    fetched: tuple[ev.Fetched, ...] = ()
    swept: Swept = field(default_factory=Swept)

    @property
    def plan(self) -> Plan:
        return self._planned.plan

    @property
    def spec(self) -> RunSpec:
        """Its plan's, which is had without all that was reckoned for it."""
        return self._planned.spec

    @property
    def balance_policy(self) -> str:
        """What follows where the provider's balance will not last: see ``BALANCE_POLICIES``."""
        return (self.resumed.balance if self.resumed is not None else "") or self.spec.balance

    @property
    def chosen(self) -> Candidate | None:
        """The candidate that it is on, or would be tried first; None where it has none."""
        chosen_id = self.candidate_id or self._planned.recommended_id
        return self._planned.candidate(chosen_id) if chosen_id else None

    def candidate(self, candidate_id: str) -> Candidate | None:
        plan = self.recorded_plan
        return plan.candidate(candidate_id) if plan is not None else None

    def disk_rate(self, generation: Generation) -> Usd:
        """Return the USD per hour of its pod's own disks, which come on top of its rate."""
        candidate = self.candidate(generation.candidate_id)
        return candidate.disk_rate if candidate is not None else ZERO

    def hourly_rate(self, generation: Generation) -> Usd:
        """Return the USD per hour that is billed for its pod and its disks, as far as known."""
        return generation.charged_rate + self.disk_rate(generation)

    @property
    def _planned(self) -> RecordedPlan:
        if self.recorded_plan is None:
            raise ValueError(f"{self.run_id} has no plan in state {self.state.value}")
        return self.recorded_plan

    @property
    def generation(self) -> Generation | None:
        """Its machine, the latest but for those that stood by."""
        return next((g for g in reversed(self.generations) if not g.legacy.stands_by), None)

    @property
    def standing_by(self) -> Generation | None:
        """The machine that stands by and is not settled yet."""
        last = self.generations[-1] if self.generations else None
        if self.standby_usd is None or last is None or not last.legacy.stands_by:
            return None
        return last if last.not_made is None and last.settled is None else None

    @property
    def standby(self) -> RunState | None:
        """The run as it would be with the machine that stands by as its own: it is ended and
        settled by the same functions."""
        here = self.standing_by
        if here is None or self.standby_usd is None:
            return None
        mine = replace(here, legacy=replace(here.legacy, stands_by=False))
        return replace(
            self,
            state=_standby_state(here),
            generations=(*self.generations[:-1], mine),
            standby_usd=None,
            reserved=self.standby_usd,
            reservation=self.standby_usd,
            result=None,
            result_at=None,
            reason=None,
            stop=None,
            stop_at=None,
            wait=None,
        )

    @property
    def open_generations(self) -> tuple[Generation, ...]:
        """Those whose pods may exist: that of its machine, and that of one that stands by."""
        return tuple(g for g in self.present if g.open)

    @property
    def unsettled(self) -> tuple[Generation, ...]:
        """Likewise, those that cost something which is not settled yet."""
        return tuple(g for g in self.present if g.not_made is None and g.settled is None)

    @property
    def present(self) -> tuple[Generation, ...]:
        """Its machine, and one that stands by."""
        return tuple(g for g in (self.generation, self.standing_by) if g is not None)

    def held_for(self, generation: Generation) -> Usd:
        """Of what is reserved, the share of one of its present machines."""
        apart = self.standby_usd or ZERO
        return apart if generation.legacy.stands_by else self.reserved - apart

    def tries(
        self, generation: Generation, verb: str = "", item: str | None = None
    ) -> tuple[ActionState, ...]:
        """Return the states of all tries for one of its pods: of all actions, of one verb, or of
        one verb and item. The first try is first."""
        return tuple(self._tries.get((generation.number, verb, item), ()))

    @cached_property
    def _tries(self) -> Mapping[tuple[int, str, str | None], list[ActionState]]:
        """By generation, verb and item, by generation and verb, and by generation."""
        found: dict[tuple[int, str, str | None], list[ActionState]] = {}
        for key, action in self.actions.items():
            for verb, item in ((key.verb, key.item), (key.verb, None), ("", None)):
                found.setdefault((key.generation, verb, item), []).append(action)
        return found

    @property
    def live(self) -> bool:
        return self.state not in (State.NEW, State.CLOSED)

    @property
    def bucket(self) -> str:
        """s3://… where its checkpoints go; '' for none."""
        return self.spec.bucket if self.recorded_plan is not None else ""

    @property
    def trained_here(self) -> bool:
        """Whether no rented machine had a part in it: what it reports, this machine measured."""
        return bool(self.generations) and all(g.provider == LOCAL for g in self.generations)

    @property
    def trains(self) -> bool:
        """Whether its pod trains without this machine: code and data are on it, and it may upload
        where it is to."""
        generation = self.generation
        if self.state is not State.RUNNING or generation is None:
            return False
        granted = any(grant.finished for grant in self.tries(generation, GRANT))
        if self.spec.pod_uploads and not granted:
            return False
        return generation.staged_at is not None or generation.provider == LOCAL

    @property
    def unbilled(self) -> Usd:
        """The amount settled by estimate, until the provider's final figure."""
        return total(g.settled or ZERO for g in self.generations if g.awaits_bill)

    @property
    def billed(self) -> Usd | None:
        """The amount that providers billed; None while any generation's bill is unknown."""
        made = [g for g in self.generations if g.not_made is None]
        amounts = [g.billed for g in made]
        if not made or any(amount is None for amount in amounts):
            return None
        return total(amount for amount in amounts if amount is not None)


# The fold over a run's events: everything that changes what a run *is* lives in this file.
#
# ``apply_event`` is pure; an event that the table of transitions does not allow raises and
# changes nothing.


def apply_event(run: RunState, record: ev.Record) -> RunState:
    """The run after one more event.

    Raises:
        IllegalTransition: the event cannot happen in the run's state; ``run`` is unchanged.
    """
    event = record.event
    kind = type(event)
    if run.standby_usd is not None and _is_of_standby(run, event):
        return _with_standby_event(run, run.standby_usd, record)
    target = TRANSITIONS.get((run.state, kind))
    if target is None:
        if run.state not in STAYING.get(kind, frozenset()):
            raise IllegalTransition(f"{kind.__name__} in state {run.state.value} of {run.run_id}")
        target = run.state
    moved = replace(run, state=target, updated_at=record.at, epoch=record.epoch)
    return _CHANGES[kind](moved, event, record.at) if kind in _CHANGES else moved


_OF_A_POD = (
    *(ev.PodUp, ev.PodNotMade, ev.PodMissed, ev.PodFound),
    *(ev.AgentUp, ev.PodGone, ev.Settled),
)


def _standby_state(here: Generation | None) -> State:
    """Return the state that a run has with this machine, which stands by; None: it is only asked
    for."""
    if here is None:
        return State.RESERVED
    if here.ended_at is not None:
        return State.SETTLING
    if here.agent_at is not None:
        return State.RUNNING
    return State.BOOTING if here.pod_id is not None else State.RENTING


def _is_of_standby(run: RunState, event: ev.Event) -> bool:
    if isinstance(event, ev.PodIntended):
        return True
    here = run.standing_by
    return here is not None and isinstance(event, _OF_A_POD) and event.generation == here.number


def _with_standby_event(run: RunState, held: Usd, record: ev.Record) -> RunState:
    """Add an event of the machine that stands by: it changes that one alone."""
    event, at, here = record.event, record.at, run.standing_by
    kind, state = type(event), _standby_state(here)
    if (state, kind) not in TRANSITIONS and state not in STAYING.get(kind, frozenset()):
        why = f"{kind.__name__} of a machine that is {state.value} and stands by"
        raise IllegalTransition(f"{why} for {run.run_id}")
    changed = replace(run, updated_at=at, epoch=record.epoch)
    if isinstance(event, ev.PodIntended):
        made = replace(_made(run, event, at), legacy=Legacy(stands_by=True))
        return replace(changed, generations=(*run.generations, made))
    if isinstance(event, ev.Settled):
        changed = _on_generation(
            changed, event.generation, settled=event.amount, billed=event.billed
        )
        changed = replace(changed, settled=run.settled + event.amount)
    else:
        changed = _CHANGES[kind](changed, event, at)
    if kind in (ev.PodNotMade, ev.Settled):
        return replace(changed, standby_usd=None, reserved=run.reserved - held)
    return changed


def _move_started(run: RunState, event: ev.MoveStarted, at: float) -> RunState:
    if run.standby_usd is not None or run.generation is None:
        raise IllegalTransition(f"{run.run_id} moves already, or has no machine to move from")
    reserved = run.reserved + event.amount
    return replace(run, standby_usd=event.amount, reserved=reserved, reserved_at=at)


def _handed_over(run: RunState, event: ev.HandedOver, at: float) -> RunState:
    mine = run.generation
    if run.standby_usd is None or mine is None or event.generation != mine.number:
        raise IllegalTransition(f"no machine stands by for {run.run_id}")
    return _on_generation(run, event.generation, {"hands_over": True})


def _moved(run: RunState, event: ev.Moved, at: float) -> RunState:
    here, left = run.standing_by, run.generation
    if here is None or left is None or here.number != event.generation:
        raise IllegalTransition(f"no machine stands by for {run.run_id}")
    if _standby_state(here) is not State.RUNNING:
        raise IllegalTransition(f"the machine that stands by for {run.run_id} is not up")
    held = run.held_for(here)
    taken = _on_generation(run, here.number, {"stands_by": False, "adopted": True})
    return replace(
        taken,
        standby_usd=None,
        candidate_id=here.candidate_id,
        reserved=held,
        # What the machine before has left of its own may pay for one after this.
        reservation=max(run.reservation - (left.settled or ZERO), ZERO) + held,
        result=None,
        result_at=None,
        reason=None,
    )


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
        creator=event.principal,
        payer=Payer(event.principal),
        created_at=at,
        detached=event.detached,
        name=event.name,
        tags=event.tags,
        key=event.key,
        keys={event.key: event.request} if event.key else {},
    )


def _reserved(run: RunState, event: ev.Reserved, at: float) -> RunState:
    fresh = replace(run, result=None, result_at=None, reason=None)
    return replace(fresh, reserved=event.amount, reservation=event.amount, reserved_at=at)


def _intended(run: RunState, event: ev.PodIntended, at: float) -> RunState:
    made = _made(run, event, at)
    return replace(
        run,
        generations=(*run.generations, made),
        candidate_id=event.candidate_id,
    )


def _made(run: RunState, event: ev.PodIntended, at: float) -> Generation:
    if event.generation != len(run.generations) + 1:
        raise IllegalTransition(f"generation {event.generation} of {run.run_id} is not the next")
    return Generation(
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
        payer=run.payer,
        limit_at=event.limit_at,
    )


def _extended(run: RunState, event: ev.Extended, at: float) -> RunState:
    mine = run.generation
    if mine is None or mine.number != event.generation or not mine.open or run.errand is not None:
        raise IllegalTransition(f"generation {event.generation} of {run.run_id} does not train")
    if not mine.hard_stop_at < event.hard_stop_at <= mine.limit_at:
        raise IllegalTransition(f"the stop of {run.run_id} cannot be moved there")
    more = event.amount - run.reserved
    if more < ZERO or run.standby_usd is not None:
        raise IllegalTransition(f"{event.amount} is less than {run.run_id} has reserved")
    later_s = event.hard_stop_at - mine.hard_stop_at
    moved = _on_generation(
        run,
        event.generation,
        soft_stop_at=mine.soft_stop_at + later_s,
        hard_stop_at=event.hard_stop_at,
        is_extended=True,
    )
    # It stays in the month in which the run's money was reserved.
    return replace(moved, reserved=event.amount, reservation=run.reservation + more)


def _action_finished(run: RunState, event: ev.ActionFinished, at: float) -> RunState:
    done = _with_action(run, event, at, ended_at=at, taken=event.taken, reason=event.reason)
    if event.verb == STAGE:
        number = ActionKey.parse(event.action_id).generation
        if any(g.number == number for g in done.open_generations):
            return _on_generation(done, number, staged_at=at)
    return done


def _action_failed(run: RunState, event: ev.ActionFailed, at: float) -> RunState:
    failed = {"failed_kind": event.kind, "error": event.error, "retry_s": event.retry_s}
    return _with_action(run, event, at, ended_at=at, **failed)


def _with_action(
    run: RunState,
    event: ev.ActionStarted | ev.ActionFinished | ev.ActionFailed,
    at: float,
    **changes: Any,
) -> RunState:
    """Record a try's start, or ``changes`` of the known try."""
    try:
        key = ActionKey.parse(event.action_id)
    except ValueError:
        why = f"{event.action_id!r:.200} is no action of {run.run_id}"
        raise IllegalTransition(why) from None
    known = run.actions.get(key) if changes else None
    action = replace(known or ActionState(event.verb, started_at=at), **changes)
    return replace(run, actions={**run.actions, key: action})


def _pod_up(run: RunState, event: ev.PodUp, at: float) -> RunState:
    up = {"pod_id": event.pod_id, "up_at": at, "billed_rate": event.rate}
    return _on_generation(run, event.generation, **up, absence=None)


def _pod_missed(run: RunState, event: ev.PodMissed, at: float) -> RunState:
    absence = Absence(Instant(at, event.boot, event.boot_id), event.heard_at)
    return _on_generation(run, event.generation, absence=absence)


def _pod_gone(run: RunState, event: ev.PodGone, at: float) -> RunState:
    lived_s, gone = None, run.generations[event.generation - 1 : event.generation]
    if gone and event.boot_id and event.boot_id == gone[0].boot_id:
        lived_s = event.boot - gone[0].boot
    return _on_generation(
        run, event.generation, ended_at=event.ended_at, gone_at=at, lived_s=lived_s
    )


def _settled(run: RunState, event: ev.Settled, at: float) -> RunState:
    changed = _on_generation(run, event.generation, settled=event.amount, billed=event.billed)
    left = run.standby_usd or ZERO
    return replace(changed, settled=run.settled + event.amount, reserved=left)


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
    swept = replace(run.swept, at=at)
    if not event.size_bytes:
        return replace(run, swept=replace(swept, generation=event.generation))
    # One that died before it had deleted what it found was followed by another, which finds the
    # same or what is left of it, and whose record counts both.
    size_bytes, rent = swept.of(event.generation)
    most = max(size_bytes, event.size_bytes), max(rent, event.amount)
    swept = replace(swept, found={**swept.found, event.generation: most})
    return replace(run, settled=run.settled + most[1] - rent, swept=swept)


def _on_generation(
    run: RunState, number: int, legacy: Mapping[str, Any] | None = None, /, **changes: Any
) -> RunState:
    if all(each.number != number for each in run.present):
        raise IllegalTransition(f"generation {number} of {run.run_id} is not the current one")
    known = run.generations[number - 1]
    if legacy is not None:
        changes["legacy"] = replace(known.legacy, **legacy)
    changed = replace(known, **changes)
    return replace(
        run, generations=(*run.generations[: number - 1], changed, *run.generations[number:])
    )


def _phase_ended(run: RunState, event: ev.PhaseEnded, at: float) -> RunState:
    accounts = (*run.phase_accounts, event)
    return replace(run, phases={**run.phases, event.phase: event}, phase_accounts=accounts)


def _stop_requested(run: RunState, event: ev.StopRequested, at: float) -> RunState:
    if run.stop is None:
        return replace(run, stop=event, stop_at=at)
    # One that is landing may still be ended at once; its landing counts from the first wish on.
    sooner = event.at_once and not run.stop.at_once
    return replace(run, stop=event) if sooner else run


def _save_requested(run: RunState, event: ev.SaveRequested, at: float) -> RunState:
    asked = run.generation.saves_asked if run.generation is not None else 0
    return _on_generation(run, event.generation, saves_asked=asked + 1)


def _stop_lowering(run: RunState, event: ev.StopLowering, at: float) -> RunState:
    mine = run.generation
    moves = run.standby_usd is not None
    if moves or mine is None or not mine.open or mine.legacy.first_stop_at is not None:
        raise IllegalTransition(f"{run.run_id} has no machine whose stop could be lowered")
    if event.hard_stop_at >= mine.hard_stop_at:
        raise IllegalTransition(f"the stop of {run.run_id} would not be earlier")
    return _on_generation(run, event.generation, {"lower_to": event.hard_stop_at})


def _stop_known(run: RunState, event: ev.StopKnown, at: float) -> RunState:
    mine = run.generation
    lower_to = mine.legacy.lower_to if mine is not None else None
    if mine is None or lower_to is None or mine.legacy.first_stop_at is not None:
        raise IllegalTransition(f"no stop of {run.run_id} is being lowered")
    return _on_generation(
        run,
        event.generation,
        {"first_stop_at": mine.hard_stop_at},
        hard_stop_at=lower_to,
        soft_stop_at=mine.soft_stop_at - (mine.hard_stop_at - lower_to),
    )


def _stop_lowered(run: RunState, event: ev.StopLowered, at: float) -> RunState:
    mine = run.generation
    if run.standby_usd is not None or mine is None or mine.legacy.first_stop_at is None:
        raise IllegalTransition(f"no stop of {run.run_id} was lowered")
    free = run.reserved - event.amount
    if free < ZERO:
        raise IllegalTransition(f"{event.amount} is more than {run.run_id} has reserved")
    return replace(run, reserved=event.amount, reservation=run.reservation - free)


def _result_known(run: RunState, event: ev.ResultKnown, at: float) -> RunState:
    result = _outcome(run, event.result)
    if result is Outcome.UNFIT and run.generation is not None:
        unfit = event.reason or make_reason(ReasonKind.REFUSED)
        run = _on_generation(run, run.generation.number, unfit=unfit)
    return replace(run, result=result.value, result_at=at, reason=event.reason)


def _late_report(run: RunState, event: ev.LateReport, at: float) -> RunState:
    if run.errand is None:
        raise IllegalTransition(f"{run.run_id} is on no errand: no report is missing")
    told = replace(run.errand, outcome=_outcome(run, event.result), reason=event.reason)
    return replace(run, errand=told)


def _closed(run: RunState, event: ev.Closed, at: float) -> RunState:
    if run.standby_usd is not None:
        raise IllegalTransition(f"a machine stands by for {run.run_id}: that ends first")
    reason = event.reason or run.reason
    outcome = _outcome(run, event.outcome)
    if run.errand is not None:
        outcome, reason = run.errand.outcome or outcome, run.errand.reason
    return replace(run, outcome=outcome, reason=reason, reserved=ZERO, errand=None)


def _outcome(run: RunState, name: str) -> Outcome:
    try:
        return Outcome(name)
    except ValueError:
        raise IllegalTransition(f"{name!r} is no outcome of {run.run_id}") from None


def _reopened(run: RunState, event: ev.Reopened, at: float) -> RunState:
    plan, errand = run.recorded_plan, None
    if event.errand is not None and plan is not None:
        errand = Errand(str(event.errand["id"]), run.outcome, run.reason)
        plan = plan.with_errand(event.errand)
    elif (event.settings or event.processes) and plan is not None:
        plan = plan.with_settings(event.settings, event.processes)
    return replace(
        run,
        recorded_plan=plan,
        errand=errand,
        resumed=event if errand is None else run.resumed,
        phases={name: ended for name, ended in run.phases.items() if name not in event.settings},
        cap=event.cap,
        payer=Payer(event.principal),
        keys={**run.keys, event.key: event.request} if event.key else run.keys,
        first_generation=len(run.generations) + 1,
        wait=None,
        outcome=None,
        result=None,
        result_at=None,
        reason=None,
        stop=None,
        stop_at=None,
    )


_CHANGES: Mapping[type[Any], Callable[[RunState, Any, float], RunState]] = {
    ev.RunPlanned: _planned,
    ev.Reserved: _reserved,
    ev.WaitStarted: lambda run, e, at: replace(run, wait=e, wait_at=at),
    ev.PodIntended: _intended,
    ev.Extended: _extended,
    ev.MoveStarted: _move_started,
    ev.HandedOver: _handed_over,
    ev.Moved: _moved,
    ev.ActionStarted: _with_action,
    ev.ActionFinished: _action_finished,
    ev.ActionFailed: _action_failed,
    ev.PodUp: _pod_up,
    ev.PodNotMade: lambda run, e, at: _on_generation(run, e.generation, not_made=e.reason),
    ev.PodMissed: _pod_missed,
    ev.PodFound: lambda run, e, at: _on_generation(run, e.generation, absence=None),
    ev.AgentUp: lambda run, e, at: _on_generation(run, e.generation, agent_at=at),
    ev.BoardFound: lambda run, e, at: _on_generation(run, e.generation, board=e.reason),
    ev.PaceMeasured: lambda run, e, at: replace(
        _on_generation(run, e.generation), paces=(*run.paces, e)
    ),
    ev.PodGone: _pod_gone,
    ev.Settled: _settled,
    ev.Billed: _billed,
    ev.PhaseEnded: _phase_ended,
    ev.GateJudged: lambda run, e, at: replace(run, gates={**run.gates, e.phase: e}),
    ev.StopRequested: _stop_requested,
    ev.SaveRequested: _save_requested,
    ev.StopLowering: _stop_lowering,
    ev.StopKnown: _stop_known,
    ev.StopLowered: _stop_lowered,
    ev.ResultKnown: _result_known,
    ev.LateReport: _late_report,
    ev.Closed: _closed,
    ev.Reopened: _reopened,
    ev.PlanRevised: lambda run, e, at: replace(run, candidate_id=e.candidate_id),
    ev.Pulled: lambda run, e, at: replace(run, pulled={**run.pulled, (e.phase, e.step): e}),
    ev.Fetched: lambda run, e, at: replace(run, fetched=(*run.fetched, e)),
    ev.BucketSwept: _bucket_swept,
}
