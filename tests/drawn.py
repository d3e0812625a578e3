"""A few of many, drawn by the hash of the code: each version of it is tried at others."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import TypeVar

from tests.scheduling import ENV_MORE
from tests.sim.soak import code_hash

T = TypeVar("T")


def drawn(of: Sequence[T], count: int) -> list[T]:
    """Return ``count`` of them, in their order; all in a long target."""
    if os.environ.get(ENV_MORE):
        return list(of)
    chance = random.Random(f"{code_hash()} {len(of)}")
    return [of[n] for n in sorted(chance.sample(range(len(of)), count))]


def tenth(of: Sequence[T]) -> list[T]:
    """Return a tenth of them, and at least one."""
    return drawn(of, max(1, len(of) // 10))
