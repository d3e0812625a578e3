"""The number format of one attempt: found before the model is built, settled before it is trained.

Before: how far down the ladder this machine is. After: whether float8 is taken, which a trial
decides where nobody has; then the model's layers are put into it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import nn

from model import ladder
from model.checkpoint import Found
from model.distributed import World
from model.families.protocol import LanguageModel
from model.float8 import TILE, put_in
from model.ladder import BACKENDS, Chip, Descent, descend, proven
from model.landing import Limits
from model.optim import Optimizer
from model.sharding import is_sharded
from model.telemetry import Clock
from model.trial import Decision, Trial, decide, recorded_in
from trmcloud.core.errors import UsageError
from trmcloud.core.spec.recipe import PhaseRecipe
from trmcloud.core.spec.settings import FLOAT8


class NumberFormat:
    """``settings`` are the asked ones in the format that is known so far; ``descent`` tells what
    was left."""

    def __init__(
        self,
        asked: PhaseRecipe,
        world: World,
        *,
        chip: Chip | None = None,
        prove: Callable[[str, torch.device], None] | None = None,
    ) -> None:
        """A collective call.

        Raises:
            UsageError: no rank, or not every one, has what was asked for.
        """
        self._asked, self._world = asked, world
        self._chip = chip or Chip.of(world.device)
        self._attempt = proven(world.device, world, prove or ladder.prove)
        self._failed: dict[str, str] = {}
        self.descent = self._descend()
        self.settings = replace(asked, dtype=self.descent.plain)

    def settle(
        self,
        model: LanguageModel,
        together: nn.Module,
        optimizer: Optimizer,
        checkpoints: Sequence[Found],
        limits: Limits,
        clock: Clock,
    ) -> Decision:
        """Decides, and puts the model into float8 where that was decided. A collective call.

        The optimizer's averages, and weights of a fresh model, are to be made anew after it.

        Args:
            checkpoints: the run's own, on rank 0.

        Raises:
            UsageError: float8 was asked for, and the model has no layer for it.
        """
        newest = max((each.manifest.step for each in checkpoints), default=0)
        deadline_at = limits.deadline_at
        decision = decide(
            self._asked,
            self._chip.name,
            self._descend,
            self._tried,
            Trial(model, together, optimizer, self.settings, self._world, clock.monotonic),
            steps_left=self._asked.steps - newest,
            left_s=math.inf if deadline_at is None else deadline_at - clock.epoch(),
            recorded=recorded_in(checkpoints),
            failed=self._failed.__setitem__,
        )
        self.descent = self._descend()
        if decision.dtype == FLOAT8:
            try:
                put_in(model, decision.backend)
            except ValueError as error:
                raise UsageError(
                    f"float8 is not to be had: {error}", next_step="--precision bf16"
                ) from None
            self.settings = replace(self.settings, dtype=FLOAT8)
        return decision

    def _descend(self) -> Descent:
        return descend(self._asked, self._chip, self._tried)

    def _tried(self, rung: str) -> str:
        if rung in self._failed:
            return self._failed[rung]
        if (rung in BACKENDS or rung == "emulated") and is_sharded(self._asked, self._world):
            return "weights that are shared out over GPUs are not taken in it"
        tokens = self._asked.batch * self._asked.sequence
        if (rung in BACKENDS or rung == "emulated") and tokens % TILE:
            return f"a micro-batch of {tokens} tokens is no multiple of {TILE}"
        return self._attempt(rung)
