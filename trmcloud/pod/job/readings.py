"""Numbers in a command's output: its log, lines of metrics, and TensorBoard's event files."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
import signal
import stat
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from trmcloud.core.contract.command import Command
from trmcloud.core.contract.command_terms import (
    MOST_DEPTH,
    MOST_LINE_CHARS,
    MOST_LOG_BYTES,
    MOST_PATTERN_S,
    PATTERN_STRIKES,
)
from trmcloud.core.contract.records import MAX_LINE_BYTES, ContractError, parse
from trmcloud.core.values import Value, replace
from trmcloud.io.foreign_files import read_part
from trmcloud.pod.job.metric_order import (
    OF_BATCH,
    OF_HELD_OUT,
    OF_TRAINING,
    TEXT,
    WeightsState,
)
from trmcloud.pod.job.trmcloud_observer import MARK_BEGIN, MARK_END

# What a command prints: drained as fast as it comes, so that it never waits for a reader; kept up
# to a size; and handed out in lines that are no longer than anybody looks at.

_CHUNK = 1 << 16
_LITTLE = 1 << 12
_LET_GATHER_S = 0.2
"""After little was read the pipe, which holds 64 KiB, may take some more: who prints a line a step
would wake this for each, which costs more than to read it."""
_MOST_LINES = 20_000
"""The most lines that wait to be read: older ones are dropped."""
_TAIL_BYTES = 1 << 16
_ENDS = re.compile(rb"[\r\n]+")
_MARK = re.compile(
    re.escape(MARK_BEGIN) + rb"([0-9]{1,10}) ([0-9]{1,12}) ([0-9]{1,12})" + re.escape(MARK_END)
)
_HALF_MARK = re.compile(MARK_END + rb"[^\r\n]{0,50}\Z")


class StateMark(NamedTuple):
    """A mark of the observer in the output. ``is_exact``: what was printed since the mark before it
    is of this state, and not possibly of one before."""

    state: WeightsState
    is_exact: bool


def mark_in(line: bytes) -> StateMark | None:
    """Return the mark that a line is; None where it is text."""
    found = _MARK.fullmatch(line)
    if found is None:
        return None
    return StateMark((int(found[1]), int(found[3])), found[2] == found[3])


class LogPump:
    """Reads ``source`` to its end in a thread, into ``target``: descriptors, both.

    Beyond ``most_bytes`` of ``target`` nothing is written but, at ``close``, the end of what came.
    """

    def __init__(self, source: int, target: int, most_bytes: int = MOST_LOG_BYTES) -> None:
        self._source, self._target = source, target
        self._room = max(0, most_bytes - os.fstat(target).st_size)
        self._lines: deque[tuple[float, bytes]] = deque(maxlen=_MOST_LINES)
        self._rest = b""
        self._half_mark = b""
        self._skips = False
        self._at_start = True
        """Whether the log ends with a whole line."""
        self._tail = b""
        self._left_out = 0
        self.lines_seen = 0
        """The number of lines that came, read or not."""
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def take(self) -> list[tuple[float, bytes]]:
        """The lines that came since, each cut to ``MOST_LINE_CHARS`` bytes, with the epoch seconds
        at which it came; and the observer's marks between them."""
        taken = []
        while self._lines:
            taken.append(self._lines.popleft())
        return taken

    def put_back(self, lines: list[tuple[float, bytes]]) -> None:
        """Lines that there was no time for, to be taken first next time where there is room."""
        room = _MOST_LINES - len(self._lines)
        self._lines.extendleft(reversed(lines[-room:] if room else []))

    def say(self, text: str) -> None:
        """A line of our own, among the command's."""
        begin = "" if self._at_start else "\n"
        self._write(f"{begin}trmcloud: {text}\n".encode())
        self._at_start = True

    def close(self, wait_s: float) -> None:
        """Once the command has ended; a child of its that holds the pipe open is waited for no
        longer than ``wait_s``."""
        self._thread.join(wait_s)
        self._receive(self._half_mark)
        if self._rest:
            self._add(self._rest)
            self._rest = b""
        if self._left_out:
            told = f"\ntrmcloud: {self._left_out} bytes of log are left out here; it ended so:\n"
            self._write(told.encode() + self._tail, always=True)

    def _drain(self) -> None:
        while True:
            try:
                chunk = os.read(self._source, _CHUNK)
            except OSError:
                return
            if not chunk:
                return
            size, chunk = len(chunk), self._half_mark + chunk
            half = _HALF_MARK.search(chunk) if MARK_END in chunk else None
            cut = half.start() if half and not _MARK.search(chunk, half.start()) else len(chunk)
            self._half_mark = chunk[cut:]
            at = 0
            for mark in _MARK.finditer(chunk) if MARK_END in chunk else ():
                self._receive(chunk[at : mark.start()])
                self._lines.append((time.time(), mark[0]))
                at = mark.end()
            self._receive(chunk[at:cut])
            if size < _LITTLE:
                time.sleep(_LET_GATHER_S)

    def _receive(self, chunk: bytes) -> None:
        if chunk:
            self._keep(chunk)
            self._split(chunk)

    def _keep(self, chunk: bytes) -> None:
        kept, beyond = chunk[: self._room], chunk[self._room :]
        if kept:
            self._room -= len(kept)
            self._write(kept, always=True)
            self._at_start = kept.endswith(b"\n")
        if beyond:
            self._left_out += len(beyond)
            self._tail = (self._tail + beyond)[-_TAIL_BYTES:]

    def _split(self, chunk: bytes) -> None:
        parts = _ENDS.split(chunk)
        if len(parts) == 1:
            if not self._skips:
                self._rest += chunk
        else:
            first, *between, last = parts
            if not self._skips:
                self._add(self._rest + first)
            for line in between:
                self._add(line)
            self._rest, self._skips = last, False
        if len(self._rest) > MOST_LINE_CHARS:
            # One without an end: its beginning is looked at, and the rest passed over.
            self._add(self._rest)
            self._rest, self._skips = b"", True

    def _add(self, line: bytes) -> None:
        if line.strip():
            self.lines_seen += 1
            self._lines.append((time.time(), line[:MOST_LINE_CHARS]))

    def _write(self, text: bytes, *, always: bool = False) -> None:
        if not always and self._room < len(text):
            return
        view = memoryview(text)
        while view:
            try:
                view = view[os.write(self._target, view) :]
            except OSError:
                return  # a full disk must not stop the command


