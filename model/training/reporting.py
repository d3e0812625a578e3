"""The output of a training, for programs (``metrics.jsonl``) and for people (the log).

Only rank 0 speaks; on the others every method returns at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from model.machine.distributed import World
from model.machine.precision import RejectedOption
from model.machine.telemetry import Metrics
from model.training.evaluate import Evaluation
from model.training.number_format import Decision
from model.training.schedule import Cooldown
from trmcloud.core.catalog.eval_tasks import SuiteResult
from trmcloud.core.contract.gate import Curve, gain_soon
from trmcloud.core.contract.pace import PACE, StepPace
from trmcloud.core.errors import TrmcloudError
from trmcloud.core.spec.settings import SEGMENTS, PhaseRecipe

_LARGEST_EXPONENT = 700.0
_TOLD_SHARE = 0.02
"""Of a step's time."""


@dataclass(frozen=True)
class StepReport:
    """One logged step: means over all ranks, rates measured over recent steps."""

    step: int
    tokens: int
    loss: float
    """The value that was minimised."""
    parts: Mapping[str, float]
    """The parts of the loss, by the family's own names."""
    step_losses: Sequence[float]
    """Nats per token after each judged pass."""
    diagnostics: Mapping[str, float]
    gradient_norm: float
    rate: float
    """The schedule's factor that this step was taken with."""
    step_seconds: float
    rank_seconds: Sequence[float]
    """Of a step's forward passes, by rank; empty for one rank alone."""
    data_wait_s: float
    """Seconds a step stood still for want of a batch, on this rank."""
    overhead_s: float
    """Seconds of a step that are no training: to agree with the other ranks, to settle a save, to
    tell of it."""
    tokens_per_second: float
    gpu_memory_bytes: int | None = None
    """The most that tensors took on this rank's GPU so far; None where there is none."""


@dataclass(frozen=True)
class SaveReport:
    """A save that has become a checkpoint."""

    step: int
    size_bytes: int
    """0 on the ranks that are not the first."""
    bpb: float | None
    """The score, where it was evaluated before it was saved."""
    seconds: float
    """From its begin until it stood on disk."""
    stall_s: float
    """For which training stood still, beside waiting for an earlier one."""
    landing: bool


