"""The gate between fast and extreme: is this training worth going on with?

Blocking, since arithmetic backs them: every supervision step improves on the one before, on
validation text; final-step bits per byte fell; nothing became infinite. A model that
is judged once has no order and no bands: an evaluation says by name what it judged. The guides'
bands for refinement and gradient norm are reported beside them and block only when strictness is
asked for: refinement can be bought by making the first step worse, so it proves nothing alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trmcloud.core.contract.records import Label, finite, record_of
from trmcloud.core.values import dataclass

#: (lowest, highest) of the guides, by the phase that is judged.
REFINEMENT_BANDS = {"fast": (0.15, 0.25), "extreme": (0.50, 0.97)}
GRADIENT_BANDS = {"fast": (0.5, 1.5), "extreme": (2.0, 15.0)}

_HUGE = 1e300


@dataclass(frozen=True)
class Check:
    """One criterion: ``passed`` is None where there was nothing to judge it by."""

    name: str
    passed: bool | None
    blocking: bool
    detail: str


@dataclass(frozen=True)
class Verdict:
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


def judge(phase: str, metrics: Iterable[Mapping[str, Any]], *, strict: bool = False) -> Verdict:
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
        bands = _refinement(phase, evals, strict), _gradients(phase, train, strict)
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
        told += f": {names[worse]!s:.40} is no better than the one before"
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


def _refinement(phase: str, evals: Sequence[Mapping[str, Any]], strict: bool) -> Check:
    name = "refinement (guide's band)"
    band = REFINEMENT_BANDS.get(phase)
    value = refinement(_losses(evals) or ())
    if band is None or value is None:
        return Check(name, None, strict, "not measured")
    inside = band[0] <= value <= band[1]
    where = "inside" if inside else "outside"
    return Check(name, inside, strict, f"{value:.1%}, {where} {band[0]:.0%}–{band[1]:.0%}")


def _gradients(phase: str, train: Sequence[Mapping[str, Any]], strict: bool) -> Check:
    name = "gradient norm (guide's band)"
    band = GRADIENT_BANDS.get(phase)
    norms = _numbers(line.get("grad_norm") for line in train[len(train) // 2 :])
    if band is None or not norms:
        return Check(name, None, strict, "not measured")
    from statistics import median

    value = median(norms)
    inside = band[0] <= value <= band[1]
    where = "inside" if inside else "outside"
    return Check(name, inside, strict, f"{value:.2f}, {where} {band[0]}–{band[1]}")


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
