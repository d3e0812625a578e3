"""What the results of a sweep show: whether the winner beats the default, which settings matter,
what the money bought, and what more of it may buy. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from statistics import median

from trmcloud.core.money import ZERO, Usd
from trmcloud.core.sweep.halving import DEFAULT_TRIAL
from trmcloud.core.sweep.space import Parameter
from trmcloud.core.sweep.state import SweepState, Trial, best_of
from trmcloud.core.sweep.terms import Goal, SweepTerms
from trmcloud.core.values import Value

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
_LEAST_TRIALS = 4
"""Of fewer, no gain is extrapolated."""


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


class Verdict(Value):
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


class Importance(Value):
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


class Quarter(Value):
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

    It is the larger of two gains. (1) Of training on: each trial that stands or runs is brought to
    the highest rung that ``more`` pays for, a rung at a time, by the median of what the others
    gained there. (2) Of new settings: e are all trials, brought to the last rung in the same way,
    and B(f) is the best e of the share f of the sweep, the mean of two: of the trials that began
    first, and the expectation for a random share, Σ f (1 − f)^i e_i of e in order, normalised. The
    last doubling of the money gained d = B(1) − B(1/2), and that is the share r = d ÷ (B(1/2) −
    B(1/4)), 1 at most, of the one before. ``more`` is n = log₂(1 + more ÷ spent) doublings, and
    each gains r times the one before: d (r + r² + … + rⁿ) = d r (1 − rⁿ) ÷ (1 − r). A rung that no
    trial has reached is not foreseen. How well this predicts: docs/soak/sweep.md.
    """
    whole = state.spent + state.idle
    sign = -1.0 if terms.goal is Goal.MIN else 1.0
    trials = [t for t in state.trials.values() if not t.repeats and t.metric is not None]
    trials = [trial for trial in trials if trial.results]
    if len(trials) < _LEAST_TRIALS or more <= ZERO or whole <= ZERO:
        return None
    gains = _rung_gains(trials, terms, sign)
    best = max(_at_rung(trial, trial.rung, gains, sign) for trial in trials)
    trained = max(
        _at_rung(trial, _affordable_rung(trial, terms, more), gains, sign) for trial in trials
    )
    ends = [
        (trial.results[0].spent, _at_rung(trial, terms.last, gains, sign))
        for trial in sorted(trials, key=lambda trial: trial.results[0].spent)
    ]
    doublings = math.log2(1 + more.micros / whole.micros)
    shares = [_best_of_share(ends, whole, share) for share in (1.0, 0.5, 0.25)]
    return max(trained - best, _of_doublings(shares, doublings), 0.0)


def _rung_gains(trials: Sequence[Trial], terms: SweepTerms, sign: float) -> list[float]:
    """Return, for each rung but the last, the median gain from it to the next; 0 where no trial
    has both."""
    found = []
    for rung in range(terms.last):
        pairs = [(trial.metric_at(rung), trial.metric_at(rung + 1)) for trial in trials]
        steps = [
            sign * (after - before)
            for before, after in pairs
            if before is not None and after is not None
        ]
        found.append(median(steps) if steps else 0.0)
    return found


def _at_rung(trial: Trial, rung: int, gains: Sequence[float], sign: float) -> float:
    """Return the trial's metric, higher for better, brought to ``rung``."""
    further = () if trial.is_complete else gains[max(trial.rung, 0) : rung]
    return sign * (trial.metric or 0.0) + sum(further)


def _affordable_rung(trial: Trial, terms: SweepTerms, more: Usd) -> int:
    """Return the highest rung to which ``more`` pays for the trial's training."""
    if not (trial.can_continue or trial.is_interrupted or trial.is_running):
        return trial.rung
    fitting = [
        rung
        for rung in range(trial.rung + 1, terms.last + 1)
        if terms.most_usd(trial.rung, rung) <= more
    ]
    return fitting[-1] if fitting else trial.rung


def _best_of_share(ends: Sequence[tuple[Usd, float]], whole: Usd, share: float) -> float:
    """Return the best of a share of the sweep: the mean of that of the first trials, and of the
    expectation for a random share. ``ends`` are (spent at its first result, value), in order."""
    until = Usd.from_micros(int(whole.micros * share))
    first = [value for spent, value in ends if spent <= until] or [ends[0][1]]
    expected, weights, weight = 0.0, 0.0, share
    for value in sorted((value for _, value in ends), reverse=True):
        expected += weight * value
        weights += weight
        weight *= 1 - share
    return (max(first) + expected / weights) / 2


def _of_doublings(shares: Sequence[float], doublings: float) -> float:
    """Return what so many further doublings gain; ``shares`` are the best of all, of half and of a
    quarter."""
    last, before = shares[0] - shares[1], shares[1] - shares[2]
    if last <= 0.0 or last >= before:
        return last * doublings
    ratio = last / before
    return last * ratio * (1 - math.pow(ratio, doublings)) / (1 - ratio)
