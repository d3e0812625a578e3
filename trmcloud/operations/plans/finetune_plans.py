"""``plan --hf``: what it takes to train a Hugging Face model further, from its ``config.json``."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from trmcloud.core.errors import BudgetRefused, DoesNotFit, UsageError
from trmcloud.core.planner.finetuning import (
    METHODS,
    TOKENS,
    FinetuneRow,
    Finetuning,
    HfModel,
    read_config,
    rows_on,
)
from trmcloud.core.spec.spec import RunSpec
from trmcloud.operations.plans.planning import Planner

_MOST_BYTES = 1 << 22
_LIMITS = {
    "sequence": (16, 1_048_576),
    "batch": (1, 1024),
    "rank": (1, 4096),
    "completion": (1, 1_048_576),
    "bits": (4, 16),
}


class FinetunePlan(NamedTuple):
    """A fine-tuning on every hardware, the recommended first."""

    model: HfModel
    how: Finetuning
    tokens: int
    spec: RunSpec
    rows: tuple[FinetuneRow, ...]
    """Those that may hold it within the limits, in the order of the objective."""
    too_small: tuple[str, ...]
    """Hardware that does not hold it."""
    kinds: int
    """Of hardware that is offered."""
    created_at: float

    @property
    def recommended(self) -> FinetuneRow:
        return self.rows[0]


def finetune_plan(
    planner: Planner, spec: RunSpec, config: Path, method: str, settings: Sequence[str] = ()
) -> FinetunePlan:
    """The plan for the model at ``config``, a file or a folder with a ``config.json``; ``settings``
    are ``KEY=N`` of ``_LIMITS``.

    Raises:
        UsageError: no such model or method, or options that do not go with it.
        DoesNotFit: nothing that is offered holds it. BudgetRefused: nothing within the limits.
    """
    model = read_model(config)
    how, batch = _how(method, settings)
    if spec.steps or spec.hours or spec.fills or spec.overrides:
        raise UsageError(
            "--hf does not work with --set, --steps, --hours or --fill",
            next_step="--tokens 10000000, --hf-set sequence=4096",
        )
    tokens = spec.tokens or TOKENS
    offers, now = planner.offers_for(spec)
    made = rows_on(model, how, tokens, offers, now, batch)
    holding = [row for row in made if row.fits]
    if not holding:
        least = min(made, key=lambda row: row.need.least / row.memory_gb)
        raise DoesNotFit(
            f"{model.kind} of {model.parameters / 1e9:.1f}B does not fit: the closest is "
            f"{least.hardware}, which needs {least.memory_gb:g} GB of {least.need.least:,.0f}",
            next_step=_smaller(how),
        )
    within = [row for row in holding if _is_within(row, spec, now)]
    if not within:
        least_row = min(holding, key=lambda row: row.cost_p90)
        raise BudgetRefused(
            f"no hardware trains {tokens:,} tokens within these limits: the cheapest is "
            f"{least_row.hardware}, {least_row.cost_p50} ({least_row.cost_p90} at P90), "
            f"{least_row.hours.p90:,.1f} h",
            next_step=f"--budget {math.ceil(least_row.cost_p90.micros / 1e6)}, or fewer --tokens",
        )
    within.sort(key=lambda row: (not row.is_sure, *_order(row, spec)))
    small = sorted({row.hardware for row in made if not row.fits})
    return FinetunePlan(model, how, tokens, spec, tuple(within), tuple(small), len(made), now)


def read_model(config: Path) -> HfModel:
    """
    Raises:
        UsageError: there is no config.json of a model.
    """
    path = config / "config.json" if config.is_dir() else config
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise ValueError("too long")
        data = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise UsageError(
            f"the model's config.json cannot be read: {why}",
            where=str(path),
            next_step="--hf takes a config.json, or the folder that contains it",
        ) from None
    return read_config(data, str(path))


def _how(method: str, settings: Sequence[str]) -> tuple[Finetuning, int]:
    if method not in METHODS:
        raise UsageError(f"--method {method}: unknown", next_step=f"--method {', '.join(METHODS)}")
    chosen: dict[str, int] = {}
    for text in settings:
        key, _, number = text.partition("=")
        if key not in _LIMITS:
            raise UsageError(
                f"--hf-set does not know {key[:40]!r}", next_step=f"one of: {', '.join(_LIMITS)}"
            )
        low, high = _LIMITS[key]
        if not number.isascii() or not number.isdigit() or not low <= int(number[:9]) <= high:
            raise UsageError(f"--hf-set {key} takes a number from {low} to {high:,}")
        chosen[key] = int(number)
    if chosen.get("bits", 16) not in (4, 16) or (chosen.get("bits") == 4 and method != "lora"):
        raise UsageError("--hf-set bits=4 needs --method lora", next_step="leave it out")
    if chosen.get("completion", 1) > chosen.get("sequence", 2048):
        raise UsageError(
            "a completion cannot be longer than the sequence", next_step="--hf-set sequence=4096"
        )
    default = Finetuning(method)
    how = default._replace(**{key: chosen.get(key, getattr(default, key)) for key in _LIMITS})
    return how, chosen.get("batch", 0)


def _is_within(row: FinetuneRow, spec: RunSpec, now: float) -> bool:
    if spec.budget is not None and row.cost_p90 > spec.budget:
        return False
    return spec.deadline_at is None or row.hours.p90 * 3600 <= spec.deadline_at - now


def _order(row: FinetuneRow, spec: RunSpec) -> tuple[float, float]:
    hours, dollars = row.hours.p50, float(row.cost_p50)
    if spec.objective == "fastest":
        return hours, dollars
    if spec.objective == "cheapest":
        return dollars, hours
    return dollars + hours * float(spec.hour_value), hours


def _smaller(how: Finetuning) -> str:
    if how.method == "full":
        return "--method lora trains a small part of the weights"
    if how.method == "lora" and how.bits != 4:
        return "--hf-set bits=4 quantizes the frozen weights"
    return f"--hf-set sequence={max(256, how.sequence // 2)}"
