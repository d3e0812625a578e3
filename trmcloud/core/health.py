"""Diagnosis of a training from its own numbers: rules over the rows of ``metrics.jsonl``."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from enum import Enum
from statistics import fmean, median
from typing import Any

from trmcloud.core.contract import trainer_contract
from trmcloud.core.contract.gate import WORSE_BY, number_of, refinement
from trmcloud.core.contract.phase_account import SPARE_BELOW
from trmcloud.core.contract.pod_contract import LEAST_SAMPLES, GpuWindow
from trmcloud.core.values import Value

# A training's own lines, before anything is judged by them: ``metrics.jsonl`` as rows.
#
# The lines come from a pod: whatever is no finite number counts as not measured. A training that
# went back to a checkpoint has logged some steps twice: the later word counts.


class TrainRow(Value):
    """A line of ``kind`` train; None: not measured."""

    step: int
    loss: float | None
    nats: float | None
    """Of the last supervision step, or the only one."""
    gradient_norm: float | None
    step_s: float | None
    data_wait_s: float | None
    mfu: float | None
    rank_seconds: tuple[float, ...]
    """Of each rank's own forward passes; empty where there is one alone."""
    finite: bool
    span: tuple[float | None, float | None]
    """The range of times in which masks are drawn. Losses under different ones are not alike."""
    plan: float | None
    """The shares of the plan and of the execution in the loss, where there are such."""
    execution: float | None


class EvalRow(Value):
    """A line of ``kind`` eval; ``nats``: of each supervision step."""

    step: int
    bpb: float
    nats: tuple[float, ...]


def read_rows(lines: Iterable[Mapping[str, Any]]) -> tuple[list[TrainRow], list[EvalRow]]:
    """Logged steps and evaluations in their order; of a step that is logged twice, the later."""
    trained: list[TrainRow] = []
    evaluated: list[EvalRow] = []
    for line in lines:
        step = step_of(line)
        if step is None:
            continue
        if line.get("kind") == "train":
            _drop_from(trained, step)
            trained.append(_trained(line, step))
        elif line.get("kind") == "eval":
            # An evaluation of a step that was evaluated before is that one's second.
            _drop_from(evaluated, step)
            bpb, nats = number_of(line.get("val_bpb")), _numbers(line.get("val_step_losses"))
            if bpb is not None:
                evaluated.append(EvalRow(step, bpb, nats))
    return trained, evaluated


def step_of(line: Mapping[str, Any]) -> int | None:
    """The step that a line is about; None where it says none that can be."""
    step = line.get("step")
    return step if type(step) is int and 0 <= step < 1 << 53 else None


def _drop_from(rows: list[Any], step: int) -> None:
    while rows and rows[-1].step >= step:
        rows.pop()


def _trained(line: Mapping[str, Any], step: int) -> TrainRow:
    nats = _numbers(line.get("step_losses"))
    loss, norm = number_of(line.get("loss")), number_of(line.get("grad_norm"))
    told = [line[name] for name in ("loss", "grad_norm") if name in line]
    return TrainRow(
        step=step,
        loss=loss,
        nats=nats[-1] if nats else loss,
        gradient_norm=norm,
        step_s=number_of(line.get("step_seconds")),
        data_wait_s=number_of(line.get("data_wait_s")),
        mfu=number_of(line.get("mfu")),
        rank_seconds=_numbers(line.get("rank_seconds")),
        finite=all(number_of(each) is not None for each in told),
        span=(number_of(line.get("mask_from")), number_of(line.get("mask_to"))),
        plan=number_of(line.get("plan")),
        execution=number_of(line.get("execution")),
    )


def _numbers(values: Any) -> tuple[float, ...]:
    """All of them, or none: a loss that is missing would make neighbours of two that are not."""
    if not isinstance(values, (list, tuple)):
        return ()
    numbers = tuple(map(number_of, values))
    known = tuple(number for number in numbers if number is not None)
    return known if len(known) == len(numbers) else ()


# Diagnosis of a training from its own numbers: rules over the lines of ``metrics.jsonl``, and
# over the counters of its machine's GPUs.
#
# A rule is a symptom with a threshold; ``findings`` gives those that hold now, with the facts
# that they were judged by. What to do about each is the reader's, and stands with its words. The
# thresholds are the training guides' where they give one (refinement below 10 %, a gradient norm
# above 20, MFU below 15 %, a GPU that computes less than 80 % of the time, 80 of an H200's 141 GB
# in use), the spike's is the trainer's own (``contract.spikes``), the others are ours. What the
# lines say stands in ``health_reading``.

