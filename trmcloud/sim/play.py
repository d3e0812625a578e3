"""Playing one scenario: users and controllers act, faults strike, observers judge."""

from __future__ import annotations

import hashlib
import random
import traceback
from collections.abc import Callable
from pathlib import Path

from trmcloud.core.values import Value
from trmcloud.sim.oracle.promises import Promises
from trmcloud.sim.scenario import Scenario
from trmcloud.sim.user_actions import UserActions
from trmcloud.sim.world.facts import START_AT, TimelineEntry
from trmcloud.sim.world.world import SimWorld

HOUR_S = 3600.0
_HEAL_AFTER_S = 4 * HOUR_S
_LONGEST_S = 3 * 24 * HOUR_S
_MOST_EVENTS = 200_000
"""Three days of looks at a run every few seconds, by its driver and a second process."""


class PlayResult(Value):
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
    timeline: tuple[TimelineEntry, ...]


Arm = Callable[[SimWorld, Scenario], None]


def play(scenario: Scenario, arm: Arm | None = None) -> PlayResult:
    """The scenario from launch to the last bill. ``arm`` sets its faults."""
    world = SimWorld(random.Random(scenario.seed), scenario.providers)
    promises = Promises(world)
    world.watch(promises)
    return play_in(UserActions(world, scenario), promises, promises.finish, arm)


def play_in(
    story: UserActions, promises: Promises, finish: Callable[[], None], arm: Arm | None
) -> PlayResult:
    """``play`` in a world that has its observers; ``finish`` judges what must hold in the end."""
    world, scenario = story.world, story.scenario
    world.off = scenario.off
    story.begin()
    if arm is not None:
        arm(world, scenario)
    calm_at = START_AT + story.length_s() + _HEAL_AFTER_S

    def over() -> bool:
        return broken() or (world.queue.now >= calm_at and story.done())

    def broken() -> bool:
        if world.queue.count > _MOST_EVENTS:
            world.fail("I7", f"{_MOST_EVENTS:,} events, and no end")
        return world.violation is not None

    try:
        world.queue.run_until(calm_at, world.accrue, world.look, broken)
        if world.violation is None:
            story.heal()
            # A machine that slept on may have let the world come far beyond that moment; and a pod
            # that is left alone lives until its hard stop.
            runs = world.ledger.read().runs.values()
            last = max([world.queue.now, *(g.hard_stop_at for r in runs for g in r.generations)])
            world.queue.run_until(last + _LONGEST_S, world.accrue, world.look, over)
        if world.violation is None:
            finish()
    except Exception as error:
        # A process that dies of what no fault did to it. As a violation it has its seed and story.
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        world.fail("crash", f"{type(error).__name__}: {error}, at {where}")
    return _played(world, scenario, promises)


def _played(world: SimWorld, scenario: Scenario, promises: Promises) -> PlayResult:
    violation = world.violation
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
    for entry in world.timeline:
        digest.update(f"{entry.at:.6f} {entry.text}\n".encode())
    for record in world.ledger.records():
        digest.update(f"{record.seq} {record.at:.6f} {type(record.event).__name__}\n".encode())
    digest.update(repr((runs, saved)).encode())
    worst = promises.worst
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
        timeline=tuple(world.timeline),
    )


# The timeline's core, as a person can read it.

_SHOWN = 60


def timeline(entries: tuple[TimelineEntry, ...], *, most: int = _SHOWN) -> str:
    """``0 h 12 min 03.4 s  what happened``, one line each; the middle left out where it is long."""
    lines = [f"{_clock(line.at - START_AT)}  {line.text}" for line in entries]
    if len(lines) > most:
        half = most // 2
        left_out = len(lines) - 2 * half
        lines = [*lines[:half], f"  … {left_out} lines …", *lines[-half:]]
    return "\n".join(lines)


def _clock(seconds: float) -> str:
    hours, rest = divmod(max(0.0, seconds), 3600)
    minutes, rest_s = divmod(rest, 60)
    return f"{int(hours):3d} h {int(minutes):02d} min {rest_s:04.1f} s"
