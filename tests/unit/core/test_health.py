"""Each rule of health fires on the log that it is about, and on none of a training that went
well."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import json_values
from trmcloud.core.contract.command import Command
from trmcloud.core.contract.gate import number_of
from trmcloud.core.contract.pod_contract import (
    MOST_GPUS,
    GpuCounters,
    GpuWindow,
    summed_up,
    window_from,
)
from trmcloud.core.control.receipt import EVAL, MOST_POINTS, SAVE, TRAIN, Point, points_of
from trmcloud.core.health import (
    RECENT,
    Finding,
    PhaseExpectation,
    Rule,
    findings,
    gpu_findings,
    read_rows,
)
from trmcloud.operations.curves.symptoms import WORDS, advice_of, advice_text, evidence_text

# -- health -------------------------------------------------------------------------------------
# Each rule fires on the log that it is about, and none on those of trainings that went well.


Line = dict[str, Any]
_FOLDER = Path(__file__).parent / "metrics"
WELL = PhaseExpectation(steps=521, warmup_steps=10, slowest_step_s=10.0)
"""As of both recorded trainings, of this trainer on two CPU cores, beside a plan that was kept."""


def recorded(name: str = "dense") -> list[Line]:
    return [json.loads(line) for line in (_FOLDER / f"{name}.jsonl").read_text().splitlines()]


def trained(lines: list[Line]) -> list[Line]:
    return [line for line in lines if line["kind"] == "train"]


def evaluated(lines: list[Line]) -> list[Line]:
    return [line for line in lines if line["kind"] == "eval"]


def rules(lines: list[Line], expected: PhaseExpectation = WELL) -> dict[Rule, Finding]:
    return {finding.rule: finding for finding in findings(lines, expected)}


@pytest.mark.parametrize("name", ["trm", "dense"])
def test_none_fires_on_a_training_that_went_well(name: str) -> None:
    lines = recorded(name)
    assert len(trained(lines)) > 80
    assert findings(lines, WELL) == ()
    for end in range(len(lines)):
        assert findings(lines[:end], WELL) == (), "nor at any moment of it"


# -- each on its log: a recorded one that is changed in what the rule is about -----------------


def loss_is_nan(lines: list[Line]) -> None:
    trained(lines)[30]["loss"] = math.nan


def loss_jumps(lines: list[Line]) -> None:
    for at in (50, 60):
        trained(lines)[at]["loss"] *= 3


def loss_stays(lines: list[Line]) -> None:
    for at, line in enumerate(trained(lines)):
        line["step_losses"] = [4.0 + 0.01 * (at % 3)]


def part_stays(name: str) -> Callable[[list[Line]], None]:
    """As of plan diffusion: one part of the loss falls, and the other one does not."""

    def change(lines: list[Line]) -> None:
        for at, line in enumerate(trained(lines)):
            parts = {"plan": line["loss"] / 2, "execution": line["loss"] / 2}
            line.update({**parts, name: 2.0 + 0.01 * (at % 3)})

    return change


def nothing_is_compiled(lines: list[Line]) -> None:
    lines.insert(0, {"kind": "start", "step": 0, "attempt": 1, "graphs": 3})
    lines.append({"kind": "start", "step": 520, "attempt": 2, "graphs": 0})


def norm_is_high(lines: list[Line]) -> None:
    for line in trained(lines)[-RECENT:]:
        line["grad_norm"] = 27.5


def order_is_lost(lines: list[Line]) -> None:
    for line in evaluated(lines)[-2:]:
        line["val_step_losses"] = [2.0, 1.9, 1.95, 1.8]


def hardly_refines(lines: list[Line]) -> None:
    evaluated(lines)[-1].update(step=521, val_step_losses=[2.0, 1.99, 1.98, 1.97])


def validation_turns(lines: list[Line]) -> None:
    best = min(line["val_bpb"] for line in evaluated(lines))
    for step, factor in ((530, 1.005), (540, 1.01), (550, 1.02)):
        lines.append({"kind": "eval", "step": step, "val_bpb": best * factor})


def validation_is_far(lines: list[Line]) -> None:
    evaluated(lines)[-1]["val_step_losses"][-1] *= 1.3


def waits_for_data(lines: list[Line]) -> None:
    for line in trained(lines)[-RECENT:]:
        line["data_wait_s"] = 0.2 * line["step_seconds"]


def uses_little(lines: list[Line]) -> None:
    for line in trained(lines)[-RECENT:]:
        line["mfu"] = 0.11


def is_slow(lines: list[Line]) -> None:
    for line in trained(lines)[-RECENT:]:
        line["step_seconds"] = 12.0


def rank_is_slow(lines: list[Line]) -> None:
    for at, line in enumerate(trained(lines)[-RECENT:]):
        line["rank_seconds"] = [0.1, 0.1, 0.112 if at % 10 else 0.09, 0.101]


FIRES: dict[Rule, tuple[str, Callable[[list[Line]], None], str]] = {
    Rule.NOT_FINITE: ("dense", loss_is_nan, "loss or gradients are not finite"),
    Rule.SPIKES: ("dense", loss_jumps, "2 spikes in the loss, the last "),
    Rule.FLAT_LOSS: (
        "dense", loss_stays, "the loss has not fallen since the warm-up: 4.010 then, 4.010 now",
    ),
    Rule.FLAT_PLAN: (
        "dense", part_stays("plan"),
        "plans are not learned: the loss was 2.010 after the warm-up, and is 2.010 now",
    ),
    Rule.FLAT_EXECUTION: ("dense", part_stays("execution"), "executions are not learned: "),
    Rule.NOT_COMPILED: ("dense", nothing_is_compiled, "compile is on, but nothing was compiled"),
    Rule.GRADIENT_NORM: ("trm", norm_is_high, "the gradient norm is 27.500, above 20"),
    Rule.STEP_ORDER: (
        "trm", order_is_lost,
        "supervision step 2 is worse than the one before: 1.900, then 1.950",
    ),
    Rule.LOW_REFINEMENT: ("trm", hardly_refines, "refinement is 1.5%, below 10%"),
    Rule.OVERFITTING: ("dense", validation_turns, "validation has become worse"),
    Rule.VALIDATION_GAP: ("dense", validation_is_far, "validation is far above training"),
    Rule.DATA_WAIT: ("dense", waits_for_data, "steps wait for data 20.0% of their time"),
    Rule.LOW_MFU: ("dense", uses_little, "MFU is 11.0%, below 15%"),
    Rule.SLOWER_THAN_PLANNED: (
        "dense", is_slow, "a step takes 12.00 s; at most 10.00 s were planned",
    ),
    Rule.RANK_LAGS: (
        "dense", rank_is_slow,
        "rank 2 takes 112.0 ms for its own passes, the others 100.0 ms: all wait for it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", FIRES, ids=lambda rule: rule.value)
def test_it_fires_on_its_log_and_says_what_helps(rule: Rule) -> None:
    name, change, words = FIRES[rule]
    lines = recorded(name)
    change(lines)
    found = rules(lines)
    assert set(found) == {rule}
    assert evidence_text(found[rule]).startswith(words)
    assert "{" not in evidence_text(found[rule]) + advice_text(found[rule], "r-1")


def test_every_rule_has_its_words() -> None:
    of_gpus = {Rule.GPU_IDLE, Rule.GPU_LAGS, Rule.MEMORY_NEAR, Rule.MEMORY_SPARE}
    assert set(WORDS) == set(Rule) == set(FIRES) | of_gpus


# -- masked diffusion ----------------------------------------------------------------------------


def drawn_between(lines: list[Line], low: float, high: float, since: int = 0) -> None:
    for line in trained(lines):
        if line["step"] >= since:
            line.update(mask_from=low, mask_to=high)


def test_a_loss_under_clipped_times_is_not_held_beside_the_evaluations() -> None:
    lines = recorded()
    validation_is_far(lines)
    drawn_between(lines, 0.001, 1.0)
    assert set(rules(lines)) == {Rule.VALIDATION_GAP}
    drawn_between(lines, 0.001, 0.5)
    assert findings(lines, WELL) == ()


def test_losses_under_other_times_are_judged_apart() -> None:
    lines = recorded()
    drawn_between(lines, 0.001, 1.0)
    drawn_between(lines, 0.5, 1.0, since=400)
    for line in trained(lines):
        if line["step"] >= 400:  # more is hidden, so each loss is larger
            line.update(loss=3 * line["loss"], step_losses=[3 * line["step_losses"][-1]])
    assert findings(lines, WELL) == ()
    for line in trained(lines):
        del line["mask_from"], line["mask_to"]
    assert Rule.SPIKES in rules(lines)


# -- edges ---------------------------------------------------------------------------------------


def test_what_a_resumed_training_does_again_takes_the_place_of_what_was_lost() -> None:
    lines = recorded()
    lost = [{**line} for line in trained(lines)[-10:]]
    for line in lost:
        line["loss"] = math.nan
    again = trained(lines)[-10:]
    assert Rule.NOT_FINITE in rules([*lines, *lost])
    assert findings([*lines, *lost, *again], WELL) == ()


def test_advice_for_a_command_fits_a_command_and_its_state() -> None:
    def run_of(command: Command | None, live: bool) -> Any:
        spec = SimpleNamespace(command=command)
        return SimpleNamespace(run_id="r-1", live=live, spec=spec)

    command = Command(("x",))
    finding = Finding(Rule.NOT_FINITE, 3)
    assert "preset" in advice_of(finding, run_of(None, live=True))
    assert advice_of(finding, run_of(command, live=True)) == (
        "trmcloud stop r-1, then a lower learning rate in the command"
    )
    assert advice_of(finding, run_of(command, live=False)) == (
        "a lower learning rate in the command"
    )
    assert advice_of(Finding(Rule.GPU_IDLE, 3), run_of(command, live=False)) == ""


def test_gaps_are_no_symptom() -> None:
    assert findings(recorded()[::3], WELL) == ()
    assert findings([], WELL) == ()


def test_the_warm_up_is_judged_by_no_rule_about_losses() -> None:
    lines = recorded()
    loss_stays(lines)
    assert findings(lines, replace(WELL, warmup_steps=600)) == ()


def test_a_plan_that_knows_no_times_calls_nothing_slow() -> None:
    lines = recorded()
    is_slow(lines)
    assert findings(lines, replace(WELL, slowest_step_s=0.0)) == ()


@pytest.mark.parametrize(
    ("row", "rows"),
    [
        ((0.1, 0.1, 0.109), RECENT),
        ((0.1, 0.1, 0.2), RECENT - 1),
        ((0.2,), RECENT),
        ((0.0, 0.0, 0.1), RECENT),
        ((0.1, 0.1, None), RECENT),
    ],
)
def test_ranks_alike_alone_or_not_told_of_long_enough(row: tuple[float, ...], rows: int) -> None:
    lines = recorded()
    for line in trained(lines)[-rows:]:
        line["rank_seconds"] = list(row)
    assert findings(lines, WELL) == ()


def test_another_rank_each_time_is_none_that_lags() -> None:
    lines = recorded()
    for at, line in enumerate(trained(lines)[-RECENT:]):
        line["rank_seconds"] = [0.2, 0.1] if at % 7 else [0.1, 0.2]
    assert findings(lines, WELL) == ()


_ANY = json_values(text=3, leaves=5)
_LINE = st.fixed_dictionaries(
    {"kind": st.sampled_from(["train", "eval", "odd"])},
    optional={
        name: _ANY | st.integers(0, 100)
        for name in (
            *("step", "loss", "grad_norm", "lr", "step_losses", "step_seconds", "data_wait_s"),
            *("mfu", "val_bpb", "val_step_losses", "mask_from", "mask_to", "plan", "execution"),
            "rank_seconds",
        )
    },
)


@given(st.lists(_LINE, max_size=60))
def test_whatever_a_pod_writes_it_is_judged_or_passed_over(lines: list[Line]) -> None:
    for finding in findings(lines, WELL):
        assert evidence_text(finding)
        assert all(math.isfinite(value) for value in finding.facts.values())


# -- What is read of the metrics that a pod wrote, before anything is judged by it --------------


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


# -- gpu counters -------------------------------------------------------------------------------
# What GPUs say of themselves: through the report, from hostile pods, and what is found in it.


HEALTHY = GpuCounters(97.0, 71_000.0, 81_559.0, 1980.0)
EXPECTED = PhaseExpectation(steps=1000, accumulation=2)


def of(*gpus: GpuCounters, samples: int = 40) -> GpuWindow:
    return GpuWindow(samples, 585.0, gpus)


def gpu_rules(window: GpuWindow | None, expected: PhaseExpectation = EXPECTED) -> dict[Rule, str]:
    return {f.rule: evidence_text(f) for f in gpu_findings(window, 120, expected)}


def test_a_window_goes_through_a_note() -> None:
    window = of(HEALTHY, GpuCounters(None, None, None, None))
    assert window_from(window.to_text()) == window
    most = of(*[HEALTHY] * MOST_GPUS)
    assert len(most.to_text()) < 8192
    assert window_from(most.to_text()) == most


def test_a_window_is_means_and_the_most_memory() -> None:
    later = GpuCounters(47.0, 60_000.0, 81_559.0, None)
    made = summed_up([[HEALTHY], [later], [GpuCounters(None, None, None, None)]], 30.0)
    assert made == GpuWindow(3, 30.0, (GpuCounters(72.0, 71_000.0, None, 1980.0),))
    with pytest.raises(ValueError, match="shorter"):
        summed_up([[HEALTHY, later], [HEALTHY]], 30.0)


def note(row: str = "[1,2,3,4]", samples: str = "8", over_s: str = "1") -> str:
    return f'{{"samples":{samples},"over_s":{over_s},"gpus":[{row}]}}'


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", "7", "[" * 8000, " " * 9000, '{"samples":8,"over_s":1}'),
        *(note(""), note("[1,2,3]"), note("[1,2,3,4,5]"), note("7"), note("[true,2,3,4]")),
        *(note('["9",2,3,4]'), note("[-1,2,3,4]"), note("[NaN,2,3,4]"), note("[1,2,3,[4]]")),
        *(
            note(over_s="1e999"),
            note(samples="9" * 5000),
            note(samples="null"),
            note(over_s="null"),
        ),
        *(note(",".join(["[1,2,3,4]"] * (MOST_GPUS + 1))), note('{"a":1,"b":2,"c":3,"d":4}')),
    ],
    ids=range(23),
)
def test_any_other_note_is_none(text: str) -> None:
    assert window_from(text) is None


def test_a_note_is_read_up_to_its_bounds() -> None:
    assert MOST_GPUS == 64
    gpu = GpuCounters(0.0, 2.25, None, 999_999_999.0)
    assert window_from(note("[0,2.25,null,999999999]", over_s="0.5")) == GpuWindow(8, 0.5, (gpu,))
    assert window_from(note("[0,1,2,1e9]")) is None
    longest = note() + " " * (8192 - len(note()))
    assert window_from(longest) is not None
    assert window_from(longest + " ") is None
    rounded = GpuWindow(8, 1.26, (GpuCounters(1.26, None, 3.0, 4.04),)).to_text()
    assert rounded == '{"samples":8,"over_s":1.3,"gpus":[[1.3,null,3.0,4.0]]}'


def test_the_fullest_gpu_is_the_one_whose_memory_is_told() -> None:
    full, silent = GpuCounters(1.0, 30.0, 40.0, 1.0), GpuCounters(1.0, None, 40.0, 1.0)
    odd, none = GpuCounters(1.0, 30.0, 0.0, 1.0), GpuCounters(1.0, 30.0, None, 1.0)
    assert of(silent, HEALTHY._replace(used_mib=1.0), full, odd, none).memory_share() == 0.75
    assert of(silent, odd, none).memory_share() is None
    assert of(full, samples=8).memory_share() == 0.75
    assert of(full, samples=7).memory_share() is None


@given(st.text() | st.binary().map(lambda data: data.decode("latin-1")))
def test_no_note_is_an_error(text: str) -> None:
    window_from(text)


def test_nothing_is_found_in_gpus_that_are_well() -> None:
    assert gpu_rules(of(*[HEALTHY] * 8)) == {}
    assert gpu_rules(None) == {}
    unknown = GpuCounters(None, None, None, None)
    assert gpu_rules(of(unknown, unknown)) == {}, "what it does not say is no symptom"
    assert gpu_rules(of(replace_busy(HEALTHY, 3.0), samples=7)) == {}, "too few samples"


def replace_busy(gpu: GpuCounters, percent: float) -> GpuCounters:
    return gpu._replace(busy_percent=percent)


def test_one_that_idles() -> None:
    assert gpu_rules(of(HEALTHY, replace_busy(HEALTHY, 79.9))) == {
        Rule.GPU_IDLE: "GPU 1 computes 79.9% of the time, less than 80%"
    }
    assert gpu_rules(of(HEALTHY, replace_busy(HEALTHY, 80.0))) == {}


def test_one_that_lags() -> None:
    slow = HEALTHY._replace(clock_mhz=1200.0)
    assert gpu_rules(of(HEALTHY, HEALTHY, slow, HEALTHY)) == {
        Rule.GPU_LAGS: "GPU 2 runs at 1,200 MHz, the others at 1,980 MHz: all wait for it"
    }
    assert gpu_rules(of(slow)) == {}, "there is nobody to wait for it"
    assert gpu_rules(of(HEALTHY, HEALTHY._replace(clock_mhz=1782.0))) == {}


def test_memory_that_is_nearly_full_and_memory_to_spare() -> None:
    full = HEALTHY._replace(used_mib=78_000.0)
    assert gpu_rules(of(HEALTHY, full)) == {
        Rule.MEMORY_NEAR: "GPU 1 has 81.8 GB of 85.5 GB in use, more than 95%"
    }
    spare = HEALTHY._replace(used_mib=30_000.0)
    told = "GPUs have only 31.5 GB of 85.5 GB in use, and a step takes 2 micro-batches"
    assert gpu_rules(of(spare, spare)) == {Rule.MEMORY_SPARE: told}
    assert gpu_rules(of(spare, HEALTHY)) == {}, "the fullest decides"
    one_pass = replace(EXPECTED, accumulation=1)
    assert gpu_rules(of(spare), one_pass) == {}, "larger micro-batches would make other steps"
    assert gpu_rules(of(spare._replace(total_mib=0.0))) == {}


def test_what_helps_names_the_run() -> None:
    (finding,) = gpu_findings(of(HEALTHY, HEALTHY._replace(clock_mhz=900.0)), 120, EXPECTED)
    assert finding.step == 120
    assert advice_text(finding, "r-1f3a9c").startswith("trmcloud stop r-1f3a9c, then resume it")


# -- curve points -------------------------------------------------------------------------------
# A receipt's points: few enough to be drawn, the later word where a step was logged twice.


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


# -- health page --------------------------------------------------------------------------------
# The guide's page shows what ``status`` prints for each rule, on the logs that the rules are
# tried on. ``python -m tests.unit.core.test_health`` prints it anew.


_PAGE = Path(__file__).parents[3] / "docs" / "reference" / "health.md"
_RUN = "r-8b2864"
_LAST_STEP = 520
_GPUS = (
    of(HEALTHY, HEALTHY._replace(busy_percent=61.0)),
    of(HEALTHY, HEALTHY, HEALTHY._replace(clock_mhz=1200.0)),
    of(HEALTHY, HEALTHY._replace(used_mib=78_000.0)),
    of(HEALTHY._replace(used_mib=40_000.0)),
)


def screens() -> dict[Rule, str]:
    """What two rows of ``status`` say of each rule."""
    found: dict[Rule, Finding] = {}
    for rule, (name, change, _) in FIRES.items():
        lines = recorded(name)
        change(lines)
        found |= {rule: rules(lines)[rule]}
    for window in _GPUS:
        found |= {each.rule: each for each in gpu_findings(window, _LAST_STEP, EXPECTED)}
    return {
        rule: f"unwell    train step {each.step:,}: {evidence_text(each)}\n"
        f"  try     {advice_text(each, _RUN)}\n"
        for rule, each in found.items()
    }


def test_the_page_shows_every_rule_as_status_does() -> None:
    made, page = screens(), _PAGE.read_text(encoding="utf-8")
    assert set(made) == set(Rule)
    for rule, shown in made.items():
        assert f"| `{rule.value}` |" in page
        assert shown in page, f"{rule.value} is not shown as it is printed:\n{shown}"


if __name__ == "__main__":
    print("".join(made for _, made in sorted(screens().items(), key=lambda row: row[0].value)))
