"""The diffusion guide's five batches: what it says of each, and what is reckoned here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trmcloud.cli.views.text import table
from trmcloud.core.catalog.hardware import hardware_name
from trmcloud.core.errors import UsageError
from trmcloud.core.planner.memory import predict_memory
from trmcloud.core.planner.speed import predict_phase, rented_machine
from trmcloud.core.spec.guides import BatchRow
from trmcloud.core.spec.rates import rate_for
from trmcloud.core.spec.settings import PhaseRecipe
from trmcloud.core.values import replace

STEPS = 50_000
_HEADER = (
    "batch", "on", "batch × acc.", "a step", "GB said", "here", "h said", "here", "lr table", "√",
)  # fmt: skip


def batch_lines(
    settings: PhaseRecipe, batches: Sequence[BatchRow], rates: Mapping[int, float]
) -> list[str]:
    """A line for each of a guide's ``batches``, each with its 50,000 steps.

    Args:
        rates: of the recipe, by sequences a step.
    """
    rows = [_row(each, settings, rates) for each in batches]
    lines = (f"its batches, {STEPS:,} steps each whatever a step takes in", *table(_HEADER, rows))
    return [f"  {line}" for line in lines]


def _row(row: BatchRow, asked: PhaseRecipe, rates: Mapping[int, float]) -> tuple[str, ...]:
    settings = replace(asked, batch=row.batch, accumulation=row.accumulation, steps=STEPS)
    whole = settings.global_batch(row.gpus)
    memory = predict_memory(settings, row.gpus).total
    hours = predict_phase(settings, rented_machine(row.sku, row.gpus)).seconds.p50 / 3600
    return (
        row.name,
        hardware_name(row.sku, row.gpus),
        f"{row.batch} × {row.accumulation}",
        str(whole),
        _pair(row.memory_gb),
        f"{memory:,.0f}",
        _pair(row.hours) if row.hours else "–",
        f"{hours:,.0f}",
        _rate(whole, "table", rates),
        _rate(whole, "sqrt", rates),
    )


def _pair(pair: tuple[float, float]) -> str:
    low, high = pair
    return f"{low:g}" if low == high else f"{low:g}–{high:g}"


def _rate(whole: int, rule: str, rates: Mapping[int, float]) -> str:
    try:
        return f"{rate_for(whole, rule, rates, 'the recipe'):.2g}"
    except UsageError:
        return "–"
