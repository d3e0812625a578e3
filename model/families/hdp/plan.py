"""What a plan needs to know of hierarchical diffusion: its settings and its work.

Its blocks run on [noisy plan, execution ; clean question, plan], its head on plan and execution.
"""

from __future__ import annotations

from typing import ClassVar, Mapping

from trmcloud.core.errors import UsageError
from trmcloud.core.spec.dense import BlockSettings
from trmcloud.core.spec.guides import DIFFUSION_GUIDE, Guide
from trmcloud.core.spec.settings import SEGMENTS
from trmcloud.core.spec.work import Work
from trmcloud.core.values import dataclass


@dataclass(frozen=True)
class Settings(BlockSettings):
    question_tokens: int = 128
    """Of a row, as many as its question has room for, with its end; like it its plan and its
    execution."""
    plan_tokens: int = 128
    execution_tokens: int = 256
    mlp: str = "gelu"
    rows: str = SEGMENTS

    head_again: ClassVar[bool] = True
    may_be_slower: ClassVar[tuple[float, str]] = (
        1.3,
        "timed on one H200 only, 2 % below the plan",  # docs/bench/gpu.md
    )
    own_ids: ClassVar[int] = 1
    pads: ClassVar[bool] = True
    positive: ClassVar[tuple[str, ...]] = ("question_tokens", "plan_tokens", "execution_tokens")
    guides: ClassVar[Mapping[str, Guide]] = {"hdp": DIFFUSION_GUIDE}

    @property
    def segments(self) -> tuple[int, int, int]:
        return self.question_tokens, self.plan_tokens, self.execution_tokens

    def check_rows(self, where: str) -> None:
        if self.rows != SEGMENTS:
            raise UsageError(
                f"{self.family} learns plans and executions, which rows={self.rows} does not have",
                where=where,
                next_step=f"--set rows={SEGMENTS}",
            )
        if sum(self.segments) != self.sequence:
            raise UsageError(
                f"segments of {self.segments_text} do not add up to a sequence of {self.sequence}",
                where=where,
                next_step=f"--set sequence={sum(self.segments)}",
            )

    def work(self) -> Work:
        question, plan, execution = self.segments
        places = question + 2 * plan + execution
        # Noisy segments see themselves and the clean ones before, clean ones those up to their own.
        seen = execution * self.sequence + 2 * plan * (question + plan) + question**2
        return self.work_of_blocks(
            positions=places / self.sequence,
            head_applications=(plan + execution) / self.sequence,
            mask_share=seen / places**2,
        )
