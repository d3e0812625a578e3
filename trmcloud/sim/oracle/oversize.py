"""What hostile hosts put into a bucket beyond what they were granted, and the judge of what becomes
of it: it is deleted once nobody can add to it, and what it cost is counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trmcloud.sim.world.controllers import Process
    from trmcloud.sim.world.world import SimWorld

_USD_PER_GB_MONTH = 0.023
"""Amazon S3 Standard, the first 50 TB: https://aws.amazon.com/s3/pricing/."""
_HOURS_PER_MONTH = 730.0
_SLACK_S = 900.0
"""How far apart the truth and what is on record may be."""


@dataclass
class Oversized:
    """One object, stored at true epoch second ``at`` by whoever had its signed request."""

    run_id: str
    key: str
    size_bytes: int
    at: float
    deleted_at: float | None = None

    def micros(self, since: float, until: float) -> float:
        """What so much takes from ``since`` to ``until``."""
        hours = max(0.0, until - since) / 3600
        return self.size_bytes / 1e9 * _USD_PER_GB_MONTH * 1e6 * hours / _HOURS_PER_MONTH


class OversizeJudge:
    """``fail`` takes an invariant's name and what is wrong."""

    def __init__(self, world: SimWorld, fail: Callable[[str, str], None]) -> None:
        self.world, self.fail = world, fail
        self.stored: list[Oversized] = []

    def there(self, run_id: str) -> list[Oversized]:
        return [each for each in self.stored if each.run_id == run_id and each.deleted_at is None]

    def put(self, run_id: str, key: str, size_bytes: int) -> None:
        """A second one under its key takes the place of the first, which was paid for until now."""
        for each in self.there(run_id):
            if each.key == key:
                each.deleted_at = self.world.queue.now
        self.stored.append(Oversized(run_id, key, size_bytes, self.world.queue.now))

    def dropped(self, process: Process, key: str) -> None:
        for each in self.stored:
            if each.key == key and each.deleted_at is None:
                each.deleted_at = self.world.queue.now
                self.world.say(f"{process.kind} deletes {key}")

    def owed(self) -> bool:
        """Whether something still has to be deleted: its run is over, nobody can add to it, and the
        ledger knows that its pod had an agent, and so grants."""
        return any(self._is_owed(each) for each in self.stored)

    def _is_owed(self, each: Oversized) -> bool:
        run = self.world.ledger.read().runs.get(each.run_id)
        if each.deleted_at is not None or run is None or run.live:
            return False
        return any(g.agent_at is not None for g in run.generations)

    def finish(self) -> None:
        """I7: nothing of it is left. I1: what each of them cost is on record, and not more than if
        it had been there since the first pod was asked for."""
        check, now = self.world.check, self.world.queue.now
        if check.forgotten or check.truth.undecidable.clocks_moved:
            return
        for run_id, run in self.world.ledger.read().runs.items():
            mine = [each for each in self.stored if each.run_id == run_id]
            left = [each for each in mine if self._is_owed(each)]
            if left:
                self.fail("I7", f"{left[0].key} was not granted, and is still there")
            if not mine or any(each.deleted_at is None for each in mine):
                continue
            # One that was replaced under its own key is found by nobody.
            last = {each.key: each for each in mine}.values()
            cost = sum(each.micros(each.at, each.deleted_at or now) for each in last)
            begun = min(g.intended_at for g in run.generations) - _SLACK_S
            most = sum(each.micros(begun, (each.deleted_at or now) + _SLACK_S) for each in last)
            held = run.oversized_rent.micros
            if not cost <= held <= most + len(last):
                self.fail("I1", f"{run_id}'s uploads cost {cost:.0f} to {most:.0f}, {held} is held")
