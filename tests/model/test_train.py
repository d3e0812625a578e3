"""One attempt in this process: how it resumes, what it tells, and which steps are left out."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from model import train
from model.families import registry
from model.families.protocol import Objective
from model.families.trm.model import TRM
from model.machine import telemetry
from model.machine.precision import LossScale
from model.machine.telemetry import (
    HeartbeatWriter,
    Metrics,
    end_for_another,
    ended_by_another,
    process_age_s,
    process_started,
)
from model.training import loop, soundness
from model.training.soundness import (
    LEAST,
    MENDS_WITHIN,
    MOST_NOT_FINITE,
    MOST_SKIPPED,
    Soundness,
    TrainingDiverged,
)
from model.training.stepping import Pace, Paces
from tests.model.attempts import TickingClock, before_steps, check_resumed, crash
from tests.model.models import shaken
from tests.settings import changed
from trmcloud.core.contract.records import dump
from trmcloud.core.contract.trainer_contract import (
    DEVIATIONS,
    ENV_JOB,
    ENV_OVERRIDES,
    PhaseJob,
    load_heartbeat,
)
from trmcloud.core.errors import UsageError
from trmcloud.core.spec.settings import PhaseRecipe

# -- One attempt in this process: how it resumes, and how each kind of trouble is told ----------


NewRun = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("keep_generator")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, run_in: NewRun) -> Any:
    run = run_in(tmp_path_factory.mktemp("finished"), steps=25, keep_best=9)
    assert run.train_here() == "finished"
    return run


@pytest.fixture
def copied(finished: Any, new_run: NewRun) -> Any:
    """The finished run in a folder of its own."""
    run = new_run(steps=25, keep_best=9)
    shutil.copytree(finished.out, run.out)
    return run


def test_a_run_evaluates_saves_and_tells(finished: Any) -> None:
    run = finished
    assert [line["step"] for line in run.metrics("eval")] == [0, 10, 20, 25]
    assert [line["step"] for line in run.metrics("train")] == list(range(1, 26))
    assert sorted(run.manifests()) == [10, 17, 20, 25], "10: a new best; 17: before its cooldown"
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


def test_a_train_line_keeps_reward_and_cross_entropy_apart(finished: Any) -> None:
    line = finished.metrics("train")[3]
    assert line["loss"] == pytest.approx((line["ce"] - line["reward"]) / 3)
    weights = [1 / 31, 5 / 31, 25 / 31]
    expected = sum(w * x for w, x in zip(weights, line["step_losses"], strict=True))
    assert line["ce"] == pytest.approx(expected, rel=1e-5)
    assert line["grad_norm"] > 0
    assert 0 < line["lr"] <= 1


def test_the_manifest_names_data_settings_and_score(finished: Any, data_dir: Path) -> None:
    run, made = finished, finished.manifests()
    assert {step: (each.cooled, each.cooldown_from) for step, each in made.items()} == {
        10: (False, None), 17: (False, None), 20: (False, 17), 25: (True, 17),
    }  # fmt: skip
    manifest = made[25]
    meta = json.loads((data_dir / "meta.json").read_text())
    assert manifest.tokenizer_sha256 == meta["tokenizer"]["sha256"]
    assert manifest.data_sha256 == meta["source_sha256"]
    assert manifest.val_bpb == pytest.approx(run.metrics("eval")[-1]["val_bpb"])
    assert len(manifest.step_losses) == 3
    assert PhaseRecipe.from_json(manifest.settings) == PhaseRecipe.from_json(run.job.settings)
    assert {file.kind for file in manifest.files} == {
        *("weights", "optimizer", "state", "tokenizer")
    }
    names = {path.name for path in (run.out / "checkpoints/step-00000025").iterdir()}
    assert names == {"manifest.json", *(file.name for file in manifest.files)}


@pytest.mark.parametrize("fault", ["none", "damaged"])
def test_a_resume_is_exact(new_run: NewRun, finished: Any, fault: str) -> None:
    """Killed after step 22; once its latest checkpoint is damaged, too."""
    broken = new_run("broken", steps=25, keep_best=9, save_every=10)
    crash(broken, 22)
    assert broken.heartbeat.outcome == "crashed"
    assert "lightning" in broken.heartbeat.message
    if fault == "damaged":
        with open(broken.out / "checkpoints/step-00000020/weights.safetensors", "r+b") as file:
            file.seek(-1, 2)
            file.write(b"\xff")
    check_resumed(broken, finished, from_step=20 if fault == "none" else 17)


def test_the_control_trains_and_has_as_many_losses(new_run: NewRun) -> None:
    run = new_run(steps=15, control=True)
    assert run.train_here() == "finished"
    last = run.metrics("eval")[-1]
    assert len(last["val_step_losses"]) == 3
    assert last["judged"] == [f"supervision step {step}" for step in range(3)]
    told = run.metrics("train")[-1]
    assert run.heartbeat.parts == {"ce": told["ce"], "reward": told["reward"]}
    assert last["val_bpb"] < run.metrics("eval")[0]["val_bpb"]


def test_fresh_weights_from_a_checkpoint(new_run: NewRun, finished: Any) -> None:
    first, folder = finished, finished.out / "checkpoints/step-00000025"
    second = new_run("second", steps=3, initial_weights=str(folder))
    assert second.train_here() == "finished"
    evals = second.metrics("eval")
    assert evals[0]["step"] == 0
    assert evals[0]["val_bpb"] == pytest.approx(first.metrics("eval")[-1]["val_bpb"], rel=1e-6)
    other = new_run("other", steps=3, width=64, initial_weights=str(folder))
    assert other.train_here() == "bad_checkpoint"
    assert "does not match the settings" in other.heartbeat.message


def test_bad_data_and_bad_settings_are_outcomes(new_run: NewRun, tmp_path: Path) -> None:
    missing = new_run("missing")
    missing.job = replace(missing.job, data_dir=str(tmp_path / "nowhere"))
    assert missing.train_here() == "bad_data"
    assert new_run("narrow", vocab_size=100).train_here() == "bad_config"
    eighth = new_run("eighth", dtype="float8")
    assert eighth.train_here() == "bad_config"
    assert "this processor could only emulate it" in eighth.heartbeat.message
    odd = new_run("odd", head_dim=5)
    assert odd.train_here() == "bad_config"
    assert "--set head_dim" in odd.heartbeat.message
    assert new_run("late").train_here(TRMCLOUD_DEADLINE_AT="noon") == "bad_config"


def test_a_checkpoint_of_other_data_is_not_resumed_from(
    copied: Any, tmp_path: Path, settings: PhaseRecipe, text: str
) -> None:
    from model.preparing.whole import prepare

    run = copied
    source = tmp_path / "other.txt"
    source.write_text(text + text, encoding="utf-8")
    original = Path(run.job.data_dir) / "tokenizer.json"
    prepare(str(source), settings, tmp_path / "other", tokenizer_json=original.read_text())
    run.job = replace(run.job, data_dir=str(tmp_path / "other"))
    assert run.train_here(attempt=2) == "bad_data"
    assert "other data" in run.heartbeat.message


def test_a_first_step_worse_than_chance_is_warned_of(new_run: NewRun) -> None:
    run = new_run(steps=20, embedding_lr=50.0, head_lr=5.0, matrix_lr=0.5)
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


# -- soundness ----------------------------------------------------------------------------------
# Steps that are left out, trainings that are given up, and what goes on with other settings.


# -- the rule -----------------------------------------------------------------------------------


def rows(seed: int = 3) -> Iterator[tuple[float, float]]:
    """Losses about 3 and norms about 1, as a training's scatter."""
    made = random.Random(seed)
    while True:
        yield made.gauss(3.0, 0.1), made.gauss(1.0, 0.1)