RECENT = 20
"""Logged steps that speak for the present."""
REFINEMENT_BELOW = 0.10
_REFINED_AFTER = 500
"""Steps; the guides' bands are those of trainings of a thousand and more."""
GRADIENT_NORM_ABOVE = 20.0
STEP_WORSE_BY = 0.001
"""Of the loss of the supervision step before it."""
MFU_BELOW = 0.15
DATA_WAIT_ABOVE = 0.05
"""Of a step's time."""
SINCE_BEST = 3
GAP_ABOVE = 0.15
"""Of the training text's nats, by which the validation text's lie above."""
_SPIKE_LEAST = 32
"""Rows, of which a log need not have one for each step."""
_MIB = 1 << 20
BUSY_BELOW = 80.0
"""Percent of the time."""
MEMORY_ABOVE = 0.95
"""Of a GPU's memory: the next longer row, or the last evaluation, may not fit."""
MEMORY_BELOW = SPARE_BELOW
"""Of a GPU's memory, where a step is made of several micro-batches: they could be larger."""
CLOCK_BELOW = 0.9
"""Of the other GPUs' median."""
_EVALUATED_SPANS = ((None, None), (0.001, 1.0))
"""Between which times masks are drawn at an evaluation; None: nothing is masked."""
RANK_ABOVE = 1.1
"""Of the other ranks' median: seconds of its own passes."""
_SLOWEST_OF_RECENT = 18
"""Rows in which it must be the slowest: a rank that something delays now and then is not."""
_FLAT_LEAST = 50
_FLAT_BELOW = 0.005


class Rule(str, Enum):
    """A symptom; its value is the word in JSON."""

    NOT_FINITE = "not_finite"
    SPIKES = "spikes"
    FLAT_LOSS = "flat_loss"
    FLAT_PLAN = "flat_plan"
    FLAT_EXECUTION = "flat_execution"
    GRADIENT_NORM = "gradient_norm"
    STEP_ORDER = "step_order"
    LOW_REFINEMENT = "low_refinement"
    OVERFITTING = "overfitting"
    VALIDATION_GAP = "validation_gap"
    DATA_WAIT = "data_wait"
    LOW_MFU = "low_mfu"
    SLOWER_THAN_PLANNED = "slower_than_planned"
    NOT_COMPILED = "not_compiled"
    RANK_LAGS = "rank_lags"
    GPU_IDLE = "gpu_idle"
    GPU_LAGS = "gpu_lags"
    MEMORY_NEAR = "memory_near"
    MEMORY_SPARE = "memory_spare"


class Finding(Value):
    """A rule that holds, since which logged step, and the numbers that it was judged by."""

    rule: Rule
    step: int
    facts: Mapping[str, float] = field(default_factory=dict)


class PhaseExpectation(Value):
    """The plan's expectations of a phase. ``slowest_step_s``: the P90 of one step; 0: nothing is
    known. ``warmup_steps`` are judged by no rule about losses; ``accumulation``: micro-batches a
    step."""

    steps: int
    warmup_steps: int = 0
    slowest_step_s: float = 0.0
    accumulation: int = 1


def findings(
    lines: Iterable[Mapping[str, Any]], expected: PhaseExpectation, gpus: GpuWindow | None = None
) -> tuple[Finding, ...]:
    """The rules that hold at the end of ``lines``, the gravest first; of ``gpus`` last.

    A training that went back to a checkpoint has logged some steps twice: the later word counts.
    """
    lines = list(lines)
    trained, evaluated = read_rows(lines)
    judged = [
        row for row in trained if row.step > expected.warmup_steps and row.span == trained[-1].span
    ]
    made = (
        _not_finite(trained),
        _spikes(judged),
        _flat(judged) or _flat_part(judged),
        _gradient_norm(judged),
        _order(evaluated, expected),
        _low_refinement(evaluated, expected),
        _overfitting(evaluated),
        _gap(judged, evaluated),
        _data_wait(trained),
        _low_mfu(trained),
        _slower(trained, expected),
        _not_compiled(lines),
        _rank_lags(trained),
    )
    found = tuple(finding for finding in made if finding is not None)
    return found + gpu_findings(gpus, trained[-1].step if trained else 0, expected)


