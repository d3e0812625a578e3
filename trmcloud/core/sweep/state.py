"""The state of a sweep, a fold over its events, and its one table of what may follow what. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import Any

from trmcloud.core.money import ZERO, Usd, total
from trmcloud.core.sweep import events as ev
from trmcloud.core.sweep.events import Purpose
from trmcloud.core.sweep.space import Point
from trmcloud.core.sweep.terms import Goal
from trmcloud.core.values import Value, replace

MOST_LOSSES = 3
"""A trial that was lost so many times without reaching a rung between is not started again: it may
be what ends the machine."""


class IllegalEvent(Exception):
    """An event that cannot happen in this state; the state is unchanged."""


class TrialState(str, Enum):
    RUNNING = "running"
    PAUSED = "paused"
    """At its last rung, with a checkpoint."""
    LOST = "lost"
    """Its interval is to be repeated."""
    LANDED = "landed"
    """Stopped between two rungs, with a checkpoint."""
    COMPLETE = "complete"
    """Trained to the end."""
    FAILED = "failed"
    DROPPED = "dropped"


class Result(Value):
    """A metric at a rung, and what the whole sweep had spent then."""

    rung: int
    metric: float | None
    spent: Usd
    step: int = 0
    problem: str = ""


class Trial(Value):
    """``rung`` is that of its newest checkpoint, −1: none; ``target`` the rung that it runs to, or
    ran to when it was lost."""

    number: int
    point: Point
    seed: int
    state: TrialState
    target: int
    rung: int = -1
    most_usd: Usd = ZERO
    """The most that the running interval may cost."""
    repeats: int = 0
    to_end: bool = False
    """Whether ``target`` is the last rung."""
    purpose: Purpose = Purpose.SEARCH
    """Of the interval that runs, or ran last."""
    spent: Usd = ZERO
    seconds: float = 0.0
    step: int = 0
    results: tuple[Result, ...] = ()
    losses: int = 0
    """Since it last reached a rung."""
    error: str = ""
    usd_per_step: float | None = None
    ahead: Usd = ZERO
    """Trained beyond its rung, where it landed before the next."""
    landed_metric: float | None = None
    """Of the checkpoint that it landed with."""

    def metric_at(self, rung: int) -> float | None:
        """Return its metric at ``rung``; None: it has none there."""
        for result in self.results:
            if result.rung == rung:
                return result.metric
        return None

    @property
    def metric(self) -> float | None:
        """The metric of its newest checkpoint; None: it has none."""
        if self.landed_metric is not None:
            return self.landed_metric
        return self.results[-1].metric if self.results else None

    @property
    def is_interrupted(self) -> bool:
        """Whether an interval of it was cut and is to be run."""
        return self.state in (TrialState.LOST, TrialState.LANDED)

    @property
    def is_running(self) -> bool:
        return self.state is TrialState.RUNNING

    @property
    def is_complete(self) -> bool:
        return self.state is TrialState.COMPLETE

    @property
    def can_continue(self) -> bool:
        """Whether it stands at a rung with a checkpoint and a finite metric, and has more to
        train."""
        return self.state is TrialState.PAUSED and self.metric is not None


class SweepState(Value):
    """All trials by their number, and the money. ``spent`` counts intervals that ended; ``idle`` is
    what slots without a trial cost beside it."""

    trials: Mapping[int, Trial] = field(default_factory=dict)
    spent: Usd = ZERO
    idle: Usd = ZERO
    overdrawn: Usd = ZERO
    """By how much intervals exceeded the most that they were allowed."""
    finishing: int = 0
    """The trial that is, or was, trained on as the winner; 0: none yet."""
    confirmed: Usd = ZERO
    """Of what is spent: on intervals for the comparison at the last rung."""
    is_trained: bool = False
    """Whether a trial came to its end with a metric; repetitions do not count."""
    stopping: str = ""
    ended: str = ""

    @property
    def running(self) -> tuple[Trial, ...]:
        return tuple(trial for trial in self.trials.values() if trial.is_running)

    @property
    def committed(self) -> Usd:
        """What is spent, with the most that running intervals may cost."""
        return total((self.spent, self.idle, *(trial.most_usd for trial in self.running)))

    def best(self, goal: Goal) -> Trial | None:
        """Return the trial with the best metric, whatever its rung; of equal ones the first.
        Repetitions with other seeds do not count, but for the trial that they repeat."""
        return best_of(self.trials.values(), goal)


def best_of(trials: Iterable[Trial], goal: Goal) -> Trial | None:
    """Return the one with the best last metric whose checkpoint there still is."""
    found: Trial | None = None
    most: float | None = None
    for trial in trials:
        gone = trial.state is TrialState.DROPPED or trial.repeats
        metric = None if gone else trial.metric
        if metric is not None and (most is None or goal.best(metric, most)):
            found, most = trial, metric
    return found


def fold(events: Iterable[ev.SweepEvent], state: SweepState | None = None) -> SweepState:
    """Return the state after ``events``.

    Raises:
        IllegalEvent: one cannot happen then.
    """
    state = state or SweepState()
    for event in events:
        state = apply(state, event)
    return state


def apply(state: SweepState, event: ev.SweepEvent) -> SweepState:
    """Return the state after one more event.

    Raises:
        IllegalEvent: it cannot happen now.
    """
    if state.ended:
        raise IllegalEvent(f"{type(event).__name__} after the end")
    if isinstance(event, ev.Ended) and state.running:
        raise IllegalEvent("an end while trials run")
    return _APPLY[type(event)](state, event)


def state_in(extras: Sequence[Mapping[str, Any]]) -> SweepState | None:
    """Return the state after the longest journal that published checkpoints have; None without one
    that can be read."""
    longest = max(map(ev.unpack_journal, extras), key=len, default=[])
    try:
        return fold(map(ev.read_event, longest)) if longest else None
    except (ValueError, IllegalEvent):
        return None


def lost_events(
    state: SweepState, amounts: Mapping[int, Usd], seconds: Mapping[int, float]
) -> tuple[ev.TrialLost, ...]:
    """Return the events by which an executor that starts again accounts for the trials that ran
    when it, or the machine, was lost. ``amounts`` has what is known of their cost by trial; of the
    others the most counts. All kept the checkpoints of their last rung."""
    return tuple(
        ev.TrialLost(
            trial.number,
            min(amounts.get(trial.number, trial.most_usd), trial.most_usd),
            seconds.get(trial.number, 0.0),
            trial.rung,
        )
        for trial in state.running
    )


def _started(state: SweepState, event: ev.TrialStarted) -> SweepState:
    known = state.trials.get(event.trial)
    if known is None:
        if event.trial != len(state.trials) + 1:
            raise IllegalEvent(f"trial {event.trial} is not the next one")
        known = Trial(
            event.trial, event.point, event.seed, TrialState.LOST, event.rung, repeats=event.repeats
        )
    if not known.is_interrupted or known.rung >= 0:
        raise IllegalEvent(f"trial {event.trial} is {known.state.value} and cannot start")
    running = replace(
        known,
        state=TrialState.RUNNING,
        target=event.rung,
        most_usd=event.most_usd,
        to_end=event.to_end,
        purpose=Purpose.CONFIRM if event.repeats else Purpose.SEARCH,
    )
    return _with(state, running)


def _continued(state: SweepState, event: ev.TrialContinued) -> SweepState:
    trial = _known(state, event.trial)
    if trial.state not in _STANDING or not trial.rung < event.rung:
        raise IllegalEvent(f"trial {event.trial} is {trial.state.value} at rung {trial.rung}")
    running = replace(
        trial,
        state=TrialState.RUNNING,
        target=event.rung,
        most_usd=event.most_usd,
        to_end=event.to_end,
        purpose=event.purpose,
    )
    state = _with(state, running)
    return replace(state, finishing=event.trial) if event.purpose is Purpose.WINNER else state


def _reached(state: SweepState, event: ev.RungReached) -> SweepState:
    trial = _paid(state, event.trial, event.usd, event.seconds)
    state = _account(state, _known(state, event.trial), event.usd)
    result = Result(event.rung, event.metric, state.spent + state.idle, event.step, event.problem)
    complete = event.complete or trial.to_end
    if complete and event.metric is not None and not trial.repeats:
        state = replace(state, is_trained=True)
    return _with(
        state,
        replace(
            trial,
            state=TrialState.COMPLETE if complete else TrialState.PAUSED,
            rung=event.rung,
            step=max(trial.step, event.step),
            results=(*trial.results, result),
            losses=0,
            ahead=ZERO,
            landed_metric=None,
        ),
    )


def _landed(state: SweepState, event: ev.TrialLanded) -> SweepState:
    trial = _paid(state, event.trial, event.usd, event.seconds)
    state = _account(state, _known(state, event.trial), event.usd)
    landed = replace(
        trial,
        state=TrialState.LANDED,
        step=max(trial.step, event.step),
        ahead=trial.ahead + event.usd,
        landed_metric=event.metric,
    )
    return _with(state, landed)


def _failed(state: SweepState, event: ev.TrialFailed) -> SweepState:
    trial = _paid(state, event.trial, event.usd, event.seconds)
    state = _account(state, _known(state, event.trial), event.usd)
    return _with(state, replace(trial, state=TrialState.FAILED, error=event.error))


def _lost(state: SweepState, event: ev.TrialLost) -> SweepState:
    before = _known(state, event.trial)
    trial = _paid(state, event.trial, event.usd, event.seconds)
    state = _account(state, before, event.usd)
    losses = trial.losses + 1
    kept = min(event.kept_rung, trial.rung)
    again = TrialState.FAILED if losses >= MOST_LOSSES else TrialState.LOST
    error = f"lost {losses} times" if again is TrialState.FAILED else trial.error
    return _with(
        state,
        replace(
            trial,
            state=again,
            error=error,
            losses=losses,
            rung=kept,
            ahead=trial.ahead if kept == trial.rung else ZERO,
            landed_metric=trial.landed_metric if kept == trial.rung else None,
            results=tuple(r for r in trial.results if kept == trial.rung or r.rung <= kept),
        ),
    )


def _dropped(state: SweepState, event: ev.TrialDropped) -> SweepState:
    trial = _known(state, event.trial)
    if trial.is_running:
        raise IllegalEvent(f"trial {event.trial} runs and cannot be dropped")
    return _with(state, replace(trial, state=TrialState.DROPPED))


def _paced(state: SweepState, event: ev.PaceMeasured) -> SweepState:
    trial = _known(state, event.trial)
    return _with(state, replace(trial, usd_per_step=event.usd_per_step))


def _idle(state: SweepState, event: ev.SlotsIdle) -> SweepState:
    return replace(state, idle=state.idle + event.usd)


def _stop(state: SweepState, event: ev.StopAsked) -> SweepState:
    return replace(state, stopping=state.stopping or event.why or "stopped")


def _ended(state: SweepState, event: ev.Ended) -> SweepState:
    return replace(state, ended=event.reason)


_STANDING = frozenset({TrialState.PAUSED, TrialState.LOST, TrialState.LANDED})
_APPLY: Mapping[type[Any], Callable[[SweepState, Any], SweepState]] = {
    ev.TrialStarted: _started,
    ev.TrialContinued: _continued,
    ev.RungReached: _reached,
    ev.TrialLanded: _landed,
    ev.TrialFailed: _failed,
    ev.TrialLost: _lost,
    ev.TrialDropped: _dropped,
    ev.PaceMeasured: _paced,
    ev.SlotsIdle: _idle,
    ev.StopAsked: _stop,
    ev.Ended: _ended,
}


def _known(state: SweepState, number: int) -> Trial:
    if number not in state.trials:
        raise IllegalEvent(f"there is no trial {number}")
    return state.trials[number]


def _with(state: SweepState, trial: Trial) -> SweepState:
    return replace(state, trials={**state.trials, trial.number: trial})


def _paid(state: SweepState, number: int, usd: Usd, seconds: float) -> Trial:
    """Return the trial that ran, with the interval's money and seconds."""
    trial = _known(state, number)
    if not trial.is_running:
        raise IllegalEvent(f"trial {number} is {trial.state.value} and does not run")
    return replace(trial, spent=trial.spent + usd, seconds=trial.seconds + seconds, most_usd=ZERO)


def _account(state: SweepState, trial: Trial, usd: Usd) -> SweepState:
    over = max(usd - trial.most_usd, ZERO)
    confirmed = state.confirmed + (usd if trial.purpose is Purpose.CONFIRM else ZERO)
    return replace(
        state, spent=state.spent + usd, overdrawn=state.overdrawn + over, confirmed=confirmed
    )
