"""Training on a folder that still grows: it waits, says so, and ends where nothing can come."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.machine.telemetry import Clock
from tests.model.growing import HandMade, complete
from trmcloud.core.spec.settings import PhaseRecipe

VOCABULARY = 300


def shards(count: int = 3, size: int = 1200) -> list[list[int]]:
    chosen = np.random.default_rng(3)
    return [chosen.integers(0, VOCABULARY, size).tolist() for _ in range(count)]


@pytest.fixture
def small(settings: PhaseRecipe) -> PhaseRecipe:
    return replace(settings, vocab_size=450, steps=90, batch=2, eval_every=45, save_every=30)


@pytest.fixture
def run_on(new_run: Callable[..., Any], small: PhaseRecipe) -> Callable[..., Any]:
    """A factory: a run in a folder of its own on the data of another."""

    def make(name: str, data: Path, **changes: Any) -> Any:
        run = new_run(name)
        made = replace(small, **changes)
        return replace(run, job=replace(run.job, settings=made.to_json(), data_dir=str(data)))

    return make


@contextmanager
def meanwhile(act: Callable[[], None]) -> Iterator[None]:
    failed: list[BaseException] = []

    def guarded() -> None:
        try:
            act()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    yield
    thread.join(60)
    assert not failed, failed


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def state_of(run: Any) -> str:
    try:
        return str(run.heartbeat.state)
    except (OSError, ValueError):
        return ""


def test_a_run_that_waits_ends_with_the_very_weights_of_one_that_need_not(
    run_on: Callable[..., Any], tmp_path: Path
) -> None:
    made = shards()
    whole = run_on("whole", complete(tmp_path / "whole-data", made))
    assert whole.train_here() == "finished"
    folder = HandMade(tmp_path / "data")
    run = run_on("waiting", folder.path)

    def prepare() -> None:
        until(lambda: state_of(run) == "waiting")  # for meta.json
        folder.add(made[0])
        folder.begin()
        until(lambda: state_of(run) == "waiting" and run.heartbeat.step > 0)
        waiting_at = run.heartbeat.step
        assert waiting_at == (1200 - 1) // 16 // 2
        first = run.heartbeat.at
        until(lambda: run.heartbeat.at > first)  # it beats while it waits
        folder.add(made[1])
        until(lambda: state_of(run) == "waiting" and run.heartbeat.step > waiting_at)
        folder.add(made[2])
        folder.finish()

    with meanwhile(prepare):
        assert run.train_here() == "finished"
    assert run.weights_at(90) == whole.weights_at(90)
    assert run.exact_metrics() == whole.exact_metrics()
    assert run.heartbeat.seconds["data"] > 0.2
    assert whole.heartbeat.seconds["data"] == 0
    waits = [line["data_wait_s"] for line in whole.metrics("train")]
    assert len(waits) == 90
    assert all(0 <= each < 5 for each in waits)


def test_what_cannot_come_ends_the_run_by_its_own_words_and_a_resume_goes_on(
    run_on: Callable[..., Any], tmp_path: Path
) -> None:
    made = shards()
    whole = run_on("whole", complete(tmp_path / "whole-data", made))
    whole.train_here()
    folder = HandMade(tmp_path / "data")
    folder.add(made[0])
    folder.begin()
    folder.tell("failed", message="shard_00001.parquet is not there (https://…)", next_step="look")
    run = run_on("run", folder.path)
    assert run.train_here() == "bad_data"
    assert run.heartbeat.message.startswith("shard_00001.parquet is not there")
    assert run.heartbeat.message.endswith("Next: look")
    step = run.heartbeat.saved_step
    assert step == run.heartbeat.step == (1200 - 1) // 16 // 2, "what was trained is saved"
    folder.add(made[1])
    folder.add(made[2])
    folder.finish()
    assert run.train_here(attempt=2) == "finished"
    assert run.metrics("start")[-1]["from_step"] == step
    assert run.weights_at(90) == whole.weights_at(90)


def test_a_resume_on_other_shards_is_refused(run_on: Callable[..., Any], tmp_path: Path) -> None:
    made = shards()
    folder = complete(tmp_path / "data", made)
    run = run_on("run", folder, steps=40)
    run.train_here()
    other = complete(tmp_path / "other", [made[1], made[0], made[2]])
    again = run_on("run", other)
    assert again.train_here(attempt=2) == "bad_data"
    assert "shard 0 (s0) is not the one that the checkpoint read" in again.heartbeat.message


@pytest.mark.parametrize("when", ["before the first step", "later"])
def test_a_deadline_cuts_a_wait(run_on: Callable[..., Any], tmp_path: Path, when: str) -> None:
    folder = HandMade(tmp_path / "data")
    if when == "later":
        folder.add(shards()[0])
        folder.begin()
    run = run_on("run", folder.path)
    late = threading.Event()

    def epoch() -> float:
        return time.time() + (1e6 if late.is_set() else 0.0)

    def prepare() -> None:
        until(lambda: state_of(run) == "waiting")
        late.set()
        folder.tell(at=time.time() + 1e6)  # its clock is the same one

    with meanwhile(prepare):
        deadline = str(time.time() + 5e5)
        outcome = run.train_here(clock=Clock(epoch=epoch), TRMCLOUD_DEADLINE_AT=deadline)
    assert outcome == "landed_deadline"
    if when == "later":
        assert run.heartbeat.saved_step == run.heartbeat.step > 0


def test_a_preparation_that_failed_before_it_began(
    run_on: Callable[..., Any], tmp_path: Path
) -> None:
    folder = HandMade(tmp_path / "data")
    folder.tell("failed", message="the host answered 404", next_step="look")
    run = run_on("run", folder.path)
    assert run.train_here() == "bad_data"
    assert run.heartbeat.message == "the host answered 404 (made by hand). Next: look"


@pytest.mark.slow
def test_three_ranks_wait_together(run_on: Callable[..., Any], tmp_path: Path) -> None:
    made = shards(2)
    whole = run_on("whole", complete(tmp_path / "whole-data", made), steps=20)
    process = whole.torchrun(processes=3)
    assert whole.finish(process) == 0
    folder = HandMade(tmp_path / "data")
    folder.add(made[0])
    folder.begin()
    run = run_on("run", folder.path, steps=20)
    process = run.torchrun(processes=3)
    until_waits = time.monotonic() + 120
    while state_of(run) != "waiting":
        assert process.poll() is None
        assert time.monotonic() < until_waits
        folder.tell()
        time.sleep(0.05)
    assert run.heartbeat.step == (1200 - 1) // 16 // 6
    folder.add(made[1])
    folder.finish()
    assert run.finish(process) == 0
    assert run.weights_at(20) == whole.weights_at(20)
    state = json.loads((run.out / "checkpoints/step-00000020/state.json").read_text())
    assert state["shards"] == [each.sha256 for each in folder.shards]


def test_rows_of_whole_documents_are_trained_on_and_said(
    run_on: Callable[..., Any], tmp_path: Path
) -> None:
    from tests.model.growing import BOS

    documents = [[BOS, *ids] for ids in np.array(shards(1, 1200)[0]).reshape(-1, 12).tolist()]
    folder = complete(
        tmp_path / "data",
        [[token for each in documents for token in each]],
        validation=[token for each in documents[:20] for token in each],
    )
    losses = {}
    for kind in ("stream", "bestfit"):
        run = run_on(kind, folder, steps=10, rows=kind)
        assert run.train_here() == "finished"
        losses[kind] = run.metrics("eval")[-1]["val_bpb"]
        manifest = run.manifests()[10]
        assert manifest.settings["rows"] == kind
    assert losses["stream"] != losses["bestfit"]


def test_passes_are_compiled_while_the_data_are_on_their_way(
    run_on: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model.training.stepping.needs_warm_up", lambda settings, world: True)
    made = shards()
    whole = run_on("whole", complete(tmp_path / "whole-data", made))
    assert whole.train_here() == "finished"
    folder = HandMade(tmp_path / "data")
    run = run_on("waiting", folder.path)

    def prepare() -> None:
        until(lambda: state_of(run) == "waiting")  # for meta.json: what comes before is done
        assert run.heartbeat.seconds["compile"] > 0
        for shard in made:
            folder.add(shard)
        folder.begin()
        folder.finish()

    with meanwhile(prepare):
        assert run.train_here() == "finished"
    assert run.weights_at(90) == whole.weights_at(90)
    assert run.exact_metrics() == whole.exact_metrics()
