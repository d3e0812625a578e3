"""The value of the next dollar in bits per byte, and the rules that end a training by it.

Between warm-up and cooldown, bits per byte fall about linearly in the logarithm of the steps. A
line through the newest half of the evaluations, by least squares, gives what more steps are
expected to buy; its standard error says how much more they still might.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

from trmcloud.core.contract.records import Asks, Step, within
from trmcloud.core.values import dataclass

_LEAST_IN_HALF = 6
LEAST_POINTS = 2 * _LEAST_IN_HALF - 1
"""Evaluations after the warm-up, before which nothing is said: the first ones of a training fall
ever more steeply, and a line through them promises too little."""
MOST_POINTS = 64
DOUBT = 2.0
"""Standard errors of the slope by which a rule trusts a training to buy more than its line says: it
is asked with each evaluation, and one standard error is exceeded by chance once in six. Student's t
of the 6 to 32 points that a line has is 2.1 to 1.7 at 95 %, one-sided."""
WORSE_BY = 0.01
"""Of its best bits per byte, an evaluation that is no longer scatter."""

Slope = Annotated[float, within(-1e6, 1e6)]
Rate = Annotated[float, within(0.0, 1e9)]


@dataclass(frozen=True)
class Curve:
    """The trend of a training: bits per byte change by ``slope`` for each e-fold of ``step``, which
    has a standard error of ``scatter``. ``since_best``: evaluations in a row without a better one.
    """

    step: Step
    slope: Slope
    scatter: Slope
    steps_per_hour: Rate
    since_best: Asks


@dataclass(frozen=True)
class StopRules:
    """``gain_per_usd``: the least bits per byte that a dollar is to buy, and ``patience``: the most
    evaluations in a row without a better one; 0: no such rule. ``usd_per_hour`` is the price."""

    gain_per_usd: Rate = 0.0
    patience: Asks = 0
    usd_per_hour: Rate = 0.0


def fit(points: Sequence[tuple[int, float]]) -> tuple[float, float] | None:
    """(slope, its standard error) of bits per byte over ln(step), of the newest half of ``points``,
    six at least; None where there are fewer."""
    if len(points) < LEAST_POINTS:
        return None
    newest = points[-((len(points) + 1) // 2) :]
    x, y = [math.log(max(1, step)) for step, _ in newest], [bpb for _, bpb in newest]
    mean_x, mean_y = math.fsum(x) / len(x), math.fsum(y) / len(y)
    spread = math.fsum((each - mean_x) ** 2 for each in x)
    if spread <= 0.0:
        return None
    slope = math.fsum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
    off = math.fsum((b - mean_y - slope * (a - mean_x)) ** 2 for a, b in zip(x, y, strict=True))
    return slope, math.sqrt(off / (len(x) - 2) / spread)


def since_best(points: Sequence[tuple[int, float]]) -> int:
    """Evaluations after the best one."""
    if not points:
        return 0
    return len(points) - 1 - min(range(len(points)), key=lambda at: points[at][1])


def is_worse(points: Sequence[tuple[int, float]]) -> bool:
    """Whether each of the newest three evaluations is worse than the best by more than scatter:
    what a cooldown would begin with is not what is to be kept."""
    if not points:
        return False
    newest = min(bpb for _, bpb in points[-3:])
    return newest > min(bpb for _, bpb in points) * (1 + WORSE_BY)


def gain_soon(
    curve: Curve, steps_left: int, most_hours: float = 1.0, *, at_most: bool = False
) -> float | None:
    """Bits per byte that an hour is expected to buy, over the next ``most_hours`` or the steps that
    are left, if those are fewer; ``at_most``: by ``DOUBT`` standard errors more. Below 0 where they
    rise; None where nothing is left."""
    if steps_left <= 0 or curve.steps_per_hour <= 0.0:
        return None
    hours = min(most_hours, steps_left / curve.steps_per_hour)
    slope = curve.slope - DOUBT * curve.scatter if at_most else curve.slope
    gain = -slope * math.log1p(curve.steps_per_hour * hours / max(1, curve.step)) / hours
    return gain if math.isfinite(gain) else None


def gain_per_usd(
    curve: Curve, steps_left: int, usd_per_hour: float, *, at_most: bool = False
) -> float | None:
    """Bits per byte that a dollar is expected to buy: the next one, or, where the steps that are
    left cost less, each of those few; None where nothing is paid, or nothing is left."""
    if usd_per_hour <= 0.0:
        return None
    hourly = gain_soon(curve, steps_left, 1.0 / usd_per_hour, at_most=at_most)
    return None if hourly is None else hourly / usd_per_hour


def why_stop(rules: StopRules, curve: Curve | None, steps_left: int) -> str:
    """By which rule the training no longer pays, in words; empty while it does."""
    if curve is None or steps_left <= 0:
        return ""
    if rules.patience and curve.since_best >= rules.patience:
        return f"{curve.since_best} evaluations in a row were no better than the best"
    hoped = gain_per_usd(curve, steps_left, rules.usd_per_hour, at_most=True)
    if not rules.gain_per_usd or hoped is None or hoped >= rules.gain_per_usd:
        return ""
    told = gain_per_usd(curve, steps_left, rules.usd_per_hour) or 0.0
    if told <= 0:
        return "the next dollar buys no better bpb"
    return f"the next dollar buys {told:.2g} bpb, less than {rules.gain_per_usd:.3g}"
