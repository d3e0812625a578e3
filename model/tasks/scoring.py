"""The score of a model on a suite of tasks, by one process or by all ranks of a training.

Rows of several examples go through the model together, the longest first, each padded behind its
end, where a model that predicts the next token does not look. Lengths are rounded up, so that a
model sees few shapes. The ranks take the examples in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from model.data.chat import ChatTokens
from model.data.tokenizers import TextTokenizer
from model.families.protocol import LanguageModel
from model.machine.distributed import World
from model.tasks.conversations import are_answered, letter_prompts, read_conversations
from model.tasks.files import find_files
from model.tasks.prompts import Item, Prompt, Row, make_prompts, read_items
from model.training.sharding import free_gathered_rows
from trmcloud.core.catalog.eval_tasks import (
    ANSWER,
    CHAT_KINDS,
    LANGUAGE,
    LETTER,
    EvalTask,
    LeftOut,
    Suite,
    SuiteResult,
    TaskScore,
)
from trmcloud.core.errors import UsageError

ROUND = 256
"""Examples of one rank that are rendered, sorted and scored at a time."""
LENGTHS = 64
"""Rows are padded to a multiple of it."""
_LOOKED_AT = 64
"""Examples of a task of which one prompt must fit in the model's sequence."""
_NO_TIME = "no time was left"


class _Batch(NamedTuple):
    """Rows (B, T) to score, and where each one's answer is."""

    ids: Tensor
    spans: Sequence[tuple[int, int]]


class Outcomes(NamedTuple):
    """What came of each example of one rank, by its number: asked or not, and right or wrong."""

    correct: Mapping[int, bool]
    cropped: int
    not_asked: int


def evaluate_suite(
    model: LanguageModel,
    tokenizer: TextTokenizer,
    suite: Suite,
    folder: Path,
    *,
    limit: int = 0,
    world: World,
    batch: int,
    until: Callable[[], bool] | None = None,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    told: Callable[[TaskScore | LeftOut], None] = lambda score: None,
) -> SuiteResult:
    """Score ``model`` on each task of ``suite`` whose file is in ``folder``.

    A collective call: every rank gets the same result. Nothing is asked before every file is read
    and the model is known to fit.

    Args:
        limit: only the first N examples of each task; 0: all.
        batch: rows of the model's whole sequence that one pass has room for; of shorter ones it
            takes more.
        until: whether to stop, asked before each round of examples; the task that is under way and
            those behind it are left out then.
        told: is called with each task once it is done or left out.

    Raises:
        UsageError: the model does not predict the next token, or fits no prompt or tokenizer.
        DataError: a file is not the one that the suite names, or no task's file is there.
    """
    check_model(model, tokenizer, suite)
    found, missing = find_files(suite, folder)
    examples = {task: read_examples(task, path, limit) for task, path in found.items()}
    check_length(model, tokenizer, examples)
    scores: list[TaskScore] = []
    left_out: list[LeftOut] = []
    stopped = False
    with _uncompiled(model):
        for task in suite.tasks:
            score: TaskScore | LeftOut | None = None
            if task in missing:
                score = LeftOut(task.name, missing[task])
            elif not stopped:
                score = score_task(
                    *(model, tokenizer, task, examples[task], world),
                    batch=batch,
                    until=until,
                    autocast=autocast,
                )
                stopped = score is None
            if score is None:
                score = LeftOut(task.name, _NO_TIME)
            told(score)
            if isinstance(score, TaskScore):
                scores.append(score)
            else:
                left_out.append(score)
    free_gathered_rows(model)
    return SuiteResult(
        *(suite.name, suite.title, tuple(scores), tuple(left_out), limit, suite.reference)
    )


def read_examples(task: EvalTask, path: Path, limit: int = 0) -> list[Item]:
    """See ``read_items`` and ``read_conversations``."""
    read = read_conversations if task.kind in CHAT_KINDS else read_items
    return read(task, path, limit)


def check_model(model: LanguageModel, tokenizer: TextTokenizer, suite: Suite) -> None:
    """
    Raises:
        UsageError: the model does not predict the next token, or has another tokenizer.
        DataError: the tokenizer cannot write the conversations that a task asks in.
    """
    if not model.predicts_next:
        raise UsageError(
            "the model does not predict the next token: it gives a bound over random draws, by "
            "which the choices of a task cannot be compared",
            next_step="trmcloud eval without --task gives its bits per byte",
        )
    if tokenizer.vocab_size > model.vocab_size:
        raise UsageError(
            f"the tokenizer has {tokenizer.vocab_size:,} ids, the model {model.vocab_size:,}",
            next_step="use the tokenizer that the model was trained with",
        )
    if any(task.kind in CHAT_KINDS for task in suite.tasks):
        ChatTokens.of(tokenizer)


def check_length(
    model: LanguageModel, tokenizer: TextTokenizer, examples: Mapping[EvalTask, Sequence[Item]]
) -> None:
    """
    Raises:
        UsageError: no prompt of any task fits in the model's sequence.
    """
    shortest = 0
    for task, items in examples.items():
        numbers = range(min(_LOOKED_AT, len(items)))
        for start in range(0, len(numbers), 8):
            some = numbers[start : start + 8]
            whole = _prompts(task, items, some, tokenizer, 1 << 30)
            lengths = [max(len(row.ids) for row in each.rows) for each in whole if each.rows]
            if not lengths or min(lengths) <= model.sequence:
                return
            shortest = min(shortest or min(lengths), *lengths)
    if examples:
        raise UsageError(
            f"the model's sequence of {model.sequence:,} tokens is shorter than every prompt: the "
            f"shortest has {shortest:,}",
            next_step="use a model with a longer sequence, or a task without solved examples",
        )


