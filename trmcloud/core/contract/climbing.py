"""A micro-batch that climbs where memory is to spare: by whose names, how far, and when.

The names and bounds are those of the training guide for one H200: of its 141 GB, 80 is where more
is worth trying, 110 and 130 are what an aggressive and an extreme batch fill, one and a half times
and twice the recommended one. As many sequences a step stay: a larger batch is fewer passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trmcloud.core.contract.recovery import NEEDED, SKIPPED, SPARE, Recovery, overrides_of
from trmcloud.core.contract.trainer_contract import Heartbeat

CLIMBS = "climbs"
"""Of a phase's settings in its lease: whether its micro-batch may climb. It is absent where the
user has set it."""
SPARE_BELOW = 80 / 141
"""Of the fullest GPU's memory."""


class Level(NamedTuple):
    """``factor``: of the batch that was planned, at most; ``fills``: of a GPU's memory, at most."""

    name: str
    factor: float
    fills: float


LEVELS = (Level("aggressive", 1.5, 110 / 141), Level("extreme", 2.0, 130 / 141))
"""What was planned is the guide's ``recommended``; half of it, where memory runs out, is
``conservative``."""
_TRUSTED_GAIN = 0.01
"""Of the time that is left, what fewer passes are trusted to save: the planner's own threshold."""
_TIMES_ITS_COST = 2.0
_LEAST_RESTART_S = 60.0


def next_level(
    settings: Mapping[str, Any], recoveries: Sequence[Recovery], memory_share: float | None
) -> str:
    """The level to climb to, empty for none.

    Args:
        settings: the phase's own, as its lease has them.
        recoveries: the phase's account. Where anything went wrong nothing climbs: a batch that ran
            out of memory is not tried again.
        memory_share: what is in use of the fullest GPU's memory; None where that is not known.
    """
    if memory_share is None or not settings.get(CLIMBS) or any(k not in settings for k in NEEDED):
        return ""
    if memory_share >= SPARE_BELOW or any(
        r.what != SPARE and r.rung != SKIPPED for r in recoveries
    ):
        return ""
    batch = int({**settings, **overrides_of(recoveries)}["batch"])
    for level in LEVELS:
        changed = climbed(settings, recoveries, level.name)
        # All of what is in use is taken to grow with the batch: weights do not.
        if changed and memory_share * changed["batch"] / batch <= level.fills:
            return level.name
    return ""


def climbed(
    settings: Mapping[str, Any], recoveries: Sequence[Recovery], name: str
) -> dict[str, Any]:
    """The largest batch of that level which divides a step's sequences; empty where there is none
    above the present one, or it was climbed to."""
    level = next((each for each in LEVELS if each.name == name), None)
    if level is None or any(each.rung == name for each in recoveries):
        return {}
    now = {**settings, **overrides_of(recoveries)}
    batch, rows = int(now["batch"]), int(now["batch"]) * int(now["accumulation"])
    most = min(rows, int(level.factor * int(settings["batch"])))
    larger = next((n for n in range(most, batch, -1) if rows % n == 0), 0)
    return {"batch": larger, "accumulation": rows // larger} if larger else {}


def is_worth_it(beat: Heartbeat, deadline_left_s: float) -> bool:
    """Whether what fewer passes save of the time that is left pays for landing and starting anew,
    twice over. Nothing climbs while it cools down.

    Args:
        deadline_left_s: until the trainer is told to land, whatever steps are left.
    """
    if beat.cooldown_from is not None or beat.step_seconds is None:
        return False
    left_s = min(deadline_left_s, (beat.steps - beat.step) * beat.step_seconds)
    began_s = sum(beat.seconds.get(name, 0.0) for name in ("startup", "compile"))
    restart_s = max(_LEAST_RESTART_S, began_s + (beat.landing_seconds or 0.0))
    return left_s * _TRUSTED_GAIN > restart_s * _TIMES_ITS_COST