def settled(steps: int = 200) -> tuple[Soundness, int]:
    made = Soundness()
    for step, (loss, norm) in zip(range(1, steps + 1), rows(), strict=False):
        assert made.judge(step, loss, norm, finite=True) == "", "the training's own scatter"
    return made, steps


def test_nothing_stands_out_before_there_is_enough_to_stand_out_of() -> None:
    early, step = settled(LEAST - 1)
    assert early.judge(step + 1, 1e6, 1e6, finite=True) == ""
    ready, step = settled(LEAST)
    assert ready.judge(step + 1, 1e6, 1.0, finite=True)


def test_six_deviations_are_the_limit_of_loss_and_of_norm() -> None:
    for name in ("loss", "norm"):
        made, step = settled()
        before = list(made.losses if name == "loss" else made.norms)
        mean = sum(before) / len(before)
        deviation = math.sqrt(sum((each - mean) ** 2 for each in before) / len(before))
        limit = mean + DEVIATIONS * deviation
        for value, out in ((limit - 1e-6, False), (limit + 1e-6, True)):
            again = Soundness.from_json(made.to_json())
            loss, norm = (value, 1.0) if name == "loss" else (3.0, value)
            assert bool(again.judge(step + 1, loss, norm, finite=True)) is out


def test_a_level_that_has_changed_is_taken_after_a_few_steps() -> None:
    made, step = settled()
    out = [bool(made.judge(step + n, 3.0, 2.5, finite=True)) for n in range(1, 60)]
    assert out[0]
    assert sum(out) <= 6
    assert not any(out[6:])


