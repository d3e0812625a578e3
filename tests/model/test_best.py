"""The best evaluation is a checkpoint, however rare saves are, and however a training ends."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable

import pytest

from model.machine import tensors
from model.machine.signals import SignalFlag
from model.training import checkpoint, saver
from model.training.checkpoint import CheckpointFolder
from tests.model.attempts import (
    BEST,
    BETWEEN_SAVES,
    SCORES,
    before_steps,
    check_best_is_saved,
    crash,
    dying_at,
    scored,
)
from tests.waiting import deadline_s
from trmcloud.core.spec.settings import PhaseRecipe

NewRun = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("keep_generator")

FAMILIES: dict[str, dict[str, Any]] = {
    "trm": {},
    "gpt": {"family": "gpt", "hidden": 48, "depth": 2, "dropout": 0.1},
    "gpt-tied": {"family": "gpt", "tied": True, "ema": True, "optimizer": "adamw"},
    "speedrun": {
        **{"family": "nanochat", "mlp": "relu2", "qk_norm": True, "depth": 2, "ema": True},
        **{"architecture": "nanochat-2026", "value_embeddings": True, "optimizer": "muon"},
        "activation_checkpointing": True,
    },
}


@pytest.mark.parametrize("changes", FAMILIES.values(), ids=FAMILIES.keys())
def test_the_best_between_two_saves_is_saved(new_run: NewRun, changes: dict[str, Any]) -> None:
    check_best_is_saved(new_run, **changes)


def test_the_best_and_the_latest_are_kept_and_no_more(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored(monkeypatch, SCORES)
    few, every = (new_run(str(most), **BETWEEN_SAVES, keep_best=most) for most in (1, 9))
    assert few.train_here() == every.train_here() == "finished"
    assert sorted(few.manifests()) == [BEST, 14]
    assert sorted(every.manifests()) == [4, 6, BEST, 12, 14]
    for step in (BEST, 14):
        assert few.weights_at(step) == every.weights_at(step)


def test_what_a_training_begins_with_is_not_saved(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored(monkeypatch, {**SCORES, 0: 1.0})
    run = new_run(**BETWEEN_SAVES, keep_best=9)
    run.train_here()
    assert sorted(run.manifests()) == [4, 6, 8, 12, 14]
    assert run.heartbeat.best_step == BEST


# -- however it ends -----------------------------------------------------------------------------


def test_a_stop_after_the_best_keeps_it(new_run: NewRun, monkeypatch: pytest.MonkeyPatch) -> None:
    scored(monkeypatch, {**SCORES, 10: 2.2})
    run, flag = new_run(**BETWEEN_SAVES, keep_best=1), SignalFlag()
    before_steps(monkeypatch, lambda it: setattr(flag, "raised", it._progress.step == 9))
    assert run.train_here(flag=flag) == "landed_signal"
    assert sorted(run.manifests()) == [BEST, 10]
    assert run.heartbeat.best_step == BEST


# -- what it costs -------------------------------------------------------------------------------


class SlowDisk:
    """The write of ``step`` lasts until ``let_go``."""

    def __init__(self, patch: pytest.MonkeyPatch, step: int) -> None:
        self._free, self._step = threading.Event(), step
        self._real = checkpoint.write_contents
        patch.setattr(saver, "write_contents", self._write)

    def _write(self, making: Path, contents: Any) -> Any:
        if f"{self._step:08d}" in making.name:
            assert self._free.wait(deadline_s(60))
        return self._real(making, contents)

    def let_go(self) -> None:
        self._free.set()


FALLING = {step: 20.0 - step for step in range(100)}
EVERY_STEP: dict[str, Any] = {**BETWEEN_SAVES, "eval_every": 1, "save_every": 50, "keep_best": 2}


@pytest.fixture
def most_there(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many checkpoints there were at a time, those that are being written among them."""
    counts: list[int] = []
    finish = CheckpointFolder.finish

    def counted(self: CheckpointFolder, making: Path, manifest: Any) -> Any:
        counts.append(sum(each.is_dir() for each in self.root.iterdir()))
        return finish(self, making, manifest)

    monkeypatch.setattr(CheckpointFolder, "finish", counted)
    return counts


def test_a_slow_disk_does_not_hold_training_up_and_the_newest_best_waits_for_it(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch, most_there: list[int]
) -> None:
    scored(monkeypatch, FALLING)
    disk = SlowDisk(monkeypatch, 1)
    seen: list[tuple[int, int | None]] = []

    def note(trainer: Any) -> None:
        seen.append((trainer._progress.step, trainer._pulse.now.saved_step))
        if trainer._progress.step == 9:
            disk.let_go()

    before_steps(monkeypatch, note)
    run = new_run(**{**EVERY_STEP, "steps": 10})
    assert run.train_here() == "finished"
    assert seen[9] == (9, None), "nine steps were made while step 1 was written"
    assert [line["step"] for line in run.metrics("save")] == [1, 9, 10]
    assert run.heartbeat.best_step == 10
    settings = PhaseRecipe.from_json(run.job.settings)
    assert max(most_there) <= settings.kept_checkpoints + 1, "what the plan reserves disk for"


