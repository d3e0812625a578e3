"""Playing one scenario: users and controllers act, faults strike, invariants watch."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable

from trmcloud.core.values import dataclass
from trmcloud.sim.oracle.invariants import Invariants
from trmcloud.sim.scenario import Scenario
from trmcloud.sim.user_actions import UserActions
from trmcloud.sim.world.facts import START_AT, TimelineEntry
from trmcloud.sim.world.world import SimWorld

HOUR_S = 3600.0
_HEAL_AFTER_S = 4 * HOUR_S
_LONGEST_S = 3 * 24 * HOUR_S
_MOST_EVENTS = 60_000
"""Three days in which a run is looked at every few seconds, by its driver and by whoever came back,
and no more."""


@dataclass(frozen=True)
class PlayResult:
    """The result of one seed. ``digest`` is the hash of everything that happened."""

    seed: int
    digest: str
    violation: str
    detail: str
    hours: float
    events: int
    fired: frozenset[str]
    observed: frozenset[str]
    over_usd: float
    over_exposed_usd: float
    exposed_s: float
    runs: tuple[tuple[str, str, int, int], ...]
    """(run id, outcome, billed micro-dollars, cap in micro-dollars)"""
    ended_by: tuple[str, ...]
    saved: tuple[int, ...]
    """The last step of which each run has a whole checkpoint."""
    told: tuple[TimelineEntry, ...]


def play(scenario: Scenario, arm: Callable[[SimWorld, Scenario], None] | None = None) -> PlayResult:
    """The scenario from launch to the last bill. ``arm`` sets its faults."""
    rng = random.Random(scenario.seed)
    world = SimWorld(rng, scenario.providers)
    world.check = check = Invariants(world)
    world.off = scenario.off
    story = UserActions(world, scenario)
    story.begin()
    if arm is not None:
        arm(world, scenario)
    calm_at = START_AT + story.length_s() + _HEAL_AFTER_S

    def over() -> bool:
        return broken() or (world.queue.now >= calm_at and story.done())

    def broken() -> bool:
        if world.queue.count > _MOST_EVENTS:
            check.fail("I7", f"{_MOST_EVENTS:,} events, and no end")
        return check.violation is not None

    world.queue.run_until(calm_at, check.accrue, check.look, broken)
    if check.violation is None:
        story.heal()
        # A machine that slept on may have let the world come far beyond that moment.
        world.queue.run_until(world.queue.now + _LONGEST_S, check.accrue, check.look, over)
    if check.violation is None:
        check.finish(healed=True)
        story.judge()
    return _played(world, scenario, check)


def _played(world: SimWorld, scenario: Scenario, check: Invariants) -> PlayResult:
    violation = check.violation
    runs, saved, ended = [], [], []
    now = world.queue.now
    for run in world.ledger.read().runs.values():
        pods = [
            r for a in world.accounts.values() for r in a.pods.values() if r.run_id == run.run_id
        ]
        bill = sum(r.micros(now) + r.storage_micros for r in pods)
        ended += [r.ended_by for r in pods]
        outcome = run.outcome.value if run.outcome else run.state.value
        runs.append((run.run_id, outcome, bill, run.cap.micros))
        whole = [c.manifest.step for c in world.files.checkpoints.get(run.run_id, ()) if c.whole]
        saved.append(max(whole, default=0))
    digest = hashlib.sha256()
    for told in world.told:
        digest.update(f"{told.at:.6f} {told.text}\n".encode())
    for record in world.ledger.records():
        digest.update(f"{record.seq} {record.at:.6f} {type(record.event).__name__}\n".encode())
    digest.update(repr((runs, saved)).encode())
    worst = check.money.worst
    return PlayResult(
        seed=scenario.seed,
        digest=digest.hexdigest(),
        violation=violation.name if violation is not None else "",
        detail=str(violation) if violation is not None else "",
        hours=(now - START_AT) / HOUR_S,
        events=world.queue.count,
        fired=frozenset(world.fired),
        observed=frozenset(world.observed_faults),
        over_usd=worst.over_micros / 1e6,
        over_exposed_usd=worst.over_exposed_micros / 1e6,
        exposed_s=worst.exposed_s,
        runs=tuple(runs),
        ended_by=tuple(ended),
        saved=tuple(saved),
        told=tuple(world.told),
    )
