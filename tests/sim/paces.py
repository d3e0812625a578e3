"""Playing worlds in which machines are faster or slower than planned and time their steps.

python -m tests.sim.paces --from 1 --worlds 3000 [--jobs 2]
"""

from __future__ import annotations

from collections import Counter

from tests.sim.drawing import draw, with_paces
from tests.sim.faults import NAMES
from tests.sim.playing import Played
from trmcloud.sim.scenario import Scenario


def paced_scenario(seed: int) -> Scenario:
    """The world of ``seed``; a third of them have no faults but those of paces."""
    return with_paces(draw(seed, NAMES if seed % 3 else ()))


def main() -> None:
    played = Played("paces", paced_scenario)
    totals: Counter[str] = Counter()
    for one in played.each():
        names = ("measured", "believed", "slow", "stopped")
        totals.update(dict(zip(names, one.paces, strict=True)))
    played.print_totals(f"paces {dict(totals)}")


if __name__ == "__main__":
    main()
