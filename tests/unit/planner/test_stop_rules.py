"""Rules that end a phase: as they are typed, and those that can never be met."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.plans import a_candidate, a_phase
from trmcloud.core.contract.worth import StopRules
from trmcloud.core.errors import UsageError
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.spec.plan import Candidate
from trmcloud.core.spec.spec import RunSpec
from trmcloud.core.spec.stop_rules import check_rules, checked_patience, parse_gain, rules_of

SPEC = RunSpec(recipe="trm", phases=("fast",))


@pytest.mark.parametrize(
    ("text", "gain"),
    [("0.001/usd", 0.001), (" 1e-3 / USD ", 0.001), ("2/$", 2.0), (".5bpb/usd", 0.5)],
)
def test_a_gain_as_people_type_it(text: str, gain: float) -> None:
    assert parse_gain(text) == gain


@pytest.mark.parametrize(
    "text",
    [
        "",
        "abc",
        "0/usd",
        "-1/usd",
        "1e400/usd",
        "nan/usd",
        "0.001",
        "0.001/eur",
        "1/usd/usd",
        "1_0/usd",
        "\N{ARABIC-INDIC DIGIT ONE}/usd",
        "9" * 50 + "/usd",
        "1e-12/usd",
    ],
)
def test_what_is_no_gain_is_refused_in_a_line(text: str) -> None:
    with pytest.raises(UsageError, match="--stop-at-gain") as caught:
        parse_gain(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("patience", [-1, 10**7])
def test_what_is_no_patience_is_refused(patience: int) -> None:
    with pytest.raises(UsageError, match="--patience"):
        checked_patience(patience)


def test_a_pod_is_told_the_rule_and_its_price() -> None:
    ruled = replace(SPEC, stop_at_gain=0.01, patience=3)
    assert rules_of(ruled, Usd("2.50")) == StopRules(0.01, 3, 2.5)
    assert rules_of(SPEC, Usd("2.50")) == StopRules()


def _with(steps: int, **changes: Any) -> Candidate:
    phase = a_phase()
    settings = replace(
        phase.settings, steps=steps, eval_every=10, save_every=20, warmup_steps=10,
        cooldown_fraction=0.2, schedule="wsd",
    )  # fmt: skip
    return a_candidate(phases=(replace(phase, settings=settings),), **changes)


def test_a_rule_needs_enough_evaluations_between_warm_up_and_cooldown() -> None:
    """Of 150 steps the first 10 warm up and the last 30 cool down: eleven evaluations."""
    check_rules(replace(SPEC, stop_at_gain=0.01, patience=10), _with(150))
    for rule, steps in (({"patience": 11}, 150), ({"stop_at_gain": 0.01}, 130)):
        with pytest.raises(UsageError, match="can never be met: it needs"):
            check_rules(replace(SPEC, **rule), _with(steps))


def test_where_nothing_is_paid_no_dollar_can_buy_too_little() -> None:
    free = _with(150, rate=ZERO)
    with pytest.raises(UsageError, match="nothing is paid"):
        check_rules(replace(SPEC, stop_at_gain=0.01), free)
    check_rules(replace(SPEC, patience=3), free)
