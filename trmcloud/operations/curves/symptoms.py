"""Sentences of a training's findings and of its recoveries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trmcloud.core.contract.notices import recovery_path
from trmcloud.core.contract.recovery import AGAIN, RATE, SKIPPED, SPARE
from trmcloud.core.control.run_state import RunState
from trmcloud.core.durations import duration
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
from trmcloud.core.text import one_line
from trmcloud.operations.context import Context
from trmcloud.operations.curves.trainings import RecoveryRow, find_symptoms, recoveries_of

#: What is seen, and what to do next; {run} is the run's id.
WORDS: Mapping[Rule, tuple[str, str]] = {
    Rule.NOT_FINITE: (
        "loss or gradients are not finite",
        "trmcloud stop {run}; then half the rate, or a lower preset",
    ),
    Rule.SPIKES: (
        "{spikes} in the loss, the last {loss} with a mean of {mean}",
        "a larger batch, or a lower rate: trmcloud resume {run} --set matrix_lr=…",
    ),
    Rule.FLAT_LOSS: (
        "the loss has not fallen since the warm-up: {first} then, {last} now",
        "a lower rate, or a longer warm-up: --set matrix_lr=… --set warmup_steps=…",
    ),
    Rule.FLAT_PLAN: (
        "plans are not learned: the loss was {first} after the warm-up, and is {last} now",
        "check that plans fit into their segment; a longer warm-up; a lower rate: --set "
        "matrix_lr=…",
    ),
    Rule.FLAT_EXECUTION: (
        "executions are not learned: the loss was {first} after the warm-up, and is {last} now",
        "check that answers fit into their segment; a longer warm-up; a lower rate: --set "
        "matrix_lr=…",
    ),
    Rule.GRADIENT_NORM: (
        f"the gradient norm is {{norm}}, above {GRADIENT_NORM_ABOVE:g}",
        "a lower rate: trmcloud resume {run} --set matrix_lr=…",
    ),
    Rule.STEP_ORDER: (
        "supervision step {number} is worse than the one before: {before}, then {after}",
        "half the rate; check that grad_clip is 1 and the warm-up is not 0",
    ),
    Rule.LOW_REFINEMENT: (
        f"refinement is {{refinement}}, below {REFINEMENT_BELOW:.0%}",
        "more steps; preset=extreme; a lower rate; a higher supervision_weight_base",
    ),
    Rule.OVERFITTING: (
        "validation has become worse: {now} bpb, after {best} at step {best_step}",
        "trmcloud stop {run}: more steps on this text do not help; the best checkpoint is kept",
    ),
    Rule.VALIDATION_GAP: (
        "validation is far above training: {validation} and {trained} nats",
        "more text, a smaller model, or weight_decay and dropout",
    ),
    Rule.DATA_WAIT: (
        f"steps wait for data {{share}} of their time, more than {DATA_WAIT_ABOVE:.0%}",
        "--set loader_workers=4; or keep the tokens on the machine's own disk",
    ),
    Rule.LOW_MFU: (
        f"MFU is {{mfu}}, below {MFU_BELOW:.0%}",
        "a larger batch per GPU, compile=true, dtype=bfloat16; fewer GPUs for a small model",
    ),
    Rule.SLOWER_THAN_PLANNED: (
        "a step takes {step_s}; at most {planned_s} were planned",
        "fewer steps fit, the cap stays; trmcloud plan … --probe measures this machine",
    ),
    Rule.NOT_COMPILED: (
        "compile is on, but nothing was compiled",
        "unset TORCHDYNAMO_DISABLE and TORCH_COMPILE_DISABLE; or --set compile=false",
    ),
    Rule.RANK_LAGS: (
        "rank {rank} takes {pass_s} for its own passes, the others {usual_s}: all wait for it",
        "trmcloud stop {run}, then resume it on another machine; or check what else runs on this "
        "one",
    ),
    Rule.GPU_IDLE: (
        f"GPU {{gpu}} computes {{busy}} of the time, less than {BUSY_BELOW:.0f}%",
        "check that steps do not wait for data; a larger batch per GPU; fewer GPUs",
    ),
    Rule.GPU_LAGS: (
        "GPU {gpu} runs at {clock}, the others at {usual}: all wait for it",
        "trmcloud stop {run}, then resume it on another machine; this GPU may be too hot, or "
        "limited",
    ),
    Rule.MEMORY_NEAR: (
        f"GPU {{gpu}} has {{used_gb}} of {{total_gb}} in use, more than {MEMORY_ABOVE:.0%}",
        "half the batch with twice the accumulation, before memory runs out",
    ),
    Rule.MEMORY_SPARE: (
        "GPUs have only {used_gb} of {total_gb} in use, and a step takes {accumulation} "
        "micro-batches",
        "twice the batch with half the accumulation: fewer, larger passes are faster",
    ),
}
_OF_A_COMMAND: Mapping[Rule, str] = {
    Rule.NOT_FINITE: "trmcloud stop {run}, then a lower learning rate in the command",
    Rule.GPU_IDLE: "check that steps do not wait for data; a larger batch; fewer GPUs",
    Rule.GPU_LAGS: WORDS[Rule.GPU_LAGS][1],
}
"""Advice for a command, of whose model and options nothing is known."""
_ENDED: Mapping[Rule, str] = {Rule.NOT_FINITE: "a lower learning rate in the command"}
"""Advice for a command that has ended; none for other rules."""
_FORMATS: Mapping[str, Callable[[float], str]] = {
    **dict.fromkeys(("refinement", "share", "mfu", "busy"), "{:.1%}".format),
    **dict.fromkeys(("number", "best_step", "gpu", "rank", "accumulation"), "{:,.0f}".format),
    **dict.fromkeys(("used_gb", "total_gb"), "{:.1f} GB".format),
    **dict.fromkeys(("clock", "usual"), "{:,.0f} MHz".format),
    **dict.fromkeys(("step_s", "planned_s"), lambda s: f"{s:.2f} s" if s < 60 else duration(s)),
    **dict.fromkeys(
        ("pass_s", "usual_s"), lambda s: f"{s * 1e3:.1f} ms" if s < 1 else f"{s:.2f} s"
    ),
    "spikes": lambda count: "1 spike" if count == 1 else f"{count:.0f} spikes",
}


def evidence_text(finding: Finding) -> str:
    """Return a finding's evidence in words."""
    shown = {
        name: _FORMATS.get(name, "{:.3f}".format)(value) for name, value in finding.facts.items()
    }
    return WORDS[finding.rule][0].format(**shown)


