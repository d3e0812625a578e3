"""Block diffusion against its definitions, and through the trainer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from model.data.batch import RowSelection
from model.data.folder import open_data
from model.data.order import Tokens
from model.data.packing import PAD, document_starts
from model.data.stream import RowLayout, rows_of
from model.families import masked_diffusion
from model.families.attention import attend
from model.families.bd3lm.model import BlockDiffusion
from model.families.cache import Cache
from model.families.dense import Shape
from model.families.drawing import _nucleus
from model.families.masked_diffusion import SPANS, WHOLE, Span, blocks_of, noisy_and_clean_places
from model.families.protocol import Sampling
from model.preparing.corpus import load_data_set, local_corpus
from model.preparing.readers import documents, units_of
from model.training import loop
from model.training.checkpoint import read_tensors
from model.training.evaluate import evaluate
from tests.model.attempts import (
    check_best_is_saved,
    check_learns_is_scored_and_asked,
    check_resumed,
    dying_at,
)
from tests.model.bounds import check_bound, nats_of_hidden, weight
from tests.model.models import shaken
from tests.model.test_evaluate import PartWorld
from tests.settings import changed
from trmcloud.core.errors import DataError, UsageError
from trmcloud.core.spec.settings import PhaseRecipe

# -- block diffusion ----------------------------------------------------------------------------
# Block diffusion against its definitions: who sees whom, the bound by enumeration, the sampler.


SHAPE = Shape(vocab_size=11, depth=2, width=32, head_dim=16, sequence=16, mlp="gelu")
BLOCK, MASK, END = 4, 10, 0


def make(shape: Shape = SHAPE, block: int = BLOCK, std: float = 0.2) -> BlockDiffusion:
    return shaken(BlockDiffusion(shape, block), std)


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


@pytest.mark.parametrize("row", [1, 6, 17, 24, 64])
def test_the_mask_is_the_definition_for_every_block_that_divides(row: int) -> None:
    even = ([block] * (row // block) for block in range(1, row + 1) if row % block == 0)
    for lengths in (*even, [5, 1, 8, 2]):
        seen = masked_diffusion.table(noisy_and_clean_places(blocks_of(lengths)))
        assert torch.equal(seen, mask_by_hand(lengths)), lengths


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("row", "block"), [(64, 16), (48, 4), (40, 40)])
def test_flex_attention_mixes_what_sdpa_does(row: int, block: int) -> None:
    generator = torch.Generator().manual_seed(row)
    q, k, v = (torch.randn(2, 2, 2 * row, 16, generator=generator) for _ in range(3))
    places = noisy_and_clean_places(blocks_of([block] * (row // block)))
    rule = {"causal": False, "dropout": 0.0}
    by_table = attend(q, k, v, masked_diffusion.table(places), **rule)  # type: ignore[arg-type]
    by_tiles = attend(q, k, v, masked_diffusion.tiles(places), **rule)  # type: ignore[arg-type]
    torch.testing.assert_close(by_tiles, by_table, rtol=0, atol=1e-5)


def test_a_later_block_and_padding_change_nothing_to_the_last_bit() -> None:
    model, x = make(), tokens(2)
    draws = RowSelection.alone(2)
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
    whole = masked_diffusion.times(RowSelection(7, 40, range(6), 6), 5, span)
    assert sorted(((whole.flatten() - 0.3) / 0.5 * 30).int().tolist()) == list(range(30))
    assert (whole.std(dim=1) > 0.02).all(), "a row's blocks have times of their own"
    parts = [
        masked_diffusion.times(RowSelection(7, 40, rows, 6), 5, span)
        for rows in ([4, 1], [0, 2, 3, 5])
    ]
    assert torch.equal(torch.cat(parts), whole[[4, 1, 0, 2, 3, 5]])
    hidden = masked_diffusion.thresholds(RowSelection(7, 40, range(6), 6), 9)
    assert torch.equal(masked_diffusion.thresholds(RowSelection(7, 40, [5], 6), 9), hidden[5:])
    for other in (RowSelection(8, 40, range(6), 6), RowSelection(7, 46, range(6), 6)):
        assert not torch.equal(masked_diffusion.times(other, 5, span), whole)
        assert not torch.equal(masked_diffusion.thresholds(other, 9), hidden)


def test_a_token_is_hidden_as_often_as_its_time_says() -> None:
    draws = RowSelection(0, 0, range(500), 500)
    hidden = masked_diffusion.thresholds(draws, 40) < 0.3
    assert float(hidden.float().mean()) == pytest.approx(0.3, abs=0.01)


# -- the bound ---------------------------------------------------------------------------------


def bound_by_enumeration(model: BlockDiffusion, x: Tensor) -> float:
    """Σ over blocks and sets M hidden of ∫ t^(m−1)·(1−t)^(L'−m) dt · Σ over M of −ln p."""
    total, block = 0.0, model.block
    for start, hidden in product(range(0, x.shape[1], block), product((False, True), repeat=block)):
        if places := [start + each for each in range(block) if hidden[each]]:
            total += weight(len(places), block) * nats_of_hidden(model, x, x, places)
    return total


@torch.no_grad()
def test_the_bound_is_what_enumeration_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape(vocab_size=5, depth=1, width=8, head_dim=8, sequence=6, mlp="gelu")
    model = make(shape, block=3, std=0.5)
    x = torch.tensor([[0, 3, 1, 2, 2, 0]])
    exact = bound_by_enumeration(model, x)
    check_bound(monkeypatch, model, x, exact)
    assert abs(exact / 6 - math.log(4)) > 0.1, "weights that say something"


def test_a_loss_is_the_mean_over_what_is_no_padding() -> None:
    model, x = make(), tokens(3)
    x[0, 8:] = x[2, 4:] = PAD
    draws = RowSelection(1, 2, range(3), 3)
    nats = model.evaluate(x, x, draws)[0]
    made = model.loss(x, x, draws)
    assert float(made.loss) == pytest.approx(float(nats.sum()) / (8 + 16 + 4), rel=1e-6)
    assert made.nats.tolist() == [float(made.loss)]


def test_nothing_visible_costs_and_the_mask_is_never_predicted() -> None:
    model, x = make(), tokens(64)
    draws = RowSelection(3, 0, range(64), 64)
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
        model.loss(x, x, RowSelection(0, step, range(16), 16)).loss.backward()
        adam.step()
        adam.zero_grad()
    return model


@pytest.fixture(scope="module")
def chain_model() -> BlockDiffusion:
    return learnt(chain, 150)


def test_clipping_to_the_chosen_span_lowers_the_variance_of_the_bound() -> None:
    model, number = learnt(loaded_dice, 15), 400
    x = loaded_dice(number, 99)
    draws = RowSelection(0, 1, range(number), number)
    model.adapt(model.tallied(model.evaluate(x, x, draws), x, draws).tolist())
    chosen = model.span
    assert chosen != WHOLE

    @torch.no_grad()
    def variance(span: Span, group: int) -> float:
        nats = model._bound(x, RowSelection(5, group, range(number), number), span)
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


class FakeTokenizer:
    def byte_lengths(self) -> Any:
        import numpy as np

        return np.array([0, *[1] * 9])


class FakeData:
    tokenizer = FakeTokenizer()
    meta: ClassVar[Mapping[str, Any]] = {}


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
    with pytest.raises(UsageError, match="a sequence of 16 is not a multiple of blocks of 5"):
        BlockDiffusion(SHAPE, 5)


# -- block diffusion training -------------------------------------------------------------------
# Block diffusion through the trainer: rows of one text each, and a run that is cut and gone on.


pytestmark = pytest.mark.usefixtures("keep_generator")
NewRun = Callable[..., Any]
WORDS = ("the", "a", "small", "dog", "cat", "sees", "eats", "blue", "42", "ünder")

DIFFUSION: dict[str, Any] = {
    **{"family": "bd3lm", "mlp": "gelu", "rows": "padded", "block": 4, "sequence": 32, "depth": 1},
    **{"optimizer": "adamw", "matrix_lr": 1e-2, "embedding_lr": 1e-2, "head_lr": 1e-2},
    **{"schedule": "constant", "width": 16, "head_dim": 8, "batch": 4},
}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory, settings: PhaseRecipe) -> Path:
    """Sixty short texts and four that no row has room for, prepared."""
    from model.preparing.whole import prepare

    folder = tmp_path_factory.mktemp("texts")
    source = folder / "source"
    source.mkdir()
    chosen = np.random.default_rng(1)
    for number in range(64):
        words = chosen.choice(WORDS, 120 if number % 16 == 7 else chosen.integers(4, 14))
        (source / f"{number:02}.txt").write_text(" ".join(words) + ".", encoding="utf-8")
    made = changed(settings, **DIFFUSION, vocab_size=301, validation_fraction=0.2)
    prepare(str(source), made, folder / "data")
    return folder / "data"


