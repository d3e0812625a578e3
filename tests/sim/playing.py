"""Playing the worlds of many seeds, some at a time, for commands that count what came of them."""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.sim.faults import arm_all
from tests.sim.kept import KEEP_IT
from tests.sim.play import PlayResult, play
from trmcloud.sim.scenario import Scenario

ScenarioOf = Callable[[int], Scenario | None]
"""The world of a seed; None where that seed has none of its kind."""
_BATCH = 25


def seeds_of(scenario_of: ScenarioOf, first: int) -> Iterator[int]:
    """Seeds from ``first`` on that have a world of this kind."""
    return (seed for seed in itertools.count(first) if scenario_of(seed) is not None)


class Played:
    """The worlds of ``--worlds`` seeds from ``--from`` on, and the totals of what came of them.
    Each violation is printed as it is found, with the command that keeps it."""

    def __init__(self, kind: str, scenario_of: ScenarioOf) -> None:
        self._kind = kind
        parser = argparse.ArgumentParser()
        parser.add_argument("--from", dest="first", type=int, default=1)
        parser.add_argument("--worlds", type=int, default=200)
        parser.add_argument("--jobs", type=int, default=1)
        self._args = parser.parse_args()
        self._scenario_of = scenario_of
        seeds = seeds_of(scenario_of, self._args.first)
        self._seeds = list(itertools.islice(seeds, self._args.worlds))
        self._failures = 0
        self._hours = self._exposed_s = self._over_usd = 0.0
        self._outcomes: Counter[str] = Counter()

    def each(self) -> Iterator[PlayResult]:
        batches = [self._seeds[at : at + _BATCH] for at in range(0, len(self._seeds), _BATCH)]
        with ProcessPoolExecutor(self._args.jobs) as pool:
            found = pool.map(partial(_play_batch, self._scenario_of), batches)
            for played in (one for batch in found for one in batch):
                self._outcomes.update(outcome for _, outcome, _, _ in played.runs)
                self._hours += played.hours
                self._exposed_s = max(self._exposed_s, played.exposed_s)
                self._over_usd = max(self._over_usd, played.over_exposed_usd)
                if played.violation:
                    self._failures += 1
                    keep_it = KEEP_IT.format(seed=played.seed, kind=self._kind)
                    print(f"{played.seed}: {played.detail}\n{keep_it}", flush=True)
                yield played

    def print_totals(self, *more: str) -> None:
        """Print the totals; ``more`` are lines in their midst."""
        worlds = f"{len(self._seeds):,} worlds, {self._hours:,.0f} simulated hours"
        print(f"{worlds}, {self._failures} violations")
        for line in more:
            print(line)
        print("outcomes", dict(self._outcomes.most_common()))
        print(
            f"longest exposure {self._exposed_s:,.0f} s,"
            f" at most ${self._over_usd:.2f} beyond a budget in it"
        )


def _play_batch(scenario_of: ScenarioOf, seeds: Sequence[int]) -> list[PlayResult]:
    drawn = map(scenario_of, seeds)
    return [play(scenario, arm_all) for scenario in drawn if scenario is not None]
