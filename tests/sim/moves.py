"""Playing worlds in which runs move to another machine while their own works.

python -m tests.sim.moves --from 1 --worlds 3000 [--jobs 2]
"""

from __future__ import annotations

from collections import Counter

from tests.sim.drawing import draw, with_moves
from tests.sim.playing import Played
from trmcloud.sim.faults.table import MARKET, MOVES, NAMES
from trmcloud.sim.scenario import Scenario


def moving_scenario(seed: int) -> Scenario | None:
    """The world of ``seed``; None where no run of it could move. A third of them have no faults
    but those of moves and markets."""
    drawn = draw(seed, NAMES if seed % 3 else ())
    return with_moves(drawn, tuple(MOVES), tuple(MARKET))


def main() -> None:
    played = Played("moves", moving_scenario)
    observed: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    for one in played.each():
        observed.update(one.observed & {*MARKET, *MOVES})
        names = ("asked for", "came up", "handed over to", "moved")
        totals.update(dict(zip(names, one.moves, strict=True)))
        totals["worlds with one that came up"] += one.moves[1] > 0
    played.print_totals(f"machines {dict(totals)}", f"felt {dict(sorted(observed.items()))}")


if __name__ == "__main__":
    main()
