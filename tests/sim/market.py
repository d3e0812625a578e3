"""Playing worlds in which runs wait for machines.

python -m tests.sim.market --from 1 --seeds 5000 [--jobs 2]
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from trmcloud.sim.faults.table import MARKET, NAMES, arm_all
from trmcloud.sim.play import PlayResult, play
from trmcloud.sim.scenario import Scenario, draw
from trmcloud.wiring_plans import simulate_providers

simulate_providers()
_BATCH = 100


def market_scenario(seed: int) -> Scenario:
    """The world of ``seed``; half of them have no other faults than the market's."""
    return draw(seed, NAMES if seed % 2 else (), market=tuple(MARKET))


def play_batch(seeds: Sequence[int]) -> list[PlayResult]:
    return [play(market_scenario(seed), arm_all) for seed in seeds]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--from", dest="first", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    seeds = range(args.first, args.first + args.seeds)
    batches = [seeds[at : at + _BATCH] for at in range(0, len(seeds), _BATCH)]
    outcomes: Counter[str] = Counter()
    observed: Counter[str] = Counter()
    failures: list[str] = []
    exposed_s = over_usd = hours = 0.0
    with ProcessPoolExecutor(args.jobs) as pool:
        for played in (one for batch in pool.map(play_batch, batches) for one in batch):
            outcomes.update(outcome for _, outcome, _, _ in played.runs)
            observed.update(played.observed & set(MARKET))
            hours += played.hours
            exposed_s = max(exposed_s, played.exposed_s)
            over_usd = max(over_usd, played.over_exposed_usd)
            if played.violation:
                failures.append(f"{played.seed}: {played.detail}")
                print(failures[-1], flush=True)
    print(f"{len(seeds):,} worlds, {hours:,.0f} simulated hours, {len(failures)} violations")
    print("outcomes", dict(outcomes.most_common()))
    print("felt", dict(sorted(observed.items())))
    print(f"longest exposure {exposed_s:,.0f} s, at most ${over_usd:.2f} beyond a budget in it")


if __name__ == "__main__":
    main()
