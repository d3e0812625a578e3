"""The report's expected gain of more dollars, beside what a larger budget brought."""

from __future__ import annotations

from typing import Any

from bench.sweep.methods import sweep, usd
from bench.sweep.tables import Lcbench
from trmcloud.core.sweep.verdict import expected_gain

TIMES = (1.5, 2.0)
"""The larger budgets, in the first one."""


def measure(table: Lcbench, seed: int, trainings: int, whole: float) -> dict[str, Any]:
    """Return by the larger budget: the gain in accuracy that the sweep's end predicts, None where
    it cannot, and that of the same sweep with this budget."""
    budget = trainings * whole
    path, state, terms = sweep(table, "density", seed, budget, whole)
    predicted, realised = {}, {}
    for times in TIMES:
        more = usd((times - 1) * budget)
        predicted[f"{times:g}"] = expected_gain(state, terms, more)
        further = sweep(table, "density", seed, times * budget, whole)[0]
        realised[f"{times:g}"] = further[-1][1] - path[-1][1]
    return {"predicted": predicted, "realised": realised}
