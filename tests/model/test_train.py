"""One attempt in this process: how it resumes, and how each kind of trouble is told."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable

import pytest
import torch

from model.machine.precision import LossScale
from model.training import checkpoint, loop
from model.training.checkpoint import read_manifest
from trmcloud.core.spec.settings import PhaseRecipe

NewRun = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("keep_generator")


def test_a_run_evaluates_saves_and_tells(new_run: NewRun) -> None:
    run = new_run(steps=25, keep_best=9)
    assert run.train_here() == "finished"
    assert [line["step"] for line in run.metrics("eval")] == [0, 10, 20, 25]
    assert [line["step"] for line in run.metrics("train")] == list(range(1, 26))
    assert sorted(run.manifests()) == [17, 20, 25], "17: before its cooldown"
    [start], [end] = run.metrics("start"), run.metrics("end")
    assert (start["from_step"], start["world_size"], start["attempt"]) == (0, 1, 1)
    assert start["params"] == 16 * 32**2 + 2 * 300 * 32
    assert (end["outcome"], end["step"]) == ("finished", 25)
    bpb = [line["val_bpb"] for line in run.metrics("eval")]
    assert bpb[-1] < bpb[0]
    beat = run.heartbeat
    assert (beat.state, beat.outcome, beat.step, beat.steps) == ("ended", "finished", 25, 25)
    assert beat.val_bpb == pytest.approx(bpb[-1])
    assert beat.saved_step == 25
    assert beat.landing_seconds is not None
    assert beat.tokens == 25 * 2 * 16


def test_a_train_line_keeps_reward_and_cross_entropy_apart(new_run: NewRun) -> None:
    run = new_run(steps=4)
    run.train_here()
    line = run.metrics("train")[-1]
    assert line["loss"] == pytest.approx((line["ce"] - line["reward"]) / 3)
    weights = [1 / 31, 5 / 31, 25 / 31]
    expected = sum(w * x for w, x in zip(weights, line["step_losses"], strict=True))
    assert line["ce"] == pytest.approx(expected, rel=1e-5)
    assert line["grad_norm"] > 0
    assert 0 < line["lr"] <= 1


def test_the_manifest_names_data_settings_and_score(new_run: NewRun, data_dir: Path) -> None:
    run = new_run(steps=10)
    run.train_here()
    manifest = run.manifests()[10]
    meta = json.loads((data_dir / "meta.json").read_text())
    assert manifest.tokenizer_sha256 == meta["tokenizer"]["sha256"]
    assert manifest.data_sha256 == meta["source_sha256"]
    assert manifest.val_bpb == pytest.approx(run.metrics("eval")[-1]["val_bpb"])
    assert len(manifest.step_losses) == 3
    assert PhaseRecipe.from_json(manifest.settings) == PhaseRecipe.from_json(run.job.settings)
    assert {file.kind for file in manifest.files} == {
        *("weights", "optimizer", "state", "tokenizer")
    }


def test_cooled_is_said_where_the_rate_has_come_down(new_run: NewRun) -> None:
    run = new_run(steps=40, save_every=10, eval_every=40, keep_best=9)
    run.train_here()
    made = run.manifests()
    assert {step: each.cooled for step, each in made.items()} == {
        **dict.fromkeys((10, 20, 28, 30), False), 40: True,
    }  # fmt: skip
    assert {step: each.cooldown_from for step, each in made.items()} == {
        **dict.fromkeys((10, 20, 28)), 30: 28, 40: 28,
    }  # fmt: skip


@pytest.mark.parametrize("fault", ["none", "damaged"])
def test_a_resumed_run_is_bit_exact(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Killed after step 33; once its latest checkpoint is damaged, too."""
    whole = new_run("whole", steps=50, keep_best=9)
    whole.train_here()
    broken = new_run("broken", steps=50, keep_best=9, save_every=10)
    real = loop.Trainer._step

    def die_at_33(self: Any) -> Any:
        if self._progress.step == 33:
            raise RuntimeError("struck by lightning")
        return real(self)

    monkeypatch.setattr(loop.Trainer, "_step", die_at_33)
    assert broken.train_here() == "crashed"
    assert broken.heartbeat.outcome == "crashed"
    assert "lightning" in broken.heartbeat.message
    monkeypatch.undo()
    if fault == "damaged":
        with open(broken.out / "checkpoints/step-00000030/weights.safetensors", "r+b") as file:
            file.seek(-1, 2)
            file.write(b"\xff")
    assert broken.train_here(attempt=2) == "finished"
    assert broken.metrics("start")[-1]["from_step"] == (30 if fault == "none" else 20)
    assert broken.weights_at(50) == whole.weights_at(50)
    assert broken.exact_metrics() == whole.exact_metrics()


