"""The expected time of work that is interrupted at random and continues from checkpoints. Pure."""

from __future__ import annotations

import math

from trmcloud.core.catalog.interruptions import InterruptionRate


def rate_words(rate: InterruptionRate) -> str:
    """Return how often a spot machine is planned to be taken back, and whose statement that is."""
    told = f"{rate.source}: {rate.stated}; " if rate.stated else ""
    often = f"once in {1 / rate.planned_per_hour:,.0f} h"
    if rate.per_hour is None:
        return f"{told}the rate per hour is not known, {often} is assumed"
    return f"{told}{often}"


def expected_segment_s(segment_s: float, restart_s: float, per_s: float) -> float:
    """Return the expected seconds until ``segment_s`` seconds of work and its save are through.

    Interruptions come at random, ``per_s`` a second, during a restart too; after each, a restart of
    ``restart_s`` seconds and the whole segment again: e^(λR) · (e^(λ(τ+δ)) − 1) ÷ λ. It follows
    from exponential waits, where s uninterrupted seconds take (e^(λs) − 1) ÷ λ on average. Its
    least values are the optima that Daly published (2006, "A higher order estimate of the optimum
    checkpoint interval for restart dumps", figures 3 to 5). Infinite where it is too large for a
    float.
    """
    if per_s <= 0.0:
        return segment_s
    try:
        return math.exp(per_s * restart_s) * math.expm1(per_s * segment_s) / per_s
    except OverflowError:
        return math.inf


def best_interval_s(save_s: float, per_s: float) -> float:
    """Return the seconds between two saves that lose least, √(2 · save ÷ λ) (Young 1974)."""
    return math.sqrt(2.0 * save_s / per_s) if per_s > 0.0 else math.inf
