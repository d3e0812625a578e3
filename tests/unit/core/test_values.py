"""A value class of ours against the same one of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from functools import cached_property
from typing import Any

import pytest

from trmcloud.core.values import dataclass, replace


def _made_with(decorator: Any, **options: bool) -> Any:
    class Point:
        """A point."""

        x: float
        y: float = 2.0
        tags: list[str] = field(default_factory=list)
        note: str = field(default="n", compare=False)
        secret: str = field(default="s", repr=False)
        z: int = field(default=0, kw_only=True)

        @property
        def sum(self) -> float:
            return self.x + self.y

    return decorator(frozen=True, **options)(Point)


OURS, STANDARD = _made_with(dataclass), _made_with(dataclasses.dataclass)
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1.0,), {}),
    ((1.0, 3.0, ["a"]), {"z": 4, "note": "other"}),
    ((), {"x": float("nan"), "secret": "kept"}),
]


@dataclass(frozen=True)
class Kept:
    name: str
    inner: Kept | None = None


@dataclass(frozen=True)
class Longer(Kept):
    length: int = 0


@pytest.mark.parametrize(("given", "named"), CALLS)
def test_values_are_made_shown_and_taken_apart_alike(given: Any, named: Any) -> None:
    ours, standard = OURS(*given, **named), STANDARD(*given, **named)
    assert repr(ours) == repr(standard)
    assert vars(ours) == vars(standard)
    assert dataclasses.asdict(ours).keys() == dataclasses.asdict(standard).keys()
    assert vars(dataclasses.replace(ours, y=9.0)) == vars(dataclasses.replace(standard, y=9.0))


@pytest.mark.parametrize("changes", [{}, {"y": 9.0}, {"x": 0.5, "z": 7, "tags": []}, {"w": 1}])
def test_a_value_is_replaced_as_the_standard_one(changes: Any) -> None:
    told = []
    for kind, copied in ((OURS, replace), (STANDARD, dataclasses.replace), (STANDARD, replace)):
        try:
            told.append(vars(copied(kind(1.0, secret="kept"), **changes)))
        except TypeError as error:
            told.append(str(error))
    assert told[0] == told[1] == told[2]


def test_what_was_computed_of_a_value_is_not_said_of_its_copy() -> None:
    @dataclass(frozen=True)
    class Square:
        side: int

        @cached_property
        def area(self) -> int:
            return self.side**2

    square = Square(2)
    assert square.area == 4
    assert replace(square, side=3).area == 9
    assert vars(replace(square)) == {"side": 2}


def test_a_copy_is_of_its_own_class_and_is_checked_like_any_other() -> None:
    @dataclass(frozen=True)
    class Positive:
        x: int

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("x is below 0")

    class Named(Kept):
        """Not made by the decorator."""

    assert replace(Longer("a", length=1), name="b") == Longer("b", length=1)
    assert type(replace(Named("a"), name="b")) is Named
    assert replace(Positive(1), x=2) == Positive(2)
    with pytest.raises(ValueError, match="below 0"):
        replace(Positive(1), x=-1)


def test_signatures_fields_and_patterns_are_alike() -> None:
    ours, standard = (
        [(p.name, p.kind, p.annotation) for p in inspect.signature(kind).parameters.values()]
        for kind in (OURS, STANDARD)
    )
    assert ours == standard
    assert OURS.__match_args__ == STANDARD.__match_args__
    assert [f.name for f in dataclasses.fields(OURS)] == [
        f.name for f in dataclasses.fields(STANDARD)
    ]
    assert _made_with(dataclass, kw_only=True).__match_args__ == ()


@pytest.mark.parametrize("given", [(), (1.0, 2.0, [], "n", "s", 0), ("1.0",)])
@pytest.mark.parametrize("named", [{}, {"w": 1}, {"x": 1}])
def test_calls_are_refused_alike(given: Any, named: Any) -> None:
    said = []
    for kind in (OURS, STANDARD):
        try:
            said.append(repr(kind(*given, **named)))
        except TypeError as error:
            said.append(str(error))
    assert said[0] == said[1]


def test_equal_values_have_one_hash_and_what_is_not_compared_does_not_count() -> None:
    assert OURS(1.0) == OURS(1.0, note="other")
    assert OURS(1.0) != OURS(1.5)
    assert OURS(1.0) != STANDARD(1.0)
    assert Kept("a") != Longer("a")
    assert hash(Kept("a", Kept("b"))) == hash(Kept("a", Kept("b")))
    assert {Longer("a", length=1): 1}[Longer("a", None, 1)] == 1
    with pytest.raises(TypeError, match="unhashable"):
        hash(OURS(1.0))  # it holds a list, as the standard one would


def test_a_value_of_one_field_is_equal_to_itself_even_where_the_field_is_not() -> None:
    @dataclass(frozen=True)
    class One:
        x: float

    nan = float("nan")
    assert One(nan) == One(nan)
    assert One(nan) != One(float("nan"))


def test_values_cannot_be_changed() -> None:
    value = Longer("a", length=1)
    for name in ("name", "length", "unheard"):
        with pytest.raises(dataclasses.FrozenInstanceError, match=name):
            setattr(value, name, 1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="name"):
        del value.name


def test_values_are_copied_and_pickled() -> None:
    value = Longer("a", Kept("b"), 3)
    for other in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert other == value
        assert other is not value


def test_what_a_class_writes_itself_stays() -> None:
    @dataclass(frozen=True)
    class Own:
        x: int

        def __repr__(self) -> str:
            return "mine"

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("x is below 0")

    assert repr(Own(1)) == "mine"
    with pytest.raises(ValueError, match="below 0"):
        Own(-1)


def test_other_options_are_the_standard_librarys() -> None:
    @dataclass(frozen=True, order=True)
    class Ordered:
        x: int

    @dataclass
    class Changeable:
        x: int

    assert Ordered(1) < Ordered(2)
    changeable = Changeable(1)
    changeable.x = 2
    assert changeable == Changeable(2)


def test_nothing_is_compiled_until_a_value_is_made() -> None:
    @dataclass(frozen=True)
    class Unused:
        x: int

    assert not inspect.isfunction(vars(Unused)["__init__"])
    assert Unused(1).x == 1
    assert inspect.isfunction(vars(Unused)["__init__"])


def _unused() -> Any:
    @dataclass(frozen=True)
    class Unused:
        name: str
        size: int = 3

    return Unused


def test_a_class_is_whole_whatever_asks_for_it_first() -> None:
    assert [each.name for each in dataclasses.fields(_unused())] == ["name", "size"]
    assert dataclasses.is_dataclass(_unused())
    assert _unused().__match_args__ == ("name", "size")
    assert list(inspect.signature(_unused()).parameters) == ["name", "size"]
    assert _unused().size == 3
    kind = _unused()
    first, second = (kind.__new__(kind) for _ in range(2))  # as pickle makes them
    for each in (first, second):
        each.__setstate__({"name": "a", "size": 1})
    assert first == second
    assert hash(first) == hash(second)
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.name = "b"


def test_threads_that_use_a_class_first_at_the_same_time_find_it_whole() -> None:
    for _ in range(20):
        kind, begin = _unused(), threading.Barrier(4)

        def make(kind: Any = kind, begin: threading.Barrier = begin) -> tuple[str, ...]:
            begin.wait(20)
            return (kind("a").name, *(each.name for each in dataclasses.fields(kind)))

        with ThreadPoolExecutor(4) as pool:
            made = [pool.submit(make) for _ in range(4)]
        assert {each.result() for each in made} == {("a", "name", "size")}
