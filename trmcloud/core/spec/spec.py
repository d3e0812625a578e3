"""What the user wants: the RunSpec, as plain data."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Mapping

from trmcloud.core import codec
from trmcloud.core.catalog.hardware import nodes_of
from trmcloud.core.contract.command import Command
from trmcloud.core.money import Usd
from trmcloud.core.values import dataclass

KEEP, DELETE_FETCHED, DELETE = "keep", "delete-fetched", "delete"
THEN = (KEEP, DELETE_FETCHED, DELETE)
"""What becomes of a volume after its day: nothing; it is deleted once what is best and what is
latest are here, verified; it is deleted with whatever lies there."""

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
    budget: Usd | None = field(default=None, metadata=codec.kept_as("budget_usd"))
    rate: Usd | None = field(default=None, metadata=codec.kept_as("rate_usd_per_hour"))
    """USD/h of this machine; for ``local`` only."""
    data: str = ""
    overrides: tuple[tuple[str, Any], ...] = ()
    steps: int | None = None
    hours: float | None = None
    tokens: int | None = None
    initial_from: str = ""
    """Checkpoint folder or run whose weights the first phase starts from."""
    strict_gate: bool = False
    stop_at_gain: float = 0.0
    """The least bits per byte that a dollar is to buy; 0: a phase goes to its end."""
    patience: int = 0
    """The most evaluations in a row without a better one; 0: any number."""
    last_rungs: tuple[str, ...] = ()
    """What else may be cut where memory runs out and nothing is saved yet: depth, sequence."""
    objective: str = "value"
    hour_value: Usd = field(default=GUIDE_HOUR_VALUE, metadata=codec.kept_as("hour_value_usd"))
    """USD that an hour of waiting is worth."""
    deadline_at: float | None = None
    """Epoch s by which the run must have ended; None: no deadline."""
    providers: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    """Whom and where to rent from; empty: anywhere."""
    gpus: int = 0
    """GPUs of the machine; 0: any number."""
    gpu_memory_gb: float = 0.0
    """The least memory that each of them has; 0: any."""
    spot: bool = False
    """Interruptible offers, too."""
    community: bool = False
    """Hosts of private sellers, too."""
    volume: bool = False
    """Keep checkpoints on a network volume, which outlives the pod with nobody there to pull."""
    volume_days: float = 7.0
    """For how many days after the run the volume's rent is reserved."""
    volume_then: str = "keep"
    """What becomes of it then: see ``THEN``."""
    bucket: str = ""
    """s3://bucket/prefix where checkpoints survive both the pod and this machine."""
    bucket_relayed: bool = False
    """The bucket takes no presigned requests: what is pulled here is uploaded from here."""
    fill: bool = False
    """Train on as many tokens as budget or deadline buy, landing at the end of them."""
    equal_work: bool = False
    """The same tokens on every hardware: those of the recipe's reference row."""
    command: Command | None = None
    """A trainer of the user's own, in place of a recipe's."""

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
        return codec.to_json(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunSpec:
        return codec.from_json(cls, data)
