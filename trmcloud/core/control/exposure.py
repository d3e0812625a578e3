"""Exposure: what could be spent while nothing of ours can act, and who has to accept it.

A rented pod whose agent has failed, seen from a laptop that is off, is ended by nobody. So a launch
asks for two kill layers that do not depend on this machine, each seen to work for the account not
long ago; or for the user's word, in dollars. Where nothing shows what a provider bills an hour, the
rent itself has no cap, and only the user's word will do.
"""

from __future__ import annotations

from typing import Mapping

from trmcloud.core.catalog.providers import ProviderTraits
from trmcloud.core.money import Usd
from trmcloud.core.values import dataclass

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


@dataclass(frozen=True)
class Unaccepted:
    """What a launch would expose and nobody has accepted: ``rate`` USD/h at ``provider``.

    ``verified``: the layers that count, where they are too few; None where they are enough.
    """

    provider: str
    rate: Usd
    is_capped: bool
    """Whether something shows what an hour is billed, which is its cap."""
    verified: tuple[str, ...] | None


def unaccepted(
    traits: ProviderTraits,
    verified: Mapping[tuple[str, str], float],
    rate: Usd,
    accepted: Usd | None,
    now: float,
) -> Unaccepted | None:
    """Why a launch must not be; None where it may.

    Hardware that is this machine itself exposes nothing: it costs no one's rent. What a user
    accepts must cover an hour's rate, the least in which a person would notice.
    """
    if not traits.rented:
        return None
    exposure = exposure_of(traits, verified, now)
    asked = accepted is None or accepted < rate
    if not asked or (exposure.enough and traits.shows_rate):
        return None
    too_few = None if exposure.enough else exposure.verified
    return Unaccepted(traits.name, rate, traits.shows_rate, too_few)
