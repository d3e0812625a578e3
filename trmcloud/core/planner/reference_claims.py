"""What the training guides claim for their twelve rows, kept so that a plan can stand beside them.

Prices are the guides' own of their day: a historic source, never planned with. In every row the
quoted cost is the quoted time × the price, and the quoted time is not steps × seconds per step.
"""

from __future__ import annotations

from typing import Mapping, NamedTuple

from trmcloud.core.money import Usd


class Target(NamedTuple):
    """What a guide promises of a recipe, in validation nats a token on its own data."""

    nats: float
    hours: float
    data: str
    tokenizer: str
    why_not: tuple[str, ...]
    """What its arithmetic asks for that no machine gives."""


TARGETS: Mapping[str, Target] = {
    "gpt350m": Target(
        3.0781,
        1.5,
        "openwebtext",
        "gpt2",
        (
            "700,000 to 900,000 tokens/s could not be: 2.43 GFLOP a token make 172 to 221 % of an "
            "H100's dense bf16 peak, and 110 % of its FP8 peak at 900,000",
            "188,000 tokens/s were measured elsewhere: 1.5 h hold about 1.0B tokens, not 3.78B",
        ),
    ),
}
"""By recipe."""


class BatchRow(NamedTuple):
    """A batch that the diffusion guide names; pairs are the (low, high) it quotes."""

    name: str
    sku: str
    gpus: int
    batch: int
    accumulation: int
    memory_gb: tuple[float, float]
    hours: tuple[float, float] | None
    """Of 50,000 steps; None: it does not say."""


BATCH_ROWS = (
    BatchRow("baseline", "A100-80GB-SXM", 4, 32, 1, (60, 60), (24, 36)),
    BatchRow("conservative", "H200", 1, 64, 4, (40, 50), None),
    BatchRow("recommended", "H200", 1, 128, 4, (60, 80), (12, 18)),
    BatchRow("aggressive", "H200", 1, 192, 4, (90, 110), (8, 12)),
    BatchRow("extreme", "H200", 1, 256, 4, (110, 130), None),
)
"""Of ``bd3lm`` and ``hdp``, with 50,000 steps each, whatever a step takes in."""


class Claim(NamedTuple):
    """One row of the guide. Pairs are the (low, high) it quotes."""

    hardware: str
    phase: str
    rate: Usd
    """USD/h of the whole machine."""
    steps: int
    batch: int
    accumulation: int
    step_s: tuple[float, float]
    minutes: tuple[float, float]
    cost_usd: tuple[float, float]

    @property
    def arithmetic_minutes(self) -> tuple[float, float]:
        """What its own steps and seconds per step come to."""
        return self.steps * self.step_s[0] / 60, self.steps * self.step_s[1] / 60


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

SOURCE = "training guides, historic"

CLAIMS: Mapping[tuple[str, str], Claim] = {
    (claim.hardware, claim.phase): claim
    for hardware, rate, b1, acc, s1, m1, c1, b2, s2, m2, c2 in _ROWS
    for claim in (
        Claim(hardware, "fast", Usd(rate), 1000, b1, acc, s1, m1, c1),
        Claim(hardware, "extreme", Usd(rate), 5000, b2, acc, s2, m2, c2),
    )
}

#: What the guides say of other recipes, and what arithmetic makes of it: (claim, correct).
OTHER_CLAIMS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "d64": (
        ("4.3B parameters in 75 GB", "12.9B: 4.3B counts attention alone, the MLPs are twice that"),
        ("batch 4 on 8 GPUs fits", "DDP holds 12 bytes a parameter on every GPU: more than 80 GB"),
        ("8 × 4 × 2048 = 524,288 tokens per step", "65,536: it takes 8 passes of accumulation"),
        ("730 steps an hour, 22,630 in 31 h", "147 % of the peak of eight H100 PCIe"),
        ("17 GB a checkpoint, 31 of them 527 GB", "103 GB each with optimizer, 3.2 TB for 31"),
    ),
    "gpt350m": (
        ("700,000 tokens/s on one H100", "172 % of its dense bf16 peak; 188,000 were measured"),
        ("3.78B tokens in 1.5 h", "about 1.0B at the measured throughput"),
    ),
    "bd3lm": (("12–18 h on one H200 for 50,000 steps", "3,426 passes over 7,473 examples"),),
    "hdp": (("12–18 h on one H200 for 50,000 steps", "3,426 passes over 7,473 examples"),),
}