def test_a_loss_that_comes_back_is_settled_and_one_that_does_not_has_diverged() -> None:
    made, step = settled()
    assert made.is_settled
    assert made.judge(step + 1, 9.0, 1.0, finite=True)
    assert not made.is_settled
    assert made.judge(step + 2, 3.0, 1.0, finite=True) == ""
    assert made.is_settled
    lost, step = settled()
    for number in range(1, MENDS_WITHIN):
        lost.judge(step + number, 9.0, 1.0, finite=True)
    with pytest.raises(TrainingDiverged, match="above"):
        lost.judge(step + MENDS_WITHIN, 9.0, 1.0, finite=True)


def test_not_finite_is_left_out_and_in_a_row_is_the_end() -> None:
    made, step = settled()
    for number in range(1, MOST_NOT_FINITE):
        assert made.judge(step + number, math.nan, 1.0, finite=False)
    assert not made.is_settled
    again = Soundness.from_json(json.loads(json.dumps(made.to_json())))
    assert again == made
    assert again.judge(step + 5, 3.0, 1.0, finite=True) == ""
    assert again.is_settled
    with pytest.raises(FloatingPointError, match="in a row"):
        made.judge(step + MOST_NOT_FINITE, 3.0, math.inf, finite=False)


def test_skips_have_a_cap_however_far_apart() -> None:
    made, step = settled()
    for number in range(MOST_SKIPPED - 1):
        made.judge(step + 2 * number, math.nan, 1.0, finite=False)
        made.judge(step + 2 * number + 1, 3.0, 1.0, finite=True)
    with pytest.raises(FloatingPointError):
        made.judge(step + 2 * MOST_SKIPPED, math.nan, 1.0, finite=False)
    calm, step = settled()
    for number in range(2000):
        step += 1
        calm.judge(step, 3.0, 1.0, finite=number % 20 != 0)


# -- in a training ------------------------------------------------------------------------------


def poison(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[int, torch.Tensor], torch.Tensor]
) -> None:
    """``change(step, loss)`` takes the loss's place, whatever attempt comes to the step."""
    real, at = TRM.loss, [0]

    def loss(self: TRM, *batch: Any) -> Objective:
        made = real(self, *batch)
        return made._replace(loss=change(at[0], made.loss))

    before_steps(monkeypatch, lambda trainer: at.__setitem__(0, trainer._progress.step + 1))
    monkeypatch.setattr(TRM, "loss", loss)