@pytest.fixture
def new_diffusion(new_run: NewRun, texts: Path) -> NewRun:
    def make(name: str = "run", **changes: Any) -> Any:
        return new_run(name, prepared=texts, **{**DIFFUSION, "vocab_size": 301, **changes})

    return make


# -- rows --------------------------------------------------------------------------------------


def test_a_row_is_one_text_its_end_up_to_its_block_and_padding() -> None:
    bos, three, seven, eight = 9, [9, 1, 2, 3], [9, *range(1, 8)], [9, *range(1, 9)]
    tokens = np.array([*three, *seven, *eight, 9], np.uint16)
    rows = rows_of(tokens, RowLayout("padded", sequence=8, bos=bos, block=4))
    assert (rows.count, rows.left_out) == (3, 1), "eight tokens and their end are nine"
    end, pads = [9], [PAD]
    assert rows.read([0, 1, 2]).tolist() == [
        [*three, *end, *pads * 4],
        [*seven, *end],
        [9, *end * 4, *pads * 4],
    ]
    one = rows_of(np.array([9, 1, 2], np.uint16), RowLayout("padded", sequence=8, bos=bos, block=8))
    assert one.read([0]).tolist() == [[9, 1, 2, *end * 6]]


def test_every_text_is_read_once_an_epoch_whole(texts: Path, settings: PhaseRecipe) -> None:
    data = open_data(texts)
    made = changed(settings, **DIFFUSION, vocab_size=301)
    stream = data.train_stream(made)
    from model.data.folder import ShardFeeder

    ShardFeeder(data, stream)
    read = stream.read(range(stream.rows))
    tokens = np.fromfile(texts / "train.bin", data.dtype)
    whole = np.split(tokens, document_starts(tokens, data.tokenizer.bos))[1:]
    fitting = sorted(text.tolist() for text in whole if len(text) <= 32)
    assert stream.left_out == len(whole) - len(fitting) > 0
    bos = data.tokenizer.bos
    assert sorted([bos, *(i for i in row if i not in (bos, PAD))] for row in read) == fitting


