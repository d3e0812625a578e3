"""SkyPilot tasks to take away: those below ``sky/`` are the ones that the command writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.app.test_export import HOSTILE, NOW
from trmcloud.adapters.files.recipes import load_recipe
from trmcloud.adapters.prices.tables import load_offers
from trmcloud.core.catalog.hardware import GUIDE_HARDWARE
from trmcloud.core.errors import ConflictError
from trmcloud.core.planner.planning import make_plan
from trmcloud.core.spec.recipe import PHASES
from trmcloud.core.spec.spec import RunSpec
from trmcloud.export.standalone_run import read_spec
from trmcloud.export.writing import make_task, write_guides
from trmcloud.wiring_plans import shipped_offers, task_names

NAMES = task_names()
SKY = Path(__file__).resolve().parents[3] / "sky"


def write_all(folder: Path) -> list[Path]:
    return write_guides(folder, load_recipe("trm"), shipped_offers, NAMES, NOW, force=False)


def loaded() -> dict[str, dict[str, Any]]:
    return {path.stem: yaml.safe_load(path.read_text()) for path in SKY.glob("*.yaml")}


def test_the_shipped_tasks_are_what_the_command_writes(tmp_path: Path) -> None:
    written = {path.name: path.read_text() for path in write_all(tmp_path)}
    shipped = {path.name: path.read_text() for path in SKY.iterdir()}
    assert sorted(shipped) == sorted(written)
    other = [name for name, text in written.items() if shipped[name] != text]
    assert not other, "make sky-tasks"
    with pytest.raises(ConflictError, match="exists"):
        write_all(tmp_path)


def test_there_is_one_for_each_hardware_and_phase_of_the_guides() -> None:
    assert sorted(loaded()) == sorted(f"{h}-{p}" for h in GUIDE_HARDWARE for p in PHASES)


def test_its_price_limit_and_own_end_keep_the_plan_s_worst_case(tmp_path: Path) -> None:
    for name, task in loaded().items():
        path = tmp_path / f"{name}.json"
        path.write_text(task["envs"]["TRMCLOUD_SPEC"])
        spec = read_spec(path)  # as a cluster reads it
        chosen, resources = spec.candidate, task["resources"]
        ((_, count),) = resources["accelerators"].items()
        assert count == chosen.gpus == int(name[0])
        assert resources["max_hourly_cost"] == float(chosen.planned_rate or chosen.rate)
        limit = resources["autostop"]
        assert limit["down"] is True
        assert limit["wait_for"] == "none"
        assert 0 < limit["idle_minutes"] * 60 - chosen.hard_stop_s <= 240
        assert chosen.provider in NAMES.clouds
        assert json.loads(task["envs"]["TRMCLOUD_SPEC"])["clock"] == "wall"
        assert task["envs"]["TRMCLOUD_AT_END"] == "skypilot"
        assert "skypilot-runpod" not in NAMES.clouds


@pytest.mark.parametrize("nodes", [1, 2])
def test_its_commands_are_sound_shell_and_its_values_what_was_given(
    nodes: int, tmp_path: Path
) -> None:
    spec = RunSpec("trm", ("fast",), "8xH100", providers=tuple(sorted(NAMES.clouds)))
    plan = make_plan(spec, load_recipe("trm"), load_offers(NOW), NOW, "p-0000")
    assert plan.recommended is not None
    limits = set()
    for value in HOSTILE[:-1]:  # YAML has no bytes that are not text
        text = make_task(
            plan, plan.recommended, NAMES,
            data=value, path=Path(value), script=f"./{value}", nodes=nodes,
        )  # fmt: skip
        task = yaml.safe_load(text)
        assert task["envs"]["DATA"] == value
        assert list(task["file_mounts"].values()) == [f"./{value}"]
        assert task["num_nodes"] == nodes
        limits.add(task["resources"]["autostop"]["idle_minutes"])
        for part in ("setup", "run"):
            (tmp_path / part).write_text("#!/bin/bash\n" + task[part])
    (limit,) = limits
    assert 0 < limit * 60 - plan.recommended.hard_stop_s / nodes <= 240
    checker = Path(sys.executable).parent / "shellcheck"
    said = subprocess.run([checker, *tmp_path.iterdir()], capture_output=True, text=True)
    assert said.returncode == 0, said.stdout
