"""Plan diffusion against its definitions, and through the trainer."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from model import sample, solve
from model.data.batch import RowSelection
from model.data.folder import ShardFeeder, open_data
from model.data.packing import GIVEN, PAD
from model.data.stream import RowLayout, rows_of
from model.families import masked_diffusion
from model.families.cache import Cache
from model.families.dense import Shape
from model.families.hdp.model import PlanDiffusion
from model.families.masked_diffusion import WHOLE, RowPlaces, Span
from model.families.protocol import Sampling
from model.preparing import readers
from model.preparing.cache import Cache as PreparingCache
from model.preparing.corpus import Corpus, check_parts, load_data_set, local_corpus
from model.preparing.growing import PreparationOptions, grow
from model.preparing.readers import parts_of, plan_of
from model.training.load import load_model
from tests.model.attempts import check_best_is_saved, check_learns_is_scored_and_asked
from tests.model.bounds import check_bound, nats_of_hidden, weight
from tests.model.models import shaken
from tests.settings import changed
from trmcloud.core.contract.trainer_contract import load_shard
from trmcloud.core.errors import DataError, UsageError
from trmcloud.core.spec.settings import PhaseRecipe

# -- plan diffusion -----------------------------------------------------------------------------
# Plan and execution by diffusion, against their definitions: who sees whom, the bound, the end.


SEGMENTS = (4, 6, 8)
QUESTION, PLAN, EXECUTION = SEGMENTS
SHAPE = Shape(vocab_size=11, depth=2, width=32, head_dim=16, sequence=18, mlp="gelu")
MASK, END = 10, 0


def make(
    shape: Shape = SHAPE, segments: tuple[int, int, int] = SEGMENTS, std: float = 0.2
) -> PlanDiffusion:
    return shaken(PlanDiffusion(shape, segments), std)


def row(*parts: list[int], segments: tuple[int, int, int] = SEGMENTS) -> Tensor:
    """The targets of one text."""
    made = []
    for number, (part, length) in enumerate(zip(parts, segments, strict=True)):
        ids = [*part, END]
        ids = [GIVEN - each for each in ids] if number == 0 else ids
        made += ids + [PAD] * (length - len(ids))
    return torch.tensor([made])


def rows(number: int, seed: int = 1) -> Tensor:
    """Texts of every length."""
    chosen = torch.Generator().manual_seed(seed)

    def part(length: int) -> list[int]:
        size = int(torch.randint(length, (), generator=chosen))
        return torch.randint(1, MASK, (size,), generator=chosen).tolist()

    return torch.cat([row(*map(part, SEGMENTS)) for _ in range(number)])


# -- who sees whom -----------------------------------------------------------------------------


def mask_by_hand(segments: tuple[int, int, int]) -> Tensor:
    """[noisy plan ; noisy execution ; clean question ; clean plan], rectangle by rectangle."""
    q, p, e = segments
    noisy_plan, noisy_execution = slice(0, p), slice(p, p + e)
    question, plan = slice(p + e, p + e + q), slice(p + e + q, p + e + q + p)
    seen = torch.zeros(e + q + 2 * p, e + q + 2 * p, dtype=torch.bool)
    for query, keys in (
        (noisy_plan, (noisy_plan, question)),
        (noisy_execution, (noisy_execution, question, plan)),
        (question, (question,)),
        (plan, (plan, question)),
    ):
        for key in keys:
            seen[query, key] = True
    return seen


def places_of(segments: tuple[int, int, int]) -> RowPlaces:
    model = PlanDiffusion(replace(SHAPE, sequence=sum(segments)), segments)
    return RowPlaces(model.seen_of, sum(segments[1:]))


@pytest.mark.parametrize("question", [1, 2, 7, 16])
def test_the_mask_is_the_definition_for_every_plan_and_execution(question: int) -> None:
    for plan, execution in product(range(1, 25), (1, 3, 16, 23)):
        segments = (question, plan, execution)
        seen = masked_diffusion.table(places_of(segments))
        assert torch.equal(seen, mask_by_hand(segments)), segments


@torch.no_grad()
def test_an_execution_never_changes_a_plans_logits_to_the_last_bit() -> None:
    model = make()
    clean, _ = model._filled(rows(3))
    noisy = clean[:, QUESTION:].clone()
    noisy[:, 1::2] = MASK
    before = model._logits(model._noisy_states(noisy, clean))
    plan, execution = before[:, :PLAN], before[:, PLAN:]
    for place, token in product(range(EXECUTION), (MASK, END, 5)):
        changed, behind = noisy.clone(), clean.clone()
        changed[:, PLAN + place] = token
        behind[:, QUESTION + PLAN + place] = min(token, 9)
        after = model._logits(model._noisy_states(changed, behind))
        assert torch.equal(after[:, :PLAN], plan)
        if not torch.equal(changed, noisy):
            assert not torch.equal(after[:, PLAN:], execution), "and the execution's it does"
    # The other way about: an execution sees the plan that is clean, and no noisy one.
    changed = noisy.clone()
    changed[:, 0] = 7
    assert torch.equal(model._logits(model._noisy_states(changed, clean))[:, PLAN:], execution)
    behind = clean.clone()
    behind[:, QUESTION] = 7
    assert not torch.equal(model._logits(model._noisy_states(noisy, behind))[:, PLAN:], execution)


@torch.no_grad()
def test_a_plans_bound_is_the_same_whatever_is_executed() -> None:
    model, draws = make(), RowSelection.alone(1)
    one = row([1, 2], [3, 4, 5], [6, 7])
    other = row([1, 2], [3, 4, 5], [9, 8, 7, 6, 5])
    plan = slice(QUESTION, QUESTION + PLAN)
    made = [model.evaluate(x, x, draws)[0] for x in (one, other)]
    assert torch.equal(made[0][:, plan], made[1][:, plan])
    assert made[0][:, plan].any()
    assert not torch.equal(made[0], made[1])


# -- the bound ---------------------------------------------------------------------------------


def bound_by_enumeration(model: PlanDiffusion, parts: list[list[int]]) -> float:
    """Σ over both segments and sets M of drawn places of ∫ t^(m−1)·(1−t)^(L−m) dt · Σ of −ln p over
    those of M behind no visible end, with all that is behind one shown."""
    question, *lengths = model.segments
    filled = [part + [END] * (n - len(part)) for part, n in zip(parts, model.segments, strict=True)]
    clean = torch.tensor([[id for part in filled for id in part]])
    total, start = 0.0, 0
    for number, length in enumerate(lengths, start=1):
        for drawn in product((False, True), repeat=length):
            seen_ends = [at for at in range(length) if not drawn[at] and at >= len(parts[number])]
            places = [
                start + at
                for at in range(length)
                if drawn[at] and not any(end <= at for end in seen_ends)
            ]
            if places:
                nats = nats_of_hidden(model, clean[:, question:], clean, places)
                total += weight(sum(drawn), length) * nats
        start += length
    return total


@torch.no_grad()
@pytest.mark.parametrize("parts", [[[3], [1, 2], [2, 1]], [[1], [], [3]]], ids=["full", "empty"])
def test_the_bound_is_what_enumeration_gives(
    monkeypatch: pytest.MonkeyPatch, parts: list[list[int]]
) -> None:
    segments = (2, 3, 3)
    shape = Shape(vocab_size=5, depth=1, width=8, head_dim=8, sequence=8, mlp="gelu")
    model = make(shape, segments, std=0.5)
    exact = bound_by_enumeration(model, parts)
    check_bound(monkeypatch, model, row(*parts, segments=segments), exact)
    assert exact > 0


def test_what_an_end_costs_stands_at_the_last_token_before_it() -> None:
    model, draws = make(), RowSelection(4, 0, range(40), 40)
    x = row([1, 2], [3, 4], [5]).expand(40, -1)
    nats = model.evaluate(x, x, draws)[0]
    text = [QUESTION, QUESTION + 1, QUESTION + PLAN]
    others = [each for each in range(SHAPE.sequence) if each not in text]
    assert (nats[:, others] == 0).all()
    assert (nats[:, text].sum(dim=0) > 0).all()
    # The last token is visible here and there, and still its end costs.
    at = masked_diffusion.times(draws, 2, WHOLE)[:, model.block_of]
    visible = masked_diffusion.thresholds(draws, PLAN + EXECUTION) >= at
    assert (nats[visible[:, 1] & ~visible[:, 2], QUESTION + 1] > 0).all()


def test_behind_a_visible_end_nothing_is_hidden_or_costs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make()
    asked: list[Tensor] = []
    states = model._noisy_states

    def noted(noisy: Tensor, clean: Tensor) -> Tensor:
        asked.append(noisy)
        return states(noisy, clean)

    monkeypatch.setattr(model, "_noisy_states", noted)
    x, draws = rows(200), RowSelection(0, 7, range(200), 200)
    model.evaluate(x, x, draws)
    [noisy] = asked
    assert (noisy == MASK).any()
    for segment in noisy.split(SEGMENTS[1:], dim=1):
        ended = (segment == END).long().cummax(dim=1).values.bool()
        assert (segment[ended] == END).all()
        assert ended.any()


def test_a_loss_is_the_mean_over_tokens_and_ends_and_its_parts_make_it_up() -> None:
    model, x = make(), torch.cat([row([1], [2, 3], [4, 5, 6]), row([], [], [7])])
    draws = RowSelection(1, 2, range(2), 2)
    nats = model.evaluate(x, x, draws)[0]
    made = model.loss(x, x, draws)
    assert made.loss.item() == pytest.approx(float(nats.sum()) / (3 + 4 + 1 + 2), rel=1e-6)
    plan, execution = (made.parts[name].item() for name in ("plan", "execution"))
    assert plan + execution == pytest.approx(made.loss.item())
    assert plan == pytest.approx(float(nats[:, 4:10].sum()) / 10, rel=1e-6)


def test_times_are_one_for_the_plan_and_one_for_the_execution() -> None:
    model, number = make(), 300
    x = row([1], [2, 3, 4, 5], [6, 7, 8, 9, 1, 2]).expand(number, -1)
    draws = RowSelection(0, 0, range(number), number)
    nats = model.evaluate(x, x, draws)
    tallied = model.tallied(nats, x, draws).view(3, -1)
    assert int(tallied[0, masked_diffusion.SPANS.index(Span(1e-3, 1.0))]) == 2 * number
    sums = float(nats[0, :, 4:10].sum() / 5 + nats[0, :, 10:].sum() / 7)
    assert float(tallied[1, 0]) == pytest.approx(sums, rel=1e-5)
    model.adapt(tallied.flatten().tolist())
    assert model.diagnostics([])["mask_to"] == model.span.high


# -- texts -------------------------------------------------------------------------------------


def sampling(**changes: Any) -> Sampling:
    base = Sampling(
        max_tokens=50, temperature=0.0, top_k=0, top_p=1.0, seed=0, known_ids=10, stop=END
    )
    return replace(base, **changes)


def worked(first: int) -> tuple[list[int], list[int], list[int]]:
    """A question, the plan that follows from it, and what that comes to."""
    return [first, 1], [first % 9 + 1] * (first % 4 + 1), [(first + 3) % 9 + 1, 9, 9, 2]


@pytest.fixture(scope="module")
def learnt() -> PlanDiffusion:
    model, steps = make(std=0.0), 300
    adam = torch.optim.Adam(model.parameters(), 5e-3)
    rate = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.05, steps)
    x = torch.cat([row(*worked(each % 9 + 1)) for each in range(18)])
    for step in range(steps):
        model.loss(x, x, RowSelection(0, step, range(18), 18)).loss.backward()
        adam.step()
        rate.step()
        adam.zero_grad()
    return model


def test_a_question_gets_its_plan_an_end_and_its_execution(learnt: PlanDiffusion) -> None:
    right = 0
    for first in range(1, 10):
        question, plan, execution = worked(first)
        made = list(learnt.generate([END, *question], sampling()))
        assert made.count(END) == 1
        right += made == [*plan, END, *execution]
        assert list(learnt.generate([END, *question], sampling(max_tokens=4))) == made[:4]
    assert right >= 8


def test_an_execution_is_drawn_to_the_plan_that_was(
    learnt: PlanDiffusion, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[list[int]] = []
    real = PlanDiffusion.denoise

    def denoise(self: PlanDiffusion, ids: Tensor, cache: Cache, *, keep: bool) -> Tensor:
        if keep:
            kept.append(ids[0].tolist())
        return real(self, ids, cache, keep=keep)

    monkeypatch.setattr(PlanDiffusion, "denoise", denoise)
    made = list(learnt.generate([END, 4, 1], sampling(temperature=1.0, seed=3)))
    question, plan = kept
    assert question == [4, 1, END, END]
    said = made[: made.index(END)]
    assert plan == said + [END] * (PLAN - len(said))


def test_segments_that_are_kept_give_the_logits_of_one_pass() -> None:
    model = make()
    clean, _ = model._filled(row([1, 2], [3, 4, 5], [6, 7, 8, 9]))
    noisy = clean[:, QUESTION:].clone()
    noisy[0, [1, 2, 8, 9]] = MASK
    with torch.no_grad():
        plan, execution = model._logits(model._noisy_states(noisy, clean)).split(
            SEGMENTS[1:], dim=1
        )
    cache = Cache(SHAPE.sequence)
    model.denoise(clean[:, :QUESTION], cache, keep=True)
    made = model.denoise(noisy[:, :PLAN], cache, keep=False)
    torch.testing.assert_close(made, plan, rtol=1e-4, atol=1e-5)
    model.denoise(clean[:, QUESTION : QUESTION + PLAN], cache, keep=True)
    made = model.denoise(noisy[:, PLAN:], cache, keep=False)
    torch.testing.assert_close(made, execution, rtol=1e-4, atol=1e-5)


def test_a_question_that_its_segment_has_no_room_for_is_refused() -> None:
    model = make()
    assert model.most_given == 4
    assert list(model.generate([END, 1, 2, 3], sampling(max_tokens=1)))
    with pytest.raises(DataError, match="the prompt has 4 tokens; a question may have at most 3"):
        list(model.generate([END, 1, 2, 3, 4], sampling()))


def test_segments_that_do_not_make_up_the_sequence_are_refused() -> None:
    with pytest.raises(UsageError, match="segments of 4, 6, 9 do not add up to a sequence of 18"):
        PlanDiffusion(SHAPE, (4, 6, 9))


# -- plan diffusion training --------------------------------------------------------------------
# Plan diffusion through the trainer: rows in segments, and a run that is cut and gone on.


pytestmark = pytest.mark.usefixtures("keep_generator")
NewRun = Callable[..., Any]

IN_SEGMENTS: dict[str, Any] = {
    **{"family": "hdp", "mlp": "gelu", "rows": "segments", "depth": 1, "data": "gsm8k"},
    **{"question_tokens": 16, "plan_tokens": 16, "execution_tokens": 32, "sequence": 64},
    **{"optimizer": "adamw", "matrix_lr": 1e-2, "embedding_lr": 1e-2, "head_lr": 1e-2},
    **{"schedule": "constant", "width": 16, "head_dim": 8, "batch": 4, "vocab_size": 301},
}
TOO_LONG = 6


def sums(number: int, seed: int = 0) -> list[dict[str, str]]:
    """Questions with worked answers; every tenth has a plan that is too long."""
    chosen = random.Random(seed)
    made = []
    for each in range(number):
        a, b = chosen.randint(2, 99), chosen.randint(2, 9)
        rest = " So it is, ünder all that" * 3 if each % 10 == 3 else ""
        made.append(
            {
                "question": f"A dog eats {a} and {b}.",
                "answer": f"It eats {a}+{b}=<<{a}+{b}={a + b}>>{a + b}.{rest}\n#### {a + b}",
            }
        )
    return made


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def corpus_of(path: Path) -> Corpus:
    corpus = local_corpus(str(path), by_rows=True, like="gsm8k")
    assert corpus is not None
    return corpus


def prepared(path: Path, settings: PhaseRecipe, out: Path) -> Path:
    """The file's texts as tokens in ``out``; the cache lies beside the file."""
    means = PreparationOptions({}, path.parent / "cache", workers=1)
    grow(corpus_of(path), settings, out, means, wanted=10**6, tokenizer="")
    return out