def test_lines_of_this_machine_are_texts_where_a_row_is_one(tmp_path: Path) -> None:
    lines = tmp_path / "mine.jsonl"
    lines.write_text(json.dumps({"question": "1 + 1?", "answer": "2\n#### 2"}) + "\n")
    assert local_corpus(str(lines)) is None
    corpus = local_corpus(str(lines), by_rows=True, like="gsm8k")
    assert corpus is not None
    [unit] = units_of(corpus.data_set, "mine.jsonl", lines)
    [[text]] = documents(corpus.data_set, "mine.jsonl", lines, unit, 0)
    assert text == "1 + 1?\n2\n#### 2"
    plain = local_corpus(str(lines), by_rows=True, like="python-stdlib")
    assert plain is not None
    assert plain.data_set.fields == ("text",)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"question": "why?"}, "without 'answer' at byte 44"),
        ({"answer": "#### 4"}, "without 'question' at byte 44"),
        ({"question": " ", "answer": "#### 4"}, "an empty 'question' at byte 44"),
        ({"question": "why?", "answer": "four"}, "'answer' without #### and a result"),
        ({"question": "why?", "answer": "so it is ####"}, "without #### and a result"),
        ({"question": "why?", "answer": 4}, "no JSON object with text"),
    ],
)
def test_a_line_that_is_no_problem_with_an_answer_is_told_by_its_place(
    tmp_path: Path, row: dict[str, Any], told: str
) -> None:
    path = tmp_path / "train.jsonl"
    good = json.dumps({"question": "why?", "answer": "so #### 1"}) + "\n"
    path.write_text(good + json.dumps(row) + "\n")
    data_set = load_data_set("gsm8k")
    [unit] = units_of(data_set, "train.jsonl", path)
    with pytest.raises(DataError) as error:
        list(documents(data_set, "train.jsonl", path, unit, 0))
    assert told.replace("byte 44", f"byte {len(good)}") in error.value.what


def test_texts_of_which_none_fits_are_refused(new_diffusion: NewRun) -> None:
    run = new_diffusion(sequence=4)
    assert run.train_here() == "bad_data"
    assert "fits into a row of 4 tokens" in run.heartbeat.message


