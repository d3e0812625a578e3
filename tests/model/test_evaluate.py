"""How a model is scored: bits per byte and exact match."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from model import solve as solve_module
from model.data.folder import open_data
from model.families.trm.model import TRM, Shape
from model.families.trm.plan import Settings
from model.machine.distributed import World
from model.solve import answer, main, solve
from model.training.evaluate import evaluate, token_bytes, validation_rows
from model.training.exact_match import (
    BadLine,
    final_number,
    is_final_number_complete,
    read_items,
    wilson,
)

# -- evaluate -----------------------------------------------------------------------------------
# Bits per byte: by hand, without special tokens, and the same however many ranks divide it.


CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model(settings: Settings) -> TRM:
    made = TRM(Shape.of(settings))
    made.initialise(1)
    generator = torch.Generator().manual_seed(0)
    made.head.weight.data.normal_(0, 0.3, generator=generator)
    return made


class PartWorld(World):
    """One of several ranks, run one after another: its sums are kept instead of reduced."""

    def total(self, values: Tensor) -> Tensor:
        self.__dict__["kept"] = values.detach().double()
        return self.__dict__["kept"]


def test_bits_per_byte_by_hand(model: TRM, data_dir: Path, settings: Settings) -> None:
    data = open_data(data_dir)
    rows = data.validation_rows(settings)
    alone = World(0, 1, CPU)
    result = evaluate(model, data, rows, alone, batch=3, eval_tokens=10**9, autocast=nullcontext)
    nats, size_bytes, scored = 0.0, 0, 0
    tokens = [int(each) for each in data.validation]
    sequence = settings.sequence
    for start in range(0, len(tokens) - sequence, sequence):
        window = torch.tensor([tokens[start : start + sequence + 1]])
        losses = model.losses(window[:, :-1], window[:, 1:], per_token=True)[-1, 0]
        for loss, target in zip(losses.tolist(), window[0, 1:].tolist(), strict=True):
            if target == data.tokenizer.bos:
                continue
            nats += loss
            scored += 1
            size_bytes += int(data.tokenizer.byte_lengths()[target])
    assert (result.tokens, result.bytes) == (scored, size_bytes)
    assert result.bits_per_byte == pytest.approx(nats / math.log(2) / size_bytes, rel=1e-6)
    assert result.step_losses[-1] == pytest.approx(nats / scored, rel=1e-6)
    assert len(result.step_losses) == settings.supervision_steps


@pytest.mark.parametrize("ranks", [2, 3, 7])
def test_ranks_divide_the_windows_without_loss_or_double_counting(
    model: TRM, data_dir: Path, settings: Settings, ranks: int
) -> None:
    data = open_data(data_dir)
    rows = data.validation_rows(settings)
    alone = PartWorld(0, 1, CPU)
    evaluate(model, data, rows, alone, batch=2, eval_tokens=400, autocast=nullcontext)
    parts = [PartWorld(rank, ranks, CPU) for rank in range(ranks)]
    for part in parts:
        evaluate(model, data, rows, part, batch=2, eval_tokens=400, autocast=nullcontext)
    summed = torch.stack([part.__dict__["kept"] for part in parts]).sum(dim=0)
    torch.testing.assert_close(summed, alone.__dict__["kept"], rtol=1e-6, atol=0)


def test_all_ranks_take_equally_many_batches(
    model: TRM, data_dir: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven ranks, ten rows: some have two, some have one."""
    data = open_data(data_dir)
    taken = []
    real = model.evaluate
    for rank in range(7):
        calls: list[torch.Size] = []

        def watch(ids: Tensor, *rest: Any, calls: list[torch.Size] = calls) -> Tensor:
            calls.append(ids.shape)
            return real(ids, *rest)

        monkeypatch.setattr(model, "evaluate", watch)
        rows = data.validation_rows(settings)
        evaluate(
            *(model, data, rows, PartWorld(rank, 7, CPU)),
            batch=1,
            eval_tokens=10 * settings.sequence,
            autocast=nullcontext,
        )
        taken.append(calls)
    assert taken == [[torch.Size((1, settings.sequence))] * 2] * 7


def test_special_tokens_do_not_count(model: TRM, data_dir: Path, settings: Settings) -> None:
    data = open_data(data_dir)
    lengths = token_bytes(data, settings.vocab_size)
    assert lengths[data.tokenizer.bos] == 0
    assert lengths[data.tokenizer.vocab_size :].sum() == 0
    assert len(lengths) == settings.vocab_size


def test_windows_are_fixed_and_spread_over_the_whole_text() -> None:
    assert validation_rows(100, 10, 50) == [0, 20, 40, 60, 80]
    assert validation_rows(100, 10, 10**6) == list(range(100))
    assert validation_rows(1, 10, 1) == [0]


# -- exact match --------------------------------------------------------------------------------
# Exact match behind ``####``: thirty answers written by hand, the interval, and whole files.


#: What a model said, and the number that it comes to.
BY_HAND: tuple[tuple[str, str | None], ...] = (
    ("She has 16 - 3 = 13.\n#### 13", "13"),
    ("#### 0", "0"),
    ("####7", "7"),
    ("####     42   ", "42"),
    ("####\t42\n", "42"),
    ("#### 1,000", "1000"),
    ("#### 1,234,567", "1234567"),
    ("#### 1000.00", "1000"),
    ("#### -5", "-5"),
    ("#### - 5", "-5"),
    ("#### \u22125", "-5"),
    ("#### +5", "5"),
    ("#### $18", "18"),
    ("#### -$18.50", "-18.5"),
    ("#### $ 1,200.75", "1200.75"),
    ("#### .5", "0.5"),
    ("#### 3.14159", "3.14159"),
    ("#### 007", "7"),
    ("#### 12.", "12"),
    ("#### 12, as was asked", "12"),
    ("#### 25%", "25"),
    ("#### 18 dollars", "18"),
    ("#### 4\n#### 5", "4"),
    ("#### none\n#### 6", "6"),
    ("The answer is 13.", None),
    ("#### ", None),
    ("####\n13", None),
    ("### 13", None),
    ("#### 1,23", None),
    ("#### 1.2.3", None),
)


