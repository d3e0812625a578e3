"""Which of the moments to kill at a run of the tests tries: a few that the code's hash draws.

Each version of the code is tried at others; ``TRMCLOUD_TEST_ALL_MOMENTS=1`` (``make soak-crashes``)
tries them all.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import TypeVar

from tests.sim.soak import code_hash

ENV_ALL = "TRMCLOUD_TEST_ALL_MOMENTS"
Moment = TypeVar("Moment")


def drawn(moments: Sequence[Moment], count: int) -> list[Moment]:
    """``count`` of them, in their order."""
    if os.environ.get(ENV_ALL):
        return list(moments)
    chance = random.Random(f"{code_hash()} {len(moments)}")
    return [moments[n] for n in sorted(chance.sample(range(len(moments)), count))]
