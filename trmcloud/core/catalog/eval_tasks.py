"""Tasks that models are judged by: their files, their prompts, and their scores. Pure.

CORE is the metric of DCLM (Li et al. 2024): 22 tasks, each answered in context. With a task's
accuracy a and the accuracy b of guessing, its centred accuracy is (a − b) / (1 − b), and CORE is
the mean of those. Shots, delimiters and baselines are from ``mmlu_and_lowvar.yaml``,
``eval_meta_data.csv`` and ``additional_aggregation.json`` (``low_variance_datasets``) in the folder
``eval`` of mlfoundations/dclm 361714b. ``docs/decisions/0085`` says what of it is as published.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from trmcloud.core.errors import UsageError
from trmcloud.core.nearest import suggest_name
from trmcloud.core.values import Value, replace

CHOICE = "multiple choice"
"""The continuation with the fewest nats per token of several is the answer."""
SCHEMA = "schema"
"""The same continuation behind several contexts; the context with the fewest nats per token of it
is the answer."""
LANGUAGE = "language modeling"
"""Right where each token of the continuation is the likeliest one."""
LETTER = "choice by letter"
"""In a conversation: the likeliest of the letters of the choices is the answer."""
ANSWER = "exact answer"
"""In a conversation: the number that a generated answer has after ``####``."""
PROGRAM = "program"
"""In a conversation: a generated program that must pass tests. None is run here."""
KINDS = (CHOICE, SCHEMA, LANGUAGE, LETTER, ANSWER, PROGRAM)
CHAT_KINDS = (LETTER, ANSWER, PROGRAM)

FOUNDRY_COMMIT = "8c8dd48f72168c5d51e2f7b151595892a8fba43d"
_FOUNDRY = (
    "https://raw.githubusercontent.com/mosaicml/llm-foundry/"
    f"{FOUNDRY_COMMIT}/scripts/eval/local_data/"
)
FOUNDRY_LICENCE = "Apache-2.0 (the repository; each data set has a licence of its own)"
_BYTES_PER_TOKEN = 4.2
"""Of English text, at a vocabulary of 32,768 to 65,536."""
_UNKNOWN_BYTES = 1000
"""Of an example of a file whose size is not known."""
LINE = " "
ANSWER_LINE = "\nAnswer: "


class EvalTask(Value):
    """One task: a file of examples at one commit, and how they become prompts."""

    name: str
    kind: str
    shots: int
    """Solved examples before the one that is asked."""
    delimiter: str
    """Between an example's question and its answer."""
    baseline: float
    """The accuracy of guessing, from 0 to 1."""
    file: str
    """Its path below the source's folder."""
    examples: int
    """The number of examples in it."""
    sha256: str = ""
    """Of the file; empty where it is not known."""
    git_id: str = ""
    """The file's object in its Git repository, which is a SHA-1 of its length and content."""
    size_bytes: int = 0
    """0 where it is not known."""
    base_url: str = _FOUNDRY
    licence: str = FOUNDRY_LICENCE

    @property
    def address(self) -> str:
        return self.base_url + self.file

    @property
    def has_hash(self) -> bool:
        """Whether a file can be compared with what this table says."""
        return bool(self.sha256 or self.git_id)

    def centred(self, accuracy: float) -> float:
        return (accuracy - self.baseline) / (1.0 - self.baseline)

    def tokens(self, sequence: int) -> float:
        """About how many tokens of prompts a model of this sequence reads: of each choice a prompt
        with its solved examples, cropped to the sequence."""
        each = (self.size_bytes or _UNKNOWN_BYTES * self.examples) / self.examples
        prompt = min(float(sequence), (1 + self.shots) * each / _BYTES_PER_TOKEN)
        rows = max(2, round(1 / self.baseline)) if self.baseline else 1
        return self.examples * rows * prompt


class Reference(Value):
    """A published score of a known model."""

    model: str
    score: float
    source: str


class Suite(Value):
    """Tasks whose mean centred accuracy has a name."""

    name: str
    title: str
    """The name of the score over all of its tasks."""
    tasks: tuple[EvalTask, ...]
    reference: Reference | None = None

    def tokens(self, sequence: int) -> float:
        """Those of its tasks."""
        return sum(task.tokens(sequence) for task in self.tasks)

    @property
    def can_be_fetched(self) -> bool:
        """Whether each file that is needed has a hash: no other is downloaded."""
        return all(task.has_hash for task in self.tasks if task.kind != PROGRAM)


