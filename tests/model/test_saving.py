"""A checkpoint is saved before it is evaluated, and whenever somebody asks for one."""

from __future__ import annotations

import errno
import os
import signal
import threading
from pathlib import Path
from typing import Any, Callable

import pytest
import torch

from model.machine.signals import SignalFlag
from model.training import loop
from model.training.checkpoint import CheckpointFolder, verify
from tests.model.attempts import before_steps
from tests.model.test_checkpoint import contents, manifest
from tests.waiting import deadline_s
from trmcloud.core.contract import manifest as mf
from trmcloud.core.errors import CheckpointError

NewRun = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("keep_generator")


@pytest.fixture(autouse=True)
def _signals() -> Any:
    """What a trainer in this process sets for signals is taken back."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def failing_at(monkeypatch: pytest.MonkeyPatch, step: int, error: BaseException) -> None:
    """The evaluation of ``step`` fails as a device's does that has no memory left."""
    real = loop.Trainer._evaluate

    def evaluate(self: Any, landing: bool = False) -> None:
        if self._progress.step == step:
            raise error
        real(self, landing)

    monkeypatch.setattr(loop.Trainer, "_evaluate", evaluate)


def test_a_metric_that_came_while_its_checkpoint_was_finished_outlives_a_failure(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(steps=20, save_every=8, eval_every=8)
    scored = threading.Event()
    finish, evaluate = CheckpointFolder.finish, loop.Trainer._evaluate

    def finished(self: CheckpointFolder, *given: Any) -> Any:
        assert scored.wait(deadline_s(60))
        return finish(self, *given)

    def die(trainer: Any) -> None:
        if trainer._progress.step == 8:
            scored.set()
            raise RuntimeError("struck by lightning")

    def evaluated(self: Any, landing: bool = False) -> None:
        while self._progress.step == 8 and not self._saver._pending.is_finishing:
            self._saver.settle()
        evaluate(self, landing)

    monkeypatch.setattr(CheckpointFolder, "finish", finished)
    before_steps(monkeypatch, die)
    monkeypatch.setattr(loop.Trainer, "_evaluate", evaluated)
    assert run.train_here() == "crashed"
    assert run.manifests()[8].val_bpb == run.metrics("eval")[-1]["val_bpb"]


def test_out_of_memory_in_the_last_evaluation_loses_nothing(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(steps=12, schedule="constant", eval_every=12)
    failing_at(monkeypatch, 12, torch.OutOfMemoryError("CUDA out of memory"))
    assert run.train_here() == "out_of_memory"
    assert run.heartbeat.saved_step == 12
    assert run.heartbeat.message.endswith("the last saved step is 12")
    [(step, made)] = run.manifests().items()
    assert (step, made.val_bpb, made.step_losses) == (12, None, ())
    verify(run.out / "checkpoints" / "step-00000012", made)
    every = list(run.manifests().values())
    assert mf.pick_best(every) is None
    assert mf.pick_latest(every) == made

    monkeypatch.undo()
    assert run.train_here(attempt=2) == "finished"
    scored = run.manifests()[12]
    assert scored.val_bpb == pytest.approx(run.metrics("eval")[-1]["val_bpb"])
    assert scored.sha256 == made.sha256, "evaluated, and not trained or saved again"
    assert [line["step"] for line in run.metrics("save")] == [12]


def test_an_evaluation_that_fails_on_the_way_costs_no_step(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(steps=25, keep_best=9)
    failing_at(monkeypatch, 20, RuntimeError("struck by lightning"))
    assert run.train_here() == "crashed"
    assert sorted(run.manifests()) == [10, 17, 20]
    monkeypatch.undo()
    assert run.train_here(attempt=2) == "finished"
    assert run.metrics("start")[-1]["from_step"] == 20
    alone = new_run("alone", steps=25, keep_best=9)
    alone.train_here()
    assert run.weights_at(25) == alone.weights_at(25)
    found = {step: made.val_bpb is not None for step, made in run.manifests().items()}
    assert found == {10: True, 17: False, 20: True, 25: True}, (
        "made up for by who goes on from there"
    )


def test_what_was_told_before_is_on_disk(new_run: NewRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeat and manifest stand as one that is killed in its last evaluation leaves them."""
    run = new_run(steps=12, schedule="constant", eval_every=12)
    seen: list[tuple[int | None, list[int]]] = []
    real = loop.evaluate  # type: ignore[attr-defined]

    def evaluate(*arguments: Any, **named: Any) -> Any:
        if (run.out / "heartbeat.json").exists():
            seen.append((run.heartbeat.saved_step, sorted(run.manifests())))
        return real(*arguments, **named)

    monkeypatch.setattr(loop, "evaluate", evaluate)
    run.train_here()
    assert seen[0] == (None, [])
    assert seen[-1] == (12, [12])


def test_a_resumed_run_knows_the_metric_that_came_to_the_manifest_alone(new_run: NewRun) -> None:
    run = new_run(steps=20)
    run.train_here()
    best = run.heartbeat.best_bpb
    assert (best, run.heartbeat.best_step) == (run.manifests()[20].val_bpb, 20)
    assert run.train_here(attempt=2) == "finished"
    assert (run.heartbeat.best_bpb, run.heartbeat.best_step) == (best, 20)
    assert [line["step"] for line in run.metrics("eval")] == [0, 10, 20], "not evaluated again"


def test_a_save_that_is_asked_for_is_made_once_and_training_goes_on(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(steps=18, keep_best=9)
    real = loop.Trainer._step

    def step(self: Any) -> Any:
        done = real(self)
        if self._progress.step in (4, 7):
            os.kill(os.getpid(), signal.SIGUSR1)
        return done

    monkeypatch.setattr(loop.Trainer, "_step", step)
    assert run.train_here(flag=SignalFlag().install()) == "finished"
    assert sorted(run.manifests()) == [4, 7, 10, 13, 18]
    unscored = [step for step, made in run.manifests().items() if made.val_bpb is None]
    assert unscored == [13], "saved before its cooldown, which nobody asked for"
    assert run.heartbeat.saves == 2
    monkeypatch.undo()
    alone = new_run("alone", steps=18)
    assert alone.train_here() == "finished"
    assert alone.heartbeat.saves == 0
    assert alone.weights_at(18) == run.weights_at(18), "asking changes nothing that is trained"


def test_a_save_that_is_asked_for_before_the_first_step_waits_for_it(new_run: NewRun) -> None:
    run = new_run(steps=9, keep_best=9)
    flag = SignalFlag()
    flag.save = True
    assert run.train_here(flag=flag) == "finished"
    assert sorted(run.manifests()) == [1, 6, 9]


# -- the manifest's one replacement ------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    made = CheckpointFolder(tmp_path / "checkpoints")
    made.clean()
    return made


def test_a_metric_is_added_to_the_manifest_and_only_that(
    folder: CheckpointFolder,
) -> None:
    saved = folder.save(contents(10), manifest(10, None))
    before = {path.name: path.stat().st_mtime_ns for path in saved.folder.iterdir()}
    scored = folder.add_metric(10, 1.25, (3.0, 2.0))
    [found] = folder.complete()
    assert found.manifest == scored
    assert (scored.val_bpb, scored.step_losses, scored.files) == (
        *(1.25, (3.0, 2.0)), saved.manifest.files,
    )  # fmt: skip
    after = {path.name: path.stat().st_mtime_ns for path in saved.folder.iterdir()}
    assert {name for name in after if after[name] != before.get(name)} == {mf.MANIFEST_NAME}
    assert folder.add_metric(10, 9.0, (1.0,)).val_bpb == 1.25, "once"
    with pytest.raises(CheckpointError):
        folder.add_metric(20, 1.0, ())


def test_a_metric_that_cannot_be_written_leaves_the_checkpoint_as_it_was(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = folder.save(contents(10), manifest(10, None))

    def full(*what: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        folder.add_metric(10, 1.0, ())
    monkeypatch.undo()
    assert [each.manifest for each in folder.complete()] == [saved.manifest]
    assert len(list(saved.folder.iterdir())) == 5
    (saved.folder / ".making-manifest.json").write_text("{")
    folder.clean()
    assert len(list(saved.folder.iterdir())) == 5
