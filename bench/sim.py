"""How fast simulated worlds are played, and how well a healthy run uses its budget."""

from __future__ import annotations

import statistics
import time

from bench.row import Row
from tests.sim.drawing import draw
from tests.sim.faults import NAMES, arm_all
from tests.sim.play import play
from trmcloud.core.control.renting import storage_beside_disks
from trmcloud.wiring_plans import simulate_providers

SEEDS = 600
CORES = 2
PER_CHANGE = 20_000


def run() -> list[Row]:
    """Simulated hours per second and minutes for the seeds of every change, on two cores.

    Seeds share nothing, so that two cores play twice as many: processor time of one is measured.
    """
    simulate_providers()
    begun = time.process_time()
    plays = [play(draw(seed, NAMES), arm_all) for seed in range(SEEDS)]
    seconds = time.process_time() - begun
    hours = sum(p.hours for p in plays)
    broken = sum(bool(p.violation) for p in plays)
    detail = f"{SEEDS} seeds, every fault enabled, processor time, two cores"
    return [
        Row("simulated hours per second", CORES * hours / seconds, 1200, "higher", "h/s", detail),
        Row(
            "20,000 seeds", PER_CHANGE * seconds / SEEDS / CORES / 60, 4, "lower", "min",
            f"{seconds / SEEDS * 1000:.1f} ms a seed",
        ),
        Row("invariants broken", broken, 0, "lower", "", detail),
        Row(
            "healthy run: unspent beyond max(2 %, 2 min), median", _unspent(), 0, "lower", "USD",
            "where the budget ended training",
        ),
    ]  # fmt: skip


def _unspent() -> float:
    """Median USD that runs which landed at their budget left, beyond the larger of 2 % of the
    budget and two minutes' rent. What is kept for storage after the run is not training's."""
    left = []
    for seed in range(100_000, 100_400):
        scenario = draw(seed, ())
        wish = scenario.wishes[0]
        if wish.stop_after_s or wish.resume_after_s:
            continue
        played = play(scenario)
        if not played.runs:
            continue  # refused: the account's cap was too small
        _, outcome, billed, cap = played.runs[0]
        reserved = wish.plan.reservation.micros
        if outcome == "landed" and cap == reserved:
            rate = wish.plan.candidates[0].rate.micros
            cap -= storage_beside_disks(wish.plan.candidates[0]).micros
            left.append((cap - billed - max(cap * 0.02, rate * 120 / 3600)) / 1e6)
    return max(0.0, statistics.median(left)) if left else 0.0
