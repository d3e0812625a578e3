"""Examples of a task's file, and the token ids that ask a model one of them.

Rendered as by nanochat's ``core_eval.py`` (92d63d4), to the character: the examples are shuffled by
``Random(1337)`` and then cut to a limit; example i is asked behind ``shots`` others that
``Random(1234 + i)`` samples. Solved examples end with an empty line. Every prompt begins with the
special id, and one that is longer than the model's sequence loses its beginning.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from model.data.tokenizers import TextTokenizer
from trmcloud.core.catalog.eval_tasks import CHOICE, LANGUAGE, SCHEMA, EvalTask
from trmcloud.core.errors import DataError, UsageError

_SHUFFLE_SEED, _SHOTS_SEED = 1337, 1234
_BEHIND_A_SHOT = "\n\n"


@dataclass(frozen=True)
class Item:
    """One example: ``contexts`` and ``answers``, of which one or the other has several.

    ``gold``: which of them is right; 0 where there is one of each.
    """

    contexts: tuple[str, ...]
    answers: tuple[str, ...]
    gold: int = 0

    @property
    def context(self) -> str:
        """The context in which it is solved."""
        return self.contexts[self.gold if len(self.contexts) > 1 else 0]

    @property
    def answer(self) -> str:
        return self.answers[self.gold if len(self.answers) > 1 else 0]


class Row(NamedTuple):
    """A text to be scored: ``ids[start:end]`` by the ids before each."""

    ids: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Prompt:
    """The rows of one example; an example with no rows cannot be asked."""

    rows: tuple[Row, ...]
    gold: int
    cropped: bool = False
    """Whether a row lost its beginning."""


def read_items(task: EvalTask, path: Path, limit: int = 0) -> list[Item]:
    """The examples of a task's file, of a task without a conversation, in the order in which they
    are asked, the first ``limit`` of them where that is not 0. Empty lines are no examples.

    Raises:
        DataError: the file cannot be read, or a line is no example of the task.
        UsageError: there are too few examples to be solved before each.
    """
    items = [_item(task, row) for row in json_rows(path)]
    if len(items) <= task.shots:
        raise DataError(
            f"it has {len(items):,} examples; {task.name} needs more than {task.shots}",
            where=str(path),
        )
    random.Random(_SHUFFLE_SEED).shuffle(items)
    if limit and limit <= task.shots:
        raise UsageError(
            f"{task.name} solves {task.shots} examples before each: a limit of {limit} is too low",
            next_step=f"--limit {task.shots + 1}",
        )
    return items[:limit] if limit else items


class Fields:
    """The fields of one example, each of the kind that it must have."""

    def __init__(self, content: Mapping[str, Any], where: str) -> None:
        self._content, self.where = content, where

    def has(self, name: str) -> bool:
        return name in self._content

    def text(self, name: str) -> str:
        value = self._content.get(name)
        if not isinstance(value, str):
            raise self.refuse(f"the example has no text {name!r}")
        return value

    def texts(self, name: str, least: int = 2) -> tuple[str, ...]:
        value = self._content.get(name)
        if (
            not isinstance(value, list)
            or len(value) < least
            or not all(isinstance(each, str) for each in value)
        ):
            raise self.refuse(f"the example has no list of texts {name!r}")
        return tuple(value)

    def number(self, name: str, below: int) -> int:
        value = self._content.get(name)
        if type(value) is not int or not 0 <= value < below:
            raise self.refuse(f"the example's {name!r} is no number from 0 to {below - 1}")
        return value

    def within(self, name: str) -> Fields:
        value = self._content.get(name)
        if not isinstance(value, dict):
            raise self.refuse(f"the example has no object {name!r}")
        return Fields(value, self.where)

    def refuse(self, what: str) -> DataError:
        return DataError(what, where=self.where)


def json_rows(path: Path) -> Iterator[Fields]:
    """The objects of a file of JSON lines. Empty lines are none.

    Raises:
        DataError: the file cannot be read, or a line is no JSON object.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _fields(line, f"{path}:{number}")
    except OSError as error:
        raise DataError((error.strerror or "unreadable").lower(), where=str(path)) from None
    except UnicodeDecodeError:
        raise DataError("the file is not UTF-8", where=str(path)) from None


def _fields(line: str, where: str) -> Fields:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        raise DataError("the line is not JSON", where=where) from None
    if not isinstance(content, dict):
        raise DataError("the line is not a JSON object", where=where)
    return Fields(content, where)


