"""Playing worlds in which a run gives money that it does not need to another one.

python -m tests.sim.squeezes --from 1 --worlds 1000 [--jobs 2]
"""

from __future__ import annotations

from tests.sim.drawing import draw, with_squeeze
from tests.sim.playing import Played
from trmcloud.sim.faults.table import NAMES
from trmcloud.sim.scenario import Scenario


def squeezed_scenario(seed: int) -> Scenario | None:
    """The world of ``seed``; None where nothing is rented. A third of them have no faults."""
    return with_squeeze(draw(seed, NAMES if seed % 3 else (), elsewhere=False))


def main() -> None:
    played = Played("squeezes", squeezed_scenario)
    lowering = lowered = second = 0
    for one in played.each():
        lowering += one.squeezes[0]
        lowered += one.squeezes[1]
        second += len(one.runs) > 1
    played.print_totals(
        f"stops lowered {lowering:,}, money freed {lowered:,},"
        f" worlds whose second run was launched {second:,}"
    )


if __name__ == "__main__":
    main()
