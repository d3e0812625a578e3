"""What a pod's own record of its end is told as: the pod may be anybody's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trmcloud.app.smoke.watch import last_way


def told(*attempts: Any) -> tuple[str, str]:
    return last_way(json.dumps({"attempts": attempts}))


def way(name: Any, ok: Any = None, code: Any = None) -> dict[str, Any]:
    return {"way": name, "ok": ok, "code": code}


def test_the_last_way_and_what_those_before_it_came_to() -> None:
    assert told(way("api", True, 200)) == ("api", "")
    assert told(way("api", False, 403), way("ctl", True, 0)) == ("ctl", "api refused (403)")
    assert told(way("api"), way("ctl", True), way("poweroff")) == (
        "poweroff", "api refused, ctl accepted",
    )  # fmt: skip


def test_after_one_that_was_refused_came_what_nobody_read() -> None:
    assert told(way("api", True, 200), way("ctl", False, 1)) == (
        "what came after ctl", "api accepted (200), ctl refused (1)",
    )  # fmt: skip


def test_rounds_repeat_and_the_first_says_enough() -> None:
    rounds = [way("api", False, 403), way("ctl", True, 0), way("api", True, 200), way("ctl")]
    assert told(*rounds) == ("ctl", "api refused (403), ctl accepted (0)")


def test_ways_are_cut_and_clean() -> None:
    assert told(way("x" * 61))[0] == "x" * 60
    assert told(way("a\x1b[2J\nb"))[0] == "a b"
    assert told(way(7))[0] == "7"
    many = [way(f"w{n}", True) for n in range(10)]
    assert told(*many)[1] == ", ".join(f"w{n} accepted" for n in range(8))


def test_only_a_plain_yes_is_one_and_only_a_number_a_code() -> None:
    assert told(way("a", "yes", "200"), way("b", True)) == ("b", "a refused")
    for code in (True, 1 << 31, -(1 << 31), 10**4000):
        assert told(way("a", True, code), way("b", True)) == ("b", "a accepted")
    assert told(way("a", True, (1 << 31) - 1), way("b")) == ("b", f"a accepted ({(1 << 31) - 1})")


@pytest.mark.parametrize(
    "text",
    ["", "x", "null", "[]", "{}", '{"attempts": []}', '{"attempts": null}', '{"attempts": [1]}',
     '{"attempts": [{}]}', '{"attempts": ["x"]}', '{"attempts": 5}', "[" * 100_000, "9" * 5000],
)  # fmt: skip
def test_what_cannot_be_understood_says_nothing(text: str) -> None:
    assert last_way(text) == ("", "")
