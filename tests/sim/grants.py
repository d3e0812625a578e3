"""Playing worlds in which principals spend within grants that are given, raised and revoked.

python -m tests.sim.grants --from 1 --worlds 2000 [--jobs 2]
"""

from __future__ import annotations

from tests.sim.drawing import draw, with_grants
from tests.sim.faults import NAMES
from tests.sim.playing import Played
from trmcloud.sim.scenario import Scenario


def granted_scenario(seed: int) -> Scenario:
    """The world of ``seed``. A third of them have no faults."""
    return with_grants(draw(seed, NAMES if seed % 3 else (), elsewhere=False))


def main() -> None:
    played = Played("grants", granted_scenario)
    judged = refused = revoked = launched = 0
    for one in played.each():
        judged += one.grants[0]
        refused += one.grants[1]
        revoked += one.grants[2]
        launched += len(one.runs)
    played.print_totals(
        f"runs launched {launched:,}, reservations under a grant {judged:,}, refused by one"
        f" {refused:,}, grants revoked {revoked:,}"
    )


if __name__ == "__main__":
    main()
