"""Money is exact, refuses floats, and rounds to the safe side; one rule for the price of disks."""

from __future__ import annotations

import math
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trmcloud.core.money import ZERO, Usd, affordable_seconds, cost, parse_budget, total
from trmcloud.core.storage import (
    pod_disks_gb,
    pod_disks_price,
    price_per_hour,
    price_per_month,
    work_gb,
)

# -- Money is exact, refuses floats, and rounds only ever to the safe side ----------------------


micros = st.integers(-(10**15), 10**15)
amounts = micros.map(Usd.from_micros)
budgets = st.integers(0, 10**13).map(Usd.from_micros)
rates = st.integers(1, 10**9).map(Usd.from_micros)
seconds = st.floats(0, 10**9, allow_nan=False)
decimals = st.decimals(-(10**9), 10**9, allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize("value", [1.0, 0.1, float("nan"), True, None, b"1", [], (1,)])
def test_only_exact_things_are_money(value: object) -> None:
    with pytest.raises(TypeError):
        Usd(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [1.0, True, "1", Decimal(1)])
def test_micros_are_a_whole_number(value: object) -> None:
    with pytest.raises(TypeError):
        Usd.from_micros(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ten",
        "nan",
        "inf",
        "-Infinity",
        "sNaN",
        "1.0000001",
        "0.0000001",
        "1e-7",
        "1 2",
        "0x10",
        "1e19",
        "1e999999",
        "1e999999999",
        "-1e999999999",
        "1e-999999999",
        "1.0000000000000000000000000000000000000001",
    ],
)
def test_text_that_is_no_amount_is_refused_at_once(text: str) -> None:
    with pytest.raises(ValueError, match=r"dollar|too large an amount"):
        Usd(text)


@pytest.mark.parametrize("other", [1, 1.0, "1", Decimal(1), None])
def test_money_is_added_to_and_compared_with_money_only(other: object) -> None:
    for combine in (
        lambda: Usd(1) + other,  # type: ignore[operator]
        lambda: other - Usd(1),  # type: ignore[operator]
        lambda: Usd(1) < other,  # type: ignore[operator]
        lambda: Usd(1) >= other,  # type: ignore[operator]
    ):
        with pytest.raises(TypeError):
            combine()
    assert Usd(1) != other


@pytest.mark.parametrize("factor", [1.5, True, "2", Usd(2)])
def test_money_is_multiplied_by_exact_numbers_only(factor: object) -> None:
    with pytest.raises(TypeError):
        Usd(1) * factor  # type: ignore[operator]


@given(amounts)
def test_text_brings_an_amount_back(amount: Usd) -> None:
    assert Usd(amount.plain()) == amount
    assert Usd(amount.amount) == amount
    assert eval(repr(amount)) == amount
    assert "e" not in amount.plain().lower()


@given(amounts, amounts, amounts)
def test_sums_are_exact(a: Usd, b: Usd, c: Usd) -> None:
    assert (a + b) + c == a + (b + c) == total([a, b, c])
    assert a + b - b == a
    assert a + -a == ZERO
    assert (a < b) == (a.micros < b.micros)
    assert bool(a) == (a != ZERO)


@given(decimals)
def test_rounding_goes_up_and_less_than_a_micro_dollar(value: Decimal) -> None:
    excess = Fraction(Usd.rounded_up(value).micros, 10**6) - Fraction(value)
    assert 0 <= excess < Fraction(1, 10**6)


@given(amounts, decimals | st.integers(-(10**9), 10**9))
def test_products_round_up_and_less_than_a_micro_dollar(amount: Usd, factor: Decimal | int) -> None:
    excess = (amount * factor).micros - amount.micros * Fraction(factor)
    assert 0 <= excess < 1
    assert factor * amount == amount * factor


def test_a_product_rounds_up_beyond_28_digits() -> None:
    """Decimal arithmetic would round this one down to where it came from."""
    assert Usd(1) * Decimal("1." + "0" * 39 + "1") == Usd("1.000001")


@given(rates, seconds)
def test_a_cost_is_never_below_rate_times_time(rate: Usd, time_s: float) -> None:
    exact = rate.micros * Fraction(time_s) / 3600
    millisecond = Fraction(rate.micros, 3_600_000)
    # A float's own grain: beyond 2⁴³ ms the product with 1000 is rounded.
    grain = exact / 2**52
    assert exact - grain <= cost(rate, time_s).micros <= exact + millisecond + 1 + grain


@given(rates, seconds, seconds)
def test_costs_of_parts_bound_the_cost_of_the_whole(rate: Usd, a: float, b: float) -> None:
    parts = cost(rate, a) + cost(rate, b)
    whole = cost(rate, a + b)
    # Splitting may cost a millisecond and a micro-dollar more; float's sum may differ by as much.
    slack = cost(rate, 0.002) + Usd.from_micros(2)
    assert parts - slack <= whole <= parts + slack
    assert cost(rate, max(a, b)) <= whole + slack


