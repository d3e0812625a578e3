"""Bits per byte: by hand, without special tokens, and the same however many ranks divide it."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from model.data.folder import open_data
from model.families.trm.model import TRM, Shape
from model.families.trm.plan import Settings
from model.machine.distributed import World
from model.training.evaluate import evaluate, token_bytes, validation_rows

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


def test_special_tokens_count_neither_nats_nor_bytes(
    model: TRM, data_dir: Path, settings: Settings
) -> None:
    data = open_data(data_dir)
    lengths = token_bytes(data, settings.vocab_size)
    assert lengths[data.tokenizer.bos] == 0
    assert lengths[data.tokenizer.vocab_size :].sum() == 0
    assert len(lengths) == settings.vocab_size


def test_windows_are_fixed_and_spread_over_the_whole_text() -> None:
    assert validation_rows(100, 10, 50) == [0, 20, 40, 60, 80]
    assert validation_rows(100, 10, 10**6) == list(range(100))
    assert validation_rows(1, 10, 1) == [0]
