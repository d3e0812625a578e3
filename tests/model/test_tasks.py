"""Tasks: their files, their prompts, and the scores of models on them."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from model.data.tokenizers import BpeTokenizer, CharTokenizer
from model.families.dense import Dense, Shape
from model.families.masked_diffusion import MaskedDiffusion
from model.families.protocol import LanguageModel
from model.machine.distributed import World
from model.tasks import __main__ as command
from model.tasks import scoring
from model.tasks.files import fetch_files, find_files, git_object_id
from model.tasks.prompts import common_length, make_prompts, read_items, render, shot_numbers
from model.training.stepping import compiled_graphs
from tests.documents import document_in
from tests.model.conftest import output_of, torchrun
from tests.model.models import make_model, shaken
from tests.model.task_files import TEXT, choices, continued, schemas, task_of, write
from tests.standins.data_host import DataHost, Fault, serving
from trmcloud.cli.commands import evaluate
from trmcloud.cli.main import main
from trmcloud.core.catalog.eval_tasks import (
    ANSWER_LINE,
    CHOICE,
    FOUNDRY_COMMIT,
    LANGUAGE,
    SCHEMA,
    SUITES,
    EvalTask,
    LeftOut,
    Reference,
    Suite,
    SuiteResult,
    TaskScore,
    suite_of,
)
from trmcloud.core.errors import DataError, UsageError

ROOT = Path(__file__).parents[2]
ALONE = World(0, 1, torch.device("cpu"))


def examples_of(
    folder: Path, kind: str, rows: Sequence[Any], shots: int = 0, **changes: Any
) -> tuple[EvalTask, Any]:
    """A task of these rows, and its examples."""
    path = write(folder / "t.jsonl", rows)
    task = dataclasses.replace(task_of(kind, path, shots), **changes)
    return task, read_items(task, path)


def dense(seed: int = 0, **changes: Any) -> Dense:
    shape = Shape(vocab_size=128, depth=2, width=32, head_dim=16, sequence=256, norm="rms")
    model = shaken(Dense(dataclasses.replace(shape, **changes)), 0.05, initial=seed, seed=seed + 1)
    return model.eval()


@pytest.fixture
def characters() -> CharTokenizer:
    return CharTokenizer("".join(sorted(set(TEXT))))


class Knowing(LanguageModel):
    """The likeliest id after each one, by a table; all others are equally unlikely."""

    predicts_next = True

    def __init__(self, follows: dict[int, int], vocab_size: int, sequence: int = 256) -> None:
        super().__init__()
        self.follows, self.vocab_size, self.sequence = follows, vocab_size, sequence
        self.seen: list[tuple[int, ...]] = []

    def predictions(self, ids: Tensor) -> Tensor:
        self.seen.append(tuple(ids.shape))
        return torch.tensor([[self.follows.get(int(each), 0) for each in row] for row in ids])

    def evaluate(self, ids: Tensor, targets: Tensor, draws: Any = None) -> Tensor:
        likeliest = self.predictions(ids)
        return torch.where(likeliest == targets, 0.1, 5.0).unsqueeze(0)

    def initialise(self, seed: int) -> None: ...

    def loss(self, ids: Tensor, targets: Tensor, draws: Any = None) -> Any: ...

    def generate(self, start: Any, sampling: Any) -> Any: ...

    def parameter_groups(self) -> Any: ...


# -- The table ------------------------------------------------------------------------------------


def test_core_is_the_22_tasks_of_dclm() -> None:
    core = SUITES["core"]
    assert len(core.tasks) == len({task.name for task in core.tasks}) == 22
    assert len({task.file for task in core.tasks}) == 21
    for task in core.tasks:
        assert task.has_hash
        assert FOUNDRY_COMMIT in task.address
        assert len(task.git_id) == 40
        assert bool(task.sha256) == bool(task.size_bytes)
    by_kind = {kind: sum(t.kind == kind for t in core.tasks) for kind in (CHOICE, SCHEMA, LANGUAGE)}
    assert by_kind == {CHOICE: 11, SCHEMA: 2, LANGUAGE: 9}
    assert sum(task.examples for task in core.tasks) == 91_037


def test_a_task_goes_by_its_name_with_either_dash() -> None:
    assert suite_of("arc-easy") == suite_of("arc_easy")
    assert [task.name for task in suite_of("arc-easy").tasks] == ["arc_easy"]
    assert suite_of("core") is SUITES["core"]
    with pytest.raises(UsageError) as refused:
        suite_of("arc-eazy")
    assert refused.value.next_step == "did you mean arc-easy?"


def test_a_score_over_fewer_tasks_is_not_called_by_the_suites_name() -> None:
    task = dataclasses.replace(SUITES["core"].tasks[0])
    score = TaskScore.of(task, 4, 3)
    assert score.accuracy == 0.75
    assert score.centred == pytest.approx(2 / 3)
    reference = Reference("GPT-2", 0.25, "a page")
    whole = SuiteResult("core", "CORE", (score,), reference=reference)
    assert whole.label == "CORE"
    assert command.as_text(whole, "step 1") == [
        "CORE: 0.6667 (step 1)",
        "GPT-2 has 0.2500, by a page: 0.4167 above it",
    ]
    missing = SuiteResult(
        "core", "CORE", (score,), (LeftOut("squad", "no file"),), reference=reference
    )
    assert command.as_text(missing, "step 1") == [
        "CORE over 1 of 2 tasks: 0.6667 (step 1)",
        "not to be compared with CORE: GPT-2 has 0.2500, by a page",
        "left out: squad: no file",
    ]
    few = SuiteResult("core", "CORE", (score,), limit=100)
    assert few.label == "CORE over 1 of 1 tasks, at most 100 examples of each"
    single = SuiteResult("arc-easy", "CORE", (score,))
    assert (single.label, single.is_whole) == ("centred accuracy", True)
    assert SUITES["core"].can_be_fetched
    assert not SUITES["chat"].can_be_fetched
    nothing = SuiteResult("core", "CORE", (), (LeftOut("squad", "no file"),))
    assert nothing.score is None
    assert command.as_text(nothing, "step 1") == ["CORE: no task was scored"]


# -- Prompts --------------------------------------------------------------------------------------


def test_choices_share_what_is_before_them(tmp_path: Path, characters: CharTokenizer) -> None:
    task, items = examples_of(tmp_path, CHOICE, choices(9), shots=2, delimiter=ANSWER_LINE)
    first, second = (items[number] for number in shot_numbers(4, 9, 2))
    texts = render(task, items, 4)
    shots = "".join(f"{item.context}\nAnswer: {item.answer}\n\n" for item in (first, second))
    assert texts == [f"{shots}{items[4].context}\nAnswer: {word}" for word in ("yes", "no")]
    [prompt] = make_prompts(task, items, [4], characters, 256)
    for row, word in zip(prompt.rows, ("yes", "no"), strict=True):
        assert row.ids[0] == characters.bos
        assert characters.decode(row.ids[row.start : row.end]) == word
    assert prompt.gold == items[4].gold
    assert not prompt.cropped


def test_what_choices_begin_with_alike_is_not_judged(
    tmp_path: Path, characters: CharTokenizer
) -> None:
    rows = [{"query": "Q", "choices": ["abc", "abd", "ab"], "gold": 0}]
    task, items = examples_of(tmp_path, CHOICE, rows)
    [prompt] = make_prompts(task, items, [0], characters, 256)
    assert [characters.decode(row.ids[row.start : row.end]) for row in prompt.rows] == [
        "c", "d", "",
    ]  # fmt: skip


def test_contexts_are_judged_by_what_they_end_with(
    tmp_path: Path, characters: CharTokenizer
) -> None:
    task, items = examples_of(tmp_path, SCHEMA, schemas(4), shots=1)
    texts = render(task, items, 0)
    [other] = shot_numbers(0, 4, 1)
    shot = f"{items[other].context} ran.\n\n"
    assert texts == [f"{shot}{context} ran." for context in items[0].contexts]
    [prompt] = make_prompts(task, items, [0], characters, 256)
    judged = {characters.decode(row.ids[row.start : row.end]) for row in prompt.rows}
    number = items[0].contexts[0].split()[2]
    assert judged == {f" {number} and ran."}


def test_a_continuation_is_predicted_behind_a_trimmed_context(
    tmp_path: Path, characters: CharTokenizer
) -> None:
    task, items = examples_of(tmp_path, LANGUAGE, continued(3), shots=1)
    [other] = shot_numbers(2, 3, 1)
    shot = f"{items[other].context.strip()} {items[other].answer}\n\n"
    asked = items[2].context.strip()
    assert render(task, items, 2) == [f"{shot}{asked}", f"{shot}{asked} {items[2].answer}"]
    [prompt] = make_prompts(task, items, [2], characters, 256)
    [row] = prompt.rows
    assert characters.decode(row.ids[row.start : row.end]) == f" {items[2].answer}"


def test_one_token_is_an_answer(tmp_path: Path) -> None:
    tokenizer = BpeTokenizer.train([" signs signs signs about about " * 20], 280)
    rows = [{"context": "about", "continuation": "signs"}]
    task, items = examples_of(tmp_path, LANGUAGE, rows)
    [prompt] = make_prompts(task, items, [0], tokenizer, 64)
    [row] = prompt.rows
    assert row.end - row.start == 1
    model = Knowing({row.ids[row.start - 1]: row.ids[row.start]}, 280, 64)
    assert scoring.score_task(model, tokenizer, task, items, ALONE, batch=1) == TaskScore.of(
        task, 1, 1
    )


def test_a_long_prompt_loses_its_beginning(tmp_path: Path, characters: CharTokenizer) -> None:
    task, items = examples_of(tmp_path, CHOICE, choices(9), shots=4)
    [whole] = make_prompts(task, items, [3], characters, 256)
    [cut] = make_prompts(task, items, [3], characters, 20)
    assert cut.cropped
    for short, long in zip(cut.rows, whole.rows, strict=True):
        assert short.ids == long.ids[-20:]
        assert short.ids[short.start : short.end] == long.ids[long.start : long.end]
    # Its answer needs an id before it.
    assert make_prompts(task, items, [3], characters, 3)[0].rows == ()


def test_lines_end_as_they_end_and_empty_ones_are_none(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [json.dumps(row, ensure_ascii=False) for row in choices(5)]
    path.write_bytes(("\ufeff" + "\r\n".join([*rows[:3], "", "  ", *rows[3:]])).encode())
    task = task_of(CHOICE, path)
    plain = write(tmp_path / "plain.jsonl", choices(5))
    assert read_items(task, path) == read_items(task, plain)
    assert len(read_items(task, path, 2)) == 2
    assert read_items(task, path, 2) == read_items(task, path)[:2]


@pytest.mark.parametrize(
    ("kind", "line", "said"),
    [
        (CHOICE, '{"query": "Q", "choices": ["a", "b"], "gold"', "not JSON"),
        (CHOICE, "[1]", "not a JSON object"),
        (CHOICE, '{"choices": ["a", "b"], "gold": 0}', "no text 'query'"),
        (CHOICE, '{"query": "Q", "choices": ["a"], "gold": 0}', "no list of texts 'choices'"),
        (CHOICE, '{"query": "Q", "choices": ["a", 2], "gold": 0}', "no list of texts 'choices'"),
        (CHOICE, '{"query": "Q", "choices": ["a", "b"], "gold": 2}', "no number from 0 to 1"),
        (CHOICE, '{"query": "Q", "choices": ["a", "b"], "gold": true}', "no number from 0 to 1"),
        (SCHEMA, '{"context_options": "a", "continuation": "b", "gold": 0}', "'context_options'"),
        (SCHEMA, '{"context_options": ["a", "b"], "gold": 0}', "no text 'continuation'"),
        (LANGUAGE, '{"context": "a"}', "no text 'continuation'"),
        (LANGUAGE, '{"context": "a", "continuation": " \\n"}', "'continuation' is empty"),
    ],
)
def test_a_line_that_is_no_example_is_named(
    tmp_path: Path, kind: str, line: str, said: str
) -> None:
    good = {CHOICE: choices, SCHEMA: schemas, LANGUAGE: continued}[kind](2)
    path = write(tmp_path / "t.jsonl", good)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(DataError, match=said) as refused:
        read_items(task_of(kind, path), path)
    assert refused.value.where == f"{path}:3"


def test_solved_examples_need_others(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", choices(4))
    with pytest.raises(DataError, match="4 examples; t needs more than 4"):
        read_items(task_of(CHOICE, path, shots=4), path)
    with pytest.raises(UsageError, match="a limit of 3 is too low") as refused:
        read_items(task_of(CHOICE, path, shots=3), path, 3)
    assert refused.value.next_step == "--limit 4"
    path.write_bytes(b'{"query": "\xff"}\n')
    with pytest.raises(DataError, match="not UTF-8"):
        read_items(task_of(CHOICE, path), path)
    with pytest.raises(DataError, match="no such file"):
        read_items(task_of(CHOICE, path), tmp_path / "nothing")


# -- Scores ---------------------------------------------------------------------------------------


def test_the_likelier_choice_is_the_answer(tmp_path: Path, characters: CharTokenizer) -> None:
    rows = [
        {"query": "Q", "choices": ["ab", "zq"], "gold": gold} for gold in (0, 0, 1, 0)
    ]  # fmt: skip
    task, items = examples_of(tmp_path, CHOICE, rows)
    a, b, space = (int(each) for each in characters.encode(["ab "], [""])[0])
    model = Knowing({space: a, a: b}, characters.vocab_size)
    score = scoring.score_task(model, characters, task, items, ALONE, batch=2)
    assert score == TaskScore.of(task, 4, 3)
    assert score is not None
    assert score.centred == 0.5


def test_of_equal_choices_the_first_is_taken(tmp_path: Path, characters: CharTokenizer) -> None:
    rows = [
        {"query": f"Q{n}", "choices": ["same", "same", "same"], "gold": n % 3} for n in range(9)
    ]
    task, items = examples_of(tmp_path, CHOICE, rows)
    # Choices of the same text have no token of their own to be judged by.
    assert scoring.score_task(dense(), characters, task, items, ALONE, batch=3) == TaskScore.of(
        task, 9, 3
    )
    mixed = [
        {"query": f"Q{n}", "choices": ["same", "same", "a much longer one"], "gold": 1}
        for n in range(9)
    ]
    task, items = examples_of(tmp_path, CHOICE, mixed)
    for batch in (1, 2, 7):
        score = scoring.score_task(dense(), characters, task, items, ALONE, batch=batch)
        assert score == TaskScore.of(task, 9, 0)


def test_a_choice_that_others_begin_with_is_taken_in_the_first_place_alone(
    tmp_path: Path, characters: CharTokenizer
) -> None:
    """As by nanochat's evaluator, whose mean of no number wins there."""
    rows = [
        {"query": f"Q{n}", "choices": words, "gold": gold}
        for n in range(3)
        for words, gold in ((["ab", "abc"], 0), (["abc", "ab"], 0), (["abc", "ab", "abd"], 1))
    ]
    task, items = examples_of(tmp_path, CHOICE, rows)
    came = scoring.outcomes(dense(), characters, task, items, range(9), ALONE, batch=3)
    assert [came.correct[n] for n in range(9)] == [len(item.answers) == 2 for item in items]