def test_an_infinite_step_is_left_out(new_run: NewRun, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, lambda step, loss: loss * math.nan if step == 7 else loss)
    run = new_run(steps=12)
    assert run.train_here() == "finished"
    [skip] = run.metrics("skip")
    assert (skip["step"], skip["loss"]) == (7, None)
    assert "not finite" in skip["why"]
    assert [line["step"] for line in run.metrics("train")] == [1, 2, 3, 4, 5, 6, *range(8, 13)]
    assert (run.heartbeat.skipped, run.heartbeat.skipped_step) == (1, 7)
    assert run.metrics("eval")[-1]["val_bpb"] < run.metrics("eval")[0]["val_bpb"]


def test_a_spike_is_left_out_and_a_resumed_run_leaves_out_the_same(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soundness, "LEAST", 16)
    poison(monkeypatch, lambda step, loss: loss * 50 if step == 24 else loss)
    whole = new_run("whole", steps=30, keep_best=9)
    assert whole.train_here() == "finished"
    assert [line["step"] for line in whole.metrics("skip")] == [24]
    broken = new_run("broken", steps=30, keep_best=9, save_every=10)
    crash(broken, 23)
    check_resumed(broken, whole, from_step=21)


def test_what_never_becomes_finite_again_ends_and_saves_nothing_of_it(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, lambda step, loss: loss * math.nan if step >= 19 else loss)
    run = new_run(steps=60, save_every=10)
    assert run.train_here() == "non_finite"
    assert run.heartbeat.step == 18 + MOST_NOT_FINITE - 1
    assert run.heartbeat.finite is False
    assert max(run.manifests()) == 10, "not at step 20, with steps left out since"
    assert "in a row" in run.heartbeat.message


def test_a_loss_that_stays_up_has_diverged_and_what_is_saved_is_from_before(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soundness, "LEAST", 16)
    monkeypatch.setattr(soundness, "MENDS_WITHIN", 12)
    poison(monkeypatch, lambda step, loss: loss + 100.0 if step >= 22 else loss)
    run = new_run(steps=200, save_every=10, eval_every=50)
    assert run.train_here() == "diverged"
    assert run.heartbeat.outcome == "diverged"
    assert max(run.manifests()) == 20
    assert run.metrics("end")[-1]["outcome"] == "diverged"


# -- with what recovery has changed ---------------------------------------------------------------


@pytest.mark.parametrize("control", [False, True])
def test_checkpointed_activations_are_not_kept_and_change_no_gradient(
    settings: PhaseRecipe, control: bool
) -> None:
    ids = torch.arange(2 * settings.sequence).view(2, -1)
    sizes, gradients = [], []
    for on in (False, True):
        made = changed(settings, activation_checkpointing=on, control=control)
        model = shaken(registry.build(made, torch.device("cpu")))
        kept: list[int] = []

        def note(tensor: torch.Tensor, kept: list[int] = kept) -> torch.Tensor:
            kept.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            loss = model.loss(ids, ids.roll(-1, 1)).loss
        loss.backward()
        sizes.append(sum(kept))
        gradients.append([each.grad for each in model.parameters()])
    assert sizes[1] < 0.6 * sizes[0]
    for plain, again in zip(*gradients, strict=True):
        assert plain is not None
        assert torch.equal(plain, again)


def test_overrides_are_read_from_the_environment_and_strictly(new_run: NewRun) -> None:
    run = new_run(steps=4)
    run.out.mkdir(parents=True)
    path = run.out / "job.json"
    path.write_text(dump(run.job))
    given = {ENV_JOB: str(path)}
    own = train._read(given)[1]
    text = json.dumps({"rate": 0.25, "preset": "moderate", "batch": 1, "accumulation": 2})
    made: Any = train._read({**given, ENV_OVERRIDES: text})[1]
    assert (made.batch, made.accumulation) == (1, 2)
    rates = [(s.matrix_lr, s.embedding_lr, s.head_lr) for s in (made, own)]
    assert rates[0] == tuple(rate * 0.25 for rate in rates[1])
    assert (made.preset, made.supervision_weight_base, made.improvement_reward_scale) == (
        *("moderate", 3.0, 0.5),
    )
    assert replace(made, **{
        name: getattr(own, name)
        for name in (
            "batch", "accumulation", "matrix_lr", "embedding_lr", "head_lr", "preset",
            "supervision_weight_base", "improvement_reward_scale",
        )
    }) == own  # fmt: skip
    for bad in ("nonsense", '{"steps": 1}', '{"batch": -1}'):
        with pytest.raises(UsageError, match="cannot be read"):
            train._read({**given, ENV_OVERRIDES: bad})


