"""The one reader of foreign JSON: each bound at its edge, each declared type taken and refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any

import pytest

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
from trmcloud.io.files import SMALL_BYTES


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
        "0." + "1" * 39,
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
def test_each_declared_type_takes_what_it_is_and_nothing_else(
    name: str, good: list[Any], bad: list[Any]
) -> None:
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

    assert record_of(Ruled, {"number": 7, "share": 7.5}) == Ruled(7, 7.5)
    for number, share in ((3, 7.0), (12, 7.0), (7, 3.0), (7, 12.0)):
        with pytest.raises(ContractError):
            record_of(Ruled, {"number": number, "share": share})


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
