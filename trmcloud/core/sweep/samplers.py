"""Samplers: which settings a sweep tries next. Pure: history and seed decide the points.

``uniform`` draws at random, ``halton`` fills the space evenly, ``density`` draws near the settings
that did well. Others, outside of this package, keep the same interface.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Protocol

from trmcloud.core.errors import UsageError
from trmcloud.core.nearest import suggest_name
from trmcloud.core.sweep.priors import Priors, Tried
from trmcloud.core.sweep.space import Point, Space
from trmcloud.core.sweep.terms import Goal
from trmcloud.core.values import Value, dataclass

SCALED = (
    ("lr", "learning_rate", "matrix_lr"),
    ("width", "d_model", "hidden_size"),
    ("batch", "batch_size"),
)
"""Usual names of a learning rate, a width and a batch."""
_MASK = 2**64 - 1
_TRIES = 200
"""Draws for one point that is new and fits; after so many the space counts as used up."""

Fits = Callable[[Point], bool]


class Sampler(Protocol):
    """Draws points. ``history`` has every trial of this sweep in its order, those that run too, and
    may begin with trials of earlier ones. Fewer points than ``count``: no other can be found."""

    def suggest(self, history: Sequence[Tried], count: int) -> list[Point]: ...


def draw(*numbers: int) -> float:
    """Return a number from 0 to 1, below 1, that looks random and depends on ``numbers`` alone:
    SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) over each."""
    state = 0
    for number in numbers:
        state = (state ^ (number & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return (state >> 11) / 2**53


def suggest_each(
    suggest: Callable[[Sequence[Tried]], Point | None], history: Sequence[Tried], count: int
) -> list[Point]:
    """Return up to ``count`` points, each drawn by ``suggest`` with those before it as tried."""
    known = list(history)
    made: list[Point] = []
    while len(made) < count and (point := suggest(known)) is not None:
        made.append(point)
        known.append(Tried(point))
    return made


class ScalingRule(Value):
    """A learning rate that follows the model's width and the batch: ``rate`` × (width of the
    default ÷ width) × √(batch ÷ batch of the default).

    1 ÷ width is that of matrices under Adam in µP (Yang et al. 2022, arXiv 2203.03466, table 3);
    the root of the batch is that of adaptive optimizers (Malladi et al. 2022, arXiv 2205.10287).
    The rule moves the middle of the draw; the range stays. A name that the space does not have, or
    that is empty, has no effect.
    """

    rate: str = ""
    width: str = ""
    batch: str = ""

    def factor(self, point: Point, default: Point) -> float:
        """Return by what the rate is multiplied at ``point``, where the default's is 1."""
        here, there = dict(point), dict(default)
        factor = 1.0
        for name, power in ((self.width, -1.0), (self.batch, 0.5)):
            one, other = here.get(name), there.get(name)
            numbers = isinstance(one, int | float) and isinstance(other, int | float)
            if numbers and one > 0 and other > 0:  # type: ignore[operator]
                factor *= (one / other) ** power  # type: ignore[operator]
        return factor


@dataclass(frozen=True)
class _Drawing(ABC):
    """What every sampler here shares: new points that fit, from places of the unit cube."""

    space: Space
    default: Point
    goal: Goal = Goal.MIN
    seed: int = 0
    rule: ScalingRule = ScalingRule()
    fits: Fits | None = None

    def suggest(self, history: Sequence[Tried], count: int) -> list[Point]:
        return suggest_each(self._suggest_one, history, count)

    def _suggest_one(self, history: Sequence[Tried]) -> Point | None:
        tried = {each.point for each in history}
        own = sum(not each.prior for each in history)
        for attempt in range(_TRIES):
            point = self.shift(self.space.point(self._shares(history, own, attempt)))
            if point not in tried and (self.fits is None or self.fits(point)):
                return point
        return self._any_left(tried)

    def _any_left(self, tried: set[Point]) -> Point | None:
        """Return a point of a small space that draws have missed."""
        if self.space.count > _MOST_LISTED:
            return None
        for point in self.space.points():
            if point not in tried and (self.fits is None or self.fits(point)):
                return point
        return None

    @abstractmethod
    def _shares(self, history: Sequence[Tried], number: int, attempt: int) -> list[float]:
        """Return the place in the unit cube of draw ``number``, at its ``attempt``-th try."""

    def shift(self, point: Point, power: int = 1) -> Point:
        """Return the point with its learning rate moved by the rule (``power`` −1: moved back),
        within its range."""
        rate = next((p for p in self.space.free if p.name == self.rule.rate), None)
        values = dict(point)
        if rate is None or not rate.is_logarithmic or rate.name not in values:
            return point
        share = rate.share(values[rate.name])
        factor = self.rule.factor(point, self.default)
        moved = share + power * math.log(factor) / math.log(rate.high / rate.low)
        return self.space.make(values | {rate.name: rate.value(moved)})


@dataclass(frozen=True)
class Uniform(_Drawing):
    """Draws at random, each point for itself."""

    def _shares(self, history: Sequence[Tried], number: int, attempt: int) -> list[float]:
        return _random_shares(self.space, self.seed, number, attempt)


