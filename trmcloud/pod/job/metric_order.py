"""Which value of the metric belongs to which checkpoint: by steps and epochs, else by their order.

A script evaluates and then saves, or saves and then evaluates. Where names and log bear the same
step or epoch, they decide. Otherwise the order is learned from what lies between a value and a
save: lines of training, and time. All of it is arithmetic on what was seen; see docs/decisions.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import NamedTuple

from trmcloud.pod.job.artifacts import NameNumbers

BEFORE, AFTER = "evaluates, then saves", "saves, then evaluates"
AT_ONCE_S = 0.3
"""A value and a save that lie no further apart are of one moment: a log is read a little late."""
_CLOCKS_S = 0.05
"""A line is never read before it was written, but for the clock of files."""
_MOST = 20_000
_FAR = 3.0
"""So many times further from a save than the other one, a value is not that save's."""
_SURE = 2
"""Votes by which one order must lead while the command runs; one is enough once it has ended."""


WeightsState = tuple[int, int]
"""The id of a process, and how often its optimizers had stepped: the same weights, as long as it is
the same. See ``trmcloud_observer``."""


OF_TRAINING, TEXT, OF_BATCH, OF_HELD_OUT, OBSERVED, REPORTED = range(6)
"""Sources of a metric: what is printed or logged in files, by the split that its line names (of
batch: of one batch of a held-out split), what the script gives to its trackers, and what it reports
to us. Once a later one has told the metric, earlier ones do not count."""


class Value(NamedTuple):
    """A value of the metric as the log told it. ``step`` and ``epoch``: of the line itself."""

    at: float
    value: float
    step: int | None = None
    epoch: int | None = None
    counter: str = ""
    """The word before the number of its step."""
    is_redrawn: bool = False
    """It is part of a progress bar, as a mean up to now: the bar's next one takes its place."""


class SavedCheckpoint(NamedTuple):
    """A checkpoint that was written at ``at``, and the numbers that its name bears."""

    at: float
    marks: NameNumbers = NameNumbers()
    state: WeightsState | None = None
    """Of the weights in it, where that was observed."""

    @property
    def epoch(self) -> int | None:
        """The epoch that its name bears, or the one number in it that is not called a step:
        ``checkpoint-20``."""
        marks = self.marks
        number = marks.number if marks.counter or marks.step is None else marks.step
        return number if marks.epoch is None else marks.epoch


class MetricAssignment(NamedTuple):
    """The value of a checkpoint. ``by`` says how it was found: state, step, epoch, time or order;
    ``pending``: it may still come, or change. ``other`` is its value if the order is the other one.
    """

    value: Value | None
    by: str = ""
    pending: bool = False
    other: Value | None = None

    @property
    def is_ambiguous(self) -> bool:
        return self.by == "" and self.value != self.other


@dataclass
class _Aside:
    """The first value of a split that other values of the metric are not of."""

    value: Value
    source: int
    state: WeightsState | None


