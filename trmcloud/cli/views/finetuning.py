"""A fine-tuning's plan as lines, and as JSON."""

from __future__ import annotations

from decimal import Decimal

from trmcloud.cli.views.plan import hours_text
from trmcloud.core.catalog.offers import DAY_S, FRESH_DAYS
from trmcloud.core.planner.finetuning import SIGMAS, FinetuneRow
from trmcloud.core.planner.roofline import P90_SIGMAS
from trmcloud.operations.plans.finetune_plans import FinetunePlan
from trmcloud.operations.plans.plan_choices import LEAST_GAIN, MOST_CHOICES
from trmcloud.operations.words import count

_PLACE_COLUMNS = 20
_SCRIPT = ("python", "train.py")
_LEAST_SAVED = Decimal("1.05")
"""Choices differ by this factor in dollars, too."""


def show(plan: FinetunePlan) -> None:
    print("\n".join(render(plan)))


def render(plan: FinetunePlan) -> list[str]:
    """The lines a user reads, on 80 columns and 24 rows."""
    model, how, chosen = plan.model, plan.how, plan.recommended
    active = model.active_parameters / model.block_parameters
    size = f"{model.kind}, {model.parameters / 1e9:.2f}B parameters"
    if active < 1:
        size += f" ({active:.0%} of those of the blocks in use)"
    method = {"full": "all weights", "lora": f"LoRA of rank {how.rank}", "grpo": "GRPO"}[how.method]
    if how.bits == 4:
        method += " on 4 bits"
    limit = f"budget {plan.spec.budget}" if plan.spec.budget is not None else "no budget"
    if plan.spec.deadline_at is not None:
        limit += f" · {(plan.spec.deadline_at - plan.created_at) / 3600:.0f} h"
    lines = [
        f"{size} · {limit}",
        f"{method} · {count(plan.tokens)} tokens in rows of {how.sequence:,}"
        + (f", {how.completion:,} of them sampled" if how.method == "grpo" else ""),
        "",
    ]
    for row, label in choices(plan):
        lines += _row(plan, row, label)
    held = plan.kinds - len(plan.too_small)
    lines.append(f"fits on {held} of {plan.kinds} kinds of hardware" + _small(plan))
    wide = 2.718281828 ** (P90_SIGMAS * SIGMAS[how.kind])
    lines += [
        "",
        f"Recommended: {chosen.hardware} — {_why(plan)}.",
        f"  {chosen.batch} rows per GPU and pass; time within × ÷ {wide:.1f}, from published "
        "fine-tunings",
        "  with the trainer of Transformers: docs/bench/finetune.md",
        "  rows are taken to be full: for shorter ones, --hf-set sequence=MEAN_TOKENS",
    ]
    if how.method == "grpo":
        lines.append("  (only one published source, with images and text: a rough guess)")
    if not chosen.is_sure:
        lines.append("  it may not fit: then use fewer rows or a shorter sequence")
    lines.append("Measure your training, then plan again with the result:")
    cap = max(1, round(float(chosen.rate) * 0.4 + 0.5))
    probe = ("run", chosen.hardware, "--probe", "30", "--budget", str(cap))
    for words in (probe, ("plan", "--steps", "1000")):
        lines.append("  " + " ".join(("trmcloud", *words, "--", *_SCRIPT)))
    return lines


def choices(plan: FinetunePlan) -> list[tuple[FinetuneRow, str]]:
    """The recommended, the cheapest, the soonest, and trade-offs between that differ enough."""
    rows = [row for row in plan.rows if row.is_sure] or list(plan.rows)
    chosen = plan.recommended
    cheapest = min(rows, key=lambda row: (row.cost_p50, row.hours.p50))
    soonest = min(rows, key=lambda row: (row.hours.p50, row.cost_p50))
    labels = {id(chosen): ""}
    for row, label in ((cheapest, "cheapest"), (soonest, "soonest")):
        told = labels.get(id(row), "")
        labels[id(row)] = f"{told}, {label}" if told else label
    shown = [row for row in rows if id(row) in labels]
    for row in rows:
        is_better = all(
            row.cost_p50 < other.cost_p50 or row.hours.p50 < other.hours.p50 for other in rows
            if other is not row
        )  # fmt: skip
        hours = row.hours.p50
        is_new = all(
            max(hours, s.hours.p50) >= LEAST_GAIN * min(hours, s.hours.p50)
            and max(row.cost_p50, s.cost_p50) >= min(row.cost_p50, s.cost_p50) * _LEAST_SAVED
            for s in shown
        )
        if is_better and is_new and len(shown) < MOST_CHOICES:
            shown.append(row)
            labels[id(row)] = "sooner" if hours < chosen.hours.p50 else "cheaper"
    shown.sort(key=lambda row: row is not chosen)
    return [(row, labels[id(row)]) for row in shown]


def _row(plan: FinetunePlan, row: FinetuneRow, label: str) -> list[str]:
    mark = "▸" if row is plan.recommended else " "
    age = int(max(0.0, plan.created_at - row.offer.priced_at) // DAY_S)
    surcharge = float(row.rate) / float(row.offer.rate) - 1 if row.offer.rate else 0.0
    old = f" ({age} d old{f', +{surcharge:.0%}' if surcharge > 0 else ''})"
    dollars = f"${float(row.cost_p50):,.2f} (${float(row.cost_p90):,.2f})"
    rate = f"${float(row.rate):,.2f}/h{old if age > FRESH_DAYS or surcharge > 0 else ''}"
    need, have = row.need, row.memory_gb
    fits = f"{need.least:,.0f}–{need.most:,.0f}/{have:,.0f} GB{'' if row.is_sure else ' ?'}"
    where = f"{row.offer.provider} {row.offer.region}".removesuffix(" any")[:_PLACE_COLUMNS]
    about = " · ".join(filter(None, (label, f"{row.offer.sku}, {where}", fits)))
    return [
        f"{mark} {row.hardware:<13}{hours_text(row.hours)} h · {dollars} · {rate}",
        f"    {about}",
    ]


def _small(plan: FinetunePlan) -> str:
    if not plan.too_small:
        return ""
    told = "; not by " + ", ".join(plan.too_small[:3])
    return told + (" …" if len(plan.too_small) > 3 else "")


def _why(plan: FinetunePlan) -> str:
    spec = plan.spec
    return {
        "cheapest": "least cost",
        "fastest": "soonest done",
    }.get(spec.objective, f"best value, counting your time at {spec.hour_value}")
