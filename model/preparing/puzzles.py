"""Sudokus: made from the seed alone, or read from a table.

A document is a puzzle and its solution, row by row and without a space between, 0 for a blank: 32
characters for 4 × 4, 162 for 9 × 9.

Made puzzles have one solution each. Cells are emptied in a drawn order, each only where the
solution stays the only one, until a drawn number of them is empty, from half of the cells to all of
them, or none is left to try.

No grid of the validation part is a solution in the training part. The two are divided by grids, not
by puzzles:

- 4 × 4: there are 288 grids, in only 2 classes up to digits, rows, columns and transposition. So
  the grids themselves are divided, 200 for training and 88 for validation, by a fixed draw. A
  symmetry may map a training grid onto one for validation: train without shuffles
  (``augmentations=0``).
- 9 × 9: classes are divided. The least of a grid's equivalents (``canonical``) is hashed, and the
  grids of every other hash are for validation. So no symmetric equivalent of a validation grid is
  in the training part either, and shuffles of training puzzles give none.

Randomness is SplitMix64 over counters, so that no library's generator can change a puzzle.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trmcloud.core.errors import DataError

SMALL, LARGE = 4, 9
SMALL_TRAINING_GRIDS = 200
"""Of the 288 grids of 4 × 4."""
_MASK64 = (1 << 64) - 1
_SPLIT_SEED = 0x5D0C1
_HELD_OUT_SHARD = "test"
_SIZE = re.compile(r"(\d+)x\1-(\w+)")

Grid = tuple[int, ...]
"""Cells row by row; 0 is a blank."""


class Draws:
    """Numbers from a seed, one after another."""

    def __init__(self, *seeds: int) -> None:
        self._state = 0
        for seed in seeds:
            self._state = _mix(self._state ^ (seed & _MASK64))

    def below(self, limit: int) -> int:
        """A number from 0 up to ``limit``, not included."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK64
        return _mix(self._state) % limit

    def shuffled(self, items: Sequence[int]) -> list[int]:
        """``items`` in a drawn order (Fisher–Yates)."""
        made = list(items)
        for at in range(len(made) - 1, 0, -1):
            other = self.below(at + 1)
            made[at], made[other] = made[other], made[at]
        return made


