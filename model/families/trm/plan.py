"""What a plan needs to know of TRM: its settings, its work, and what its guide claims.

With depth L, width D, N supervision steps of n loops, vocabulary V and sequence T: each of the L
blocks (16·D² parameters: attention 4·D², SwiGLU of hidden 4·D 12·D²) runs N·(n+1) times, the head N
times. Training costs 6·[16·L·D²·N·(n+1) + N·V·D] + 12·L·D·T·N·(n+1) per token. Its control has as
many blocks as TRM has applications.
"""

from __future__ import annotations

from typing import Any, ClassVar, Mapping

from trmcloud.core.errors import UsageError
from trmcloud.core.money import Usd
from trmcloud.core.spec.guides import Claim, Guide
from trmcloud.core.spec.settings import PhaseRecipe, check_choice, check_rotary
from trmcloud.core.spec.work import Work, block_matrices, work_of_blocks
from trmcloud.core.values import dataclass

#: (supervision_weight_base, improvement_reward_scale) of the guides' presets.
PRESETS: Mapping[str, tuple[float, float]] = {
    "moderate": (3.0, 0.5),
    "aggressive": (5.0, 1.0),
    "extreme": (10.0, 2.0),
}

_ROWS = (
    # hardware, $/h, fast: batch, accumulation, s/step, minutes, $; extreme: the same
    ("8xB200", "50.00", 40, 2, (0.3, 0.5), (20, 40), (17, 33), 20, (0.5, 1), (90, 180), (75, 150)),
    ("8xH200", "36.32", 36, 2, (0.4, 0.6), (25, 50), (15, 30), 18, (0.8, 1.2), (120, 210),
     (73, 127)),
    ("8xH100", "31.60", 32, 2, (0.5, 1), (30, 60), (16, 32), 16, (1, 2), (120, 240), (63, 126)),
    ("8xA100", "20.00", 28, 2, (0.7, 1), (45, 75), (15, 25), 14, (1.5, 2), (180, 300), (60, 100)),
    ("4xH100", "15.80", 32, 4, (0.8, 1.2), (50, 90), (13, 24), 16, (1.5, 2.5), (180, 360),
     (47, 95)),
    ("4xA100", "10.00", 28, 4, (1, 1.5), (60, 100), (10, 17), 14, (2, 3), (240, 420), (40, 70)),
)  # fmt: skip
_CLAIMS = tuple(
    claim
    for hardware, rate, b1, acc, s1, m1, c1, b2, s2, m2, c2 in _ROWS
    for claim in (
        Claim(hardware, "fast", Usd(rate), 1000, b1, acc, s1, m1, c1),
        Claim(hardware, "extreme", Usd(rate), 5000, b2, acc, s2, m2, c2),
    )
)


@dataclass(frozen=True)
class Settings(PhaseRecipe):
    supervision_steps: int = 4
    loops: int = 2
    control: bool = False
    """Train the non-recursive control of equal FLOPs instead (a diagnostic)."""
    preset: str = "aggressive"
    supervision_weight_base: float = 5.0
    improvement_reward_scale: float = 1.0

    may_be_slower: ClassVar[tuple[float, str]] = (
        1.3,
        "timed on one H200 only, 12 % below the plan",  # docs/bench/gpu.md
    )
    why_not_sharded: ClassVar[str] = (
        "its blocks are applied many times, and would be gathered each time"
    )
    positive: ClassVar[tuple[str, ...]] = ("supervision_steps", "loops", "supervision_weight_base")
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"preset": tuple(PRESETS)}
    decisive: ClassVar[tuple[str, ...]] = ("supervision_steps", "loops", "control")
    shape_keys: ClassVar[tuple[str, ...]] = ("control",)
    flops_formula: ClassVar[str] = "6·[16·L·D²·N(n+1) + N·V·D] + 12·L·D·T·N(n+1)"
    guides: ClassVar[Mapping[str, Guide]] = {"trm": Guide(rows=_CLAIMS)}
    reached: ClassVar[Mapping[str, str]] = {
        "trm": "6 % worse than its control in a small run (ours)"
    }
    beaten_by: ClassVar[Mapping[str, str]] = {
        "trm": "in a small run its control without recursion was 6 % better: docs/bench/control.md"
    }

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        if "preset" not in values:
            return {}
        check_choice("preset", values["preset"], PRESETS, "--set")
        base, scale = PRESETS[values["preset"]]
        return {"supervision_weight_base": base, "improvement_reward_scale": scale}

    def check_shape(self, where: str) -> None:
        check_rotary(self.head_dim, where)
        if self.improvement_reward_scale < 0:
            raise UsageError("improvement_reward_scale cannot be negative", where=where)

    def work(self) -> Work:
        applications = self.depth * self.supervision_steps * (self.loops + 1)
        return work_of_blocks(
            depth=self.depth,
            width=self.width,
            vocab_size=self.vocab_size,
            sequence=self.sequence,
            matrices=block_matrices(self.width, 4 * self.width, 3),
            layers=applications if self.control else self.depth,
            applications=applications,
            head_applications=self.supervision_steps,
            mlp_values=12.0,
        )
