"""Plan diffusion through the trainer: rows in segments, and a run that is cut and gone on."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model import sample, score, solve
from model.data.folder import Supply, open_data
from model.data.packing import GIVEN, PAD
from model.data.stream import Cut, rows_of
from model.families.hdp.model import PlanDiffusion
from model.preparing import readers
from model.preparing.cache import Cache
from model.preparing.corpus import Corpus, check_parts, load_data_set, local_corpus
from model.preparing.growing import Means, grow
from model.preparing.readers import parts_of, plan_of
from model.training import loop
from model.training.checkpoint import read_tensors
from model.training.load import load_model
from tests.settings import changed
from trmcloud.core.contract.data_progress import load_shard
from trmcloud.core.errors import DataError, UsageError
from trmcloud.core.spec.settings import PhaseRecipe

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
    means = Means({}, path.parent / "cache", workers=1)
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
        run = new_run(name, **{**IN_SEGMENTS, **changes})
        run.job = replace(run.job, data_dir=str(in_segments))
        return run

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


def test_no_plan_of_a_worked_answer_holds_a_numeral() -> None:
    for row in sums(200, seed=5):
        plan = parts_of(row["question"], row["answer"], "####")[1]
        assert not any(each.isdigit() for each in plan)
        assert "<<" not in plan
        assert plan.startswith("It eats _+_=_.")


# -- rows --------------------------------------------------------------------------------------


def test_a_row_has_each_part_in_its_segment_with_one_end() -> None:
    bos, p = 9, PAD
    texts = [
        *(9, 1, 2, 9, 3, 9, 4, 5, 6),  # every part has room
        *(9, 1, 2, 3, 9, 3, 9, 4),  # a question of three and its end are four
        *(9, 1, 2, 9, 9, 4, 5, 6, 7, 8),  # no plan, and an execution with one token too many
        *(9, 9, 3, 4, 9),  # no question, and nothing to execute
    ]
    cut = Cut("segments", sequence=11, bos=bos, segments=(3, 3, 5))
    rows = rows_of(np.array(texts, np.uint16), cut)
    assert (rows.count, rows.left_out) == (2, 2)
    g = GIVEN
    assert rows.read([0, 1]).tolist() == [
        [9, g - 1, g - 2, g - 9, 3, 9, p, 4, 5, 6, 9, p],
        [9, g - 9, p, p, 3, 4, 9, 9, p, p, p, p],
    ]
    with pytest.raises(DataError, match="4 parts are no whole number of texts with 3 parts each"):
        rows_of(np.array([9, 1, 9, 1, 9, 1, 9], np.uint16), cut)


def test_every_text_that_fits_is_read_once_an_epoch_whole(
    in_segments: Path, made: PhaseRecipe
) -> None:
    data = open_data(in_segments)
    stream = data.train_stream(made)
    Supply(data, stream)
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


def test_tokens_know_what_they_were_made_for(
    in_segments: Path, made: PhaseRecipe, tmp_path: Path
) -> None:
    data = open_data(in_segments)
    assert data.meta["segments"] == readers.VERSION
    assert data.meta["documents"] + data.meta["validation_documents"] == 60
    [line] = (in_segments / "shards.jsonl").read_bytes().splitlines(keepends=True)
    padded = changed(made, family="bd3lm", rows="padded")
    with pytest.raises(DataError, match="prepared in segments, and rows=padded is asked for"):
        data.validation_rows(padded)
    # The same file for a family without segments: other tokens, none of them taken for these.
    path = in_segments.parent / "sums.jsonl"
    for name, settings in (("plain", padded), ("again", made)):
        prepared(path, settings, tmp_path / name)
    with pytest.raises(DataError, match="prepared without segments, and rows=segments is asked"):
        open_data(tmp_path / "plain").validation_rows(made)
    hashes = [
        load_shard((tmp_path / name / "shards.jsonl").read_bytes()).sha256
        for name in ("plain", "again")
    ]
    assert hashes[0] != hashes[1] == load_shard(line).sha256
    assert open_data(tmp_path / "again").tokenizer_sha256 == data.tokenizer_sha256
    cache = Cache(tmp_path)
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


def test_a_preparation_of_texts_without_questions_says_so_in_a_line(
    tmp_path: Path, made: PhaseRecipe
) -> None:
    (tmp_path / "settings.json").write_text(json.dumps(made.to_json()))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "model.prepare", "--source", "python-stdlib"),
            *("--settings", str(tmp_path / "settings.json"), "--out", str(tmp_path / "out")),
        ],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 9
    told = json.loads(done.stderr.splitlines()[-1])
    assert "questions with worked answers" in told["what"]
    assert told["where"] == "python-stdlib"


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"question": "why?"}, "a row without 'answer' at byte"),
        ({"answer": "#### 4"}, "a row without 'question' at byte"),
        ({"question": " ", "answer": "#### 4"}, "an empty 'question' at byte"),
        ({"question": "why?", "answer": "four"}, "an 'answer' without #### and what follows it"),
    ],
)
def test_a_line_that_is_no_problem_ends_the_preparation(
    tmp_path: Path, made: PhaseRecipe, row: dict[str, str], told: str
) -> None:
    path = write(tmp_path / "sums.jsonl", [*sums(3), row])
    with pytest.raises(DataError, match=told):
        prepared(path, made, tmp_path / "data")


@pytest.mark.parametrize(
    ("changes", "told", "next_step"),
    [
        (
            {"plan_tokens": 20},
            "segments of 16, 20 and 32 tokens do not make up a sequence of 64",
            "--set sequence=68",
        ),
        ({"plan_tokens": 0}, "plan_tokens must be above zero", ""),
        ({"rows": "padded"}, "a plan and an execution: rows=padded has none", "--set rows=segm"),
        ({"family": "bd3lm"}, "rows=segments is not for it", "--set rows=padded"),
        ({"family": "gpt"}, "rows=segments is not for it", "--set rows=bestfit"),
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

CUT: dict[str, Any] = {
    **{"steps": 16, "save_every": 8, "eval_every": 4, "eval_tokens": 10**6, "keep_best": 9},
    **{"ema": True, "dropout": 0.1, "accumulation": 2},
}


def test_a_killed_run_resumes_to_the_last_bit(
    new_hdp: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = new_hdp("whole", **CUT)
    assert whole.train_here() == "finished"
    broken = new_hdp("broken", **CUT)
    real = loop.Trainer._step

    def step(self: Any) -> Any:
        if self._progress.step == 10:
            raise RuntimeError("struck by lightning")
        return real(self)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "_step", step)
        assert broken.train_here() == "crashed"
    assert broken.train_here(attempt=2) == "finished"
    assert broken.metrics("start")[-1]["from_step"] == 8
    assert broken.weights_at(16) == whole.weights_at(16)
    assert broken.exact_metrics() == whole.exact_metrics()


def test_accumulation_is_the_big_batch(new_hdp: NewRun) -> None:
    made = {}
    for batch, accumulation in ((8, 1), (2, 4)):
        run = new_hdp(f"by-{batch}", batch=batch, accumulation=accumulation, steps=6)
        assert run.train_here() == "finished"
        folder = run.out / "checkpoints/step-00000006"
        weights = read_tensors(folder, run.manifests()[6], "weights")
        made[batch] = weights, [line["loss"] for line in run.metrics("train")]
    for name, tensor in made[8][0].items():
        torch.testing.assert_close(made[2][0][name], tensor, rtol=1e-3, atol=1e-5)
    assert made[2][1] == pytest.approx(made[8][1], rel=1e-4)


def test_it_trains_in_emulated_float8(new_hdp: NewRun) -> None:
    run = new_hdp(dtype="float8", float8="emulated", width=32, head_dim=16, steps=3)
    assert run.train_here() == "finished", run.heartbeat.message
    [line] = run.metrics("precision")
    assert (line["taken"], line["why"]) == ("float8 (emulated)", "asked for")


def test_where_flex_attention_fails_it_goes_on_by_a_table_and_says_so(
    new_hdp: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = new_hdp("plain", width=32, head_dim=16, steps=3)
    assert plain.train_here() == "finished"
    assert plain.metrics("attention") == []
    monkeypatch.setattr(PlanDiffusion, "_wants_rule", lambda self, device: True)
    run = new_hdp(width=32, head_dim=16, steps=3)
    assert run.train_here() == "finished"  # on a processor it runs forward alone
    [line] = run.metrics("attention")
    [[name, why]] = line["left"]
    assert name == "FlexAttention"
    assert why.endswith("SDPA by a table takes its place")
    assert run.weights_at(3) == plain.weights_at(3)


def test_texts_of_which_none_fits_are_refused(new_hdp: NewRun) -> None:
    run = new_hdp(question_tokens=2, sequence=50)
    assert run.train_here() == "bad_data"
    assert "fits segments of 2, 16 and 32 tokens" in run.heartbeat.message


def test_it_learns_tells_what_it_left_out_is_scored_and_asked(
    new_hdp: NewRun,
    in_segments: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = new_hdp(steps=60, eval_every=60, eval_tokens=10**6, ema=True)
    assert run.train_here() == "finished"
    first, *_, last = run.metrics("eval")
    assert last["val_bpb"] < 0.8 * first["val_bpb"]
    line = run.metrics("train")[-1]
    assert line["plan"] + line["execution"] == pytest.approx(line["loss"])
    [warning] = [line for line in run.metrics("warning") if "texts_left_out" in line]
    assert warning["texts_left_out"] == TOO_LONG
    assert "longer than its segment of 16, 16 and 32 tokens with its end" in warning["message"]
    folder = run.out / "checkpoints/step-00000060"
    scored = score.score(folder, in_segments)
    assert scored["val_bpb"] == pytest.approx(last["val_bpb"], rel=1e-5)
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

    capsys.readouterr()
    assert sample.main(("--checkpoint", str(folder), "--prompt", "A dog eats 3 and 4.")) == 0
    asked, plan, *_ = capsys.readouterr().out.split("\n\n", 2)
    assert asked == "A dog eats 3 and 4."
    assert plan
    long = ("--checkpoint", str(folder), "--prompt", "A dog " * 40)
    assert sample.main(long) == 9
    assert "a question has room for 15" in capsys.readouterr().err

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