class Reporter:
    """Lines of metrics, each with its line of the log."""

    def __init__(
        self,
        settings: PhaseRecipe,
        world: World,
        metrics: Metrics,
        peak_flops: float | None = None,
    ) -> None:
        self._settings, self._world, self._metrics = settings, world, metrics
        self._peak_flops = peak_flops
        self._flops_per_token = settings.work().train_flops

    def takes(self, step: int, decision: Decision, left: Sequence[RejectedOption]) -> None:
        """The number format, and each rung of the ladder that was left for it."""
        if not self._world.is_main or not (decision.is_told or left):
            return
        self._metrics.write(
            "precision",
            step,
            **decision.to_json(),
            taken=decision.words,
            left=[list(each) for each in left],
        )
        for rung, why in left:
            say(f"precision: not {rung}: {why}")
        say(f"precision: {decision.words}: {decision.why}")

    def attends(self, step: int, left: Sequence[RejectedOption]) -> None:
        """Kernels of attention that were left for slower ones."""
        if not self._world.is_main or not left:
            return
        self._metrics.write("attention", step, left=[list(each) for each in left])
        for kernel, why in left:
            say(f"attention: not {kernel}: {why}")

    def rescaled(self, step: int, scale: float) -> None:
        """A step whose gradients float16 did not hold: it is not made, and the loss is scaled less
        from here on."""
        if not self._world.is_main:
            return
        self._metrics.write("scale", step, loss_scale=scale)
        say(f"step {step} overflows float16: from now on the loss is scaled by {scale:g}")

    def trained(self, report: StepReport) -> None:
        if not self._world.is_main:
            return
        losses = list(report.step_losses)
        self._metrics.write(
            "train",
            report.step,
            loss=report.loss,
            **report.parts,
            step_losses=losses,
            grad_norm=report.gradient_norm,
            lr=report.rate,
            tokens=report.tokens,
            **report.diagnostics,
            step_seconds=report.step_seconds,
            **(
                {"rank_seconds": [round(each, 6) for each in report.rank_seconds]}
                if report.rank_seconds
                else {}
            ),
            data_wait_s=round(report.data_wait_s, 6),
            overhead_s=round(report.overhead_s, 6),
            tokens_per_second=report.tokens_per_second,
            **self._mfu(report.tokens_per_second),
            **(
                {}
                if report.gpu_memory_bytes is None
                else {"gpu_memory_bytes": report.gpu_memory_bytes}
            ),
        )
        say(
            f"step {report.step}/{self._settings.steps} · nats/token {_row(losses)} · "
            f"grad norm {report.gradient_norm:.2f} · rate ×{report.rate:.3f} · "
            f"{report.tokens_per_second:,.0f} tokens/s{_beside(report)}"
        )

    def paced(self, step: int, pace: StepPace) -> None:
        """Report the measured pace of this machine."""
        if not self._world.is_main:
            return
        self._metrics.write(PACE, **(asdict(pace) | {"step": step}))
        say(
            f"measured: {pace.step_s:.4g} s per step over {pace.steps} steps, {pace.fast_s:.4g} to "
            f"{pace.slow_s:.4g}"
        )

    def left_out(self, step: int, why: str, loss: float, norm: float) -> None:
        """A step whose update was not made."""
        if not self._world.is_main:
            return
        self._metrics.write("skip", step, why=why, loss=loss, grad_norm=norm)
        say(f"step {step} is skipped: {why}")

    def evaluated(
        self,
        step: int,
        tokens: int,
        result: Evaluation,
        *,
        diagnostics: Mapping[str, float],
        judged: Sequence[str],
        margin: float,
        seconds: float,
        landing: bool,
        curve: Curve | None = None,
    ) -> None:
        if not self._world.is_main:
            return
        losses = list(result.step_losses)
        self._metrics.write(
            "eval",
            step,
            val_bpb=result.bits_per_byte,
            val_step_losses=losses,
            judged=list(judged),
            perplexity=math.exp(min(losses[-1], _LARGEST_EXPONENT)),
            **diagnostics,
            tokens=tokens,
            seconds=seconds,
            landing=landing,
            **({} if curve is None else {"curve": curve}),
        )
        say(
            f"evaluated step {step}: {result.bits_per_byte:.4f} bits/byte · "
            f"nats/token {_row(losses)}{_scores(diagnostics)} · {seconds:.1f} s"
            + self._buys(step, curve)
        )
        uniform = math.log(self._settings.vocab_size)
        if losses[0] > uniform * (1 + margin):
            warning = f"the loss of {judged[0]} ({losses[0]:.3f}) is worse than random guessing"
            self._metrics.write("warning", step, message=warning, uniform=uniform)
            say(f"warning: {warning} ({uniform:.3f} nats)")

    def evaluation_cut_short(self, step: int) -> None:
        if not self._world.is_main:
            return
        message = f"step {step} is saved and was not evaluated: the hard stop is too near"
        self._metrics.write("warning", step, message=message)
        say(f"warning: {message}")

    def scored(self, step: int, result: SuiteResult, seconds: float) -> None:
        """A score over a part of the suite has a name of its own, which judges no goal."""
        if not self._world.is_main or result.score is None:
            return
        name = result.suite if result.is_whole else f"{result.suite}_in_part"
        self._metrics.write(
            "score",
            step,
            **{name: result.score},
            tasks={task.name: task.centred for task in result.tasks},
            left_out={each.name: each.why for each in result.left_out},
            seconds=seconds,
        )
        say(f"scored step {step}: {result.label} {result.score:.4f} · {seconds:.1f} s")
        for each in result.left_out:
            say(f"left out: {each.name}: {each.why}")

    def not_scored(self, step: int, suite: str, error: TrmcloudError) -> None:
        if not self._world.is_main:
            return
        message = f"{suite} was not scored: {error}"
        self._metrics.write("warning", step, message=message)
        say(f"warning: {message}")

    def texts_left_out(self, step: int, training: int, validation: int) -> None:
        """Texts that have been found to be longer than a row."""
        if not self._world.is_main:
            return
        longer = f"are longer than a row of {self._settings.sequence} tokens, end token included"
        if self._settings.rows == SEGMENTS:
            longer = (
                "have a question, plan or execution longer than its segment of "
                f"{self._settings.segments_text}, end token included"
            )
        told = (
            f"{training:,} texts to train on and {validation:,} to validate on {longer}, and are "
            "left out"
        )
        self._metrics.write("warning", step, message=told, texts_left_out=training + validation)
        say(f"warning: {told}")

    def saved(self, made: SaveReport) -> None:
        if not self._world.is_main:
            return
        self._metrics.write(
            "save",
            made.step,
            seconds=made.seconds,
            stall_s=made.stall_s,
            bytes=made.size_bytes,
            val_bpb=made.bpb,
            landing=made.landing,
        )
        say(
            f"saved step {made.step}: {made.size_bytes / 1e6:.1f} MB in {made.seconds:.2f} s, "
            f"training paused for {made.stall_s:.2f} s of it"
        )

    def decided(self, step: int, cooldown: Cooldown) -> None:
        if not self._world.is_main:
            return
        self._metrics.write(
            "decision", step, cooldown_from=cooldown.start, cooldown_steps=cooldown.steps
        )
        again = "" if cooldown.began is None else ", because the time per step has changed"
        if cooldown.asked and cooldown.began is None:
            again = ", because more steps no longer pay"
        say(f"cooldown: {cooldown.steps} steps from step {cooldown.start}{again}")

    def _buys(self, step: int, curve: Curve | None) -> str:
        gain = gain_soon(curve, self._settings.steps - step) if curve is not None else None
        if gain is None:
            return ""
        return f" · the next hour gains {f'{gain:.2g}' if gain > 0 else 'no better'} bits/byte"

    def _mfu(self, tokens_per_second: float) -> dict[str, float]:
        if not self._peak_flops:
            return {}
        flops = tokens_per_second * self._flops_per_token
        return {"mfu": flops / (self._peak_flops * self._world.size)}


def say(text: str) -> None:
    """One line of the human log."""
    print(text, flush=True)


def _beside(report: StepReport) -> str:
    """Describe the part of a step that is no training, where that is notable."""
    share = report.overhead_s / report.step_seconds if report.step_seconds > 0 else 0.0
    return f" · {share:.0%} beside training" if share >= _TOLD_SHARE else ""


def _scores(figures: Mapping[str, float]) -> str:
    """Describe the share of answers that are right, where an evaluation has one."""
    exact = figures.get("exact_accuracy")
    return "" if exact is None else f" · exact {exact:.1%}"


def _row(losses: Sequence[float]) -> str:
    return " ".join(f"{loss:.3f}" for loss in losses)
