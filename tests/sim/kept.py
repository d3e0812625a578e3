"""Seeds that once broke something: ``kept.json``. None is ever exchanged for another.

Each says how many faults there were then: more of them would make another world of the same number.
So would more providers: those of a seed that does not name them are ``EARLIER``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from trmcloud.sim.faults.table import NAMES
from trmcloud.sim.scenario import Scenario, draw, with_balance

EARLIER = ("local", "runpod", "skypilot", "aws")
"""The providers that could be drawn until 2026-11-25."""


@dataclass(frozen=True)
class Kept:
    seed: int
    faults: int
    taught: str
    providers: tuple[str, ...] = EARLIER
    elsewhere: bool = False
    """Whether runs with a bucket could have a second provider."""

    balance: bool = False
    """Whether a provider's balance may end."""

    def scenario(self) -> Scenario:
        names = NAMES[: self.faults]
        drawn = draw(self.seed, names, among=self.providers, elsewhere=self.elsewhere)
        return with_balance(drawn) if self.balance else drawn


KEPT = tuple(
    Kept(int(seed), **row)
    for seed, row in json.loads(
        Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
    ).items()
)
