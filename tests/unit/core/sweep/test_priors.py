"""What is known before the first trial: sizes that do not fit, earlier trials, first points."""

from __future__ import annotations

import random
import statistics

from tests.present import present
from trmcloud.core.sweep.priors import (
    EarlierSweep,
    EarlierTrial,
    FirstPoint,
    Priors,
    Tried,
    memory_table,
)
from trmcloud.core.sweep.samplers import PointsFirst, make_sampler
from trmcloud.core.sweep.space import Point, Space, read_words
from trmcloud.core.sweep.terms import Goal


def grow(point: Point) -> float:
    """Width × depth ÷ 1,000; a width that 3 divides cannot be."""
    values = dict(point)
    width, depth = int(values.get("width", 100)), int(values.get("depth", 1))
    need = width * depth / 1000
    return -need if width % 3 == 0 else need


def test_a_table_refuses_what_needs_more_and_nothing_smaller() -> None:
    space = read_words(["lr=log:1e-4,1", "width=int:100,900", "depth=1,2,4"])
    default, _ = space.default({"lr": 0.1, "width": 200, "depth": 1})
    table = present(memory_table(space, default, grow, 10.0))
    assert [axis.name for axis in table.axes] == ["width", "depth"], "a rate needs no memory"
    draw = random.Random(3)
    for _ in range(2000):
        width, depth = draw.randint(100, 900), draw.choice((1, 2, 4))
        point: Point = (("lr", 0.2), ("width", width), ("depth", depth))
        if width * depth > 1000:
            assert not table.fits(point)
        if width * depth < 1000 - 4 * 50 - 50:  # a cell of the table is 50 wide
            assert table.fits(point) or (width % 3 == 0 and width % 50 == 0)


def test_values_that_are_all_listed_are_exact_and_what_cannot_be_is_not_started() -> None:
    space = read_words(["width=int:100,116", "depth=1,2,10"])
    default, _ = space.default({"width": 100, "depth": 1})
    table = present(memory_table(space, default, grow, 10.0))
    for point in space.points():
        need = grow(point)
        assert table.fits(point) == (0.0 <= need <= 1.0), point
    least = table.least_refused()
    assert least == ({"depth": 10, "width": 101}, 10.1)


def test_a_setting_under_a_condition_counts_where_it_exists() -> None:
    space = read_words(["kind=plain|wide", "width=int:100,2000,step=100@kind=wide"])
    default, _ = space.default({"kind": "plain"})
    table = memory_table(space, default, lambda p: dict(p).get("width", 10) / 1000, 1.0)  # type: ignore[operator]
    assert table is not None
    assert table.fits((("kind", "plain"),))
    assert table.fits((("kind", "wide"), ("width", 900)))
    assert not table.fits((("kind", "wide"), ("width", 1200)))


def test_no_table_where_nothing_changes_the_memory() -> None:
    space = read_words(["lr=log:1e-4,1", "warmup=1,2"])
    assert memory_table(space, space.default({})[0], lambda point: 0.5, 1.0) is None


def sampler_with(priors: Priors, space: Space, seed: int = 0) -> PointsFirst:
    drawn = make_sampler("density", space, space.default({})[0], Goal.MIN, seed, fits=priors.fits)
    return PointsFirst(priors, drawn)


def test_first_points_come_first_once_and_only_where_they_fit() -> None:
    space = read_words(["width=int:10,50,step=10"])
    default, _ = space.default({"width": 10})
    table = memory_table(space, default, lambda p: int(dict(p)["width"]) / 35, 1.0)
    first = tuple(FirstPoint((("width", width),), "r-1", 1) for width in (30, 50, 20))
    sampler = sampler_with(Priors(first, memory=table), space)
    made = sampler.suggest([Tried(default)], 9)
    assert made == [(("width", 30),), (("width", 20),)], "and no other that fits is left"
    assert sampler.suggest([Tried(default), *map(Tried, made)], 1) == []
    again = Tried((("width", 30),), ((0, 1.0),), sweep=1)
    assert sampler.suggest([again, Tried(default)], 1) == [(("width", 30),)], "tried elsewhere"


def test_earlier_trials_bring_new_points_nearer_to_what_did_well() -> None:
    space = read_words([f"p{number}=uniform:0,1" for number in range(4)])

    def far(point: Point) -> float:
        return sum(abs((share or 0.0) - 0.25) for share in space.shares(point))

    def mean_of(earlier: list[Tried], seed: int) -> float:
        return statistics.mean(
            far(p) for p in sampler_with(Priors(), space, seed).suggest(earlier, 20)
        )

    drawn = make_sampler("halton", space, space.default({})[0], Goal.MIN, 77).suggest([], 40)
    # Metrics of the one are larger by far than the other's: only their order counts.
    earlier = [
        Tried(point, ((n % 2, far(point) + 100 * (n % 2)),), sweep=1 + (n % 2))
        for n, point in enumerate(drawn)
    ]
    with_them = statistics.mean(mean_of(earlier, seed) for seed in range(5))
    without = statistics.mean(mean_of([], seed) for seed in range(5))
    assert with_them < 0.8 * without


def test_enough_own_trials_replace_the_earlier_ones() -> None:
    space = read_words(["p=uniform:0,1", "q=uniform:0,1"])
    points = make_sampler("halton", space, space.default({})[0], Goal.MIN, 5).suggest([], 70)
    own = [Tried(p, ((0, float(n)),)) for n, p in enumerate(points[:40])]
    earlier = [Tried(p, ((0, float(n)),), sweep=1) for n, p in enumerate(points[40:])]
    sampler = sampler_with(Priors(), space)
    assert sampler.suggest([*earlier, *own], 3) == sampler.suggest(own, 3)


def test_priors_give_their_trials() -> None:
    kept = (EarlierTrial((("p", 0.5),), 2, 1.0), EarlierTrial((("p", 0.1),), -1, None))
    assert Priors(earlier=(EarlierSweep("r-1", kept),)).tried() == [
        Tried((("p", 0.5),), ((2, 1.0),), sweep=1),
        Tried((("p", 0.1),), failed=True, sweep=1),
    ]