def test_a_model_without_numbers_is_never_right(tmp_path: Path, characters: CharTokenizer) -> None:
    task, items = examples_of(tmp_path, CHOICE, choices(4))
    model = dense()
    assert model.head is not None
    model.head.weight.data.fill_(float("nan"))
    assert scoring.score_task(model, characters, task, items, ALONE, batch=3) == TaskScore.of(
        task, 4, 0
    )


def test_a_continuation_is_right_only_as_a_whole(tmp_path: Path, characters: CharTokenizer) -> None:
    rows = [{"context": "x", "continuation": word} for word in ("abc", "abd")]
    task, items = examples_of(tmp_path, LANGUAGE, rows)
    x, a, b, c, space = (int(each) for each in characters.encode(["xabc "], [""])[0])
    model = Knowing({x: space, space: a, a: b, b: c}, characters.vocab_size)
    score = scoring.score_task(model, characters, task, items, ALONE, batch=2)
    assert score == TaskScore.of(task, 2, 1)


@pytest.mark.parametrize("kind", [CHOICE, SCHEMA, LANGUAGE])
def test_no_score_depends_on_the_batch(
    tmp_path: Path, characters: CharTokenizer, kind: str
) -> None:
    made = {CHOICE: choices, SCHEMA: schemas, LANGUAGE: continued}[kind](40)
    task, items = examples_of(tmp_path, kind, made, shots=3)
    model = dense()
    single = scoring.outcomes(model, characters, task, items, range(40), ALONE, batch=1)
    for batch in (2, 64):
        many = scoring.outcomes(model, characters, task, items, range(40), ALONE, batch=batch)
        assert many == single
    if kind != LANGUAGE:
        assert 0 < sum(single.correct.values()) < 40


