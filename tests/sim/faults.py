"""All faults that tests arm: those that a rehearsal knows, those of a pod that lies (65–70 and 74),
and 101–105, of a market.

Of a market are stock that is sold out or flaps, boots that never come, prices that rise while a run
waits, and a provider that asks to be asked less often.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from tests.sim import hostile
from trmcloud.sim.faults import table
from trmcloud.sim.faults.arm import Fault, FaultContext
from trmcloud.sim.scenario import Scenario
from trmcloud.sim.world.world import SimWorld

ALL: Mapping[str, tuple[str, Fault]] = dict(
    sorted({**table.ALL, **hostile.FAULTS}.items(), key=lambda item: int(item[0]))
)
NAMES = tuple(ALL)
_MINUTE_S, _HOUR_S = 60.0, 3600.0


def _sold_out(arms: FaultContext) -> None:
    """From the launch on, for ten minutes to longer than anybody waits."""
    seconds = 10 * _MINUTE_S * 60 ** arms.rng.random()
    arms.for_a_while("sold_out_until", arms.soon(), seconds, "nothing is free")


def _flaps(arms: FaultContext) -> None:
    """Stock comes and goes; it is there for a share of each period."""
    period_s, share = arms.rng.uniform(5, 90) * _MINUTE_S, arms.rng.uniform(0.02, 0.5)
    at = arms.soon()
    for number in range(int(12 * _HOUR_S / period_s)):
        gone_s = period_s * (1 - share)
        arms.for_a_while("sold_out_until", at + number * period_s, gone_s, "nothing is free")


def _never_boots(arms: FaultContext) -> None:
    """Pods that are billed from their creation and never say a word."""
    count = arms.rng.choice((1, 1, 2, 3, 5))
    arms.set_knob("silent_boots", count, f"{count} pods will never boot")


def _rises(arms: FaultContext) -> None:
    """The price moves every hour, at first above what the user pays at most."""
    factor, at = arms.rng.uniform(1.1, 2.5), arms.soon()
    for number in range(12):
        text = f"a machine costs {factor:.2f} × the quote"
        arms.set_knob("price_now", factor, text, at + number * arms.rng.uniform(0.3, 1.0) * _HOUR_S)
        factor *= arms.rng.uniform(0.6, 1.2)


def _throttles(arms: FaultContext) -> None:
    """429 to every create for up to two hours; it says for how long, or does not."""
    seconds = arms.rng.uniform(0.1, 2.0) * _HOUR_S
    arms.set_knob("retry_after_s", arms.rng.choice((0.0, 30.0, 900.0)), "429 to creates")
    arms.for_a_while("creates_throttled_until", arms.soon(), seconds, "429 to creates")


MARKET: Mapping[str, tuple[str, Fault]] = {
    "101": ("sold out", _sold_out),
    "102": ("stock comes and goes", _flaps),
    "103": ("boots never come", _never_boots),
    "104": ("price above the most, and below again", _rises),
    "105": ("429 to creates", _throttles),
}
"""Apart: they strike where runs wait for a machine, and all other worlds stay what they were."""
PAIRS = tuple(itertools.combinations(NAMES, 2))

#: Pairs that cannot both be felt in one world, and why.
IMPOSSIBLE: Mapping[tuple[str, str], str] = {}


def arm_all(world: SimWorld, scenario: Scenario) -> None:
    """Set every fault of the scenario, each with dice of its own."""
    table.arm_all(world, scenario, {**ALL, **MARKET})