def test_where_memory_has_no_room_for_a_second_copy_training_waits(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored(monkeypatch, FALLING)
    monkeypatch.setattr(saver, "free_memory_bytes", lambda: 1000)
    disk, copies = SlowDisk(monkeypatch, 1), []
    threading.Timer(0.3, disk.let_go).start()
    real = saver.Saver.settle

    def settle(self: Any, *, wait: bool = False) -> Any:
        copies.append(self._copies[1][0].size_bytes)
        return real(self, wait=wait)

    monkeypatch.setattr(saver.Saver, "settle", settle)
    run = new_run(**{**EVERY_STEP, "steps": 4})
    assert run.train_here() == "finished"
    assert [line["step"] for line in run.metrics("save")] == [1, 2, 3, 4]
    assert set(copies) == {0}


def test_a_checkpoint_from_before_a_cooldown_gives_way_to_no_better_one(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored(monkeypatch, FALLING)
    disk = SlowDisk(monkeypatch, 1)

    def free(trainer: Any) -> None:
        if trainer._progress.step == 9:
            disk.let_go()

    before_steps(monkeypatch, free)
    # Its cooldown begins after step 9, which is a best that waits for the disk.
    cooling = {"schedule": "wsd", "cooldown_fraction": 0.1, "steps": 10, "keep_best": 1}
    run = new_run(**{**EVERY_STEP, **cooling})
    assert run.train_here() == "finished"
    assert sorted(run.manifests()) == [9, 10]


def test_a_best_that_waits_for_the_disk_outlives_a_failure(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored(monkeypatch, FALLING)
    disk, rescue = SlowDisk(monkeypatch, 1), saver.Saver.rescue
    dying_at(monkeypatch, 5)

    def rescued(self: Any) -> None:
        disk.let_go()
        rescue(self)

    monkeypatch.setattr(saver.Saver, "rescue", rescued)
    run = new_run(**EVERY_STEP)
    assert run.train_here() == "crashed"
    assert sorted(run.manifests()) == [1, 5]
    assert (run.heartbeat.saved_step, run.heartbeat.best_step) == (5, 5)


def test_a_best_that_cannot_be_written_is_not_told_of(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored(monkeypatch, SCORES)
    real = checkpoint.write_contents

    def write(making: Path, contents: Any) -> Any:
        if f"{BEST:08d}" in making.name:
            raise OSError(28, "no space left on device")
        return real(making, contents)

    monkeypatch.setattr(saver, "write_contents", write)
    run = new_run(**BETWEEN_SAVES, keep_best=9)
    assert run.train_here() == "disk_full"
    assert sorted(run.manifests()) == [4, 6]
    assert (run.heartbeat.saved_step, run.heartbeat.best_step) == (6, 6)


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:   4 kB\n"}, 4096),
        (
            {
                "proc/meminfo": "MemAvailable:   4 kB\n",
                "sys/fs/cgroup/memory.max": "3000\n",
                "sys/fs/cgroup/memory.current": "1000\n",
            },
            2000,
        ),
        ({"proc/meminfo": "MemAvailable: 4 kB\n", "sys/fs/cgroup/memory.max": "max\n"}, 4096),
        ({}, None),
    ],
)
def test_memory_that_is_left_is_the_containers(
    tmp_path: Path, files: dict[str, str], left: int | None
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert tensors.free_memory_bytes(tmp_path) == left


# -- patience ------------------------------------------------------------------------------------

PATIENCE = "TRMCLOUD_PATIENCE"
WORSE = {0: 9.0, 2: 5.0, 4: 4.0, **{step: 4.0 + step / 100 for step in range(5, 41)}}
PATIENT: dict[str, Any] = {**BETWEEN_SAVES, "steps": 40, "eval_every": 2, "save_every": 6}


def evaluated(run: Any) -> Sequence[int]:
    return [line["step"] for line in run.metrics("eval")]


@pytest.mark.parametrize("patience", [1, 3])
def test_patience_ends_with_its_last_evaluation(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch, patience: int
) -> None:
    scored(monkeypatch, WORSE)
    run = new_run(**PATIENT, keep_best=1)
    assert run.train_here(**{PATIENCE: str(patience)}) == "stopped_paying"
    last = 4 + 2 * patience
    assert evaluated(run) == list(range(0, last + 1, 2))
    assert sorted(run.manifests()) == [4, last]
    told = f"{patience} evaluations in a row were not better than the best"
    assert run.heartbeat.message == told


def test_patience_begins_the_cooldown_where_there_is_one(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored(monkeypatch, WORSE)
    cooling = {"schedule": "wsd", "cooldown_fraction": 0.2}
    run = new_run(**{**PATIENT, **cooling}, keep_best=1)
    assert run.train_here(**{PATIENCE: "2"}) == "stopped_paying"
    [decision] = run.metrics("decision")
    assert decision["cooldown_from"] == 8
    assert run.heartbeat.step == 16


@pytest.mark.parametrize("at", [5, 6, 8])
def test_patience_outlives_the_trainer(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Also from a checkpoint that was saved before it was evaluated, as that of step 6."""
    scored(monkeypatch, WORSE)
    run = new_run(**PATIENT, keep_best=9)
    environment: dict[str, Any] = {PATIENCE: "3"}
    crash(run, at, **environment)
    assert run.train_here(attempt=2, **environment) == "stopped_paying"
    assert evaluated(run) == [0, 2, 4, 6, 8, 10]
    longer = new_run(**{**PATIENT, "steps": 60}, keep_best=9)
    scored(monkeypatch, {**WORSE, **dict.fromkeys(range(41, 61), 9.0)})
    assert longer.train_here(attempt=3, **environment) == "stopped_paying"
    assert evaluated(longer)[-1] == 16, "given more steps, it has its patience again"