def gpu_findings(
    window: GpuWindow | None, step: int, expected: PhaseExpectation
) -> tuple[Finding, ...]:
    """The rules about GPUs that hold at ``step``; what a GPU does not say is no symptom."""
    if window is None or window.samples < LEAST_SAMPLES:
        return ()
    gpus = list(enumerate(window.gpus))
    made = []
    busy = [(gpu.busy_percent, n) for n, gpu in gpus if gpu.busy_percent is not None]
    if busy and min(busy)[0] < BUSY_BELOW:
        percent, number = min(busy)
        made.append(Finding(Rule.GPU_IDLE, step, {"gpu": number, "busy": percent / 100}))
    clocks = [(gpu.clock_mhz, n) for n, gpu in gpus if gpu.clock_mhz is not None]
    if len(clocks) > 1:
        slowest, number = min(clocks)
        usual = median(clock for clock, n in clocks if n != number)
        if slowest < CLOCK_BELOW * usual:
            facts = {"gpu": number, "clock": slowest, "usual": usual}
            made.append(Finding(Rule.GPU_LAGS, step, facts))
    used = [
        (gpu.used_mib / gpu.total_mib, n, gpu.used_mib * _MIB / 1e9, gpu.total_mib * _MIB / 1e9)
        for n, gpu in gpus
        if gpu.used_mib is not None and gpu.total_mib
    ]
    if used:
        share, number, used_gb, total_gb = max(used)
        facts = {"gpu": number, "used_gb": used_gb, "total_gb": total_gb}
        if share > MEMORY_ABOVE:
            made.append(Finding(Rule.MEMORY_NEAR, step, facts))
        elif share < MEMORY_BELOW and expected.accumulation > 1:
            facts["accumulation"] = expected.accumulation
            made.append(Finding(Rule.MEMORY_SPARE, step, facts))
    return tuple(made)


# -- rules --------------------------------------------------------------------------------------


def _not_finite(trained: Sequence[TrainRow]) -> Finding | None:
    bad = next((row for row in trained if not row.finite), None)
    return Finding(Rule.NOT_FINITE, bad.step) if bad is not None else None


def _spikes(judged: Sequence[TrainRow]) -> Finding | None:
    """Losses that stand out of the 128 before them; those of the last 128 are reported."""
    rows = [(row.step, row.loss) for row in judged if row.loss is not None]
    found = []
    for at in range(max(_SPIKE_LEAST, len(rows) - trainer_contract.OVER), len(rows)):
        before = [loss for _, loss in rows[max(0, at - trainer_contract.OVER) : at]]
        if rows[at][1] > trainer_contract.spike_limit(before, trainer_contract.LEAST_OF_LOSS):
            found.append((*rows[at], fmean(before)))
    if not found:
        return None
    step, loss, mean = found[-1]
    return Finding(Rule.SPIKES, step, {"spikes": len(found), "loss": loss, "mean": mean})


def _flat(judged: Sequence[TrainRow]) -> Finding | None:
    """Since the warm-up the loss has not fallen by half a percent."""
    return _not_fallen(Rule.FLAT_LOSS, [(row.step, row.nats) for row in judged])


def _flat_part(judged: Sequence[TrainRow]) -> Finding | None:
    """The same of one part of a loss that as a whole does fall."""
    return _not_fallen(Rule.FLAT_PLAN, [(row.step, row.plan) for row in judged]) or _not_fallen(
        Rule.FLAT_EXECUTION, [(row.step, row.execution) for row in judged]
    )


def _not_fallen(rule: Rule, told: Sequence[tuple[int, float | None]]) -> Finding | None:
    rows = [(step, nats) for step, nats in told if nats is not None]
    if len(rows) < _FLAT_LEAST:
        return None
    few = len(rows) // 5
    first, last = (median(nats for _, nats in some) for some in (rows[:few], rows[-few:]))
    if first <= 0 or last < first * (1 - _FLAT_BELOW):
        return None
    return Finding(rule, rows[0][0], {"first": first, "last": last})


def _gradient_norm(judged: Sequence[TrainRow]) -> Finding | None:
    norms = [row.gradient_norm for row in judged[-RECENT:] if row.gradient_norm is not None]
    if len(norms) < RECENT or (value := median(norms)) <= GRADIENT_NORM_ABOVE:
        return None
    return Finding(Rule.GRADIENT_NORM, judged[-RECENT].step, {"norm": value})