# Numbers in what a command says: lines of JSON and of Python's dicts, ``key=value``,
# ``key: value``, tables, and a pattern of the user's.
#
# A pattern may go back over a line for ever. Python's ``re`` looks for signals while it does, so
# an alarm ends it; one that needed several is asked no more.

MOST_STEP = 99_999_999
_MOST_METRICS = 64
_STEP_KEYS = ("step", "global_step", "iter", "iteration")
_NUMBER = (
    r"[-+]?(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?(?![0-9,])|[0-9]+,[0-9]+(?![0-9.,])"
    r"|[0-9]+\.[0-9]*|[0-9]+(?![0-9]*,[0-9])|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?(?:nan|inf(?:inity)?)\b"
)
_THOUSANDS = re.compile(r"[-+]?[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_WHOLE = (
    r"([0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,8})(?![0-9]|\.[0-9]*[1-9]"
    r"|\s?(?:ms|us|\u00b5s|ns|s|secs?|seconds|mins?|minutes|h|hours|%|it/s|s/it)(?![A-Za-z0-9]))"
)
"""A whole number, unless a unit follows: "Step: 27ms" is no step."""
_STEP = re.compile(
    r"\b(?P<counter>global_step|(?:num_|total_)?timestep|num_update|step|iteration|iter)s?\b"
    r"[\s:=\[('\"|]{0,6}" + _WHOLE + r"|^\[?([0-9]{1,8})[\]:]\s",  # XGBoost and LightGBM; CatBoost
    re.I,
)
_BAR = re.compile(r"^(?:[0-9]{1,3}%\|[^|]*\|\s*)?([0-9]{1,8})/([0-9]{1,8})\s\[[0-9]+:[0-9]{2}")
"""tqdm's bar without a description: that of a loop over steps. Others (``Map: …``, ``Epoch 3: …``)
have one."""
_REDRAWN = re.compile(r"[0-9]{1,3}%\|")
_COUNTERS = {"iteration": "iter", "global_step": "step"}
"""Other words for the same counter."""
_PLACEHOLDER = re.compile(r"\b0%\|[^|]*\|\s*0/|\b0/[0-9]+\s\[0+:00[<,]")
"""A progress bar before its first step: its numbers are none yet."""
_TRAINED_ON = re.compile(r"\b(?:train|training)\b", re.I)
_HELD_OUT = re.compile(r"\b(?:val|valid|validation|eval|evaluation|test|testing|dev)\b", re.I)
_POSITION = re.compile(r"[0-9]\s*/\s*[0-9]")
_BATCH = re.compile(
    r"\b(?:val|valid|validation|eval|evaluation|test|testing)\b[\s:\[(-]{0,6}[0-9]+\s*/\s*[0-9]",
    re.I,
)
"""``Test: [2/3]``: the numbers that follow are of one batch, or of those up to it."""
_SPLIT = re.compile(r"(?:^|[^a-z])(?:train|val|eval|test|dev|held)", re.I)
"""In a metric's own name."""
_EPOCH = re.compile(r"\bepochs?\b['\"]?[\s:=\[(|'\"]{0,6}" + _WHOLE, re.I)
_PAIR = re.compile(
    r"['\"]?([A-Za-z_][A-Za-z0-9_./@-]{0,79})['\"]?\s*(?:=|:|\|)\s*['\"]?(?:" + _NUMBER + ")", re.I
)
_WORDS = re.compile(
    r"((?<![a-z])[a-z]+ (?:loss|acc|accuracy|ppl|perplexity|bpb|error|score|f1|reward))\s+(?:"
    + _NUMBER
    + ")",
    re.I,
)
_AT = re.compile(r"([A-Za-z]{1,20}@[0-9]{1,4})\s+(?:" + _NUMBER + ")")
"""``Acc@1 62.5`` and ``Recall@10 0.4``."""
_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x08")
"""Colours, movements of the cursor and backspaces, as progress bars write them."""
_CELLS = re.compile(r"\s*\|\s*|\t+|\s{2,}|\s+")
_SETTINGS = re.compile(r"[=:]\s*(?:True|False|None)\b")
_MOST_KEYS = 64
_KEYS_FROM = 2000
"""Lines in which every key is looked for; of those that come later, one in fifty."""


