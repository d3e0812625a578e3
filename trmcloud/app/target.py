"""A run's best checkpoint beside what its recipe's guide promises."""

from __future__ import annotations

from typing import Any

from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.control.run_state import RunState
from trmcloud.core.spec.guides import Target
from trmcloud.core.spec.settings import kind_of
from trmcloud.core.values import dataclass


@dataclass(frozen=True)
class Judged:
    """Of one checkpoint. ``nats`` are its validation loss a token, ``hours`` what was paid for."""

    target: Target
    nats: float
    bits_per_byte: float | None
    label: str
    hours: float
    other: str = ""
    """Why its loss is no measure: it was trained on other data; empty where it is one."""

    @property
    def passed(self) -> bool | None:
        """None: the two losses cannot be compared."""
        return None if self.other else self.nats <= self.target.nats

    def to_json(self) -> dict[str, Any]:
        return {
            "target_nats": self.target.nats,
            "target_hours": self.target.hours,
            "nats": self.nats,
            "bits_per_byte": self.bits_per_byte,
            "hours": self.hours,
            "passed": self.passed,
            "other": self.other or None,
            "why_not": list(self.target.why_not),
        }


def judged(run: RunState, best: CheckpointManifest | None, hours: float) -> Judged | None:
    """None where nothing was promised, or nothing is evaluated.

    Args:
        hours: of training, start-up left out.
    """
    if best is None or not best.step_losses:
        return None
    settings = best.settings
    family = kind_of(str(settings.get("family")))
    guide = family.guides.get(run.spec.recipe)
    if guide is None or guide.target is None:
        return None
    target = guide.target
    data = run.spec.data or str(settings.get("data", ""))
    tokenizer = str(settings.get("tokenizer", ""))
    other = ""
    if (data, tokenizer) != (target.data, target.tokenizer):
        other = f"it is of {target.data} in {target.tokenizer}'s tokens, this is of {data}"
        other += f" in {tokenizer}'s" if tokenizer != target.tokenizer else ""
    return Judged(target, best.step_losses[-1], best.val_bpb, best.label, hours, other)