# Hashes and sizes are of the files at FOUNDRY_COMMIT. Three large files were not at hand when this
# table was written: of those the Git object alone is known, from the commit's tree, and the number
# of examples from DCLM's table.
_CORE = (
    EvalTask(
        "hellaswag_zeroshot", CHOICE, 0, LINE, 0.25,
        "language_understanding/hellaswag.jsonl", 10042,
        git_id="448321079fdc140bd8566b16b24eda9ceacd3501",
    ),
    EvalTask(
        "jeopardy", LANGUAGE, 10, ANSWER_LINE, 0.0,
        "world_knowledge/jeopardy_all.jsonl", 2117,
        "187e7f270a440c63d6cf11a57459fdc7e0bce889338225e42cc88e24ee13d52e",
        "2f771918dbc8b68550df204171b14d2648b5d494", 364_582,
    ),
    EvalTask(
        "bigbench_qa_wikidata", LANGUAGE, 10, LINE, 0.0,
        "world_knowledge/bigbench_qa_wikidata.jsonl", 20321,
        "bb0d22727cb25beffb022c8e8c0c3e1159c8b3c7bd7284603c0d6491f8616265",
        "5e1be72797ba082fd4f6efa42f7d759d2d23339a", 1_639_702,
    ),
    EvalTask(
        "arc_easy", CHOICE, 10, ANSWER_LINE, 0.25,
        "world_knowledge/arc_easy.jsonl", 2376,
        "d2d12e59543acf9a5ef6079634a72b30215e36c2fd4236fff3bc855d287b87f5",
        "b5fd1bf87a24246a6be67230b721541688f5c349", 636_665,
    ),
    EvalTask(
        "arc_challenge", CHOICE, 10, ANSWER_LINE, 0.25,
        "world_knowledge/arc_challenge.jsonl", 1172,
        "1ae3aeedf1951d881cbd5c2e3a31e78a1993d251479afbe4cb413b6707244636",
        "ce66b8dcfb4bac892a404a0dda8b4e8ed0f84b89", 365_606,
    ),
    EvalTask(
        "copa", CHOICE, 0, LINE, 0.5,
        "commonsense_reasoning/copa.jsonl", 100,
        "595dca44dec54c849490bd403a3e24a29e3b944065783222ebb0eb1a55298846",
        "b22f96e08ae9d0e97e1ae58f67b6425c77ef200a", 14_627,
    ),
    EvalTask(
        "commonsense_qa", CHOICE, 10, LINE, 0.403,
        "commonsense_reasoning/commonsense_qa.jsonl", 1221,
        "2771f63f8127c0725b1f6b0ef2cd2ef6469168ae5875fc8d276b25b4f32c8c1a",
        "f1cc16a88b05ab0934aab2ec2d02a6869e6e5520", 258_861,
    ),
    EvalTask(
        "piqa", CHOICE, 10, ANSWER_LINE, 0.5,
        "commonsense_reasoning/piqa.jsonl", 1838,
        "d2870e73aec5154df3faf259b7700876e11608eebdf69e9d6667435673dbe4e0",
        "a9992adfdefde366fe7ccff871f5aa62449a09cf", 533_992,
    ),
    EvalTask(
        "openbook_qa", CHOICE, 0, LINE, 0.25,
        "commonsense_reasoning/openbook_qa.jsonl", 500,
        "adb2e5c7f8db810ddad4d6b2bf53dcc86dcc545499f7aafcaf42a8e179476c09",
        "a8aff255a64cbc72a85252acf00df25a315686c2", 88_043,
    ),
    EvalTask(
        "lambada_openai", LANGUAGE, 0, LINE, 0.0,
        "language_understanding/lambada_openai.jsonl", 5153,
        "411bfbe5b9054346b6a19299c0242670adbefb9162efd958593cbc0290b8c9dc",
        "4da02dd53b9e7385871d06ab855471d77b2f7dda", 1_895_241,
    ),
    EvalTask(
        "hellaswag", CHOICE, 10, LINE, 0.25,
        "language_understanding/hellaswag.jsonl", 10042,
        git_id="448321079fdc140bd8566b16b24eda9ceacd3501",
    ),
    EvalTask(
        "winograd", SCHEMA, 0, LINE, 0.5,
        "language_understanding/winograd_wsc.jsonl", 273,
        "746336c27cd2e39a554cb1b8b4869d0f1ae2577ac5bfe799842d26bca5a5bf5e",
        "762fe030ac6938ecba438c47a04057247c6ab891", 60_523,
    ),
    EvalTask(
        "winogrande", SCHEMA, 0, LINE, 0.5,
        "language_understanding/winogrande.jsonl", 1267,
        "ea1592526f3bfdd0948ed3acb1b4dfa3f83d23698917118688ee1df7f8d4b8d7",
        "316e87ae4659f0c402b0f00551fdec83ab0a0986", 312_369,
    ),
    EvalTask(
        "bigbench_dyck_languages", LANGUAGE, 10, LINE, 0.0,
        "symbolic_problem_solving/bigbench_dyck_languages.jsonl", 1000,
        "106ba9ac7507c7ab385c5e59c49cd57aa83025abf080d9b2a2661c0d6c6dbcc5",
        "27a4ac2b3b18716add92f4ecd62475c4f8d77768", 198_916,
    ),
    EvalTask(
        "agi_eval_lsat_ar", CHOICE, 3, LINE, 0.25,
        "symbolic_problem_solving/agi_eval_lsat_ar.jsonl", 230,
        "9ffd73480b51746c11627e56239f8b87035eb255cb92c3a58fd64e2e4b65fb56",
        "d663b427ba310d3f877f09a6830198ca7c856189", 219_517,
    ),
    EvalTask(
        "bigbench_cs_algorithms", LANGUAGE, 10, LINE, 0.0,
        "symbolic_problem_solving/bigbench_cs_algorithms.jsonl", 1320,
        "8485683a8c7e7e6c9fc6ca3cc81140fd85edb27f34406a6736d1539cf7ebcb3a",
        "7ecee0f270f3de8b6558da14ae02181f3d950a40", 235_435,
    ),
    EvalTask(
        "bigbench_operators", LANGUAGE, 10, LINE, 0.0,
        "symbolic_problem_solving/bigbench_operators.jsonl", 210,
        "41e2964ad619c49edd97c22b2c50f922a0241255d906a754bf81a20f4f66b85f",
        "a982dc4f962725c9dc4abb07d3cc333c99959290", 35_375,
    ),
    EvalTask(
        "bigbench_repeat_copy_logic", LANGUAGE, 10, LINE, 0.0,
        "symbolic_problem_solving/bigbench_repeat_copy_logic.jsonl", 32,
        "8febd2c0080a15680cd17f92bfa30d87abcfac021e646e55d0b8ad69f0cfa767",
        "86621f10e7124ed6f3a61fb91493c1256c008f60", 7_158,
    ),
    EvalTask(
        "squad", LANGUAGE, 10, LINE, 0.0,
        "reading_comprehension/squad.jsonl", 10570,
        git_id="dc733b8f58ec666c53fd946198c434b819a00680",
    ),
    EvalTask(
        "coqa", LANGUAGE, 0, LINE, 0.0,
        "reading_comprehension/coqa.jsonl", 7983,
        git_id="028bd4e51326cc43f8394987ae47fbb271aeba9d",
    ),
    EvalTask(
        "boolq", CHOICE, 10, ANSWER_LINE, 0.62,
        "reading_comprehension/boolq.jsonl", 3270,
        "454ff101e614370bb1807fe7ebbda6fdb57e794b9662cc1ccae211bf1ff626c8",
        "f42083a58713d00ef4600118cfdf79618c269190", 2_210_395,
    ),
    EvalTask(
        "bigbench_language_identification", CHOICE, 10, LINE, 0.25,
        "language_understanding/bigbench_language_identification.jsonl", 10000,
        "80c98d8e7ab8213513d1643886229c05c40a6837353b07c19ac7bd860668954e",
        "1f132fbbb12a67ce267b7b92b458175632c265f3", 3_940_808,
    ),
)  # fmt: skip

