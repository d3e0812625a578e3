"""What is wrong with a training, and what helps: the words of ``core.health``'s rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trmcloud.app.context import Context
from trmcloud.app.health import unwell
from trmcloud.cli.views.text import duration
from trmcloud.core.control.run_state import RunState
from trmcloud.core.health import (
    BUSY_BELOW,
    DATA_WAIT_ABOVE,
    GRADIENT_NORM_ABOVE,
    MEMORY_ABOVE,
    MFU_BELOW,
    REFINEMENT_BELOW,
    Finding,
    Rule,
)

#: What is seen, and what to do next; {run} is the run's id.
WORDS: Mapping[Rule, tuple[str, str]] = {
    Rule.NOT_FINITE: (
        "loss or gradients are not finite",
        "trmcloud stop {run}; a rate half as high, or a preset lower",
    ),
    Rule.SPIKES: (
        "{spikes} in the loss, the last {loss} over a mean of {mean}",
        "a larger batch, or a lower rate: trmcloud resume {run} --set matrix_lr=…",
    ),
    Rule.FLAT_LOSS: (
        "the loss has not fallen since the warm-up: {first} then, {last} now",
        "a lower rate, or a longer warm-up: --set matrix_lr=… --set warmup_steps=…",
    ),
    Rule.FLAT_PLAN: (
        "plans are not learnt: {first} of the loss since the warm-up, {last} now",
        "see that plans fit their segment; a longer warm-up; a lower rate: --set matrix_lr=…",
    ),
    Rule.FLAT_EXECUTION: (
        "executions are not learnt: {first} of the loss since the warm-up, {last} now",
        "see that answers fit their segment; a longer warm-up; a lower rate: --set matrix_lr=…",
    ),
    Rule.GRADIENT_NORM: (
        f"the gradient norm is {{norm}}, above {GRADIENT_NORM_ABOVE:g}",
        "a lower rate: trmcloud resume {run} --set matrix_lr=…",
    ),
    Rule.STEP_ORDER: (
        "supervision step {number} is worse than the one before: {before}, then {after}",
        "half the rate; see that grad_clip is 1 and the warm-up is not 0",
    ),
    Rule.LOW_REFINEMENT: (
        f"refinement is {{refinement}}, below {REFINEMENT_BELOW:.0%}",
        "more steps; preset=extreme; a lower rate; a higher supervision_weight_base",
    ),
    Rule.OVERFITTING: (
        "validation is worse than it was: {now} bpb, {best} at step {best_step}",
        "trmcloud stop {run}: more steps of this text no longer pay; the best is kept",
    ),
    Rule.VALIDATION_GAP: (
        "validation lies far above training: {validation} nats, {trained}",
        "more text, a smaller model, or weight_decay and dropout",
    ),
    Rule.DATA_WAIT: (
        f"steps wait for data {{share}} of their time, more than {DATA_WAIT_ABOVE:.0%}",
        "--set loader_workers=4; or tokens that lie on the machine's own disk",
    ),
    Rule.LOW_MFU: (
        f"MFU is {{mfu}}, below {MFU_BELOW:.0%}",
        "a larger batch per GPU, compile=true, dtype=bfloat16; fewer GPUs for a small model",
    ),
    Rule.SLOWER_THAN_PLANNED: (
        "a step takes {step_s}; {planned_s} at most were planned",
        "trmcloud plan … --probe measures this machine; the cap holds, fewer steps fit",
    ),
    Rule.NOT_COMPILED: (
        "compile is on, and nothing was compiled",
        "unset TORCHDYNAMO_DISABLE and TORCH_COMPILE_DISABLE; or --set compile=false",
    ),
    Rule.RANK_LAGS: (
        "rank {rank} takes {pass_s} for its own passes, the others {usual_s}: all wait for it",
        "trmcloud stop {run}, then resume it: another machine; see what else runs on this one",
    ),
    Rule.GPU_IDLE: (
        f"GPU {{gpu}} computes {{busy}} of the time, less than {BUSY_BELOW:.0f}%",
        "see that steps do not wait for data; a larger batch per GPU; fewer GPUs",
    ),
    Rule.GPU_LAGS: (
        "GPU {gpu} runs at {clock}, the others at {usual}: all wait for it",
        "trmcloud stop {run}, then resume it: another machine; it may be too hot, or capped",
    ),
    Rule.MEMORY_NEAR: (
        f"GPU {{gpu}} has {{used_gb}} of {{total_gb}} in use, more than {MEMORY_ABOVE:.0%}",
        "half the batch with twice the accumulation, before it runs out",
    ),
    Rule.MEMORY_SPARE: (
        "GPUs have {used_gb} of {total_gb} in use, and a step takes {accumulation} micro-batches",
        "twice the batch with half the accumulation: fewer, larger passes are faster",
    ),
}
_SHARES = ("refinement", "share", "mfu", "busy")
_TIMES = ("step_s", "planned_s")
_SHORT_TIMES = ("pass_s", "usual_s")
_COUNTS = ("number", "best_step", "gpu", "rank", "accumulation")
_GIGABYTES = ("used_gb", "total_gb")
_CLOCKS = ("clock", "usual")


def seen(finding: Finding) -> str:
    """What is seen, in words."""
    shown = {name: _shown(name, value) for name, value in finding.facts.items()}
    return WORDS[finding.rule][0].format(**shown)


def helps(finding: Finding, run_id: str) -> str:
    """What to do next."""
    return WORDS[finding.rule][1].format(run=run_id)


def health_rows(context: Context, run: RunState) -> list[tuple[str, str]]:
    """A row for each finding of a run, what helps in the row below."""
    rows = []
    for phase, found in unwell(context, run).items():
        for finding in found:
            rows.append(("unwell", f"{phase} step {finding.step:,}: {seen(finding)}"))
            rows.append(("  try", helps(finding, run.run_id)))
    return rows


def health_json(context: Context, run: RunState) -> list[dict[str, Any]]:
    return [
        {
            "phase": phase,
            "rule": finding.rule.value,
            "step": finding.step,
            "facts": dict(finding.facts),
            "text": seen(finding),
            "next": helps(finding, run.run_id),
        }
        for phase, found in unwell(context, run).items()
        for finding in found
    ]


def _shown(name: str, value: float) -> str:
    if name in _SHARES:
        return f"{value:.1%}"
    if name in _TIMES:
        return f"{value:.2f} s" if value < 60 else duration(value)
    if name in _SHORT_TIMES:
        return f"{value * 1e3:.1f} ms" if value < 1 else f"{value:.2f} s"
    if name in _COUNTS:
        return f"{value:,.0f}"
    if name in _GIGABYTES:
        return f"{value:.1f} GB"
    if name in _CLOCKS:
        return f"{value:,.0f} MHz"
    if name == "spikes":
        return "1 spike" if value == 1 else f"{value:.0f} spikes"
    return f"{value:.3f}"
