"""Scoring of worked answers: the number behind ``####``, compared exactly.

Numbers are compared by their value, so ``1,000``, ``$1000`` and ``1000.00`` are one answer. Of
several marks the first one that a number follows counts, as in GSM8K's own scoring.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

MARK = "####"
_FOUND = re.compile(MARK + r"[^\S\n]*([-+\u2212]?)[^\S\n]*\$?[^\S\n]*([\d.,]*\d[\d.,]*)")
_NUMBER = re.compile(r"(\d{1,3}(?:,\d{3})+|\d+)?(\.\d+)?", re.ASCII)
_Z95 = 1.959963984540054


@dataclass(frozen=True)
class Item:
    """A question, and the number that its answer comes to."""

    question: str
    number: Decimal


@dataclass(frozen=True)
class BadLine:
    """A line that is no item; lines are counted from 1."""

    line: int
    why: str


def final_number(text: str) -> Decimal | None:
    """The number behind the first mark that one follows; None where there is none, or it is
    written as no number is."""
    found = _FOUND.search(text)
    if found is None:
        return None
    # What ends the sentence is no part of it.
    digits = found[2].rstrip(".,")
    number = _NUMBER.fullmatch(digits)
    if number is None or not digits:
        return None
    value = Decimal(digits.replace(",", ""))
    return value if found[1] in ("", "+") else -value


def is_final_number_complete(text: str) -> bool:
    """Whether nothing that may follow changes ``final_number``: its line has ended."""
    found = _FOUND.search(text)
    return found is not None and "\n" in text[found.end() :]


def read_items(lines: Iterable[str], limit: int = 0) -> tuple[list[Item], list[BadLine]]:
    """The items of a JSONL file, the first ``limit`` of them where that is not 0, and the lines on
    the way that are none. Empty lines are neither."""
    items: list[Item] = []
    bad: list[BadLine] = []
    for number, line in enumerate(lines, start=1):
        if limit and len(items) == limit:
            break
        if line.strip():
            made = _item(line)
            if isinstance(made, Item):
                items.append(made)
            else:
                bad.append(BadLine(number, made))
    return items, bad


def wilson(right: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927): ``right`` of ``of``, which is at least 1."""
    share, z2 = right / of, _Z95 * _Z95
    middle = (share + z2 / (2 * of)) / (1 + z2 / of)
    half = _Z95 / (1 + z2 / of) * math.sqrt(share * (1 - share) / of + z2 / (4 * of * of))
    return (0.0 if right == 0 else middle - half), (1.0 if right == of else middle + half)


def _item(line: str) -> Item | str:
    """The item, or why the line is none."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return "not JSON"
    if not isinstance(content, dict):
        return "no object"
    for field in ("question", "answer"):
        if not isinstance(content.get(field), str) or not content[field].strip():
            return f"no {field}"
    if MARK not in content["answer"]:
        return f"no {MARK} in its answer"
    number = final_number(content["answer"])
    if number is None:
        return f"no number after {MARK}"
    return Item(content["question"], number)