def test_short_rows_share_a_pass(tmp_path: Path, characters: CharTokenizer) -> None:
    task, items = examples_of(tmp_path, LANGUAGE, continued(30))
    model = Knowing({}, characters.vocab_size)
    scoring.score_task(model, characters, task, items, ALONE, batch=2)
    # Two whole sequences of 256 are eight rows of 64.
    assert model.seen == [(8, 64), (8, 64), (8, 64), (6, 64)]


def test_nothing_is_compiled_for_a_prompts_length(
    tmp_path: Path, characters: CharTokenizer
) -> None:
    task = task_of(CHOICE, write(tmp_path / "t.jsonl", choices(6)))
    suite = Suite("core", "CORE", (task,))
    plain = scoring.evaluate_suite(dense(), characters, suite, tmp_path, world=ALONE, batch=2)
    model = dense(dropout=0.5).train()
    model.compile_parts()
    before = compiled_graphs()
    compiled = scoring.evaluate_suite(model, characters, suite, tmp_path, world=ALONE, batch=2)
    assert compiled == plain
    assert compiled_graphs() == before
    assert model.training


@given(st.lists(st.lists(st.integers(0, 1), max_size=9).map(tuple), min_size=1, max_size=4))
def test_a_common_length_is_that_of_the_longest_common_part(every: list[tuple[int, ...]]) -> None:
    def agrees(length: int, *, at_end: bool) -> bool:
        return len({each[len(each) - length :] if at_end else each[:length] for each in every}) == 1

    for at_end in (False, True):
        found = common_length(every, at_end=at_end)
        shortest = min(map(len, every))
        assert agrees(found, at_end=at_end)
        assert found == shortest or not agrees(found + 1, at_end=at_end)


