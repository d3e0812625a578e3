"""The check that a step is sound enough to be taken: its loss and its gradients' norm are compared
with those of the steps before it.

A step that is not finite, or that stands out of the last 128 (``trainer_contract``), is left
out: no update, and the data go on. What stands out and is finite counts from then on, so a level
that has changed for good is taken after a few steps. All ranks judge the same two numbers, and
these are kept with the checkpoint: a replay leaves out the same steps.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from trmcloud.core.contract.trainer_contract import LEAST_OF_LOSS, OVER, spike_limit

LEAST = 64
"""Steps, before which nothing is a spike."""
_LEAST_OF_NORM = 0.05
"""Of the mean norm, a deviation counts as no less."""
MOST_NOT_FINITE = 5
"""In a row: then it is not one step's data."""
MOST_SKIPPED = 16
"""Of the last 128 steps."""
MENDS_WITHIN = 64
"""Steps after a spike by which the loss is back under what was a spike then."""


class TrainingDiverged(Exception):
    """The loss has risen, and leaving out steps did not bring it down."""


@dataclass
class Soundness:
    """The last steps' losses and gradient norms, and what was left out."""

    losses: deque[float] = field(default_factory=lambda: deque(maxlen=OVER))
    norms: deque[float] = field(default_factory=lambda: deque(maxlen=OVER))
    skipped: list[int] = field(default_factory=list)
    """Steps left out among the last 128."""
    not_finite: int = 0
    """Of the last steps, in a row."""
    limit: float | None = None
    """The value that the loss must fall below after a spike of it."""
    above: list[float] = field(default_factory=list)
    """The losses since that spike."""

    @property
    def is_settled(self) -> bool:
        """Whether nothing speaks against the weights as they are now: else they are not saved."""
        return not self.not_finite and self.limit is None

    def judge(self, step: int, loss: float, norm: float, *, finite: bool) -> str:
        """Why the step numbered ``step`` is to be left out; empty where it is to be taken.

        Args:
            loss, norm: means over all ranks, alike on all of them.
            finite: whether they are to be counted as finite.

        Raises:
            FloatingPointError: they are not finite, time and again.
            TrainingDiverged: the loss does not come back down.
        """
        self.skipped = [each for each in self.skipped if each > step - OVER]
        if not finite:
            self.not_finite += 1
            if self.not_finite >= MOST_NOT_FINITE:
                raise FloatingPointError(
                    f"{_told(loss, norm)} at step {step}: not finite {self.not_finite} times in"
                    " a row"
                )
            self._skip(step, FloatingPointError(f"{_told(loss, norm)} at step {step}"))
            return f"{_told(loss, norm)}: not finite"
        self.not_finite = 0
        why = _spike("loss", loss, self.losses, LEAST_OF_LOSS)
        if why and self.limit is None:
            self.limit, self.above = spike_limit(self.losses, LEAST_OF_LOSS), []
        why = why or _spike("gradient norm", norm, self.norms, _LEAST_OF_NORM)
        self.losses.append(loss)
        self.norms.append(norm)
        self._follow(step, loss)
        if why:
            self._skip(
                step, TrainingDiverged(f"step {step} is the {MOST_SKIPPED}th of {OVER}: {why}")
            )
        return why

    def _skip(self, step: int, too_often: Exception) -> None:
        self.skipped.append(step)
        if len(self.skipped) >= MOST_SKIPPED:
            raise too_often

    def _follow(self, step: int, loss: float) -> None:
        """After a spike: whether the loss has come back, or has stayed up too long."""
        if self.limit is None:
            return
        self.above.append(loss)
        if loss <= self.limit:
            self.limit, self.above = None, []
        elif len(self.above) >= MENDS_WITHIN:
            mean = fmean(self.above)
            raise TrainingDiverged(
                f"the loss has been {mean:.3f} for {len(self.above)} steps, up to step {step}: "
                f"above {self.limit:.3f} since it rose"
            )

    def to_json(self) -> dict[str, Any]:
        return {
            "losses": list(self.losses),
            "norms": list(self.norms),
            "skipped": self.skipped,
            "not_finite": self.not_finite,
            "limit": self.limit,
            "above": self.above,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Soundness:
        """Raises: KeyError, TypeError, ValueError: not what ``to_json`` gave."""
        made = cls(
            skipped=[int(each) for each in data["skipped"]],
            not_finite=int(data["not_finite"]),
            limit=None if data["limit"] is None else float(data["limit"]),
            above=[float(each) for each in data["above"]],
        )
        made.losses.extend(float(each) for each in data["losses"])
        made.norms.extend(float(each) for each in data["norms"])
        return made


def _spike(name: str, value: float, before: Sequence[float], least: float) -> str:
    if len(before) < LEAST:
        return ""
    if value <= fmean(before) or value <= (limit := spike_limit(before, least)):
        return ""  # most steps need no more than the mean
    return f"{name} {value:.3f}, above {limit:.3f} of the {len(before)} steps before"


def _told(loss: float, norm: float) -> str:
    what = f"loss {loss:.3f}" if not math.isfinite(loss) else f"gradient norm {norm:.3f}"
    return what
