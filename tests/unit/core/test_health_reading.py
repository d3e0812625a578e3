"""What is read of the metrics that a pod wrote, before anything is judged by it."""

from __future__ import annotations

from typing import Any

import pytest

from trmcloud.core.contract.gate import number_of
from trmcloud.core.health_reading import read_rows


def train(step: Any, **more: Any) -> dict[str, Any]:
    return {"kind": "train", "step": step, "loss": 2.0, **more}


def steps(*lines: dict[str, Any]) -> tuple[list[int], list[int]]:
    trained, evaluated = read_rows(lines)
    return [row.step for row in trained], [row.step for row in evaluated]


@pytest.mark.parametrize("step", [0, 1, (1 << 53) - 1])
def test_a_step_that_can_be(step: int) -> None:
    assert steps(train(step)) == ([step], [])


@pytest.mark.parametrize("step", [-1, 1 << 53, 1.0, "1", True, None, [1]])
def test_a_step_that_none_can_be_is_no_line(step: Any) -> None:
    assert steps(train(step)) == ([], [])


def test_the_later_word_on_a_step_counts() -> None:
    def judged(step: int, bpb: Any) -> dict[str, Any]:
        return {"kind": "eval", "step": step, "val_bpb": bpb}

    assert steps(train(1), train(5), train(9), train(5)) == ([1, 5], [])
    assert steps(judged(1, 2.0), judged(5, 1.9), judged(5, 1.8)) == ([], [1, 5])
    _, evaluated = read_rows([judged(5, 1.9), judged(5, 1.8)])
    assert [row.bpb for row in evaluated] == [1.8]
    assert steps(judged(5, 1.9), judged(5, "x")) == ([], [])


def test_the_last_supervision_step_speaks_for_the_loss() -> None:
    ((row,), _) = read_rows([train(1, step_losses=[3.0, 2.5, 2.25])])
    assert (row.loss, row.nats) == (2.0, 2.25)
    ((row,), _) = read_rows([train(1)])
    assert row.nats == 2.0


@pytest.mark.parametrize("value", [1e300, -1e300, True, False, "1", None, float("nan"), 10**400])
def test_what_is_no_finite_number_was_not_measured(value: Any) -> None:
    assert number_of(value) is None


@pytest.mark.parametrize("value", [0, -1, 1e299, 0.5])
def test_numbers(value: float) -> None:
    assert number_of(value) == value
