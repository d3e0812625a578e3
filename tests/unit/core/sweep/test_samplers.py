from __future__ import annotations

import statistics

import pytest

from trmcloud.core.errors import UsageError
from trmcloud.core.sweep.priors import Tried
from trmcloud.core.sweep.samplers import SAMPLERS, ScalingRule, draw, make_sampler, radical_inverse
from trmcloud.core.sweep.space import Point, Space, read_words
from trmcloud.core.sweep.terms import Goal

SPACE = read_words(["lr=log:1e-4,1e-2", "width=int:64,256,step=32", "depth=2|4|8"])
DEFAULT, _ = SPACE.default({"lr": 1e-3, "width": 128})


def suggested(
    name: str, count: int, *, space: Space = SPACE, seed: int = 0, metric: bool = False
) -> list[Point]:
    sampler = make_sampler(name, space, space.default({})[0], Goal.MIN, seed)
    history: list[Tried] = []
    for _ in range(count):
        for point in sampler.suggest(history, 1):
            loss = sum(abs((share or 0.0) - 0.25) for share in space.shares(point))
            history.append(Tried(point, ((0, loss),) if metric else ()))
    return [each.point for each in history]


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_same_seed_draws_the_same_new_points(name: str) -> None:
    points = suggested(name, 45, metric=True)
    assert points == suggested(name, 45, metric=True)
    assert points != suggested(name, 45, seed=1, metric=True)
    assert len(set(points)) == 45


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_small_space_is_used_up(name: str) -> None:
    space = read_words(["a=1|2|3", "b=4|5@a=3"])
    assert set(suggested(name, 20, space=space)) == set(space.points())


@pytest.mark.parametrize("name", SAMPLERS)
def test_what_does_not_fit_is_never_suggested(name: str) -> None:
    sampler = make_sampler(
        name, SPACE, DEFAULT, Goal.MIN, 0, fits=lambda point: dict(point)["width"] == 64
    )
    assert {dict(point)["width"] for point in sampler.suggest([], 20)} == {64}
    nothing = make_sampler(name, SPACE, DEFAULT, Goal.MIN, 0, fits=lambda point: False)
    assert nothing.suggest([], 3) == []


def test_points_of_earlier_sweeps_are_not_tried_again_and_are_learnt_from() -> None:
    earlier = [
        Tried(point, ((0, float(number)),), sweep=1)
        for number, point in enumerate(suggested("halton", 40))
    ]
    sampler = make_sampler("density", SPACE, DEFAULT, Goal.MIN, 0)
    made = sampler.suggest(earlier, 10)
    assert not set(made) & {each.point for each in earlier}
    assert made != sampler.suggest([], 10)


def test_density_comes_nearer_to_what_did_well() -> None:
    space = read_words([f"p{number}=uniform:0,1" for number in range(4)])

    def distance(points: list[Point]) -> float:
        return statistics.mean(
            sum(abs((share or 0.0) - 0.25) for share in space.shares(point)) for point in points
        )

    later = distance(suggested("density", 90, space=space, metric=True)[45:])
    assert later < 0.8 * distance(suggested("halton", 90, space=space)[45:])


def test_density_begins_after_ten_points_where_all_were_trained_to_the_end() -> None:
    space = read_words([f"p{number}=uniform:0,1" for number in range(3)])
    default = space.default({})[0]
    halton = make_sampler("halton", space, default, Goal.MIN, 0)
    points = [default, *halton.suggest([Tried(default)], 11)]

    def begins(count: int, whole: int) -> bool:
        tried = [
            Tried(point, ((0, float(number)),), complete=number < whole)
            for number, point in enumerate(points[:count])
        ]
        density = make_sampler("density", space, default, Goal.MIN, 0)
        return density.suggest(tried, 1) != halton.suggest(tried, 1)

    assert begins(10, whole=10)
    assert not begins(9, whole=9)
    assert not begins(10, whole=9)


def test_halton_fills_each_part_of_each_axis() -> None:
    for base in (2, 3, 5, 7):
        drawn = [radical_inverse(index, base, 3) for index in range(base * base)]
        assert sorted(int(share * base * base) for share in drawn) == list(range(base * base))


def test_density_draws_from_each_part_of_each_axis_later_as_well() -> None:
    space = read_words([f"p{number}=uniform:0,1" for number in range(4)])
    later = suggested("density", 120, space=space, metric=True)[30:]
    for place in range(4):
        shares = [space.shares(point)[place] or 0.0 for point in later]
        assert {min(int(share * 3), 2) for share in shares} == {0, 1, 2}


@pytest.mark.parametrize("place", range(3))
def test_a_constraint_on_any_axis_can_be_met(place: int) -> None:
    space = read_words([f"p{number}=uniform:0,1" for number in range(3)])
    sampler = make_sampler(
        "halton", space, space.default({})[0], Goal.MIN, 5,
        fits=lambda point: (space.shares(point)[place] or 0.0) < 0.1,
    )  # fmt: skip
    assert len(sampler.suggest([], 10)) == 10


def test_draws_look_uniform_and_depend_on_each_number() -> None:
    drawn = [draw(1, number) for number in range(2000)]
    assert abs(statistics.mean(drawn) - 0.5) < 0.02
    assert abs(statistics.variance(drawn) - 1 / 12) < 0.005
    assert len({draw(1, 2, 3), draw(1, 3, 2), draw(2, 1, 3), draw(1, 2)}) == 4


def test_the_learning_rate_follows_width_and_batch() -> None:
    rule = ScalingRule("lr", "width", "batch")
    default = (("lr", 1e-3), ("width", 128), ("batch", 32))
    assert rule.factor((("lr", 1.0), ("width", 256), ("batch", 128)), default) == pytest.approx(1.0)
    assert rule.factor((("width", 256), ("batch", 32)), default) == pytest.approx(0.5)
    space = read_words(["lr=log:1e-5,1e-1", "width=int:64,1024,step=64"])
    start, _ = space.default({"lr": 1e-3, "width": 128})
    plain = make_sampler("halton", space, start, Goal.MIN, 0).suggest([], 60)
    moved = make_sampler("halton", space, start, Goal.MIN, 0, rule=rule).suggest([], 60)
    for before, after in zip(map(dict, plain), map(dict, moved), strict=True):
        assert after["width"] == before["width"]
        wanted = min(max(float(before["lr"]) * 128 / float(before["width"]), 1e-5), 1e-1)
        assert after["lr"] == pytest.approx(wanted, rel=1e-4)


def test_an_unknown_sampler_is_refused() -> None:
    with pytest.raises(UsageError, match="no sampler 'halten'") as refused:
        make_sampler("halten", SPACE, DEFAULT, Goal.MIN, 0)
    assert refused.value.next_step == "did you mean halton?"
