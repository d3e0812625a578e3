"""The learning-rate schedule: warm-up, then stable with a cooldown 1 − √t or 1 − t, a cosine, or
constant; and when a cooldown begins.

The rate is a pure function of the step once the cooldown is known, so a run that is stopped and
resumed repeats it bit for bit. Where steps alone bind, the cooldown is known from the start.
Where a deadline binds, one process decides it from a measured clock, again where steps become
faster or slower, and writes each decision down.

Steps are counted from 0 here: ``step`` is the one about to run, after ``step`` finished ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trmcloud.core.spec.settings import LINEAR, PhaseRecipe

WSD, COSINE, CONSTANT = "wsd", "cosine", "constant"

#: With a deadline, the cooldown takes this share of the time trained before it.
LEAST_COOLDOWN, MOST_COOLDOWN = 0.20, 0.40
#: Steps planned beyond those that fit. Cut short by the deadline, the last rates are merely not
#: quite zero; finished early, paid time would be left unused.
SURPLUS = 1.02
#: A cooldown that has begun follows the time: looked at after so many steps, and in its last ones,
#: and changed where it is off by more than this share of what is left.
FOLLOW_EVERY = 8
LAST_STEPS = 2
FOLLOW_BEYOND = 0.02
#: A run whose last rate was below this share of the full one counts as cooled.
COOLED_BELOW = 0.05


@dataclass(frozen=True)
class Cooldown:
    """Steps ``start`` to ``start + steps − 1`` cool; then the run has finished its schedule."""

    start: int
    steps: int
    deadline_at: float | None = None
    """The deadline (epoch seconds) it was decided for; None where steps alone decide."""
    done: float = 0.0
    """The share of the whole cooldown that was done at its start: 0, unless it replaced one that
    had begun."""
    began: int | None = None
    """The step at which the first of those began; None: this is the first."""
    asked: bool = False
    """It was begun since further steps no longer paid, and is the training's end."""

    @property
    def end(self) -> int:
        return self.start + self.steps

    @property
    def first(self) -> int:
        """The step at which the rate began to fall."""
        return self.start if self.began is None else self.began

    def behind(self, step: int) -> float:
        """t, the share of the cooldown that ``step`` is taken with: from above 0 to below 1, so
        that neither the first step is stable nor the last one idle."""
        past = max(0, min(step - self.start + 1, self.steps))
        return self.done + (1.0 - self.done) * past / (self.steps + 1)

    def followed_by(self, start: int, steps: int) -> Cooldown:
        """The cooldown that takes this one's place from ``start`` on, at the rate it had come to,
        and ends after ``steps`` more."""
        done = self.behind(start - 1)
        return Cooldown(start, steps, self.deadline_at, done, self.first, self.asked)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cooldown:
        began = data.get("began")
        return cls(
            int(data["start"]),
            int(data["steps"]),
            data["deadline_at"],
            float(data.get("done", 0.0)),
            None if began is None else int(began),
            bool(data.get("asked", False)),
        )


@dataclass(frozen=True)
class Costs:
    """Measured seconds: of one step, one evaluation, one save (without its evaluation)."""

    step_s: float
    evaluation_s: float
    save_s: float
    eval_every: int
    save_every: int

    def seconds(self, first: int, steps: int) -> float:
        """Time that ``steps`` steps from step ``first`` on take, with the pauses between them.

        Each pause has an evaluation and a save, since what was evaluated is mostly a new best. The
        pause after the very last step is left out: it is the landing's.
        """
        last = first + steps - 1
        saves, evaluations, both = (
            last // every - first // every
            for every in (
                self.save_every,
                self.eval_every,
                math.lcm(self.eval_every, self.save_every),
            )
        )
        pauses = evaluations + saves - both
        return steps * self.step_s + pauses * (self.evaluation_s + self.save_s)


def cooldown_of_steps(steps: int, fraction: float) -> Cooldown:
    """The cooldown of a run that only its steps end: the last ``fraction`` of them."""
    length = round(steps * fraction)
    return Cooldown(steps - length, length)


