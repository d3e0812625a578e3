"""A run's life: its states, what is known in them, and the one table of transitions; see
``run_fold`` for what each event changes."""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Mapping

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.control import events as ev
from trmcloud.core.control.action_key import ActionKey, FailureKind
from trmcloud.core.control.reason import Reason
from trmcloud.core.money import ZERO, Usd, total
from trmcloud.core.outcome import Outcome
from trmcloud.core.values import dataclass

if TYPE_CHECKING:
    from trmcloud.core.spec.plan import Candidate, Plan, RecordedPlan
    from trmcloud.core.spec.spec import RunSpec


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
    ev.SaveRequested: frozenset({State.RUNNING}),
    ev.PlanRevised: frozenset({State.RESERVED}),
    ev.PodMissed: frozenset({State.RENTING, State.BOOTING, State.RUNNING, State.ENDING}),
    ev.PodFound: frozenset({State.RENTING, State.BOOTING, State.RUNNING, State.ENDING}),
    ev.PhaseEnded: frozenset({State.RUNNING, State.ENDING, State.SETTLING, State.SETTLED}),
    ev.GateJudged: frozenset({State.RUNNING, State.ENDING, State.SETTLING, State.SETTLED}),
    ev.ResultKnown: frozenset({State.SETTLING}),
    ev.Pulled: frozenset({State.RUNNING, State.ENDING, State.SETTLING, State.SETTLED}),
    ev.Fetched: frozenset(State) - {State.NEW},
    ev.LateReport: frozenset({State.RUNNING, State.ENDING, State.SETTLING, State.SETTLED}),
    ev.Billed: frozenset(State) - {State.NEW, State.PLANNED},
    ev.BucketSwept: frozenset({State.CLOSED}),
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
    failed_kind: FailureKind | None = None
    error: str = ""
    taken: bool = False
    """Whether the provider said that it does what it was asked to."""
    reason: Reason | None = None
    """Why a pod was told to land or to end, once it was."""

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
    unfit: Reason | None = None
    """Why this machine was refused before anything was trained on it."""
    missed_at: float | None = None
    """Since when every fresh list has lacked the pod."""
    missed_boot: float = 0.0
    missed_boot_id: str = ""
    """The same, by a clock that nobody sets."""
    ended_at: float | None = None
    gone_at: float | None = None
    """When its end was put on record, by the clock of whoever did."""
    boot: float = 0.0
    boot_id: str = ""
    """When its intent was put on record, by a clock that nobody sets."""
    lived_s: float | None = None
    """From intent to end on record by that clock; None where no one machine saw both."""
    saves_asked: int = 0
    """How often its pod was asked for a checkpoint."""
    not_made: Reason | None = None
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
    recorded_plan: RecordedPlan | None = None
    """None in state new alone: see ``plan``."""
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
    errand: str | None = None
    """The candidate that is rented only to bring checkpoints home; None while it trains."""
    resumed: ev.Reopened | None = None
    """How it was last told to go on training."""
    kept_outcome: Outcome | None = None
    kept_reason: Reason | None = None
    """What became of the training, while an errand is run."""
    pulled: Mapping[tuple[str, int], ev.Pulled] = field(default_factory=dict)
    """By (phase, step): each checkpoint that was copied here from its pod, verified."""
    fetched: tuple[ev.Fetched, ...] = ()
    swept_generation: int = 0
    """Up to which one the bucket was rid of what no pod was granted."""
    oversized: Mapping[int, tuple[int, Usd]] = field(default_factory=dict)
    """By the last generation that could have put it there: how many bytes that was, and what it has
    cost, which is in ``settled``."""
    swept_at: float = 0.0
    """When the bucket was last read for that: all that was there is counted up to then."""

    @property
    def plan(self) -> Plan:
        return self._planned.plan

    @property
    def spec(self) -> RunSpec:
        """Its plan's, which is had without all that was reckoned for it."""
        return self._planned.spec

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

    @property
    def _planned(self) -> RecordedPlan:
        if self.recorded_plan is None:
            raise ValueError(f"{self.run_id} has no plan in state {self.state.value}")
        return self.recorded_plan

    @property
    def oversized_bytes(self) -> int:
        return sum(size for size, _ in self.oversized.values())

    @property
    def oversized_rent(self) -> Usd:
        return total(rent for _, rent in self.oversized.values())

    @property
    def generation(self) -> Generation | None:
        return self.generations[-1] if self.generations else None

    def tries(
        self, generation: Generation, verb: str = "", item: str | None = None
    ) -> tuple[ActionState, ...]:
        """How what was tried for one of its pods stands: all of it, or of one verb, or of one verb
        and item. The first try is first."""
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
        """Whether its pod needs nobody here any more to train: code and data are on it, and it may
        upload where it is to."""
        generation = self.generation
        if self.state is not State.RUNNING or generation is None:
            return False
        if self.spec.pod_uploads and not any(
            grant.finished for grant in self.tries(generation, GRANT)
        ):
            return False
        return generation.staged_at is not None or generation.provider == LOCAL

    @property
    def unbilled(self) -> Usd:
        """What is settled at an estimate, until the provider's final figure."""
        late = (g.settled for g in self.generations if g.billed is None and g.settled is not None)
        return total(late)

    @property
    def billed(self) -> Usd | None:
        """What providers billed; None while any generation's bill is not known."""
        made = [g for g in self.generations if g.not_made is None]
        amounts = [g.billed for g in made]
        if not made or any(amount is None for amount in amounts):
            return None
        return total(amount for amount in amounts if amount is not None)
