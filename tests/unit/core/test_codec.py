"""What is kept for good: written once, read by every later version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest

from trmcloud.core import codec
from trmcloud.core.money import Usd


class Way(str, Enum):
    UP = "up"
    DOWN = "down"


@dataclass(frozen=True)
class Inner:
    name: str
    price: Usd


@dataclass(frozen=True)
class Outer:
    way: Way
    inner: tuple[Inner, ...]
    cap: Usd | None = field(default=None, metadata=codec.kept_as("cap_usd"))
    overrides: tuple[tuple[str, Any], ...] = ()
    limits: Mapping[str, Any] = field(default_factory=dict)
    steps: int | None = None


FULL = Outer(
    Way.DOWN, (Inner("a", Usd("1.5")), Inner("b", Usd(0))), Usd("0.000001"),
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
    assert codec.from_json(Outer, json.loads(json.dumps(JSON))) == FULL
    assert type(codec.from_json(Outer, JSON).way) is Way


def test_what_an_earlier_version_did_not_write_has_its_default() -> None:
    assert codec.from_json(Outer, {"way": "up", "inner": []}) == Outer(Way.UP, ())
    assert codec.from_json(Outer, {"way": "up", "inner": [], "cap_usd": None}).cap is None


def test_what_a_newer_version_wrote_is_passed_over_or_refused() -> None:
    more = {**JSON, "colour": "red"}
    assert codec.from_json(Outer, more) == FULL
    with pytest.raises(codec.UnknownField, match=r"^colour$"):
        codec.from_json(Outer, more, known=True)
    with pytest.raises(codec.UnknownField, match=r"^cap$"):
        codec.from_json(Outer, {**JSON, "cap": "1"}, known=True)


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
        codec.from_json(Outer, {**JSON, **changes})


def test_a_field_without_a_default_is_asked_for() -> None:
    with pytest.raises(KeyError, match="way"):
        codec.from_json(Outer, {"inner": []})
