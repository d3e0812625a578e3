"""``plan --probe local``: fifty real steps of the fast phase here, to replace the prior."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.gate import number_of
from trmcloud.core.contract.records import parse_lines
from trmcloud.core.contract.trainer_contract import (
    ENV_ATTEMPT,
    ENV_DEADLINE_AT,
    ENV_JOB,
    Heartbeat,
    PhaseJob,
    load_heartbeat,
)
from trmcloud.core.errors import DoesNotFit, UsageError
from trmcloud.core.planner.roofline import MeasuredSpeed
from trmcloud.core.spec.settings import PhaseRecipe
from trmcloud.core.spec.spec import RunSpec
from trmcloud.operations.context import Context
from trmcloud.operations.plans import measurements
from trmcloud.operations.plans.planning import Planner
from trmcloud.operations.plans.preparing import DataProgress, pinned_source, ready_data
from trmcloud.operations.sending.data import resolve_source
from trmcloud.pod.agent.nodes import trainer_command

PROBE_STEPS = 50
LEAST_STEPS = 5
LIMIT_S = 180.0
"""A machine too slow for fifty steps is measured on those it makes in three minutes."""


class Probe:
    """The first phase of a wish, to be measured on this machine.

    Raises:
        UsageError: a probe elsewhere than here, or a recipe without a trainer.
        DataError: a recipe without data.
    """

    def __init__(self, context: Context, planner: Planner, spec: RunSpec, where: str) -> None:
        if where != LOCAL:
            raise UsageError(
                f"--probe works only with local, not with {where!r}",
                next_step="--probe local",
            )
        recipe = planner.recipe(spec.recipe)
        if not recipe.has_trainer:
            raise UsageError(
                f"the trainer of {recipe.name} does not exist yet: there is nothing to probe"
            )
        here = dataclasses.replace(
            spec, hardware=LOCAL, budget=None, deadline_at=None, fill=False, objective="value",
            providers=(), regions=(), gpus=0,
        )  # fmt: skip
        candidate, machine = planner.plan(here).candidates[0], planner.machine()
        self._context, self._inputs, self._data = context, planner.inputs, spec.data
        self._processes, self._machine = candidate.gpus, machine.gpu_sku or machine.name
        self._settings = candidate.phases[0].settings
        self.expected_s = candidate.phases[0].step_s.p50
        self.about = f"{recipe.name} on {self._machine}, {self._processes} processes"

    def prepare(self, progress: DataProgress) -> Path:
        """Make the data ready that it takes; return its folder."""
        named = self._inputs.data_source(resolve_source(self._data, self._settings))
        source = pinned_source(self._context, self._inputs, named, progress)
        tokens = (PROBE_STEPS + 1) * self._settings.tokens_per_step(self._processes)
        return ready_data(self._context, source, self._settings, progress, tokens=tokens)[0]

    def measure(self, data: Path, environ: Mapping[str, str]) -> MeasuredSpeed:
        """Train fifty steps, and keep what they took for later plans."""
        path = self._context.pods.trainer_path()
        found = probe_local(self._settings, self._machine, self._processes, data, path, environ)
        measurements.record_probe(self._context.home, found)
        return found


def probe_local(
    settings: PhaseRecipe,
    name: str,
    processes: int,
    data_dir: Path,
    python_path: Sequence[str],
    environ: Mapping[str, str],
) -> MeasuredSpeed:
    """Trains ``settings`` for fifty steps in a folder that is thrown away; the median step.

    Raises:
        UsageError: the trainer ended without enough steps, in its own words.
        DoesNotFit: it ran out of memory.
    """
    short = dataclasses.replace(
        settings,
        steps=PROBE_STEPS,
        eval_every=PROBE_STEPS + 1,
        save_every=PROBE_STEPS + 1,
        eval_tokens=settings.tokens_per_step(processes),
        log_every=1,
    )
    with tempfile.TemporaryDirectory(prefix="trmcloud-probe-") as scratch:
        out = Path(scratch)
        job = PhaseJob(
            run_id="probe", phase=short.phase, settings=short.to_json(), data_dir=str(data_dir),
            out_dir=str(out), processes=processes,
        )  # fmt: skip
        (out / contract.JOB_NAME).write_text(contract.dump(job), encoding="utf-8")
        command, environment = trainer_command(sys.executable, processes, environ)
        ended = subprocess.run(
            command,
            env={
                **environment,
                "PYTHONPATH": os.pathsep.join(python_path),
                ENV_JOB: str(out / contract.JOB_NAME),
                ENV_DEADLINE_AT: repr(time.time() + LIMIT_S),
                ENV_ATTEMPT: "1",
            },
            cwd=out,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = _steps(out / contract.METRICS_NAME)
        beat = _beat(out / contract.HEARTBEAT_NAME)
    if len(seconds) < LEAST_STEPS:
        _explain(beat, ended.stderr)
    return MeasuredSpeed(
        sku=name,
        gpus=processes,
        step_s=sorted(seconds)[len(seconds) // 2],
        steps=len(seconds),
        tokens_per_step=short.tokens_per_step(processes),
        flops_per_token=short.work().train_flops,
        at=time.time(),
    )


def _steps(path: Path) -> list[float]:
    """Seconds of every logged step but the first two, which warm up."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return []
    told = (number_of(line.get("step_seconds")) for line in parse_lines(lines))
    return [seconds for seconds in told if seconds is not None and seconds > 0][2:]


def _beat(path: Path) -> Heartbeat | None:
    try:
        return load_heartbeat(path.read_bytes())
    except (OSError, contract.ContractError):
        return None


def _explain(beat: Heartbeat | None, stderr: str) -> None:
    said = contract.strip_control(beat.message if beat and beat.message else stderr[-300:])
    if beat is not None and beat.outcome == "out_of_memory":
        raise DoesNotFit(f"the probe ran out of memory: {said}", next_step="--set batch=1")
    raise UsageError(f"the probe made too few steps to measure: {said.strip() or 'no output'}")
