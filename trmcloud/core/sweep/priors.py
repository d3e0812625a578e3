"""What is known of a sweep's points before its first trial: what earlier sweeps tried, the points
to begin with, and the sizes that do not fit the machine's memory. Pure.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from trmcloud.core.sweep.space import Parameter, Point, Space, Value
from trmcloud.core.values import dataclass, replace

UNKNOWN = -1e-9
"""The need of settings that cannot be, where it is not known."""
_NEVER = 1e9
_MOST_CELLS = 1024
_MOST_ON_AXIS = 17


@dataclass(frozen=True)
class Tried:
    """A point that was tried, with its finite metrics as (rung, metric) pairs: none while its first
    interval runs, or where it ``failed``. ``sweep`` is 0 for this sweep, else the number of an
    earlier one, of whose rungs and metrics only the order counts."""

    point: Point
    metrics: tuple[tuple[int, float], ...] = ()
    failed: bool = False
    sweep: int = 0
    complete: bool = False
    """It was trained to its end."""

    @property
    def prior(self) -> bool:
        """Whether an earlier sweep tried it."""
        return self.sweep > 0


@dataclass(frozen=True)
class EarlierTrial:
    """A trial of an earlier sweep, as it is kept: the highest rung where it had a metric, and that
    one; without a metric it failed."""

    point: Point
    rung: int
    metric: float | None

    def tried(self, sweep: int) -> Tried:
        """Return it as a sampler takes it, of the earlier sweep of that number."""
        if self.metric is None:
            return Tried(self.point, failed=True, sweep=sweep)
        return Tried(self.point, ((self.rung, self.metric),), sweep=sweep)


@dataclass(frozen=True)
class EarlierSweep:
    """Trials of an earlier sweep on the same code and data, the best first: their points are points
    of this sweep's space. Metrics are ranked within ``run_id`` alone, since its rungs are other
    dollars."""

    run_id: str
    trials: tuple[EarlierTrial, ...]


@dataclass(frozen=True)
class FirstPoint:
    """A point that is tried before those of the sampler, and the trial that it is from."""

    point: Point
    run_id: str
    trial: int


@dataclass(frozen=True)
class MemoryAxis:
    """A setting that changes the memory, and its values in the table, rising where they are
    numbers. ``is_whole``: all the values that it can have. ``may_lack``: the table's last place
    along it is for points that do not have the setting."""

    name: str
    values: tuple[Value, ...]
    is_whole: bool
    may_lack: bool = False

    @property
    def count(self) -> int:
        return len(self.values) + self.may_lack

    def places(self, value: Value | None) -> tuple[int, ...]:
        """Return the places of the table on both sides of ``value``; one where it is itself there;
        none where it is beyond them."""
        if value is None:
            return (len(self.values),) if self.may_lack else ()
        if value in self.values:
            return (self.values.index(value),)
        if self.is_whole or isinstance(value, bool | str):
            return ()
        above = next((n for n, each in enumerate(self.values) if each > value), 0)  # type: ignore[operator]
        return (above - 1, above) if above else ()


@dataclass(frozen=True)
class MemoryTable:
    """The memory that a process of a trial needs, by the settings that change it: as a share of
    what the smallest machine of the plan has, row by row, the last axis first. Below zero: there
    are no such settings, and they would need so much. Between two values of an axis the larger
    need counts."""

    axes: tuple[MemoryAxis, ...]
    shares: tuple[float, ...]
    room_gb: float
    """What the smallest machine has for a process."""
    died_at: float = _NEVER
    """The least share of which a trial has died: from there on nothing fits."""

    def share(self, point: Point) -> float | None:
        """Return what a trial at ``point`` needs, below zero where it cannot be; None: not
        known."""
        values = dict(point)
        corners = [axis.places(values.get(axis.name)) for axis in self.axes]
        if not all(corners):
            return None
        found = [self.shares[self._cell(corner)] for corner in itertools.product(*corners)]
        # What cannot be at a corner may well be beside it.
        return found[0] if len(found) == 1 else max(map(abs, found))

    def fits(self, point: Point) -> bool:
        """Whether a trial at ``point`` can be started: false only where it is known that the recipe
        has no such settings, or that they need more than the machine has, or as much as a trial
        that died of it."""
        share = self.share(point)
        return share is None or (0.0 <= share <= 1.0 and share < self.died_at)

    def after(self, died: Iterable[Point]) -> MemoryTable:
        """Return what is known once trials at ``died`` have run out of memory."""
        shares = [abs(share) for point in died if (share := self.share(point)) is not None]
        return replace(self, died_at=min(shares, default=_NEVER))

    @property
    def refused(self) -> tuple[int, int]:
        """(cells of the table that need too much memory, all cells whose settings can be)"""
        known = [share for share in self.shares if share >= 0.0]
        return sum(share > 1.0 for share in known), len(known)

    def least_refused(self) -> tuple[dict[str, Value], float] | None:
        """Return the settings that need the least of those that need too much, and their GB."""
        over = [(share, n) for n, share in enumerate(self.shares) if share > 1.0]
        if not over:
            return None
        share, number = min(over)
        return dict(_settings(self.axes, number)), share * self.room_gb

    def _cell(self, corner: Sequence[int]) -> int:
        number = 0
        for place, axis in zip(corner, self.axes, strict=True):
            number = number * axis.count + place
        return number


@dataclass(frozen=True)
class Priors:
    """``first`` are tried behind the default, in their order."""

    first: tuple[FirstPoint, ...] = ()
    earlier: tuple[EarlierSweep, ...] = ()
    memory: MemoryTable | None = None

    def tried(self) -> list[Tried]:
        """Return the trials of earlier sweeps as a sampler takes them."""
        return [
            each.tried(number)
            for number, sweep in enumerate(self.earlier, 1)
            for each in sweep.trials
        ]

    def fits(self, point: Point) -> bool:
        return self.memory is None or self.memory.fits(point)


NO_PRIORS = Priors()


def memory_table(
    space: Space, default: Point, need: Callable[[Point], float], room_gb: float
) -> MemoryTable | None:
    """Return the table of ``need``, a share of ``room_gb``, by the settings of ``space`` that
    change it; None where none does, or where choices alone have more than ``_MOST_CELLS`` values
    together.

    Each setting is moved alone, from the default and from both ends of the space on. ``need`` must
    rise or fall along a range whose values are not all in the table.
    """
    ends = (space.point([share] * len(space.free)) for share in (0.0, 1.0))
    bases = dict.fromkeys((default, *ends))
    moving = []
    for each in space.free:
        values = _values(each, 3)
        if any(
            len({need(_made(space, base, {each.name: value})) for value in values}) > 1
            for base in bases
        ):
            moving.append(each)
    axes = _axes(moving)
    if not axes:
        return None
    cells = range(math.prod(axis.count for axis in axes))
    shares = (need(_made(space, default, dict(_settings(axes, number)))) for number in cells)
    return MemoryTable(axes, tuple(shares), room_gb)


def _axes(moving: Sequence[Parameter]) -> tuple[MemoryAxis, ...]:
    """Return the axes of a table with at most ``_MOST_CELLS`` cells; none where there are more."""
    for most in range(_MOST_ON_AXIS, 1, -1):
        axes = []
        for each in moving:
            values = _values(each, most)
            is_whole = len(values) == each.count
            axes.append(MemoryAxis(each.name, values, is_whole, may_lack=bool(each.parent)))
        if math.prod(axis.count for axis in axes) <= _MOST_CELLS:
            return tuple(axes)
    return ()


def _values(parameter: Parameter, most: int) -> tuple[Value, ...]:
    """Return a choice's values, or at most ``most`` of a range, both ends included."""
    if parameter.values:
        numbers = [v for v in parameter.values if isinstance(v, int | float)]
        is_sortable = parameter.is_ordered and len(numbers) == len(parameter.values)
        return tuple(sorted(numbers)) if is_sortable else parameter.values
    count = int(min(parameter.count, most))
    if parameter.count <= most:
        return tuple(int(parameter.low) + n * parameter.step for n in range(count))
    drawn = {parameter.value(n / (count - 1)) for n in range(count)}
    return tuple(sorted(drawn))


def _settings(axes: Sequence[MemoryAxis], number: int) -> Iterator[tuple[str, Value]]:
    """Yield the settings of a cell, the last axis first."""
    for axis in reversed(axes):
        number, place = divmod(number, axis.count)
        if place < len(axis.values):
            yield axis.name, axis.values[place]


def _made(space: Space, base: Point, given: Mapping[str, Value]) -> Point:
    """Return ``base`` with the values of ``given``, and with what their conditions need."""
    values: dict[str, Value] = {each.name: each.value(0.0) for each in space.parameters}
    values |= dict(base)
    values |= given
    for each in reversed(space.parameters):  # a parent stands before what depends on it
        is_asked = each.name in given or any(
            one.parent == each.name and one.name in given for one in space.parameters
        )
        if each.parent and is_asked and each.parent not in given:
            values[each.parent] = each.when[0]
    return space.make(values)
