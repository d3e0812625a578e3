"""Whom a launch may rent from: what ``--provider`` and ``--via`` mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.catalog.providers import BY_SKYPILOT, DIRECT, RENTABLE, traits_of
from trmcloud.core.errors import DoesNotFit, UsageError

SKYPILOT = "skypilot"


def rent_from(
    hardware: str,
    named: Sequence[str],
    via: str,
    *,
    key_allowed: bool,
    enabled: Callable[[], Sequence[str]],
) -> list[str]:
    """Providers to plan for: the first of ``DIRECT`` where nothing is named.

    ``enabled`` gives the providers that SkyPilot has access to; asked only where the user leaves
    the choice to it. One that gets a key to the whole account is among those only where that may
    lie on its pods.

    Raises:
        UsageError: a provider that nothing is rented from, or that does not go with ``via``.
        DoesNotFit: SkyPilot has access to nobody.
    """
    if via not in ("", SKYPILOT):
        raise UsageError(f"--via {via}: only skypilot is known", next_step="--via skypilot")
    if hardware == LOCAL:
        if via or named:
            raise UsageError("this machine is not rented: --provider and --via go with others")
        return []
    for name in named:
        if name not in RENTABLE:
            raise UsageError(
                f"nothing can be rented from {name!r}",
                next_step=f"--provider {', '.join(RENTABLE[:-1])}",
            )
    if not via:
        return list(named) or [DIRECT[0]]
    if named:
        return [_by_skypilot(name) for name in named]
    found = [n for n in enabled() if key_allowed or not traits_of(n).account_key_on_pod]
    if not found:
        raise DoesNotFit("no cloud is enabled in SkyPilot", next_step="sky check")
    return found


def _by_skypilot(provider: str) -> str:
    """What the same machines are called where SkyPilot rents them."""
    return next((name for name in BY_SKYPILOT if traits_of(name).prices_of == provider), provider)
