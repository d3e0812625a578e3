"""Playing worlds in which runs wait for machines.

python -m tests.sim.market --from 1 --worlds 5000 [--jobs 2]
"""

from __future__ import annotations

from collections import Counter

from tests.sim.drawing import draw
from tests.sim.faults import MARKET, NAMES
from tests.sim.playing import Played
from trmcloud.sim.scenario import Scenario


def market_scenario(seed: int) -> Scenario:
    """The world of ``seed``; half of them have no other faults than the market's."""
    return draw(seed, NAMES if seed % 2 else (), market=tuple(MARKET))


def main() -> None:
    played = Played("market", market_scenario)
    observed: Counter[str] = Counter()
    for one in played.each():
        observed.update(one.observed & set(MARKET))
    played.print_totals(f"felt {dict(sorted(observed.items()))}")


if __name__ == "__main__":
    main()