@given(rates, seconds, seconds)
def test_longer_never_costs_less(rate: Usd, a: float, b: float) -> None:
    assert cost(rate, min(a, b)) <= cost(rate, max(a, b))


@given(budgets, rates)
def test_what_is_affordable_is_affordable(budget: Usd, rate: Usd) -> None:
    time_s = affordable_seconds(budget, rate)
    assert cost(rate, time_s) <= budget
    # And it is not wasteful: two milliseconds more would not have been.
    if time_s < 10**9:
        assert cost(rate, time_s + 0.002) + Usd.from_micros(1) >= budget


@pytest.mark.parametrize("millis", [2007, 2011, 2015, 9, 57, 1001, 4035, 10**9 + 7])
def test_milliseconds_that_a_float_cannot_hold_are_affordable_too(millis: int) -> None:
    rate = Usd("3.6")  # a micro-dollar a millisecond
    assert cost(rate, affordable_seconds(Usd.from_micros(millis), rate)) <= Usd.from_micros(millis)


def test_the_edges_of_time() -> None:
    assert cost(Usd(5), 0) == cost(Usd(5), -3) == ZERO
    assert cost(ZERO, 1e9) == ZERO
    assert affordable_seconds(Usd(5), ZERO) == math.inf
    assert affordable_seconds(ZERO, Usd(1)) == affordable_seconds(Usd(-1), Usd(1)) == 0.0
    for endless in (math.inf, -math.inf, math.nan):
        with pytest.raises(ValueError, match="finite"):
            cost(Usd(1), endless)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("1000", "1000"),
        ("$1,000", "1000"),
        (" 12.50 ", "12.5"),
        ("1_000", "1000"),
        ("$1,234,567.89", "1234567.89"),
        ("0.000001", "0.000001"),
        ("1e3", "1000"),
        ("1,000.", "1000"),
    ],
)
def test_a_budget_as_a_person_types_it(text: str, amount: str) -> None:
    assert parse_budget(text) == Usd(amount)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "$",
        "ten",
        "0",
        "-5",
        "nan",
        "inf",
        "1,00",
        "1,0000",
        ",100",
        "1.5.5",
        "0.0000001",
        "$$5",
        "1e999999999",
        "1,000,00",
        "5 dollars",
        "-$5",
    ],
)
def test_a_budget_that_is_none_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(ValueError, match=r"too large an amount|dollar|zero"):
        parse_budget(text)


@given(st.text(max_size=20))
def test_any_text_is_a_positive_amount_or_refused(text: str) -> None:
    with suppress(ValueError):
        assert parse_budget(text) > ZERO


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        ("1234.56", "$1,234.56"),
        ("0.5", "$0.50"),
        ("0.0125", "$0.0125"),
        ("0", "$0.00"),
        ("-3", "-$3.00"),
    ],
)
def test_money_as_it_is_shown(amount: str, text: str) -> None:
    assert str(Usd(amount)) == text


@given(amounts)
def test_no_amount_but_zero_is_shown_as_zero(amount: Usd) -> None:
    assert any(digit in str(amount) for digit in "123456789") == bool(amount)


# -- One rule for disks: sizes, and prices by provider and use --------------------------------


def test_runpods_list_prices() -> None:
    assert price_per_month("runpod", "kept", 1000) == Usd(70)
    assert price_per_month("runpod", "kept", 2000) == Usd(120)
    assert price_per_hour("runpod", "kept", 730) == Usd("0.07")
    assert price_per_hour("runpod", "running", 73) == Usd("0.01")
    assert price_per_hour("runpod", "stopped", 73) == Usd("0.02"), "a stopped volume costs double"
    assert price_per_hour("runpod", "running", 0) == price_per_hour("runpod", "kept", -1) == Usd(0)
    assert price_per_hour("runpod", "running", 1) == Usd("0.000137"), "rounded up"


def test_this_machines_own_disk_costs_nothing() -> None:
    assert pod_disks_price("local", 10_000, 1, on_volume=False) == Usd(0)


@pytest.mark.parametrize(
    ("stored", "data", "gb"), [(0, 0, 30), (1, 1, 32), (5e9, 2.5e9, 43), (420e9, 0, 870)]
)
def test_a_work_disk_holds_twice_the_stored_and_data(stored: float, data: float, gb: int) -> None:
    assert work_gb(stored, data) == gb


def test_a_pod_has_a_system_disk_too() -> None:
    assert pod_disks_gb("runpod", 1) == 20 + 10, "no smaller mount can be rented"
    assert pod_disks_gb("runpod", 500) == 520
    assert pod_disks_gb("runpod", 500, on_volume=True) == 20
    assert pod_disks_gb("aws", 50) == 120
    two = pod_disks_price("aws", 50, 2, on_volume=False)
    assert two == price_per_hour("aws", "running", 240)