class Reading(Value):
    """The content of a line: a step and an epoch where it names them, and numbers, NaN and infinity
    among them. ``at``: when it was written, epoch seconds, where that is known; ``state``: of the
    weights that the numbers are of, where that is known."""

    step: int | None
    metrics: Mapping[str, float]
    epoch: int | None = None
    at: float | None = None
    by_bar: bool = False
    """The step is that of a progress bar, which is redrawn between other lines as well."""
    state: WeightsState | None = None
    source: int = TEXT
    counter: str = ""
    """The word that the line has before the number of its step."""
    is_redrawn: bool = False
    """It is a state of a progress bar with a description."""


class _Bars:
    """Steps by the progress bars of a log, in which evaluations have bars of their own.

    The first one is followed; if it starts again with the same total, steps are added up. Another
    one takes its place only if it has more steps and the one before was complete."""

    def __init__(self) -> None:
        self._total = self._done = self._before = 0

    def step(self, text: str) -> int | None:
        """None where it is no bar, another one, or one that has not advanced."""
        found = _BAR.search(text)
        if found is None:
            return None
        done, total = int(found.group(1)), int(found.group(2))
        if not total > 0 or done > total:
            return None
        if total != self._total:
            if self._total and not (self._done == self._total < total):
                return None
            self._total, self._done, self._before = total, 0, 0
        elif done < self._done == self._total:
            self._before += self._total
        self._done = done
        return self._before + done or None


class _TooLong(Exception):
    pass