@pytest.mark.parametrize(
    ("changes", "told", "next_step"),
    [
        ({"block": 5}, "a sequence of 32 is not a multiple of blocks of 5", "--set block=4"),
        ({"block": 64}, "a sequence of 32 is not a multiple of blocks of 64", "--set block=32"),
        ({"block": 0}, "block must be above zero", ""),
        ({"family": "gpt"}, "gpt would also learn the padding", "--set rows=bestfit"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(
    settings: PhaseRecipe, changes: dict[str, Any], told: str, next_step: str
) -> None:
    with pytest.raises(UsageError, match=told) as error:
        changed(settings, **{**DIFFUSION, **changes}).check()
    assert next_step in error.value.next_step


# -- a run -------------------------------------------------------------------------------------

CUT: dict[str, Any] = {
    **{"steps": 16, "save_every": 8, "eval_every": 4, "eval_tokens": 10**6, "keep_best": 9},
    **{"ema": True, "dropout": 0.1, "accumulation": 2},
}
PUBLISHED: dict[str, Any] = {"conditioning": "adaln", "resample": True}


@pytest.fixture
def fickle_span(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another span after every evaluation, by the last bits of what was tallied."""

    def any_span(tallies: Sequence[float]) -> masked_diffusion.Span:
        return masked_diffusion.SPANS[int(sum(tallies) * 1e6) % len(masked_diffusion.SPANS)]

    monkeypatch.setattr(masked_diffusion, "least_variance", any_span)


@pytest.mark.usefixtures("fickle_span")
@pytest.mark.parametrize(
    ("where", "parts"),
    [
        ("in an evaluation", {}),
        ("between", PUBLISHED),
        ("after one", {**PUBLISHED, "optimizer": "muon"}),
    ],
    ids=str,
)
def test_a_killed_run_resumes_to_the_last_bit(
    new_diffusion: NewRun, monkeypatch: pytest.MonkeyPatch, where: str, parts: dict[str, Any]
) -> None:
    whole = new_diffusion("whole", **CUT, **parts)
    assert whole.train_here() == "finished"
    spans = [(line["mask_from"], line["mask_to"]) for line in whole.metrics("train")]
    assert len(set(spans)) > 1, "the span changes, or nothing is shown"
    broken = new_diffusion("broken", **CUT, **parts)

    def evaluated(model: Any, *rest: Any, **more: Any) -> Any:
        if where == "in an evaluation" and len(broken.metrics("eval")) == 3:
            raise RuntimeError("struck by lightning")
        return evaluate(model, *rest, **more)

    with monkeypatch.context() as patch:
        dying_at(patch, {"between": 10, "after one": 8}.get(where, -1))
        patch.setattr(loop, "evaluate", evaluated)
        assert broken.train_here() == "crashed"
    check_resumed(broken, whole, from_step=8)


def test_accumulation_is_the_big_batch(new_diffusion: NewRun) -> None:
    made = {}
    for batch, accumulation in ((8, 1), (2, 4)):
        run = new_diffusion(f"by-{batch}", batch=batch, accumulation=accumulation, steps=6)
        assert run.train_here() == "finished"
        folder = run.out / "checkpoints/step-00000006"
        made[batch] = (
            read_tensors(folder, run.manifests()[6], "weights"),
            [line[key] for line in run.metrics("train") for key in ("loss", "grad_norm")],
        )
    for name, weights in made[8][0].items():
        torch.testing.assert_close(made[2][0][name], weights, rtol=1e-3, atol=1e-5)
    assert made[2][1] == pytest.approx(made[8][1], rel=1e-3)


def test_it_learns_tells_what_it_left_out_is_scored_and_asked(
    new_diffusion: NewRun, texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = new_diffusion(steps=60, eval_every=60, eval_tokens=10**6, ema=True, tied=True)
    asked = ("the small dog", "--top-p", "0.9")
    (first, *_, last), scored, text = check_learns_is_scored_and_asked(run, texts, capsys, *asked)
    assert text.startswith("the small dog")
    assert last["val_bpb"] < 0.8 * first["val_bpb"]
    assert last["perplexity"] == pytest.approx(np.exp(last["val_step_losses"][-1]))
    [warning] = [line for line in run.metrics("warning") if "texts_left_out" in line]
    assert warning["texts_left_out"] == 4
    assert "longer than a row of 32 tokens" in warning["message"]
    assert scored["bits_per_token"] == pytest.approx(last["val_step_losses"][-1] / np.log(2))
    counted = open_data(texts)
    ids = [i for i in counted.validation.tolist() if i != counted.tokenizer.bos]
    shares = np.unique(ids, return_counts=True)[1] / len(ids)
    assert scored["token_unigram_bits"] == pytest.approx(-(shares * np.log2(shares)).sum())


def test_another_familys_checkpoint_is_refused(new_diffusion: NewRun) -> None:
    same = {"rows": "stream", "steps": 2}
    run = new_diffusion(**same, family="gpt")
    assert run.train_here() == "finished"
    folder = run.out / "checkpoints/step-00000002"
    run.job = replace(run.job, settings=new_diffusion(**same).job.settings)
    assert run.train_here(attempt=2) == "bad_checkpoint"
    assert "family gpt → bd3lm" in run.heartbeat.message
    begun = new_diffusion("begun", **same, initial_weights=str(folder))
    assert begun.train_here() == "bad_checkpoint"


def test_the_best_between_two_saves_is_saved(new_diffusion: NewRun) -> None:
    check_best_is_saved(new_diffusion, dropout=0.1)
