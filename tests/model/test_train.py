"""One attempt in this process: how it resumes, and how each kind of trouble is told."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable

import pytest
import torch

from model import checkpoint, loop
from model.checkpoint import read_manifest
from model.landing import Landing, Limits
from model.precision import LossScale, check_dtype
from model.schedule import Cooldown
from model.signals import SignalFlag
from model.telemetry import Clock
from trmcloud.core.errors import UsageError
from trmcloud.core.recipe import PhaseRecipe

NewRun = Callable[..., Any]


@pytest.fixture(autouse=True)
def _keep_generator() -> Any:
    """Training seeds the global generator: other tests shall not notice."""
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)


def weights_of(run: Any, step: int) -> str:
    return str(run.manifests()[step].sha256)


def test_a_run_evaluates_saves_and_tells(new_run: NewRun) -> None:
    run = new_run(steps=25, keep_best=9)
    assert run.train_here() == "finished"
    assert [line["step"] for line in run.metrics("eval")] == [0, 10, 20, 25]
    assert [line["step"] for line in run.metrics("train")] == list(range(1, 26))
    assert sorted(run.manifests()) == [20, 25]
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
    cooled = [made.cooled for _, made in sorted(run.manifests().items())]
    assert cooled == [False, False, False, True]


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
    assert weights_of(broken, 50) == weights_of(whole, 50)
    assert broken.exact_metrics() == whole.exact_metrics()


def test_all_checkpoints_damaged_is_an_outcome(new_run: NewRun) -> None:
    run = new_run(steps=20)
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
    run = new_run(steps=10)
    assert run.train_here() == "finished"
    good = weights_of(run, 10)
    settings = {**run.job.settings, "steps": 60, "save_every": 5, "matrix_lr": 1e30}
    run.job = replace(run.job, settings=settings)
    assert run.train_here(attempt=2) == "non_finite"
    assert (run.heartbeat.outcome, run.heartbeat.finite) == ("non_finite", False)
    assert list(run.manifests()) == [10]
    assert weights_of(run, 10) == good
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
    assert sorted(run.manifests()) == [20]
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
    assert new_run("half", dtype="float16").train_here() == "bad_config"
    odd = new_run("odd", head_dim=5)
    assert odd.train_here() == "bad_config"
    assert "--set head_dim" in odd.heartbeat.message
    assert new_run("late").train_here(TRMCLOUD_DEADLINE_AT="noon") == "bad_config"


def test_a_checkpoint_of_other_data_is_not_resumed_from(
    new_run: NewRun, tmp_path: Path, settings: PhaseRecipe, text: str
) -> None:
    from model.prepare import prepare

    run = new_run(steps=20)
    run.train_here()
    source = tmp_path / "other.txt"
    source.write_text(text + text, encoding="utf-8")
    original = Path(run.job.data_dir) / "tokenizer.json"
    prepare(str(source), settings, tmp_path / "other", tokenizer_file=original)
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


def test_a_deadline_already_gone_lands_at_once(new_run: NewRun) -> None:
    run = new_run()
    assert run.train_here(TRMCLOUD_DEADLINE_AT="1.0") == "landed_deadline"
    assert sorted(run.manifests()) == [0]


class TickingClock:
    """Each look at it takes a fixed time: a run against a deadline, without waiting for it."""

    def __init__(self, tick: float = 0.01) -> None:
        self.at = 1000.0
        self.tick = tick

    def __call__(self) -> float:
        self.at += self.tick
        return self.at

    def clock(self) -> Clock:
        return Clock(epoch=self, monotonic=self)


def test_a_run_killed_in_its_cooldown_keeps_its_decision(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is, to the last bit, what a replay of that decision gives."""
    run = new_run("timed", steps=10_000, save_every=8, keep_best=99)
    hand = TickingClock()
    deadline = {"TRMCLOUD_DEADLINE_AT": str(hand.at + 8.0)}
    real = loop.Trainer._step

    def die_in_cooldown(self: Any) -> Any:
        cooldown = self._progress.cooldown
        if cooldown is not None and self._progress.step == cooldown.start + 12:
            raise RuntimeError("struck by lightning")
        return real(self)

    monkeypatch.setattr(loop.Trainer, "_step", die_in_cooldown)
    assert run.train_here(clock=hand.clock(), **deadline) == "crashed"
    monkeypatch.undo()
    [decision] = run.metrics("decision")
    start, steps = decision["cooldown_from"], decision["cooldown_steps"]
    assert run.train_here(attempt=2, clock=hand.clock(), **deadline) == "landed_deadline"
    assert run.metrics("start")[-1]["from_step"] > start
    assert run.metrics("decision") == [decision], "decided once"
    assert hand.at <= float(deadline["TRMCLOUD_DEADLINE_AT"]) + 1.0
    last = run.heartbeat.step
    assert start < last <= start + steps
    replayed = new_run("replayed", steps=10_000, save_every=8, keep_best=99)
    record = {"TRMCLOUD_REPLAY_DECISION": f"{start}:{steps}:{last}"}
    assert replayed.train_here(**record) == "landed_deadline"
    assert weights_of(replayed, last) == weights_of(run, last)
    rates = [[line["lr"] for line in each.metrics("train")] for each in (run, replayed)]
    assert rates[0] == rates[1]