@pytest.fixture(scope="module")
def made(settings: PhaseRecipe) -> PhaseRecipe:
    return changed(settings, **IN_SEGMENTS, validation_fraction=0.2)


@pytest.fixture(scope="module")
def in_segments(tmp_path_factory: pytest.TempPathFactory, made: PhaseRecipe) -> Path:
    """Sixty worked sums, six of them too long, prepared."""
    folder = tmp_path_factory.mktemp("sums")
    return prepared(write(folder / "sums.jsonl", sums(60)), made, folder / "data")


@pytest.fixture
def new_hdp(new_run: NewRun, in_segments: Path) -> NewRun:
    def make(name: str = "run", **changes: Any) -> Any:
        return new_run(name, prepared=in_segments, **{**IN_SEGMENTS, **changes})

    return make


# -- plans -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("solution", "plan"),
    [
        ("She sold 48/2 = <<48/2=24>>24 clips.", "She sold _/_ = _ clips."),
        ("That is $1,000.50, or 3.5%.", "That is $_, or _%."),
        ("So 12 x .5=<<12*.5=6>>6.\nThen 6-1=<<6-1=5>>5", "So _ x _=_.\nThen _-_=_"),
        ("Half of it: <<10/2=5>> five.", "Half of it: _ five."),
        ("A 2nd dog, 5 < 6 and 7 >> 1.", "A _nd dog, _ < _ and _ >> _."),
        ("Ünder ten ovens, twice.\n", "Ünder ten ovens, twice."),
        ("", ""),
    ],
)
def test_a_plan_is_the_sentences_without_what_they_come_to(solution: str, plan: str) -> None:
    assert plan_of(solution) == plan


