"""A receipt's points: few enough to be drawn, the later word where a step was logged twice."""

from __future__ import annotations

from typing import Any

import pytest

from trmcloud.core.control.curve_points import EVAL, MOST_POINTS, SAVE, TRAIN, Point, points_of

AT = 1_790_000_000.0


def line(kind: str, step: int, **told: Any) -> dict[str, Any]:
    return {"kind": kind, "step": step, "at": AT + step, **told}


def test_each_kind_has_its_value() -> None:
    losses = [2.5, 2.25, None, "x"]
    made = points_of(
        "fast",
        [
            line("train", 1, loss=3.0),
            line("eval", 2, val_bpb=1.5, val_step_losses=losses),
            line("save", 3),
            line("start", 0),
        ],
    )
    assert made == (
        Point("fast", TRAIN, 1, AT + 1, 3.0),
        Point("fast", EVAL, 2, AT + 2, 1.5, (2.5, 2.25)),
        Point("fast", SAVE, 3, AT + 3, None),
    )


def test_a_step_that_was_trained_again_counts_once() -> None:
    made = points_of("fast", [line("train", 1, loss=3.0), line("train", 1, loss=2.0)])
    assert [point.value for point in made] == [2.0]


def test_a_long_curve_keeps_its_first_and_last_point() -> None:
    made = points_of("fast", [line("train", step, loss=1.0) for step in range(1, 5000)])
    assert len(made) == MOST_POINTS
    assert (made[0].step, made[-1].step) == (1, 4999)


@pytest.mark.parametrize(
    "hostile",
    [
        {"kind": "train", "step": True, "at": AT, "loss": 1.0},
        {"kind": "train", "step": "1", "at": AT, "loss": 1.0},
        {"kind": "train", "step": 1, "at": "soon", "loss": 1.0},
        {"kind": "train", "step": 1, "at": AT, "loss": None},
        {"kind": "train", "step": 1, "at": AT, "loss": "low"},
        {"kind": "what", "step": 1, "at": AT, "loss": 1.0},
        {},
    ],
)
def test_what_is_no_point_is_passed_over(hostile: dict[str, Any]) -> None:
    assert points_of("fast", [hostile]) == ()
