"""The gate's bands at their ends, and what each check says of what it judged."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.unit.core.test_gate import GOOD, evaluation, train
from trmcloud.core.contract.gate import Check, judge


def check(name: str, lines: list[dict[str, Any]], phase: str = "fast") -> Check:
    (found,) = (c for c in judge(phase, lines).checks if c.name.startswith(name))
    return found


@pytest.mark.parametrize(
    ("phase", "percent", "inside"),
    [("fast", 14, False), ("fast", 15, True), ("fast", 25, True), ("fast", 26, False),
     ("extreme", 49, False), ("extreme", 50, True), ("extreme", 97, True),
     ("extreme", 98, False)],
)  # fmt: skip
def test_the_band_of_refinement(phase: str, percent: int, inside: bool) -> None:
    found = check("refinement", [evaluation(2.0, (100.0, 100.0 - percent))], phase)
    band = {"fast": "15%–25%", "extreme": "50%–97%"}[phase]
    where = "inside" if inside else "outside"
    assert (found.passed, found.detail) == (inside, f"{percent}.0%, {where} {band}")


@pytest.mark.parametrize(
    ("phase", "norm", "inside"),
    [("fast", 0.49, False), ("fast", 0.5, True), ("fast", 1.5, True), ("fast", 1.51, False),
     ("extreme", 1.99, False), ("extreme", 2.0, True), ("extreme", 15.0, True),
     ("extreme", 15.01, False)],
)  # fmt: skip
def test_the_band_of_gradients(phase: str, norm: float, inside: bool) -> None:
    found = check("gradient norm", [train(1, norm)], phase)
    band = {"fast": "0.5–1.5", "extreme": "2.0–15.0"}[phase]
    where = "inside" if inside else "outside"
    assert (found.passed, found.detail) == (inside, f"{norm:.2f}, {where} {band}")


def test_the_gradient_is_the_median_of_the_second_half() -> None:
    lines = [train(step, norm) for step, norm in enumerate((9.0, 9.0, 9.0, 1.0, 1.0))]
    assert check("gradient norm", lines).detail.startswith("1.00, ")
    two = [train(1, 9.0), train(2, 1.0)]
    assert check("gradient norm", two).detail.startswith("1.00, ")


def order(losses: tuple[float, ...], judged: Any) -> Check:
    return check("validation order", [{**evaluation(2.0, losses), "judged": judged}])


def test_what_is_no_better_is_named_where_each_has_a_name() -> None:
    names = ("first", "second", "third")
    worse = ": third is no better than the one before"
    assert order((3.0, 2.0, 2.5), names).detail == "3.000, 2.000, 2.500" + worse
    assert order((3.0, 2.0, 2.0), list(names)).detail.endswith(worse)
    assert order((2.0, 2.0, 2.0), names).detail.endswith(
        ": second is no better than the one before"
    )
    assert order((3.0, 2.0, 1.0), names) == Check(
        "validation order", True, True, "3.000 > 2.000 > 1.000"
    )
    for odd in (names[:2], "abc", None):
        assert order((3.0, 2.0, 2.5), odd).detail == "3.000, 2.000, 2.500"
    long = order((1.0, 2.0), ("a", "x" * 80)).detail
    assert long == f"1.000, 2.000: {'x' * 40} is no better than the one before"


def test_how_many_parts_there_are_is_the_last_evaluations_word() -> None:
    one, two = {**evaluation(2.0, (3.0,)), "judged": ["all"]}, evaluation(1.9)
    assert len(judge("fast", [one, two]).checks) == 5
    assert len(judge("fast", [two, one]).checks) == 2


def test_bits_are_compared_from_the_first_to_the_last() -> None:
    lines = [evaluation(2.4), evaluation(2.9), evaluation(1.9)]
    name = "falling bits per byte"
    assert check(name, lines) == Check(name, True, True, "2.400 → 1.900 bpb")
    assert check(name, lines[:1]) == Check(name, None, True, "fewer than two evaluations")
    assert check(name, lines[:2]).passed is False
    assert check(name, [lines[0], lines[0]]).passed is False, "no fall"


def test_the_first_step_that_was_not_finite_is_named() -> None:
    name = "finite gradients"
    lines = [train(1), train(2, math.nan), train(3, "x"), train(4, 1e300)]
    assert check(name, lines) == Check(name, False, True, "not finite at step 2")
    assert check(name, [train(4, 1e300)]).passed is False
    assert check(name, [train(4, -1e300)]).passed is False
    assert check(name, [train(4, 1e299)]).passed is True
    assert check(name, GOOD) == Check(name, True, True, "all 3 logged steps")
