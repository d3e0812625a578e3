"""The rule that ends a phase which no longer pays: as typed, and whether it can be met. Pure."""

from __future__ import annotations

import math

from trmcloud.core.errors import UsageError
from trmcloud.core.spec.plan import Candidate
from trmcloud.core.spec.settings import PhaseRecipe
from trmcloud.core.spec.spec import RunSpec

MOST_PATIENCE = 1_000_000


def checked_patience(patience: int) -> int:
    """
    Raises:
        UsageError: it is no count of evaluations.
    """
    if not 0 <= patience <= MOST_PATIENCE:
        raise UsageError(f"--patience must be above zero, not {patience}")
    return patience


def check_rules(spec: RunSpec, candidate: Candidate) -> None:
    """
    Raises:
        UsageError: a patience that ``candidate`` can never use up: no phase has as many evaluations
            between its warm-up and its cooldown.
    """
    most = max((_evaluations(phase.settings) for phase in candidate.phases), default=0)
    needed = spec.patience + 1 if spec.patience else 0
    if needed > most:
        raise UsageError(
            f"--patience has no effect: it needs {needed} evaluations between warm-up and "
            f"cooldown, but no phase has more than {most}",
            next_step="--set eval_every=…, or more steps",
        )


def _evaluations(settings: PhaseRecipe) -> int:
    """Between its warm-up and the cooldown that its steps plan."""
    last = settings.steps
    if settings.schedule.startswith("wsd"):
        last -= round(settings.steps * settings.cooldown_fraction)
    every = (settings.eval_every, settings.save_every)
    both = math.lcm(*every)
    counts = [max(0, last // each - settings.warmup_steps // each) for each in (*every, both)]
    return counts[0] + counts[1] - counts[2]
