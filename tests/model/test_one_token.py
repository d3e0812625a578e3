"""One token of one text on a CPU, by the step made for it and by the whole model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from model.families import one_token
from model.families.cache import Cache
from model.families.dense import Dense, Shape
from model.families.drawing import make_sampler
from model.families.protocol import Sampling
from model.families.trm.model import TRM
from model.families.trm.model import Shape as TrmShape
from tests.model.models import shaken

CPU = torch.device("cpu")
DENSE = Shape(vocab_size=61, depth=3, width=32, head_dim=8, sequence=16, hidden=48)
TRM_SHAPE = TrmShape(
    vocab_size=61, depth=2, width=32, head_dim=8, supervision_steps=2, loops=2, sequence=16
)
_LEARNED: dict[str, Any] = {"norm": "layer", "positions": "learned"}
MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: Dense(DENSE),
    "nanochat": lambda: Dense(replace(DENSE, mlp="relu2", qk_norm=True, logit_cap=15.0)),
    "grouped": lambda: Dense(replace(DENSE, kv_heads=2, qk_norm=True, norm="layer")),
    "nanogpt": lambda: Dense(replace(DENSE, mlp="gelu", **_LEARNED)),
    "gpt2": lambda: Dense(
        replace(DENSE, mlp="gelu-tanh", tied=True, norm_embedding=False, **_LEARNED)
    ),
    "windows": lambda: Dense(replace(DENSE, windows="SSL", kv_heads=1)),
    "trm": lambda: TRM(TRM_SHAPE),
    "control": lambda: TRM(replace(TRM_SHAPE, control=True)),
}
every_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)


def trained(make: Callable[[], Any]) -> Any:
    return shaken(make()).eval()


@contextmanager
def counted(possible: bool = True) -> Iterator[list[int]]:
    """Counts the calls of such steps; without any where they are not ``possible``."""
    taken: list[int] = []
    real = one_token.Heads.__call__

    def call(*given: Any) -> Tensor:
        taken.append(1)
        return real(*given)

    never = patch.object(one_token, "is_possible", lambda *given: False)
    with patch.object(one_token.Heads, "__call__", call):
        if possible:
            yield taken
        else:
            with never:
                yield taken


@every_model
def test_its_logits_are_those_of_the_whole_text(make: Callable[[], Any]) -> None:
    model = trained(make)
    ids = torch.randint(61, (1, 16), generator=torch.Generator().manual_seed(1))
    cache = Cache(16)
    with counted() as taken:
        made = [model.decode(ids[:, :3], cache)]
        assert not taken
        made += [model.decode(ids[:, at : at + 1], cache) for at in range(3, 16)]
    assert len(taken) >= 13 * 3
    with torch.inference_mode():
        whole = model.logits(ids)[0, 2:]
    assert (torch.cat(made) - whole).abs().max() < 1e-4
    assert whole.std() > 0.01


@every_model
def test_the_same_seed_draws_the_same_ids(make: Callable[[], Any]) -> None:
    model = trained(make)
    for seed, temperature in enumerate((0.0, 1.0)):
        sampling = Sampling(40, temperature, 20, 0.95, seed, 61, -1)
        with counted(possible=False) as never:
            before = list(model.generate([1, 2], sampling))
        with counted() as taken:
            assert list(model.generate([1, 2], sampling)) == before
        assert len(before) == 40
        assert taken
        assert not never


@every_model
def test_the_last_of_several_texts_goes_on_as_alone(make: Callable[[], Any]) -> None:
    model = trained(make)
    alone = list(model.generate([3], Sampling(14, 1.0, 20, 1.0, 7, 61, -1)))
    rows = make_sampler(model, 4, CPU)
    rows.add([1, 2], Sampling(5, 1.0, 20, 1.0, 1, 61, -1))
    last = rows.add([3], Sampling(14, 1.0, 20, 1.0, 7, 61, -1))
    made: list[int] = []
    with counted() as taken:
        while step := rows.step():
            made += [token for text, token in step if text is last]
    assert made == alone
    assert taken


def test_weights_that_training_has_changed_are_used_by_the_next_text() -> None:
    model = trained(MODELS["llama"])
    sampling = Sampling(12, 0.0, 0, 1.0, 0, 61, -1)
    before = list(model.generate([1], sampling))
    model.embedding.weight.data = model.embedding.weight.data.flip(0).clone()
    with counted(possible=False):
        wanted = list(model.generate([1], sampling))
    assert list(model.generate([1], sampling)) == wanted != before


@pytest.mark.parametrize(
    ("shape", "dtype", "weight", "length", "possible"),
    [
        ((1, 1), torch.float32, torch.zeros(2), 4, True),
        ((1, 2), torch.float32, torch.zeros(2), 4, False),
        ((2, 1), torch.float32, torch.zeros(2), 4, False),
        ((1, 1), torch.bfloat16, torch.zeros(2), 4, False),
        ((1, 1), torch.float32, torch.zeros(2).double(), 4, False),
        ((1, 1), torch.float32, torch.zeros(2, device="meta"), 4, False),
        ((1, 1), torch.float32, torch.zeros(2), 0, False),
    ],
    ids=["one", "two-tokens", "two-texts", "bfloat16", "float64", "elsewhere", "first"],
)
def test_it_is_for_one_token_behind_others_on_a_cpu_in_float32(
    shape: tuple[int, int], dtype: torch.dtype, weight: Tensor, length: int, possible: bool
) -> None:
    cache, ids = Cache(16), torch.zeros(shape, dtype=torch.long)
    cache.length = length
    assert one_token.is_possible(ids, cache, dtype, weight) is possible


def test_small_matrices_take_one_thread_unless_the_user_said_how_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", taken.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    one_token.settle_threads(torch.nn.Linear(512, 513))
    assert taken == []
    one_token.settle_threads(torch.nn.Linear(512, 512))
    assert taken == [1]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    one_token.settle_threads(torch.nn.Linear(512, 512))
    assert taken == [1]
