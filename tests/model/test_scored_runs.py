"""A training that scores its last checkpoint on tasks, before it ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model.machine.signals import SignalFlag
from tests.model.task_files import choices, continued, schemas, task_of, write
from trmcloud.core.catalog.eval_tasks import CHOICE, LANGUAGE, SCHEMA, SUITES, Suite
from trmcloud.core.contract.records import dump
from trmcloud.core.contract.scoring import ScoringJob
from trmcloud.core.contract.trainer_contract import load_job

pytestmark = pytest.mark.usefixtures("keep_generator")
NewRun = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "tasks"
    made.mkdir()
    write(made / "even.jsonl", choices(30))
    write(made / "who.jsonl", schemas(20))
    write(made / "then.jsonl", continued(25))
    return made


@pytest.fixture
def suite(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """Three tasks in the place of CORE's."""
    kinds = {"even": CHOICE, "who": SCHEMA, "then": LANGUAGE}
    tasks = tuple(task_of(kind, folder / f"{name}.jsonl") for name, kind in kinds.items())
    made = Suite("core", "CORE", tasks)
    monkeypatch.setitem(SUITES, "core", made)
    return made


def scored(run: Any, folder: Path, within_s: float = 600.0) -> Any:
    scoring = ScoringJob("core", str(folder), within_s).to_json()
    job = dataclasses.replace(run.job, scoring=scoring)
    assert load_job(dump(job)) == job
    return dataclasses.replace(run, job=job)


@pytest.mark.usefixtures("suite")
def test_the_last_checkpoint_is_scored_after_it_is_saved(new_run: NewRun, folder: Path) -> None:
    run = scored(new_run(steps=12, save_every=12, eval_every=12), folder)
    assert run.train_here() == "finished"
    [line] = run.metrics("score")
    assert line["step"] == 12
    assert list(line["tasks"]) == ["even", "who", "then"]
    assert line["core"] == pytest.approx(sum(line["tasks"].values()) / 3)
    assert line["left_out"] == {}
    assert run.heartbeat.outcome == "finished"
    assert run.manifests()[12].val_bpb is not None
    kinds = [each["kind"] for each in run.metrics("save", "eval", "score", "end")]
    assert kinds[-2:] == ["score", "end"]
    assert "save" in kinds[:-2]


@pytest.mark.usefixtures("suite")
def test_it_changes_nothing_of_what_is_trained(new_run: NewRun, folder: Path) -> None:
    plain = new_run("plain", steps=12, ema=True)
    run = scored(new_run("scored", steps=12, ema=True), folder)
    assert plain.train_here() == run.train_here() == "finished"
    assert run.weights_at(12) == plain.weights_at(12)
    assert run.metrics("score")


def test_a_part_of_the_suite_has_another_name(
    new_run: NewRun, folder: Path, suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = dataclasses.replace(suite.tasks[0], name="gone", file="gone.jsonl")
    monkeypatch.setitem(
        SUITES,
        "core",
        dataclasses.replace(suite, tasks=(*suite.tasks, gone)),
    )
    run = scored(new_run(steps=6), folder)
    assert run.train_here() == "finished"
    [line] = run.metrics("score")
    assert "core" not in line
    assert line["core_in_part"] == pytest.approx(sum(line["tasks"].values()) / 3)
    assert list(line["left_out"]) == ["gone"]


@pytest.mark.usefixtures("suite")
def test_without_time_nothing_is_scored_and_the_run_ends_well(
    new_run: NewRun, folder: Path
) -> None:
    run = scored(new_run(steps=6), folder, within_s=0.0)
    assert run.train_here() == "finished"
    assert run.metrics("score") == []
    assert run.heartbeat.outcome == "finished"


@pytest.mark.usefixtures("suite")
def test_a_deadline_later_than_that_leaves_time(new_run: NewRun, folder: Path) -> None:
    run = scored(new_run(steps=6), folder, within_s=0.0)
    assert run.train_here(TRMCLOUD_DEADLINE_AT="4000000000") == "finished"
    assert run.metrics("score")


@pytest.mark.usefixtures("suite")
def test_files_that_are_gone_are_told_and_fail_no_training(new_run: NewRun, folder: Path) -> None:
    run = scored(new_run(steps=6), folder / "elsewhere")
    assert run.train_here() == "finished"
    assert run.metrics("score") == []
    [line] = [each for each in run.metrics("warning") if "core" in each["message"]]
    assert line["message"].startswith("core was not scored: ")
    assert run.manifests()[6].val_bpb is not None


@pytest.mark.usefixtures("suite")
def test_a_run_that_was_told_to_stop_ends_at_once(new_run: NewRun, folder: Path) -> None:
    run = scored(new_run(steps=6), folder)
    flag = SignalFlag()
    flag.raised = True
    assert run.train_here(flag=flag) == "landed_signal"
    assert run.metrics("score") == []