def make_prompts(
    task: EvalTask,
    items: Sequence[Item],
    numbers: Sequence[int],
    tokenizer: TextTokenizer,
    sequence: int,
) -> list[Prompt]:
    """The prompts of the examples with these numbers, for a model of ``sequence`` tokens."""
    rendered = [render(task, items, number) for number in numbers]
    flat = [text for texts in rendered for text in texts]
    every = iter(_encode(tokenizer, flat))
    made = []
    for number, texts in zip(numbers, rendered, strict=True):
        encoded = [next(every) for _ in texts]
        made.append(_prompt(task, items[number].gold, encoded, sequence))
    return made


def render(task: EvalTask, items: Sequence[Item], number: int) -> list[str]:
    """The texts that ask one example: one of each choice or context; of a continuation that must
    be predicted, the text before it and the whole."""
    trimmed = task.kind == LANGUAGE
    shots = "".join(
        (item.context.strip() if trimmed else item.context)
        + task.delimiter
        + item.answer
        + _BEHIND_A_SHOT
        for item in (items[other] for other in shot_numbers(number, len(items), task.shots))
    )
    asked = items[number]
    if trimmed:
        before = f"{shots}{asked.context.strip()}{task.delimiter}"
        # A space at its end would be a token of its own here, and part of the next one there.
        return [before.strip(), before + asked.answer]
    return [
        f"{shots}{context}{task.delimiter}{answer}"
        for context in asked.contexts
        for answer in asked.answers
    ]


def shot_numbers(number: int, count: int, shots: int) -> list[int]:
    """Which of ``count`` examples are solved before the one with this number."""
    if not shots:
        return []
    chosen = random.Random(_SHOTS_SEED + number).sample(range(count - 1), shots)
    return [other + (other >= number) for other in chosen]


def common_length(sequences: Sequence[Sequence[int]], *, at_end: bool = False) -> int:
    """The number of ids in which all sequences agree, from their beginning or to their end."""
    least, most = 0, min(map(len, sequences))
    while least < most:
        tried = (least + most + 1) // 2
        ends = [each[len(each) - tried :] if at_end else each[:tried] for each in sequences]
        if all(each == ends[0] for each in ends):
            least = tried
        else:
            most = tried - 1
    return least


def _prompt(
    task: EvalTask, gold: int, encoded: Sequence[tuple[int, ...] | None], sequence: int
) -> Prompt:
    every = [ids for ids in encoded if ids is not None]
    if len(every) < len(encoded):
        return Prompt((), gold)
    if task.kind == LANGUAGE:
        _, whole = every
        # Where the text before is no beginning of the whole in ids, what differs is predicted.
        rows = [Row(whole, common_length(every), len(whole))]
    elif task.kind == CHOICE:
        start = common_length(every)
        rows = [Row(ids, start, len(ids)) for ids in every]
    else:
        length = common_length(every, at_end=True)
        rows = [Row(ids, len(ids) - length, len(ids)) for ids in every]
    cut = tuple(crop(row, sequence) for row in rows)
    cropped = any(len(row.ids) > sequence for row in rows)
    # Without an id before it, nothing predicts the first one.
    return Prompt(cut if all(row.start >= 1 for row in cut) else (), gold, cropped)


def crop(row: Row, sequence: int) -> Row:
    """The row without its beginning, where it has more ids than ``sequence``."""
    over = max(0, len(row.ids) - sequence)
    return Row(row.ids[over:], row.start - over, row.end - over)


def _encode(tokenizer: TextTokenizer, texts: Sequence[str]) -> Iterable[tuple[int, ...] | None]:
    """The ids of each text behind the special one; None where a character has no id."""
    try:
        encoded: list[Any] = list(tokenizer.encode(texts, ["a prompt"] * len(texts)))
    except DataError:
        encoded = [_encode_one(tokenizer, text) for text in texts]
    return [None if ids is None else (tokenizer.bos, *ids.tolist()) for ids in encoded]


def _encode_one(tokenizer: TextTokenizer, text: str) -> Any:
    try:
        return tokenizer.encode([text], ["a prompt"])[0]
    except DataError:
        return None


def _item(task: EvalTask, row: Fields) -> Item:
    """
    Raises:
        DataError: the row is no example of the task.
    """
    if task.kind == LANGUAGE:
        item = Item((row.text("context"),), (row.text("continuation"),))
        if not item.answer.strip():
            raise row.refuse("the example's 'continuation' is empty")
        return item
    contexts: tuple[str, ...]
    answers: tuple[str, ...]
    if task.kind == SCHEMA:
        contexts, answers = row.texts("context_options"), (row.text("continuation"),)
    else:
        contexts, answers = (row.text("query"),), row.texts("choices")
    return Item(contexts, answers, row.number("gold", max(len(contexts), len(answers))))