def test_a_character_without_an_id_is_not_asked(tmp_path: Path) -> None:
    rows = [*continued(3), {"context": "☃", "continuation": "1"}]
    task, items = examples_of(tmp_path, LANGUAGE, rows)
    tokenizer = CharTokenizer("".join(sorted(set(TEXT))))
    score = scoring.score_task(dense(), tokenizer, task, items, ALONE, batch=2)
    assert score is not None
    assert (score.examples, score.not_asked) == (4, 1)


def test_a_model_that_predicts_no_next_token_is_refused(characters: CharTokenizer) -> None:
    model = dense()
    model.predicts_next = False
    with pytest.raises(UsageError, match="does not predict the next token"):
        scoring.check_model(model, characters, SUITES["core"])
    with pytest.raises(NotImplementedError):
        LanguageModel.predictions(model, torch.zeros(1, 2, dtype=torch.int64))
    assert not MaskedDiffusion.predicts_next
    with pytest.raises(UsageError, match="the tokenizer has 101 ids, the model 90"):
        scoring.check_model(dense(vocab_size=90), characters, SUITES["core"])


def test_a_sequence_that_no_prompt_fits_in_is_refused(
    tmp_path: Path, characters: CharTokenizer
) -> None:
    task = task_of(CHOICE, write(tmp_path / "t.jsonl", choices(9)), shots=4)
    suite = Suite("core", "CORE", (task,))
    with pytest.raises(UsageError, match="sequence of 64 tokens is shorter than every prompt: the"):
        scoring.evaluate_suite(
            *(dense(sequence=64), characters, suite, tmp_path), world=ALONE, batch=2
        )


