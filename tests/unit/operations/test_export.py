"""Exported scripts and SkyPilot tasks: sound shell, and those below `sky/` are what the command
writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from trmcloud.adapters.files import load_recipe
from trmcloud.adapters.prices.tables import load_offers
from trmcloud.core.catalog.hardware import GUIDE_HARDWARE
from trmcloud.core.errors import ConflictError
from trmcloud.core.planner.planning import make_plan
from trmcloud.core.spec.settings import PHASES
from trmcloud.core.spec.spec import RunSpec
from trmcloud.export import script as script_module
from trmcloud.export.script import FORMS, Payload, make_payload, make_task, quote, script
from trmcloud.export.standalone import read_spec
from trmcloud.export.writing import write_guides
from trmcloud.operations.home import bundle_root
from trmcloud.wiring_plans import shipped_offers, task_names

# -- export -------------------------------------------------------------------------------------
# Exported scripts: sound shell, whatever the names in them, and a run that stops by itself.


NOW = 1_795_000_000.0
HOSTILE = ("it's here", '$(touch "oops") `id`', "two\nlines", "čaj “x”", "-rf", "a\\b'", "\udcff!")


@pytest.mark.parametrize("text", HOSTILE)
def test_a_quoted_value_reaches_a_command_as_it_is(text: str, tmp_path: Path) -> None:
    said = subprocess.run(
        ["bash", "-c", f"value={quote(text)}; printf %s \"$value\""],
        capture_output=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert said.stdout == os.fsencode(text)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", FORMS)
def test_shellcheck_passes_on_all_hardware_and_phases(form: str, tmp_path: Path) -> None:
    paths = [Path(script_module.__file__).with_name("task.sh")]
    offers, recipe = load_offers(NOW), load_recipe("trm")
    choices = (*((phase,) for phase in PHASES), PHASES)
    for number, hardware in enumerate(GUIDE_HARDWARE):
        phases = choices[number % len(choices)]
        plan = make_plan(RunSpec("trm", phases, hardware), recipe, offers, NOW, "p-0000")
        assert plan.recommended is not None
        path = tmp_path / f"{hardware}-{'-'.join(phases)}.sh"
        text = script(plan, plan.recommended, Payload(b"x" * 200), form=form, data=HOSTILE[number])
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    checker = Path(sys.executable).parent / "shellcheck"
    said = subprocess.run([checker, *paths], capture_output=True, text=True)
    assert said.returncode == 0, said.stdout[:3000]


def test_the_payload_is_the_same_each_time_and_holds_sources_alone() -> None:
    one = make_payload(bundle_root() / "model")
    assert one == make_payload(bundle_root() / "model")
    listed = subprocess.run(["tar", "-tz"], input=one.content, capture_output=True, check=True)
    names = listed.stdout.decode().split()
    assert {"trmcloud/export/standalone.py", "model/train.py", "model/datasets/gsm8k.toml"} <= set(
        names
    )
    assert all(name.endswith((".py", ".txt", ".toml")) for name in names)
    assert not any(name.startswith("trmcloud/adapters") for name in names)


# -- SkyPilot tasks to take away: those below ``sky/`` are the ones that the command writes -----


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
        assert resources["max_hourly_cost"] == float(chosen.most_rate or chosen.rate)
        limit = resources["autostop"]
        assert limit["down"] is True
        assert limit["wait_for"] == "none"
        assert 0 < limit["idle_minutes"] * 60 - chosen.hard_stop_s <= 240
        assert chosen.provider in NAMES.clouds
        assert json.loads(task["envs"]["TRMCLOUD_SPEC"])["clock"] == "wall"
        assert task["envs"]["TRMCLOUD_AT_END"] == "skypilot"
        assert "skypilot-runpod" not in NAMES.clouds


@pytest.mark.parametrize("nodes", [1, 2])
def test_its_commands_are_sound_shell_with_the_values_given(nodes: int, tmp_path: Path) -> None:
    spec = RunSpec("trm", ("fast",), "8xH100", providers=tuple(sorted(NAMES.clouds)))
    plan = make_plan(spec, load_recipe("trm"), load_offers(NOW), NOW, "p-0000")
    assert plan.recommended is not None
    limits = set()
    for value in HOSTILE[:-1]:  # YAML has no bytes that are not text
        text = make_task(
            plan, plan.recommended, NAMES,
            data=value, path=Path(value), carrier=f"./{value}", nodes=nodes,
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
