"""What control must know of each provider: how it answers, and how it can be stopped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping

from trmcloud.core.errors import NotSupported


@dataclass(frozen=True)
class ProviderTraits:
    """One provider's habits. Seconds throughout.

    ``create_settle_s``: how long after an ambiguous create a pod may still appear.
    ``absent_lists``: how many fresh lists in a row must omit a pod before it counts as gone.
    ``kill_latency_s``: from the decision to kill until nothing is billed any more.
    ``boot_deadline_s``: from the pod's creation until its agent must have reported.
    ``silence_s``: a report older than this is worth a warning; it proves nothing.
    ``kill_layers``: those this provider has, of DESIGN's five.
    """

    name: str
    create_settle_s: float
    absent_lists: int
    kill_latency_s: float
    boot_deadline_s: float
    silence_s: float
    end_grace_s: float
    rate_tolerance: float
    kill_layers: tuple[str, ...]
    absent_s: float = 0.0
    """Where lists lag: how long a pod must be missing from all of them before it counts as gone."""
    absent_deleted_s: float = 0.0
    """Likewise, once the provider has taken its deletion."""
    independent_layers: tuple[str, ...] = ()
    """Those that work with this machine off; verified one by one for an account."""

    @property
    def rented(self) -> bool:
        """Whether its pods cost somebody's rent."""
        return self.name != "local"


TRAITS: Mapping[str, ProviderTraits] = {
    "local": ProviderTraits(
        name="local",
        create_settle_s=1.0,
        absent_lists=1,
        kill_latency_s=3.0,
        boot_deadline_s=60.0,
        silence_s=15.0,
        end_grace_s=10.0,
        rate_tolerance=0.0,
        kill_layers=("trainer", "agent", "guardian", "controller", "reap"),
    ),
    "runpod": ProviderTraits(
        name="runpod",
        create_settle_s=600.0,
        absent_lists=3,
        kill_latency_s=60.0,
        boot_deadline_s=900.0,
        silence_s=120.0,
        end_grace_s=60.0,
        rate_tolerance=0.0,
        absent_s=300.0,
        absent_deleted_s=30.0,
        kill_layers=("trainer", "agent", "guardian", "controller", "reap", "prepaid"),
        independent_layers=("agent", "prepaid", "guard-elsewhere"),
    ),
    "skypilot": ProviderTraits(
        name="skypilot",
        create_settle_s=600.0,
        absent_lists=3,
        kill_latency_s=120.0,
        boot_deadline_s=1200.0,
        silence_s=120.0,
        end_grace_s=90.0,
        rate_tolerance=0.0,
        absent_s=300.0,
        absent_deleted_s=30.0,
        kill_layers=("trainer", "agent", "guardian", "controller", "reap", "autostop"),
        independent_layers=("agent", "autostop", "guard-elsewhere"),
    ),
    "aws": ProviderTraits(
        name="aws",
        create_settle_s=600.0,
        absent_lists=3,
        kill_latency_s=120.0,
        boot_deadline_s=900.0,
        silence_s=120.0,
        end_grace_s=90.0,
        rate_tolerance=0.0,
        absent_s=300.0,
        absent_deleted_s=30.0,
        kill_layers=("trainer", "agent", "guardian", "controller", "reap", "shutdown"),
        independent_layers=("agent", "shutdown", "guard-elsewhere"),
    ),
}


def traits_of(provider: str) -> ProviderTraits:
    try:
        return TRAITS[provider]
    except KeyError:
        raise NotSupported(
            f"renting from {provider} is not built yet",
            next_step="trmcloud launch local, or plan only",
        ) from None
