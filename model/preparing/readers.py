"""Readers of texts: files of every layout, generated texts, and worked answers in parts."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from model.preparing import puzzles
from model.preparing.fetch import DamagedFile
from trmcloud.core.catalog.datasets import PUZZLES, DataSet
from trmcloud.core.errors import DataError

# A worked answer as a question, a plan and an execution.
#
# The plan is the solution's own sentences without what they come to: every numeral, and every
# calculator span with the numeral that repeats it, is ``BLANK``. The execution is the answer as
# it is, so it ends in its mark and the final number.

PARTS = 3
QUESTION = 0
"""Which of the parts it is."""
VERSION = 1
"""Of the plans: a change of what is made of the same answer is a new one."""
BLANK = "_"

_NUMERAL = r"(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)"
_HIDDEN = re.compile(rf"<<[^<>\n]*>>(?:{_NUMERAL})?|{_NUMERAL}", re.ASCII)


def parts_of(question: str, answer: str, mark: str) -> tuple[str, str, str]:
    """Question, plan and execution.

    Args:
        mark: what stands in the answer before its final number.
    """
    solution = answer.rpartition(mark)[0]
    return question, plan_of(solution), answer


def plan_of(solution: str) -> str:
    """The sentences of a solution, numerals and calculator spans blanked out."""
    return _HIDDEN.sub(BLANK, solution).strip()


# A text made by a formula, for the character-level recipes: ledgers of sums.
#
# Their guide's text of 350M characters was never published; what is known is its alphabet. This
# one has the same seventeen characters, says that it is generated, and has something to learn:
# each line states a change, whether the balance after it is the highest so far (H), the lowest
# (L) or between (B), and that balance.

LINES = 64
_FIRST, _LINE = len("B0000.00\n"), len("+00.00H0000.00\n")
DOCUMENT_CHARACTERS = _FIRST + LINES * _LINE + 1
_LARGEST = 1_000_000  # cents

Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]


def generate_ledgers(seed: int, first: int, stop: int) -> list[str]:
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


# Documents out of a shard, a part of it at a time, so that many processes share one shard.
#
# A ``Unit`` is such a part: row groups of a parquet file, bytes of a JSONL file, numbers of
# generated documents. Nothing here holds more than a few megabytes of text, however large a file
# is.

UNIT_TEXT_BYTES = 8 << 20
_BATCH_BYTES = 1 << 18
_DOCUMENT_BYTES = 162
"""Of a puzzle of 9 × 9 with its solution."""
_PUZZLES_IN_UNIT, _PUZZLES_AT_ONCE = 500, 50
"""One takes up to a second to make."""
_MOST_ROWS = 1024


@dataclass(frozen=True)
class Unit:
    """From ``start`` up to ``stop``, counted as the layout does; about how much text that is."""

    start: int
    stop: int
    text_bytes: int


def units_of(data_set: DataSet, name: str, path: Path | None) -> list[Unit]:
    """Divide a shard into units: the same way every time.

    Raises:
        DataError: the file is damaged, or has no such column.
    """
    if data_set.layout == "sudoku":
        side, number, _ = puzzles.parse_shard(name)
        count = data_set.shard_text_bytes // (2 * side * side)
        return _ranges(number * count, (number + 1) * count, 2 * side * side, _PUZZLES_IN_UNIT)
    if data_set.layout == "generated":
        whole = data_set.shard_text_bytes // DOCUMENT_CHARACTERS
        begin = _number_of(name) * whole
        return _ranges(begin, begin + whole, DOCUMENT_CHARACTERS)
    assert path is not None
    if sample := _sampled(data_set, name):
        return _ranges(0, sample, _DOCUMENT_BYTES)
    if data_set.layout in ("jsonl", PUZZLES):
        return _ranges(0, path.stat().st_size, 1)
    return _row_groups(path, data_set.column)


def documents(
    data_set: DataSet,
    name: str,
    path: Path | None,
    unit: Unit,
    seed: int,
    *,
    in_parts: bool = False,
) -> Iterator[list[str]]:
    """A unit's documents, some at a time. Empty ones, and rows without text, are left out.

    Args:
        in_parts: each worked answer as its question, its plan and its execution, one after another.

    Raises:
        DataError: the file is damaged, or a row is no text.
    """
    if data_set.layout == "generated":
        at_once = _BATCH_BYTES // DOCUMENT_CHARACTERS
        for start in range(unit.start, unit.stop, at_once):
            yield generate_ledgers(seed, start, min(unit.stop, start + at_once))
    elif data_set.layout == "sudoku":
        side, _, held_out = puzzles.parse_shard(name)
        for start in range(unit.start, unit.stop, _PUZZLES_AT_ONCE):
            stop = min(unit.stop, start + _PUZZLES_AT_ONCE)
            yield puzzles.make_documents(side, seed, start, stop, held_out=held_out)
    elif data_set.layout == PUZZLES:
        assert path is not None
        sample = _sampled(data_set, name)
        made = puzzles.table_documents(path, unit.start, unit.stop, sample=sample)
        while batch := [text for text, _ in itertools.islice(made, _MOST_ROWS)]:
            yield batch
    elif data_set.layout == "jsonl":
        assert path is not None
        yield from _json_lines(path, unit, data_set, in_parts)
    else:
        assert path is not None
        yield from _parquet_rows(path, unit, data_set.column)


def _sampled(data_set: DataSet, name: str) -> int:
    """Return the number of puzzles to take of a table, spread evenly; 0: all."""
    if data_set.layout != PUZZLES or name == data_set.validation:
        return 0
    return data_set.shard_text_bytes // _DOCUMENT_BYTES


def _ranges(start: int, stop: int, item_bytes: int, most: int = 0) -> list[Unit]:
    step = max(1, UNIT_TEXT_BYTES // item_bytes)
    step = min(step, most or step)
    return [
        Unit(at, min(stop, at + step), (min(stop, at + step) - at) * item_bytes)
        for at in range(start, stop, step)
    ]


def _number_of(name: str) -> int:
    return int(name.rpartition("-")[2])


# -- parquet --------------------------------------------------------------------------------------


def _row_groups(path: Path, column: str) -> list[Unit]:
    with _opened(path) as file:
        schema = file.schema_arrow
        if column not in schema.names:
            raise DataError(
                f"{path.name} has no column {column!r}",
                where=str(path),
                next_step=f"--column NAME, one of: {', '.join(schema.names[:20])}",
            )
        metadata = file.metadata
        at = metadata.schema.names.index(column) if column in metadata.schema.names else 0
        units: list[Unit] = []
        first, size = 0, 0
        for group in range(metadata.num_row_groups):
            size += metadata.row_group(group).column(at).total_uncompressed_size
            if size >= UNIT_TEXT_BYTES or group == metadata.num_row_groups - 1:
                units.append(Unit(first, group + 1, size))
                first, size = group + 1, 0
        return units


def _parquet_rows(path: Path, unit: Unit, column: str) -> Iterator[list[str]]:
    import pyarrow as pa

    with _opened(path) as file:
        kind = file.schema_arrow.field(column).type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            kind = getattr(kind, "value_type", kind)
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                raise DataError(
                    f"column {column!r} of {path.name} is {kind}, not text", where=str(path)
                )
        try:
            for batch in file.iter_batches(
                batch_size=_rows_at_once(file, unit),
                row_groups=list(range(unit.start, unit.stop)),
                columns=[column],
                use_threads=False,
            ):
                yield [text for text in batch.column(0).to_pylist() if text]
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise _damaged(path, error) from None


def _rows_at_once(file: Any, unit: Unit) -> int:
    rows = sum(file.metadata.row_group(each).num_rows for each in range(unit.start, unit.stop))
    return max(1, min(_MOST_ROWS, _BATCH_BYTES * rows // max(1, unit.text_bytes)))


def _opened(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Its own allocators keep what they freed; here little is held, and often given back.
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        # Buffered: column chunks are read as they are needed, not whole.
        return pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> DataError:
    reason = str(error).partition("\n")[0][:200]
    return DamagedFile(
        f"{path.name} is not a complete parquet file: {reason}",
        where=str(path),
        next_step="run the same command again: it downloads the file again",
    )


# -- JSONL ----------------------------------------------------------------------------------------


def _json_lines(path: Path, unit: Unit, data_set: DataSet, in_parts: bool) -> Iterator[list[str]]:
    """A line belongs to the unit that holds its first byte."""
    batch: list[str] = []
    size = 0
    with open(path, "rb") as file:
        if unit.start:
            file.seek(unit.start - 1)
            file.readline()
        while (at := file.tell()) < unit.stop and (line := file.readline()):
            if not line.strip():
                continue
            values = _values_of(line, data_set, path, at)
            if in_parts:
                *question, answer = values
                batch += parts_of("\n".join(question), answer, data_set.answer_mark)
                size += len(line)
            elif text := "\n".join(values):
                batch.append(text)
                size += len(line)
            if size >= _BATCH_BYTES:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _values_of(line: bytes, data_set: DataSet, path: Path, at: int) -> list[str]:
    try:
        row = json.loads(line)
        values = [row[field] for field in data_set.fields]
        if not all(isinstance(value, str) for value in values):
            raise TypeError("not text")
        "\n".join(values).encode()  # half a surrogate pair can be written in JSON, and is no text
    except KeyError as error:
        known = ", ".join(list(row)[:20])
        raise DataError(
            f"{path.name} has a row without {error} at byte {at}",
            where=str(path),
            next_step=f"--column NAME, one of: {known}",
        ) from None
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{path.name} has no JSON object with text at byte {at}: {error}",
            where=str(path),
        ) from None
    if data_set.answer_mark:
        _check_answer(dict(zip(data_set.fields, values, strict=True)), data_set, path, at)
    return values


def _check_answer(values: dict[str, str], data_set: DataSet, path: Path, at: int) -> None:
    for field, value in values.items():
        if not value.strip():
            raise DataError(
                f"{path.name} has a row with an empty {field!r} at byte {at}", where=str(path)
            )
    mark, last = data_set.answer_mark, data_set.fields[-1]
    if not values[last].rpartition(mark)[2].strip() or mark not in values[last]:
        raise DataError(
            f"{path.name} has an {last!r} without {mark} and a result at byte {at}",
            where=str(path),
            next_step="correct or remove that line",
        )
