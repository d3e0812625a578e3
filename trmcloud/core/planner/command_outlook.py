"""Predictions for a user's own command, before and after a probe has measured its steps. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated

from trmcloud.core.catalog.hardware import GPUS, Gpu
from trmcloud.core.contract.command import PHASE, RECIPE, Command
from trmcloud.core.contract.command_terms import SETTLED_S, MeasuredSteps
from trmcloud.core.contract.records import within
from trmcloud.core.planner.estimates import (
    HOUR_S,
    LOCAL_LANDING_MARGIN_S,
    PULL_BYTES_PER_S,
    REMOTE_LANDING_MARGIN_S,
    Estimates,
    hardware_of,
)
from trmcloud.core.planner.memory import Memory
from trmcloud.core.planner.speed import FittedSettings, Machine, PhaseTime, save_s, startup_s
from trmcloud.core.spec.plan import Interval, PhasePlan, Remark, RemarkTopic
from trmcloud.core.spec.recipe import Recipe
from trmcloud.core.spec.settings import CommandSettings
from trmcloud.core.spec.spec import RunSpec
from trmcloud.core.values import Value

# Predictions for a command that has not run: start-up, landing, room. Its pace is unknown.

LEAST_USEFUL_S = 1.0
"""A command that is to be stopped before it has begun is not started."""
_NOTHING = Interval(0.0, 0.0, 0.0)
_NO_MEMORY = Memory(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
UNKNOWN = "not known: the length, memory and quality of the command; --hours ends it earlier"
PROBED = "not known: the quality of the result; --hours ends it earlier"


def recipe_of(command: Command) -> Recipe:
    """Return the recipe that stands for ``command`` in a plan."""
    return Recipe(
        name=RECIPE,
        family=RECIPE,
        title=" ".join(command.words)[:80],
        shared={},
        phases={PHASE: {}},
        hardware={},
    )


def landing_s(command: Command, machine: Machine) -> float:
    """Seconds from telling the command to stop until what it saved is safe: its grace, the wait
    until a file has settled, a copy with its hash, and the pull."""
    copied_s = save_s(_settings(command), machine).p50
    if machine.local is not None:
        return command.grace_s + SETTLED_S + copied_s + LOCAL_LANDING_MARGIN_S
    pulled_s = command.checkpoint_bytes / PULL_BYTES_PER_S
    return command.grace_s + SETTLED_S + copied_s + pulled_s + REMOTE_LANDING_MARGIN_S


def command_outlook(
    spec: RunSpec,
    machine: Machine,
    probed: CommandProbe | None = None,
    until_s: float | None = None,
    sent_bytes: int = 0,
) -> Estimates:
    """The outlook of ``spec``'s command on ``machine``: its start and its landing; its length too
    where the number of its steps is said, and a probe tells what they take there.

    Args:
        until_s: seconds from the pod's start at which it is told to stop; then that is how long it
            takes, unless it ends by itself.
        sent_bytes: the size of the folder that is sent to it.
    """
    assert spec.command is not None
    settings = _settings(spec.command, spec.steps or 0)
    start = startup_s(machine)
    landing = landing_s(spec.command, machine)
    wanted_s = LEAST_USEFUL_S
    if spec.hours is not None:
        wanted_s = spec.hours * HOUR_S
    elif until_s is not None:
        wanted_s = max(LEAST_USEFUL_S, until_s - start.p50)
    training = Interval(wanted_s, wanted_s, wanted_s)
    there = probed.on(machine) if probed is not None else None
    if there is not None and spec.steps:
        whole = there.step_s.scaled(spec.steps)
        most_s = wanted_s if spec.hours is not None or until_s is not None else math.inf
        training = whole.each(lambda part: min(part, most_s))
    step = Interval(LEAST_USEFUL_S, LEAST_USEFUL_S, LEAST_USEFUL_S)
    time = PhaseTime(step, training, *(_NOTHING,) * 5, None)
    phase = PhasePlan(
        name=PHASE,
        settings=settings,
        tokens=0,
        flops=0.0,
        step_s=_NOTHING,
        seconds=training,
        parts_s={"training": training.p50},
    )
    kept = settings.kept_checkpoints + bool(spec.bucket)
    return Estimates(
        machine=machine,
        hardware=hardware_of(machine),
        fitted=(FittedSettings(settings, _NO_MEMORY, ""),),
        phases=(phase,),
        times=(time,),
        startup=start,
        seconds=start + training,
        landing_s=landing,
        useful_s=start.p50 + LEAST_USEFUL_S + landing,
        kept_gb=spec.command.checkpoint_bytes * kept / 1e9,
        memory=_NO_MEMORY._replace(weights=(probed.used_gb or 0.0) if probed is not None else 0.0),
        fits=True,
        reasons=_known(spec, machine, probed, there),
        bucket=bool(spec.bucket),
        volume_days=spec.volume_days if spec.volume else None,
        sent_gb=sent_bytes / 1e9,
    )


def _known(
    spec: RunSpec, machine: Machine, probed: CommandProbe | None, there: TransferredSpeed | None
) -> tuple[Remark, ...]:
    """Return the remarks on ``machine`` from its probe, and on what stays unknown."""
    if probed is None:
        return (Remark(RemarkTopic.SETTINGS, UNKNOWN),)
    measured_on = "this machine" if probed.here else f"{probed.gpus} × {probed.sku}"
    if there is None:
        why = f"its probe {probed.run_id}, on {measured_on}, gives no estimate for this"
        return (Remark(RemarkTopic.SETTINGS, UNKNOWN), Remark(RemarkTopic.SETTINGS, why))
    texts = [
        f"from its probe {probed.run_id}, on {measured_on}: {seconds_text(there.step_s)} per "
        "step here"
    ]
    if there.fits is False:
        texts.append(
            f"too little memory: {probed.used_gb:.1f} GB were in use there, but {machine.name} has "
            f"{machine.memory_gb:g}"
        )
    return tuple(Remark(RemarkTopic.SETTINGS, text) for text in (*texts, PROBED))


def seconds_text(step_s: Interval) -> str:
    """``0.051 s (0.04 to 0.06)``."""
    return f"{step_s.p50:.3g} s ({step_s.p10:.3g} to {step_s.p90:.3g})"


def _settings(command: Command, steps: int = 0) -> CommandSettings:
    """The settings of a command's one phase; ``steps`` are 0 where their number is unknown."""
    return CommandSettings(
        recipe=RECIPE,
        family=RECIPE,
        phase=PHASE,
        steps=steps,
        keep_best=command.keep_best,
        checkpoint_bytes=command.checkpoint_bytes,
    )