def finding_text(phase: str, finding: Finding) -> str:
    """``fast step 40: the loss has not fallen …``."""
    return f"{phase} step {finding.step:,}: {evidence_text(finding)}"


def advice_text(finding: Finding, run_id: str) -> str:
    """Return the advice for a finding of a recipe's training."""
    return WORDS[finding.rule][1].format(run=run_id)


def advice_of(finding: Finding, run: RunState) -> str:
    """Return the advice for a finding of a run, whose training may be a command; empty where
    nothing can be advised."""
    if run.spec.command is None:
        return advice_text(finding, run.run_id)
    words = _OF_A_COMMAND if run.live else _ENDED
    return words.get(finding.rule, "").format(run=run.run_id)


_HAPPENED: Mapping[str, str] = {
    "out_of_memory": "ran out of memory",
    "non_finite": "loss or gradients were not finite",
    "diverged": "the loss rose and did not fall again",
    "crashed": "the trainer crashed",
    "lost": "a process of the trainer was lost",
    SPARE: "memory was free",
}
_WORDS: Mapping[str, str] = {
    "activation_checkpointing": "activation checkpointing",
    "compile": "compile",
    "loader_workers": "loader_workers",
    "preset": "preset",
}
_SHORT_WHY = 120


def trouble_text(row: RecoveryRow) -> str:
    """``fast step 40: ran out of memory (CUDA out of memory)``."""
    made = row.recovery
    where = f"{one_line(row.phase)} step {made.step:,}"
    if made.rung == SKIPPED:
        told = "1 step was" if made.times == 1 else f"{made.times:,} steps were"
        return f"{where}: {told} skipped, because the loss was not finite or far too high"
    what = _HAPPENED.get(made.what, one_line(made.what))
    if made.what == "lost" and made.why.startswith("no step for"):
        what = "the trainer made no progress"
    why = one_line(made.why)
    if len(why) > _SHORT_WHY:
        why = f"{why[: _SHORT_WHY - 1]}…"
    times = {1: "", 2: ", twice"}.get(made.times, f", {made.times:,} times")
    return f"{where}: {what}{times}" + (f" ({why})" if why else "")