def test_what_time_is_left_for_is_scored(tmp_path: Path, characters: CharTokenizer) -> None:
    tasks = tuple(
        dataclasses.replace(
            task_of(LANGUAGE, write(tmp_path / f"{name}.jsonl", continued(3))), name=name
        )
        for name in "abc"
    )
    told: list[Any] = []
    asked = iter([False, True])
    suite = Suite("core", "CORE", tasks)
    result = scoring.evaluate_suite(
        *(dense(), characters, suite, tmp_path), world=ALONE, batch=2, until=lambda: next(asked),
        told=told.append,
    )  # fmt: skip
    assert [task.name for task in result.tasks] == ["a"]
    assert result.left_out == tuple(LeftOut(name, "no time was left") for name in "bc")
    assert told == [*result.tasks, *result.left_out]
    assert result.label == "CORE over 1 of 3 tasks"


@pytest.mark.parametrize("name", ["gpt", "nanochat", "nanochat-2026", "trm"])
def test_predictions_are_the_likeliest_of_what_evaluate_counts(name: str) -> None:
    model = make_model(name)
    assert model.predicts_next
    ids = torch.randint(0, model.vocab_size, (2, 16), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        likeliest = model.predictions(ids)
        every = torch.stack(
            [
                model.evaluate(ids, torch.full_like(ids, target))[-1]
                for target in range(model.vocab_size)
            ]
        )
    assert torch.equal(likeliest, every.argmin(0))
    assert len(likeliest.unique()) > 1


# -- Files ----------------------------------------------------------------------------------------


def test_a_file_that_is_another_one_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", choices(3))
    task = task_of(CHOICE, path)
    suite = Suite("core", "CORE", (task,))
    assert find_files(suite, tmp_path) == ({task: path}, {})
    by_git = dataclasses.replace(task, sha256="", git_id=git_object_id(path))
    assert find_files(Suite("core", "CORE", (by_git,)), tmp_path)[0] == {by_git: path}
    write(path, choices(2))
    for other, kind in ((task, "SHA-256"), (by_git, "Git object")):
        with pytest.raises(DataError, match=f"not the published one: its {kind}") as refused:
            find_files(Suite("core", "CORE", (other,)), tmp_path)
        assert refused.value.where == str(path)
    unknown = dataclasses.replace(task, sha256="")
    assert find_files(Suite("core", "CORE", (unknown,)), tmp_path)[0] == {unknown: path}


def test_git_names_a_file_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"what is up, doc?")
    assert git_object_id(path) == "bd9dbf5aae1a3862dd1526723246b20206e5fc37"


