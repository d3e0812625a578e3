"""A command's first steps, measured, and what they may take elsewhere."""

from __future__ import annotations

import os

import pytest

from trmcloud.core.catalog.hardware import GPUS
from trmcloud.core.contract.command_terms import MeasuredSteps
from trmcloud.core.planner.command_probe import elsewhere
from trmcloud.pod.job.probing import Probing

MEASURED = MeasuredSteps(
    steps=50, fast_s=0.9, step_s=1.0, slow_s=1.2, memory_bytes=10**9, cores=1.0
)


def test_the_warm_up_is_left_out() -> None:
    probing, now = Probing(40), 100.0
    for step in range(1, 200):
        now += 10.0 if step == 1 else 0.25
        probing.look([os.getpid()])
        probing.stepped(step, now)
        if probing.done:
            break
    measured = probing.measured()
    assert measured is not None
    assert measured.steps == pytest.approx(40, abs=4)
    assert measured.fast_s == measured.step_s == measured.slow_s == pytest.approx(0.25)
    assert measured.memory_bytes > 1_000_000


@pytest.mark.parametrize("steps", [[], [0] * 50, [1], [5] * 50])
def test_without_steps_there_is_nothing_to_say(steps: list[int]) -> None:
    probing = Probing(10)
    for second, step in enumerate(steps):
        probing.stepped(step, float(second))
    assert not probing.done
    assert probing.measured() is None


def test_a_step_elsewhere_lies_between_peaks_and_bandwidths() -> None:
    here, there = GPUS["A100-80GB-SXM"], GPUS["H100-SXM"]
    [found] = elsewhere(MEASURED, here, [there], 1.0, 70.0)
    assert found.step_s.p10 == pytest.approx(0.9 * 312 / 989)
    assert found.step_s.p90 == pytest.approx(1.2 * 2039 / 3350)
    assert found.step_s.p10 < found.step_s.p50 < found.step_s.p90
    assert found.fits


def test_what_no_gpu_does_becomes_no_faster_by_one() -> None:
    here, there = GPUS["A100-80GB-SXM"], GPUS["H100-SXM"]
    [found] = elsewhere(MEASURED, here, [there], 0.0, None)
    assert found.step_s.p10 == pytest.approx(0.45)
    assert found.step_s.p90 == pytest.approx(2.4)
    assert found.fits is None
    [unknown] = elsewhere(MEASURED, here, [there], None, None)
    assert unknown.step_s.p10 <= 0.9 * 312 / 989
    assert unknown.step_s.p90 >= 2.4


def test_less_memory_than_is_in_use_does_not_fit() -> None:
    [found] = elsewhere(MEASURED, GPUS["H100-SXM"], [GPUS["L4"]], 0.9, 30.0)
    assert found.fits is False