class Readings:
    """Reads lines for one command. In the main thread alone, whose alarm it uses."""

    def __init__(self, command: Command) -> None:
        self._name = command.metric_name
        self._pattern = re.compile(command.metric) if command.is_pattern else None
        self._by_name = None if command.is_pattern else pattern_of(command.metric)
        self._hint = plain_name(self._name)[-4:]
        self._columns: tuple[int, int] | None = None
        self._rows, self._first_row = 0, 0.0
        self.late: Reading | None = None
        """The first row of a table, once the second has shown that it is one; whoever reads it sets
        it to None."""
        self.counters: set[str] = set()
        """The words that the log has before numbers of steps."""
        self._evaluates = False
        """Whether the last line with the metric was of a batch of a held-out split."""
        self._strikes = 0
        self._lines = 0
        self._bars: _Bars | None = _Bars()
        """None once the log has named steps by itself."""
        self.keys: dict[str, int] = {}
        """The names of numbers seen so far, and how often each was noticed."""
        if self._pattern is not None:
            signal.signal(signal.SIGALRM, _ring)  # once: a script may print thousands of lines

    @property
    def gave_up(self) -> bool:
        """Whether the pattern took too long too often."""
        return self._strikes >= PATTERN_STRIKES

    def read(self, line: bytes) -> Reading | None:
        """None where it says nothing of use."""
        text = _STYLE.sub("", line.decode("utf-8", "replace")).strip()
        if text.startswith("{") and (reading := of_json(text.encode())) is not None:
            self.note_keys(reading.metrics)
            if reading.step is not None:
                self._bars = None
            return self._named(reading)
        if self._bars is not None and (step := self._bars.step(text)) is not None:
            return Reading(step, {}, by_bar=True)
        self._lines += 1
        if is_of_settings(text):
            return None
        is_text = "\ufffd" not in text  # or every letter before a digit were a name
        if is_text and (self._lines <= _KEYS_FROM or self._lines % 50 == 0):
            words = (found["counter"] for found in _STEP.finditer(text))
            self.counters |= {_COUNTERS.get(word.lower(), word.lower()) for word in words if word}
            self.note_keys(_PAIR.findall(text) + _WORDS.findall(text) + _AT.findall(text))
        metrics = {}
        value, source = self._value_in(text)
        if value is not None and not _PLACEHOLDER.search(text):
            metrics[self._name] = value
        if self._name != "loss" and (loss := _LOSS.search(text)) is not None:
            metrics["loss"] = number_of(loss.group(1) or loss.group(2))
        step, counter = step_of(text)
        epoch = mark_of(_EPOCH, text)
        if step is not None:
            self._bars = None
        if not metrics and step is None and epoch is None:
            return None
        is_redrawn = _REDRAWN.search(text) is not None
        return Reading(step, metrics, epoch, source=source, counter=counter, is_redrawn=is_redrawn)

    def read_events(self, reading: Reading) -> Reading:
        """The same for numbers of TensorBoard's files."""
        self.note_keys(reading.metrics)
        return self._named(reading)

    def note_keys(self, names: Iterable[str]) -> None:
        for name in names:
            if name.endswith(".py"):
                continue  # of a warning, before the number of its line
            if name not in self.keys and len(self.keys) >= _MOST_KEYS:
                once = next((key for key, count in self.keys.items() if count == 1), None)
                if once is None:
                    continue
                del self.keys[once]
            self.keys[name] = self.keys.get(name, 0) + 1

    def _named(self, reading: Reading) -> Reading:
        """With the metric under its own name where it is spelt another way: ``val/loss``."""
        name = self._name
        if not name or name in reading.metrics:
            return reading
        wanted = plain_name(name)
        alike = {key: plain_name(key) for key in reading.metrics}
        same = [key for key, plain in alike.items() if plain == wanted]
        same = same or [key for key, plain in alike.items() if plain.endswith(f"_{wanted}")]
        if len(same) != 1:
            return reading  # of two that end alike, none is meant
        metrics = {**reading.metrics, name: reading.metrics[same[0]]}
        return replace(reading, metrics=metrics)

    def _value_in(self, text: str) -> tuple[float | None, int]:
        """Return the metric's value in a line, and its source by the split that the line names."""
        if self._by_name is None:
            return self._by_pattern(text), TEXT
        if self._hint in plain_name(text[-400:]) or self._hint in plain_name(text[:4000]):
            found = [
                (self._split(text[: each.start()]), -at, each.group(1) or each.group(2))
                for at, each in enumerate(self._by_name.finditer(text))
            ]
            if found:
                source, _, value = max(found)
                return number_of(value), self._of_batch_or_all(text, source)
            self._note_header(text)
        elif self._columns is not None:
            return self._in_table(text), TEXT
        return None, TEXT

    def _of_batch_or_all(self, text: str, source: int) -> int:
        """The source of a line's value. After the lines of an evaluation's batches, one without a
        step, an epoch or a place in a loop is their mean, although it does not name the split."""
        is_of_batch = _BATCH.search(text) is not None
        if is_of_batch and source == OF_HELD_OUT:
            source = OF_BATCH
        has_place = any(pattern.search(text) for pattern in (_POSITION, _STEP, _EPOCH))
        if self._evaluates and source == TEXT and not has_place:
            source = OF_HELD_OUT
        self._evaluates = is_of_batch
        return source

    def _split(self, before: str) -> int:
        """The split that the text before a metric's name names last; none where the name itself
        has one."""
        if _SPLIT.search(self._name):
            return TEXT
        named = [
            (found.start(), source)
            for source, words in ((OF_TRAINING, _TRAINED_ON), (OF_HELD_OUT, _HELD_OUT))
            for found in words.finditer(before)
        ]
        return max(named, default=(0, TEXT))[1]

    def _note_header(self, text: str) -> None:
        """A line of names, one of which is the metric's: rows of numbers may follow. A printed
        configuration ("monitor: val_loss") is none."""
        cells = [cell for cell in _CELLS.split(text) if cell]
        wanted = plain_name(self._name)
        self._rows = 0
        if len(cells) > 1 and not any(_is_number(cell) or cell[-1] in ":=" for cell in cells):
            places = [n for n, cell in enumerate(cells) if plain_name(cell) == wanted]
            self._columns = (places[0], len(cells)) if places else None

    def _in_table(self, text: str) -> float | None:
        assert self._columns is not None
        place, count = self._columns
        cells = [cell for cell in _CELLS.split(text) if cell]
        if len(cells) == count and _is_number(cells[place]):
            value, self._rows = number_of(cells[place]), self._rows + 1
            if self._rows == 1:
                self._first_row = value
                return None  # one row may be anything
            if self._rows == 2:
                self.late = Reading(None, {self._name: self._first_row})
            return value
        if not text.strip("-=+|: "):
            return None  # a rule between header and rows
        self._columns = None if len(cells) != count else self._columns
        return None

    def _by_pattern(self, text: str) -> float | None:
        if self._pattern is None or self.gave_up:
            return None
        try:
            with _alarm(MOST_PATTERN_S):
                found = self._pattern.search(text)
        except _TooLong:
            self._strikes += 1
            return None
        said = (found.group(1) if found else None) or ""
        try:
            return float(said.rstrip(".,")[:40].replace(",", ""))
        except ValueError:
            return None