def test_files_are_found_where_others_keep_them(tmp_path: Path) -> None:
    [task] = suite_of("copa").tasks
    task = dataclasses.replace(task, sha256="", git_id="")
    suite = Suite("core", "CORE", (task, dataclasses.replace(task, name="b", file="x/b.jsonl")))
    with pytest.raises(
        DataError, match=r"no file of CORE, such as commonsense_reasoning/copa\.jsonl"
    ):
        find_files(suite, tmp_path)
    for folder in ("", "commonsense_reasoning", "eval_data/commonsense_reasoning"):
        place = tmp_path / (folder or "flat") / ("" if folder else "within")
        path = place / "copa.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, choices(1))
        found, missing = find_files(suite, tmp_path if folder else place)
        assert found == {task: path}
        assert [each.name for each in missing] == ["b"]
        path.unlink()


def test_files_are_downloaded_once_and_compared(tmp_path: Path) -> None:
    here = write(tmp_path / "there.jsonl", choices(3))
    good = task_of(CHOICE, here, base_url="https://raw.githubusercontent.com/a/b/c/")
    by_git = dataclasses.replace(
        good, name="git", file="d/git.jsonl", sha256="", git_id=git_object_id(here)
    )
    suite = Suite("core", "CORE", (good, by_git))
    host = DataHost()
    host.files["/a/b/c/there.jsonl"] = host.files["/a/b/c/d/git.jsonl"] = here
    host.faults["/a/b/c/there.jsonl"] = Fault(cut_after=40, times=1)
    cache = tmp_path / "cache"
    with serving(host):
        fetch_files(suite, cache, host.environment)
        assert len(host.asked("/a/b/c/there.jsonl")) == 2
        assert host.asked("/a/b/c/there.jsonl")[1].headers["Range"] == "bytes=40-"
        fetch_files(suite, cache, host.environment)
        assert len(host.asked("/a/b/c/d/git.jsonl")) == 1
        assert set(find_files(suite, cache)[0]) == {good, by_git}
        (cache / "d" / "git.jsonl").unlink()
        host.faults["/a/b/c/d/git.jsonl"] = Fault(flip=3)
        with pytest.raises(DataError, match="not the published one: its Git object"):
            fetch_files(suite, cache, host.environment)
        assert not (cache / "d" / "git.jsonl").exists()
    nameless = dataclasses.replace(good, sha256="")
    with pytest.raises(DataError, match="no hash of the file of there is known") as refused:
        fetch_files(Suite("core", "CORE", (nameless,)), cache, {})
    assert "--data FOLDER" in refused.value.next_step


# -- The command ----------------------------------------------------------------------------------


