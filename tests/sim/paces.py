"""Playing worlds in which machines are faster or slower than planned and time their steps.

python -m tests.sim.paces --from 1 --worlds 3000 [--jobs 2]
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from trmcloud.sim.faults.table import NAMES, arm_all
from trmcloud.sim.play import PlayResult, play
from trmcloud.sim.scenario import Scenario, draw, with_paces
from trmcloud.wiring_plans import simulate_providers

simulate_providers()
_BATCH = 25


def paced_scenario(seed: int) -> Scenario:
    """The world of ``seed``; a third of them have no faults but those of paces."""
    return with_paces(draw(seed, NAMES if seed % 3 else ()))


def play_batch(seeds: Sequence[int]) -> list[PlayResult]:
    return [play(paced_scenario(seed), arm_all) for seed in seeds]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--from", dest="first", type=int, default=1)
    parser.add_argument("--worlds", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    seeds = list(range(args.first, args.first + args.worlds))
    batches = [seeds[at : at + _BATCH] for at in range(0, len(seeds), _BATCH)]
    outcomes: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    failures: list[str] = []
    hours = over_usd = 0.0
    with ProcessPoolExecutor(args.jobs) as pool:
        for played in (one for batch in pool.map(play_batch, batches) for one in batch):
            outcomes.update(outcome for _, outcome, _, _ in played.runs)
            hours += played.hours
            over_usd = max(over_usd, played.over_exposed_usd)
            names = ("measured", "believed", "slow", "stopped")
            totals.update(dict(zip(names, played.paces, strict=True)))
            names = ("asked", "up", "handed over", "moved")
            totals.update(dict(zip(names, played.moves, strict=True)))
            if played.violation:
                failures.append(f"{played.seed}: {played.detail}")
                print(failures[-1], flush=True)
    print(f"{len(seeds):,} worlds, {hours:,.0f} simulated hours, {len(failures)} violations")
    print(f"paces and moves {dict(totals)}")
    print(f"outcomes {dict(outcomes.most_common())}")
    print(f"at most ${over_usd:.2f} beyond a budget while no layer could act")


if __name__ == "__main__":
    main()