def test_the_execution_is_the_answer_as_it_is() -> None:
    answer = "He has 3 dogs.\nSo 3+4=<<3+4=7>>7\n#### 7"
    assert parts_of("Why?", answer, "####") == ("Why?", "He has _ dogs.\nSo _+_=_", answer)
    assert parts_of("Why?", "#### 7", "####") == ("Why?", "", "#### 7")


# -- rows --------------------------------------------------------------------------------------


def test_a_row_has_each_part_in_its_segment_with_one_end() -> None:
    bos, p = 9, PAD
    texts = [
        *(9, 1, 2, 9, 3, 9, 4, 5, 6),  # every part has room
        *(9, 1, 2, 3, 9, 3, 9, 4),  # a question of three and its end are four
        *(9, 1, 2, 9, 9, 4, 5, 6, 7, 8),  # no plan, and an execution with one token too many
        *(9, 9, 3, 4, 9),  # no question, and nothing to execute
    ]
    cut = RowLayout("segments", sequence=11, bos=bos, segments=(3, 3, 5))
    rows = rows_of(np.array(texts, np.uint16), cut)
    assert (rows.count, rows.left_out) == (2, 2)
    g = GIVEN
    assert rows.read([0, 1]).tolist() == [
        [9, g - 1, g - 2, g - 9, 3, 9, p, 4, 5, 6, 9, p],
        [9, g - 9, p, p, 3, 4, 9, 9, p, p, p, p],
    ]
    with pytest.raises(DataError, match="4 parts do not make whole texts of 3 parts each"):
        rows_of(np.array([9, 1, 9, 1, 9, 1, 9], np.uint16), cut)