@pytest.fixture
def small_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of three tasks, and a suite of this name that has these and a fourth."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    tasks = (
        task_of(CHOICE, write(folder / "even.jsonl", choices(30)), shots=1),
        task_of(SCHEMA, write(folder / "who.jsonl", schemas(20))),
        task_of(LANGUAGE, write(folder / "then.jsonl", continued(25)), shots=1),
        dataclasses.replace(suite_of("copa").tasks[0]),
    )
    suite = Suite("core", "CORE", tasks, SUITES["core"].reference)
    monkeypatch.setattr("model.tasks.__main__.suite_of", lambda name: suite)
    return folder


def test_the_command_shows_a_table_and_what_it_leaves_out(
    checkpoint: Path, small_core: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--checkpoint", str(checkpoint), "--suite", "core", "--data", str(small_core)]
    assert command.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["task", "shots", "accuracy", "centred", "examples"]
    assert [line.split()[0] for line in lines[1:4]] == ["even", "who", "then"]
    assert lines[4].startswith("CORE over 3 of 4 tasks: ")
    assert lines[5].startswith("not to be compared with CORE: GPT-2 (1.6B) has 0.2565")
    assert lines[6].startswith("left out: copa: no commonsense_reasoning/copa.jsonl in ")
    assert command.main([*arguments, "--json", "--limit", "10"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [task["examples"] for task in told["tasks"]] == [10, 10, 10]
    assert told["complete"] is False
    assert told["label"] == "CORE over 3 of 4 tasks, at most 10 examples of each"
    centred = [task["centred"] for task in told["tasks"]]
    assert told["score"] == pytest.approx(sum(centred) / 3)


def test_the_users_command_prints_one_document(
    checkpoint: Path,
    small_core: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def here(module: str, arguments: Sequence[str], *, take: Any = None) -> None:
        """The trainer's command in this process, with this test's suite."""
        assert module == "model.tasks"
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert command.main(arguments) == 0
        for line in out.getvalue().splitlines():
            take(line)

    monkeypatch.setattr(evaluate, "run_trainer_command", here)
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path / "home"))
    words = ["eval", str(checkpoint), "--task", "core", "--data", str(small_core), "--json"]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert not ended.value.code
    told = document_in(capfd.readouterr().out)
    assert told["schema"] == "suite-score/1"
    assert [task["name"] for task in told["tasks"]] == ["even", "who", "then"]
    assert [task["name"] for task in told["left_out"]] == ["copa"]
    assert told["reference"]["score"] == 0.256525
    assert (told["label"], told["step"]) == ("CORE over 3 of 4 tasks", 40)


def test_bad_wishes_are_refused(
    checkpoint: Path, small_core: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*more: str) -> tuple[int, str]:
        code = command.main(["--checkpoint", str(checkpoint), "--suite", "core", *more])
        return code, json.loads(capsys.readouterr().err.splitlines()[-1])["what"]

    data = ("--data", str(small_core))
    assert refused(*data, "--limit", "-1") == (2, "--limit cannot be negative, --batch must be "
                                               "at least 1")  # fmt: skip
    assert refused() == (2, "give --data or --cache")
    assert refused(*data, "--limit", "1") == (
        2, "even solves 1 examples before each: a limit of 1 is too low",
    )  # fmt: skip
    write(small_core / "who.jsonl", schemas(2))
    code, what = refused(*data)
    assert code == DataError.exit_code
    assert what.startswith("the file of who is not the published one")


@pytest.mark.slow
@pytest.mark.more
def test_ranks_share_the_examples(
    checkpoint: Path, small_core: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = vars(command)["suite_of"]("core")
    (tmp_path / "shared_tasks.py").write_text(
        "import sys\n"
        "from model.tasks import __main__ as command\n"
        "from trmcloud.core.catalog.eval_tasks import EvalTask, Suite\n"
        f"tasks = {[dataclasses.asdict(task) for task in suite.tasks]!r}\n"
        "suite = Suite('core', 'CORE', tuple(EvalTask(**task) for task in tasks))\n"
        "command.suite_of = lambda name: suite\n"
        "sys.exit(command.main(sys.argv[1:]))\n"
    )
    words = ["--checkpoint", str(checkpoint), "--suite", "core", "--data", str(small_core)]
    assert command.main([*words, "--json"]) == 0
    alone = {**json.loads(capsys.readouterr().out), "reference": None}
    process = torchrun(2, "shared_tasks", *words, "--json", PYTHONPATH=str(tmp_path))
    assert json.loads(output_of(process)) == alone
    assert [task["examples"] for task in alone["tasks"]] == [30, 20, 25]