def test_a_run_topped_up_after_its_cooldown_goes_on_at_the_full_rate(new_run: NewRun) -> None:
    run = new_run("timed", steps=10_000, keep_best=99)
    hand = TickingClock(tick=0.05)
    for attempt in (1, 2):
        deadline = {"TRMCLOUD_DEADLINE_AT": str(hand.at + 35.0)}
        assert run.train_here(attempt, hand.clock(), **deadline) == "landed_deadline"
    first, second = run.metrics("decision")
    topped_up = run.metrics("start")[-1]["from_step"]
    rates = {line["step"]: line["lr"] for line in run.metrics("train")}
    assert rates[topped_up] < 0.15
    assert rates[topped_up + 1] == pytest.approx(1 / 4), "a short warm-up"
    assert rates[topped_up + 4] == 1.0
    assert second["cooldown_from"] > topped_up > first["cooldown_from"]
    assert rates[run.heartbeat.step] < 0.15


def test_a_timed_run_whose_steps_end_first_finishes(new_run: NewRun) -> None:
    run = new_run(steps=40)
    hand = TickingClock()
    far = {"TRMCLOUD_DEADLINE_AT": str(hand.at + 10_000)}
    assert run.train_here(clock=hand.clock(), **far) == "finished"
    [decision] = run.metrics("decision")
    assert (decision["cooldown_from"], decision["cooldown_steps"]) == (28, 12)
    alone = new_run("alone", steps=40)
    alone.train_here()
    assert weights_of(alone, 40) == weights_of(run, 40), "the clock made no difference"


def landing_of(settings: PhaseRecipe, limits: Limits, flag: SignalFlag | None = None) -> Landing:
    from model.distributed import World

    return Landing(settings, limits, World(0, 1, torch.device("cpu")), flag or SignalFlag())


def test_a_signal_lands_before_the_next_step(settings: PhaseRecipe) -> None:
    flag = SignalFlag()
    landing = landing_of(settings, Limits(), flag)
    assert landing.consult(3, None, now=0.0, elapsed_s=1.0).outcome is None
    flag.raised = True
    assert landing.consult(4, None, now=0.0, elapsed_s=1.0).outcome == "landed_signal"
    assert landing.consult(12, None, now=0.0, elapsed_s=1.0).outcome == "finished"


def test_no_step_is_begun_that_would_pass_the_deadline(settings: PhaseRecipe) -> None:
    landing = landing_of(replace(settings, steps=1000), Limits(deadline_at=100.0))
    for _ in range(5):
        landing.took(2.0)
    cooldown = Cooldown(0, 999, 100.0)
    assert landing.consult(3, cooldown, now=97.9, elapsed_s=90.0).outcome is None
    assert landing.consult(3, cooldown, now=98.1, elapsed_s=90.0).outcome == "landed_deadline"


def test_the_cooldown_is_decided_once_and_its_end_lands(settings: PhaseRecipe) -> None:
    landing = landing_of(replace(settings, steps=1000), Limits(deadline_at=100.0))
    landing.took(1.0)
    assert landing.consult(50, None, now=50.0, elapsed_s=50.0).cooldown is None
    decided = landing.consult(76, None, now=77.0, elapsed_s=77.0).cooldown
    assert decided is not None
    assert decided.start == 76
    assert 20 <= decided.steps <= 24
    later = landing.consult(80, decided, now=78.0, elapsed_s=78.0)
    assert (later.cooldown, later.outcome) == (None, None)
    done = landing.consult(decided.end, decided, now=90.0, elapsed_s=90.0)
    assert done.outcome == "landed_deadline"


def test_a_cooldown_holds_until_the_run_is_topped_up(settings: PhaseRecipe) -> None:
    cooldown = Cooldown(10, 5, 100.0)
    assert landing_of(settings, Limits(deadline_at=100.0)).keeps(cooldown)
    assert landing_of(settings, Limits(deadline_at=90.0)).keeps(cooldown)
    assert not landing_of(settings, Limits(deadline_at=500.0)).keeps(cooldown)
    assert not landing_of(settings, Limits()).keeps(cooldown)


def test_limits_are_read_from_the_environment() -> None:
    assert Limits.from_environment({}) == Limits()
    assert Limits.from_environment({"TRMCLOUD_DEADLINE_AT": "12.5"}).deadline_at == 12.5
    replay = Limits.from_environment({"TRMCLOUD_REPLAY_DECISION": "7:3:9"}).replay
    assert replay is not None
    assert (replay.cooldown.start, replay.cooldown.steps, replay.last_step) == (7, 3, 9)
    with pytest.raises(UsageError):
        Limits.from_environment({"TRMCLOUD_REPLAY_DECISION": "7:3"})


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
    with pytest.raises(FloatingPointError):
        LossScale.of("bfloat16").accept(finite=False)


def test_float16_is_refused_on_a_cpu() -> None:
    with pytest.raises(UsageError) as caught:
        check_dtype("float16", torch.device("cpu"))
    assert caught.value.next_step == "--set dtype=bfloat16"


def test_a_saved_checkpoint_reads_as_whole(new_run: NewRun) -> None:
    run = new_run(steps=5)
    run.train_here()
    [folder] = (run.out / "checkpoints").iterdir()
    assert {path.name for path in folder.iterdir()} == {
        "manifest.json",
        *(file.name for file in read_manifest(folder).files),
    }
