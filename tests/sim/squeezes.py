"""Playing worlds in which a run gives money that it does not need to another one.

python -m tests.sim.squeezes --from 1 --worlds 1000 [--jobs 2]
"""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from trmcloud.sim.faults.table import NAMES, arm_all
from trmcloud.sim.play import PlayResult, play
from trmcloud.sim.scenario import Scenario, draw, with_squeeze
from trmcloud.wiring_plans import simulate_providers

simulate_providers()
_BATCH = 25


def squeezed_scenario(seed: int) -> Scenario | None:
    """The world of ``seed``; None where nothing is rented. A third of them have no faults."""
    return with_squeeze(draw(seed, NAMES if seed % 3 else (), elsewhere=False))


def squeezed_seeds(first: int) -> Iterator[int]:
    return (seed for seed in itertools.count(first) if squeezed_scenario(seed) is not None)


def play_batch(seeds: Sequence[int]) -> list[PlayResult]:
    drawn = (squeezed_scenario(seed) for seed in seeds)
    return [play(scenario, arm_all) for scenario in drawn if scenario is not None]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--from", dest="first", type=int, default=1)
    parser.add_argument("--worlds", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    seeds = list(itertools.islice(squeezed_seeds(args.first), args.worlds))
    batches = [seeds[at : at + _BATCH] for at in range(0, len(seeds), _BATCH)]
    outcomes: Counter[str] = Counter()
    lowering = lowered = second = 0
    failures: list[str] = []
    exposed_s = hours = 0.0
    with ProcessPoolExecutor(args.jobs) as pool:
        for played in (one for batch in pool.map(play_batch, batches) for one in batch):
            outcomes.update(outcome for _, outcome, _, _ in played.runs)
            hours += played.hours
            exposed_s = max(exposed_s, played.exposed_s)
            lowering += played.squeezes[0]
            lowered += played.squeezes[1]
            second += len(played.runs) > 1
            if played.violation:
                failures.append(f"{played.seed}: {played.detail}")
                print(failures[-1], flush=True)
    print(f"{len(seeds):,} worlds, {hours:,.0f} simulated hours, {len(failures)} violations")
    print(
        f"stops lowered {lowering:,}, money freed {lowered:,},"
        f" worlds whose second run was launched {second:,}"
    )
    print("outcomes", dict(outcomes.most_common()))
    print(f"longest exposure {exposed_s:,.0f} s")


if __name__ == "__main__":
    main()
