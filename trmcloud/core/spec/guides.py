"""What a training guide claims of a recipe, kept so that a plan can stand beside it.

Prices are the guides' own of their day: a historic source, never planned with. In every row the
quoted cost is the quoted time × the price, and the quoted time is not steps × seconds per step.
A family's ``plan.py`` says what is claimed of its recipes.
"""

from __future__ import annotations

from typing import NamedTuple

from trmcloud.core.money import Usd

SOURCE = "training guides, historic"


class Target(NamedTuple):
    """A guide's claim for a recipe, in validation nats a token on its own data."""

    nats: float
    hours: float
    data: str
    tokenizer: str
    why_not: tuple[str, ...]
    """The demands of its arithmetic that no machine meets."""


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
        """The minutes from its own steps and seconds per step."""
        return self.steps * self.step_s[0] / 60, self.steps * self.step_s[1] / 60


class Guide(NamedTuple):
    """All that is claimed of one recipe."""

    said: tuple[tuple[str, str], ...] = ()
    """(claim, what arithmetic makes of it)."""
    rows: tuple[Claim, ...] = ()
    batches: tuple[BatchRow, ...] = ()
    """With 50,000 steps each, whatever a step takes in."""
    target: Target | None = None
    steps_in_hours: float = 0.0
    """Of so many hours it names the steps; 0: of none."""


_BATCHES = (
    BatchRow("baseline", "A100-80GB-SXM", 4, 32, 1, (60, 60), (24, 36)),
    BatchRow("conservative", "H200", 1, 64, 4, (40, 50), None),
    BatchRow("recommended", "H200", 1, 128, 4, (60, 80), (12, 18)),
    BatchRow("aggressive", "H200", 1, 192, 4, (90, 110), (8, 12)),
    BatchRow("extreme", "H200", 1, 256, 4, (110, 130), None),
)
DIFFUSION_GUIDE = Guide(
    said=(("12–18 h on one H200 for 50,000 steps", "3,426 passes over 7,473 examples"),),
    batches=_BATCHES,
)
"""One for two families."""
