"""Numbers in a command's log: whatever a stranger's line holds."""

from __future__ import annotations

import math
import time

import pytest

from trmcloud.core.contract.command import Command
from trmcloud.core.contract.command_terms import PATTERN_STRIKES
from trmcloud.pod.job.readings import Reading, Readings, whole_step


def reader(metric: str = "") -> Readings:
    return Readings(Command(("x",), metric=metric))


@pytest.mark.parametrize(
    ("line", "step", "metrics"),
    [
        (b'{"step": 12, "val_loss": 1.5}', 12, {"val_loss": 1.5}),
        (
            b'{"global_step": 12.0, "metrics": {"val_loss": 1.5}, "name": "x"}',
            12,
            {"val_loss": 1.5},
        ),
        (b"step 250: train loss 2.4, val_loss=1.97", 250, {"val_loss": 1.97}),
        (b"iter 7: val_loss=3.", 7, {"val_loss": 3.0}),
        (b"[Step: 30/100] nothing", 30, {}),
        (b"epoch done val_loss=0.25", None, {"val_loss": 0.25}),
    ],
)
def test_a_line_says_its_step_and_its_metric(
    line: bytes, step: int | None, metrics: dict[str, float]
) -> None:
    assert reader("val_loss=([0-9.]+)").read(line) == Reading(step, metrics)


@pytest.mark.parametrize(
    "line",
    [b"", b"\xff\xfe\x00", b"{", b"[1]", b"hello", b"steps ahead", b"val_loss=...", b"nostep 5x"],
)
def test_a_line_that_says_nothing_is_passed_over(line: bytes) -> None:
    assert reader("val_loss=([0-9.]+)").read(line) is None


def test_nan_is_read_as_what_it_is() -> None:
    found = reader("loss ([0-9.naif]+)").read(b"step 3 loss nan")
    assert found is not None
    assert math.isnan(found.metrics["loss"])


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        ("val_loss=([0-9.]+)", "val_loss"),
        ("'eval_loss': ([0-9.]+)", "eval_loss"),
        (r"val\s+loss:? ([0-9.]+)", "val_loss"),
        ("([0-9.]+)", "metric"),
        ("val/acc", "val/acc"),
    ],
)
def test_a_pattern_has_the_name_it_begins_with(metric: str, name: str) -> None:
    assert Command(("x",), metric=metric).metric_name == name


def test_a_pattern_that_goes_back_for_ever_is_given_up() -> None:
    reads = reader("((?:a+)+)$")
    began = time.monotonic()
    for _ in range(10):
        assert reads.read(b"a" * 60 + b"b") is None
    assert reads.gave_up
    assert time.monotonic() - began < PATTERN_STRIKES * 5


@pytest.mark.parametrize("value", [True, "5", -1, 1.5, 10**9, None, float("nan"), float("inf")])
def test_what_is_no_step_is_none(value: object) -> None:
    assert whole_step(value) is None
