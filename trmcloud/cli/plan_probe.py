"""Running a probe from the command line: data, trainer, and a line about what was measured."""

from __future__ import annotations

import dataclasses
import os
import sys

from trmcloud.core.errors import UsageError
from trmcloud.core.hardware import LOCAL
from trmcloud.core.spec import RunSpec


def run_probe(spec: RunSpec, where: str) -> None:
    """Measures the first phase of ``spec`` on this machine and keeps the result for plans.

    Raises:
        UsageError: a probe elsewhere than local, a recipe without trainer, or without data.
    """
    if where != LOCAL:
        raise UsageError(
            f"--probe {where!r} cannot be run: only this machine can be probed without renting",
            next_step="--probe local",
        )
    from trmcloud.adapters.data_set_files import source_of
    from trmcloud.adapters.local_machine import this_machine
    from trmcloud.adapters.recipe_files import load_recipe
    from trmcloud.app import probes
    from trmcloud.app.data import prepare as prepare_data
    from trmcloud.app.data import resolve_source
    from trmcloud.app.home import home_dir
    from trmcloud.app.probe_local import PROBE_STEPS, probe_local
    from trmcloud.cli.plan_making import plan_for
    from trmcloud.wiring import python_path

    recipe = load_recipe(spec.recipe)
    if not recipe.has_trainer:
        raise UsageError(f"the trainer of {recipe.name} is not there yet: nothing to probe")
    home = home_dir(os.environ)
    here = dataclasses.replace(
        spec, hardware=LOCAL, budget=None, deadline_at=None, fill=False, objective="value",
        providers=(), regions=(), gpus=0,
    )  # fmt: skip
    candidate = plan_for(here, save=False).candidates[0]
    settings = candidate.phases[0].settings
    source = source_of(resolve_source(spec.data, settings))
    tokens = (PROBE_STEPS + 1) * settings.tokens_per_step(candidate.gpus)

    def progress(stage: str, done: int, total: int) -> None:
        del stage, done, total

    folder, _ = prepare_data(home, source, settings, python_path(), progress, tokens=tokens)
    machine = this_machine()
    name = machine.gpu_sku or machine.name
    print(f"probing {recipe.name} on {name}, {candidate.gpus} processes …", file=sys.stderr)
    found = probe_local(settings, name, candidate.gpus, folder, python_path(), os.environ)
    probes.record(home, found)
    expected = candidate.phases[0].step_s.p50
    print(
        f"{found.steps} steps: {found.step_s:.3f} s a step, expected {expected:.3f} s",
        file=sys.stderr,
    )