def is_of_settings(text: str) -> bool:
    """Whether a line lists settings, as a script prints its arguments before it starts: their
    numbers are no metrics."""
    if text.startswith("Namespace("):
        return True
    return len(text) > 80 and len(_SETTINGS.findall(text)) > 2


def plain_name(name: str) -> str:
    """``val_loss`` of ``val/loss``, ``Val-Loss`` and ``val loss``."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def pattern_of(metric: str) -> re.Pattern[str] | None:
    """The pattern that finds a metric in text by its name; one of its two groups is the value.
    ``val_loss`` is found in ``val loss 2.5``, ``'val_loss': '2.5'``, ``val-loss=2.5`` and
    ``| val/loss | 2.5 |``."""
    words = [re.escape(word) for word in re.split(r"[^A-Za-z0-9']+", metric) if word]
    if not words:
        return None
    name = r"(?<![A-Za-z0-9_/.@-])" + r"[\s_/.@-]{0,2}".join(words) + r"['\"]?"
    told = r"\s*[:=|(\[]\s*['\"(\[]?(" + _NUMBER + ")"
    # Of a single word before a blank, the one of "train loss 2.4" would be another metric's.
    alone = r"(?<![a-z] )" if len(words) == 1 else ""
    return re.compile(f"{name}{told}|{alone}{name}\\s+({_NUMBER})", re.I)


_LOSS = pattern_of("loss") or re.compile("$^")


def number_of(text: str) -> float:
    """Of "1,250" thousands are divided; "0,25" has a decimal comma."""
    return float(text.replace(",", "" if _THOUSANDS.fullmatch(text) else "."))


def step_of(text: str) -> tuple[int | None, str]:
    """Return the step that a line names, and the word of its counter; "" where it has none."""
    found = _STEP.search(text)
    if found is None:
        return None, ""
    number = next(filter(None, (found[2], found[3])))
    counter = (found["counter"] or "").lower()
    return int(number.replace(",", "")), _COUNTERS.get(counter, counter)


def mark_of(pattern: re.Pattern[str], text: str) -> int | None:
    """The whole number that ``pattern`` finds in its one group, or in the other one."""
    found = pattern.search(text)
    said = next(filter(None, found.groups()), None) if found else None
    return int(said.replace(",", "")) if said else None


def _is_number(cell: str) -> bool:
    return re.fullmatch(_NUMBER, cell, re.I) is not None


def of_json(line: bytes) -> Reading | None:
    """Parse a line of JSON; None where it is none, or no object."""
    try:
        said = parse(line, MAX_LINE_BYTES)
    except ContractError:
        return None
    return of_object(said) if isinstance(said, dict) else None


def of_object(said: Mapping[str, Any]) -> Reading:
    numbers = dict(said)
    for key, inner in list(said.items())[:_MOST_METRICS]:
        if isinstance(inner, dict):
            prefix = "" if key == "metrics" else f"{key}/"
            numbers |= {f"{prefix}{name}": value for name, value in inner.items()}
    step = next((s for key in _STEP_KEYS if (s := whole_step(numbers.get(key))) is not None), None)
    metrics = {
        key[:80]: number_of(value) if isinstance(value, str) else float(value)
        for key, value in list(numbers.items())[:_MOST_METRICS]
        if key not in _STEP_KEYS
        and (_is_number(value[:40]) if isinstance(value, str) else type(value) in (int, float))
    }
    return Reading(step, metrics, whole_step(numbers.get("epoch")))


def whole_step(value: Any) -> int | None:
    """A step, where a value that somebody else gave is one."""
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= MOST_STEP else None


def _ring(signum: int, frame: FrameType | None) -> None:
    raise _TooLong


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


# Files of logs that a script writes beside its checkpoints.

LOOK_EVERY_S = 5.0
_LOOK_SHARE = 0.005
"""The share of a processor that looking for files may take: in a tree of many folders it is done
seldom."""
_MOST_FOLDERS = 2000


def find_files(work: Path, is_wanted: Callable[[str], bool], most_files: int) -> Iterator[Path]:
    """Find regular files below ``work`` by their names, at most ``most_files``, in the order of
    their names: folders that are links are not entered."""
    pending, folders, found = [(work, 0)], 0, 0
    while pending and folders < _MOST_FOLDERS:
        folder, depth = pending.pop()
        folders += 1
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            if is_wanted(entry.name) and entry.is_file(follow_symlinks=False):
                found += 1
                yield Path(entry.path)
                if found == most_files:
                    return
            elif depth < MOST_DEPTH and entry.is_dir(follow_symlinks=False):
                pending.append((Path(entry.path), depth + 1))


class LogFiles:
    """The files of ``find_files``, looked for when this is made and then now and then.

    ``used_s``: the processor time of this thread, in seconds."""

    def __init__(
        self,
        work: Path,
        is_wanted: Callable[[str], bool],
        most_files: int,
        used_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._find = functools.partial(find_files, work, is_wanted, most_files)
        self._used_s = used_s
        self._looked_at = -math.inf
        self._look_s = 0.0
        self._look()

    def as_of(self, now: float, every_s: float) -> list[Path]:
        """Return the files as of the last look, which is repeated after ``every_s`` seconds, or
        later where that would take more than a small share of a processor."""
        if now - self._looked_at >= max(every_s, self._pause_s):
            self._looked_at = now
            self._look()
        return self.paths

    def _look(self) -> None:
        began = self._used_s()
        self.paths = list(self._find())
        # One slow look, as the first or a disturbed one is, is not the measure of the next pause.
        before_s, self._look_s = self._look_s, self._used_s() - began
        self._pause_s = min(before_s, self._look_s) / _LOOK_SHARE


# Numbers in TensorBoard's event files, as they grow: what many a script writes anyway.
#
# A file is a row of records: 8 bytes of length, 4 of their checksum, the data, 4 of its checksum
# (TFRecord). Each is an ``Event`` of TensorBoard's event.proto, of which the step and the scalars
# are read, and nothing else. A file is never trusted: its length, names and numbers are bounded.

_NAME = "events.out.tfevents."
_MOST_FILES = 64
_MOST_READ = 1 << 20
"""Of one file at once; a record that is longer, as one of pictures is, is passed over."""
_MOST_VALUES = 64
_MOST_TAG = 80
_FRAME = 12
_CHECKSUM = 4
_MOST_RECORD = 1 << 31
_SCALARS = {1: "<f", 2: "<d"}
"""TensorProto's dtype → how one number of it is packed."""