# -- telemetry ----------------------------------------------------------------------------------
# What the outside sees: heartbeats that account for every second, metrics that can be rewound.


BEGAN = 1e9 + 100


@pytest.fixture
def job(tmp_path: Path) -> PhaseJob:
    return PhaseJob("r1", "fast", {}, "data", str(tmp_path), 2)


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> TickingClock:
    monkeypatch.setattr(telemetry, "process_age_s", lambda: 2.5)
    return TickingClock(tick=0.0, at=BEGAN)


def test_seconds_by_state_sum_to_the_attempts_wall_time(job: PhaseJob, hand: TickingClock) -> None:
    pulse = HeartbeatWriter(job, 1, 100, hand.clock())
    pulse.enter("starting")
    hand.at += 3
    pulse.enter("compiling")
    hand.at += 4
    pulse.enter("training")
    hand.at += 5
    with pulse.during("evaluating"):
        hand.at += 6
    hand.at += 7
    with pulse.during("saving"):
        hand.at += 8
    pulse.enter("landing")
    with pulse.during("evaluating"):
        assert pulse.now.state == "landing"
        hand.at += 9
    pulse.end("landed_deadline")
    beat = load_heartbeat((Path(job.out_dir) / "heartbeat.json").read_bytes())
    assert beat.seconds == {
        "startup": 5.5, "data": 0, "compile": 4, "training": 12, "evaluating": 6, "saving": 8,
        "landing": 9,
    }  # fmt: skip
    assert sum(beat.seconds.values()) == hand.at - BEGAN + 2.5
    assert (beat.state, beat.outcome, beat.at) == ("ended", "landed_deadline", hand.at)


def test_beats_are_at_most_one_a_second_and_lose_no_news(job: PhaseJob, hand: TickingClock) -> None:
    pulse = HeartbeatWriter(job, 1, 100, hand.clock())
    pulse.enter("training")
    path = Path(job.out_dir) / "heartbeat.json"
    for step in range(1, 20):
        hand.at += 0.125  # exact in binary
        pulse.beat(step=step)
        assert load_heartbeat(path.read_bytes()).step == step // 8 * 8
    pulse.enter("landing")
    assert load_heartbeat(path.read_bytes()).step == 19


def test_a_heartbeat_names_its_process(job: PhaseJob, hand: TickingClock) -> None:
    pulse = HeartbeatWriter(job, 3, 100, hand.clock())
    assert (pulse.now.pid, pulse.now.attempt) == (os.getpid(), 3)
    stat = Path(f"/proc/{os.getpid()}/stat").read_text()
    assert pulse.now.pid_started == process_started() == stat.split(")")[-1].split()[19]


def test_a_process_knows_about_how_old_it_is() -> None:
    assert 0 <= process_age_s() < 600


def test_a_silent_rank_writes_nothing(job: PhaseJob, hand: TickingClock, tmp_path: Path) -> None:
    pulse = HeartbeatWriter(job, 1, 100, hand.clock(), silent=True)
    pulse.enter("training")
    pulse.end("finished")
    assert list(tmp_path.iterdir()) == []


