"""Interruption rates of spot machines: the provider's statement, or an assumption. Pure.

Each provider's row is in its folder's ``traits.py``, with its source and the day on which it was
read.
"""

from __future__ import annotations

import math

from trmcloud.core.values import Value

ASSUMED_PER_HOUR = 0.10
"""Interruptions of one spot machine per hour where no rate is known: once in ten hours. It is an
assumption, and plans say so."""


class InterruptionRate(Value):
    """The known rate of one provider's interruptions.

    ``per_hour``: of one machine, the upper end of what is stated; None: no rate per hour is known.
    ``stated``: what the source says, in a few words; empty where nothing was found.
    ``source``: whose statement it is. ``read_on``: the day on which it was looked for.
    """

    per_hour: float | None = None
    stated: str = ""
    source: str = ""
    read_on: str = ""

    @property
    def planned_per_hour(self) -> float:
        return ASSUMED_PER_HOUR if self.per_hour is None else self.per_hour


NOT_KNOWN = InterruptionRate()


def per_hour_of_a_day(share: float) -> float:
    """Return the rate per hour of which a ``share`` of machines (0 to 1) is taken back in a day,
    where each hour is like every other: -ln(1 - share) / 24."""
    return -math.log(1.0 - share) / 24.0
