"""Block diffusion through the trainer: rows of one text each, and a run that is cut and gone on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model import sample, score
from model.data.folder import open_data
from model.data.packing import PAD, document_starts
from model.data.stream import Cut, rows_of
from model.families import masked_diffusion
from model.preparing.corpus import load_data_set, local_corpus
from model.preparing.readers import documents, units_of
from model.training import loop
from model.training.checkpoint import read_tensors
from model.training.evaluate import evaluate
from tests.settings import changed
from trmcloud.core.errors import DataError, UsageError
from trmcloud.core.spec.settings import PhaseRecipe

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
        run = new_run(name, **{**DIFFUSION, "vocab_size": 301, **changes})
        run.job = replace(run.job, data_dir=str(texts))
        return run

    return make


# -- rows --------------------------------------------------------------------------------------


def test_a_row_is_one_text_its_end_up_to_its_block_and_padding() -> None:
    bos, three, seven, eight = 9, [9, 1, 2, 3], [9, *range(1, 8)], [9, *range(1, 9)]
    tokens = np.array([*three, *seven, *eight, 9], np.uint16)
    rows = rows_of(tokens, Cut("padded", sequence=8, bos=bos, block=4))
    assert (rows.count, rows.left_out) == (3, 1), "eight tokens and their end are nine"
    end, pads = [9], [PAD]
    assert rows.read([0, 1, 2]).tolist() == [
        [*three, *end, *pads * 4],
        [*seven, *end],
        [9, *end * 4, *pads * 4],
    ]
    one = rows_of(np.array([9, 1, 2], np.uint16), Cut("padded", sequence=8, bos=bos, block=8))
    assert one.read([0]).tolist() == [[9, 1, 2, *end * 6]]


def test_every_text_is_read_once_an_epoch_whole(texts: Path, settings: PhaseRecipe) -> None:
    data = open_data(texts)
    made = changed(settings, **DIFFUSION, vocab_size=301)
    stream = data.train_stream(made)
    from model.data.folder import Supply

    Supply(data, stream)
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
        ({"question": "why?", "answer": "four"}, "'answer' without #### and what follows it"),
        ({"question": "why?", "answer": "so it is ####"}, "without #### and what follows it"),
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
    assert "fits a row of 4 tokens" in run.heartbeat.message


@pytest.mark.parametrize(
    ("changes", "told", "next_step"),
    [
        ({"block": 5}, "blocks of 5 do not divide a sequence of 32", "--set block=4"),
        ({"block": 64}, "blocks of 64 do not divide a sequence of 32", "--set block=32"),
        ({"block": 0}, "block must be above zero", ""),
        ({"family": "gpt"}, "gpt would learn the padding", "--set rows=bestfit"),
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


@pytest.fixture
def fickle_span(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another span after every evaluation, by the last bits of what was tallied."""

    def any_span(tallies: Sequence[float]) -> masked_diffusion.Span:
        return masked_diffusion.SPANS[int(sum(tallies) * 1e6) % len(masked_diffusion.SPANS)]

    monkeypatch.setattr(masked_diffusion, "least_variance", any_span)


@pytest.mark.usefixtures("fickle_span")
@pytest.mark.parametrize("where", ["between", "in an evaluation", "after one"])
def test_a_killed_run_resumes_to_the_last_bit(
    new_diffusion: NewRun, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    whole = new_diffusion("whole", **CUT)
    assert whole.train_here() == "finished"
    spans = [(line["mask_from"], line["mask_to"]) for line in whole.metrics("train")]
    assert len(set(spans)) > 1, "the span changes, or nothing is shown"
    broken = new_diffusion("broken", **CUT)
    real_step, real_evaluate = loop.Trainer._step, evaluate

    def step(self: Any) -> Any:
        if self._progress.step == {"between": 10, "after one": 8}.get(where):
            raise RuntimeError("struck by lightning")
        return real_step(self)

    def evaluated(model: Any, *rest: Any, **more: Any) -> Any:
        if where == "in an evaluation" and len(broken.metrics("save")) == 1:
            raise RuntimeError("struck by lightning")
        return real_evaluate(model, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "_step", step)
        patch.setattr(loop, "evaluate", evaluated)
        assert broken.train_here() == "crashed"
    assert broken.train_here(attempt=2) == "finished"
    assert broken.metrics("start")[-1]["from_step"] == 8
    assert broken.weights_at(16) == whole.weights_at(16)
    assert broken.exact_metrics() == whole.exact_metrics()


def test_accumulation_is_the_big_batch(new_diffusion: NewRun) -> None:
    made = {}
    for batch, accumulation in ((8, 1), (2, 4)):
        run = new_diffusion(f"by-{batch}", batch=batch, accumulation=accumulation, steps=6)
        assert run.train_here() == "finished"
        folder = run.out / "checkpoints/step-00000006"
        made[batch] = (
            read_tensors(folder, run.manifests()[6], "weights"),
            [line["loss"] for line in run.metrics("train")],
        )
    for name, weights in made[8][0].items():
        torch.testing.assert_close(made[2][0][name], weights, rtol=1e-3, atol=1e-5)
    assert made[2][1] == pytest.approx(made[8][1], rel=1e-4)


def test_it_learns_tells_what_it_left_out_is_scored_and_asked(
    new_diffusion: NewRun, texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = new_diffusion(steps=60, eval_every=60, eval_tokens=10**6, ema=True, tied=True)
    assert run.train_here() == "finished"
    first, *_, last = run.metrics("eval")
    assert last["val_bpb"] < 0.8 * first["val_bpb"]
    assert last["perplexity"] == pytest.approx(np.exp(last["val_step_losses"][-1]))
    [warning] = [line for line in run.metrics("warning") if "texts_left_out" in line]
    assert warning["texts_left_out"] == 4
    assert "longer than a row of 32 tokens" in warning["message"]
    folder = run.out / "checkpoints/step-00000060"
    scored = score.score(folder, texts)
    assert scored["val_bpb"] == pytest.approx(last["val_bpb"], rel=1e-5)
    assert scored["bits_per_token"] == pytest.approx(last["val_step_losses"][-1] / np.log(2))
    counted = open_data(texts)
    ids = [i for i in counted.validation.tolist() if i != counted.tokenizer.bos]
    shares = np.unique(ids, return_counts=True)[1] / len(ids)
    assert scored["token_unigram_bits"] == pytest.approx(-(shares * np.log2(shares)).sum())
    capsys.readouterr()
    asked = ("--checkpoint", str(folder), "--prompt", "the small dog", "--top-p", "0.9")
    assert sample.main(asked) == 0
    assert capsys.readouterr().out.startswith("the small dog")


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
