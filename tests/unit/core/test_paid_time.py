"""What an instant of a run's life has cost: exact for receipts, quick for axes, and the same."""

from __future__ import annotations

from typing import Any

import pytest

from tests.reasons import quoted
from tests.unit.core.runs import AT, running
from trmcloud.core.control.paid_time import hours_at, paid_by, spent_at
from trmcloud.core.control.report import report_on
from trmcloud.core.control.run_state import Generation, RunState
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.values import replace


def machine(number: int, began: float, ended: float | None, rate: str, **more: Any) -> Generation:
    made = running().generation
    assert made is not None
    about = {"number": number, "intended_at": began, "ended_at": ended, "rate": Usd(rate)}
    return replace(made, **{**about, "billed_rate": None, **more})


def a_run(*machines: Generation) -> RunState:
    return replace(running(), generations=machines)


def test_each_machine_costs_its_rate_from_its_order_to_its_end() -> None:
    run = a_run(machine(1, AT, AT + 3600, "2"), machine(2, AT + 7200, None, "3"))
    assert spent_at(run, AT - 5) == ZERO
    assert spent_at(run, AT + 1800) == Usd("1")
    assert spent_at(run, AT + 7200) == Usd("2"), "days between two machines cost nothing"
    assert spent_at(run, AT + 9000) == Usd("3.5")
    assert hours_at(run, AT + 9000) == 1.5


def test_what_is_billed_counts_and_what_was_never_made_does_not() -> None:
    billed = machine(1, AT, None, "2", billed_rate=Usd("2.4"))
    unmade = machine(2, AT, None, "9", not_made=quoted("no capacity"))
    run = a_run(billed, unmade)
    assert spent_at(run, AT + 3600) == Usd("2.4")
    (hours,), (dollars,) = paid_by(run, [AT + 3600])
    assert hours == 1.0
    assert dollars == pytest.approx(2.4)


def test_the_axes_are_the_exact_dollars_to_a_micro_dollar_a_machine() -> None:
    machines = [
        machine(n, AT + 977 * n, AT + 977 * n + 555.5, f"{1 + n / 7:.6f}") for n in range(1, 6)
    ]
    run = a_run(*machines, machine(6, AT + 9_000, None, "3.333333"))
    instants = [AT + 13.37 * n for n in range(1000)]
    hours, dollars = paid_by(run, instants)
    for at, paid_h, paid_usd in zip(instants, hours, dollars, strict=True):
        assert paid_h == pytest.approx(hours_at(run, at))
        assert paid_usd <= float(spent_at(run, at)) + 1e-9
        # Each machine's milliseconds, and then its micro-dollars, are rounded up.
        assert paid_usd == pytest.approx(float(spent_at(run, at)), abs=6 * 2e-6)


def test_at_its_end_a_run_has_cost_what_its_report_accrues() -> None:
    run = a_run(machine(1, AT, AT + 1234.567, "2.79"), machine(2, AT + 5000, AT + 6001, "1.99"))
    assert spent_at(run, AT + 9999) == report_on(run, [], AT + 9999).accrued