def test_all_checkpoints_damaged_is_an_outcome(new_run: NewRun) -> None:
    run = new_run(steps=20, schedule="constant")
    run.train_here()
    (run.out / "checkpoints/step-00000020/state.json").write_text("{}")
    assert run.train_here(attempt=2) == "bad_checkpoint"
    assert "every checkpoint is damaged" in run.heartbeat.message


def test_accumulation_is_a_larger_batch(new_run: NewRun) -> None:
    one = new_run("one", steps=8, batch=4, improvement_reward_scale=0.0)
    two = new_run("two", steps=8, batch=2, accumulation=2, improvement_reward_scale=0.0)
    for run in (one, two):
        assert run.train_here() == "finished"
    for a, b in zip(one.metrics("train"), two.metrics("train"), strict=True):
        assert a["step_losses"] == pytest.approx(b["step_losses"], rel=1e-3)
        assert a["tokens"] == b["tokens"]


def test_bfloat16_trains(new_run: NewRun) -> None:
    run = new_run(steps=15, dtype="bfloat16")
    assert run.train_here() == "finished"
    bpb = [line["val_bpb"] for line in run.metrics("eval")]
    assert bpb[-1] < bpb[0]


def test_the_control_trains_and_has_as_many_losses(new_run: NewRun) -> None:
    run = new_run(steps=15, control=True)
    assert run.train_here() == "finished"
    last = run.metrics("eval")[-1]
    assert len(last["val_step_losses"]) == 3
    assert last["judged"] == [f"supervision step {step}" for step in range(3)]
    told = run.metrics("train")[-1]
    assert run.heartbeat.parts == {"ce": told["ce"], "reward": told["reward"]}
    assert last["val_bpb"] < run.metrics("eval")[0]["val_bpb"]


def test_fresh_weights_from_a_checkpoint(new_run: NewRun) -> None:
    first = new_run("first", steps=20)
    first.train_here()
    folder = first.out / "checkpoints/step-00000020"
    second = new_run("second", steps=3, initial_weights=str(folder))
    assert second.train_here() == "finished"
    evals = second.metrics("eval")
    assert evals[0]["step"] == 0
    assert evals[0]["val_bpb"] == pytest.approx(first.metrics("eval")[-1]["val_bpb"], rel=1e-6)
    other = new_run("other", steps=3, width=64, initial_weights=str(folder))
    assert other.train_here() == "bad_checkpoint"
    assert "another shape" in other.heartbeat.message


def test_gradients_that_explode_are_an_outcome_and_save_nothing(new_run: NewRun) -> None:
    run = new_run(steps=10, schedule="constant")
    assert run.train_here() == "finished"
    good = run.weights_at(10)
    settings = {**run.job.settings, "steps": 60, "save_every": 5, "matrix_lr": 1e30}
    run.job = replace(run.job, settings=settings)
    assert run.train_here(attempt=2) == "non_finite"
    assert (run.heartbeat.outcome, run.heartbeat.finite) == ("non_finite", False)
    assert list(run.manifests()) == [10]
    assert run.weights_at(10) == good
    assert "not finite" in run.metrics("end")[-1]["message"]