def _random_shares(space: Space, *numbers: int) -> list[float]:
    return [draw(*numbers, place) for place in range(len(space.free))]


@dataclass(frozen=True)
class Halton(_Drawing):
    """Fills the space evenly: Halton's sequence (1960), whose digits are permuted at random, each
    place of each base by itself (Owen 2017, arXiv 1706.02808)."""

    def _shares(self, history: Sequence[Tried], number: int, attempt: int) -> list[float]:
        # Points that are not new, or do not fit, are passed over: the next of the sequence follows.
        index = number + attempt * _STRIDE
        return [
            radical_inverse(index, base, self.seed) for base in first_primes(len(self.space.free))
        ]


@dataclass(frozen=True)
class Density(Halton):
    """Draws near the settings that did well: of candidates from the density of the good ones, the
    one where that is highest, divided by the density of the others (tree-structured Parzen
    estimator, Bergstra et al. 2011). Good are the few that came to the highest rungs, and were best
    there. The first points are Halton's; later every third is drawn at random."""

    def _shares(self, history: Sequence[Tried], number: int, attempt: int) -> list[float]:
        split = self._split(history)
        if split is None:
            return super()._shares(history, number, attempt)
        # Not Halton's: every third point of its sequence has the same last digit in base 3.
        plain = _random_shares(self.space, self.seed, number, attempt)
        every = _PLAIN_EVERY_WHOLE if _are_whole(history) else _PLAIN_EVERY
        if number % every == 0 or attempt > _TRIES // 2:
            return plain
        good, bad = (_Kernels(places, self.space) for places in split)
        is_ordered = [parameter.is_ordered for parameter in self.space.free]
        best, most = plain, -math.inf
        for candidate in range(_CANDIDATES):
            shares = self._candidate(split[0], good.widths, is_ordered, number, attempt, candidate)
            score = good.log_density(shares) - bad.log_density(shares)
            if score > most:
                best, most = shares, score
        return best

    def _split(
        self, history: Sequence[Tried]
    ) -> tuple[list[tuple[float | None, ...]], list[tuple[float | None, ...]]] | None:
        """Return the places of the good trials and of the others; None: too few were tried.

        Each sweep's trials are ranked among themselves. Those of earlier ones count until this one
        has enough of its own.
        """
        sign = 1.0 if self.goal is Goal.MIN else -1.0
        least = _LEAST_WHOLE if _are_whole(history) else _LEAST_TRIED
        groups: dict[int, list[tuple[int, float, int]]] = {}
        for number, each in enumerate(history):
            if each.metrics:
                standing = (-max(each.metrics)[0], sign * max(each.metrics)[1], number)
                groups.setdefault(each.sweep, []).append(standing)
        if len(groups.get(0, ())) >= least:
            groups = {0: groups[0]}
        if sum(map(len, groups.values())) < least:
            return None
        places = [self.space.shares(self.shift(each.point, -1)) for each in history]
        good, bad = [], []
        for group in groups.values():
            ranked = [number for _, _, number in sorted(group)]
            fewest = min(_LEAST_GOOD, math.ceil(len(ranked) * _LEAST_GOOD / least))
            count = max(fewest, math.ceil(_GOOD_SHARE * len(ranked)))
            good += [places[number] for number in ranked[:count]]
            bad += [places[number] for number in ranked[count:]]
        bad += [places[n] for n, e in enumerate(history) if e.failed and e.sweep in {0, *groups}]
        return good, bad

    def _candidate(
        self,
        good: list[tuple[float | None, ...]],
        widths: Sequence[float],
        is_ordered: Sequence[bool],
        *numbers: int,
    ) -> list[float]:
        """Return a draw from the density of the good ones: one of them, moved along each place."""
        centre = good[int(draw(self.seed, *numbers, -1) * len(good))]
        shares = []
        for place, middle in enumerate(centre):
            moved = draw(self.seed, *numbers, place, 0)
            if middle is not None and not is_ordered[place]:
                if draw(self.seed, *numbers, place, 1) >= widths[place]:
                    moved = middle
            elif middle is not None:
                moved = _near(middle, widths[place], moved)
            shares.append(moved)
        return shares


def _are_whole(history: Sequence[Tried]) -> bool:
    """Whether all results of this sweep are of trainings to the end."""
    own = [each.complete for each in history if each.metrics and not each.prior]
    return bool(own) and all(own)


_Words = list[tuple[int, float, float, float]]
"""Of the choices of a kernel: place, value, and the logarithms of that and of another value."""