_HUB = "https://huggingface.co/datasets"
_FIRST_FILE = "test-00000-of-00001.parquet"
# nanochat's ``chat_eval.py`` (92d63d4) takes these, by Hugging Face's names. Hashes of ARC's and
# MMLU's files are not known here, so they are given, not downloaded.
_CHAT = (
    EvalTask(
        "chat_arc_easy", LETTER, 0, "", 0.25, f"ARC-Easy/{_FIRST_FILE}", 2376,
        base_url=f"{_HUB}/allenai/ai2_arc/resolve/main/", licence="",
    ),
    EvalTask(
        "chat_arc_challenge", LETTER, 0, "", 0.25, f"ARC-Challenge/{_FIRST_FILE}", 1172,
        base_url=f"{_HUB}/allenai/ai2_arc/resolve/main/", licence="",
    ),
    EvalTask(
        "chat_mmlu", LETTER, 0, "", 0.25, f"all/{_FIRST_FILE}", 14042,
        base_url=f"{_HUB}/cais/mmlu/resolve/main/", licence="",
    ),
    EvalTask(
        "chat_gsm8k", ANSWER, 0, "", 0.0, "test.jsonl", 1319,
        "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
        base_url="https://raw.githubusercontent.com/openai/grade-school-math/"
        "3101c7d5072418e28b9008a6636bde82a006892c/grade_school_math/data/",
        licence="MIT",
    ),
    EvalTask(
        "chat_humaneval", PROGRAM, 0, "", 0.0, "HumanEval.jsonl.gz", 164,
        base_url="https://raw.githubusercontent.com/openai/human-eval/master/data/", licence="MIT",
    ),
)  # fmt: skip

