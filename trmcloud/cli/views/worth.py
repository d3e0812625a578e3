"""What the next dollar buys, in words and for programs."""

from __future__ import annotations

from typing import Any

from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.core.contract.worth import gain_per_usd, gain_soon
from trmcloud.core.control.run_state import RunState


def next_buys(run: RunState, beat: Heartbeat) -> str:
    """``next $1 buys 0.012 bpb``; of an hour where nothing is paid; empty while nothing is known,
    and once it cools down."""
    return buys_words(*_gains(run, beat))


def buys_words(usd: float | None, hour: float | None) -> str:
    """Likewise, of the bits per byte that a dollar is expected to buy, and an hour."""
    what, gain = ("$1", usd) if usd is not None else ("hour", hour)
    if gain is None:
        return ""
    return f"next {what} buys {f'{gain:.2g}' if gain > 0 else 'no better'} bpb"


def worth_json(run: RunState, beat: Heartbeat | None) -> dict[str, Any]:
    usd, hour = _gains(run, beat) if beat is not None else (None, None)
    return {"next_usd_buys_bpb": usd, "next_hour_buys_bpb": hour}


def _gains(run: RunState, beat: Heartbeat) -> tuple[float | None, float | None]:
    """(bits per byte a dollar, an hour)"""
    curve, left = beat.curve, beat.steps - beat.step
    if curve is None or beat.state == "ended":
        return None, None
    rate = float(run.generation.rate) if run.generation is not None else 0.0
    return gain_per_usd(curve, left, rate), gain_soon(curve, left)
