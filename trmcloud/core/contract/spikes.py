"""What stands out of the steps before it: the trainer leaves such a step out, ``health`` tells it.

OLMo-core's rule, six deviations over 128 steps; ours asks for at least so much of the mean as a
deviation, so that what hardly scatters at all has no spikes of a thousandth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

DEVIATIONS, OVER = 6.0, 128
LEAST_OF_LOSS = 0.005
"""Of the mean loss, a deviation counts as no less."""


def spike_limit(before: Sequence[float], least: float) -> float:
    """What lies above this is a spike after ``before``, which is not empty.

    ``least``: a deviation is at least so much of the mean.
    """
    mean = fmean(before)
    # Not by ``statistics.pstdev``: exact fractions take twenty times as long, at every step.
    deviation = math.sqrt(math.fsum((each - mean) ** 2 for each in before) / len(before))
    return mean + DEVIATIONS * max(deviation, least * abs(mean))
