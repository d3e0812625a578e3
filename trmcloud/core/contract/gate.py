"""Gates of a training: from fast to extreme, and the value of the next dollar."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from trmcloud.core.contract.records import Asks, Label, Step, finite, record_of, within
from trmcloud.core.values import Value

# The value of the next dollar in bits per byte, and the rule that ends a training.
#
# Between warm-up and cooldown, bits per byte fall about linearly in the logarithm of the steps. A
# line through the newest half of the evaluations, by least squares, gives what more steps are
# expected to buy; its standard error says how much more they still might.

_LEAST_IN_HALF = 6
LEAST_POINTS = 2 * _LEAST_IN_HALF - 1
"""Evaluations after the warm-up, before which nothing is said: the first ones of a training fall
ever more steeply, and a line through them promises too little."""
MOST_POINTS = 64
WORSE_BY = 0.01
"""Of its best bits per byte, an evaluation that is no longer scatter."""

Slope = Annotated[float, within(-1e6, 1e6)]
Rate = Annotated[float, within(0.0, 1e9)]


class Curve(Value):
    """The trend of a training: bits per byte change by ``slope`` for each e-fold of ``step``, which
    has a standard error of ``scatter``. ``since_best``: evaluations in a row without a better one.
    """

    step: Step
    slope: Slope
    scatter: Slope
    steps_per_hour: Rate
    since_best: Asks


class StopRules(Value):
    """``patience``: the most evaluations in a row without a better one; 0: any number."""

    patience: Asks = 0


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


def gain_soon(curve: Curve, steps_left: int, most_hours: float = 1.0) -> float | None:
    """Bits per byte that an hour is expected to buy, over the next ``most_hours`` or the steps that
    are left, if those are fewer. Below 0 where they rise; None where nothing is left."""
    if steps_left <= 0 or curve.steps_per_hour <= 0.0:
        return None
    hours = min(most_hours, steps_left / curve.steps_per_hour)
    gain = -curve.slope * math.log1p(curve.steps_per_hour * hours / max(1, curve.step)) / hours
    return gain if math.isfinite(gain) else None


def gain_per_usd(curve: Curve, steps_left: int, usd_per_hour: float) -> float | None:
    """Bits per byte that a dollar is expected to buy: the next one, or, where the steps that are
    left cost less, each of those few; None where nothing is paid, or nothing is left."""
    if usd_per_hour <= 0.0:
        return None
    hourly = gain_soon(curve, steps_left, 1.0 / usd_per_hour)
    return None if hourly is None else hourly / usd_per_hour


def words_of_patience(since_best: int) -> str:
    """Return why a phase ends whose patience that many evaluations have used."""
    return f"{since_best} evaluations in a row were not better than the best"


def why_stop(rules: StopRules, curve: Curve | None, steps_left: int) -> str:
    """Why the training no longer pays; empty while it does.

    The bundled trainer counts its patience itself, after each evaluation: see ``ENV_PATIENCE``.
    """
    if curve is None or steps_left <= 0 or not 0 < rules.patience <= curve.since_best:
        return ""
    return words_of_patience(curve.since_best)


# The gate between fast and extreme: is this training worth going on with?
#
# Blocking, since arithmetic backs them: every supervision step improves on the one before, on
# validation text; final-step bits per byte fell; nothing became infinite. A model that is judged
# once has no order and no bands: an evaluation says by name what it judged. The guides' bands for
# refinement and gradient norm are reported beside them and never block: refinement can be bought by
# making the first step worse, so it proves nothing alone.

#: (lowest, highest) of the guides, by the phase that is judged.
REFINEMENT_BANDS = {"fast": (0.15, 0.25), "extreme": (0.50, 0.97)}
GRADIENT_BANDS = {"fast": (0.5, 1.5), "extreme": (2.0, 15.0)}

_HUGE = 1e300


class Check(Value):
    """One criterion: ``passed`` is None where there was nothing to judge it by."""

    name: str
    passed: bool | None
    blocking: bool
    detail: str


class Verdict(Value):
    phase: Label
    passed: bool
    checks: tuple[Check, ...]

    def to_json(self) -> dict[str, Any]:
        return dict(finite(self))


def verdict_from_json(data: Any) -> Verdict:
    """
    Raises:
        ContractError: it is none.
    """
    return record_of(Verdict, data)


def judge(phase: str, metrics: Iterable[Mapping[str, Any]]) -> Verdict:
    """The verdict on a phase from its metrics lines (kinds ``train`` and ``eval``).

    Order and refinement are judged on the last evaluation's losses (nats per token of every
    supervision step); the gradient norm on the median of the second half of the training lines.
    A blocking criterion that cannot be judged fails: unknown is not good.
    """
    lines = list(metrics)
    evals = [line for line in lines if line.get("kind") == "eval"]
    train = [line for line in lines if line.get("kind") == "train"]
    checks: tuple[Check, ...] = (_falling(evals), _finite(train))
    if not _has_one_part(evals):
        bands = _refinement(phase, evals), _gradients(phase, train)
        checks = (_order(evals), *checks, *bands)
    passed = all(check.passed is True for check in checks if check.blocking)
    return Verdict(phase, passed, checks)


def refinement(step_losses: Sequence[float]) -> float | None:
    """(ℓ₀ − ℓ_last) / ℓ₀: a diagnostic, not a goal."""
    if len(step_losses) < 2 or not step_losses[0]:
        return None
    return (step_losses[0] - step_losses[-1]) / step_losses[0]


def _order(evals: Sequence[Mapping[str, Any]]) -> Check:
    name = "validation order"
    losses = _losses(evals)
    if losses is None:
        return Check(name, False, True, "a loss is not finite")
    if len(losses) < 2:
        return Check(name, None, True, "no evaluation with two or more supervision steps")
    pairs = list(itertools.pairwise(losses))
    held = all(before > after for before, after in pairs)
    told = (" > " if held else ", ").join(f"{x:.3f}" for x in losses)
    names = evals[-1].get("judged")
    if not held and isinstance(names, (list, tuple)) and len(names) == len(losses):
        worse = next(number for number, (before, after) in enumerate(pairs, 1) if before <= after)
        told += f": {names[worse]!s:.40} is not better than the one before"
    return Check(name, held, True, told)


def _has_one_part(evals: Sequence[Mapping[str, Any]]) -> bool:
    judged = evals[-1].get("judged") if evals else None
    return isinstance(judged, (list, tuple)) and len(judged) == 1


def _falling(evals: Sequence[Mapping[str, Any]]) -> Check:
    name = "falling bits per byte"
    measured = [line["val_bpb"] for line in evals if "val_bpb" in line]
    values = _numbers(measured)
    if len(values) < len(measured):
        return Check(name, False, True, "an evaluation was not finite")
    if len(values) < 2:
        return Check(name, None, True, "fewer than two evaluations")
    return Check(name, values[-1] < values[0], True, f"{values[0]:.3f} → {values[-1]:.3f} bpb")


def _finite(train: Sequence[Mapping[str, Any]]) -> Check:
    name = "finite gradients"
    if not train:
        return Check(name, None, True, "no training step logged")
    bad = [line.get("step") for line in train if not _numbers([line.get("grad_norm")])]
    if bad:
        return Check(name, False, True, f"not finite at step {bad[0]}")
    return Check(name, True, True, f"all {len(train)} logged steps")


def _refinement(phase: str, evals: Sequence[Mapping[str, Any]]) -> Check:
    name = "refinement (guide's band)"
    band = REFINEMENT_BANDS.get(phase)
    value = refinement(_losses(evals) or ())
    if band is None or value is None:
        return Check(name, None, False, "not measured")
    inside = band[0] <= value <= band[1]
    where = "inside" if inside else "outside"
    return Check(name, inside, False, f"{value:.1%}, {where} {band[0]:.0%}–{band[1]:.0%}")


def _gradients(phase: str, train: Sequence[Mapping[str, Any]]) -> Check:
    name = "gradient norm (guide's band)"
    band = GRADIENT_BANDS.get(phase)
    norms = _numbers(line.get("grad_norm") for line in train[len(train) // 2 :])
    if band is None or not norms:
        return Check(name, None, False, "not measured")
    from statistics import median

    value = median(norms)
    inside = band[0] <= value <= band[1]
    where = "inside" if inside else "outside"
    return Check(name, inside, False, f"{value:.2f}, {where} {band[0]}–{band[1]}")


def _losses(evals: Sequence[Mapping[str, Any]]) -> list[float] | None:
    """The last evaluation's losses; None where one is missing or not finite, for the others would
    then be compared as if they were neighbours."""
    losses = evals[-1].get("val_step_losses", ()) if evals else ()
    if not isinstance(losses, (list, tuple)):
        return None
    numbers = _numbers(losses)
    return numbers if len(numbers) == len(losses) else None


def _numbers(values: Iterable[Any]) -> list[float]:
    """Those that are finite numbers."""
    return [number for number in map(number_of, values) if number is not None]


def number_of(value: Any) -> float | None:
    """None for what is no finite number: metrics come from a pod, and anything may be in them."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    # False for NaN, and exact for whole numbers beyond any float.
    return float(value) if abs(value) < _HUGE else None