SUITES: Mapping[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite(
            "core",
            "CORE",
            _CORE,
            Reference("GPT-2 (1.6B)", 0.256525, "nanochat's leaderboard, README of 92d63d4"),
        ),
        Suite("chat", "ChatCORE", _CHAT),
    )
}


def typed_name(name: str) -> str:
    """Return a task's name as it is typed: ``arc-easy`` for ``arc_easy``."""
    return name.replace("_", "-")


def task_names() -> list[str]:
    """The names that ``suite_of`` takes: the suites', then their tasks'."""
    tasks = [typed_name(task.name) for suite in SUITES.values() for task in suite.tasks]
    return [*SUITES, *tasks]


def suite_of(name: str) -> Suite:
    """The suite of this name, or one that has the task of this name alone.

    Raises:
        UsageError: there is no such suite or task.
    """
    if name in SUITES:
        return SUITES[name]
    for suite in SUITES.values():
        for task in suite.tasks:
            if typed_name(task.name) == typed_name(name):
                return replace(suite, name=typed_name(name), tasks=(task,), reference=None)
    raise UsageError(f"no task {name!r}", next_step=suggest_name(typed_name(name), task_names()))


class TaskScore(Value):
    """The score of one task."""

    name: str
    shots: int
    accuracy: float
    centred: float
    examples: int
    correct: int
    cropped: int = 0
    """Examples of which a prompt is longer than the model's sequence: its beginning is left out."""
    not_asked: int = 0
    """Counted as wrong: the answer does not fit in the sequence, or a character has no id."""

    @classmethod
    def of(
        cls, task: EvalTask, examples: int, correct: int, cropped: int = 0, not_asked: int = 0
    ) -> TaskScore:
        accuracy = correct / examples
        return cls(
            task.name,
            task.shots,
            accuracy,
            task.centred(accuracy),
            examples,
            correct,
            cropped,
            not_asked,
        )


class LeftOut(Value):
    """A task without a score, and the reason."""

    name: str
    why: str


class SuiteResult(Value):
    """The scores of a suite's tasks, in its order."""

    suite: str
    title: str
    tasks: tuple[TaskScore, ...]
    left_out: tuple[LeftOut, ...] = ()
    limit: int = 0
    """At most so many examples of each task were asked; 0: all of them."""
    reference: Reference | None = None

    @property
    def of(self) -> int:
        """Tasks of the suite."""
        return len(self.tasks) + len(self.left_out)

    @property
    def is_whole(self) -> bool:
        """Whether every example of every task was asked."""
        return not self.left_out and not self.limit

    @property
    def score(self) -> float | None:
        """The mean centred accuracy of the tasks that have a score; None where none has."""
        return mean([task.centred for task in self.tasks])

    @property
    def label(self) -> str:
        """The name of the score: ``CORE`` only where nothing is left out."""
        if self.suite not in SUITES:
            return "centred accuracy"
        if self.is_whole:
            return self.title
        words = f"{self.title} over {len(self.tasks)} of {self.of} tasks"
        return words + f", at most {self.limit:,} examples of each" * bool(self.limit)

    def to_json(self) -> dict[str, Any]:
        return {
            "suite": self.suite,
            "label": self.label,
            "score": self.score,
            "complete": self.is_whole,
            "limit": self.limit,
            "tasks": [dataclasses.asdict(task) for task in self.tasks],
            "left_out": [dataclasses.asdict(task) for task in self.left_out],
            "reference": dataclasses.asdict(self.reference) if self.reference else None,
        }


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
