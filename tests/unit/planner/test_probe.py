from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from trmcloud.adapters.files.recipes import load_recipe
from trmcloud.app import probes
from trmcloud.app.probe_local import probe_local
from trmcloud.core.catalog.hardware import LocalMachine
from trmcloud.core.errors import UsageError
from trmcloud.core.planner.calibrated import Measured
from trmcloud.core.planner.planning import make_plan
from trmcloud.core.spec.spec import RunSpec

NOW = 1_795_000_000.0
SETTINGS = load_recipe("trm-tiny").resolve("fast", hardware="local", gpus=2)

TRAINER = """
import json, os
out = os.path.dirname(os.environ["TRMCLOUD_JOB"])
job = json.load(open(os.environ["TRMCLOUD_JOB"]))
with open(os.path.join(out, "metrics.jsonl"), "w") as log:
    for step in range({steps}):
        log.write(json.dumps({{"step": step, "step_seconds": 9.0 if step < 2 else 0.25}}) + "\\n")
assert job["settings"]["steps"] == 50
"""


def trainer(folder: Path, steps: int) -> list[str]:
    """A package that stands in for the trainer: it logs ``steps`` steps and leaves."""
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "__init__.py").write_text("")
    (folder / "model" / "train.py").write_text(TRAINER.format(steps=steps))
    return [str(folder)]


def test_a_probe_takes_the_median_step_after_warming_up(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = trainer(tmp_path, steps=50)
    found = probe_local(SETTINGS, "here", 1, tmp_path, path, os.environ)
    assert (found.step_s, found.steps, found.gpus) == (0.25, 48, 1)


def test_a_probe_that_measures_nothing_says_so(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with pytest.raises(UsageError, match="too few steps"):
        probe_local(SETTINGS, "here", 1, tmp_path, trainer(tmp_path, steps=3), os.environ)


def test_probes_are_kept_one_per_chip_and_damage_counts_as_none(home: Path) -> None:
    one = Measured("H100-SXM", 8, 1.5, 48, 524_288, 10.72e9)
    probes.record(home, one)
    probes.record(home, one._replace(step_s=1.4))
    probes.record(home, one._replace(sku="here"))
    assert [(p.sku, p.step_s) for p in probes.load(home)] == [("here", 1.5), ("H100-SXM", 1.4)]
    (home / "probes.json").write_text('[{"sku": "x"}]')
    assert probes.load(home) == []
    (home / "probes.json").write_text("{")
    assert probes.load(home) == []


def test_a_probe_replaces_the_prior_and_narrows_the_interval() -> None:
    tiny = load_recipe("trm-tiny")
    machine = LocalMachine("here", 2, 16.0, peak_flops_per_process=60e9, mfu=0.35)
    spec = RunSpec(recipe="trm-tiny", phases=("fast",), hardware="local")
    (prior,) = make_plan(spec, tiny, [], NOW, "p-0000", local=machine).candidates
    settings = prior.phases[0].settings
    measured = Measured(
        "here", 2, 0.5, 48, settings.tokens_per_step(2), settings.work().train_flops
    )
    (probed,) = make_plan(
        spec, tiny, [], NOW, "p-0000", local=machine, measured=[measured]
    ).candidates
    step = probed.phases[0].step_s
    assert step.p50 == pytest.approx(0.5)
    assert step.p90 / step.p10 < prior.phases[0].step_s.p90 / prior.phases[0].step_s.p10 / 2
    twice = dataclasses.replace(spec, overrides=(("batch", 2 * settings.batch),))
    (larger,) = make_plan(
        twice, tiny, [], NOW, "p-0000", local=machine, measured=[measured]
    ).candidates
    assert larger.phases[0].step_s.p50 == pytest.approx(1.0), "time per FLOP is what was measured"
