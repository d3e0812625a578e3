"""Rules that end a phase which no longer pays: as typed, and whether they can be met. Pure."""

from __future__ import annotations

import math
import re

from trmcloud.core.contract.gate import LEAST_POINTS, StopRules
from trmcloud.core.errors import UsageError
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.spec.plan import Candidate
from trmcloud.core.spec.settings import PhaseRecipe
from trmcloud.core.spec.spec import RunSpec

MOST_PATIENCE = 1_000_000
_LEAST_GAIN, _MOST_GAIN = 1e-9, 1e6
_GAIN = re.compile(
    r"\s*(\d+(?:\.\d*)?(?:e[+-]?\d{1,3})?|\.\d+)\s*(?:bpb)?\s*/\s*(?:usd|\$)\s*",
    re.IGNORECASE | re.ASCII,
)


def parse_gain(text: str) -> float:
    """Bits per byte a dollar of ``0.001/usd``.

    Raises:
        UsageError: it is none, or none that can be.
    """
    found = _GAIN.fullmatch(text) if len(text) <= 40 else None
    if found is None:
        raise UsageError(
            f"--stop-at-gain takes bits per byte per dollar, not {text[:40]!r}",
            next_step="--stop-at-gain 0.001/usd",
        )
    gain = float(found[1])
    if not _LEAST_GAIN <= gain <= _MOST_GAIN:
        raise UsageError(
            f"--stop-at-gain must be from {_LEAST_GAIN:g} to {_MOST_GAIN:g} per dollar, not "
            f"{text!r}",
            next_step="--stop-at-gain 0.001/usd",
        )
    return gain


def checked_patience(patience: int) -> int:
    """
    Raises:
        UsageError: it is no count of evaluations.
    """
    if not 0 <= patience <= MOST_PATIENCE:
        raise UsageError(f"--patience must be above zero, not {patience}")
    return patience


def rules_of(spec: RunSpec, rate: Usd) -> StopRules:
    """Return the stop rules for a pod at ``rate`` (USD/h)."""
    if not (spec.stop_at_gain or spec.patience):
        return StopRules()
    return StopRules(spec.stop_at_gain, spec.patience, float(rate))


def check_rules(spec: RunSpec, candidate: Candidate) -> None:
    """
    Raises:
        UsageError: a rule that ``candidate`` can never meet: nothing is paid for it, or no phase
            has as many evaluations between its warm-up and its cooldown.
    """
    most = max((_evaluations(phase.settings) for phase in candidate.phases), default=0)
    if spec.stop_at_gain and candidate.rate == ZERO:
        raise UsageError(
            "--stop-at-gain has no effect: this machine costs nothing",
            next_step="set the value of its hour with --rate USD; or use --patience N",
        )
    for option, needed in (
        ("--stop-at-gain", LEAST_POINTS if spec.stop_at_gain else 0),
        ("--patience", spec.patience + 1 if spec.patience else 0),
    ):
        if needed > most:
            raise UsageError(
                f"{option} has no effect: it needs {needed} evaluations between warm-up and "
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
