"""Playing worlds in which runs move to another machine while their own works.

python -m tests.sim.moves --from 1 --worlds 3000 [--jobs 2]
"""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from trmcloud.sim.faults.table import MARKET, MOVES, NAMES, arm_all
from trmcloud.sim.play import PlayResult, play
from trmcloud.sim.scenario import Scenario, draw, with_moves
from trmcloud.wiring_plans import simulate_providers

simulate_providers()
_BATCH = 25


def moving_scenario(seed: int) -> Scenario | None:
    """The world of ``seed``; None where no run of it could move. A third of them have no faults
    but those of moves and markets."""
    drawn = draw(seed, NAMES if seed % 3 else ())
    return with_moves(drawn, tuple(MOVES), tuple(MARKET))


def moving_seeds(first: int) -> Iterator[int]:
    """Seeds from ``first`` on whose world has a run that may move."""
    return (seed for seed in itertools.count(first) if moving_scenario(seed) is not None)


def play_batch(seeds: Sequence[int]) -> list[PlayResult]:
    drawn = (moving_scenario(seed) for seed in seeds)
    return [play(scenario, arm_all) for scenario in drawn if scenario is not None]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--from", dest="first", type=int, default=1)
    parser.add_argument("--worlds", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    seeds = list(itertools.islice(moving_seeds(args.first), args.worlds))
    batches = [seeds[at : at + _BATCH] for at in range(0, len(seeds), _BATCH)]
    outcomes: Counter[str] = Counter()
    observed: Counter[str] = Counter()
    begun = up = handed_over = finished = with_moves_ = 0
    failures: list[str] = []
    exposed_s = over_usd = hours = 0.0
    with ProcessPoolExecutor(args.jobs) as pool:
        for played in (one for batch in pool.map(play_batch, batches) for one in batch):
            outcomes.update(outcome for _, outcome, _, _ in played.runs)
            observed.update(played.observed & {*MARKET, *MOVES})
            hours += played.hours
            exposed_s = max(exposed_s, played.exposed_s)
            over_usd = max(over_usd, played.over_exposed_usd)
            begun += played.moves[0]
            up += played.moves[1]
            handed_over += played.moves[2]
            finished += played.moves[3]
            with_moves_ += played.moves[1] > 0
            if played.violation:
                failures.append(f"{played.seed}: {played.detail}")
                print(failures[-1], flush=True)
    print(f"{len(seeds):,} worlds, {hours:,.0f} simulated hours, {len(failures)} violations")
    print(
        f"machines asked for to move to {begun:,}, came up {up:,} (in {with_moves_:,} worlds),"
        f" handed over to {handed_over:,}, moved {finished:,}"
    )
    print("outcomes", dict(outcomes.most_common()))
    print("felt", dict(sorted(observed.items())))
    print(f"longest exposure {exposed_s:,.0f} s, at most ${over_usd:.2f} beyond a budget in it")


if __name__ == "__main__":
    main()
