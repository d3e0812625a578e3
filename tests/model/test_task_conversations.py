"""Tasks in a conversation: choices by letter, and answers that a model generates."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from model.data.chat import SPECIAL_TOKENS
from model.data.tokenizers import BpeTokenizer, CharTokenizer
from model.families.cache import Cache
from model.families.dense import Dense, Shape
from model.machine.distributed import World
from model.tasks import scoring
from model.tasks.conversations import (
    calculate,
    complete,
    final_number,
    letter_prompts,
    read_conversations,
    render_choices,
)
from model.tasks.files import find_files
from trmcloud.core.catalog.eval_tasks import SUITES, EvalTask, TaskScore, suite_of
from trmcloud.core.errors import DataError

ALONE = World(0, 1, torch.device("cpu"))
TOKENIZER = BpeTokenizer.train(["the cat sat on the mat"], 300, SPECIAL_TOKENS)
ARC = [
    {
        "id": str(number),
        "question": f"Which is {number}?",
        "choices": {"text": ["one", "two", "three", "four"], "label": list(labels)},
        "answerKey": labels[number % 4],
    }
    for number, labels in enumerate(["ABCD", "1234"] * 10)
]
MMLU = [
    {"question": f"Q{n}", "choices": ["w", "x", "y", "z"], "answer": n % 4, "subject": "s"}
    for n in range(12)
]
GSM8K = [
    {"question": f"What is {n} + {n}?", "answer": f"<<{n}+{n}={2 * n}>>\n#### {2 * n:,}"}
    for n in (1, 20, 700)
]


def ids_of(text: str) -> list[int]:
    [ids] = TOKENIZER.encode([text], [""])
    return [int(each) for each in ids]


def special(name: str) -> int:
    found = TOKENIZER.special_id(name)
    assert found is not None
    return found


def task_named(name: str) -> EvalTask:
    [task] = suite_of(name).tasks
    return task


class Scripted(Dense):
    """Says each of ``lines`` id by id where it is the one asked, then ends its message."""

    def __init__(self, lines: dict[str, list[int]], sequence: int = 512) -> None:
        super().__init__(
            Shape(vocab_size=300, depth=1, width=32, head_dim=16, sequence=sequence, norm="rms")
        )
        self.lines, self.read = lines, {}  # type: ignore[var-annotated]

    def decode(self, ids: torch.Tensor, cache: Cache) -> torch.Tensor:
        super().decode(ids, cache)  # keeps the cache as a model does
        made = torch.zeros(len(ids), 300)
        for row in range(len(ids)):
            made[row, self._next(ids[row].tolist(), row)] = 1.0
        return made

    def _next(self, new: list[int], row: int) -> int:
        if len(new) > 1:  # a beginning, which holds all that was said
            self.read[row] = list(new)
        else:
            self.read[row] = [*self.read[row], *new]
        start = special("<|assistant_start|>")
        at = self.read[row].index(start)
        asked = TOKENIZER.decode(self.read[row][:at])
        line = [*self.lines[asked], special("<|assistant_end|>")]
        return line[len(self.read[row]) - at - 1]


# -- Choices by letter ----------------------------------------------------------------------------


def test_chatcore_is_nanochats_five_tasks() -> None:
    names = [task.name for task in SUITES["chat"].tasks]
    assert names == ["chat_arc_easy", "chat_arc_challenge", "chat_mmlu", "chat_gsm8k",
                     "chat_humaneval"]  # fmt: skip


def test_files_are_read_as_they_are_published(tmp_path: Path) -> None:
    (tmp_path / "ai2_arc" / "ARC-Easy").mkdir(parents=True)
    arc = tmp_path / "ai2_arc" / "ARC-Easy" / "test-00000-of-00001.parquet"
    pq.write_table(pa.Table.from_pylist(ARC), arc)
    found, missing = find_files(SUITES["chat"], tmp_path)
    easy = task_named("chat-arc-easy")
    assert found == {easy: arc}
    assert missing[task_named("chat-humaneval")].startswith("it runs generated programs")
    items = read_conversations(easy, arc)
    assert len(items) == 20
    by_text = {item.contexts[0]: item for item in items}
    asked = render_choices("Which is 5?", ("1", "2", "3", "4"), ("one", "two", "three", "four"))
    assert by_text[asked].answers == ("1", "2", "3", "4")
    assert by_text[asked].gold == 1
    # numpy's generator, as datasets shuffles by it.
    assert read_conversations(easy, arc, 3) == items[:3]
    assert items[0].contexts[0].startswith("Multiple Choice question: Which is 15?\n- one=1\n")
    mmlu = tmp_path / "mmlu.jsonl"
    mmlu.write_text("".join(json.dumps(row) + "\n" for row in MMLU))
    item = next(
        item
        for item in read_conversations(task_named("chat-mmlu"), mmlu)
        if "Q7" in item.contexts[0]
    )
    assert (item.answers, item.gold) == (("A", "B", "C", "D"), 3)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question": "Q", "choices": ["a", "b", "c"], "answer": 0}, "has 3 choices, not 4"),
        ({"question": "Q", "choices": ["a"] * 4, "answer": 4}, "no number from 0 to 3"),
        ({"question": "Q", "answerKey": "A"}, "no object 'choices'"),
        (
            {"question": "Q", "answerKey": "E",
             "choices": {"text": ["a", "b"], "label": ["A", "B"]}},
            "'E' is no letter of a choice",
        ),
    ],
)  # fmt: skip
def test_a_row_that_is_no_example_is_named(tmp_path: Path, row: Any, said: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(MMLU[0]) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(DataError, match=said) as refused:
        read_conversations(task_named("chat-mmlu"), path)
    assert refused.value.where == f"{path}:2"


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.parquet"
    path.write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match="the file is no parquet"):
        read_conversations(task_named("chat-mmlu"), path)
    path = tmp_path / "empty.jsonl"
    path.write_text("\n")
    with pytest.raises(DataError, match="it has no example"):
        read_conversations(task_named("chat-mmlu"), path)


def test_the_likeliest_letter_is_the_answer(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in MMLU))
    task = task_named("chat-mmlu")
    items = read_conversations(task, path)
    [prompt] = letter_prompts(items, [0], TOKENIZER, 512)
    start = special("<|assistant_start|>")
    for row, letter in zip(prompt.rows, "ABCD", strict=True):
        assert row.ids[-2:] == (start, *ids_of(letter))
        assert (row.start, row.end) == (len(row.ids) - 1, len(row.ids))
    model = Dense(Shape(vocab_size=300, depth=1, width=32, head_dim=16, sequence=512, norm="rms"))
    model.initialise(0)
    assert model.head is not None
    with torch.no_grad():
        # Of the ids of letters, C is the likeliest one everywhere.
        model.head.weight.normal_(generator=torch.Generator().manual_seed(0))
        state = model._normed(model._state(torch.tensor([prompt.rows[0].ids[:-1]])))[0, -1]
        model.head.weight[ids_of("C")[0]] = state
    ids = torch.tensor([prompt.rows[0].ids[:-1]])
    logits = model._logits(model._state(ids))[0, -1]
    likeliest = max(range(4), key=lambda n: float(logits[ids_of("ABCD"[n])[0]].detach()))
    came = scoring.outcomes(model, TOKENIZER, task, items, [0], ALONE, batch=2)
    assert likeliest == 2
    assert came.correct == {0: items[0].gold == 2}
    [cut] = letter_prompts(items, [0], TOKENIZER, 10)
    assert cut.cropped
    assert {len(row.ids) for row in cut.rows} == {10}


def test_a_tokenizer_without_conversations_is_refused() -> None:
    model = Dense(Shape(vocab_size=300, depth=1, width=32, head_dim=16, sequence=64))
    with pytest.raises(DataError, match=r"the tokenizer has no <\|user_start\|> token"):
        scoring.check_model(model, CharTokenizer("ab"), SUITES["chat"])
    scoring.check_model(model, TOKENIZER, SUITES["chat"])


# -- Generated answers ----------------------------------------------------------------------------


def test_answers_are_generated_with_the_calculators_results(tmp_path: Path) -> None:
    path = tmp_path / "test.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in GSM8K))
    result = [special("<|output_start|>"), *ids_of("1400"), special("<|output_end|>")]
    call = [special("<|python_start|>"), *ids_of("700+700"), special("<|python_end|>")]
    model = Scripted(
        {
            "What is 1 + 1?": ids_of("It is #### 2"),
            "What is 20 + 20?": ids_of("#### 41 and #### 40"),
            "What is 700 + 700?": [*call, *result, *ids_of("so #### 1,400")],
        }
    )
    task = task_named("chat-gsm8k")
    items = read_conversations(task, path)
    score = scoring.score_task(model, TOKENIZER, task, items, ALONE, batch=2)
    assert score == TaskScore.of(task, 3, 2)


def test_an_answer_ends_at_its_limit_or_its_message(tmp_path: Path) -> None:
    model = Scripted({"a": ids_of("xyz"), "b": [*ids_of("x"), TOKENIZER.bos, *ids_of("z")]})

    def start(text: str) -> list[int]:
        return [TOKENIZER.bos, *ids_of(text), special("<|assistant_start|>")]

    assert complete(model, TOKENIZER, [start("a")], ALONE.device) == [ids_of("xyz")]
    assert complete(model, TOKENIZER, [start("a")], ALONE.device, 2) == [ids_of("xy")]
    [said] = complete(model, TOKENIZER, [start("b")], ALONE.device)
    assert said == [*ids_of("x"), TOKENIZER.bos]


def test_a_question_that_fills_the_sequence_is_not_asked(tmp_path: Path) -> None:
    path = tmp_path / "test.jsonl"
    long = {"question": "mat " * 200, "answer": "#### 1"}
    path.write_text(json.dumps(GSM8K[0]) + "\n" + json.dumps(long) + "\n")
    task = task_named("chat-gsm8k")
    model = Scripted({"What is 1 + 1?": ids_of("#### 2")}, sequence=64)
    score = scoring.score_task(
        *(model, TOKENIZER, task, read_conversations(task, path), ALONE), batch=2
    )
    assert score == TaskScore.of(task, 2, 1, not_asked=1)


@pytest.mark.parametrize(
    ("call", "result"),
    [
        ("12/60", "0.2"),
        ("2 * (3+4)", "14"),
        ("6/2", "3.0"),
        ("7//2", "3"),
        ("-5 + +2", "-3"),
        ("1,000+1", "1001"),
        ("0.2*50", "10.0"),
        ("1/0", None),
        ("2**99", None),
        ("1+", None),
        ("(1)(2)", None),
        ("", None),
        ("'strawberry'.count('r')", "3"),
        ("'a'.upper()", None),
        ("__import__('os').count('x')", None),
        ("print('a'.count('b'))", None),
        ("[].count(1)", None),
        ("(" * 300 + "1" + ")" * 300, None),
    ],
)
def test_the_calculator_adds_and_counts_and_no_more(call: str, result: str | None) -> None:
    assert calculate(call) == result


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so #### 1,234 and", "1234"),
        ("#### -5", "-5"),
        ("#### 1.50", "1.50"),
        ("####5", None),
        ("#### x #### 7", "7"),
        ("no mark", None),
    ],
)
def test_a_number_counts_as_it_is_written(text: str, number: str | None) -> None:
    assert final_number(text) == number


def test_a_suite_of_conversations_is_scored_over_what_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(MMLU), folder / "test-00000-of-00001.parquet")
    model = Dense(Shape(vocab_size=300, depth=1, width=32, head_dim=16, sequence=512, norm="rms"))
    model.initialise(0)
    result = scoring.evaluate_suite(
        *(model, TOKENIZER, SUITES["chat"], tmp_path), world=ALONE, batch=2
    )
    assert [task.name for task in result.tasks] == ["chat_mmlu"]
    # A fresh model has the same logit for each letter, and takes the first.
    assert result.tasks[0].correct == 3
    assert result.label == "ChatCORE over 1 of 5 tasks"
    assert len(result.left_out) == 4


@pytest.mark.skipif(
    not os.environ.get("TRMCLOUD_NANOCHAT"), reason="opt-in: make core PEER_PATH=… DATA=…"
)
def test_nanochat_renders_choices_alike() -> None:
    sys.path.insert(0, os.environ["TRMCLOUD_NANOCHAT"])
    try:
        common = pytest.importorskip("tasks.common")
        gsm8k = pytest.importorskip("tasks.gsm8k")
    finally:
        sys.path.pop(0)
    for letters, choices in (("ABCD", ["a", "b\nc", "é", ""]), ("123", ["x", "y", "z"])):
        there = common.render_mc("Why? {x}", list(letters), choices)
        assert render_choices("Why? {x}", letters, choices) == there
    for text in ("#### 5", "so #### -1,234.5.", "####5", "#### x", "#### 1 #### 2"):
        assert gsm8k.extract_answer(text) == final_number(text)
