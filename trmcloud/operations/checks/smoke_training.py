"""``smoke --train``: the trainer's checks on a machine, as the run of a command within a sum.

The command is ``python -m model.smoke``, and the folder that is sent holds the trainer's sources
and the settings: so the machine is rented, guarded, ended and billed like any other run's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from trmcloud.core.catalog.hardware import LOCAL, Gpu, LocalMachine, find_gpu, hardware_name
from trmcloud.core.contract.records import dump
from trmcloud.core.contract.training_checks import LEAST_S, CheckResult, TrainingChecks, results_in
from trmcloud.core.control.report import spent_so_far
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import BudgetRefused, UsageError
from trmcloud.core.money import Usd
from trmcloud.core.planner.roofline import MeasuredSpeed
from trmcloud.core.planner.speed import rented_machine, step_seconds
from trmcloud.core.spec.plan import Candidate
from trmcloud.core.spec.recipe import SMALL
from trmcloud.core.spec.settings import PhaseRecipe
from trmcloud.core.text import one_line
from trmcloud.core.values import replace
from trmcloud.operations.commands.commands import CommandRequest
from trmcloud.operations.context import Context
from trmcloud.operations.home import bundle_root
from trmcloud.operations.plans import measurements
from trmcloud.operations.plans.planning import Planner
from trmcloud.operations.runs.run_logs import logs_of
from trmcloud.operations.sending.packing import sources, trainers_share
from trmcloud.operations.views import TrainingCheck, TrainingChecked, filled
from trmcloud.options import LaunchRequest

CHECKS_NAME = "checks.json"
_GRACE_S = 20.0
_REPORT_GB = 0.01
_STEPS = 10
"""Timed by the check of the planned step."""
_FAR = 1e6
_SLOWEST_S = 4.0
"""Seconds of a step, with which the runs of the trainer end within their limits."""


class WantedChecks(NamedTuple):
    """The checks of one shape on one kind of machine."""

    candidate: Candidate
    planned: PhaseRecipe
    small: PhaseRecipe
    gpu: Gpu | None
    """None: there is none, and ``planned`` is the recipe's small shape."""

    @property
    def is_miniature(self) -> bool:
        return self.gpu is None

    @property
    def hardware(self) -> str:
        return self.candidate.hardware

    @property
    def least(self) -> Usd:
        return least_usd(self.candidate)

    def check_sum(self, max_usd: Usd | None) -> None:
        """
        Raises:
            BudgetRefused: the last checks would be left out.
        """
        if max_usd is not None and max_usd < self.least:
            raise BudgetRefused(
                f"the checks take about {_seconds(self.candidate) / 60:.0f} min on "
                f"{self.hardware}, its boot included, and {self.least}; {max_usd} is too little",
                next_step=f"--max-usd {self.least.micros / 1e6:.2f}, or a smaller machine: "
                "trmcloud smoke --train lists them",
            )

    def write(self, folder: Path) -> None:
        """Fill ``folder`` with what is sent: the trainer, what it imports, and the checks."""
        trainer = bundle_root() / "model"
        files = dict(trainers_share(trainer))
        files |= {name: path.read_bytes() for name, path in sources(trainer, trainer.name).items()}
        gpu = self.gpu
        checks = TrainingChecks(
            planned=self.planned.to_json(),
            small=self.small.to_json(),
            processes=self.candidate.gpus,
            memory_gb=gpu.memory_gb if gpu is not None else 0.0,
            device="cuda" if gpu is not None else "cpu",
        )
        files[CHECKS_NAME] = dump(checks).encode()
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def command(self) -> CommandRequest:
        python = sys.executable if self.candidate.provider == LOCAL else "python3"
        return CommandRequest(
            (python, "-m", "model.smoke", CHECKS_NAME),
            checkpoints="smoke-report",
            metric="failed",
            checkpoint_gb=_REPORT_GB,
            grace=_GRACE_S,
        )