class MetricOrder:
    """One attempt's values and saves. Times are epoch seconds and come in their order, almost."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.saves: list[SavedCheckpoint] = []
        self.counters: set[str] = set()
        """The words that the log has before numbers of steps: each is a counter of its own."""
        self._training: list[float] = []
        """When lines of training were seen."""
        self._steps: set[int] = set()
        self._stepped: list[tuple[float, int]] = []
        """When the log named which step."""
        self.has_ended = False
        self._source = OF_TRAINING
        self._aside: list[_Aside] = []
        self._states: dict[WeightsState, list[Value]] = {}
        """By state, the values that are of it."""
        self._state_of: dict[Value, WeightsState] = {}
        self._newest: dict[int, int] = {}
        """By process, the state that was heard of last."""
        self._unmarked: list[Value] = []
        """Values that were printed since the last mark."""
        self._known: tuple[int, int, int, bool] | None = None
        self._order = ""

    @property
    def source(self) -> int:
        """What tells the metric, as of now."""
        return self._source

    def saw_training(self, at: float, step: int | None) -> None:
        self.note_step(at, step)
        if len(self._training) < _MOST and (not self._training or self._training[-1] <= at):
            self._training.append(at)

    def saw(self, value: Value, source: int = TEXT, state: WeightsState | None = None) -> None:
        """Note a value of the metric.

        Args:
            source: of a later source than those before, it is the first that counts; of an earlier
                one, it does not count.
            state: of the weights that it is of; None: not known, or not yet, of what is printed.
        """
        if source < self._source:
            return
        if source > self._source:
            aside = [each for each in self._aside if each.source == source]
            # The mean after an evaluation's batches is a second line of that split.
            is_mean = source == OF_HELD_OUT and (
                self._source == OF_BATCH or any(each.source == OF_BATCH for each in self._aside)
            )
            if source <= OF_HELD_OUT and self.values and not (aside or is_mean):
                self._aside.append(_Aside(value, source, state))
                return  # one line of another split, as at the end, does not make it the metric
            self._source, self._aside = source, []
            for known in (self.values, self._states, self._state_of, self._unmarked):
                known.clear()
            for each in aside:
                self.saw(each.value, source, each.state)
            self._unmarked.clear()  # a mark has passed them
        self.note_step(value.at, value.step)
        if state is not None:
            self._is_of(value, state)
        elif source <= OF_HELD_OUT:
            self._unmarked.append(value)
            del self._unmarked[:-_MOST]
        before = self._unmarked[-2] if self._newest and len(self._unmarked) > 1 else None
        if value.is_redrawn and before is not None and before.is_redrawn:
            # No step of an optimizer between them, as the marks of a process tell.
            self._unmarked.remove(before)
            self.values = [each for each in self.values if each is not before]
        if value.step is None and self.values:
            last = self.values[-1]
            repeats = last.value == value.value and 0 <= value.at - last.at <= AT_ONCE_S
            if repeats and last.step is not None:
                return  # the same value once more, as in "test loss 2.2 is the best so far"
        bisect.insort(self.values, value, key=_at)
        del self.values[: len(self.values) - _MOST]

    def mark(self, state: WeightsState, *, is_exact: bool = True) -> None:
        """What was printed since the last mark is of this state, if that is exact."""
        for value in self._unmarked if is_exact else ():
            self._is_of(value, state)
        self._unmarked.clear()
        for each in self._aside if is_exact else ():
            each.state = each.state or state
        self.reach(state)

    def reach(self, state: WeightsState) -> None:
        """A process has trained to this state."""
        self._newest[state[0]] = max(state[1], self._newest.get(state[0], 0))

    def _is_of(self, value: Value, state: WeightsState) -> None:
        self.reach(state)
        self._states.setdefault(state, []).append(value)
        self._state_of[value] = state
        if len(self._state_of) > _MOST:
            oldest = next(iter(self._state_of))
            self._states.pop(self._state_of.pop(oldest), None)

    def note_step(self, at: float, step: int | None) -> None:
        """Note the step at which the training was at ``at``."""
        if step is not None:
            self._steps.add(step)
            if not self._stepped or self._stepped[-1][0] <= at:
                self._stepped.append((at, step))
                del self._stepped[: len(self._stepped) - _MOST]

    def is_step(self, number: int, at: float) -> bool:
        """Whether a name's number may be a step: one that the log has named, or one not far from
        where the log was at ``at``. An index of checkpoints is none."""
        if number in self._steps:
            return True
        place = bisect.bisect_right(self._stepped, (at + AT_ONCE_S, 1 << 62))
        last = self._stepped[place - 1][1] if place else None
        return last is not None and last / 2 <= number <= 2 * last + 2

    def saw_save(self, saved: SavedCheckpoint) -> None:
        if len(self.saves) < _MOST and saved not in self.saves[-64:]:
            bisect.insort(self.saves, saved, key=_at)

    @property
    def order(self) -> str:
        """The order that was learned; empty while it is not known."""
        known = len(self.values), len(self.saves), len(self._training), self.has_ended
        if known != self._known:
            self._known = known
            by_training, by_time = self._votes()
            least = 1 if self.has_ended else _SURE
            self._order = _order_of(by_training, 1) or _order_of(by_time, least)
        return self._order

    def value_of(self, saved: SavedCheckpoint) -> MetricAssignment:
        """The value that belongs to a checkpoint, as far as that is known now."""
        if self._aside and not self.has_ended:  # another split may turn out to be the metric's
            return MetricAssignment(None, pending=True)
        if saved.state is None:
            return self._guessed(saved)
        values = self._states.get(saved.state, [])
        if values and len({value.value for value in values}) == 1:
            return MetricAssignment(values[-1], "state")
        is_over = self._newest.get(saved.state[0], 0) > saved.state[1]
        if not values and not is_over and not self.has_ended:
            return MetricAssignment(None, "state", pending=True)
        found = self._guessed(saved)
        if found.value is not None and found.value in self._state_of:
            is_other = self._state_of[found.value] != saved.state
            return found._replace(by="order" if is_other else found.by)
        return found

    def _guessed(self, saved: SavedCheckpoint) -> MetricAssignment:
        """By steps and epochs, else by time and order."""
        if (exact := self._exact(saved)) is not None:
            return exact
        first = bisect.bisect_left(self.values, saved.at - AT_ONCE_S, key=_at)
        near = self.values[first : bisect.bisect_right(self.values, saved.at + AT_ONCE_S, key=_at)]
        if len(near) == 1:
            return MetricAssignment(near[0], "time")
        before, after = self._before(saved), self._after(saved)
        order = self.order
        if order == BEFORE:
            return MetricAssignment(before, "order", pending=before is None and not self.has_ended)
        if order == AFTER:
            return MetricAssignment(after, "order", pending=after is None and not self.has_ended)
        return MetricAssignment(before, "", not self.has_ended, after)

    def _exact(self, saved: SavedCheckpoint) -> MetricAssignment | None:
        """By the step or epoch that both its name and a line of the log bear."""
        step = saved.marks.number if saved.marks.step is None else saved.marks.step
        with_steps = [v for v in self.values if v.step is not None]
        if step is not None and with_steps and self.is_step(step, saved.at):
            if len(self.counters) > 1:
                named = saved.marks.counter
                with_steps = [v for v in with_steps if v.counter and v.counter == named]
            if not with_steps:
                return None
            same = [v for v in with_steps if v.step == step]
            if same:
                return MetricAssignment(same[-1], "step")
            # Of another step: the last one up to it, unless another checkpoint lies between.
            later = any((v.step or 0) > step for v in with_steps)
            earlier = [v for v in with_steps if (v.step or 0) < step]
            found = earlier[-1] if earlier else None
            if found is not None and self._has_save_between(found.step or 0, step):
                found = None
            return MetricAssignment(found, "order", pending=not later and not self.has_ended)
        return self._by_epoch(saved) if not with_steps else None

    def _by_epoch(self, saved: SavedCheckpoint) -> MetricAssignment | None:
        values = [v for v in self.values if v.epoch is not None]
        if saved.epoch is None or not values or not self._count_alike(values):
            return None
        if any(v.epoch == saved.epoch for v in values):
            found = self._of_same_epoch(saved)
            return None if found is None else MetricAssignment(found, "epoch")
        if not self.has_ended and all((v.epoch or 0) < saved.epoch for v in values):
            return MetricAssignment(None, "epoch", pending=True)
        # Where the others have theirs by their names, this one has none.
        others = any(self._of_same_epoch(other) for other in self.saves)
        return MetricAssignment(None, "epoch") if others else None

    def _of_same_epoch(self, saved: SavedCheckpoint) -> Value | None:
        """The value with its name's epoch. Names may count from 0 where the log counts from 1: then
        it trained between the two."""
        same = [v for v in self.values if v.epoch is not None and v.epoch == saved.epoch]
        if not same:
            return None
        at = same[-1].at
        if abs(at - saved.at) <= AT_ONCE_S:
            return same[-1]
        nearest = self._nearest(saved, before=at < saved.at + AT_ONCE_S)
        trained = self._trained(min(at, saved.at), max(at, saved.at))
        return same[-1] if same[-1] == nearest and not trained else None

    def _has_save_between(self, since: int, until: int) -> bool:
        steps = (s.marks.number if s.marks.step is None else s.marks.step for s in self.saves)
        return any(since < step < until for step in steps if step is not None)

    def _count_alike(self, values: list[Value]) -> bool:
        """Whether names and log may both count epochs from the same number."""
        first = min((s.epoch for s in self.saves if s.epoch is not None), default=0)
        return first > 0 or any(v.epoch == 0 for v in values)

    def _before(self, saved: SavedCheckpoint) -> Value | None:
        """The last value up to the save, unless it trained, or saved another state, between the
        two."""
        found = self._nearest(saved, before=True)
        if found is None or self._trained(found.at, saved.at):
            return None
        between = self._saves_between(found.at + AT_ONCE_S, saved.at)
        return None if any(self._differ(s, saved) for s in between) else found

    def _after(self, saved: SavedCheckpoint) -> Value | None:
        found = self._nearest(saved, before=False)
        if found is None or self._trained(saved.at, found.at):
            return None
        between = self._saves_between(saved.at, found.at - _CLOCKS_S)
        return None if any(self._differ(saved, s) for s in between) else found

    def _nearest(self, saved: SavedCheckpoint, *, before: bool) -> Value | None:
        """The last value up to the save, or the first one from it on."""
        slack = AT_ONCE_S if before else -_CLOCKS_S
        place = bisect.bisect_right(self.values, saved.at + slack, key=_at) - before
        return self.values[place] if 0 <= place < len(self.values) else None

    def _saves_between(self, since: float, until: float) -> list[SavedCheckpoint]:
        first = bisect.bisect_right(self.saves, since, key=_at)
        return self.saves[first : bisect.bisect_left(self.saves, until, key=_at)]

    def _differ(self, first: SavedCheckpoint, second: SavedCheckpoint) -> bool:
        """Whether it trained between two saves, as far as its log tells."""
        if self._training:
            return self._trained(first.at, second.at)
        return second.at - first.at > 1.0

    def _trained(self, since: float, until: float) -> bool:
        first = bisect.bisect_right(self._training, since + AT_ONCE_S)
        return first < len(self._training) and self._training[first] < until - AT_ONCE_S

    def _votes(self) -> tuple[int, int]:
        """By lines of training, and by time. Positive: evaluates, then saves; negative: saves, then
        evaluates."""
        by_training = votes = 0
        for saved in self.saves[-200:]:
            place = bisect.bisect_right(self.values, saved.at, key=_at)
            if not 0 < place < len(self.values):
                continue
            before, after = self.values[place - 1], self.values[place]
            if after.at - saved.at <= AT_ONCE_S:
                continue  # read late, or told at once: it says nothing of the order
            early, late = self._trained(before.at, saved.at), self._trained(saved.at, after.at)
            if early != late:
                by_training += 1 if late else -1
                continue
            gap_before, gap_after = saved.at - before.at, after.at - saved.at
            if gap_before * _FAR < gap_after:
                votes += 1
            elif gap_after * _FAR < gap_before:
                votes -= 1
        return by_training, votes


def _order_of(votes: int, least: int) -> str:
    return BEFORE if votes >= least else AFTER if votes <= -least else ""


def _at(seen: Value | SavedCheckpoint) -> float:
    return seen.at
