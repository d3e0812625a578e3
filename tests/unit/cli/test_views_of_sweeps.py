"""What screens say of a sweep: its table, its verdict, what was known before it."""

from __future__ import annotations

import json

import pytest

from trmcloud.cli.views.sweep import (
    joint_lines,
    report_lines,
    terms_lines,
    trial_lines,
    verdict_line,
)
from trmcloud.core.money import Usd
from trmcloud.core.sweep import events as ev
from trmcloud.core.sweep.priors import EarlierSweep, EarlierTrial, FirstPoint, Priors, memory_table
from trmcloud.core.sweep.space import read_words
from trmcloud.core.sweep.terms import Goal, SweepTerms, make_terms
from trmcloud.core.sweep.verdict import Finding, Verdict
from trmcloud.operations.sweeps.sweep_facts import facts_of

SPACE = read_words(["learning_rate=log:1e-6,1", "some_long_setting=log:1e-6,1", "width=8,64"])
DEFAULT, _ = SPACE.default({"width": 8})


def terms_for(goal: Goal = Goal.MIN) -> SweepTerms:
    return make_terms(
        SPACE, DEFAULT, metric="validation_perplexity", goal=goal, usd=Usd(5000),
        full_usd=Usd(100), slot_rate=Usd(30),
    )  # fmt: skip


TERMS = terms_for()


def lines_of(count: int) -> list[dict[str, object]]:
    """The metrics of a sweep whose last trial runs."""
    events: list[ev.SweepEvent] = []
    for number in range(1, count + 1):
        point = SPACE.point([number / 200, 1 - number / 300, 0.9])
        events.append(ev.TrialStarted(number, point, 0, 0, Usd(50)))
        if number < count:
            events.append(ev.RungReached(number, 0, 12345.678 + number, Usd("1234.5678"), 9.0, 10))
    return [
        {"kind": "sweep", "n": n, "said": json.loads(ev.write_event(each))}
        for n, each in enumerate(events)
    ]


def test_the_table_fits_80_columns_and_shows_what_runs_first() -> None:
    facts = facts_of(TERMS, lines_of(120))
    rows = trial_lines(facts, most=8)
    assert len(rows) == 10, "a head, eight trials, and how many more there are"
    assert max(map(len, trial_lines(facts, most=120))) == 80
    assert len(trial_lines(facts, verbose=True)) == 121
    assert rows[0].split() == ["trial", "rung", "spent", "validation_p", "where", "settings"]
    assert rows[1].split()[0] == "120"
    assert "to rung 1" in rows[1]
    assert rows[2].split()[0] == "1"
    assert rows[-1] == "and 112 more: -v"


def test_the_share_of_processor_time_is_of_all_attempts() -> None:
    """Each attempt's last line counts; what a machine of somebody else's says may be anything."""
    lines: list[dict[str, object]] = [
        *lines_of(3),
        {"kind": "sweep_cpu", "attempt": 1, "own_s": 0.5, "trials_s": 10.0},
        {"kind": "sweep_cpu", "attempt": 1, "own_s": 1.0, "trials_s": 200.0},
        {"kind": "sweep_cpu", "attempt": 2, "own_s": 1.0, "trials_s": 198.0},
        {"kind": "sweep_cpu", "attempt": 3, "own_s": "x", "trials_s": None},
    ]
    facts = facts_of(TERMS, lines)
    assert facts.own_share == pytest.approx(0.005)
    said = "\n".join(report_lines(facts))
    assert "took 0.50% of the processor time: 2.0 s beside 398.0 s of trials" in said
    assert facts_of(TERMS, lines_of(3)).own_share is None


def test_a_plan_and_a_report_say_what_was_known() -> None:
    table = memory_table(SPACE, DEFAULT, lambda point: float(dict(point)["width"]) / 32, 24.0)
    trials = tuple(EarlierTrial(SPACE.point([n / 9, 0.5, 0.1]), 0, 1.0) for n in range(3))
    first = (FirstPoint(DEFAULT, "r-1", 7), FirstPoint(DEFAULT, "r-2", 1))
    priors = Priors(first, (EarlierSweep("r-2", trials),), table)
    shown = terms_lines(TERMS, priors)
    [then] = [line for line in shown if line.startswith("    then ")]
    assert then.endswith("(trial 7 of r-1)")
    assert any(line.endswith("(trial 1 of r-2)") for line in shown)
    refused = "1 of 2 sizes are never started: width=64 needs 48 GB of 24"
    assert any(line.endswith(refused) for line in shown)
    used = "trials on the same code are used: 3 of r-2 (not: --no-earlier)"
    assert any(line.endswith(used) for line in shown)
    said = report_lines(facts_of(TERMS, lines_of(3)), priors)
    assert f"memory: {refused}" in said
    assert not [line for line in terms_lines(TERMS) if "memory" in line or "then" in line]


@pytest.mark.parametrize(
    ("goal", "gain", "told"),
    [
        (Goal.MIN, 0.2, "0.2 below the default (-0.1 to 0.5, 95 %)"),
        (Goal.MIN, -0.2, "0.2 above the default (-0.1 to 0.5, 95 %)"),
        (Goal.MAX, -0.2, "0.2 below the default (-0.1 to 0.5, 95 %)"),
    ],
)
def test_a_verdict_names_the_side_that_it_is_on(goal: Goal, gain: float, told: str) -> None:
    found = Verdict(Finding.NOT_BETTER, 3, 1, gain, gain - 0.3, gain + 0.3, 0.1, 4)
    assert verdict_line(found, terms_for(goal)).endswith(told)


def test_one_table_shows_the_trials_of_runs_that_share_a_space() -> None:
    """The best of all is first, whichever run it is of; a trial that runs stands above it."""
    one, other = lines_of(3), lines_of(4)
    said = json.loads(json.dumps(other))
    for line in said:
        if line["said"]["event"] == "RungReached":
            line["said"]["metric"] -= 10_000
    found = [("r-one", facts_of(TERMS, one)), ("r-two", facts_of(TERMS, said))]
    lines = joint_lines(found)
    assert lines[0].split()[:3] == ["run", "trial", "rung"]
    rows = [tuple(line.split()[:2]) for line in lines[1:8]]
    assert rows == [
        ("r-one", "3"), ("r-two", "4"),  # these run
        ("r-two", "1"), ("r-two", "2"), ("r-two", "3"), ("r-one", "1"), ("r-one", "2"),
    ]  # fmt: skip
    assert lines[8].startswith("best of all: trial 1 of r-two with learning_rate=")
    assert lines[9:] == ["  trmcloud fetch-best r-two"]
    assert max(map(len, lines[:8])) <= 80
    many = joint_lines([("r-one", facts_of(TERMS, lines_of(20)))])
    assert many[13] == "and 8 more: trmcloud status RUN -v"
    assert joint_lines([]) == ["no trial has a result"]