@dataclass(frozen=True)
class Schedule:
    """The factor on every rate, as a function of the step and of the cooldown.

    wsd: stable, and a cooldown over the last ``cooldown_fraction`` of the steps, or of the time
    where a deadline binds. cosine: falls over all ``steps``; where a deadline comes before their
    end, a cooldown takes it down from wherever it stands. constant: neither.
    """

    kind: str
    steps: int
    warmup_steps: int = 0
    cooldown_fraction: float = 0.0
    floor: float = 0.0
    """The factor at the end."""
    shape: str = "root"
    """How a cooldown falls: root (1 − √t) or linear (1 − t)."""

    @classmethod
    def of(cls, settings: PhaseRecipe) -> Schedule:
        is_linear = settings.schedule == LINEAR
        return cls(
            WSD if is_linear else settings.schedule,
            settings.steps,
            settings.warmup_steps,
            settings.cooldown_fraction,
            settings.rate_floor,
            "linear" if is_linear else "root",
        )

    @property
    def fraction(self) -> float:
        """Of the time before it, that a cooldown for a deadline may take; 0: there is none."""
        return 0.0 if self.kind == CONSTANT else self.cooldown_fraction

    def steps_to_cool(self, step: int) -> int:
        """Of a cooldown that begins with ``step`` because it is asked for; 0: there is none.

        As many as the schedule's own has, but no more than the steps before it: the cooldown is
        what still pays. Where steps alone plan none, as long as one for a deadline.
        """
        if self.fraction == 0.0:
            return 0
        own = self.own_cooldown
        length = own.steps if own is not None else round(_share(self.fraction) * step)
        return max(1, min(self.steps - step, step, length))

    @property
    def own_cooldown(self) -> Cooldown | None:
        """Return the cooldown where steps alone decide."""
        return cooldown_of_steps(self.steps, self.fraction) if self.kind == WSD else None

    def factor(self, step: int, cooldown: Cooldown | None, warm_from: int = 0) -> float:
        """The factor at ``step``, at most 1, and above 0 before the last step has been taken.

        Warm-up rises linearly from ``warm_from`` on. In the cooldown t = (step − start + 1) /
        (steps + 1), so that neither its first step is stable nor its last one idle, and one that
        follows the time goes on from the t it had come to; the cosine's angle is π·(step + 1) /
        (steps + 1) for the same reason.
        """
        warm = (step - warm_from + 1) / (self.warmup_steps + 1) if self.warmup_steps else 1.0
        warmed = min(1.0, max(warm, 1.0 / (self.warmup_steps + 1)))
        left = 1.0
        if self.kind == COSINE:
            done = min((step + 1) / (self.steps + 1), 1.0)
            left = 0.5 * (1.0 + math.cos(math.pi * done))
        if cooldown is not None and step >= cooldown.start:
            behind = cooldown.behind(step)
            left *= 1.0 - (behind if self.shape == "linear" else math.sqrt(behind))
        return warmed * (self.floor + (1.0 - self.floor) * left)

    def has_come_down(self, step: int, cooldown: Cooldown | None, warm_from: int = 0) -> bool:
        """Whether, after ``step`` finished ones, the rate has come down to its end, or so near
        that a deadline may cut it."""
        if self.kind == COSINE:
            begun, over = step > self.warmup_steps, step >= self.steps
        elif cooldown is not None:
            begun, over = step > cooldown.first, step >= cooldown.end
        else:
            return False
        if not begun or over:
            return over and begun
        last = self.factor(step - 1, cooldown, warm_from)
        return last < self.floor + COOLED_BELOW * (1.0 - self.floor)


def steps_that_fit(first: int, remaining_s: float, costs: Costs) -> int:
    """The most steps from ``first`` on that ``remaining_s`` seconds hold, pauses included."""
    if remaining_s <= 0 or costs.step_s <= 0:
        return 0
    low, high = 0, int(remaining_s / costs.step_s) + 1
    while low < high:
        middle = (low + high + 1) // 2
        if costs.seconds(first, middle) <= remaining_s:
            low = middle
        else:
            high = middle - 1
    return low


def is_due(
    step: int,
    *,
    steps: int,
    fraction: float,
    elapsed_s: float,
    remaining_s: float,
    by_steps_too: bool = True,
) -> bool:
    """Whether it is time to cool down.

    It is when what is left until the deadline is no more than ``fraction`` (held within 20
    to 40 %) of the time trained so far, or when the recipe's own steps begin to cool, whichever
    comes first. A ``fraction`` of 0 means that it never is.

    Args:
        by_steps_too: whether the recipe's own steps cool.
        elapsed_s: seconds since training began, earlier attempts included.
        remaining_s: seconds until the deadline; infinite where there is none.
    """
    if fraction == 0.0:
        return False
    by_steps = cooldown_of_steps(steps, fraction).start if by_steps_too else steps
    return remaining_s <= _share(fraction) * elapsed_s or step >= by_steps


def _share(fraction: float) -> float:
    """Of what was trained before it, that a cooldown takes which no step count has planned."""
    return min(max(fraction, LEAST_COOLDOWN), MOST_COOLDOWN)


def decide_cooldown(
    step: int,
    *,
    steps: int,
    fraction: float,
    elapsed_s: float,
    remaining_s: float,
    deadline_at: float,
    costs: Costs,
    by_steps_too: bool = True,
) -> Cooldown | None:
    """The cooldown beginning with ``step``, or None while it is too early: see ``is_due``."""
    if not is_due(
        step,
        steps=steps,
        fraction=fraction,
        elapsed_s=elapsed_s,
        remaining_s=remaining_s,
        by_steps_too=by_steps_too,
    ):
        return None
    fitting = math.ceil(steps_that_fit(step, remaining_s, costs) * SURPLUS)
    return Cooldown(step, max(1, min(steps - step, fitting)), deadline_at)


def follow(
    step: int, cooldown: Cooldown, *, steps: int, remaining_s: float, costs: Costs
) -> Cooldown | None:
    """The cooldown to go on with where ``cooldown`` would end too early or too late for the time
    that is left; None: it goes on.

    Args:
        steps: where the recipe's own end.
        remaining_s: seconds until the deadline.
    """
    left = cooldown.end - step
    if step - cooldown.start < FOLLOW_EVERY and left > LAST_STEPS:
        return None
    fitting = steps_that_fit(step, remaining_s, costs)
    wanted = min(steps - step, fitting)
    # One step fewer than fit is no reason: a clock's noise is not to be written down each time.
    slack = max(1, round(fitting * FOLLOW_BEYOND))
    if wanted < 1 or -slack <= left - wanted <= 2 * slack:
        return None
    return cooldown.followed_by(step, wanted)


def recent_mean(seconds: Iterable[float]) -> float:
    """A mean of step times in which one stray pause counts at most three medians; 0 of none."""
    ordered = sorted(seconds)
    if not ordered:
        return 0.0
    most = 3.0 * ordered[len(ordered) // 2]
    return sum(min(each, most) for each in ordered) / len(ordered)
