"""Whom a launch may rent from: what ``--provider`` and ``--via`` mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.catalog.providers import (
    TRAITS,
    brokered,
    direct,
    find_traits,
    rentable,
    traits_of,
)
from trmcloud.core.errors import DoesNotFit, UsageError


def rent_from(
    hardware: str,
    named: Sequence[str],
    via: str,
    *,
    key_allowed: bool,
    enabled: Callable[[], Sequence[str]],
) -> list[str]:
    """Providers to plan for: the first that is rented directly where nothing is
    named.

    ``enabled`` gives the providers that a program of ``via`` has access to; asked only where the
    user leaves the choice to it. One that gets a key to the whole account is among those only where
    that may lie on its pods.

    Raises:
        UsageError: a provider that nothing is rented from, or that does not go with ``via``.
        DoesNotFit: SkyPilot has access to nobody.
    """
    known = dict.fromkeys(TRAITS[name].via.lower() for name in brokered())
    if via and via not in known:
        words = " and ".join(known)
        raise UsageError(f"--via {via}: only {words} is known", next_step=f"--via {words}")
    if hardware == LOCAL:
        if via or named:
            raise UsageError("this machine is not rented: --provider and --via go with others")
        return []
    for name in named:
        if find_traits(name) is None or name not in rentable():
            own = (known for known in rentable() if not TRAITS[known].prices_of)
            raise UsageError(
                f"nothing can be rented from {name!r}", next_step=f"--provider {', '.join(own)}"
            )
    if not via:
        return list(named) or [direct()[0]]
    if named:
        return [_through(via, name) for name in named]
    found = [n for n in enabled() if key_allowed or not traits_of(n).account_key_on_pod]
    if not found:
        titles = {TRAITS[name].via.lower(): TRAITS[name].via for name in brokered()}
        raise DoesNotFit(f"no cloud is enabled in {titles[via]}", next_step="sky check")
    return found


def _through(via: str, provider: str) -> str:
    """Return the program's name for the same machines."""
    of_it = (traits_of(name) for name in brokered())
    others = (t.name for t in of_it if t.via.lower() == via and t.prices_of == provider)
    return next(others, provider)
