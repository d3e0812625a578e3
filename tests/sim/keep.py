"""Keep the world of a seed that breaks something, before anything else is changed.

python -m tests.sim.keep SEED --taught "what it teaches" [--kind soak]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from tests.sim.drawing import draw
from tests.sim.extensions import extended_scenario
from tests.sim.faults import NAMES, arm_all
from tests.sim.grants import granted_scenario
from tests.sim.kept import write
from tests.sim.market import market_scenario
from tests.sim.paces import paced_scenario
from tests.sim.play import play
from tests.sim.playing import ScenarioOf
from tests.sim.soak import soak_scenario
from trmcloud.sim.scenario import Scenario


def drawn_scenario(seed: int) -> Scenario:
    return draw(seed, NAMES)


KINDS: Mapping[str, ScenarioOf] = {
    "drawn": drawn_scenario,
    "soak": soak_scenario,
    "grants": granted_scenario,
    "market": market_scenario,
    "paces": paced_scenario,
    "extensions": extended_scenario,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.sim.keep", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--taught", required=True, help="one sentence for docs/soak/README.md")
    parser.add_argument("--kind", choices=KINDS, default="drawn", help="the command that found it")
    given = parser.parse_args(arguments)
    scenario = KINDS[given.kind](given.seed)
    played = play(scenario, arm_all) if scenario is not None else None
    if scenario is None or played is None or not played.violation:
        print(f"{given.kind} {given.seed} breaks nothing: nothing was kept", file=sys.stderr)
        return 1
    name = f"{given.seed}" if given.kind == "drawn" else f"{given.kind}-{given.seed}"
    print(f"{write(scenario, given.taught, name)}: {played.detail}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
