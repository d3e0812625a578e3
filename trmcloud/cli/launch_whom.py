"""Whom a launch may rent from: what ``--provider`` and ``--via`` mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trmcloud.core.errors import DoesNotFit, UsageError
from trmcloud.core.hardware import LOCAL
from trmcloud.core.providers import BY_SKYPILOT, RUNPOD_BY_SKYPILOT

RUNPOD = "runpod"
SKYPILOT = "skypilot"


def rent_from(
    hardware: str,
    named: Sequence[str],
    via: str,
    *,
    key_allowed: bool,
    enabled: Callable[[], Sequence[str]],
) -> list[str]:
    """Providers to plan for: RunPod where nothing is named.

    ``enabled`` gives the providers that SkyPilot has access to; asked only where the user leaves
    the choice to it. RunPod is among those only where its key may lie on its pods.

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
    known = (RUNPOD, *BY_SKYPILOT)
    for name in named:
        if name not in known:
            raise UsageError(
                f"nothing can be rented from {name!r}",
                next_step=f"--provider {', '.join(known[:-1])}",
            )
    if not via:
        return list(named) or [RUNPOD]
    if named:
        return [RUNPOD_BY_SKYPILOT if name == RUNPOD else name for name in named]
    found = [name for name in enabled() if name != RUNPOD_BY_SKYPILOT or key_allowed]
    if not found:
        raise DoesNotFit("no cloud is enabled in SkyPilot", next_step="sky check")
    return found
