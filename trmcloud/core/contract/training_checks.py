"""The checks of a trainer on a machine: what is to be checked, and what each check found.

``python -m model.smoke`` makes them there; ``trmcloud smoke --train`` reads its lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Annotated, Any

from trmcloud.core.contract.records import ContractError, dump, parse, record_of, within
from trmcloud.core.values import Value

PREFIX = "trmcloud-check "
"""Begins a line of the log that holds a result."""
_MOST_SECONDS = 1e6

NAMES: Mapping[str, str] = {
    "machine": "GPUs, memory, torch's operators and room for compiled code are as planned.",
    "links": "All ranks meet, none computes at half the speed of the others, and gradients travel.",
    "compile": "Compiled and not compiled, the first loss is the same, and the graphs are few.",
    "step": "A step of the planned shape fits in memory, and its loss falls.",
    "checkpointing": "Compiled, selective checkpointing computes less again than full.",
    "float8": "Products in float8 are faster than in bfloat16.",
    "ddp": "Steps on all GPUs; killed and resumed, it ends at the loss of a run that was not.",
    "fsdp": "The same with sharded weights (FSDP2), and at the loss of unsharded ones.",
}
"""The names of the checks in their order, and what each has shown when it passed."""

LIMITS_S: Mapping[str, float] = {
    "machine": 60.0,
    "links": 120.0,
    "compile": 240.0,
    "step": 240.0,
    "checkpointing": 360.0,
    "float8": 180.0,
    "ddp": 300.0,
    "fsdp": 240.0,
}
"""Seconds after which a check is ended and has failed, by its name: on a GPU most take a third."""

MOST_HOURS = 0.5
"""All of them, one after another, at their limits."""
LEAST_S = 600.0
"""Seconds of checks for which the money must be there: with fewer, the last ones would be left
out."""


class TrainingChecks(Value):
    """The checks to make: of phases' settings, as a job has them.

    ``planned`` is the shape whose steps are timed; ``small`` the one that is trained, killed and
    resumed. ``memory_gb``: of each GPU, as planned; 0 where nothing was.
    """

    planned: Mapping[str, Any]
    small: Mapping[str, Any]
    processes: Annotated[int, within(1, 1024)]
    memory_gb: Annotated[float, within(0.0, 1e6)] = 0.0
    device: str = "cuda"


class CheckResult(Value):
    """A check's result. ``passed`` is None where it cannot be made on this machine."""

    name: str
    passed: bool | None
    detail: str
    seconds: Annotated[float, within(0.0, _MOST_SECONDS)]
    measured: Mapping[str, float] = field(default_factory=dict)


def line_of(result: CheckResult) -> str:
    """The line of the log that holds ``result``."""
    return PREFIX + dump(result)


def results_in(lines: Iterable[str]) -> list[CheckResult]:
    """The results in a log, in the order of ``NAMES``: the last of each name. A machine may write
    anything: a line that holds none is left out."""
    found = {}
    for line in lines:
        _, marked, text = line.partition(PREFIX)
        if not marked:
            continue
        try:
            result = record_of(CheckResult, parse(text))
        except ContractError:
            continue
        found[result.name] = result
    return [found[name] for name in NAMES if name in found]


def load_checks(text: str | bytes) -> TrainingChecks:
    """
    Raises:
        ContractError: it holds none.
    """
    return record_of(TrainingChecks, parse(text))
