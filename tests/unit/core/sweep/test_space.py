from __future__ import annotations

import math
import re
from contextlib import suppress

import pytest
import tomllib
from hypothesis import given
from hypothesis import strategies as st

from trmcloud.core.codec import from_json, to_json
from trmcloud.core.errors import UsageError
from trmcloud.core.sweep.space import (
    Space,
    format_point,
    format_value,
    read_default,
    read_tables,
    read_value,
    read_words,
)

WORDS = (
    "lr=log:1e-4,1e-2", "dropout=uniform:0,0.5", "width=int:64,256,step=32", "batch=logint:8,512",
    "depth=2|4|8", "optimizer=adamw,muon", "muon_lr=log:1e-3,1e-1@optimizer=muon", "epochs=3",
)  # fmt: skip
TABLES = """
lr = {log = [1e-4, 1e-2]}
dropout = {uniform = [0, 0.5]}
width = {int = [64, 256], step = 32}
batch = {logint = [8, 512]}
depth = [2, 4, 8]
optimizer = ["adamw", "muon"]
epochs = 3
muon_lr = {log = [1e-3, 1e-1], when = {optimizer = "muon"}}
"""


def test_words_with_parentheses_and_tables_are_the_same_space() -> None:
    space = read_words(WORDS)
    called = [
        re.sub(r"=(log|uniform|int|logint):([^@]*)", r"=\1(\2)", word, count=1) for word in WORDS
    ]
    assert read_words(called) == space == read_tables(tomllib.loads(TABLES))
    assert read_words([str(each) for each in space.parameters]) == space


def test_a_space_is_kept_as_json() -> None:
    space = read_words(WORDS)
    assert from_json(Space, to_json(space)) == space


@given(st.lists(st.floats(0, 1), min_size=7, max_size=7))
def test_a_point_is_where_its_shares_say(shares: list[float]) -> None:
    space = read_words(WORDS)
    point = space.point(shares)
    values = dict(point)
    assert all(each.contains(values[each.name]) for each in space.parameters if each.name in values)
    assert ("muon_lr" in values) == (values["optimizer"] == "muon")
    again = [0.5 if share is None else share for share in space.shares(point)]
    assert space.point(again) == point
    words = [f"{name}={format_value(value)}" for name, value in point]
    assert format_point(point) == " ".join(words)
    assert read_default(words) == values


def test_the_ends_of_whole_numbers_are_drawn_as_often_as_what_is_between() -> None:
    width, batch = read_words(["w=int:1,4", "b=logint:1,8"]).parameters
    drawn = [width.value(number / 1000) for number in range(1000)]
    assert [drawn.count(value) for value in (1, 2, 3, 4)] == [250] * 4
    assert {batch.value(number / 1000) for number in range(1000)} == set(range(1, 9))


def test_the_default_may_lie_outside_and_names_what_is_assumed() -> None:
    space = read_words(["lr=log:1e-4,1e-2", "width=int:64,256", "depth=2|4"])
    point, assumed = space.default({"lr": 0.5})
    assert point == (("lr", 0.5), ("width", 160), ("depth", 2))
    assert assumed == ("width", "depth")
    assert space.shares(point)[0] == 1.0
    with pytest.raises(UsageError, match="not in the space"):
        space.default({"lrr": 1})


