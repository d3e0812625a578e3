"""What an instant of a run's life means in paid hours and in dollars, for axes. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from trmcloud.core.control.run_state import RunState

_S_PER_HOUR = 3600.0


def paid_by(run: RunState, instants: Iterable[float]) -> tuple[list[float], list[float]]:
    """(paid hours, USD) of all its machines up to each of ``instants`` (epoch s), as the report
    accrues them: from the order for a machine to its proven end, at the rate that is billed.

    For drawing: binary floating point, where money that is promised is exact.
    """
    lives = [
        (
            each.intended_at,
            each.ended_at if each.ended_at is not None else float("inf"),
            float(each.billed_rate or each.rate),
        )
        for each in run.generations
        if each.not_made is None
    ]
    hours, dollars = [], []
    for at in instants:
        spent_h = spent_usd = 0.0
        for began, ended, rate in lives:
            if at > began:
                lived_h = (min(at, ended) - began) / _S_PER_HOUR
                spent_h += lived_h
                spent_usd += lived_h * rate
        hours.append(spent_h)
        dollars.append(spent_usd)
    return hours, dollars
