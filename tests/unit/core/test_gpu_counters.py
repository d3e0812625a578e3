"""What GPUs say of themselves: through the report, from hostile pods, and what is found in it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trmcloud.cli.views.health import helps, seen
from trmcloud.core.contract.gpu_counters import (
    MOST_GPUS,
    GpuCounters,
    GpuWindow,
    summed_up,
    window_from,
)
from trmcloud.core.health import Expected, Rule, gpu_findings

WELL = GpuCounters(97.0, 71_000.0, 81_559.0, 1980.0)
EXPECTED = Expected(steps=1000, accumulation=2)


def of(*gpus: GpuCounters, samples: int = 40) -> GpuWindow:
    return GpuWindow(samples, 585.0, gpus)


def rules(window: GpuWindow | None, expected: Expected = EXPECTED) -> dict[Rule, str]:
    return {f.rule: seen(f) for f in gpu_findings(window, 120, expected)}


def test_a_window_goes_through_a_note() -> None:
    window = of(WELL, GpuCounters(None, None, None, None))
    assert window_from(window.to_text()) == window
    assert len(of(*[WELL] * MOST_GPUS).to_text()) < 8192


def test_a_window_is_means_and_the_most_memory() -> None:
    later = GpuCounters(47.0, 60_000.0, 81_559.0, None)
    made = summed_up([[WELL], [later], [GpuCounters(None, None, None, None)]], 30.0)
    assert made == GpuWindow(3, 30.0, (GpuCounters(72.0, 71_000.0, None, 1980.0),))


def note(row: str = "[1,2,3,4]", samples: str = "8", over_s: str = "1") -> str:
    return f'{{"samples":{samples},"over_s":{over_s},"gpus":[{row}]}}'


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", "7", "[" * 8000, " " * 9000, '{"samples":8,"over_s":1}'),
        *(note(""), note("[1,2,3]"), note("[1,2,3,4,5]"), note("7"), note("[true,2,3,4]")),
        *(note('["9",2,3,4]'), note("[-1,2,3,4]"), note("[NaN,2,3,4]"), note("[1,2,3,[4]]")),
        *(note(over_s="1e999"), note(samples="9" * 5000), note(samples="null")),
        *(note(",".join(["[1,2,3,4]"] * (MOST_GPUS + 1))), note('{"a":1,"b":2,"c":3,"d":4}')),
    ],
    ids=range(22),
)
def test_any_other_note_is_none(text: str) -> None:
    assert window_from(text) is None


@given(st.text() | st.binary().map(lambda data: data.decode("latin-1")))
def test_no_note_is_an_error(text: str) -> None:
    window_from(text)


def test_nothing_is_found_in_gpus_that_are_well() -> None:
    assert rules(of(*[WELL] * 8)) == {}
    assert rules(None) == {}
    unknown = GpuCounters(None, None, None, None)
    assert rules(of(unknown, unknown)) == {}, "what it does not say is no symptom"
    assert rules(of(replace_busy(WELL, 3.0), samples=7)) == {}, "too few samples"


def replace_busy(gpu: GpuCounters, percent: float) -> GpuCounters:
    return gpu._replace(busy_percent=percent)


def test_one_that_idles() -> None:
    assert rules(of(WELL, replace_busy(WELL, 79.9))) == {
        Rule.GPU_IDLE: "GPU 1 computes 79.9% of the time, less than 80%"
    }
    assert rules(of(WELL, replace_busy(WELL, 80.0))) == {}


def test_one_that_lags() -> None:
    slow = WELL._replace(clock_mhz=1200.0)
    assert rules(of(WELL, WELL, slow, WELL)) == {
        Rule.GPU_LAGS: "GPU 2 runs at 1,200 MHz, the others at 1,980 MHz: all wait for it"
    }
    assert rules(of(slow)) == {}, "there is nobody to wait for it"
    assert rules(of(WELL, WELL._replace(clock_mhz=1782.0))) == {}


def test_memory_that_is_nearly_full_and_memory_to_spare() -> None:
    full = WELL._replace(used_mib=78_000.0)
    assert rules(of(WELL, full)) == {
        Rule.MEMORY_NEAR: "GPU 1 has 81.8 GB of 85.5 GB in use, more than 95%"
    }
    spare = WELL._replace(used_mib=30_000.0)
    told = "GPUs have 31.5 GB of 85.5 GB in use, and a step takes 2 micro-batches"
    assert rules(of(spare, spare)) == {Rule.MEMORY_SPARE: told}
    assert rules(of(spare, WELL)) == {}, "the fullest decides"
    one_pass = replace(EXPECTED, accumulation=1)
    assert rules(of(spare), one_pass) == {}, "larger micro-batches would make other steps"
    assert rules(of(spare._replace(total_mib=0.0))) == {}


def test_what_helps_names_the_run() -> None:
    (finding,) = gpu_findings(of(WELL, WELL._replace(clock_mhz=900.0)), 120, EXPECTED)
    assert finding.step == 120
    assert helps(finding, "r-1f3a9c").startswith("trmcloud stop r-1f3a9c, then resume it")
