"""Block diffusion against its definitions: who sees whom, the bound by enumeration, the sampler."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from typing import Any, Callable

import pytest
import torch
from torch import Tensor

from model.data.batch import Draws
from model.data.order import Tokens
from model.data.packing import PAD
from model.families import masked_diffusion
from model.families.attention import attend
from model.families.bd3lm.model import BlockDiffusion
from model.families.cache import Cache
from model.families.dense import Shape
from model.families.drawing import _nucleus
from model.families.masked_diffusion import SPANS, WHOLE, Span, beside, blocks_of
from model.families.protocol import Sampling
from model.machine.distributed import World
from model.training.evaluate import evaluate
from trmcloud.core.errors import UsageError

SHAPE = Shape(vocab_size=11, depth=2, width=32, head_dim=16, sequence=16, mlp="gelu")
BLOCK, MASK, END = 4, 10, 0


def make(shape: Shape = SHAPE, block: int = BLOCK, std: float = 0.2) -> BlockDiffusion:
    """With weights that say something everywhere."""
    model = BlockDiffusion(shape, block)
    model.initialise(3)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator) * std)
    return model


def tokens(rows: int, shape: Shape = SHAPE, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    size = (rows, shape.sequence)
    return torch.randint(1, shape.vocab_size - 1, size, generator=generator)


# -- who sees whom -----------------------------------------------------------------------------


def mask_by_hand(lengths: list[int]) -> Tensor:
    """Block by block, as rectangles."""
    total = sum(lengths)
    seen = torch.zeros(2 * total, 2 * total, dtype=torch.bool)
    start = 0
    for length in lengths:
        noisy, clean = slice(start, start + length), slice(total + start, total + start + length)
        seen[noisy, noisy] = True
        seen[noisy, total : total + start] = True
        seen[clean, total : total + start + length] = True
        start += length
    return seen


@pytest.mark.parametrize("row", range(1, 65))
def test_the_mask_is_the_definition_for_every_block_that_divides(row: int) -> None:
    for block in (each for each in range(1, row + 1) if row % each == 0):
        lengths = [block] * (row // block)
        seen = masked_diffusion.table(beside(blocks_of(lengths)))
        assert torch.equal(seen, mask_by_hand(lengths)), block


def test_the_mask_of_blocks_of_different_lengths_is_the_definition() -> None:
    lengths = [5, 1, 8, 2]
    assert torch.equal(masked_diffusion.table(beside(blocks_of(lengths))), mask_by_hand(lengths))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("row", "block"), [(64, 16), (48, 4), (40, 40)])
def test_flex_attention_mixes_what_sdpa_does(row: int, block: int) -> None:
    generator = torch.Generator().manual_seed(row)
    q, k, v = (torch.randn(2, 2, 2 * row, 16, generator=generator) for _ in range(3))
    places = beside(blocks_of([block] * (row // block)))
    rule = {"causal": False, "dropout": 0.0}
    by_table = attend(q, k, v, masked_diffusion.table(places), **rule)  # type: ignore[arg-type]
    by_tiles = attend(q, k, v, masked_diffusion.tiles(places), **rule)  # type: ignore[arg-type]
    torch.testing.assert_close(by_tiles, by_table, rtol=0, atol=1e-5)


def test_a_later_block_and_padding_change_nothing_to_the_last_bit() -> None:
    model, x = make(), tokens(2)
    draws = Draws.alone(2)
    before = model.evaluate(x, x, draws)
    changed = x.clone()
    changed[:, 12:] = 5
    padded = x.clone()
    padded[:, 12:] = PAD
    for other in (changed, padded):
        assert torch.equal(model.evaluate(other, other, draws)[..., :12], before[..., :12])
    assert not model.evaluate(padded, padded, draws)[..., 12:].any()


# -- times and noise ---------------------------------------------------------------------------


def test_a_steps_times_are_one_in_every_part_of_the_span_however_rows_are_dealt_out() -> None:
    span = Span(0.3, 0.8)
    whole = masked_diffusion.times(Draws(7, 40, range(6), 6), 5, span)
    assert sorted(((whole.flatten() - 0.3) / 0.5 * 30).int().tolist()) == list(range(30))
    assert (whole.std(dim=1) > 0.02).all(), "a row's blocks have times of their own"
    parts = [
        masked_diffusion.times(Draws(7, 40, rows, 6), 5, span) for rows in ([4, 1], [0, 2, 3, 5])
    ]
    assert torch.equal(torch.cat(parts), whole[[4, 1, 0, 2, 3, 5]])
    hidden = masked_diffusion.thresholds(Draws(7, 40, range(6), 6), 9)
    assert torch.equal(masked_diffusion.thresholds(Draws(7, 40, [5], 6), 9), hidden[5:])
    for other in (Draws(8, 40, range(6), 6), Draws(7, 46, range(6), 6)):
        assert not torch.equal(masked_diffusion.times(other, 5, span), whole)
        assert not torch.equal(masked_diffusion.thresholds(other, 9), hidden)


def test_a_token_is_hidden_as_often_as_its_time_says() -> None:
    draws = Draws(0, 0, range(500), 500)
    hidden = masked_diffusion.thresholds(draws, 40) < 0.3
    assert float(hidden.float().mean()) == pytest.approx(0.3, abs=0.01)


# -- the bound ---------------------------------------------------------------------------------


def bound_by_enumeration(model: BlockDiffusion, x: Tensor) -> float:
    """Σ over blocks and sets M hidden of ∫ t^(m−1)·(1−t)^(L'−m) dt · Σ over M of −ln p."""
    total, block = 0.0, model.block
    for start, hidden in product(range(0, x.shape[1], block), product((False, True), repeat=block)):
        places = [start + each for each in range(block) if hidden[each]]
        if not places:
            continue
        noisy = x.clone()
        noisy[0, places] = model.mask_id
        # SUBS written out: the mask has no probability, all other ids share it.
        states = model._noisy_states(noisy, x)[0, places]
        rows = model.embedding.weight if model.head is None else model.head.weight
        logits = torch.nn.functional.linear(model.norm(states), rows)
        logits[:, model.mask_id] = -torch.inf
        nats = -logits.log_softmax(-1)[range(len(places)), x[0, places]].sum()
        number = len(places)
        beta = math.gamma(number) * math.gamma(block - number + 1) / math.gamma(block + 1)
        total += beta * float(nats)
    return total


@torch.no_grad()
def test_the_bound_is_what_enumeration_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape(vocab_size=5, depth=1, width=8, head_dim=8, sequence=6, mlp="gelu")
    model = make(shape, block=3, std=0.5)
    x = torch.tensor([[0, 3, 1, 2, 2, 0]])
    exact = bound_by_enumeration(model, x)
    # Of the same law, drawn at once: a weight of 1/t takes many rows to come to its mean.
    generator = torch.Generator().manual_seed(5)
    monkeypatch.setattr(
        masked_diffusion,
        "thresholds",
        lambda draws, n: torch.rand(draws.of, n, generator=generator),
    )
    number, drawn = 50_000, 0.0
    rows = x.expand(number, -1)
    for group in range(4):
        drawn += float(model.evaluate(rows, rows, Draws(0, group, range(number), number)).sum())
    assert drawn / (4 * number) == pytest.approx(exact, rel=0.01)
    assert abs(exact / 6 - math.log(4)) > 0.1, "weights that say something"


def test_a_loss_is_the_mean_over_what_is_no_padding() -> None:
    model, x = make(), tokens(3)
    x[0, 8:] = x[2, 4:] = PAD
    draws = Draws(1, 2, range(3), 3)
    nats = model.evaluate(x, x, draws)[0]
    made = model.loss(x, x, draws)
    assert float(made.loss) == pytest.approx(float(nats.sum()) / (8 + 16 + 4), rel=1e-6)
    assert made.nats.tolist() == [float(made.loss)]


def test_nothing_visible_costs_and_the_mask_is_never_predicted() -> None:
    model, x = make(), tokens(64)
    draws = Draws(3, 0, range(64), 64)
    nats = model.evaluate(x, x, draws)[0]
    at = masked_diffusion.times(draws, 4, WHOLE)[:, model.block_of]
    hidden = masked_diffusion.thresholds(draws, 16) < at
    assert (nats[~hidden] == 0).all()
    assert (nats[hidden] > 0).all()
    assert model._logits(torch.zeros(1, 32)).shape == (1, MASK)


def chain(rows: int, seed: int) -> Tensor:
    """Texts in which each id follows from the one before it."""
    starts = torch.randint(1, 10, (rows, 1), generator=torch.Generator().manual_seed(seed))
    return (starts + torch.arange(16)) % 9 + 1


def loaded_dice(rows: int, seed: int) -> Tensor:
    """Texts in which each id is drawn for itself, some more often than others."""
    shares = 0.5 ** torch.arange(9.0)
    generator = torch.Generator().manual_seed(seed)
    return shares.multinomial(rows * 16, True, generator=generator).view(rows, 16) + 1


def learnt(texts: Callable[[int, int], Tensor], steps: int) -> BlockDiffusion:
    model = make(std=0.0)
    adam = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(steps):
        x = texts(16, step)
        model.loss(x, x, Draws(0, step, range(16), 16)).loss.backward()
        adam.step()
        adam.zero_grad()
    return model


@pytest.fixture(scope="module")
def chain_model() -> BlockDiffusion:
    return learnt(chain, 150)


def test_clipping_to_the_chosen_span_lowers_the_variance_of_the_bound() -> None:
    model, number = learnt(loaded_dice, 15), 400
    x = loaded_dice(number, 99)
    draws = Draws(0, 1, range(number), number)
    model.adapt(model.tallied(model.evaluate(x, x, draws), x, draws).tolist())
    chosen = model.span
    assert chosen != WHOLE

    @torch.no_grad()
    def variance(span: Span, group: int) -> float:
        nats = model._bound(x, Draws(5, group, range(number), number), span)
        return float(nats.view(number, 4, 4).sum(dim=2).var())

    for group in (1, 2, 3):  # other draws than it was chosen by
        assert variance(chosen, group) < 0.5 * variance(WHOLE, group)
    other = make()
    other.load_state_dict(model.state_dict())
    assert other.span == chosen


def test_a_span_is_chosen_only_where_something_is_known_of_it() -> None:
    nothing = [0.0] * (3 * len(SPANS))
    assert masked_diffusion.least_variance(nothing) is None
    count, total, squares = ([0.0] * len(SPANS) for _ in range(3))
    count[0], total[0], squares[0] = 1000.0, 2000.0, 9000.0
    count[3], total[3], squares[3] = 800.0, 1600.0, 4000.0
    count[5], total[5], squares[5] = 20.0, 20.0, 20.0
    assert masked_diffusion.least_variance([*count, *total, *squares]) == SPANS[3]
    model = make()
    model.adapt(nothing)
    assert model.span == WHOLE


class PartWorld(World):
    """One of several ranks, run one after another: its sums are kept instead of reduced."""

    def total(self, values: Tensor) -> Tensor:
        self.__dict__["kept"] = values.detach().double()
        return self.__dict__["kept"]


class FakeTokenizer:
    def byte_lengths(self) -> Any:
        import numpy as np

        return np.array([0, *[1] * 9])


class FakeData:
    tokenizer = FakeTokenizer()


class FakeRows:
    count, left_out = 7, 0

    def read(self, rows: Any) -> Tokens:
        made = torch.cat([torch.zeros(7, 1, dtype=torch.int64), tokens(7)], dim=1)
        made[3, 9:] = PAD
        return made[list(rows)].numpy()


@pytest.mark.parametrize("batch", [1, 3])
def test_an_evaluation_is_the_same_for_any_number_of_ranks(batch: int) -> None:
    model, data, cpu = make(), FakeData(), torch.device("cpu")

    def sums(ranks: int, batch: int) -> Tensor:
        every = []
        for rank in range(ranks):
            world = PartWorld(rank, ranks, cpu)
            evaluate(
                *(model, data, FakeRows(), world),  # type: ignore[arg-type]
                batch=batch,
                eval_tokens=10**6,
                autocast=nullcontext,
            )
            every.append(world.__dict__["kept"])
        return torch.stack(every).sum(dim=0)

    alone = sums(1, 7)
    assert int(alone[1]) == 6 * 16 + 8
    for ranks in (1, 2, 3):
        torch.testing.assert_close(sums(ranks, batch), alone, rtol=1e-6, atol=1e-9)


# -- texts -------------------------------------------------------------------------------------


def sampling(**changes: Any) -> Sampling:
    base = Sampling(
        max_tokens=8, temperature=1.0, top_k=0, top_p=1.0, seed=0, known_ids=10, stop=END
    )
    return replace(base, **changes)


def test_finished_blocks_that_are_kept_give_the_logits_of_one_pass() -> None:
    model, x = make(), tokens(1)
    cache = Cache(16)
    for start in (0, 4, 8):
        noisy = x.clone()
        noisy[0, start + 1 : start + 3] = MASK
        with torch.no_grad():
            whole = model._logits(model._noisy_states(noisy, x))[:, start : start + 4]
        made = model.denoise(noisy[:, start : start + 4], cache, keep=False)
        torch.testing.assert_close(made, whole, rtol=1e-4, atol=1e-5)
        assert cache.length == start
        model.denoise(x[:, start : start + 4], cache, keep=True)
        assert cache.length == start + 4


def test_what_was_learnt_is_written_on_beyond_the_sequence(chain_model: BlockDiffusion) -> None:
    start = [END, *chain(1, 3)[0, :5].tolist()]
    made = list(chain_model.generate(start, sampling(max_tokens=23, temperature=0)))
    expected = [(start[-1] + each) % 9 + 1 for each in range(23)]
    assert len(made) == 23
    assert sum(a == b for a, b in zip(made, expected, strict=True)) >= 20
    longer = [END, *(each % 9 + 1 for each in range(40))]
    assert len(list(chain_model.generate(longer, sampling()))) == 8


def test_a_text_is_repeatable_and_holds_no_id_that_stands_for_nothing() -> None:
    model = make()
    drawn = [
        list(model.generate([END], sampling(seed=seed, known_ids=6, stop=-1, max_tokens=40)))
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == 40
    assert max(map(max, drawn)) < 6


def test_a_text_ends_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make()
    asked: list[list[int]] = []

    def third_ends(ids: Tensor, cache: Cache, *, keep: bool) -> Tensor:
        if keep:
            cache.begin(ids.shape[1])
            cache.end()
        asked.append(ids[0].tolist())
        logits = torch.full((1, 4, MASK), -50.0)
        logits[0, range(4), [7, 7, END, 3]] = 50.0
        if cache.length == 0:
            logits[0, 2, [END, 7]] = torch.tensor([-50.0, 50.0])
        return logits

    monkeypatch.setattr(model, "denoise", third_ends)
    assert list(model.generate([END, 5], sampling(max_tokens=30))) == [7, 7, 3, 7, 7]
    assert all(ids[3] in (MASK, 3, END) for ids in asked)


def test_the_nucleus_is_the_least_set_that_comes_to_the_share() -> None:
    weights = torch.tensor([0.1, 0.5, 0.15, 0.25])
    assert _nucleus(weights, 0.7).tolist() == pytest.approx([0.0, 0.5, 0.0, 0.25])
    assert _nucleus(weights, 0.01).count_nonzero() == 1
    assert torch.equal(_nucleus(weights, 0.9999), weights)


def test_blocks_that_do_not_divide_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="blocks of 5 do not divide a sequence of 16"):
        BlockDiffusion(SHAPE, 5)