def test_another_rank_can_tell_how_it_ended(job: PhaseJob, hand: TickingClock) -> None:
    pulse = HeartbeatWriter(job, 2, 100, hand.clock())
    pulse.enter("training")
    end_for_another(job, 1, "out_of_memory", "an earlier attempt's rank", now=7.0)
    assert not ended_by_another(job, 2)
    end_for_another(job, 2, "out_of_memory", "rank 1 ran out", now=8.0)
    assert ended_by_another(job, 2)
    beat = load_heartbeat((Path(job.out_dir) / "heartbeat.json").read_bytes())
    assert (beat.outcome, beat.message, beat.at) == ("out_of_memory", "rank 1 ran out", 8.0)
    end_for_another(job, 2, "crashed", "an echo", now=9.0)
    assert load_heartbeat((Path(job.out_dir) / "heartbeat.json").read_bytes()).at == 8.0


def test_another_ranks_error_is_told_and_not_its_echo_here(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run()

    def burst(self: Any) -> None:
        end_for_another(run.job, 1, "out_of_memory", "no room on rank 1", now=8.0)
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(loop.Trainer, "_step", burst)
    assert run.train_here() == "crashed"
    beat = run.heartbeat
    assert (beat.outcome, beat.message, beat.at) == ("out_of_memory", "no room on rank 1", 8.0)


def test_metrics_are_json_lines_and_infinities_null(tmp_path: Path, hand: TickingClock) -> None:
    metrics = Metrics(tmp_path, hand.clock())
    metrics.write("train", 1, loss=float("inf"), step_losses=[1.0, float("nan")])
    line = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(line) == {
        "kind": "train", "step": 1, "at": BEGAN, "loss": None, "step_losses": [1.0, None],
    }  # fmt: skip


def test_rewinding_drops_later_and_cut_lines(tmp_path: Path, hand: TickingClock) -> None:
    metrics = Metrics(tmp_path, hand.clock())
    for step in range(6):
        metrics.write("train", step, loss=1.0)
    metrics.close()
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"kind": "train", "st')
    Metrics(tmp_path, hand.clock()).rewind(3)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1, 2, 3]
    Metrics(tmp_path, hand.clock()).rewind(None)
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_rewinding_drops_a_decision_that_the_checkpoint_does_not_hold(
    tmp_path: Path, hand: TickingClock
) -> None:
    """It was taken at the very step that had been saved already."""
    for decided_at, kept in ((2, [1]), (None, [1]), (3, [1, 3])):
        metrics = Metrics(tmp_path, hand.clock())
        metrics.rewind(None)
        for step in (1, 3):
            metrics.write("decision", step, cooldown_from=step, cooldown_steps=2)
        metrics.write("save", 3)
        metrics.close()
        Metrics(tmp_path, hand.clock()).rewind(3, decided_at)
        lines = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
        told = [(line["kind"], line["step"]) for line in lines]
        assert told == [*(("decision", step) for step in kept), ("save", 3)]


def test_tensorboard_gets_the_scalars(tmp_path: Path, hand: TickingClock) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    metrics = Metrics(tmp_path, hand.clock())
    metrics.open_board(0)
    metrics.write("train", 5, loss=1.5, step_losses=[3.0, 2.0])
    metrics.close()
    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert read.Scalars("train/loss")[0].value == 1.5
    assert read.Scalars("train/step_losses/1")[0].step == 5


# -- How long each rank's own passes take -------------------------------------------------------


def test_passes_are_timed_and_nothing_between_them() -> None:
    clock = itertools.count()
    pace = Pace(torch.device("cpu"), lambda: next(clock) ** 2)
    with pace.timed():  # from 0 to 1
        pass
    with pace.timed():  # from 4 to 9
        pass
    assert pace.taken_s() == 6
    assert pace.taken_s() == 0


def test_means_are_told_once() -> None:
    paces = Paces()
    assert paces.told() == []
    paces.add([1.0, 2.0])
    paces.add([2.0, 4.0])
    assert paces.told() == [1.5, 3.0]
    assert paces.told() == []
    paces.add([1.0, 2.0])
    with pytest.raises(ValueError, match="zip"):
        paces.add([1.0])
