"""Exported scripts: sound shell, whatever the names in them, and a run that stops by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trmcloud.adapters.files.recipes import load_recipe
from trmcloud.adapters.prices.tables import load_offers
from trmcloud.app.staging.bundle import bundle_root
from trmcloud.core.catalog.hardware import GUIDE_HARDWARE
from trmcloud.core.planner.planning import make_plan
from trmcloud.core.spec.recipe import PHASES
from trmcloud.core.spec.spec import RunSpec
from trmcloud.export import script as script_module
from trmcloud.export.script import FORMS, Payload, make_payload, quote, script

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
