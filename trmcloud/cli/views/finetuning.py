"""A fine-tuning's plan as lines, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal

from trmcloud.cli.views.plan import hours_text
from trmcloud.core.catalog.offers import DAY_S, FRESH_DAYS
from trmcloud.core.planner.finetuning import FinetuneRow
from trmcloud.core.planner.roofline import P90_SIGMAS
from trmcloud.operations.plans.finetune_plans import FinetunePlan
from trmcloud.operations.plans.plan_choices import LEAST_GAIN, MOST_CHOICES
from trmcloud.operations.plans.train_script import DATA, Script, has_script
from trmcloud.operations.words import count

_PLACE_COLUMNS = 20
_SCRIPT = ("python", "train.py")
_PAGE = "docs/bench/finetune.md"
_BASES = {
    "full": f"from two sources: {_PAGE}",
    "lora": f"from four sources: {_PAGE}",
    "dpo": "as LoRA and another forward pass: no published run",
    "grpo": "from one source (images and text)",
    "vision": f"from two sources: {_PAGE}",
}
"""The sources of a method's factor and of its range."""
_LEAST_SAVED = Decimal("1.05")
"""Choices differ by this factor in dollars, too."""


def show(plan: FinetunePlan, typed: str = "", written: Script | None = None) -> None:
    print("\n".join(render(plan, typed, written)))


def render(plan: FinetunePlan, typed: str = "", written: Script | None = None) -> list[str]:
    """The lines a user reads, on 80 columns and 24 rows. ``typed``: the command that planned it;
    ``written``: the script that was written for it."""
    model, how, chosen = plan.model, plan.how, plan.recommended
    active = model.active_parameters / model.block_parameters
    title = plan.name.removeprefix(".") or model.kind  # in this folder it has no name
    digits = 2 if model.parameters > 1e9 else 3
    size = f"{title}, {model.parameters / 1e9:.{digits}f}B parameters"
    if active < 1:
        size += f" ({active:.0%} of those of the blocks in use)"
    limit = f"budget {plan.spec.budget}" if plan.spec.budget is not None else "no budget"
    if plan.spec.deadline_at is not None:
        limit += f" · {(plan.spec.deadline_at - plan.created_at) / 3600:.0f} h"
    lines = [
        f"{size} · {limit}",
        f"{how.title} · {_length(plan)}",
        "",
    ]
    for row, label in choices(plan):
        lines += _row(plan, row, label)
    held = plan.kinds - len(plan.too_small)
    lines.append(f"fits on {held} of {plan.kinds} kinds of hardware" + _small(plan))
    wide = math.exp(P90_SIGMAS * how.sigma)
    unit = "images" if model.image else "rows"
    lines += [
        "",
        f"Recommended: {chosen.hardware} — {_why(plan)}.",
        f"  {chosen.batch} {unit} per GPU and pass{_assumed(plan)}",
        f"  time within × ÷ {wide:.1f}, {_BASES[how.method]}",
    ]
    if not chosen.is_sure:
        lines.append("  it may not fit: then use fewer rows or a shorter sequence")
    return lines + _launch_lines(plan, typed, written)


def _assumed(plan: FinetunePlan) -> str:
    if not plan.model.image:
        return ", each full (shorter: --hf-set sequence=MEAN_TOKENS)"
    each_s = plan.tokens / plan.model.image_tokens / (plan.recommended.hours.p50 * 3600)
    return f"; reading {each_s:,.0f} images/s is not counted"


def _length(plan: FinetunePlan) -> str:
    model, how = plan.model, plan.how
    if model.image:
        images, side = plan.tokens // model.image_tokens, model.image
        return f"{images:,} images of {side} × {side} ({model.image_tokens} tokens each)"
    drawn = f", {how.completion:,} of them sampled" if how.method == "grpo" else ""
    return f"{count(plan.tokens)} tokens in rows of {how.sequence:,}{drawn}"


def _launch_lines(plan: FinetunePlan, typed: str, written: Script | None) -> list[str]:
    """Return the next command: the launch of the written script, the option that writes one, or a
    probe of the user's script."""
    if written is not None:
        names = " and ".join(path.name for path in written.files)
        return [f"Wrote {names}. It reads {DATA}: put yours here, then", f"  {written.launch}"]
    if typed and has_script(plan):
        return ["Write a script of TRL for it, with its launch:", f"  {typed} --write train.py"]
    rate = max(1, round(float(plan.recommended.rate) * 0.4 + 0.5))
    probe = ("run", plan.recommended.hardware, "--probe", "30", "--budget", str(rate))
    return [
        "Measure your training, then plan again with the result:",
        *(
            "  " + " ".join(("trmcloud", *words, "--", *_SCRIPT))
            for words in (probe, ("plan", "--steps", "1000"))
        ),
    ]


def usual_lines(plans: Sequence[FinetunePlan], typed: str) -> list[str]:
    """A line for each fine-tuning that a budget buys, below those of recipes; ``typed``: the
    command, to plan one of them."""
    lines = []
    for plan in plans:
        row, method = plan.recommended, "qlora" if plan.how.bits == 4 else plan.how.method
        dollars, tokens = f"${float(row.cost_p50):,.2f}", count(plan.tokens)
        hours = f"{hours_text(row.hours).partition(' ')[0]} h"
        lines.append(
            f"  {method:<12}{row.hardware:<11}{hours:>7} {dollars:>7}  {plan.name}, {tokens} tokens"
        )
    if plans:
        lines.append(f"  {typed} --recipe NAME, or --hf MODEL --method lora")
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
    spot = f"spot, {row.preemptions:.2g} preemptions expected" if row.offer.spot else ""
    about = " · ".join(filter(None, (label, f"{row.offer.sku}, {where}", fits, spot)))
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
    }.get(spec.objective, f"best value, counting your time at {spec.hour_value}/h")
