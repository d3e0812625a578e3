"""The gate: what passes, what fails, and that nothing unknown passes; its bands at their ends."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import json_values
from trmcloud.core.contract.gate import (
    LEAST_POINTS,
    MOST_POINTS,
    Check,
    Curve,
    StopRules,
    Verdict,
    fit,
    gain_per_usd,
    gain_soon,
    is_worse,
    judge,
    refinement,
    since_best,
    verdict_from_json,
    why_stop,
)
from trmcloud.core.contract.records import ContractError, record_of

# -- The gate: what passes, what fails, and that nothing unknown passes -------------------------


def train(step: int, grad_norm: Any = 1.0) -> dict[str, Any]:
    return {"kind": "train", "step": step, "grad_norm": grad_norm, "loss": 5.0}


def evaluation(bpb: Any, losses: Any = (5.0, 4.5, 4.2, 4.1)) -> dict[str, Any]:
    return {"kind": "eval", "val_bpb": bpb, "val_step_losses": losses}


#: Every supervision step better than the one before, bits per byte falling, gradients finite,
#: refinement (5.0 − 4.1) / 5.0 = 18 % and gradient norm 1.0 within the guides' bands.
GOOD = [train(1), evaluation(2.4), train(2), train(3), evaluation(1.9)]


def failed(verdict: Verdict) -> set[str]:
    return {check.name for check in verdict.checks if check.passed is not True}


def blocked_by(lines: list[dict[str, Any]]) -> set[str]:
    verdict = judge("fast", lines)
    names = {c.name for c in verdict.checks if c.blocking and c.passed is not True}
    assert verdict.passed == (not names)
    return names


def test_a_sound_training_passes() -> None:
    verdict = judge("fast", GOOD)
    assert verdict.passed
    assert failed(verdict) == set()
    details = {check.name: check.detail for check in verdict.checks}
    assert details["validation order"] == "5.000 > 4.500 > 4.200 > 4.100"
    assert details["falling bits per byte"] == "2.400 → 1.900 bpb"
    assert "18.0%, inside 15%–25%" in details["refinement (guide's band)"]


@pytest.mark.parametrize(
    ("losses", "why"),
    [
        ((4.1, 4.2, 4.5, 5.0), "reversed"),
        ((5.0, 4.5, 4.5, 4.1), "two are equal"),
        ((5.0, 4.0, 4.2, 4.1), "one is out of order"),
        ((5.0, math.nan, 4.2, 4.1), "NaN in the middle, its neighbours in order"),
        ((5.0, None, 4.2, 4.1), "null, as NaN is written"),
        ((math.inf, 4.5, 4.2, 4.1), "infinity"),
        ((5.0, "4.5", 4.2, 4.1), "text"),
        ((5.0, True), "a truth value"),
        ((10**400, 4.5), "beyond any float"),
        ((5.0,), "only one"),
        ((), "none"),
        (None, "null"),
        (7, "a number"),
        ({"0": 5.0}, "a table"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_steps_that_do_not_improve_block(losses: Any, why: str) -> None:
    assert blocked_by([*GOOD, evaluation(1.8, losses)]) == {"validation order"}


def test_a_model_that_is_judged_once_has_no_order() -> None:
    once = [train(1), *({**evaluation(b, (b,)), "judged": ["the text"]} for b in (2.4, 1.9))]
    verdict = judge("train", once)
    assert verdict.passed
    assert [c.name for c in verdict.checks] == ["falling bits per byte", "finite gradients"]
    assert blocked_by([train(1), {**evaluation(1.9, (1.9,)), "judged": ["the text"]}]) == {
        "falling bits per byte"
    }


def test_only_the_last_evaluations_order_counts() -> None:
    assert blocked_by([train(1), evaluation(2.4, (4.0, 4.5, 4.2, 4.1)), evaluation(1.9)]) == set()


@pytest.mark.parametrize("last", [2.4, 2.5, math.nan, math.inf, -math.inf, None, "1.0", True])
def test_bits_per_byte_that_do_not_fall_block(last: Any) -> None:
    assert blocked_by([*GOOD, evaluation(last)]) == {"falling bits per byte"}


def test_an_evaluation_that_broke_blocks_even_if_later_ones_are_fine() -> None:
    broke = [train(1), evaluation(2.4), evaluation(math.nan), evaluation(1.9)]
    assert blocked_by(broke) == {"falling bits per byte"}


@pytest.mark.parametrize("norm", [math.nan, math.inf, -math.inf, None, "1", True, 10**400, [1.0]])
def test_gradients_that_are_not_finite_block(norm: Any) -> None:
    lines = [train(1), evaluation(2.4), train(2, norm), train(3), evaluation(1.9)]
    assert blocked_by(lines) == {"finite gradients"}


def test_no_training_step_is_no_proof() -> None:
    assert blocked_by([evaluation(2.4), evaluation(1.9)]) == {"finite gradients"}


def test_nothing_at_all_fails() -> None:
    assert blocked_by([]) == {"validation order", "falling bits per byte", "finite gradients"}
    assert blocked_by([{}, {"kind": "note"}]) == blocked_by([])


@pytest.mark.parametrize(
    ("lines", "outside"),
    [
        ([*GOOD, evaluation(1.8, (5.0, 4.9))], {"refinement (guide's band)"}),
        ([*GOOD, evaluation(1.8, (5.0, 1.0))], {"refinement (guide's band)"}),
        (
            [train(1, 9.0), *GOOD[1:], train(4, 9.0), train(5, 9.0)],
            {"gradient norm (guide's band)"},
        ),
    ],
    ids=["refined too little", "refined too much", "steep gradients"],
)
def test_the_guides_bands_are_told_and_never_block(
    lines: list[dict[str, Any]], outside: set[str]
) -> None:
    verdict = judge("fast", lines)
    assert verdict.passed
    assert failed(verdict) == outside


def test_a_phase_without_bands_passes() -> None:
    assert judge("other", GOOD).passed


@pytest.mark.parametrize(
    ("losses", "value"),
    [((4.0, 3.0), 0.25), ((4.0, 5.0), -0.25), ((), None), ((4.0,), None), ((0.0, 1.0), None)],
)
def test_refinement(losses: tuple[float, ...], value: float | None) -> None:
    assert refinement(losses) == value


def test_a_verdict_survives_json() -> None:
    for lines in (GOOD, []):
        verdict = judge("fast", lines)
        assert verdict_from_json(json.loads(json.dumps(verdict.to_json()))) == verdict


anything = json_values(text=5, leaves=8)
lines = st.dictionaries(
    st.sampled_from(["kind", "step", "grad_norm", "val_bpb", "val_step_losses"]),
    st.sampled_from(["eval", "train"]) | anything,
)


@given(st.lists(lines, max_size=8))
def test_whatever_a_pod_writes_is_judged(metrics: list[dict[str, Any]]) -> None:
    verdict = judge("fast", metrics)
    assert json.dumps(verdict.to_json(), allow_nan=False)
    if verdict.passed:
        last = [line for line in metrics if line.get("kind") == "eval"][-1]
        assert all(isinstance(loss, int | float) for loss in last["val_step_losses"])


# -- The gate's bands at their ends, and what each check says of what it judged -----------------


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
    worse = ": third is not better than the one before"
    assert order((3.0, 2.0, 2.5), names).detail == "3.000, 2.000, 2.500" + worse
    assert order((3.0, 2.0, 2.0), list(names)).detail.endswith(worse)
    assert order((2.0, 2.0, 2.0), names).detail.endswith(
        ": second is not better than the one before"
    )
    assert order((3.0, 2.0, 1.0), names) == Check(
        "validation order", True, True, "3.000 > 2.000 > 1.000"
    )
    for odd in (names[:2], "abc", None):
        assert order((3.0, 2.0, 2.5), odd).detail == "3.000, 2.000, 2.500"
    long = order((1.0, 2.0), ("a", "x" * 80)).detail
    assert long == f"1.000, 2.000: {'x' * 40} is not better than the one before"


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


# -- What the next dollar buys: to the figure ---------------------------------------------------

CURVE = Curve(step=1000, slope=-0.3, scatter=0.1, steps_per_hour=3600.0, since_best=5)


def test_a_lines_bounds_and_the_rules_defaults_are_those_that_are_published() -> None:
    assert (LEAST_POINTS, MOST_POINTS) == (11, 64)
    assert StopRules() == StopRules(patience=0)
    fields: dict[str, Any] = {
        "step": 1,
        "slope": 0.0,
        "scatter": 0.0,
        "steps_per_hour": 0.0,
        "since_best": 0,
    }
    for name, least, most in (("slope", -1e6, 1e6), ("steps_per_hour", 0.0, 1e9)):
        for value in (least, most):
            assert record_of(Curve, {**fields, name: value}) == Curve(**{**fields, name: value})
        for value in (least - 0.5, most + 0.5):
            with pytest.raises(ContractError, match=name):
                record_of(Curve, {**fields, name: value})


@pytest.mark.parametrize("count", [11, 12, 13])
@pytest.mark.parametrize("first", [0, 1, 40])
def test_a_line_is_the_least_squares_of_the_newest_half(count: int, first: int) -> None:
    half = (count + 1) // 2
    steps = [first, *range(90, 90 + 10 * half - 10, 10)]
    bpb = [3.0 - 0.2 * math.log(max(1, step)) + 0.01 * (-1) ** step for step in steps]
    bpb[2] += 0.05
    earlier = [(step, 9.0) for step in range(count - half)]
    x = [math.log(max(1, step)) for step in steps]
    line, r = statistics.linear_regression(x, bpb), statistics.correlation(x, bpb)
    error = abs(line.slope) * math.sqrt((1 / r**2 - 1) / (half - 2))
    found = fit([*earlier, *zip(steps, bpb, strict=True)])
    assert found == pytest.approx((line.slope, error))


def test_without_evaluations_none_is_the_best_and_a_hundredth_is_scatter() -> None:
    assert since_best([]) == 0
    assert not is_worse([(1, 100.0), (2, 101.0), (3, 101.0), (4, 101.0)])


@pytest.mark.parametrize(
    ("changes", "left", "hours"),
    [
        ({}, 1, 1 / 3600),
        ({}, 7200, 1.0),
        ({"steps_per_hour": 1.0}, 9, 1.0),
        ({"step": 1}, 7200, 1.0),
        ({"step": 0}, 7200, 1.0),
    ],
)
def test_an_hour_buys_what_the_line_says_(changes: dict[str, Any], left: int, hours: float) -> None:
    curve = replace(CURVE, **changes)
    steps = curve.steps_per_hour * hours
    expected = 0.3 * math.log1p(steps / max(1, curve.step)) / hours
    assert gain_soon(curve, left) == pytest.approx(expected)
    assert gain_per_usd(curve, left, 1.0) == pytest.approx(expected)


@pytest.mark.parametrize(("left", "ends"), [(-1, False), (0, False), (1, True)])
def test_patience_ends_only_what_has_steps_left(left: int, ends: bool) -> None:
    assert bool(why_stop(StopRules(patience=5), CURVE, left)) is ends
