"""Which of a plan's limits a screen tells: what was chosen or costs money; with -v every one."""

from __future__ import annotations

from trmcloud.core.money import ZERO
from trmcloud.core.spec.plan import LIVE_PRICES, About, Plan, Remark
from trmcloud.core.spec.spec import GUIDE_HOUR_VALUE

_IN_STOPS = ("lands at", "hard stop", "landing reserve")
"""Told by the row "stops", or by a plan's last lines, with and without -v."""
_NOT_CHOSEN = ("off", "any", "the recipe's")


def limit_rows(plan: Plan, *, verbose: bool) -> list[tuple[str, str]]:
    """(name, what it is) of each limit to tell; with ``verbose`` those that are off are named in
    a row of their own."""
    limits = [(name, text) for name, text in plan.limits.items() if name not in _IN_STOPS]
    if not verbose:
        return [(name, text) for name, text in limits if _matters(plan, name, text)]
    off = " · ".join(sorted(name for name, text in limits if text == "off"))
    return [row for row in limits if row[1] != "off"] + ([("off", off)] if off else [])


def told_reasons(reasons: tuple[Remark, ...], *, verbose: bool) -> list[str]:
    """Why a candidate is planned as it is; the kind of offer is a detail."""
    return [text for about, text in reasons if verbose or about is not About.OFFER]


def _matters(plan: Plan, name: str, text: str) -> bool:
    """Whether it was chosen, or is about money that no other row tells."""
    spec, chosen = plan.spec, plan.recommended
    told = {
        "budget": False,  # the cap's row, or the headline
        "steps": False,  # the phases' rows
        "old prices": False,  # the price's own age says when that matters
        "objective": (spec.objective, spec.hour_value) != ("value", GUIDE_HOUR_VALUE),
        "providers": len(spec.providers) > 1,  # one stands beside the hardware
        "storage": chosen is not None and chosen.storage != ZERO,
        LIVE_PRICES: text.startswith("not read"),
    }
    return told.get(name, text not in _NOT_CHOSEN)
