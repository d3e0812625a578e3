"""Playing worlds in which stops are tight and are moved where the work needs it.

python -m tests.sim.extensions --from 1 --worlds 20000 [--jobs 2]
"""

from __future__ import annotations

from collections import Counter

from tests.sim.drawing import draw, with_extensions
from tests.sim.faults import NAMES
from tests.sim.playing import Played
from trmcloud.sim.scenario import Scenario


def extended_scenario(seed: int) -> Scenario | None:
    """The world of ``seed``, a third of them without other faults; None where no stop of it is
    tight."""
    made = with_extensions(draw(seed, NAMES if seed % 3 else ()))
    tight = any(c.limit_s for wish in made.wishes for c in wish.plan.candidates)
    return made if tight else None


def main() -> None:
    played = Played("extensions", extended_scenario)
    totals: Counter[str] = Counter()
    for one in played.each():
        totals.update(dict(zip(("extended", "landed in time"), one.extensions, strict=True)))
        totals["worlds that extend"] += bool(one.extensions[0])
    played.print_totals(f"extensions {dict(totals)}")


if __name__ == "__main__":
    main()