def remedy_text(row: RecoveryRow) -> str:
    """``started again with batch 2 × accumulation 4``."""
    made = row.recovery
    if made.rung == SKIPPED:
        return "training continued with the next data, and the weights did not change"
    if made.rung == AGAIN or not made.changed:
        return "restarted from its last checkpoint"
    named = f" ({one_line(made.rung)})" if made.what == SPARE else ""
    return f"restarted with {_changes(made.changed)}{named}"


def loss_text(row: RecoveryRow) -> str:
    """``12 steps · 34 s · $0.0012 lost``."""
    made = row.recovery
    steps = "1 step" if made.lost_steps == 1 else f"{made.lost_steps:,} steps"
    return f"{steps} · {duration(made.lost_s)} · {row.lost} lost"


def _changes(changed: Mapping[str, Any]) -> str:
    told = []
    if "batch" in changed:
        told.append(f"batch {changed['batch']} × accumulation {changed.get('accumulation', 1)}")
    if RATE in changed:
        told.append(f"learning rates × {changed[RATE]:g}")
    for key, words in _WORDS.items():
        if key in changed:
            value = changed[key]
            value = {True: "on", False: "off"}[value] if isinstance(value, bool) else value
            told.append(f"{words} {value}")
    known = {"batch", "accumulation", RATE, *_WORDS}
    told += [f"{key} {value}" for key, value in changed.items() if key not in known]
    return one_line(", ".join(told))


_HEALTH_EVERY_S = 10.0


class TrainingNews:
    """What one reader was not told yet of a run's trainings. Agents' reports and metrics have it,
    and no record of the ledger: it is known by its machine and by the end of its notice's id."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._told: set[tuple[int, str]] = set()
        self._looked_at = -_HEALTH_EVERY_S

    @property
    def is_due(self) -> bool:
        """Whether a live run's findings are looked for again."""
        return self._context.clock.now().boot - self._looked_at >= _HEALTH_EVERY_S

    def new_recoveries(self, run: RunState) -> list[tuple[str, str]]:
        """(what happened, what was done about it and what it cost) of each; of skipped steps the
        first alone, since the log has each of them."""
        return [
            (trouble_text(row), f"{remedy_text(row)} · {loss_text(row)}")
            for row in recoveries_of(self._context, run)
            if self._is_new(row.generation, recovery_path(row.phase, row.recovery))
        ]

    def new_findings(self, run: RunState) -> list[tuple[str, str]]:
        """(a finding, what helps; '' where nothing is known to) of each; looked for every few
        seconds while the run is live."""
        if run.live and not self.is_due:
            return []
        self._looked_at = self._context.clock.now().boot
        return [
            (finding_text(phase, finding), advice_of(finding, run))
            for phase, found in find_symptoms(self._context, run).items()
            for finding in found
            if self._is_new(0, f"{phase}/{finding.rule.value}")
        ]

    def _is_new(self, generation: int, fact: str) -> bool:
        key = generation, fact
        is_new = key not in self._told
        self._told.add(key)
        return is_new
