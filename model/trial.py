"""Whether float8 pays: some steps with it beside some without, before the first that counts.

The steps are whole ones (every micro-batch, the gradients' reduction and clipping, the optimizer's
update) on made-up ids and at a rate of 0, so that they change nothing but the optimizer's averages,
which the caller makes anew. They are taken on the budget's clock, and only where they are a small
part of what is left. Rank 0's verdict on the slowest rank's times holds for all, and goes into
every checkpoint's manifest: a run that is resumed on such a GPU takes the same.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from model.checkpoint import Found
from model.distributed import World, unreduced
from model.families.protocol import LanguageModel, Objective
from model.float8 import within
from model.ladder import Descent, Try, reason_of
from model.optim import Optimizer
from model.precision import autocast
from model.warm_up import made_up
from trmcloud.core.spec.recipe import PhaseRecipe
from trmcloud.core.spec.settings import AUTO, FLOAT8

STEPS = 20
PAYS = 1.03
"""Times bfloat16's speed, above which float8 is taken."""
_WARM = 2
"""Passes before those that are timed: the first compiles."""
_SHARE = 0.05
"""Of the steps, or of the seconds, that are left: a trial takes no more."""
EXTRA = "precision"
"""In a manifest: the decision."""
_US = 1e6


@dataclass(frozen=True)
class Decision:
    """The number format that a run takes its products in, and why."""

    asked: str
    dtype: str
    backend: str = ""
    """Of float8."""
    chip: str = ""
    why: str = ""
    plain_s: float | None = None
    """A step without float8 in the trial; None: there was none."""
    float8_s: float | None = None

    @property
    def words(self) -> str:
        """``float8 (native)``."""
        return f"{self.dtype} ({self.backend})" if self.backend else self.dtype

    @property
    def is_told(self) -> bool:
        """Whether there was anything to decide."""
        return self.asked in (AUTO, FLOAT8)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Decision:
        """Raises: TypeError, ValueError, AttributeError: not what ``to_json`` gave."""
        made = cls(**{str(key): value for key, value in data.items()})
        if not all(isinstance(each, str) for each in (made.asked, made.dtype, made.backend)):
            raise ValueError("a decision's names are text")
        return made


@dataclass(frozen=True)
class Trial:
    """What the steps of a trial are taken with."""

    model: LanguageModel
    together: nn.Module
    optimizer: Optimizer
    settings: PhaseRecipe
    """Those of the plain format."""
    world: World
    monotonic: Callable[[], float]

    def step_s(self, steps: int = STEPS) -> float:
        """Median seconds of a step, of the slowest rank.

        Raises:
            FloatingPointError: its gradients are not finite.
        """
        for _ in range(_WARM):
            self._step()
        times = []
        for _ in range(steps):
            began = self._now()
            norm = self._step()
            times.append(self._now() - began)
        [slowest] = self.world.largest([round(statistics.median(times) * _US)])
        if not math.isfinite(float(norm)):
            raise FloatingPointError("its gradients are not finite")
        return max(slowest, 1) / _US

    def _now(self) -> float:
        if self.world.device.type == "cuda":
            torch.cuda.synchronize(self.world.device)
        return self.monotonic()

    def _step(self) -> torch.Tensor:
        settings, world = self.settings, self.world
        cast, batch = autocast(settings.dtype, world.device), made_up(settings, world.device)
        for micro in range(settings.accumulation):
            last = micro == settings.accumulation - 1
            with nullcontext() if last else unreduced(self.together), cast():
                made: Objective = self.together(*batch)
                (made.loss / settings.accumulation).backward()
        norm = self.optimizer.clip(settings.grad_clip)
        if torch.isfinite(norm):  # else not even a rate of 0 would leave the weights as they are
            self.optimizer.step(0, 0.0)
        self.optimizer.zero_grad()
        return norm


def decide(
    settings: PhaseRecipe,
    chip: str,
    again: Callable[[], Descent],
    tried: Try,
    trial: Trial,
    *,
    steps_left: int,
    left_s: float,
    recorded: Decision | None,
    failed: Callable[[str, str], None],
) -> Decision:
    """A collective call.

    Args:
        settings: as they were asked for.
        again: goes down the ladder; once more after ``failed(backend, why)``, further down.
        tried: why one of its rungs is not to be had.
        left_s: seconds until the deadline, on rank 0; infinite where there is none.
        recorded: of the checkpoint that is gone on from, on rank 0.
    """
    descent = again()
    made = Decision(settings.dtype, descent.plain, chip=chip)
    if settings.dtype != AUTO:
        return replace(made, dtype=settings.dtype, backend=descent.float8, why="asked for")
    if not descent.float8:
        return replace(made, why="no higher rung is to be had")
    told = trial.world.told(_as_bytes(recorded if trial.world.is_main else None))
    before = _of_bytes(told)
    is_like = before is not None and (before.asked, before.chip) == (AUTO, chip)
    if before is not None and is_like and not (before.backend and tried(before.backend)):
        return before
    plain_s = trial.step_s(steps=1)
    whole_s = 2 * (STEPS + _WARM) * plain_s
    most_s = _SHARE * min(left_s, steps_left * plain_s)
    [too_long] = trial.world.largest([trial.world.is_main and whole_s > most_s])
    if too_long:
        why = (
            f"a trial of float8 would take {whole_s:.0f} s, more than {_SHARE:.0%} of what is left"
        )
        return replace(made, why=why)
    plain_s = trial.step_s()
    while descent.float8:
        try:
            with within(trial.model, descent.float8):
                float8_s = trial.step_s()
        except Exception as error:  # of a kernel or a compiler: the next backend may do
            trial.optimizer.zero_grad()
            failed(descent.float8, reason_of(error))
            descent = again()
            continue
        return _verdict(made, descent.float8, plain_s, float8_s)
    return replace(made, why="float8 failed in its trial", plain_s=plain_s)


def _verdict(made: Decision, backend: str, plain_s: float, float8_s: float) -> Decision:
    times = plain_s / float8_s
    told = (
        f"{times:.3f} × {made.dtype}'s speed over {STEPS} steps ({float8_s:.3f} s, {plain_s:.3f} s)"
    )
    made = replace(made, plain_s=plain_s, float8_s=float8_s)
    if times > PAYS:
        return replace(made, dtype=FLOAT8, backend=backend, why=told)
    return replace(made, why=f"float8 ({backend}) has {told}; more than {PAYS} is asked of it")


def recorded_in(checkpoints: Iterable[Found]) -> Decision | None:
    """What the newest of them was decided to be trained in; None where that is not known."""
    newest = max(checkpoints, key=lambda each: each.manifest.step, default=None)
    content = newest.manifest.extra.get(EXTRA) if newest is not None else None
    try:
        return Decision.from_json(content) if content else None
    except (TypeError, ValueError, AttributeError):
        return None


def _as_bytes(decision: Decision | None) -> bytes:
    return json.dumps(decision.to_json()).encode() if decision is not None else b""


def _of_bytes(content: bytes) -> Decision | None:
    return Decision.from_json(json.loads(content)) if content else None
