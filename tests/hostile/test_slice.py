"""A slice of the soak of hostile contents, and the holes that were known, on this code."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.contents import KINDS
from tests.hostile.doors import DOORS, Code, doors_of
from tests.hostile.known import KNOWN
from tests.hostile.page import page
from tests.hostile.soak import ROOT, TREES, Place, Result, State, place, take_all
from tests.missing_tools import find

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find("strace") is None, reason="there is no strace"),
    pytest.mark.skipif(
        not (ROOT / ".venv/bin/trmcloud").exists(), reason="this checkout has no .venv"
    ),
]
CODE = Code(ROOT)
FIRST, COUNT = 1_000_000, 1
"""A tree of no soak. ``make hostile-contents`` takes thousands."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(CODE, tmp_path_factory.mktemp("hostile") / "0") as made:
        yield made


@pytest.mark.parametrize("name", [name for name in KNOWN if name != "a benign tree"])
def test_a_hole_that_was_known_is_closed(here: Place, name: str) -> None:
    assert here.take_known(KNOWN[name]) == []


def test_a_benign_tree_has_no_finding(here: Place) -> None:
    assert here.take_known(KNOWN["a benign tree"]) == []


@pytest.mark.parametrize("number", range(FIRST, FIRST + COUNT))
def test_a_tree_of_hostile_contents_has_no_finding_at_two_doors(here: Place, number: int) -> None:
    for door in doors_of(number):
        result = here.take(number, door)
        assert result.findings == (), f"python -m tests.hostile --only {number} --door '{door}'"


def test_every_door_is_drawn_a_thousand_times_and_every_kind_at_each() -> None:
    drawn = [door for number in range(TREES) for door in doors_of(number)]
    assert {door: drawn.count(door) >= 1000 for door in DOORS} == dict.fromkeys(DOORS, True)
    assert len(KINDS) >= 40


def test_a_tree_is_the_same_wherever_it_is_written(here: Place) -> None:
    first = here.take(FIRST, "plan")
    again = here.take(FIRST, "plan")
    assert (first.kinds, first.words, first.code) == (again.kinds, again.words, again.code)


def test_a_soak_goes_on_from_its_state_and_writes_its_page(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    state = State(path, "abc")
    results = list(take_all(CODE, [FIRST], 1, time.monotonic() + 300))
    assert [result.door for result in results] == list(doors_of(FIRST))
    state.add(results[0])
    state.write()
    again = State(path, "abc")
    assert not again.is_done(FIRST)
    for result in results:
        again.add(result)
    assert again.is_done(FIRST)
    assert [row["visits"] for row in again.kept["doors"].values()] == [1, 1]
    assert not State(path, "of another commit").is_done(FIRST)
    text = page(again.kept, "2026-11-28", 1)
    assert f"| {results[0].door} | 1 |" in text
    assert "trees: **1**; visits: 2" in text


def test_a_finding_stands_on_the_page_with_its_tree(tmp_path: Path) -> None:
    from tests.hostile.judge import Finding

    state = State(tmp_path / "state.json", "abc")
    found = Finding("executed", "/bin/sh")
    state.add(Result(7, "plan", ("a kind",), (), 0, 1.0, 1.0, (found,)))
    assert "- tree 7, plan: executed: `/bin/sh`" in page(state.kept, "2026-11-28", 10)