def test_a_full_disk_is_an_outcome_and_keeps_what_there_was(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(steps=50, save_every=20)
    real = checkpoint._write

    def full(path: Path, *rest: Any) -> Any:
        if "step-00000040" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, *rest)

    monkeypatch.setattr(checkpoint, "_write", full)
    assert run.train_here() == "disk_full"
    assert sorted(run.manifests()) == [20, 35]
    monkeypatch.undo()
    assert run.train_here(attempt=2) == "finished"


def test_memory_running_out_is_an_outcome(new_run: NewRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def burst(self: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")

    monkeypatch.setattr(loop.Trainer, "_step", burst)
    run = new_run()
    assert run.train_here() == "out_of_memory"
    assert run.metrics("end")[-1]["outcome"] == "out_of_memory"


def test_bad_data_and_bad_settings_are_outcomes(new_run: NewRun, tmp_path: Path) -> None:
    missing = new_run("missing")
    missing.job = replace(missing.job, data_dir=str(tmp_path / "nowhere"))
    assert missing.train_here() == "bad_data"
    assert new_run("narrow", vocab_size=100).train_here() == "bad_config"
    eighth = new_run("eighth", dtype="float8")
    assert eighth.train_here() == "bad_config"
    assert "this processor would only emulate it" in eighth.heartbeat.message
    odd = new_run("odd", head_dim=5)
    assert odd.train_here() == "bad_config"
    assert "--set head_dim" in odd.heartbeat.message
    assert new_run("late").train_here(TRMCLOUD_DEADLINE_AT="noon") == "bad_config"


def test_a_checkpoint_of_other_data_is_not_resumed_from(
    new_run: NewRun, tmp_path: Path, settings: PhaseRecipe, text: str
) -> None:
    from model.preparing.whole import prepare

    run = new_run(steps=20)
    run.train_here()
    source = tmp_path / "other.txt"
    source.write_text(text + text, encoding="utf-8")
    original = Path(run.job.data_dir) / "tokenizer.json"
    prepare(str(source), settings, tmp_path / "other", tokenizer_json=original.read_text())
    run.job = replace(run.job, data_dir=str(tmp_path / "other"))
    assert run.train_here(attempt=2) == "bad_data"
    assert "other data" in run.heartbeat.message


def test_a_first_step_worse_than_chance_is_warned_of(new_run: NewRun) -> None:
    run = new_run(steps=40, embedding_lr=50.0, head_lr=5.0, matrix_lr=0.5)
    run.train_here()
    warned = run.metrics("warning")
    assert warned
    worse = {
        e["step"] for e in run.metrics("eval") if e["val_step_losses"][0] > warned[0]["uniform"]
    }
    assert {line["step"] for line in warned} <= worse


def test_float16_scales_its_loss_and_skips_what_overflows() -> None:
    scale = LossScale.of("float16")
    assert scale.accept(finite=True)
    assert not scale.accept(finite=False)
    assert scale.scale == 2.0**15
    for _ in range(LossScale.GROW_AFTER):
        scale.accept(finite=True)
    assert scale.scale == 2.0**16
    again = LossScale.of("float16")
    again.load_json(scale.to_json())
    assert again == scale
    for _ in range(16):
        scale.accept(finite=False)
    with pytest.raises(FloatingPointError):
        scale.accept(finite=False)
    assert not LossScale.of("bfloat16").accept(finite=False), "whoever judges the step counts it"


def test_a_saved_checkpoint_reads_as_whole(new_run: NewRun) -> None:
    run = new_run(steps=5, schedule="constant")
    run.train_here()
    [folder] = (run.out / "checkpoints").iterdir()
    assert {path.name for path in folder.iterdir()} == {
        "manifest.json",
        *(file.name for file in read_manifest(folder).files),
    }
