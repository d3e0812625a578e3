"""Exposure: what could be spent while nothing of ours can act, and who has to accept it.

A rented pod whose agent has failed, seen from a laptop that is off, is ended by nobody. So a launch
asks for two kill layers that do not depend on this machine, each seen to work for the account not
long ago; or for the user's word, in dollars. Where nothing shows what a provider bills an hour, the
rent itself has no cap, and only the user's word will do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping

from trmcloud.core.money import Usd
from trmcloud.core.providers import ProviderTraits

LAYERS_NEEDED = 2
VERIFIED_FOR_S = 30 * 86_400.0


@dataclass(frozen=True)
class Exposure:
    """Which independent layers count now, and which could but do not."""

    verified: tuple[str, ...]
    unverified: tuple[str, ...]

    @property
    def enough(self) -> bool:
        return len(self.verified) >= LAYERS_NEEDED


def exposure_of(
    traits: ProviderTraits, verified: Mapping[tuple[str, str], float], now: float
) -> Exposure:
    """How a provider's independent layers stand at ``now``.

    ``verified`` is (provider, layer) → when it was last seen to work, in epoch seconds.
    """
    fresh: list[str] = []
    stale: list[str] = []
    for layer in traits.independent_layers:
        at = verified.get((traits.name, layer))
        counts = at is not None and now - at <= VERIFIED_FOR_S
        (fresh if counts else stale).append(layer)
    return Exposure(tuple(fresh), tuple(stale))


def why_not_exposed(
    traits: ProviderTraits,
    verified: Mapping[tuple[str, str], float],
    rate: Usd,
    accepted: Usd | None,
    now: float,
) -> str:
    """Why a launch must not be, in a user's words; empty where it may.

    Hardware that is this machine itself exposes nothing: it costs no one's rent. What a user
    accepts must cover an hour's rate, the least in which a person would notice.
    """
    if not traits.rented:
        return ""
    exposure = exposure_of(traits, verified, now)
    asked = accepted is None or accepted < rate
    if not asked or (exposure.enough and traits.shows_rate):
        return ""
    reasons = []
    if not traits.shows_rate:
        reasons.append(
            f"nothing caps the rent, which is reserved at {rate}/h: whatever {traits.name} bills"
            " beyond that is spent beyond the budget"
        )
    if not exposure.enough:
        counted = ", ".join(exposure.verified) or "none"
        reasons.append(
            f"kill layers that work without this machine and are verified: {counted}; "
            f"{LAYERS_NEEDED} are needed, or your word: if they all failed while this machine is"
            f" off, {rate} an hour would go on being spent"
        )
    return f"{traits.name}: {'; '.join(reasons)}"