def wanted_checks(planner: Planner, recipe: str, hardware: str) -> WantedChecks:
    """The checks of ``recipe``'s last phase on ``hardware``; on this machine's processors of its
    small shape.

    Raises:
        UsageError, NotFoundError: no such recipe, phase, or small shape of it; or no such hardware.
        DoesNotFit: it does not fit there.
    """
    whole = recipe.removesuffix(SMALL)
    small = _candidate(planner, whole + SMALL if planner.recipe(whole).small else whole, LOCAL)
    small_settings = small.phases[-1].settings
    own = planner.machine().gpu_sku
    if hardware == LOCAL and own is None:
        step_s = small.phases[-1].step_s.p50
        if step_s > _SLOWEST_S:
            raise UsageError(
                f"a step of {recipe} takes about {step_s:.0f} s on this machine, which is too slow "
                "to check",
                next_step="--recipe speedrun, or rent: --hardware 1xH100",
            )
        return WantedChecks(small, small_settings, small_settings, None)
    candidate = _candidate(planner, recipe, hardware)
    if candidate.nodes > 1:
        raise UsageError(
            f"--train checks one machine, not {hardware}",
            next_step=f"--hardware {hardware_name(candidate.sku, candidate.gpus)}",
        )
    gpu = find_gpu(own if hardware == LOCAL and own is not None else candidate.sku)
    # Compiled and in bfloat16, as the planned shape is: its own row is one for processors.
    trained = replace(small_settings, dtype="bfloat16", compile=True)
    return WantedChecks(candidate, candidate.phases[-1].settings, trained, gpu)


def _candidate(planner: Planner, recipe: str, hardware: str) -> Candidate:
    request = LaunchRequest(hardware=hardware, recipe=recipe)
    return planner.plan(planner.spec_to_launch(request)).candidates[0]


def least_usd(candidate: Candidate) -> Usd:
    """The sum below which the last checks would be left out."""
    micros = candidate.rate.micros * _seconds(candidate) / 3600
    return Usd.from_micros(round(micros / 1e4 + 0.5) * 10_000 if micros else 0)


def machines(planner: Planner, recipe: str) -> list[Candidate]:
    """The rented machines on which ``recipe`` can be checked, the cheapest of each kind, by what
    the checks cost there."""
    plan = planner.plan(planner.spec_to_launch(LaunchRequest(recipe=recipe)))
    kinds: dict[str, Candidate] = {}
    for candidate in sorted(plan.candidates, key=least_usd):
        kinds.setdefault(hardware_name(candidate.sku, candidate.gpus, candidate.nodes), candidate)
    return [c for c in kinds.values() if c.nodes == 1 and c.provider != LOCAL]


def results_of(context: Context, run: RunState) -> list[CheckResult]:
    """The results that ``run``'s log holds; its machine may have written anything."""
    found: list[CheckResult] = []
    for phase in logs_of(context, run):
        with open(context.files.logs(run.run_id, phase), encoding="utf-8", errors="replace") as log:
            found += results_in(log)
    return [replace(each, detail=one_line(each.detail)) for each in found]


def note_step(
    context: Context,
    run: RunState,
    wanted: WantedChecks,
    machine: LocalMachine,
    results: Iterable[CheckResult],
) -> MeasuredSpeed | None:
    """Keep the timed step of the planned shape for plans on the same hardware; None where it was
    not timed, or is faster than its chip can be. ``machine``: this one.

    Raises:
        OSError: the home cannot be written.
    """
    step = next((each for each in results if each.name == "step" and each.passed), None)
    if step is None or not 0 < step.measured.get("step_s", 0.0) < _FAR:
        return None
    candidate, settings = wanted.candidate, wanted.planned
    is_here = candidate.provider == LOCAL
    sku = (machine.gpu_sku or machine.name) if is_here else candidate.sku
    predicted_s = 0.0
    if not is_here:
        rented = rented_machine(candidate.sku, candidate.gpus)
        predicted_s = step_seconds(settings, rented)
    found = MeasuredSpeed(
        sku=sku,
        gpus=candidate.gpus,
        step_s=step.measured["step_s"],
        steps=_STEPS,
        tokens_per_step=settings.tokens_per_step(candidate.gpus),
        flops_per_token=settings.work().train_flops,
        predicted_s=predicted_s,
        at=context.wall(),
        run_id=run.run_id,
        provider=candidate.provider,
    )
    if not found.is_possible:
        return None
    measurements.record_probe(context.home, found)
    return found


def _seconds(candidate: Candidate) -> float:
    boot_s = candidate.startup_s.p50 if candidate.provider != LOCAL else 0.0
    return LEAST_S + boot_s + _GRACE_S


def checked_view(
    context: Context,
    run: RunState,
    wanted: WantedChecks,
    results: Sequence[CheckResult],
    taught: MeasuredSpeed | None,
) -> TrainingChecked:
    """The results as a document."""
    return TrainingChecked(
        run_id=run.run_id,
        hardware=wanted.hardware,
        recipe=wanted.planned.recipe,
        spent_usd=spent_so_far(run, context.wall()),
        is_miniature=wanted.is_miniature,
        taught=taught is not None,
        checks=tuple(
            filled(TrainingCheck, each, message=each.detail, elapsed_s=each.seconds)
            for each in results
        ),
    )
