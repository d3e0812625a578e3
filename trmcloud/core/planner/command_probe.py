"""From a command's measured steps to what they may take on other hardware: an interval, since
nothing is known of what it computes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from trmcloud.core.catalog.hardware import GPUS, Gpu
from trmcloud.core.contract.command_terms import MeasuredSteps
from trmcloud.core.contract.records import within
from trmcloud.core.planner.speed import Machine
from trmcloud.core.spec.plan import Interval
from trmcloud.core.values import dataclass

HOST_FACTOR = 2.0
"""How much faster or slower another host's processors may do what no GPU does."""
MEMORY_ROOM = 1.05
"""Of what was in use, what must be there to hold it."""


@dataclass(frozen=True)
class Elsewhere:
    """Seconds of a step on ``sku``, and whether its memory holds what was in use: None where that
    is not known."""

    sku: str
    step_s: Interval
    fits: bool | None


@dataclass(frozen=True)
class Probed:
    """What the probe ``run_id`` measured of a command on ``gpus`` × ``sku``; ``here``: that was
    this machine, whose processors count as its GPUs where it has none. ``busy`` and ``used_gb`` are
    as ``elsewhere`` takes them."""

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

    def on(self, machine: Machine) -> Elsewhere | None:
        """What it tells of ``machine``: nothing where that has another number of GPUs, or one of
        the two is none of the catalogue's."""
        if machine.processes != self.gpus:
            return None
        if self.here and machine.local is not None and machine.name == self.sku:
            m = self.measured
            return Elsewhere(self.sku, Interval(m.fast_s, m.step_s, m.slow_s), fits=True)
        if machine.gpu is None or self.sku not in GPUS:
            return None
        [found] = elsewhere(self.measured, GPUS[self.sku], [machine.gpu], self.busy, self.used_gb)
        return found


def elsewhere(
    measured: MeasuredSteps,
    here: Gpu,
    others: Iterable[Gpu],
    busy: float | None,
    used_gb: float | None,
) -> tuple[Elsewhere, ...]:
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
        made.append(Elsewhere(gpu.sku, step_s, fits))
    return tuple(made)
