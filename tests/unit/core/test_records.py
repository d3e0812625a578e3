"""The reader of foreign JSON: each bound at its edge, each declared type taken and refused;
records that are kept for good."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trmcloud.core import codec
from trmcloud.core.contract.records import (
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_ITEMS,
    MAX_JSON_BYTES,
    MAX_LINE_BYTES,
    MAX_TEXT,
    MAX_WHOLE,
    Asks,
    ContractError,
    Instant,
    Label,
    Restarts,
    Sha256,
    Step,
    dump,
    finite,
    formed,
    instant,
    load,
    parse,
    parse_lines,
    record_of,
    whole,
    within,
)
from trmcloud.core.control import events as ev
from trmcloud.core.control.ledger_records import event_from_json, event_to_json
from trmcloud.core.money import Usd
from trmcloud.core.values import dataclass as value_class
from trmcloud.core.values import replace
from trmcloud.io.files import SMALL_BYTES

# -- records ------------------------------------------------------------------------------------
# The one reader of foreign JSON: each bound at its edge, each declared type taken and refused.


@dataclass(frozen=True)
class Inner:
    name: Label
    size: int = 0


@dataclass(frozen=True)
class Outer:
    name: Label
    sum: Sha256
    at: Instant
    step: Step
    tries: Restarts
    count: int
    share: float
    said: str
    good: bool
    inner: Inner
    rows: tuple[Inner, ...]
    seconds: Mapping[str, float]
    extra: Mapping[str, Any] = field(default_factory=dict)
    until: Instant | None = None
    note: str | None = None
    version: int = 3


OUTER = Outer(
    "a", "ab" * 32, 1.5, 7, -1, 3, 0.5, "said", True, Inner("i", 1), (Inner("r", 2),),
    {"x": 1.0}, {"k": [1, "two", None, 3.5]}, 2.0, "note",
)  # fmt: skip


def changed(**changes: Any) -> str:
    return json.dumps({**json.loads(dump(OUTER)), **changes})


def loaded(**changes: Any) -> Outer:
    return load(Outer, 3, changed(**changes))


# -- numbers and texts ------------------------------------------------------------------------
def test_bounds_stand_where_they_are_published() -> None:
    assert MAX_JSON_BYTES == SMALL_BYTES == 1_048_576
    assert (MAX_TEXT, MAX_LINE_BYTES, MAX_ITEMS) == (16_384, 65_536, 4_096)
    assert (MAX_DEPTH, MAX_DIGITS, MAX_WHOLE) == (32, 19, 9_223_372_036_854_775_807)


def test_a_whole_number_is_plain_digits_up_to_the_most() -> None:
    assert whole("0") == 0
    assert whole(b"12") == 12
    assert whole(str(MAX_WHOLE)) == MAX_WHOLE
    assert whole(str(MAX_WHOLE + 1)) is None
    assert whole("0" * MAX_DIGITS) == 0
    assert whole("0" * (MAX_DIGITS + 1)) is None
    assert (whole("9", most=9), whole("10", most=9)) == (9, None)
    for text in ("", "-1", "+1", " 1", "1.0", "٣", "²", b"\xb2", "x"):
        assert whole(text) is None


def test_an_instant_is_a_number_that_calendars_know() -> None:
    assert instant(0) == 0.0
    assert isinstance(instant(5), float)
    assert instant(1e11) == 1e11
    assert instant(100_000_000_001) is None
    nothing: list[str] = []
    for value in (-0.001, True, False, "5", None, nothing, float("nan"), float("inf"), 10**400):
        assert instant(value) is None


def test_patterns_match_the_whole_text_and_ascii_alone() -> None:
    assert formed(r"\w")("a")
    assert not formed(r"\w")("é")
    assert not formed(r"\w")("ab")
    low = within(1, 2)
    assert [low(v) for v in (0.999, 1, 2, 2.001)] == [False, True, True, False]


# -- parsing ----------------------------------------------------------------------------------
def test_text_of_the_longest_is_read_and_one_more_is_not() -> None:
    text = json.dumps(["x" * 10])
    assert parse(text, most=len(text)) == ["x" * 10]
    assert parse(text.encode(), most=len(text)) == ["x" * 10]
    with pytest.raises(ContractError, match="larger than any real one"):
        parse(text, most=len(text) - 1)
    assert parse(b" " * (MAX_JSON_BYTES - 1) + b"1") == 1
    with pytest.raises(ContractError, match="larger"):
        parse(b" " * MAX_JSON_BYTES + b"1")


def test_lists_and_objects_are_counted_wherever_they_are() -> None:
    assert parse("[1, 2]", items=2) == [1, 2]
    with pytest.raises(ContractError, match="deeper or longer"):
        parse("[1, 2, 3]", items=2)
    with pytest.raises(ContractError, match="deeper or longer"):
        parse('[{"a": {"1": 1, "2": 2, "3": 3}}]', items=2)
    assert len(parse(json.dumps([0] * MAX_ITEMS))) == MAX_ITEMS
    with pytest.raises(ContractError):
        parse(json.dumps([0] * (MAX_ITEMS + 1)))


def test_depth_is_counted_in_lists_and_in_objects() -> None:
    assert parse("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    deep = "1"
    for _ in range(MAX_DEPTH):
        deep = '{"a": ' + deep + "}"
    assert parse(deep)
    for text in ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), '{"a": ' + deep + "}"):
        with pytest.raises(ContractError, match="deeper"):
            parse(text)
    with pytest.raises(ContractError, match="nested deeper"):
        parse("[" * 200_000)


def test_long_texts_are_refused_as_values_and_as_keys() -> None:
    longest = "x" * MAX_TEXT
    assert parse(json.dumps({longest: [longest]}))
    for value in (longest + "x", [longest + "x"], {longest + "x": 1}, {"a": longest + "x"}):
        with pytest.raises(ContractError, match="text is longer"):
            parse(json.dumps(value))


def test_numbers_are_those_that_can_be() -> None:
    assert parse("-12") == -12
    assert parse(f"-{MAX_WHOLE}") == -MAX_WHOLE
    assert parse("-0") == 0
    assert parse("1.5e300") == 1.5e300
    assert parse("0." + "1" * 38) == pytest.approx(1 / 9)
    for text in (
        "1" * 20, f"-{MAX_WHOLE + 1}", "1e400", "-1e400", "NaN", "Infinity", "-Infinity",
        "0." + "1" * 39, "1" * 5000,
    ):  # fmt: skip
        with pytest.raises(ContractError, match="a number"):
            parse(text)


def test_a_key_that_stands_there_twice_is_refused() -> None:
    with pytest.raises(ContractError, match="twice"):
        parse('[{"a": 1, "b": 2, "a": 1}]')
    assert parse('{"a": 1, "b": 1}') == {"a": 1, "b": 1}


def test_half_a_character_becomes_one_that_can_be_written() -> None:
    assert parse(r'"\ud83d\ude00"') == "😀"
    assert parse(r'"x\ud83d"') == "x?"
    assert parse(r'"caf\udce9.pt"') == "caf%E9.pt", "two such names must not become one"
    assert parse(rb'{"\uDfff": 1}') == {"?": 1}
    assert parse(r'"\u0041"') == "A"
    with pytest.raises(ContractError, match="twice"):
        parse(r'{"?": 1, "\udfff": 1}')


def test_no_json_says_so() -> None:
    for text in (b"\xff", b"", b"{", "{'a': 1}", "[1] x", b"\xef\xbb\xbf1"):
        with pytest.raises(ContractError, match="no JSON"):
            parse(text)


def test_lines_that_are_no_objects_are_passed_over() -> None:
    longest = b'{"a": ' + b" " * (MAX_LINE_BYTES - 8) + b"1}"
    assert len(longest) == MAX_LINE_BYTES
    lines = [b"{", b'{"a": 1}', b"[1]", b"5", b"null", b" " + longest, longest, b'{"b": 2}']
    assert list(parse_lines(lines)) == [{"a": 1}, {"a": 1}, {"b": 2}]


# -- records ----------------------------------------------------------------------------------
def test_a_record_comes_back_as_it_was() -> None:
    text = dump(OUTER)
    assert load(Outer, 3, text) == OUTER
    assert "\n" not in text
    assert list(json.loads(text)) == sorted(json.loads(text))
    assert loaded(colour="red") == OUTER
    assert loaded(inner={"name": "i", "size": 1, "colour": "red"}) == OUTER
    without = {k: v for k, v in json.loads(text).items() if k not in ("extra", "until", "note")}
    read = load(Outer, 3, json.dumps(without))
    assert (read.extra, read.until, read.note) == ({}, None, None)


def test_what_is_missing_or_no_object_is_refused() -> None:
    without = {k: v for k, v in json.loads(dump(OUTER)).items() if k != "count"}
    with pytest.raises(ContractError, match=r"Outer: .*count"):
        load(Outer, 3, json.dumps(without))
    for text in ("[]", "5", "null", '"x"'):
        with pytest.raises(ContractError, match="Outer: no object"):
            load(Outer, 3, text)
    nothing: list[str] = []
    for value in (nothing, None, "x", 5):
        with pytest.raises(ContractError, match="Inner is no object"):
            record_of(Inner, value)


def test_another_version_is_named_and_refused() -> None:
    with pytest.raises(ContractError, match=r"Outer: version 3 is not 4"):
        load(Outer, 4, dump(OUTER))
    with pytest.raises(ContractError) as caught:
        loaded(version="x" * 100)
    assert len(str(caught.value)) < 60


def test_the_limits_of_a_load_are_those_it_is_given() -> None:
    text = dump(OUTER)
    assert load(Outer, 3, text, most=len(text)) == OUTER
    with pytest.raises(ContractError, match="Outer: larger"):
        load(Outer, 3, text, most=len(text) - 1)
    fields = len(json.loads(text))
    assert load(Outer, 3, text, items=fields) == OUTER
    with pytest.raises(ContractError, match="Outer: deeper"):
        load(Outer, 3, text, items=fields - 1)


def test_what_is_converted_first_may_fail_like_any_field() -> None:
    text = changed(seconds=5)
    assert load(Outer, 3, text, seconds=lambda value: {"s": value}).seconds == {"s": 5}
    for broken in (lambda value: int("x"), lambda value: len(value), tuple):
        with pytest.raises(ContractError, match="Outer"):
            load(Outer, 3, text, seconds=broken)
    assert load(Outer, 3, dump(OUTER), colour=lambda value: 1 / 0) == OUTER


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("name", ["A", "a.b_c-d", "x" * 80], ["", ".a", "-a", "a/b", "a b", "é", "x" * 81, 5]),
        ("sum", ["0" * 64], ["0" * 63, "0" * 65, "A" * 64, 5, None]),
        ("at", [0, 0.0, 1e11, 7], [-1e-9, 1.0001e11, True, "5", None]),
        ("step", [0, 99_999_999], [-1, 100_000_000, True, 5.0, "5", None]),
        ("tries", [-1, 0, 1_000], [-2, 1_001, 1.0, True]),
        ("count", [0, MAX_WHOLE], [-1, True, 1.0, "1", None]),
        ("share", [0, -5, 1.5, -9.9e299], [1e300, -1e300, True, "1", None]),
        ("said", ["", "x"], [5, None, ["x"], True]),
        ("good", [True, False], [0, 1, "true", None]),
        ("inner", [{"name": "a"}], [None, [], "a", {}, {"name": "a/b"}, {"name": "a", "size": -1}]),
        ("rows", [[], [{"name": "a"}]], [None, {}, "a", ["a"], [{}], [None]]),
        ("seconds", [{}, {"a": 1}], [None, [], [["a", 1]], {"a": "1"}, {"a": None}]),
        ("extra", [{}, {"a": None, "b": {"c": [True, 1.5, "x"]}}], [None, [], 5]),
        ("until", [None, 0], [-1, "x", False]),
        ("note", [None, "x"], [5, ["x"]]),
    ],
)  # fmt: skip
def test_each_declared_type_takes_only_its_own(name: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        loaded(**{name: value})
    for value in bad:
        with pytest.raises(ContractError, match="Outer"):
            loaded(**{name: value})


def test_what_was_read_has_the_types_that_are_declared() -> None:
    read = loaded(rows=[{"name": "a"}, {"name": "b"}], inner={"name": "c"})
    assert read.rows == (Inner("a"), Inner("b"))
    assert read.inner == Inner("c")
    assert type(read.rows) is tuple
    # A record that another one holds may come as itself, and a tuple as one.
    made = record_of(Outer, {**json.loads(dump(OUTER)), "rows": ({"name": "a"},)})
    assert made.rows == (Inner("a"),)
    with pytest.raises(ContractError, match="Outer: name is not what it should be"):
        loaded(name="/")
    with pytest.raises(ContractError, match="Outer: inner Inner: name is not what it should be"):
        loaded(inner={"name": "/"})


def test_any_value_is_one_that_json_can_hold() -> None:
    @dataclass(frozen=True)
    class Loose:
        value: Any
        few: Annotated[float, within(0.0, 1.0)] = 0.0

    assert record_of(Loose, {"value": [1, {"a": 2.5}]}).value == [1, {"a": 2.5}]
    for value in (float("nan"), [float("inf")], {"a": float("-inf")}):
        with pytest.raises(ContractError, match="value"):
            record_of(Loose, {"value": value})
    for few in (-0.1, 1.1, "x"):
        with pytest.raises(ContractError, match="few"):
            record_of(Loose, {"value": 1, "few": few})


def test_of_several_rules_each_must_hold() -> None:
    @dataclass(frozen=True)
    class Ruled:
        number: Annotated[int, within(0, 9), within(5, 20)]
        share: Annotated[float, within(0, 9), within(5, 20)]
        few: Annotated[tuple[int, ...], lambda them: len(them) > 1, lambda them: sum(them) < 9]

    assert record_of(Ruled, {"number": 7, "share": 7.5, "few": [1, 7]}) == Ruled(7, 7.5, (1, 7))
    for number, share, few in (
        (3, 7.0, [1, 2]), (12, 7.0, [1, 2]), (7, 3.0, [1, 2]), (7, 12.0, [1, 2]),
        (7, 7.0, [1]), (7, 7.0, [1, 8]), (7, 7.0, [1, "2"]), (7, 7.0, None),
    ):  # fmt: skip
        with pytest.raises(ContractError):
            record_of(Ruled, {"number": number, "share": share, "few": few})


def test_floats_that_are_not_finite_are_null_wherever_they_are() -> None:
    nan, inf = float("nan"), float("inf")
    assert finite({"a": [nan, (inf, 1.5)], "b": "x", "c": 5}) == {
        "a": [None, [None, 1.5]], "b": "x", "c": 5,
    }  # fmt: skip
    loose = Inner("a", size=nan)  # type: ignore[arg-type]
    assert json.loads(dump(loose)) == {"name": "a", "size": None}


class Colour(str, Enum):
    RED = "red"


@dataclass(frozen=True)
class Painted:
    colour: Colour = Colour.RED
    asked: Asks = 0


def test_a_word_of_a_list_becomes_that_word_or_is_refused() -> None:
    assert record_of(Painted, {"colour": "red"}).colour is Colour.RED
    for odd in ("blue", "RED", None, 5):
        with pytest.raises(ContractError, match="colour is not what it should be"):
            record_of(Painted, {"colour": odd})


def test_how_often_something_was_asked_for_has_bounds() -> None:
    for asked in (0, 1_000_000):
        assert record_of(Painted, {"asked": asked}).asked == asked
    for odd in (-1, 1_000_001, 1.0, True):
        with pytest.raises(ContractError, match="asked is not"):
            record_of(Painted, {"asked": odd})


def test_what_json_cannot_hold_is_not_written_as_nothing() -> None:
    with pytest.raises(TypeError):
        dump({"what": {1, 2}})


# -- What is kept for good: written once, read by every later version ---------------------------


class Way(str, Enum):
    UP = "up"
    DOWN = "down"


@dataclass(frozen=True)
class InnerCodec:
    name: str
    price: Usd


@dataclass(frozen=True)
class OuterCodec:
    way: Way
    inner: tuple[InnerCodec, ...]
    cap: Usd | None = field(default=None, metadata=codec.kept_as("cap_usd"))
    overrides: tuple[tuple[str, Any], ...] = ()
    limits: Mapping[str, Any] = field(default_factory=dict)
    steps: int | None = None


FULL = OuterCodec(
    Way.DOWN, (InnerCodec("a", Usd("1.5")), InnerCodec("b", Usd(0))), Usd("0.000001"),
    (("depth", 2), ("width", 64)), {"z": [1, 2], "a": None}, 7,
)  # fmt: skip
JSON = {
    "way": "down",
    "inner": [{"name": "a", "price": "1.5"}, {"name": "b", "price": "0"}],
    "cap_usd": "0.000001",
    "overrides": {"depth": 2, "width": 64},
    "limits": {"z": [1, 2], "a": None},
    "steps": 7,
}


def test_a_record_is_read_as_it_was_written() -> None:
    assert codec.to_json(FULL) == JSON
    assert codec.from_json(OuterCodec, json.loads(json.dumps(JSON))) == FULL
    assert type(codec.from_json(OuterCodec, JSON).way) is Way


def test_what_an_earlier_version_did_not_write_has_its_default() -> None:
    assert codec.from_json(OuterCodec, {"way": "up", "inner": []}) == OuterCodec(Way.UP, ())
    assert codec.from_json(OuterCodec, {"way": "up", "inner": [], "cap_usd": None}).cap is None


def test_what_a_newer_version_wrote_is_passed_over_or_refused() -> None:
    more = {**JSON, "colour": "red"}
    assert codec.from_json(OuterCodec, more) == FULL
    with pytest.raises(codec.UnknownField, match=r"^colour$"):
        codec.from_json(OuterCodec, more, known=True)
    with pytest.raises(codec.UnknownField, match=r"^cap$"):
        codec.from_json(OuterCodec, {**JSON, "cap": "1"}, known=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"way": "sideways"}, {"cap_usd": 1.5}, {"cap_usd": "much"}, {"inner": None},
        {"inner": [{"name": "a"}]}, {"inner": [{"name": "a", "price": None}]}, {"overrides": 3},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_record_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        codec.from_json(OuterCodec, {**JSON, **changes})


def test_a_field_without_a_default_is_asked_for() -> None:
    with pytest.raises(KeyError, match="way"):
        codec.from_json(OuterCodec, {"inner": []})


# -- Events are written once and read back by any later version ---------------------------------


amounts = st.integers(0, 10**15).map(Usd.from_micros)


@given(amounts, st.none() | amounts)
def test_money_survives_json_to_the_last_micro_dollar(amount: Usd, billed: Usd | None) -> None:
    event = ev.Settled(1, amount, billed)
    text = json.dumps(event_to_json(event))
    assert event_from_json("Settled", json.loads(text)) == event


def test_money_is_written_as_text() -> None:
    assert event_to_json(ev.Reserved(Usd("0.1"))) == {"amount": "0.1"}


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("Teleported", {}),
        ("object", {}),
        ("Reserved", {}),
        ("Reserved", {"amount": "1", "colour": "red"}),
        ("Reserved", {"amount": "ten"}),
        ("Reserved", {"amount": 1.5}),
        ("Reserved", {"amount": 1}),
        ("Reserved", {"amount": True}),
        ("Reserved", {"amount": ["1"]}),
        ("Reserved", {"amount": "1e999999999"}),
        ("CapSet", {"level": "account", "key": "", "cap": 5}),
    ],
)
def test_what_this_version_does_not_know_is_refused(kind: str, data: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"event|amount|dollar"):
        event_from_json(kind, data)


def test_every_kind_of_event_can_be_read_back() -> None:
    assert {kind.__name__: kind for kind in EVERY_KIND} == dict(ev.EVENT_TYPES)


EVERY_KIND = tuple(ev.EVENT_TYPES.values())


# -- A value class of ours against the same one of the standard library -------------------------


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


OURS, STANDARD = _made_with(value_class), _made_with(dataclasses.dataclass)
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1.0,), {}),
    ((1.0, 3.0, ["a"]), {"z": 4, "note": "other"}),
    ((), {"x": float("nan"), "secret": "kept"}),
]


@value_class(frozen=True)
class Kept:
    name: str
    inner: Kept | None = None


@value_class(frozen=True)
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
    @value_class(frozen=True)
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
    @value_class(frozen=True)
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
    assert _made_with(value_class, kw_only=True).__match_args__ == ()


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
    @value_class(frozen=True)
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
    @value_class(frozen=True)
    class Own:
        x: int

        def __repr__(self) -> str:
            return "mine"

    assert repr(Own(1)) == "mine"


def test_other_options_are_the_standard_librarys() -> None:
    @value_class(frozen=True, order=True)
    class Ordered:
        x: int

    @value_class
    class Changeable:
        x: int

    assert Ordered(1) < Ordered(2)
    changeable = Changeable(1)
    changeable.x = 2
    assert changeable == Changeable(2)


def test_nothing_is_compiled_until_a_value_is_made() -> None:
    @value_class(frozen=True)
    class Unused:
        x: int

    assert not inspect.isfunction(vars(Unused)["__init__"])
    assert Unused(1).x == 1
    assert inspect.isfunction(vars(Unused)["__init__"])


def _unused() -> Any:
    @value_class(frozen=True)
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