Field = tuple[int, int, bytes]
"""A field's number, what it holds where that is a whole number, and its bytes where it has any."""


class EventFiles:
    """Those below ``work`` that come after this was made: what stands there already is of a run
    before, and so is whatever it held by then."""

    def __init__(self, work: Path) -> None:
        self._files = LogFiles(work, lambda name: name.startswith(_NAME), _MOST_FILES)
        self._read: dict[Path, int] = {path: _size(path) for path in self._files.paths}
        self.seen = 0
        """The number of events: a sign that the command makes progress."""

    def take(self, now: float) -> list[Reading]:
        """Return the readings written since the last call; ``now`` in seconds of a steady clock."""
        files = self._files.as_of(now, LOOK_EVERY_S)
        return [reading for path in files for reading in self._grown(path)]

    def _grown(self, path: Path) -> Iterator[Reading]:
        at = self._read.get(path, 0)
        text = read_part(path, _MOST_READ, at)
        begin = 0
        while len(text) - begin >= _FRAME:
            length = int.from_bytes(text[begin : begin + 8], "little")
            if length > _MOST_RECORD:
                self._read[path] = 1 << 62  # no such file: it is not looked into again
                return
            end = begin + _FRAME + length + _CHECKSUM
            if end > len(text):
                if begin == 0 and len(text) == _MOST_READ:
                    begin = end
                break
            if (reading := reading_of(text[begin + _FRAME : end - _CHECKSUM])) is not None:
                self.seen += 1
                yield reading
            begin = end
        self._read[path] = at + begin


