"""Texts that are drawn together come out as each does alone, whoever its neighbours are."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from model.families.bd3lm.model import BlockDiffusion
from model.families.cache import Cache, RowCache
from model.families.dense import Dense, Shape
from model.families.drawing import NextToken, Text, drawing, generate, is_batched
from model.families.protocol import LanguageModel, Sampling
from model.families.trm.model import TRM
from model.families.trm.model import Shape as TrmShape

CPU = torch.device("cpu")
VOCABULARY, SEQUENCE = 61, 16
_DENSE: dict[str, Any] = {
    **{"vocab_size": VOCABULARY, "depth": 3, "width": 32, "head_dim": 8, "sequence": SEQUENCE},
    **{"hidden": 48, "kv_heads": 4, "norm": "rms"},
}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt": {},
    "grouped": {"kv_heads": 2, "qk_norm": True, "norm": "layer"},
    "learned-positions": {"mlp": "gelu", "norm": "layer", "positions": "learned"},
    "windows": {
        **{"mlp": "relu2", "qk_norm": True, "logit_cap": 15.0},
        **{"value_embeddings": True, "windows": "SSL"},
    },
}
TRMS = {"trm": False, "trm-control": True}
every_family = pytest.mark.parametrize("name", [*FAMILIES, *TRMS])


def make(name: str) -> LanguageModel:
    """With weights that say something everywhere."""
    model: LanguageModel
    if name in TRMS:
        shape = TrmShape(
            vocab_size=VOCABULARY, depth=2, width=32, head_dim=8, supervision_steps=2, loops=2,
            sequence=SEQUENCE, control=TRMS[name],
        )  # fmt: skip
        model = TRM(shape)
    else:
        model = Dense(Shape(**{**_DENSE, **FAMILIES[name]}))
    return _shaken(model)


def _shaken(model: LanguageModel) -> LanguageModel:
    model.initialise(3)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval()


def sampling(**changes: Any) -> Sampling:
    base: dict[str, Any] = {
        **{"max_tokens": 12, "temperature": 0.8, "top_k": 20, "top_p": 1.0, "seed": 0},
        **{"known_ids": VOCABULARY - 2, "stop": -1},
    }
    return Sampling(**{**base, **changes})


@every_family
def test_the_logits_of_a_row_are_those_of_the_text_alone(name: str) -> None:
    """Rows of different lengths; one leaves on the way, and another comes in its place."""
    model = make(name)
    assert isinstance(model, NextToken)
    chosen = random.Random(1)
    rows = RowCache(3, SEQUENCE)
    alone: list[Cache] = []

    def come(length: int) -> None:
        ids = torch.tensor([[chosen.randrange(VOCABULARY) for _ in range(length)]])
        beginning = Cache(length)
        model.decode(ids, beginning)
        rows.append(beginning)
        alone.append(Cache(SEQUENCE))
        model.decode(ids, alone[-1])

    worst = 0.0
    for length in (2, 9, 5):
        come(length)
    for number in range(6):
        if number == 3:
            rows.remove(0)
            alone[0] = alone.pop()
            come(1)
        ids = torch.tensor([[chosen.randrange(VOCABULARY)] for _ in alone])
        together = model.decode(ids, rows)
        singly = torch.cat([model.decode(ids[at : at + 1], each) for at, each in enumerate(alone)])
        worst = max(worst, float((together - singly).abs().max()))
        assert float(singly.std()) > 0.05
    assert worst < 1e-4


@every_family
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_text_does_not_depend_on_its_neighbours(name: str, temperature: float) -> None:
    """Five texts in three rows, beyond the trained sequence, each joining when one has left."""
    model = make(name)
    wishes = [
        ([1, 2, 3], sampling(seed=5, max_tokens=30, temperature=temperature)),
        ([4] * SEQUENCE, sampling(seed=6, temperature=temperature)),
        ([7], sampling(seed=5, max_tokens=1, temperature=temperature)),
        (list(range(40)), sampling(seed=7, temperature=temperature)),
        ([1, 2, 3], sampling(seed=8, max_tokens=25, temperature=temperature)),
    ]
    assert isinstance(model, NextToken)
    expected = [list(generate(model, start, wish, CPU)) for start, wish in wishes]
    together = drawing(model, 3, CPU)
    waiting = list(enumerate(wishes))
    made: list[list[int]] = [[] for _ in wishes]
    going: dict[Text, int] = {}
    while waiting or going:
        while waiting and len(going) < 3:
            number, (start, wish) = waiting.pop(0)
            going[together.add(start, wish)] = number
        for text, token in together.step():
            made[going[text]].append(token)
        going = {text: number for text, number in going.items() if not text.ended}
    assert made == expected
    assert [len(each) for each in made] == [30, 12, 1, 12, 25]


def test_a_text_ends_at_its_end_and_one_may_be_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("gpt")
    together = drawing(model, 2, CPU)
    ends = together.add([1, 2], sampling(max_tokens=50, known_ids=2, stop=1, temperature=5.0))
    gone = together.add([3], sampling(max_tokens=50))
    assert len(together.step()) >= 1
    together.remove(gone)
    together.remove(gone)
    for _ in range(50):
        assert all(text is ends for text, _ in together.step())
    assert ends.ended
    assert ends.drawn < 50
    assert together.step() == []


def test_after_clearing_a_drawing_is_as_new() -> None:
    model = make("trm")
    together = drawing(model, 1, CPU)
    together.add([1], sampling())
    first = [token for _, token in together.step()]
    together.clear()
    assert together.step() == []
    together.add([1], sampling())
    assert [token for _, token in together.step()] == first


def test_a_family_that_is_not_asked_token_by_token_goes_on_in_turns() -> None:
    shape = Shape(**_DENSE)
    model = _shaken(BlockDiffusion(shape, 4))
    assert not is_batched(model)
    wishes = [([VOCABULARY - 1, 2], sampling(seed=seed, max_tokens=10)) for seed in (1, 2)]
    expected = [list(model.generate(start, wish)) for start, wish in wishes]
    turns = drawing(model, 2, CPU)
    texts = [turns.add(start, wish) for start, wish in wishes]
    made: dict[Text, list[int]] = {text: [] for text in texts}
    while not all(text.ended for text in texts):
        for text, token in turns.step():
            made[text].append(token)
    assert list(made.values()) == expected
    assert turns.step() == []