def test_every_text_that_fits_is_read_once_an_epoch_whole(
    in_segments: Path, made: PhaseRecipe
) -> None:
    data = open_data(in_segments)
    stream = data.train_stream(made)
    ShardFeeder(data, stream)
    validation = data.validation_rows(made)
    read = [*stream.read(range(stream.rows)), *validation.read(range(validation.count))]
    assert stream.left_out + validation.left_out == TOO_LONG
    assert validation.count + validation.left_out == 12, "texts are held out, not parts of them"
    decode, seen = data.tokenizer.decode, []
    for row in read:
        ids = np.where(row <= GIVEN, GIVEN - row, row)[1:]
        segments = np.split(ids, np.cumsum(made.segments)[:2])
        assert [int((segment == data.tokenizer.bos).sum()) for segment in segments] == [1, 1, 1]
        seen.append(tuple(decode(segment[segment != PAD]) for segment in segments))
    texts = [parts_of(row["question"], row["answer"], "####") for row in sums(60)]
    assert sorted(seen) == sorted(each for each in texts if "ünder" not in each[1])


def test_tokens_know_their_purpose(in_segments: Path, made: PhaseRecipe, tmp_path: Path) -> None:
    data = open_data(in_segments)
    assert data.meta["segments"] == readers.VERSION
    assert data.meta["documents"] + data.meta["validation_documents"] == 60
    [line] = (in_segments / "shards.jsonl").read_bytes().splitlines(keepends=True)
    padded = replace(made, family="bd3lm", rows="padded")
    with pytest.raises(
        DataError, match="prepared in segments, but the settings ask for rows=padded"
    ):
        data.validation_rows(padded)
    # The same file for a family without segments: other tokens, none of them taken for these.
    path = in_segments.parent / "sums.jsonl"
    for name, settings in (("plain", padded), ("again", made)):
        prepared(path, settings, tmp_path / name)
    with pytest.raises(
        DataError, match="prepared without segments, but the settings ask for rows=segments"
    ):
        open_data(tmp_path / "plain").validation_rows(made)
    hashes = [
        load_shard((tmp_path / name / "shards.jsonl").read_bytes()).sha256
        for name in ("plain", "again")
    ]
    assert hashes[0] != hashes[1] == load_shard(line).sha256
    assert open_data(tmp_path / "again").tokenizer_sha256 == data.tokenizer_sha256
    cache = PreparingCache(tmp_path)
    file = corpus_of(path).train[0]
    assert cache.tokens(corpus_of(path), file, "x", " segments 1") != cache.tokens(
        corpus_of(path), file, "x", ""
    )