def reading_of(event: bytes) -> Reading | None:
    """The step and scalars of one ``Event``; None where it has none, or is damaged."""
    step, metrics, at = 0, dict[str, float](), None
    try:
        for number, whole, inner in _fields(event):
            if number == 1 and len(inner) == 8:
                at = struct.unpack("<d", inner)[0]
            elif number == 2:
                step = whole
            elif number == 5:
                metrics.update(_values(inner))
    except (ValueError, IndexError, struct.error):
        return None
    return Reading(whole_step(step), metrics, None, at) if metrics else None


def _values(summary: bytes) -> Iterator[tuple[str, float]]:
    for count, (number, _, value) in enumerate(_fields(summary)):
        if number != 1 or count >= _MOST_VALUES:
            continue
        tag, found = "", None
        for inner, _, content in _fields(value):
            if inner == 1:
                tag = content.decode("utf-8", "replace")[:_MOST_TAG]
            elif inner == 2 and len(content) == 4:
                found = struct.unpack("<f", content)[0]
            elif inner == 8:
                found = _scalar(content)
        if tag and found is not None:
            yield tag, float(found)


def _scalar(tensor: bytes) -> float | None:
    """Of a ``TensorProto`` that holds one number: its dtype is field 1, its content 4, 5 or 6."""
    form = ""
    for number, whole, content in _fields(tensor):
        if number == 1:
            form = _SCALARS.get(whole, "")
        elif number in (4, 5, 6) and form and len(content) == struct.calcsize(form):
            return float(struct.unpack(form, content)[0])
    return None


def _fields(message: bytes) -> Iterator[Field]:
    """Protocol Buffers' wire format: a varint of number and type, then what the type says."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind, whole, content = key & 7, 0, b""
        if kind == 0:
            whole, at = _varint(message, at)
        else:
            if kind == 2:
                length, at = _varint(message, at)
            elif kind in (1, 5):
                length = 8 if kind == 1 else 4
            else:
                raise ValueError("no wire type of today")
            content, at = message[at : at + length], at + length
            if at > len(message):
                raise ValueError("cut off")
        yield key >> 3, whole, content


def _varint(message: bytes, at: int) -> tuple[int, int]:
    whole = shift = 0
    while True:
        byte = message[at]
        whole |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return whole, at
        if shift > 63:
            raise ValueError("a number without an end")


def _size(path: Path) -> int:
    try:
        about = os.lstat(path)
    except OSError:
        return 0
    return about.st_size if stat.S_ISREG(about.st_mode) else 0
