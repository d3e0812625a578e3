"""What the user wants: the RunSpec, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

from trmcloud.core.hardware import nodes_of
from trmcloud.core.money import Usd

OBJECTIVES = ("value", "cheapest", "fastest", "most-training")

GUIDE_HOUR_VALUE = Usd(18)
"""The guides' own figure for what an hour of waiting is worth."""


@dataclass(frozen=True)
class RunSpec:
    """One wish, complete and checked; every field is shown in the Plan, "off" included.

    ``hardware`` is the canonical request (``8xA100``, ``2x8xA100``, ``local``) or empty for "any";
    ``processes`` counts torchrun's processes where hardware is ``local``. ``steps``, ``hours`` and
    ``tokens`` end a phase early and are exclusive. ``phases`` is in running order.
    """

    recipe: str
    phases: tuple[str, ...]
    hardware: str = ""
    processes: int = 0
    budget: Usd | None = None
    rate: Usd | None = None
    """USD/h of this machine; for ``local`` only."""
    data: str = ""
    overrides: tuple[tuple[str, Any], ...] = ()
    steps: int | None = None
    hours: float | None = None
    tokens: int | None = None
    initial_from: str = ""
    """Checkpoint folder or run whose weights the first phase starts from."""
    strict_gate: bool = False
    objective: str = "value"
    hour_value: Usd = GUIDE_HOUR_VALUE
    """USD that an hour of waiting is worth."""
    deadline_at: float | None = None
    """Epoch s by which the run must have ended; None: no deadline."""
    providers: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    """Whom and where to rent from; empty: anywhere."""
    gpus: int = 0
    """GPUs of the machine; 0: any number."""
    spot: bool = False
    community: bool = False
    """Hosts of private sellers, too."""
    """Interruptible offers, too."""
    fill: bool = False
    """Train on as many tokens as budget or deadline buy, landing at the end of them."""
    volume: bool = False
    """Keep checkpoints on a network volume, which outlives the pod with nobody there to pull."""
    volume_days: float = 7.0
    """For how many days after the run the volume's rent is reserved."""
    volume_then: str = "keep"
    """What becomes of it then: see ``kept_volumes.THEN``."""
    bucket: str = ""
    """s3://bucket/prefix where checkpoints survive both the pod and this machine."""
    bucket_relayed: bool = False
    """The bucket takes no presigned requests: what is pulled here is uploaded from here."""
    equal_work: bool = False
    """The same tokens on every hardware: those of the recipe's reference row."""

    @property
    def pod_uploads(self) -> bool:
        """Its pod itself brings checkpoints to where they survive."""
        return bool(self.bucket) and not self.bucket_relayed

    @property
    def nodes(self) -> int:
        """Machines that train together."""
        return nodes_of(self.hardware)

    @property
    def fills(self) -> bool:
        """Length is what the budget buys, not what the recipe says."""
        return self.fill or self.objective == "most-training"

    def to_json(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe,
            "phases": list(self.phases),
            "hardware": self.hardware,
            "processes": self.processes,
            "budget_usd": self.budget.plain() if self.budget is not None else None,
            "rate_usd_per_hour": self.rate.plain() if self.rate is not None else None,
            "data": self.data,
            "overrides": dict(self.overrides),
            "steps": self.steps,
            "hours": self.hours,
            "tokens": self.tokens,
            "initial_from": self.initial_from,
            "strict_gate": self.strict_gate,
            "objective": self.objective,
            "hour_value_usd": self.hour_value.plain(),
            "deadline_at": self.deadline_at,
            "providers": list(self.providers),
            "regions": list(self.regions),
            "gpus": self.gpus,
            "spot": self.spot,
            "community": self.community,
            "volume": self.volume,
            "volume_days": self.volume_days,
            "volume_then": self.volume_then,
            "bucket": self.bucket,
            "bucket_relayed": self.bucket_relayed,
            "fill": self.fill,
            "equal_work": self.equal_work,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunSpec:
        budget, rate = data["budget_usd"], data["rate_usd_per_hour"]
        return cls(
            recipe=data["recipe"],
            phases=tuple(data["phases"]),
            hardware=data["hardware"],
            processes=data["processes"],
            budget=Usd(budget) if budget is not None else None,
            rate=Usd(rate) if rate is not None else None,
            data=data["data"],
            overrides=tuple(data["overrides"].items()),
            steps=data["steps"],
            hours=data["hours"],
            tokens=data["tokens"],
            initial_from=data["initial_from"],
            strict_gate=data["strict_gate"],
            objective=data["objective"],
            hour_value=Usd(data["hour_value_usd"]),
            deadline_at=data.get("deadline_at"),
            providers=tuple(data.get("providers", ())),
            regions=tuple(data.get("regions", ())),
            gpus=data.get("gpus", 0),
            spot=data.get("spot", False),
            community=data.get("community", False),
            volume=data.get("volume", False),
            volume_days=data.get("volume_days", 7.0),
            volume_then=data.get("volume_then", "keep"),
            bucket=data.get("bucket", ""),
            bucket_relayed=data.get("bucket_relayed", False),
            fill=data.get("fill", False),
            equal_work=data.get("equal_work", False),
        )