def test_texts_without_a_worked_answer_are_refused(tmp_path: Path) -> None:
    lines = write(tmp_path / "mine.jsonl", [{"text": "a"}])
    check_parts(corpus_of(lines), str(lines))
    check_parts(replace(corpus_of(lines), data_set=load_data_set("gsm8k")), "gsm8k")
    plain = local_corpus(str(lines), by_rows=True, like="python-stdlib")
    for corpus in (None, plain):
        with pytest.raises(DataError, match="questions with worked answers") as error:
            check_parts(corpus, str(lines))
        assert "--data gsm8k" in error.value.next_step


@pytest.mark.parametrize(
    ("changes", "told", "next_step"),
    [
        (
            {"plan_tokens": 20},
            "segments of 16, 20 and 32 tokens do not add up to a sequence of 64",
            "--set sequence=68",
        ),
        ({"plan_tokens": 0}, "plan_tokens must be above zero", ""),
        ({"rows": "padded"}, "which rows=padded does not have", "--set rows=segm"),
        (
            {"family": "bd3lm"},
            "does not use question, plan and execution: rows=segments does not work with it",
            "--set rows=padded",
        ),
        (
            {"family": "gpt"},
            "does not use question, plan and execution: rows=segments does not work with it",
            "--set rows=bestfit",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(
    made: PhaseRecipe, changes: dict[str, Any], told: str, next_step: str
) -> None:
    made.check()
    with pytest.raises(UsageError, match=told) as error:
        changed(made, **changes).check()
    assert next_step in error.value.next_step


# -- a run -------------------------------------------------------------------------------------


def test_texts_of_which_none_fits_are_refused(new_hdp: NewRun) -> None:
    run = new_hdp(question_tokens=2, sequence=50)
    assert run.train_here() == "bad_data"
    assert "fits into segments of 2, 16 and 32 tokens" in run.heartbeat.message


def test_it_learns_tells_what_it_left_out_is_scored_and_asked(
    new_hdp: NewRun, in_segments: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = new_hdp(steps=60, eval_every=60, eval_tokens=10**6, ema=True)
    (first, *_, last), scored, text = check_learns_is_scored_and_asked(
        run, in_segments, capsys, "A dog eats 3 and 4."
    )
    asked, plan, *_ = text.split("\n\n", 2)
    assert asked == "A dog eats 3 and 4."
    assert plan
    assert last["val_bpb"] < 0.8 * first["val_bpb"]
    line = run.metrics("train")[-1]
    assert line["plan"] + line["execution"] == pytest.approx(line["loss"])
    [warning] = [line for line in run.metrics("warning") if "texts_left_out" in line]
    assert warning["texts_left_out"] == TOO_LONG
    assert (
        "longer than its segment of 16, 16 and 32 tokens, end token included" in warning["message"]
    )
    folder = run.out / "checkpoints/step-00000060"
    # Bytes and unigrams are those of plans and executions that fit: no question is scored.
    fitting = [
        text
        for number, row in enumerate(sums(60))
        if number % 5 == 0 and number % 10 != 3
        for text in parts_of(row["question"], row["answer"], "####")[1:]
    ]
    assert scored["bytes"] == sum(len(text.encode()) for text in fitting)
    data = open_data(in_segments)
    ids = np.concatenate(data.tokenizer.encode(fitting, fitting))
    assert scored["tokens"] == len(ids)
    shares = np.unique(ids, return_counts=True)[1] / len(ids)
    assert scored["token_unigram_bits"] == pytest.approx(-(shares * np.log2(shares)).sum())

    long = ("--checkpoint", str(folder), "--prompt", "A dog " * 40)
    assert sample.main(long) == 9
    assert "a question may have at most 15" in capsys.readouterr().err

    items = write(
        tmp_path / "items.jsonl", [*sums(3), {"question": "dog " * 99, "answer": "#### 1"}]
    )
    told = solve.solve(folder, items)
    assert (told["items"], told["not_asked"], told["parts"]) == (4, 1, ["plan", "execution"])
    assert "all generated: plan, execution" in solve._as_text(told)


def test_a_plan_that_speaks_of_the_answer_answers_nothing(
    new_hdp: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_hdp(steps=1)
    assert run.train_here() == "finished"
    loaded = load_model(run.out / "checkpoints/step-00000001")
    tokenizer = loaded.tokenizer

    def generate(start: Any, sampling: Any) -> Any:
        plan, execution = tokenizer.encode(["#### 5\nso", "#### 7\nor"], ["", ""])
        yield from [*plan, tokenizer.bos, *execution][: sampling.max_tokens]

    monkeypatch.setattr(loaded.model, "generate", generate)
    assert solve.answer(loaded, ["Why?"], 512) == ["#### 7\n"]
    assert solve.answer(loaded, ["Why?"], 3) == [""], "no execution was begun"


def test_the_best_between_two_saves_is_saved(new_hdp: NewRun) -> None:
    check_best_is_saved(new_hdp, dropout=0.1, ema=True, accumulation=2)
