"""What a sweep does next: asynchronous successive halving (Li et al. 2020, arXiv 1810.05934) whose
rungs are dollars, within a budget that holds in the worst case. Pure.

Invariant: spent + the most that running intervals may cost + what is reserved ≤ the budget. Until
the winner is trained, ``winner_usd`` and ``confirm_usd`` of the terms are reserved; afterwards
``finish_usd`` and what is left of ``confirm_usd``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum
from statistics import median

from trmcloud.core.money import ZERO, Usd, total
from trmcloud.core.sweep import events as ev
from trmcloud.core.sweep.events import Purpose
from trmcloud.core.sweep.priors import Tried
from trmcloud.core.sweep.samplers import Sampler
from trmcloud.core.sweep.space import Point
from trmcloud.core.sweep.state import SweepState, Trial, TrialState, apply, best_of
from trmcloud.core.sweep.terms import Goal, SweepTerms
from trmcloud.core.values import Value

Price = Callable[[Point], float | None]
"""Predicts the dollars per step of a point on one slot; None: it does not know."""

DEFAULT_TRIAL = 1
_MOST_PASSED = 50
"""Points in a row that are too costly; after so many the space counts as used up."""
_INSTANT_S = 1e-3
"""What rounding of amounts to seconds may come to."""
_SEEDS_APART = 1_000_003


class Reason(str, Enum):
    """Why a sweep ended."""

    BUDGET = "budget"
    SPACE = "space"
    ONE_POINT = "one_point"
    TOO_SMALL = "too_small"
    CRASHES = "crashes"
    NO_METRIC = "no_metric"
    NOT_A_NUMBER = "not_a_number"
    EQUAL = "equal"
    STOPPED = "stopped"


class Begin(Value):
    """Start the trial at ``point`` with ``seed`` and train for ``train_usd``, until ``rung``. The
    interval costs at most ``most_usd``: it is killed there."""

    trial: int
    point: Point
    seed: int
    rung: int
    train_usd: Usd
    most_usd: Usd
    repeats: int = 0
    to_end: bool = False
    """Whether the rung is the last: a schedule ends there."""

    @property
    def event(self) -> ev.TrialStarted:
        return ev.TrialStarted(
            self.trial, self.point, self.seed, self.rung, self.most_usd, self.repeats, self.to_end
        )


class Seed2(Begin):
    """Start a repetition of trial ``repeats`` with another seed, to the last rung."""


class Continue(Value):
    """Train the trial on from its newest checkpoint for ``train_usd``, until ``rung``; a command
    that cannot resume trains from its start, and ``train_usd`` covers that."""

    trial: int
    rung: int
    train_usd: Usd
    most_usd: Usd
    to_end: bool = False
    """Whether the rung is the last: a schedule ends there."""
    purpose: Purpose = Purpose.SEARCH

    @property
    def event(self) -> ev.TrialContinued:
        return ev.TrialContinued(self.trial, self.rung, self.most_usd, self.to_end, self.purpose)


class FinishWinner(Continue):
    """Train the best trial on, out of what was reserved for it."""


class End(Value):
    """Nothing more is started. ``winner`` is the trial whose checkpoint is the result; None: no
    trial has one with a metric."""

    reason: Reason
    winner: int | None

    @property
    def event(self) -> ev.Ended:
        return ev.Ended(self.reason.value)


Move = Begin | Continue | End


def next_moves(
    state: SweepState,
    terms: SweepTerms,
    free_slots: int,
    sampler: Sampler,
    *,
    seconds_left: float = math.inf,
    earlier: Sequence[Tried] = (),
    price: Price | None = None,
) -> list[Move]:
    """Return what to do with ``free_slots`` slots: at most a move for each, or one End where
    nothing runs and nothing more is to be started. The caller writes each move's ``event`` before
    it acts on it.

    ``seconds_left`` is the time until the machine's soft stop: an interval whose most does not fit
    into it, beside the winner's, is not started. ``earlier`` are trials of earlier sweeps on the
    same code, for the sampler. ``price`` predicts a point's dollars per step, and is corrected by
    what was measured: points whose first rung buys fewer than ``least_steps`` are passed over.
    """
    if state.ended:
        return []
    moves: list[Move] = []
    desk = _Desk(state, terms, sampler, seconds_left, earlier, price)
    while len(moves) < free_slots and not state.stopping:
        move = desk.next()
        if move is None:
            break
        moves.append(move)
        desk.state = apply(desk.state, move.event)
    if not moves and not state.running:
        winner = best_of(state.trials.values(), terms.goal)
        return [End(desk.why_end(), winner.number if winner else None)]
    return moves


def reserved(state: SweepState, terms: SweepTerms) -> Usd:
    """Return what of the budget no other interval may use: for the winner, and for the comparison
    at the last rung."""
    released = state.finishing or state.is_trained
    winner = terms.finish_usd if released else terms.winner_usd
    running = (trial.most_usd for trial in state.running if trial.purpose is Purpose.CONFIRM)
    return winner + max(terms.confirm_usd - state.confirmed - total(running), ZERO)


def left(state: SweepState, terms: SweepTerms) -> Usd:
    """Return what may still be spent on search; never below zero while the invariant holds."""
    return terms.usd - state.committed - reserved(state, terms)


class _Desk:
    """The choice of the next move, for one state after another."""

    def __init__(
        self,
        state: SweepState,
        terms: SweepTerms,
        sampler: Sampler,
        seconds_left: float,
        earlier: Sequence[Tried],
        price: Price | None,
    ) -> None:
        self.state, self.terms, self.sampler = state, terms, sampler
        self.seconds_left, self.earlier = seconds_left, earlier
        self.price = price
        self.is_used_up = False

    def next(self) -> Move | None:
        if not self.state.trials:
            return self._begin(self.terms.default)
        if self.why_hopeless() is None:
            for choose in (self._again, self._promotion, self._new, self._greedy):
                if (move := choose()) is not None:
                    return move
        return self._finish() or self._confirm()

    def why_hopeless(self) -> Reason | None:
        """Return why more trials would show nothing."""
        least = max(3, self.terms.eta + 1)
        own = [trial for trial in self.state.trials.values() if not trial.repeats]
        tried = [trial for trial in own if trial.results or trial.state is TrialState.FAILED]
        metrics = [r.metric for trial in tried for r in trial.results if r.metric is not None]
        if not metrics:
            if len(tried) < least:
                return None
            found = Counter(trial.results[-1].problem if trial.results else "" for trial in tried)
            return _PROBLEMS[found.most_common(1)[0][0]]
        by_rung = [
            [m for trial in own if (m := trial.metric_at(rung)) is not None] for rung in (0, 1)
        ]
        enough = len(by_rung[0]) >= 2 * least and (self.terms.last < 1 or len(by_rung[1]) >= 2)
        return Reason.EQUAL if enough and all(len(set(each)) <= 1 for each in by_rung) else None

    def why_end(self) -> Reason:
        if self.state.stopping:
            return Reason.STOPPED
        if not self.state.trials:
            return Reason.TOO_SMALL
        if (hopeless := self.why_hopeless()) is not None:
            return hopeless
        if self.terms.space.is_one_point:
            return Reason.ONE_POINT
        return Reason.SPACE if self.is_used_up else Reason.BUDGET

    def _again(self) -> Move | None:
        """Run an interval again that was cut."""
        for trial in self.state.trials.values():
            if trial.is_interrupted:
                move = self._repeat(trial)
                if move is not None:
                    return move
        return None

    def _repeat(self, trial: Trial) -> Move | None:
        if trial.rung < 0 and not trial.ahead:
            return self._begin(trial.point, trial)
        for rung in range(trial.target, trial.rung, -1):
            move = self._continue(trial, rung, trial.purpose)
            if move is not None:
                return move
        return None

    def _promotion(self) -> Move | None:
        """Train on a trial that is among the best 1 ÷ eta of its rung: of the highest rung that has
        one."""
        for rung in range(self.terms.last - 1, -1, -1):
            ranked = self._ranked(rung)
            for trial in ranked[: len(ranked) // self.terms.eta]:
                if trial.rung == rung and trial.can_continue:
                    move = self._continue(trial, rung + 1)
                    if move is not None:
                        return move
        return None

    def _ranked(self, rung: int) -> list[Trial]:
        """Return the trials that reached ``rung``, the best first; those without a metric last."""
        reached = [
            trial
            for trial in self.state.trials.values()
            if not trial.repeats and any(result.rung == rung for result in trial.results)
        ]
        return sorted(reached, key=lambda trial: self._order(trial.metric_at(rung)))

    def _order(self, metric: float | None) -> tuple[bool, float]:
        sign = 1.0 if self.terms.goal is Goal.MIN else -1.0
        return metric is None, 0.0 if metric is None else sign * metric

    def _new(self) -> Move | None:
        """Begin a trial at a new point, if the money brings it anywhere: to its first rung, while
        what is reserved can train it to the end, else to its last."""
        released = self.state.finishing or self.state.is_trained
        rung = self.terms.last if released else 0
        if left(self.state, self.terms) < self.terms.most_usd(-1, rung):
            return None
        history = [*self.earlier, *history_of(self.state)]
        for _ in range(_MOST_PASSED):
            points = self.sampler.suggest(history, 1)
            if not points:
                break
            if self._buys_steps(points[0]):
                return self._begin(points[0])
            history.append(Tried(points[0], failed=True))
        self.is_used_up = True
        return None

    def _buys_steps(self, point: Point) -> bool:
        """Whether the first rung is enough for the least steps, as far as is known."""
        each = usd_per_step(self.state, point, self.price) if self.price else None
        return each is None or each * self.terms.least_steps <= float(self.terms.rungs[0])

    def _greedy(self) -> Move | None:
        """Train on the best of all that stand, whatever its rank: no new trial can be begun."""
        standing = [
            trial
            for trial in self.state.trials.values()
            if trial.can_continue and trial.rung < self.terms.last and not trial.repeats
        ]
        for trial in sorted(standing, key=lambda trial: self._order(trial.metric)):
            move = self._continue(trial, trial.rung + 1)
            if move is not None:
                return move
        return None

    def _finish(self) -> Move | None:
        """Train the best trial to the end; what runs is waited for, while the time allows that."""
        if self.state.finishing or self.state.is_trained:
            return None
        best = best_of(self.state.trials.values(), self.terms.goal)
        if best is None or not (best.can_continue or best.is_interrupted):
            return None
        running = [self.terms.seconds(trial.most_usd) for trial in self.state.running]
        needed = self.terms.seconds(self.terms.winner_usd)
        if running and needed + max(running) <= self.seconds_left:
            return None
        for rung in range(self.terms.last, best.rung, -1):
            move = self._continue(best, rung, Purpose.WINNER)
            if move is not None:
                return move
        return None

    def _confirm(self) -> Move | None:
        """Train the default to the end, then the winner and the default with other seeds."""
        terms = self.terms
        default = self.state.trials[DEFAULT_TRIAL]
        winner = best_of(self.state.trials.values(), terms.goal)
        searching = any(trial.purpose is not Purpose.CONFIRM for trial in self.state.running)
        if not terms.confirm_usd or winner is None or searching:
            return None
        if winner.state is not TrialState.COMPLETE:
            return None
        if default.can_continue and default.rung < terms.last:
            move = self._continue(default, terms.last, Purpose.CONFIRM)
            if move is not None:
                return move
        compared = [
            trial
            for trial in dict.fromkeys((winner.number, DEFAULT_TRIAL))
            if self.state.trials[trial].is_complete and self.state.trials[trial].metric is not None
        ]
        begun = Counter(trial.repeats for trial in self.state.trials.values())
        for repeat in range(1, terms.seeds):
            for number in compared:
                if begun[number] < repeat:
                    move = self._begin(
                        self.state.trials[number].point, repeats=number, repeat=repeat
                    )
                    if move is not None:
                        return move
        return None

    def _begin(
        self, point: Point, again: Trial | None = None, *, repeats: int = 0, repeat: int = 0
    ) -> Move | None:
        terms = self.terms
        if again is not None:
            number, seed, repeats = again.number, again.seed, again.repeats
        else:
            number = len(self.state.trials) + 1
            seed = terms.seed + repeat * _SEEDS_APART
        rung = terms.last if repeats else 0
        kind = Seed2 if repeats else Begin
        return self._affordable(
            kind(
                number, point, seed, rung, terms.train_usd(-1, rung), terms.most_usd(-1, rung),
                repeats, to_end=rung == terms.last,
            )
        )  # fmt: skip

    def _continue(self, trial: Trial, rung: int, purpose: Purpose = Purpose.SEARCH) -> Move | None:
        terms = self.terms
        train = terms.train_usd(trial.rung, rung)
        if terms.can_resume:
            train = max(train - trial.ahead, ZERO)
        kind = FinishWinner if purpose is Purpose.WINNER else Continue
        most = terms.most_usd(trial.rung, rung)
        return self._affordable(
            kind(trial.number, rung, train, most, to_end=rung == terms.last, purpose=purpose)
        )

    def _affordable(self, move: Begin | Continue) -> Move | None:
        """Return the move if its worst case fits into the money and the time beside all that is
        reserved. What is left of the time is the winner's before it is its repetitions'."""
        after = apply(self.state, move.event)
        kept = reserved(after, self.terms)
        if after.committed + kept > self.terms.usd:
            return None
        if isinstance(move, FinishWinner):
            kept = self.terms.finish_usd
        rest = self.terms.seconds(self.terms.by_slot(kept))
        return (
            move
            if self.terms.seconds(move.most_usd) + rest <= self.seconds_left + _INSTANT_S
            else None
        )


def usd_per_step(state: SweepState, point: Point, price: Price) -> float | None:
    """Return the dollars per step that ``price`` predicts for ``point``, times the median of what
    trials were measured at ÷ what it predicted for them; None: it predicts nothing."""
    predicted = price(point)
    if predicted is None:
        return None
    ratios = [
        trial.usd_per_step / expected
        for trial in state.trials.values()
        if trial.usd_per_step and (expected := price(trial.point))
    ]
    return predicted * (median(ratios) if ratios else 1.0)


def history_of(state: SweepState) -> list[Tried]:
    """Return the trials as a sampler takes them."""
    return [
        Tried(
            trial.point,
            tuple((r.rung, r.metric) for r in trial.results if r.metric is not None),
            failed=trial.state is TrialState.FAILED
            or any(result.metric is None for result in trial.results),
            complete=trial.is_complete,
        )
        for trial in state.trials.values()
        if not trial.repeats
    ]


_PROBLEMS = {
    "": Reason.CRASHES,
    ev.NO_METRIC: Reason.NO_METRIC,
    ev.NOT_A_NUMBER: Reason.NOT_A_NUMBER,
}
