"""How a pod's name tells whose it is: the one thing of ours that every provider shows."""

from __future__ import annotations

import re
from functools import lru_cache

from trmcloud.core.values import dataclass

POD_PREFIX = "trmc"
_POD_NAME = re.compile(r"trmc-([0-9a-f]{8})-([a-z0-9]{1,20})-g([0-9]{1,4})-([0-9]{9,11})")


@dataclass(frozen=True)
class PodName:
    """Whose pod this is and when it must be gone: readable by a reaper without the ledger."""

    ledger: str
    run_id: str
    generation: int
    hard_stop_at: int

    def __str__(self) -> str:
        run = self.run_id.replace("-", "")
        return f"{POD_PREFIX}-{self.ledger}-{run}-g{self.generation}-{self.hard_stop_at}"


@lru_cache(maxsize=256)
def parse_pod_name(text: str) -> PodName | None:
    """The parts of one of our pod names; None for anything else, which is never touched."""
    match = _POD_NAME.fullmatch(text)
    if match is None:
        return None
    ledger, run, generation, hard_stop = match.groups()
    name = PodName(ledger, run, int(generation), int(hard_stop))
    return name if str(name) == text else None
