"""Points that were tried, in this sweep and in earlier ones. Pure."""

from __future__ import annotations

from trmcloud.core.sweep.space import Point
from trmcloud.core.values import dataclass


@dataclass(frozen=True)
class Tried:
    """A point that was tried, with its finite metrics as (rung, metric) pairs: none while its first
    interval runs, or where it ``failed``. ``sweep`` is 0 for this sweep, else the number of an
    earlier one, of whose rungs and metrics only the order counts."""

    point: Point
    metrics: tuple[tuple[int, float], ...] = ()
    failed: bool = False
    sweep: int = 0
    complete: bool = False
    """It was trained to its end."""

    @property
    def prior(self) -> bool:
        """Whether an earlier sweep tried it."""
        return self.sweep > 0


@dataclass(frozen=True)
class EarlierTrial:
    """A trial of an earlier sweep, as it is kept: the highest rung where it had a metric, and that
    one; without a metric it failed."""

    point: Point
    rung: int
    metric: float | None

    def tried(self, sweep: int) -> Tried:
        """Return it as a sampler takes it, of the earlier sweep of that number."""
        if self.metric is None:
            return Tried(self.point, failed=True, sweep=sweep)
        return Tried(self.point, ((self.rung, self.metric),), sweep=sweep)


@dataclass(frozen=True)
class EarlierSweep:
    """Trials of an earlier sweep on the same code and data, the best first: their points are points
    of this sweep's space. Metrics are ranked within ``run_id`` alone, since its rungs are other
    dollars."""

    run_id: str
    trials: tuple[EarlierTrial, ...]


@dataclass(frozen=True)
class FirstPoint:
    """A point that is tried before those of the sampler, and the trial that it is from."""

    point: Point
    run_id: str
    trial: int
