"""Runs beside each other: what differs, in one order, as one line of text each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli import told_home
from tests.unit.cli.told_home import own_home, told
from trmcloud.cli.page.compare import compare_json, table
from trmcloud.core.errors import NotFoundError, Outcome, UsageError
from trmcloud.operations.context import Context
from trmcloud.wiring import build_context

__all__ = ["own_home", "told"]

HERE, RENTED = told_home.RUNS[Outcome.FINISHED], told_home.LIVE_RUN


@pytest.fixture
def context(own_home: Path) -> Context:
    return build_context()


def test_it_says_what_differs_and_what_does_not(context: Context) -> None:
    made = compare_json(context, [RENTED, HERE])
    assert [run["id"] for run in made["runs"]] == [RENTED, HERE]
    rows = {row["name"]: row for row in made["rows"]}
    assert rows["recipe"]["values"] == ["trm", "trm-tiny"]
    assert rows["cap"]["values"] == ["$60.00", "$1.00"]
    assert rows["hardware"]["values"] == ["8xA100", "local"]
    assert rows["provider"]["values"] == ["runpod", "local"]
    assert rows["price per hour"]["values"] == ["$14.32", "$3.60"]
    assert rows["cost"]["values"][1] == "$13.71"
    assert rows["bill"]["values"] == ["not final", "final"]
    assert rows["state"]["values"] == ["running", "finished"]
    assert rows["best metric"]["values"] == ["1.402*", "1.402"], "a pod's report is marked as one"
    assert "by the pod's report" in made["note"]
    assert rows["fast: width"]["same"] is False
    assert rows["fast: schedule"]["same"] is True
    assert rows["fast: schedule"]["values"] == ["wsd", "wsd"]
    parts = [row["part"] for row in made["rows"]]
    assert list(dict.fromkeys(parts)) == [
        *("outcome", "money and time", "hardware", "recipe", "labels"),
    ]
    assert parts == sorted(parts, key=list(dict.fromkeys(parts)).index), "each part stands together"


def test_from_two_to_four_different_runs(context: Context) -> None:
    others = list(told_home.RUNS.values())
    for names in ([HERE], [HERE, HERE], ["", HERE], [], others[:5]):
        with pytest.raises(UsageError, match="2 to 4 runs"):
            compare_json(context, names)
    with pytest.raises(NotFoundError):
        compare_json(context, [HERE, "r-nobody"])
    assert len(compare_json(context, [*others[:4], others[0]])["runs"]) == 4


def test_two_of_the_same_differ_in_nothing_of_the_recipe(context: Context) -> None:
    pairs = [run.run_id for run in context.ledger.read().runs.values() if not run.trained_here]
    made = compare_json(context, pairs[:2])
    assert [
        row["name"] for row in made["rows"] if row["part"] == "recipe" and not row["same"]
    ] == []


def test_a_row_that_one_run_lacks_has_no_value_there() -> None:
    rows = table([{("labels", "tag <b>"): "x\ny"}, {("outcome", "state"): ""}])
    assert [(row["name"], row["values"], row["same"]) for row in rows] == [
        ("state", ["–", "–"], True),
        ("tag <b>", ["x y", "–"], False),
    ]
