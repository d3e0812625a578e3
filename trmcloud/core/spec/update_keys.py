"""Settings of the optimizer, the schedule of its rates, and the average of the weights."""

from __future__ import annotations

from typing import Mapping

from trmcloud.core.errors import UsageError
from trmcloud.core.spec.rates import SCALES
from trmcloud.core.values import dataclass

OPTIMIZERS = ("muon", "adamw")
SCHEDULES = ("wsd", "cosine", "constant")
EMA_DECAY = 0.999


@dataclass(frozen=True, kw_only=True)
class UpdateKeys:
    """How weights follow their gradients."""

    optimizer: str = "muon"
    """muon: block matrices by Muon, the rest by AdamW; adamw: everything by AdamW."""
    matrix_lr: float = 1e-3
    embedding_lr: float = 1e-2
    head_lr: float = 4e-3
    """Beside Muon, AdamW's rates are those at width 768, and go with width^−½."""
    scale_lr: str = "off"
    """off, sqrt or table: whether the rates were brought to the whole batch, and by which rule."""
    weight_decay: float = 0.0
    beta1: float = 0.0
    """AdamW's; 0: 0.9, or 0.8 beside Muon."""
    beta2: float = 0.0
    """0: 0.95."""
    eps: float = 0.0
    """0: 1e-8, or 1e-10 beside Muon."""
    normuon: bool = False
    """Muon's rows are brought to one size by their running mean squares (Li et al. 2025)."""
    cautious_decay: bool = False
    """Muon's matrices decay only where the update shrinks them anyway (Chen et al. 2025)."""
    grad_clip: float = 1.0
    schedule: str = "wsd"
    """wsd: warm-up, stable, and a cooldown 1 − √t; cosine over all steps; constant."""
    warmup_steps: int = 40
    cooldown_fraction: float = 0.3
    """Share of the steps (or of the time, where a deadline binds) in which the rate decays; 0:
    none, whatever binds."""
    rate_floor: float = 0.0
    """The rate at the end, as a share of the full one."""
    ema: bool = False
    """Keep an exponential moving average of the weights, too: it is what is evaluated and saved."""
    ema_decay: float = EMA_DECAY


UPDATE_CHOICES: Mapping[str, tuple[str, ...]] = {
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "scale_lr": SCALES,
}


def check_update(keys: UpdateKeys, where: str) -> None:
    """
    Raises:
        UsageError: settings that cannot be, or not together.
    """
    for name in ("matrix_lr", "embedding_lr", "head_lr", "grad_clip"):
        if getattr(keys, name) <= 0:
            raise UsageError(f"{name} must be above zero, not {getattr(keys, name)}", where=where)
    for name in ("weight_decay", "eps", "warmup_steps"):
        if getattr(keys, name) < 0:
            raise UsageError(f"{name} cannot be negative", where=where)
    for name in ("beta1", "beta2", "rate_floor"):
        if not 0 <= getattr(keys, name) < 1:
            raise UsageError(
                f"{name} lies between 0 and 1, not {getattr(keys, name):g}", where=where
            )
    if not 0 <= keys.cooldown_fraction <= 1:
        raise UsageError("cooldown_fraction lies between 0 and 1", where=where)
    if not 0 < keys.ema_decay < 1:
        raise UsageError(f"ema_decay lies between 0 and 1, not {keys.ema_decay:g}", where=where)
    for name in ("normuon", "cautious_decay"):
        if getattr(keys, name) and keys.optimizer != "muon":
            raise UsageError(
                f"{name} is Muon's, and the optimizer is {keys.optimizer}",
                where=where,
                next_step=f"--set {name}=false, or --set optimizer=muon",
            )
    if keys.ema_decay != EMA_DECAY and not keys.ema:
        raise UsageError(
            "ema_decay is given, and no average is kept", where=where, next_step="--set ema=true"
        )
