"""``plan --hf``: what it takes to train a Hugging Face model further, from its ``config.json``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from trmcloud.core.errors import BudgetRefused, DoesNotFit, UsageError
from trmcloud.core.planner.finetuning import (
    METHODS,
    TOKENS,
    FinetuneRow,
    Finetuning,
    rows_on,
)
from trmcloud.core.planner.memory import USABLE_SHARE
from trmcloud.core.spec.hf_models import HfModel
from trmcloud.core.spec.spec import RunSpec
from trmcloud.operations.plans.hf_names import find_model
from trmcloud.operations.plans.planning import Planner

_LIMITS = {
    "sequence": (16, 1_048_576),
    "batch": (1, 1024),
    "rank": (1, 4096),
    "completion": (1, 1_048_576),
    "bits": (4, 16),
    "image": (16, 4096),
    "images": (1, 999_999_999),
}
IMAGES = 1_281_167
"""Of ImageNet-1k, once: trained on where nothing says how many."""


class FinetunePlan(NamedTuple):
    """A fine-tuning on every hardware, the recommended first."""

    name: str
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
    planner: Planner, spec: RunSpec, named: str, method: str = "", settings: Sequence[str] = ()
) -> FinetunePlan:
    """The plan for the model that is ``named``, as ``find_model`` takes it; ``settings`` are
    ``KEY=N`` of ``_LIMITS``. ``method``: of ``METHODS``; empty: LoRA of text, all of images.

    Raises:
        UsageError: no such model or method, or options that do not go with it.
        DoesNotFit: nothing that is offered holds it. BudgetRefused: nothing within the limits.
    """
    name, model = find_model(named)
    model, how, chosen = _how(model, method, settings)
    if spec.steps or spec.hours or spec.fills or spec.overrides:
        raise UsageError(
            "--hf does not work with --set, --steps, --hours or --fill",
            next_step="--tokens 10000000, --hf-set sequence=4096",
        )
    tokens = spec.tokens or TOKENS
    if model.image:
        tokens = chosen.get("images", IMAGES) * model.image_tokens
    offers, now = planner.offers_for(spec)
    made = rows_on(model, how, tokens, offers, now, chosen.get("batch", 0))
    holding = [row for row in made if row.fits]
    if not holding:
        least = min(made, key=lambda row: row.need.least / row.memory_gb)
        raise DoesNotFit(
            f"{name} of {model.parameters / 1e9:.1f}B does not fit: the closest is "
            f"{least.hardware}, where a GPU needs {least.need.least:,.0f} of "
            f"{least.memory_gb * USABLE_SHARE:,.0f} usable GB",
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
    return FinetunePlan(name, model, how, tokens, spec, tuple(within), tuple(small), len(made), now)


USUAL = (
    ("Qwen/Qwen2.5-0.5B", "full"),
    ("meta-llama/Llama-3.1-8B", "lora"),
    ("meta-llama/Llama-3.3-70B-Instruct", "qlora"),
)
"""Models and methods that a plan names beside recipes: a small, a usual and a large one."""


def usual_within(planner: Planner, spec: RunSpec) -> list[FinetunePlan]:
    """The plans of ``USUAL``, each on ``TOKENS`` tokens, that keep the limits of ``spec``."""
    found = []
    for name, method in USUAL:
        with suppress(DoesNotFit, BudgetRefused):
            found.append(finetune_plan(planner, spec, name, method))
    return found


def _how(
    model: HfModel, method: str, settings: Sequence[str]
) -> tuple[HfModel, Finetuning, dict[str, int]]:
    """(the model with its images as asked for, how it is trained, the settings)"""
    method = method or ("full" if model.image else "lora")
    if method not in METHODS:
        raise UsageError(f"--method {method}: unknown", next_step=f"--method {', '.join(METHODS)}")
    if model.image and method != "full":
        raise UsageError(f"--method {method} is not planned for images", next_step="--method full")
    chosen = _settings(settings, model)
    if method == "qlora":
        method, chosen["bits"] = "lora", 4
    if method == "dpo" and chosen.get("batch", 0) % 2:
        raise UsageError("--hf-set batch: DPO's rows are pairs", next_step="--hf-set batch=2")
    if chosen.get("bits", 16) not in (4, 16) or (chosen.get("bits") == 4 and method == "full"):
        raise UsageError("--hf-set bits=4 needs --method lora", next_step="leave it out")
    default = Finetuning(method, sequence=min(Finetuning(method).sequence, model.context))
    if model.image:
        model = model._replace(image=chosen.get("image", model.image))
        default = Finetuning("vision", sequence=model.image_tokens, is_checkpointed=False)
    if chosen.get("completion", 1) > chosen.get("sequence", default.sequence):
        raise UsageError(
            "a completion cannot be longer than the sequence", next_step="--hf-set sequence=4096"
        )
    kept: dict[str, Any] = {key: n for key, n in chosen.items() if key in Finetuning._fields}
    return model, default._replace(**kept), chosen


def _settings(settings: Sequence[str], model: HfModel) -> dict[str, int]:
    known = [key for key in _LIMITS if not key.startswith("image")]
    if model.image:
        known = ["image", "images", "batch"]
    chosen: dict[str, int] = {}
    for text in settings:
        key, _, number = text.partition("=")
        if key not in known:
            raise UsageError(
                f"--hf-set does not know {key[:40]!r}", next_step=f"one of: {', '.join(known)}"
            )
        low, high = _LIMITS[key]
        if not number.isascii() or not number.isdigit() or not low <= int(number[:9]) <= high:
            raise UsageError(f"--hf-set {key} takes a number from {low} to {high:,}")
        chosen[key] = int(number)
    return chosen


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
    if how.method == "vision":
        return "--hf-set image=224"
    if how.is_frozen and how.bits != 4:
        return "--hf-set bits=4 quantizes the frozen weights"
    return f"--hf-set sequence={max(256, how.sequence // 2)}"
