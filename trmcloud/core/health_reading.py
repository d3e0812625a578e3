"""A training's own lines, before anything is judged by them: ``metrics.jsonl`` as rows.

The lines come from a pod: whatever is no finite number counts as not measured. A training that went
back to a checkpoint has logged some steps twice: the later word counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trmcloud.core.contract.gate import number_of
from trmcloud.core.values import dataclass


@dataclass(frozen=True)
class TrainRow:
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
    """The range of times in which masks are drawn. Losses under different ones are not alike.
    Losses under different ones are not alike."""
    plan: float | None
    """The shares of the plan and of the execution in the loss, where there are such."""
    execution: float | None


@dataclass(frozen=True)
class EvalRow:
    """A line of ``kind`` eval; ``nats``: of each supervision step."""

    step: int
    bpb: float
    nats: tuple[float, ...]


def read_rows(lines: Iterable[Mapping[str, Any]]) -> tuple[list[TrainRow], list[EvalRow]]:
    """Logged steps and evaluations in their order: of a step that is told twice the later word."""
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