# From a command's measured steps to what they may take on other hardware: an interval, since
# nothing is known of what it computes.

HOST_FACTOR = 2.0
"""The factor by which another host's processors may be faster or slower in work that no GPU
does."""
MEMORY_ROOM = 1.05
"""Of what was in use, what must be there to hold it."""


class TransferredSpeed(Value):
    """Seconds of a step on ``sku``, and whether its memory holds what was in use: None where that
    is not known."""

    sku: str
    step_s: Interval
    fits: bool | None


class CommandProbe(Value):
    """A probe's measurements of a command on ``gpus`` × ``sku``; ``here``: that was this machine,
    whose processors count as its GPUs where it has none. ``busy`` and ``used_gb`` are as
    ``elsewhere`` takes them."""

    run_id: str
    sku: str
    gpus: int
    here: bool
    measured: MeasuredSteps
    busy: Annotated[float, within(0.0, 1.0)] | None = None
    used_gb: Annotated[float, within(0.0, 1e6)] | None = None

    @property
    def least_gb(self) -> float:
        """Of a GPU's memory, to hold what was in use; 0 where that is not known."""
        return (self.used_gb or 0.0) * MEMORY_ROOM

    @property
    def is_of_gpus(self) -> bool:
        """Whether it says something about GPUs: processors in their place do not."""
        return self.sku in GPUS

    def on(self, machine: Machine) -> TransferredSpeed | None:
        """Return the expectation for ``machine``: None where that has another number of GPUs, or
        one of the two is not in the catalogue."""
        if machine.processes != self.gpus:
            return None
        if self.here and machine.local is not None and machine.name == self.sku:
            m = self.measured
            return TransferredSpeed(self.sku, Interval(m.fast_s, m.step_s, m.slow_s), fits=True)
        if machine.gpu is None or self.sku not in GPUS:
            return None
        [found] = transfer_speed(
            self.measured, GPUS[self.sku], [machine.gpu], self.busy, self.used_gb
        )
        return found


def transfer_speed(
    measured: MeasuredSteps,
    here: Gpu,
    others: Iterable[Gpu],
    busy: float | None,
    used_gb: float | None,
) -> tuple[TransferredSpeed, ...]:
    """As many GPUs of each other kind in place of those of ``here``.

    The part of a step in which the GPU computed shrinks or grows somewhere between the ratio of
    their peaks and that of their memories' bandwidths, as it is bound by one or by the other
    (Williams et al. 2009, the roofline model); the rest is the host's, whose speed is not known.

    Args:
        busy: the GPU's share of the time, 0 to 1; None: not known, so that it may be all or none.
        used_gb: GB in use of the fullest GPU.
    """
    made = []
    for gpu in others:
        ratios = (here.bf16_tflops / gpu.bf16_tflops, here.memory_gb_s / gpu.memory_gb_s)
        low, high = min(ratios), max(ratios)
        if busy is None:
            low, high = min(low, 1 / HOST_FACTOR), max(high, HOST_FACTOR)
        else:
            low = busy * low + (1 - busy) / HOST_FACTOR
            high = busy * high + (1 - busy) * HOST_FACTOR
        step_s = Interval(
            measured.fast_s * low, measured.step_s * (low * high) ** 0.5, measured.slow_s * high
        )
        fits = used_gb * MEMORY_ROOM <= gpu.memory_gb if used_gb is not None else None
        made.append(TransferredSpeed(gpu.sku, step_s, fits))
    return tuple(made)
