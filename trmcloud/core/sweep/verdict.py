"""What the results of a sweep show: whether the winner beats the default, which settings matter,
what the money bought, and what more of it may buy. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum

from trmcloud.core.money import ZERO, Usd
from trmcloud.core.sweep.halving import DEFAULT_TRIAL
from trmcloud.core.sweep.space import Parameter
from trmcloud.core.sweep.state import SweepState, Trial, best_of
from trmcloud.core.sweep.terms import Goal, SweepTerms
from trmcloud.core.values import dataclass

NEXT_USD = Usd(50)
_T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
"""Student's t for 95 %, two-sided, by degrees of freedom from 1."""
_T_95_MORE = 2.086
"""For more degrees of freedom: a little too wide."""
_BINS = 3
_LEAST_IN_BIN = 3
_QUARTERS = 4


class Finding(str, Enum):
    """What is known of the winner against the default."""

    BETTER = "better"
    NOT_BETTER = "not_better"
    """Nothing beats the default by more than the noise between seeds."""
    DEFAULT = "default"
    """The default is the winner."""
    NOT_TESTED = "not_tested"
    """The two, or their noise, were not measured at the same rung."""
    NO_RESULT = "no_result"
    """No trial has a metric."""


@dataclass(frozen=True)
class Verdict:
    """The winner against the default. ``gain`` is by how much the winner's metric is better, above
    0 for better whatever the goal, between ``low`` and ``high`` with 95 % confidence; ``noise`` is
    the standard deviation between seeds. None: not measured. ``rung`` is where they are compared.
    """

    finding: Finding
    winner: int | None = None
    rung: int = -1
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    noise: float | None = None
    seeds: int = 0
    """How many trainings the interval is of."""


def judge(state: SweepState, terms: SweepTerms) -> Verdict:
    """Return whether the winner beats the default by more than noise.

    Two means are compared by Student's t with the pooled variance of all settings that were trained
    with several seeds: gain ± t × s × √(1/n + 1/m). The winner was chosen for its first result, so
    that counts for the noise alone: its mean is that of the other seeds. Where 20 settings are all
    alike, and two seeds each of the best and the default are compared, 3.1 % of winners seem better
    (200,000 simulated): not 2.5 %, as the first result narrows the noise where the second is alike.
    """
    winner = best_of(state.trials.values(), terms.goal)
    if winner is None:
        return Verdict(Finding.NO_RESULT)
    default = state.trials[DEFAULT_TRIAL]
    groups = _groups(state)
    variance, freedom = _pooled_variance(list(groups.values()))
    noise = math.sqrt(variance) if freedom else None
    seeds = sum(len(each) for each in groups.values() if len(each) > 1)
    if winner.number == DEFAULT_TRIAL:
        return Verdict(Finding.DEFAULT, winner.number, winner.rung, noise=noise, seeds=seeds)
    sign = 1.0 if terms.goal is Goal.MIN else -1.0
    fresh = groups.get(winner.number, [])[1:]
    others = groups.get(DEFAULT_TRIAL, [])
    if not fresh or not others or not freedom:
        rung, gain = _first_gain(winner, default, sign)
        return Verdict(Finding.NOT_TESTED, winner.number, rung, gain, noise=noise, seeds=seeds)
    gain = sign * (sum(others) / len(others) - sum(fresh) / len(fresh))
    t = _T_95[freedom - 1] if freedom <= len(_T_95) else _T_95_MORE
    half = t * math.sqrt(variance * (1 / len(fresh) + 1 / len(others)))
    finding = Finding.BETTER if gain - half > 0 else Finding.NOT_BETTER
    return Verdict(finding, winner.number, terms.last, gain, gain - half, gain + half, noise, seeds)


def _groups(state: SweepState) -> dict[int, list[float]]:
    """Return the final metrics of settings that were trained to the end, by the trial that they are
    of: its own first, then its repetitions'."""
    groups: dict[int, list[float]] = {}
    for trial in state.trials.values():
        result = trial.results[-1] if trial.results else None
        if result is not None and trial.is_complete and result.metric is not None:
            groups.setdefault(trial.repeats or trial.number, []).append(result.metric)
    return groups


def _pooled_variance(groups: list[list[float]]) -> tuple[float, int]:
    """Return the variance within groups, and its degrees of freedom; 0 and 0 without any."""
    squares, freedom = 0.0, 0
    for each in groups:
        mean = sum(each) / len(each)
        squares += sum((value - mean) ** 2 for value in each)
        freedom += len(each) - 1
    return (squares / freedom if freedom else 0.0), freedom


def _first_gain(winner: Trial, default: Trial, sign: float) -> tuple[int, float | None]:
    """Return the highest rung where both have a metric, and the gain there."""
    for result in reversed(winner.results):
        other = default.metric_at(result.rung)
        if result.metric is not None and other is not None:
            return result.rung, sign * (other - result.metric)
    return -1, None


@dataclass(frozen=True)
class Importance:
    """The share of the variance of the trials' ranks that a parameter alone explains, 0 to 1."""

    name: str
    share: float