@pytest.mark.parametrize(("said", "number"), BY_HAND)
def test_the_number_of_an_answer(said: str, number: str | None) -> None:
    assert final_number(said) == (None if number is None else Decimal(number))


def test_an_answer_is_said_when_its_line_has_ended() -> None:
    for text in ("12 + 3", "#### ", "####\n", "#### 1", "#### 12", "#### none\n"):
        assert not is_final_number_complete(text), text
    assert is_final_number_complete("#### 12\n")
    assert is_final_number_complete("#### 12 dollars\n")


@pytest.mark.parametrize(
    ("right", "of", "low", "high"),
    # The first four are Newcombe's (1998, table I, method 3), to his four decimals.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611),
     (1, 29, 0.0061, 0.1718), (29, 29, 0.8830, 1.0)],
)  # fmt: skip
def test_the_interval_is_wilsons(right: int, of: int, low: float, high: float) -> None:
    assert wilson(right, of) == pytest.approx((low, high), abs=5e-5)


GOOD = {"question": "What is 2 + 3?", "answer": "2 + 3 = 5\n#### 5"}
LINES = [
    json.dumps(GOOD),
    "",
    "{not json",
    "[1]",
    json.dumps({"question": "What?"}),
    json.dumps({"answer": "#### 5"}),
    json.dumps({**GOOD, "question": 3}),
    json.dumps({**GOOD, "answer": "five"}),
    json.dumps({**GOOD, "answer": "#### five"}),
    json.dumps({"question": "And 4 + 4?", "answer": "#### 8"}),
]


def test_every_line_that_is_no_item_is_told() -> None:
    items, bad = read_items(LINES)
    assert [(item.question, item.number) for item in items] == [
        ("What is 2 + 3?", Decimal(5)),
        ("And 4 + 4?", Decimal(8)),
    ]
    assert bad == [
        BadLine(3, "not JSON"),
        BadLine(4, "no object"),
        BadLine(5, "no answer"),
        BadLine(6, "no question"),
        BadLine(7, "no question"),
        BadLine(8, "no #### in its answer"),
        BadLine(9, "no number after ####"),
    ]
    assert read_items(LINES, limit=1) == (items[:1], [])


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "items.jsonl"
    path.write_text("\n".join([*LINES, json.dumps({**GOOD, "question": "a dog " * 40})]) + "\n")
    return path


def test_a_checkpoint_is_asked_and_all_is_accounted_for(
    checkpoint: Path, questions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--checkpoint", str(checkpoint), "--items", str(questions), "--max-tokens", "8"]
    assert main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["items"], told["correct"], told["exact_match"]) == (3, 0, 0.0)
    assert (told["low"], told["high"]) == pytest.approx(wilson(0, 3))
    assert (told["without_number"], told["not_asked"], told["bad_lines"]) == (2, 1, 7)
    assert told["bad"][0] == {"line": 3, "why": "not JSON"}
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "0 of 3, 0.0% (95 % interval 0.0% to 56.1%)" in shown
    assert "not asked:     1" in shown
    assert "left out:      7 lines: line 3: not JSON; " in shown
    assert shown.rstrip().endswith("2 more")


def test_right_ones_counted(
    checkpoint: Path, questions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solve_module, "answer", lambda *_: ["so #### 5.0\n", "#### 9", None])
    told = solve(checkpoint, questions)
    assert (told["items"], told["correct"], told["without_number"]) == (3, 1, 0)
    monkeypatch.setattr(solve_module, "answer", lambda *_: ["#### 5"])
    assert solve(checkpoint, questions, limit=1)["exact_match"] == 1.0


@pytest.mark.parametrize("lines", ["", "{}\n", "\n\n"])
def test_a_file_without_items_is_refused(
    checkpoint: Path, tmp_path: Path, lines: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "none.jsonl"
    path.write_text(lines)
    assert main(["--checkpoint", str(checkpoint), "--items", str(path)]) == 9
    told = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert told["where"] == str(path)
    assert main(["--checkpoint", str(checkpoint), "--items", str(tmp_path / "nowhere")]) == 9


def test_more_questions_than_go_together_are_each_answered_as_alone(checkpoint: Path) -> None:
    from model.training.load import load_model

    loaded = load_model(checkpoint)
    generator = torch.Generator().manual_seed(1)
    for weight in loaded.model.parameters():  # so that it says something else each time
        weight.data.add_(torch.randn(weight.shape, generator=generator) * 0.3)
    asked = [f"{'the ' * (number % 3)}{number}?" for number in range(20)]
    together = answer(loaded, asked, 9)
    assert together == [answer(loaded, [each], 9)[0] for each in asked]
    assert len(set(together)) > 10
    char_only = replace(loaded, tokenizer=_Lacking())  # type: ignore[arg-type]
    assert answer(char_only, ["?"], 9) == [None]


class _Lacking:
    """A tokenizer whose vocabulary lacks everything."""

    vocab_size, bos = 2, 1

    def encode(self, texts: object, places: object) -> list[Any]:
        from trmcloud.core.errors import DataError

        raise DataError("the tokenizer has no character")
