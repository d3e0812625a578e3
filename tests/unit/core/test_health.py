"""Each rule fires on the log that it is about, and none on those of trainings that went well."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trmcloud.cli.views.health import WORDS, helps, seen
from trmcloud.core.health import RECENT, Expected, Finding, Rule, findings

Line = dict[str, Any]
_FOLDER = Path(__file__).parent / "metrics"
WELL = Expected(steps=521, warmup_steps=10, slowest_step_s=10.0)
"""As of both recorded trainings, of this trainer on two CPU cores, beside a plan that was kept."""


def recorded(name: str = "dense") -> list[Line]:
    return [json.loads(line) for line in (_FOLDER / f"{name}.jsonl").read_text().splitlines()]


def trained(lines: list[Line]) -> list[Line]:
    return [line for line in lines if line["kind"] == "train"]


def evaluated(lines: list[Line]) -> list[Line]:
    return [line for line in lines if line["kind"] == "eval"]


def rules(lines: list[Line], expected: Expected = WELL) -> dict[Rule, Finding]:
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
        "plans are not learnt: 2.010 of the loss since the warm-up, 2.010 now",
    ),
    Rule.FLAT_EXECUTION: ("dense", part_stays("execution"), "executions are not learnt: 2.010 of"),
    Rule.NOT_COMPILED: ("dense", nothing_is_compiled, "compile is on, and nothing was compiled"),
    Rule.GRADIENT_NORM: ("trm", norm_is_high, "the gradient norm is 27.500, above 20"),
    Rule.STEP_ORDER: (
        "trm", order_is_lost,
        "supervision step 2 is worse than the one before: 1.900, then 1.950",
    ),
    Rule.LOW_REFINEMENT: ("trm", hardly_refines, "refinement is 1.5%, below 10%"),
    Rule.OVERFITTING: ("dense", validation_turns, "validation is worse than it was: "),
    Rule.VALIDATION_GAP: ("dense", validation_is_far, "validation lies far above training: "),
    Rule.DATA_WAIT: ("dense", waits_for_data, "steps wait for data 20.0% of their time"),
    Rule.LOW_MFU: ("dense", uses_little, "MFU is 11.0%, below 15%"),
    Rule.SLOWER_THAN_PLANNED: (
        "dense", is_slow, "a step takes 12.00 s; 10.00 s at most were planned",
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
    assert seen(found[rule]).startswith(words)
    assert "{" not in seen(found[rule]) + helps(found[rule], "r-1")


def test_every_rule_has_its_words() -> None:
    of_gpus = {Rule.GPU_IDLE, Rule.GPU_LAGS, Rule.MEMORY_NEAR, Rule.MEMORY_SPARE}
    assert set(WORDS) == set(Rule) == set(FIRES) | of_gpus  # test_gpu_counters has those


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
def test_ranks_that_are_alike_alone_or_not_told_of_long_enough(
    row: tuple[float, ...], rows: int
) -> None:
    lines = recorded()
    for line in trained(lines)[-rows:]:
        line["rank_seconds"] = list(row)
    assert findings(lines, WELL) == ()


def test_another_rank_each_time_is_none_that_lags() -> None:
    lines = recorded()
    for at, line in enumerate(trained(lines)[-RECENT:]):
        line["rank_seconds"] = [0.2, 0.1] if at % 7 else [0.1, 0.2]
    assert findings(lines, WELL) == ()


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=5,
)
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
        assert seen(finding)
        assert all(math.isfinite(value) for value in finding.facts.values())
