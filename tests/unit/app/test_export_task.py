"""SkyPilot tasks to take away: those below ``sky/`` are the ones that the command writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from trmcloud.cli.export_task import clouds, write_all
from trmcloud.core.errors import ConflictError
from trmcloud.core.hardware import GUIDE_HARDWARE
from trmcloud.core.recipe import PHASES
from trmcloud.pod.standalone_run import read_spec

SKY = Path(__file__).resolve().parents[3] / "sky"


def loaded() -> dict[str, dict[str, Any]]:
    return {path.stem: yaml.safe_load(path.read_text()) for path in SKY.glob("*.yaml")}


def test_the_shipped_tasks_are_what_the_command_writes(tmp_path: Path) -> None:
    written = {path.name: path.read_text() for path in write_all(tmp_path, force=False)}
    shipped = {path.name: path.read_text() for path in SKY.iterdir()}
    assert sorted(shipped) == sorted(written)
    other = [name for name, text in written.items() if shipped[name] != text]
    assert not other, "make sky-tasks"
    with pytest.raises(ConflictError, match="exists"):
        write_all(tmp_path, force=False)


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
        assert chosen.provider in clouds()
        assert json.loads(task["envs"]["TRMCLOUD_SPEC"])["clock"] == "wall"
        assert task["envs"]["TRMCLOUD_AT_END"] == "skypilot"
        assert "skypilot-runpod" not in clouds()
