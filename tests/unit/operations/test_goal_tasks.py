"""The tasks that a goal is judged by: fetched before money, sent, and scored by the last phase."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trmcloud.core.catalog.eval_tasks import SUITES
from trmcloud.core.clock import Instant
from trmcloud.core.contract.scoring import ScoringJob, scoring_of
from trmcloud.core.control.run_state import Generation, RunState
from trmcloud.core.errors import DataError
from trmcloud.core.spec.plan import Plan
from trmcloud.operations.launch.run_notes import HomeNotes
from trmcloud.operations.pod_request import (
    SCORING_MARGIN,
    LaunchData,
    pod_request,
    write_launch_note,
)
from trmcloud.operations.sending import data as data_files
from trmcloud.operations.sending.staging import stage_items
from trmcloud.options import request_from
from trmcloud.sim.world.store import SimNotes
from trmcloud.wiring_plans import build_planner

NOW = 1_795_000_000.0


def planned(tmp_path: Path, **wish: Any) -> Plan:
    planner = build_planner(tmp_path, lambda: NOW)
    return planner.plan(planner.spec(request_from({"provider": ["runpod"], **wish})))


def jobs_of(plan: Plan, note: dict[str, Any]) -> Any:
    candidate = plan.recommended
    assert candidate is not None
    generation = Generation(
        1, "trmc-0a1b2c3d-r1-g1-1800000000", "runpod", candidate.id, candidate.rate,
        NOW + candidate.soft_stop_s, NOW + candidate.hard_stop_s, NOW,
    )  # fmt: skip
    world = SimpleNamespace(
        home=Path("/home"),
        notes=SimNotes({"r1": note}),
        files=SimpleNamespace(manifests=lambda run_id: ()),
        pods=SimpleNamespace(folder=lambda kind, folder: f"/workspace/{kind}/{folder.name}"),
    )
    run = RunState("r1", epoch=1)
    return pod_request(cast(Any, world), run, plan, generation, 1, Instant(NOW, 0.0)).jobs


def test_the_last_phase_scores_within_its_part_of_the_landing(tmp_path: Path) -> None:
    plan = planned(tmp_path, goal="gpt2", hardware="8xH100")
    note = {"data_dir": "/data", "initial_weights": "", "tasks_dir": "/cache/eval-tasks"}
    [job] = jobs_of(plan, note)
    assert plan.recommended is not None
    [phase] = plan.recommended.phases
    within_s = SCORING_MARGIN * phase.parts_s["scoring"]
    assert scoring_of(job.scoring) == ScoringJob("core", "/workspace/tasks/eval-tasks", within_s)
    assert plan.recommended.landing_s > within_s > 60
    assert plan.recommended.soft_stop_s + plan.recommended.landing_s <= plan.recommended.hard_stop_s


def test_a_run_without_a_goal_scores_nothing(tmp_path: Path) -> None:
    plan = planned(tmp_path, recipe="speedrun", hardware="8xH100")
    [job] = jobs_of(plan, {"data_dir": "/data", "initial_weights": ""})
    assert scoring_of(job.scoring) is None
    assert plan.recommended is not None
    assert "scoring" not in plan.recommended.phases[0].parts_s
    with_goal = planned(tmp_path, goal="gpt2", hardware="8xH100").recommended
    assert with_goal is not None
    assert with_goal.landing_s > plan.recommended.landing_s
    assert with_goal.cost_p50 > plan.recommended.cost_p50


def test_the_note_keeps_the_folder_and_the_pod_is_sent_it(tmp_path: Path) -> None:
    context = SimpleNamespace(notes=HomeNotes(tmp_path))
    tasks, text = tmp_path / "tasks", tmp_path / "text"
    for folder in (tasks, text):
        folder.mkdir()
        (folder / "a.jsonl").write_text("{}\n")
    made = LaunchData(str(text), tasks=str(tasks))
    write_launch_note(cast(Any, context), "r1", data=made, initial_weights="")
    note = context.notes.launch("r1")
    assert LaunchData.of_note(note) == made
    files = SimpleNamespace(manifests=lambda run_id: ())
    trainer = Path(data_files.__file__).parents[3] / "model"
    items = stage_items(cast(Any, files), note, trainer, RunState("r1"), tmp_path)
    [sent] = [item for item in items if item.remote.startswith("/workspace/trmcloud/tasks/")]
    assert set(sent.sha256) == {"a.jsonl"}


def test_files_that_cannot_be_had_are_an_error_before_anything_is_rented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Sequence[str]] = []

    def refuse(words: Sequence[str], *more: Any) -> None:
        asked.append(words)
        raise DataError("it is not the published one")

    monkeypatch.setattr(data_files, "_run_prepare", refuse)
    with pytest.raises(DataError, match="not the published one"):
        data_files.fetch_tasks(tmp_path, "core", [], lambda stage, done, total: None)
    assert asked == [
        ["--suite", "core", "--cache", str(tmp_path / "data-cache" / "eval-tasks"), "--fetch"]
    ]


def test_a_suites_tokens_are_those_of_its_prompts() -> None:
    core = SUITES["core"]
    assert core.tokens(2048) == sum(task.tokens(2048) for task in core.tasks)
    assert core.tokens(128) < core.tokens(2048) < core.tokens(1 << 20)
    copa = next(task for task in core.tasks if task.name == "copa")
    assert copa.tokens(2048) == pytest.approx(2 * copa.size_bytes / 4.2)