def _order(evaluated: Sequence[EvalRow], expected: PhaseExpectation) -> Finding | None:
    """The two newest evaluations have a supervision step that is worse than the one before it, by
    more than scatter; one such evaluation happens to trainings that go well."""
    judged = [
        row for row in evaluated if row.step >= max(expected.warmup_steps, expected.steps // 10)
    ]
    broken = [_unordered(row.nats) for row in judged[-2:]]
    if len(broken) < 2 or not all(broken):
        return None
    number = broken[-1]
    before, after = judged[-1].nats[number - 1 : number + 1]
    facts = {"number": number, "before": before, "after": after}
    return Finding(Rule.STEP_ORDER, judged[-1].step, facts)


def _unordered(nats: Sequence[float]) -> int:
    """The first that is worse than the one before it; 0: there is none."""
    pairs = enumerate(itertools.pairwise(nats), 1)
    return next((n for n, (before, after) in pairs if after > before * (1 + STEP_WORSE_BY)), 0)


def _low_refinement(evaluated: Sequence[EvalRow], expected: PhaseExpectation) -> Finding | None:
    last = evaluated[-1] if evaluated else None
    if last is None or last.step < max(_REFINED_AFTER, expected.steps // 2):
        return None
    value = refinement(last.nats)
    if value is None or value >= REFINEMENT_BELOW:
        return None
    return Finding(Rule.LOW_REFINEMENT, last.step, {"refinement": value})


def _overfitting(evaluated: Sequence[EvalRow]) -> Finding | None:
    """The best evaluation lies some way back, and the newest is worse by more than scatter."""
    if len(evaluated) <= SINCE_BEST:
        return None
    at = min(range(len(evaluated)), key=lambda index: evaluated[index].bpb)
    best, last = evaluated[at], evaluated[-1]
    if len(evaluated) - 1 - at < SINCE_BEST or last.bpb <= best.bpb * (1 + WORSE_BY):
        return None
    facts = {"best": best.bpb, "best_step": best.step, "now": last.bpb}
    return Finding(Rule.OVERFITTING, best.step, facts)


def _gap(judged: Sequence[TrainRow], evaluated: Sequence[EvalRow]) -> Finding | None:
    """Nats of the text that is trained on, since the last evaluation but one, and of the other.
    Masks that are drawn between other times than the evaluation's make others of the first."""
    if len(evaluated) < 3 or not evaluated[-1].nats:
        return None
    if judged and judged[-1].span not in _EVALUATED_SPANS:
        return None
    low, last = evaluated[-2].step, evaluated[-1]
    recent = [row.nats for row in judged if low < row.step <= last.step and row.nats is not None]
    if len(recent) < 3 or (trained := median(recent)) <= 0:
        return None
    validation = last.nats[-1]
    if validation <= trained * (1 + GAP_ABOVE):
        return None
    return Finding(Rule.VALIDATION_GAP, last.step, {"trained": trained, "validation": validation})


def _data_wait(trained: Sequence[TrainRow]) -> Finding | None:
    rows = [row for row in trained[-RECENT:] if row.step_s and row.data_wait_s is not None]
    whole = sum(row.step_s or 0.0 for row in rows)
    if len(rows) < RECENT or whole <= 0:
        return None
    share = sum(row.data_wait_s or 0.0 for row in rows) / whole
    return (
        Finding(Rule.DATA_WAIT, rows[0].step, {"share": share}) if share > DATA_WAIT_ABOVE else None
    )


def _low_mfu(trained: Sequence[TrainRow]) -> Finding | None:
    values = [row.mfu for row in trained[-RECENT:] if row.mfu is not None]
    if len(values) < RECENT or (value := median(values)) >= MFU_BELOW:
        return None
    return Finding(Rule.LOW_MFU, trained[-RECENT].step, {"mfu": value})


def _slower(trained: Sequence[TrainRow], expected: PhaseExpectation) -> Finding | None:
    """Steps take longer than all but a tenth of what was planned for."""
    times = [row.step_s for row in trained[-RECENT:] if row.step_s is not None]
    limit = expected.slowest_step_s
    if limit <= 0 or len(times) < RECENT or (value := median(times)) <= limit:
        return None
    return Finding(
        Rule.SLOWER_THAN_PLANNED, trained[-RECENT].step, {"step_s": value, "planned_s": limit}
    )


def _not_compiled(lines: Sequence[Mapping[str, Any]]) -> Finding | None:
    """The present attempt was to be compiled, and its trainer has made no graph."""
    start = next((line for line in reversed(lines) if line.get("kind") == "start"), None)
    if start is None or number_of(start.get("graphs")) != 0:
        return None
    return Finding(Rule.NOT_COMPILED, step_of(start) or 0)


def _rank_lags(trained: Sequence[TrainRow]) -> Finding | None:
    """One rank's own passes take longer than the others', in nearly all of the last rows."""
    rows = [row.rank_seconds for row in trained[-RECENT:]]
    ranks = len(rows[-1]) if rows else 0
    if len(rows) < RECENT or ranks < 2 or any(len(row) != ranks for row in rows):
        return None
    slowest = [max(range(ranks), key=row.__getitem__) for row in rows]
    number = max(set(slowest), key=slowest.count)
    if slowest.count(number) < _SLOWEST_OF_RECENT:
        return None
    taken = [median(row[rank] for row in rows) for rank in range(ranks)]
    usual = median(taken[:number] + taken[number + 1 :])
    if usual <= 0 or taken[number] <= usual * RANK_ABOVE:
        return None
    facts = {"rank": number, "pass_s": taken[number], "usual_s": usual}
    return Finding(Rule.RANK_LAGS, trained[-RECENT].step, facts)
