"""Token by token: with a cache, alone or in rows with others, and by the step that is made for one
token of one text on a CPU."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from model.families import cache as cache_module
from model.families import one_token
from model.families.bd3lm.model import BlockDiffusion
from model.families.cache import Cache, RowCache
from model.families.drawing import Text, generate, is_batched, make_sampler
from model.families.protocol import Sampling
from tests.model.models import MODELS, SHAPE, VARIANTS, make_dense, make_model, shaken

CPU = torch.device("cpu")
VOCABULARY, SEQUENCE = SHAPE.vocab_size, SHAPE.sequence
ONE_TOKEN = [
    name
    for name in MODELS
    if name != "nanochat-2026" and "value_embeddings" not in VARIANTS.get(name, {})
]
"""Those with a step for one token."""
every_model = pytest.mark.parametrize("name", MODELS)


def sampling(**changes: Any) -> Sampling:
    base: dict[str, Any] = {
        **{"max_tokens": 12, "temperature": 0.8, "top_k": 20, "top_p": 1.0, "seed": 0},
        **{"known_ids": VOCABULARY - 2, "stop": -1},
    }
    return Sampling(**{**base, **changes})


@contextmanager
def counted(possible: bool = True) -> Iterator[list[int]]:
    """Counts the steps for one token; without any where they are not ``possible``."""
    taken: list[int] = []
    real, is_possible = one_token.Heads.__call__, one_token.is_possible

    def call(*given: Any) -> Tensor:
        taken.append(1)
        return real(*given)

    allowed = patch.object(
        one_token, "is_possible", is_possible if possible else lambda *given: False
    )
    with patch.object(one_token.Heads, "__call__", call), allowed:
        yield taken


@pytest.mark.parametrize(("rows", "sizes"), [(2, (5, 1, 1, 9)), (1, (3, *[1] * 13))])
@every_model
def test_decoding_with_a_cache_is_the_full_pass(
    name: str, rows: int, sizes: tuple[int, ...]
) -> None:
    model = make_model(name).eval()
    ids = torch.randint(VOCABULARY, (rows, 17), generator=torch.Generator().manual_seed(1))
    ids, targets = ids[:, :-1].contiguous(), ids[:, 1:]
    with torch.inference_mode():
        whole, judged = model.logits(ids), model.evaluate(ids, targets)[-1]
    expected = cross_entropy(whole.transpose(1, 2), targets, reduction="none")
    torch.testing.assert_close(judged, expected, atol=1e-5, rtol=1e-5)
    assert whole.std() > 0.01
    cache, at = Cache(SEQUENCE), 0
    with counted() as taken:
        for size in sizes:
            made = model.decode(ids[:, at : at + size], cache)
            at += size
            torch.testing.assert_close(made, whole[:, at - 1], atol=1e-4, rtol=0)
    assert len(taken) >= 13 * 3 if rows == 1 and name in ONE_TOKEN else not taken


@every_model
def test_no_token_sees_a_later_one(name: str) -> None:
    model = make_model(name)
    ids = torch.randint(VOCABULARY, (2, 17), generator=torch.Generator().manual_seed(1))
    ids, targets = ids[:, :-1].contiguous(), ids[:, 1:]
    changed = ids.clone()
    changed[:, 9:] = (changed[:, 9:] + 1) % VOCABULARY
    before = model.evaluate(ids, targets)[:, :, :9]
    assert torch.equal(before, model.evaluate(changed, targets)[:, :, :9])


def test_decoding_makes_one_mask_a_pass_none_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int, int]] = []
    real = cache_module.causal_mask

    def watch(new: int, past: int, window: int, device: torch.device) -> Tensor:
        made.append((new, past, window))
        return real(new, past, window, device)

    monkeypatch.setattr(cache_module, "causal_mask", watch)
    model, cache = make_dense(), Cache(SEQUENCE)
    for size in (5, 1):
        model.decode(torch.zeros((2, size), dtype=torch.long), cache)
        assert made == [(5, 0, 0)]


# -- rows ------------------------------------------------------------------------------------------


@every_model
def test_the_logits_of_a_row_are_those_of_the_text_alone(name: str) -> None:
    """Rows of different lengths; one leaves on the way, and another comes in its place."""
    model = make_model(name).eval()
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


@pytest.mark.parametrize(
    ("name", "temperature"), [("nanogpt", 0.0), ("speedrun", 0.8), ("grouped", 0.8), ("trm", 0.8)]
)
def test_a_text_does_not_depend_on_its_neighbours(name: str, temperature: float) -> None:
    """Five texts in three rows, beyond the trained sequence, each starting where another one has
    ended; the last is decoded alone."""
    model = make_model(name).eval()
    wishes = [
        ([1, 2, 3], sampling(seed=5, max_tokens=30, temperature=temperature)),
        ([4] * SEQUENCE, sampling(seed=6, temperature=temperature)),
        ([7], sampling(seed=5, max_tokens=1, temperature=temperature)),
        (list(range(40)), sampling(seed=7, temperature=temperature)),
        ([1, 2, 3], sampling(seed=8, max_tokens=25, temperature=temperature)),
    ]
    expected = [list(generate(model, start, wish, CPU)) for start, wish in wishes]
    together = make_sampler(model, 3, CPU)
    waiting = list(enumerate(wishes))
    made: list[list[int]] = [[] for _ in wishes]
    going: dict[Text, int] = {}
    with counted() as taken:
        while waiting or going:
            while waiting and len(going) < 3:
                number, (start, wish) = waiting.pop(0)
                going[together.add(start, wish)] = number
            for text, token in together.step():
                made[going[text]].append(token)
            going = {text: number for text, number in going.items() if not text.ended}
    assert made == expected
    assert [len(each) for each in made] == [30, 12, 1, 12, 25]
    assert bool(taken) == (name in ONE_TOKEN)


def test_a_text_ends_at_its_end_and_one_may_be_taken_out() -> None:
    together = make_sampler(make_model("grouped").eval(), 2, CPU)
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
    together = make_sampler(make_model("trm").eval(), 1, CPU)
    together.add([1], sampling())
    first = [token for _, token in together.step()]
    together.clear()
    assert together.step() == []
    together.add([1], sampling())
    assert [token for _, token in together.step()] == first


def test_a_family_that_is_not_asked_token_by_token_goes_on_in_turns() -> None:
    model = shaken(BlockDiffusion(SHAPE, 4)).eval()
    assert not is_batched(model)
    wishes = [([VOCABULARY - 1, 2], sampling(seed=seed, max_tokens=10)) for seed in (1, 2)]
    expected = [list(model.generate(start, wish)) for start, wish in wishes]
    turns = make_sampler(model, 2, CPU)
    texts = [turns.add(start, wish) for start, wish in wishes]
    made: dict[Text, list[int]] = {text: [] for text in texts}
    while not all(text.ended for text in texts):
        for text, token in turns.step():
            made[text].append(token)
    assert list(made.values()) == expected
    assert turns.step() == []


# -- one token -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ONE_TOKEN)
def test_the_same_seed_draws_the_same_ids(name: str) -> None:
    model = make_model(name).eval()
    for seed, temperature in enumerate((0.0, 1.0)):
        wish = sampling(max_tokens=24, temperature=temperature, top_p=0.95, seed=seed)
        with counted(possible=False) as never:
            before = list(model.generate([1, 2], wish))
        with counted() as taken:
            assert list(model.generate([1, 2], wish)) == before
        assert len(before) == 24
        assert taken
        assert not never


def test_weights_that_training_has_changed_are_used_by_the_next_text() -> None:
    model, wish = make_dense().eval(), sampling(temperature=0.0, top_k=0)
    before = list(model.generate([1], wish))
    model.embedding.weight.data = model.embedding.weight.data.flip(0).clone()
    with counted(possible=False):
        wanted = list(model.generate([1], wish))
    assert list(model.generate([1], wish)) == wanted != before


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