def _mix(value: int) -> int:
    """SplitMix64's finaliser (Steele et al. 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK64
    return value ^ value >> 31


# Solutions of a puzzle: depth first, the cell with the fewest digits left first.


@cache
def _houses(side: int) -> tuple[tuple[int, int, int], ...]:
    """Row, column and box of each cell, as numbers from 0 to 3·side − 1."""
    box = math.isqrt(side)
    return tuple(
        (row, side + column, 2 * side + row // box * box + column // box)
        for row in range(side)
        for column in range(side)
    )


def solutions(puzzle: Sequence[int], most: int, draws: Draws | None = None) -> list[Grid]:
    """Return up to ``most`` solutions.

    Args:
        draws: the order in which digits are tried; None: from 1 up.
    """
    side = math.isqrt(len(puzzle))
    houses = _houses(side)
    free = [(1 << side) - 1] * (3 * side)
    grid = list(puzzle)
    for at, digit in enumerate(grid):
        if digit:
            for house in houses[at]:
                if not free[house] >> (digit - 1) & 1:
                    return []
                free[house] &= ~(1 << (digit - 1))
    found: list[Grid] = []

    def search() -> None:
        best, fewest, options = -1, side + 1, 0
        for at, digit in enumerate(grid):
            if not digit:
                row, column, box = houses[at]
                left = free[row] & free[column] & free[box]
                number = left.bit_count()
                if number < fewest:
                    best, fewest, options = at, number, left
                    if number <= 1:
                        break
        if best < 0:
            found.append(tuple(grid))
            return
        digits = [digit for digit in range(side) if options >> digit & 1]
        for digit in draws.shuffled(digits) if draws is not None else digits:
            bit = 1 << digit
            grid[best] = digit + 1
            for house in houses[best]:
                free[house] ^= bit
            search()
            for house in houses[best]:
                free[house] ^= bit
            if len(found) >= most:
                break
        grid[best] = 0

    search()
    return found


# Grids, and which part each belongs to.


@cache
def small_grids() -> tuple[Grid, ...]:
    """Every grid of 4 × 4, in order: 288."""
    return tuple(sorted(solutions([0] * SMALL**2, 1000)))


@cache
def small_parts() -> tuple[tuple[Grid, ...], tuple[Grid, ...]]:
    """The grids of 4 × 4 for training and for validation."""
    every = small_grids()
    order = Draws(_SPLIT_SEED).shuffled(range(len(every)))
    cut = SMALL_TRAINING_GRIDS
    return tuple(every[at] for at in order[:cut]), tuple(every[at] for at in order[cut:])


@cache
def _line_orders(side: int) -> npt.NDArray[np.int64]:
    """(n, side) every order of lines that keeps bands together."""
    box = math.isqrt(side)
    within = list(itertools.permutations(range(box)))
    rows = [
        [band * box + line for band, lines in zip(bands, each, strict=True) for line in lines]
        for bands in itertools.permutations(range(box))
        for each in itertools.product(within, repeat=box)
    ]
    return np.array(rows)


def canonical(grid: Sequence[int]) -> Grid:
    """The least of the grids that digits, rows, columns and transposition make of ``grid``."""
    side = math.isqrt(len(grid))
    box = math.isqrt(side)
    orders = _line_orders(side)
    number = np.arange(len(orders))[:, None]
    least: bytes | None = None
    square = np.array(grid, np.int64).reshape(side, side) - 1
    for turned in (square, square.T):
        columns = turned[:, orders].transpose(1, 0, 2)  # (orders, rows, columns)
        for first in range(side):
            # Digits are named by the first row, and lines then sorted by the first column.
            names = np.empty((len(orders), side), np.uint8)
            np.put_along_axis(names, columns[:, first], np.arange(1, side + 1, dtype=np.uint8), 1)
            named = names[number[:, :, None], columns].reshape(len(orders), box, box, side)
            within = named[..., 0].argsort(axis=2)
            named = np.take_along_axis(named, within[..., None], axis=2)
            bands = named[:, :, 0, 0].argsort(axis=1)
            named = np.take_along_axis(named, bands[:, :, None, None], axis=1)
            smallest = min(map(bytes, named.reshape(len(orders), side * side)))
            least = smallest if least is None else min(least, smallest)
    assert least is not None
    return tuple(least)


def is_held_out(grid: Sequence[int]) -> bool:
    """Whether a grid is for validation; equivalent grids of 9 × 9 are for the same part."""
    if len(grid) == SMALL**2:
        return tuple(grid) in small_parts()[1]
    return bool(hashlib.sha256(bytes(canonical(grid))).digest()[0] & 1)


# Puzzles.


def make_puzzle(side: int, seed: int, number: int, *, held_out: bool) -> tuple[Grid, Grid]:
    """Return the ``number``-th puzzle of a seed, and its solution."""
    draws = Draws(seed, side, int(held_out), number)
    solution = _draw_grid(side, draws, held_out)
    cells = side * side
    wanted = cells // 2 + draws.below(cells - cells // 2 + 1)
    puzzle, blanks = list(solution), 0
    for at in draws.shuffled(range(cells)):
        if blanks == wanted:
            break
        digit, puzzle[at] = puzzle[at], 0
        if _has_one_solution(puzzle, side):
            blanks += 1
        else:
            puzzle[at] = digit
    return tuple(puzzle), solution


def make_documents(side: int, seed: int, start: int, stop: int, *, held_out: bool) -> list[str]:
    """The puzzles ``start`` up to ``stop`` of a seed, as documents."""
    made = (make_puzzle(side, seed, each, held_out=held_out) for each in range(start, stop))
    return ["".join(map(str, (*puzzle, *solution))) for puzzle, solution in made]


def _draw_grid(side: int, draws: Draws, held_out: bool) -> Grid:
    if side == SMALL:
        part = small_parts()[held_out]
        return part[draws.below(len(part))]
    while True:
        [grid] = solutions([0] * side**2, 1, draws)
        if is_held_out(grid) == held_out:
            return grid


@cache
def _small_table() -> npt.NDArray[np.int64]:
    return np.array(small_grids())


def _has_one_solution(puzzle: Sequence[int], side: int) -> bool:
    if side == SMALL:
        given = np.array(puzzle)
        fits = ((_small_table() == given) | (given == 0)).all(axis=1)
        return int(fits.sum()) == 1
    return len(solutions(puzzle, 2)) == 1


def parse_shard(name: str) -> tuple[int, int, bool]:
    """(side, first shard's number, whether it is held out) of ``4x4-000`` or ``9x9-test``.

    Raises:
        DataError: the name says no size that is made.
    """
    found = _SIZE.fullmatch(name)
    side = int(found[1]) if found else 0
    if found is None or side not in (SMALL, LARGE):
        raise DataError(f"puzzles of 4x4 and 9x9 are made, not {name!r}")
    held_out = found[2] == _HELD_OUT_SHARD
    return side, 0 if held_out else int(found[2]), held_out


# Tables of puzzles: the format of Sudoku-Extreme, ``source,question,answer,rating`` below a header.

_COLUMNS = ("question", "answer")
_SHORT = {"question": "q", "answer": "a"}
_DIGITS = re.compile(r"[0-9]+", re.ASCII)
HEADER_BYTES = 4096


def table_columns(header: bytes, where: str) -> tuple[int, int]:
    """Return the places of question and answer in a table's first line.

    Raises:
        DataError: it lacks one of them.
    """
    line = header.partition(b"\n")[0].decode("utf-8", "replace")
    names = [name.strip().lower() for name in next(csv.reader([line]), [])]
    places = [
        next((at for at, name in enumerate(names) if name in (wanted, _SHORT[wanted])), -1)
        for wanted in _COLUMNS
    ]
    if -1 in places:
        raise DataError(
            "the first line does not name the columns question and answer",
            where=where,
            next_step="give a table like Sudoku-Extreme's: source,question,answer,rating",
        )
    return places[0], places[1]


def table_documents(
    path: Path, start: int, stop: int, *, sample: int = 0
) -> Iterator[tuple[str, int]]:
    """The puzzles of the lines that begin from byte ``start`` up to ``stop``, each with its line's
    bytes.

    Args:
        sample: where above 0, ``start`` and ``stop`` are numbers of so many lines that are spread
            evenly over the file.

    Raises:
        DataError: a line is no puzzle.
    """
    size = path.stat().st_size
    with open(path, "rb") as file:
        columns = table_columns(file.readline(HEADER_BYTES), str(path))
        first = file.tell()
        if sample:
            for number in range(start, stop):
                file.seek(first + (size - first) * number // sample - bool(number))
                if number:
                    file.readline()
                yield from _documents_at(file, columns, path, 1)
            return
        file.seek(max(first, start) - 1)
        file.readline()
        while file.tell() < stop:
            if not (made := list(_documents_at(file, columns, path, 1))):
                return
            yield from made


def _documents_at(
    file: io.BufferedIOBase, columns: tuple[int, int], path: Path, number: int
) -> Iterator[tuple[str, int]]:
    """The next ``number`` puzzles from where the file stands; fewer at its end."""
    while number:
        at = file.tell()
        line = file.readline()
        if not line:
            return
        if line.strip():
            yield _document(line, columns, path, at), len(line)
            number -= 1


def _document(line: bytes, columns: tuple[int, int], path: Path, at: int) -> str:
    row = next(csv.reader([line.decode("utf-8", "replace")]), [])
    question, answer = (row[place] if place < len(row) else "" for place in columns)
    question = question.strip().replace(".", "0")
    answer = answer.strip()
    side = math.isqrt(len(answer))
    same = all(given in ("0", digit) for given, digit in zip(question, answer, strict=False))
    is_puzzle = (
        len(question) == len(answer) == side * side > 0
        and _DIGITS.fullmatch(question) is not None
        and _DIGITS.fullmatch(answer) is not None
        and "0" not in answer
        and same
    )
    if not is_puzzle:
        raise DataError(
            f"{path.name} has no puzzle with its solution at byte {at}",
            where=str(path),
            next_step="question and answer have as many digits, 0 or . for a blank, and the answer "
            "has those that the question gives",
        )
    return question + answer
