"""A text made by a formula, for the character-level recipes: ledgers of sums.

Their guide's text of 350M characters was never published; what is known is its alphabet. This one
has the same seventeen characters, says that it is generated, and has something to learn: each line
states a change, whether the balance after it is the highest so far (H), the lowest (L) or between
(B), and that balance.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

LINES = 64
_FIRST, _LINE = len("B0000.00\n"), len("+00.00H0000.00\n")
DOCUMENT_CHARACTERS = _FIRST + LINES * _LINE + 1
_LARGEST = 1_000_000  # cents

Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]


def ledgers(seed: int, first: int, stop: int) -> list[str]:
    """The documents ``first`` up to ``stop`` of the text that ``seed`` stands for.

    A document depends on its number alone. Randomness is SplitMix64 over counters, so that no
    library's generator can change the text.
    """
    number = np.arange(first, stop, dtype=np.uint64)
    text = np.empty((len(number), DOCUMENT_CHARACTERS), np.uint8)
    text[:, -1] = ord("\n")
    balance = _below(_draw(seed, number, 0), _LARGEST)
    highest, lowest = balance.copy(), balance.copy()
    text[:, 0] = ord("B")
    _write_amount(text[:, 1:_FIRST], balance, 4)
    for line in range(LINES):
        drawn = _draw(seed, number, line + 1)
        change = 1 + _below(drawn, 9_999)
        down = (drawn >> np.uint64(63)).astype(bool)
        down = np.where(down, balance - change >= 0, balance + change >= _LARGEST)
        balance = np.where(down, balance - change, balance + change)
        at = _FIRST + line * _LINE
        text[:, at] = np.where(down, ord("-"), ord("+"))
        _write_amount(text[:, at + 1 : at + 6], change, 2)
        text[:, at + 6] = np.where(
            balance > highest, ord("H"), np.where(balance < lowest, ord("L"), ord("B"))
        )
        _write_amount(text[:, at + 7 : at + _LINE], balance, 4)
        highest, lowest = np.maximum(highest, balance), np.minimum(lowest, balance)
    whole = text.tobytes().decode("ascii")
    return [
        whole[at : at + DOCUMENT_CHARACTERS] for at in range(0, len(whole), DOCUMENT_CHARACTERS)
    ]


def _write_amount(out: npt.NDArray[np.uint8], cents: Ints, units: int) -> None:
    """``units`` digits, a point and two more; a line feed where ``out`` has room for one."""
    digits = cents.copy()
    for at in (units + 2, units + 1, *range(units - 1, -1, -1)):
        out[:, at] = ord("0") + digits % 10
        digits //= 10
    out[:, units] = ord(".")
    if out.shape[1] > units + 3:
        out[:, units + 3] = ord("\n")


def _draw(seed: int, number: Words, line: int) -> Words:
    mask = (1 << 64) - 1
    start = np.uint64((seed * 0xD1342543DE82EF95 + line) & mask)
    return _mix(_mix(number + start) + np.uint64(line))


def _below(drawn: Words, limit: int) -> Ints:
    return ((drawn >> np.uint64(16)) % np.uint64(limit)).astype(np.int64)


def _mix(value: Words) -> Words:
    """SplitMix64's finaliser (Steele et al. 2014)."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ value >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ value >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return value ^ value >> np.uint64(31)