class _Kernels:
    """A density of as many kernels as places, of equal weight: along an ordered parameter normal
    ones, along a choice the value itself or, rarely, any. Where a place is None, any share is as
    likely. Of no places it is uniform."""

    def __init__(self, places: list[tuple[float | None, ...]], space: Space) -> None:
        self.widths = [_bandwidth(places, place) for place in range(len(space.free))]
        is_ordered = [parameter.is_ordered for parameter in space.free]
        # By the ordered parameters that exist there: the logarithm of the kernels' height, and of
        # each its middle in widths and its words.
        self._groups: dict[tuple[int, ...], tuple[float, list[tuple[list[float], _Words]]]] = {}
        for middle in places:
            axes = tuple(
                place for place, one in enumerate(middle) if one is not None and is_ordered[place]
            )
            height = -sum(math.log(self.widths[place]) for place in axes)
            scaled = [(middle[place] or 0.0) / self.widths[place] for place in axes]
            words = [
                (place, one, math.log(1 - self.widths[place] / 2), math.log(self.widths[place] / 2))
                for place, one in enumerate(middle)
                if one is not None and not is_ordered[place]
            ]
            self._groups.setdefault(axes, (height, []))[1].append((scaled, words))

    def log_density(self, shares: Sequence[float]) -> float:
        """Return the logarithm of the mean of the kernels at ``shares``."""
        if not self._groups:
            return 0.0
        logarithms = []
        for axes, (height, kernels) in self._groups.items():
            here = [shares[place] / self.widths[place] for place in axes]
            for scaled, words in kernels:
                logarithm = height - 0.5 * math.dist(here, scaled) ** 2
                for place, one, same, other in words:
                    logarithm += same if shares[place] == one else other
                logarithms.append(logarithm)
        most = max(logarithms)
        return most + math.log(sum(math.exp(each - most) for each in logarithms) / len(logarithms))


def _bandwidth(places: list[tuple[float | None, ...]], place: int) -> float:
    """Return the width of each kernel along a place by Scott's rule, within bounds."""
    values = [each[place] for each in places]
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return _MOST_WIDTH
    mean = sum(known) / len(known)
    spread = math.sqrt(sum((value - mean) ** 2 for value in known) / (len(known) - 1))
    scott = 1.06 * spread * math.pow(len(known), -1 / (4 + len(places[0])))
    return min(max(scott, _LEAST_WIDTH), _MOST_WIDTH)


def _near(middle: float, width: float, share: float) -> float:
    """Return the place at ``share`` of a normal distribution around ``middle``, cut at 0 and 1."""
    normal = NormalDist(middle, width)
    low, high = normal.cdf(0.0), normal.cdf(1.0)
    between = min(max(low + share * (high - low), 1e-12), 1 - 1e-12)
    found: float = normal.inv_cdf(between)
    return min(max(found, 0.0), 1.0)


SAMPLERS: Mapping[str, type[_Drawing]] = {"density": Density, "halton": Halton, "uniform": Uniform}


def make_sampler(
    name: str,
    space: Space,
    default: Point,
    goal: Goal,
    seed: int,
    *,
    rule: ScalingRule | None = None,
    fits: Fits | None = None,
) -> Sampler:
    """Return the sampler ``name``. ``fits`` says whether a point's training fits the machine's
    memory: points that do not are never suggested.

    Raises:
        UsageError: there is none of that name here.
    """
    if name not in SAMPLERS:
        raise UsageError(f"there is no sampler {name!r}", next_step=suggest_name(name, SAMPLERS))
    return SAMPLERS[name](space, default, goal, seed, rule or ScalingRule(), fits)


class PointsFirst:
    """A sampler that suggests the first points of ``priors`` that fit, then those of ``rest``."""

    def __init__(self, priors: Priors, rest: Sampler) -> None:
        self._points = [each.point for each in priors.first if priors.fits(each.point)]
        self._rest = rest

    def suggest(self, history: Sequence[Tried], count: int) -> list[Point]:
        own = {each.point for each in history if not each.prior}
        made = [point for point in dict.fromkeys(self._points) if point not in own][:count]
        if len(made) < count:
            known = [*history, *map(Tried, made)]
            made += self._rest.suggest(known, count - len(made))
        return made


def radical_inverse(index: int, base: int, seed: int) -> float:
    """Return the digits of ``index`` in ``base``, each permuted, mirrored at the point."""
    share, unit = 0.0, 1.0
    for place in range(_PLACES):
        unit /= base
        if unit < 1e-12:
            break
        share += _permutation(base, place, seed)[index % base] * unit
        index //= base
    return min(share, 1.0 - 2**-53)


@lru_cache(maxsize=4096)
def _permutation(base: int, place: int, seed: int) -> tuple[int, ...]:
    return tuple(sorted(range(base), key=lambda digit: draw(seed, base, place, digit)))


def first_primes(count: int) -> list[int]:
    found: list[int] = []
    number = 2
    while len(found) < count:
        if all(number % prime for prime in found):
            found.append(number)
        number += 1
    return found


_PLAIN_EVERY, _PLAIN_EVERY_WHOLE = 3, 8
_GOOD_SHARE = 0.05
_LEAST_TRIED, _LEAST_WHOLE, _LEAST_GOOD = 30, 10, 3
_CANDIDATES = 32
_LEAST_WIDTH, _MOST_WIDTH = 0.2, 0.5
_PLACES = 40
_STRIDE = 7919
"""Between tries for the same point: a large prime, so that the digits change in every base."""
_MOST_LISTED = 20_000
"""Spaces with at most so many points are looked through for the last that are left."""