def importance(state: SweepState, terms: SweepTerms) -> tuple[Importance, ...]:
    """Return the parameters, the most important first; none with too few trials to say.

    Trials are ranked by the last rung that they reached, then by their metric there. A parameter's
    values are put into three bins of about as many trials each (a choice: each value its own; where
    the parameter does not exist: another), and its share is ε² of the ranks over the bins, the
    correlation ratio without its bias (Kelley 1935): 1 − (1 − η²)(n − 1) ÷ (n − k). Effects that
    need two parameters are not seen, and points that a sampler chose are no random sample.
    """
    tried = [
        trial
        for trial in state.trials.values()
        if not trial.repeats and trial.results and trial.results[-1].metric is not None
    ]
    sign = 1.0 if terms.goal is Goal.MIN else -1.0
    standing = [(-t.results[-1].rung, sign * (t.results[-1].metric or 0.0)) for t in tried]
    ranks = _ranks(standing)
    found = []
    for place, parameter in enumerate(terms.space.free):
        shares = [terms.space.shares(trial.point)[place] for trial in tried]
        bins = _bins(shares, parameter)
        if len(set(bins)) > 1 and len(tried) >= _LEAST_IN_BIN * len(set(bins)):
            found.append(Importance(parameter.name, _epsilon_squared(ranks, bins)))
    return tuple(sorted(found, key=lambda each: (-each.share, each.name)))


def _ranks(values: Sequence[tuple[float, float]]) -> list[float]:
    """Return the rank of each, equal ones the mean of theirs."""
    order = sorted(range(len(values)), key=lambda number: values[number])
    ranks = [0.0] * len(values)
    first = 0
    while first < len(order):
        beyond = first
        while beyond < len(order) and values[order[beyond]] == values[order[first]]:
            beyond += 1
        for number in order[first:beyond]:
            ranks[number] = (first + beyond - 1) / 2
        first = beyond
    return ranks


def _bins(shares: Sequence[float | None], parameter: Parameter) -> list[int]:
    known = sorted(share for share in shares if share is not None)
    if parameter.count <= _BINS or not parameter.is_ordered:
        values = sorted(set(known))
        return [-1 if share is None else values.index(share) for share in shares]
    ends = [known[len(known) * part // _BINS] for part in range(1, _BINS)] if known else []
    return [-1 if share is None else sum(share >= end for end in ends) for share in shares]


def _epsilon_squared(ranks: Sequence[float], bins: Sequence[int]) -> float:
    count, names = len(ranks), sorted(set(bins))
    mean = sum(ranks) / count
    whole = sum((rank - mean) ** 2 for rank in ranks)
    if not whole or count <= len(names):
        return 0.0
    within = 0.0
    for name in names:
        inside = [rank for rank, one in zip(ranks, bins, strict=True) if one == name]
        middle = sum(inside) / len(inside)
        within += sum((rank - middle) ** 2 for rank in inside)
    return max(0.0, 1.0 - within / whole * (count - 1) / (count - len(names)))


@dataclass(frozen=True)
class Quarter:
    """What had been reached when ``spent`` of the money that the sweep took was spent: the best
    metric so far, of which trial, and how many trials had a result."""

    spent: Usd
    best: float | None
    trial: int | None
    trials: int


def quarters(state: SweepState, terms: SweepTerms) -> tuple[Quarter, ...]:
    """Return the state after each quarter of the money that was spent."""
    whole = state.spent + state.idle
    found = []
    for part in range(1, _QUARTERS + 1):
        until = Usd.from_micros(whole.micros * part // _QUARTERS)
        best: tuple[float, int] | None = None
        seen = set()
        for _, metric, trial in curve_points(state, until):
            seen.add(trial)
            if best is None or terms.goal.best(metric, best[0]):
                best = metric, trial
        found.append(
            Quarter(until, best[0] if best else None, best[1] if best else None, len(seen))
        )
    return tuple(found)


def curve_points(state: SweepState, until: Usd | None = None) -> list[tuple[Usd, float, int]]:
    """Return (spent by the sweep, metric, trial) of each result, in the order of the money."""
    return sorted(
        (result.spent, result.metric, trial.number)
        for trial in state.trials.values()
        if not trial.repeats
        for result in trial.results
        if result.metric is not None and (until is None or result.spent <= until)
    )


def best_so_far(state: SweepState, terms: SweepTerms) -> list[tuple[Usd, float, int]]:
    """Return the results that were better than all before: (spent, metric, trial)."""
    found: list[tuple[Usd, float, int]] = []
    for spent, metric, trial in curve_points(state):
        if not found or terms.goal.best(metric, found[-1][1]):
            found.append((spent, metric, trial))
    return found


def expected_gain(state: SweepState, terms: SweepTerms, more: Usd = NEXT_USD) -> float | None:
    """Return by how much ``more`` dollars may improve the best metric, 0 or more: an extrapolation.
    None: too little is known.

    Rule: each doubling of the money brings what the last doubling brought. From half of the money
    to all of it the best improved by g; ``more`` brings g × log₂(1 + more ÷ spent). Only results of
    the highest rung that had one at half of the money count: later rungs are better for their
    longer training, not for their settings.
    """
    whole = state.spent + state.idle
    half = Usd.from_micros(whole.micros // 2)
    results = [
        (result.spent, result.rung, result.metric)
        for trial in state.trials.values()
        if not trial.repeats
        for result in trial.results
        if result.metric is not None
    ]
    early = [each for each in results if each[0] <= half]
    if not early or more <= ZERO:
        return None
    rung = max(each[1] for each in early)
    choose = min if terms.goal is Goal.MIN else max
    before = choose(metric for _, at, metric in early if at == rung)
    after = choose(metric for _, at, metric in results if at == rung)
    return abs(after - before) * math.log2(1 + more.micros / whole.micros)
