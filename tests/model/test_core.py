"""CORE held to nanochat's own evaluator: the same outcome of each example, by the same model.

Needs nanochat's checkout (92d63d4) and the tasks' files: ``make core PEER_PATH=… DATA=…``, where
``LIMIT`` bounds the examples of each task (0: all) and ``ONLY`` names some tasks. The model is a
small one, trained for a minute on the tasks' own prompts, so that it is neither always right nor
always wrong.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from model.data.tokenizers import BpeTokenizer
from model.families.dense import Shape
from model.families.nanochat.model import Nanochat
from model.machine.distributed import World
from model.tasks.files import find_files
from model.tasks.prompts import read_items, render
from model.tasks.scoring import ROUND, outcomes
from trmcloud.core.catalog.eval_tasks import CHOICE, LANGUAGE, SCHEMA, SUITES, EvalTask

PEER, DATA = os.environ.get("TRMCLOUD_NANOCHAT", ""), os.environ.get("TRMCLOUD_CORE_DATA", "")
LIMIT = int(os.environ.get("TRMCLOUD_CORE_LIMIT", "0"))
ONLY = os.environ.get("TRMCLOUD_CORE_ONLY", "").split()
pytestmark = [
    pytest.mark.skipif(not (PEER and DATA), reason="opt-in: make core PEER_PATH=… DATA=…"),
    pytest.mark.timeout(6 * 3600),
]
CORE = SUITES["core"]
ALONE = World(0, 1, torch.device("cpu"))
SHAPE = Shape(
    vocab_size=1024, depth=2, width=48, head_dim=16, sequence=256, mlp="relu2", norm="rms",
    qk_norm=True, logit_cap=15.0, value_embeddings=True,
)  # fmt: skip
KIND_THERE = {CHOICE: "multiple_choice", SCHEMA: "schema", LANGUAGE: "language_modeling"}
STEPS, ROWS = 300, 8
LEAST_EQUAL = 0.999


@pytest.fixture(scope="module")
def files() -> dict[EvalTask, Path]:
    found, missing = find_files(CORE, Path(DATA))
    print(f"\n{len(found)} of {len(CORE.tasks)} tasks; without a file here: "
          f"{', '.join(task.name for task in missing) or 'none'}")  # fmt: skip
    return found


@pytest.fixture(scope="module")
def tokenizer(files: dict[EvalTask, Path]) -> BpeTokenizer:
    texts = [line for path in files.values() for line in path.read_text("utf-8").splitlines()[:800]]
    return BpeTokenizer.train(texts, SHAPE.vocab_size)


@pytest.fixture(scope="module")
def trained(files: dict[EvalTask, Path], tokenizer: BpeTokenizer) -> Nanochat:
    rows = _rows(files, tokenizer)
    model = Nanochat(SHAPE)
    model.initialise(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
    loss = torch.zeros(())
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, (STEPS - step) / 100)
        ids = torch.tensor([next(rows) for _ in range(ROWS)])
        loss = model.loss(ids[:, :-1].contiguous(), ids[:, 1:].contiguous()).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"trained to {float(loss.detach()):.2f} nats per token")
    return model.eval()


def _rows(files: dict[EvalTask, Path], tokenizer: BpeTokenizer) -> Iterator[list[int]]:
    """Rows of the tasks' prompts, one after another."""
    chosen = random.Random(0)
    every = [(task, read_items(task, path)) for task, path in files.items()]
    held: list[int] = []
    while True:
        task, items = chosen.choice(every)
        text = render(task, items, chosen.randrange(len(items)))[-1]
        held += [tokenizer.bos, *map(int, tokenizer.encode([text], [""])[0])]
        while len(held) > SHAPE.sequence:
            yield held[: SHAPE.sequence + 1]
            held = held[SHAPE.sequence :]


class TheirModel:
    """Ours, as their evaluator calls a model."""

    max_seq_len = SHAPE.sequence

    def __init__(self, model: Nanochat) -> None:
        self._model = model

    def __call__(self, ids: Tensor) -> Tensor:
        return self._model._logits(self._model._state(ids))


class TheirTokenizer:
    """Ours, as their evaluator calls a tokenizer."""

    def __init__(self, inner: BpeTokenizer) -> None:
        self._inner = inner

    def get_bos_token_id(self) -> int:
        return self._inner.bos

    def __call__(self, texts: list[str], prepend: int) -> list[list[int]]:
        encoded = self._inner.encode(texts, [""] * len(texts))
        return [[prepend, *map(int, ids)] for ids in encoded]


def theirs(task: EvalTask, path: Path) -> list[Any]:
    """The examples in the order in which their evaluator takes them."""
    data = [json.loads(line.strip()) for line in path.read_text("utf-8").splitlines()]
    random.Random(1337).shuffle(data)
    return data[:LIMIT] if LIMIT else data


def test_each_example_has_the_outcome_that_it_has_there(
    files: dict[EvalTask, Path], tokenizer: BpeTokenizer, trained: Nanochat
) -> None:
    sys.path.insert(0, PEER)
    try:
        core_eval = importlib.import_module("nanochat.core_eval")
    finally:
        sys.path.remove(PEER)
    model, spoken = TheirModel(trained), TheirTokenizer(tokenizer)
    asked = equal = 0
    right = dict.fromkeys(KIND_THERE, 0)
    wrong = dict.fromkeys(KIND_THERE, 0)
    for task, path in sorted(files.items(), key=lambda found: found[0].examples):
        if ONLY and task.name not in ONLY:
            continue
        began = time.monotonic()
        items, data = read_items(task, path, LIMIT), theirs(task, path)
        assert len(items) == len(data)
        ours: dict[int, bool] = {}
        unasked: set[int] = set()
        for start in range(0, len(items), ROUND):
            numbers = range(start, min(start + ROUND, len(items)))
            came = outcomes(trained, tokenizer, task, items, numbers, ALONE, batch=4)
            ours.update(came.correct)
            unasked.update(came.not_asked)
        between = time.monotonic()
        said = {
            "task_type": KIND_THERE[task.kind],
            "num_fewshot": task.shots,
            "continuation_delimiter": task.delimiter,
        }
        there = {}
        refused = 0
        for n in range(len(data)):
            # Where no id is before an answer their evaluator stops, or judges another place.
            if n in unasked:
                continue
            try:
                there[n] = core_eval.evaluate_example(n, model, spoken, data, ALONE.device, said)
            except AssertionError:
                refused += 1
        same = sum(ours[number] == bool(outcome) for number, outcome in there.items())
        print(
            f"{task.name:<34}{same:>7,} of {len(there):>6,} equal, "
            f"{sum(map(bool, there.values())):>6,} right, {len(unasked)} too long, "
            f"{refused} refused there, {between - began:6.0f} s and "
            f"{time.monotonic() - between:6.0f} s",
            flush=True,
        )
        assert refused <= (1 - LEAST_EQUAL) * len(data)
        asked, equal = asked + len(there), equal + same
        right[task.kind] += sum(map(bool, there.values()))
        wrong[task.kind] += len(there) - sum(map(bool, there.values()))
    print(f"{equal:,} of {asked:,} equal ({equal / asked:.4%}); right {right}, wrong {wrong}")
    assert equal >= LEAST_EQUAL * asked
    if not ONLY:
        assert min(right.values()) > 0
        assert min(wrong.values()) > 0