def test_all_points_of_a_space_are_listed_once() -> None:
    space = read_words(["a=1|2", "b=3|4@a=2", "c=logint:1,3"])
    points = list(space.points())
    assert len(points) == len(set(points)) == (1 + 2) * 3
    assert read_words(["a=1"]).is_one_point


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ([], "no parameter"),
        (["lr"], "not NAME=VALUES"),
        (["lr="], "not NAME=VALUES"),
        (["9=1|2"], "not NAME=VALUES"),
        (["lr=log:1e-4"], "two ends, and has 1"),
        (["lr=log:0,1"], "no logarithm"),
        (["lr=log:1,0.1"], "below its start"),
        (["lr=log:a,b"], "no number"),
        (["lr=log:1,1e309"], "too large"),
        (["w=int:1.5,2"], "whole numbers"),
        (["w=int:1,9,step=0"], "step"),
        (["w=int:1,9,steps=2"], "no number"),
        (["w=normal(0,1)"], "unknown distribution"),
        (["a=1|1"], "twice"),
        (["a=1|", "b=2"], "empty"),
        (["a=1|2", "a=3|4"], "stands twice"),
        (["b=1|2@a=1"], "not in the space"),
        (["a=1|2", "b=1|2@a=3"], "cannot be"),
        (["a=int:1,2", "b=1|2@a=1"], "is a range"),
        (["a=1|2@b=1", "b=1|2@a=1"], "depend on one another"),
    ],
)
def test_a_bad_word_is_one_line_with_a_next_step(words: list[str], what: str) -> None:
    with pytest.raises(UsageError, match=what) as refused:
        read_words(words)
    assert refused.value.next_step
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "table",
    [
        "a = {log = [1, 2], int = [1, 2]}", "a = {}", "a = []", "a = {log = 1}",
        "a = {normal = [0, 1]}", "a = [nan]", "a = [[1]]",
        "a = {choice = [1, 2], when = {}, x = 1}",
        "a = {log = [1, 2], when = {b = 1, c = 2}}", "a = {log = [1, 2], when = 3}",
        "a = 1979-05-27",
    ],
)  # fmt: skip
def test_a_bad_table_is_refused(table: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_tables(tomllib.loads(table))
    assert refused.value.next_step


@given(st.text(max_size=30))
def test_any_word_is_read_or_refused(text: str) -> None:
    for word in (text, f"a={text}", f"a=log:{text}", f"a=int({text})"):
        with suppress(UsageError):
            assert read_words([word]).parameters


def test_values_are_what_they_look_like() -> None:
    assert [read_value(text) for text in ("3", "3.0", "1e-3", "true", "x", "-2", "1_0", "nan")] == [
        3, 3.0, 0.001, True, "x", -2, "1_0", "nan",
    ]  # fmt: skip
    assert format_value(0.1 + 0.2) == repr(0.1 + 0.2)


@pytest.mark.parametrize("machines", [2, 3, 5])
@pytest.mark.parametrize(
    "words",
    [("width=int:1,11,step=2", "depth=2|4"), ("batch=logint:1,9",), ("depth=2|4|8|16|32",)],
    ids=" ".join,
)
def test_each_point_is_in_one_part_of_a_divided_space(
    words: tuple[str, ...], machines: int
) -> None:
    space = read_words(words)
    parts = [read_words(map(str, part.parameters)) for part in space.divided(machines)]
    assert len(parts) == machines
    points = [set(part.points()) for part in parts]
    assert all(points)
    assert sum(map(len, points)) == len(set().union(*points))
    assert set().union(*points) == set(space.points())


@given(st.integers(2, 32))
def test_a_range_of_real_numbers_is_divided_without_a_gap(machines: int) -> None:
    for word, even in (("lr=log:1e-4,1e-2", math.log), ("rate=uniform:0,0.5", float)):
        [*parts] = read_words([word, "depth=2|4"]).divided(machines)
        cut = [part.parameters[0] for part in parts]
        assert [one.high for one in cut[:-1]] == [other.low for other in cut[1:]]
        [whole] = read_words([word]).parameters
        assert (cut[0].low, cut[-1].high) == (whole.low, whole.high)
        lengths = [even(one.high) - even(one.low) for one in cut]
        assert max(lengths) == pytest.approx(min(lengths), rel=0.01)


def test_what_others_depend_on_is_not_divided() -> None:
    words = ("optimizer=adamw|muon|sgd", "beta=uniform:0,1@optimizer=adamw", "depth=2|4")
    space = read_words(words)
    for part, depth in zip(space.divided(2), ("depth=2", "depth=4"), strict=True):
        cut = [str(each).replace("depth=2|4", depth) for each in space.parameters]
        assert [str(each) for each in part.parameters] == cut
    with pytest.raises(UsageError, match="no setting has 3 values") as caught:
        read_words(words).divided(3)
    assert caught.value.next_step == "--machines 2"