def score_task(
    model: LanguageModel,
    tokenizer: TextTokenizer,
    task: EvalTask,
    items: Sequence[Item],
    world: World,
    *,
    batch: int,
    until: Callable[[], bool] | None = None,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> TaskScore | None:
    """The score of one task over all ranks; None where ``until`` came first."""
    counts = torch.zeros(3, dtype=torch.float64)
    for start in range(0, len(items), ROUND * world.size):
        if until is not None and any(world.largest([int(until())])):
            return None
        numbers = range(start + world.rank, len(items), world.size)[:ROUND]
        came = outcomes(
            model, tokenizer, task, items, numbers, world, batch=batch, autocast=autocast
        )
        counts += torch.tensor(
            [sum(came.correct.values()), came.cropped, came.not_asked], dtype=torch.float64
        )
    correct, cropped, not_asked = (int(each) for each in world.total(counts))
    return TaskScore.of(task, len(items), correct, cropped, not_asked)


@torch.no_grad()
def outcomes(
    model: LanguageModel,
    tokenizer: TextTokenizer,
    task: EvalTask,
    items: Sequence[Item],
    numbers: Sequence[int],
    world: World,
    *,
    batch: int,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Outcomes:
    """Whether the model answers each of these examples rightly. All ranks take equally many passes,
    since those of a sharded model are collective."""
    if task.kind == ANSWER:
        answered = are_answered(model, tokenizer, items, numbers, world.device)
        right = {number: bool(each) for number, each in answered.items()}
        return Outcomes(right, 0, sum(each is None for each in answered.values()))
    prompts = _prompts(task, items, numbers, tokenizer, model.sequence)
    # Two choices of the same text get the same score, whatever else is in their batches.
    distinct = list(dict.fromkeys(row for prompt in prompts for row in prompt.rows))
    by_length = sorted(distinct, key=lambda row: len(row.ids), reverse=True)
    groups = list(_groups(by_length, batch, model.sequence))
    [passes] = world.largest([len(groups)])
    nothing = [Row((tokenizer.bos, tokenizer.bos), 1, 1)]
    score = _are_predicted if task.kind == LANGUAGE else _mean_nats
    values: dict[Row, float] = {}
    for number in range(passes):
        rows = groups[number] if number < len(groups) else nothing
        made = _padded(rows, tokenizer.bos, model.sequence, world.device)
        with autocast():
            values.update(zip(rows, score(model, made), strict=True))
    return Outcomes(
        {
            number: _is_right(task, prompt, [values[row] for row in prompt.rows])
            for number, prompt in zip(numbers, prompts, strict=True)
        },
        cropped=sum(prompt.cropped for prompt in prompts),
        not_asked=sum(not prompt.rows for prompt in prompts),
    )


def _prompts(
    task: EvalTask,
    items: Sequence[Item],
    numbers: Sequence[int],
    tokenizer: TextTokenizer,
    sequence: int,
) -> list[Prompt]:
    if task.kind == LETTER:
        return letter_prompts(items, numbers, tokenizer, sequence)
    if task.kind == ANSWER:
        return []
    return make_prompts(task, items, numbers, tokenizer, sequence)


def _is_right(task: EvalTask, prompt: Prompt, values: Sequence[float]) -> bool:
    if not values:
        return False
    if task.kind == LANGUAGE:
        return values[0] == 1.0
    # Of equal ones the first; NaN is never the least.
    least = min(range(len(values)), key=lambda number: (values[number] != values[number],
                                                        values[number]))  # fmt: skip
    return least == prompt.gold and values[least] == values[least]


def _groups(rows: Sequence[Row], batch: int, sequence: int) -> Iterator[Sequence[Row]]:
    """``rows``, the longest first, in groups that are no larger than ``batch`` whole sequences."""
    start = 0
    while start < len(rows):
        room = max(1, batch * sequence // _rounded(len(rows[start].ids), sequence))
        yield rows[start : start + room]
        start += room


def _rounded(length: int, sequence: int) -> int:
    return min(sequence, -(-length // LENGTHS) * LENGTHS)


def _padded(rows: Sequence[Row], pad: int, sequence: int, device: torch.device) -> _Batch:
    width = max(_rounded(len(row.ids), sequence) for row in rows)
    ids = torch.tensor([[*row.ids, *[pad] * (width - len(row.ids))] for row in rows])
    return _Batch(ids.to(device), [(row.start, row.end) for row in rows])


def _mean_nats(model: LanguageModel, batch: _Batch) -> list[float]:
    """The mean nats of each row's answer per token; infinitely many where it has no token of its
    own, so that nothing can be compared."""
    nats = model.evaluate(batch.ids, batch.ids.roll(-1, dims=1))[-1].double().cpu()
    return [
        float(nats[row, start - 1 : end - 1].mean()) if end > start else float("inf")
        for row, (start, end) in enumerate(batch.spans)
    ]


def _are_predicted(model: LanguageModel, batch: _Batch) -> list[float]:
    """1 for each row whose answer's tokens are each the likeliest one, 0 for the others."""
    right = (model.predictions(batch.ids)[:, :-1] == batch.ids[:, 1:]).cpu()
    return [
        float(right[row, start - 1 : end - 1].all()) for row, (start, end) in enumerate(batch.spans)
    ]


def _uncompiled(model: LanguageModel) -> AbstractContextManager[object]:
    """As it is where nothing of the model is compiled: a prompt has a length of its own, and each
    would be compiled for itself."""
    if any(getattr(part, "_compiled_call_impl", None) for part in model.modules()):
        eager: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
        return eager
    return nullcontext()
