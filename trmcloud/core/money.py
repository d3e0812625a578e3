"""US dollars that never lose a cent to binary floating point.

``Usd`` holds a whole number of micro-dollars (10⁻⁶ USD). Costs are rounded up and affordable
times down, so that rounding can only ever make a promise safer.
"""

from __future__ import annotations

import math
from decimal import Decimal, InvalidOperation
from functools import total_ordering

from trmcloud.core.values import dataclass

_MICROS_PER_USD = 1_000_000
_SECONDS_PER_HOUR = 3600
_MOST_DIGITS = 18


@total_ordering
@dataclass(frozen=True, slots=True)
class Usd:
    """An exact amount of US dollars, stored as micro-dollars.

    Raises:
        TypeError: when built from, or combined with, a float.
        ValueError: when the text is no finite number or finer than a micro-dollar.
    """

    micros: int

    def __init__(self, amount: str | int | Decimal = 0) -> None:
        if isinstance(amount, bool) or not isinstance(amount, str | int | Decimal):
            raise TypeError(f"Usd takes str, int or Decimal, not {type(amount).__name__}")
        try:
            value = Decimal(amount)
        except InvalidOperation:
            raise ValueError(f"{amount!r} is not an amount of dollars") from None
        if not value.is_finite():
            raise ValueError(f"{amount!r} is not a finite amount of dollars")
        # Before any arithmetic: 1e999999999 would fill the memory with zeros.
        if value and value.adjusted() > _MOST_DIGITS:
            raise ValueError(f"{amount!r} is too large an amount")
        if value and value.adjusted() < -_MOST_DIGITS:
            raise ValueError(f"{amount!r} is finer than a millionth of a dollar")
        # Whole numbers, since decimal arithmetic rounds to 28 digits without a word.
        numerator, denominator = value.as_integer_ratio() if value else (0, 1)
        micros, finer = divmod(numerator * _MICROS_PER_USD, denominator)
        if finer:
            raise ValueError(f"{amount!r} is finer than a millionth of a dollar")
        object.__setattr__(self, "micros", micros)

    @classmethod
    def from_micros(cls, micros: int) -> Usd:
        if not isinstance(micros, int) or isinstance(micros, bool):
            raise TypeError(f"micros must be a whole number, not {type(micros).__name__}")
        return _exactly(micros)

    @classmethod
    def rounded_up(cls, amount: Decimal) -> Usd:
        """The least Usd that is not below ``amount`` (USD)."""
        numerator, denominator = amount.as_integer_ratio()
        return cls.from_micros(-(-numerator * _MICROS_PER_USD // denominator))

    @property
    def amount(self) -> Decimal:
        return Decimal(self.micros) / _MICROS_PER_USD

    def __add__(self, other: Usd) -> Usd:
        if not isinstance(other, Usd):
            return NotImplemented
        return _exactly(self.micros + other.micros)

    def __sub__(self, other: Usd) -> Usd:
        if not isinstance(other, Usd):
            return NotImplemented
        return _exactly(self.micros - other.micros)

    def __mul__(self, factor: int | Decimal) -> Usd:
        if isinstance(factor, bool) or not isinstance(factor, int | Decimal):
            return NotImplemented
        numerator, denominator = factor.as_integer_ratio()
        return Usd.from_micros(-(-self.micros * numerator // denominator))

    __rmul__ = __mul__

    def __neg__(self) -> Usd:
        return Usd.from_micros(-self.micros)

    def __lt__(self, other: Usd) -> bool:
        if not isinstance(other, Usd):
            return NotImplemented
        return self.micros < other.micros

    def __bool__(self) -> bool:
        return self.micros != 0

    def __float__(self) -> float:
        return self.micros / _MICROS_PER_USD

    def __str__(self) -> str:
        """``$1,234.56``; amounts under a dollar that need them keep up to four places, and those
        that would look like nothing then, all six."""
        sign = "-" if self.micros < 0 else ""
        magnitude = abs(self.amount)
        places = 2 if magnitude >= 1 or magnitude * 100 == int(magnitude * 100) else 4
        if 0 < abs(self.micros) < 100:
            places = 6
        return f"{sign}${magnitude:,.{places}f}"

    def __repr__(self) -> str:
        return f"Usd('{self.plain()}')"

    def plain(self) -> str:
        """The amount as ``Usd`` reads it back: ``'0.0125'``."""
        text = f"{self.amount:f}"
        return text.rstrip("0").rstrip(".") if "." in text else text


def _exactly(micros: int) -> Usd:
    made = _new(Usd)
    _set(made, "micros", micros)
    return made


_new, _set = object.__new__, object.__setattr__
"""Looked up once: a plan makes tens of thousands of amounts."""


ZERO = Usd(0)


def total(amounts: object) -> Usd:
    """Sum of an iterable of Usd."""
    return Usd.from_micros(sum(amount.micros for amount in amounts))  # type: ignore[attr-defined]


def cost(rate_usd_per_hour: Usd, seconds: float) -> Usd:
    """Dollars for ``seconds`` at an hourly rate, rounded up to the next micro-dollar.

    Seconds are taken up to the next millisecond first, so that a float's last bits cannot lower
    a cost.
    """
    if not math.isfinite(seconds):
        raise ValueError("a cost needs a finite number of seconds")
    if seconds <= 0:
        return ZERO
    millis = math.ceil(seconds * 1000)
    numerator = rate_usd_per_hour.micros * millis
    denominator = _SECONDS_PER_HOUR * 1000
    return _exactly(-(-numerator // denominator))


def affordable_seconds(budget: Usd, rate_usd_per_hour: Usd) -> float:
    """The longest time (s, down to the millisecond) that costs at most ``budget``.

    Infinite where the rate is zero.
    """
    if rate_usd_per_hour.micros <= 0:
        return math.inf
    if budget.micros <= 0:
        return 0.0
    millis = budget.micros * _SECONDS_PER_HOUR * 1000 // rate_usd_per_hour.micros
    seconds = millis / 1000
    # The nearest float may lie a hair above its milliseconds; cost() would take it up to the next.
    while cost(rate_usd_per_hour, seconds) > budget:
        seconds = math.nextafter(seconds, 0.0)
    return seconds


def parse_budget(text: str) -> Usd:
    """A positive amount as a person types it: ``1000``, ``$1,000``, ``12.50``.

    Raises:
        ValueError: with the reason, ready to be shown.
    """
    cleaned = text.strip().removeprefix("$").replace("_", "")
    if "," in cleaned:
        whole, _, rest = cleaned.partition(".")
        groups = whole.split(",")
        if not groups[0] or any(len(group) != 3 for group in groups[1:]):
            raise ValueError(f"{text!r} is not an amount of dollars")
        cleaned = "".join(groups) + ("." + rest if rest else "")
    amount = Usd(cleaned)
    if amount <= ZERO:
        raise ValueError(f"{text!r} is not above zero")
    return amount
