"""What network volumes cost that have outlived their pods, wherever money is shown."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trmcloud.cli.views.reasons import sentence
from trmcloud.core.control.kept_volumes import due, holds
from trmcloud.core.money import total
from trmcloud.core.spec.spec import DELETE, DELETE_FETCHED, KEEP

if TYPE_CHECKING:
    from trmcloud.core.control.budget import LedgerState
    from trmcloud.core.control.kept_volumes import Hold

_THEN = {
    KEEP: "then it goes on, beyond every budget",
    DELETE_FETCHED: "then it is deleted, if best and latest were fetched",
    DELETE: "then it is deleted, with whatever is on it",
}


def volume_lines(ledger: LedgerState, now: float, run_id: str = "") -> list[str]:
    """One for each volume, of one run's or of all: what is reserved and until when; and where that
    day is over, that it goes on, for how much, why, and what ends it."""
    mine: dict[tuple[str, str, str], list[Hold]] = {}
    for hold in holds(ledger):
        if hold.deleted_at is None and hold.rate and run_id in ("", hold.run_id):
            mine.setdefault((hold.run_id, hold.provider, hold.place), []).append(hold)
    lines = [_reserved(each, now) for each in mine.values() if now < _until(each)]
    places = {(hold.provider, hold.place) for hold in holds(ledger) if hold.run_id == run_id}
    for over in due(ledger, now):
        if not over.per_day or (run_id and (over.provider, over.place) not in places):
            continue
        why = sentence(over.why_kept) or "it is about to be deleted"
        lines.append(
            f"network volume in {over.place}: uncapped since {_day(over.since)}, {over.per_day} a"
            f" day beyond every budget, {over.beyond(now)} so far: {why};"
            f" trmcloud volumes delete {over.place}"
        )
    return lines


def volumes_json(ledger: LedgerState, now: float, run_id: str = "") -> list[dict[str, Any]]:
    """The same for programs."""
    ended = {(over.provider, over.place): over for over in due(ledger, now)}
    rows = []
    for hold in holds(ledger):
        if run_id not in ("", hold.run_id):
            continue
        over = ended.get((hold.provider, hold.place))
        rows.append(
            {
                "run": hold.run_id,
                "provider": hold.provider,
                "data_centre": hold.place,
                "size_gb": hold.size_gb,
                "usd_per_day": float(hold.per_day),
                "reserved_usd": float(hold.amount),
                "accrued_usd": float(hold.accrued(now)),
                "reserved_until": hold.until,
                "then": hold.then,
                "deleted_at": hold.deleted_at,
                "uncapped_since": over.since if over is not None else None,
                "uncapped_usd": float(over.beyond(now)) if over is not None else 0.0,
            }
        )
    return rows


def _reserved(mine: Sequence[Hold], now: float) -> str:
    """Of one run's pods on one volume."""
    accrued, amount = total(hold.accrued(now) for hold in mine), total(hold.amount for hold in mine)
    return (
        f"network volume in {mine[-1].place}: {accrued} of {amount} reserved until"
        f" {_day(_until(mine))}, {mine[-1].per_day} a day; {_THEN.get(mine[-1].then, _THEN[KEEP])}"
    )


def _until(mine: Sequence[Hold]) -> float:
    return max(hold.until for hold in mine)


def _day(at: float) -> str:
    return dt.datetime.fromtimestamp(at, dt.timezone.utc).strftime("%Y-%m-%d")
