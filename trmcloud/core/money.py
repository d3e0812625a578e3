"""US dollars that never lose a cent to binary floating point.

``Usd`` holds a whole number of micro-dollars (10⁻⁶ USD). Costs are rounded up and affordable
times down, so that rounding can only ever make a promise safer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from functools import total_ordering

_MICROS_PER_USD = 1_000_000
_SECONDS_PER_HOUR = 3600


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
        micros = value * _MICROS_PER_USD
        if micros != micros.to_integral_value():
            raise ValueError(f"{amount!r} is finer than a millionth of a dollar")
        object.__setattr__(self, "micros", int(micros))

    @classmethod
    def from_micros(cls, micros: int) -> Usd:
        if not isinstance(micros, int) or isinstance(micros, bool):
            raise TypeError(f"micros are a whole number, not {type(micros).__name__}")
        made = object.__new__(cls)
        object.__setattr__(made, "micros", micros)
        return made

    @classmethod
    def rounded_up(cls, amount: Decimal) -> Usd:
        """The least Usd that is not below ``amount`` (USD)."""
        return cls.from_micros(
            int((amount * _MICROS_PER_USD).to_integral_value(rounding=ROUND_CEILING))
        )

    @property
    def amount(self) -> Decimal:
        return Decimal(self.micros) / _MICROS_PER_USD

    def __add__(self, other: Usd) -> Usd:
        if not isinstance(other, Usd):
            return NotImplemented
        return Usd.from_micros(self.micros + other.micros)

    def __sub__(self, other: Usd) -> Usd:
        if not isinstance(other, Usd):
            return NotImplemented
        return Usd.from_micros(self.micros - other.micros)

    def __mul__(self, factor: int | Decimal) -> Usd:
        if isinstance(factor, bool) or not isinstance(factor, int | Decimal):
            return NotImplemented
        return Usd.rounded_up(self.amount * factor)

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
        """``$1,234.56``; amounts under a dollar that need them keep up to four places."""
        sign = "-" if self.micros < 0 else ""
        magnitude = abs(self.amount)
        places = 2 if magnitude >= 1 or magnitude * 100 == int(magnitude * 100) else 4
        return f"{sign}${magnitude:,.{places}f}"

    def __repr__(self) -> str:
        return f"Usd('{self.plain()}')"

    def plain(self) -> str:
        """The amount as ``Usd`` reads it back: ``'0.0125'``."""
        text = f"{self.amount:f}"
        return text.rstrip("0").rstrip(".") if "." in text else text


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
    return Usd.from_micros(-(-numerator // denominator))


def affordable_seconds(budget: Usd, rate_usd_per_hour: Usd) -> float:
    """The longest time (s, down to the millisecond) that costs at most ``budget``.

    Infinite where the rate is zero.
    """
    if rate_usd_per_hour.micros <= 0:
        return math.inf
    if budget.micros <= 0:
        return 0.0
    millis = budget.micros * _SECONDS_PER_HOUR * 1000 // rate_usd_per_hour.micros
    return millis / 1000


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
