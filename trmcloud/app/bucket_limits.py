"""How much a run's pods may upload, and what is done about more.

A presigned PUT binds an exact length or none: what is not known when it is signed has no limit that
a store would keep. What is larger than was granted is therefore found by a list, is never fetched,
and is deleted once nothing that was signed is good any more; its rent is counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from trmcloud.app.world import World, bucket_at, plan_of
from trmcloud.core import events as ev
from trmcloud.core.bucket import BUCKET_MICROS_PER_GB_MONTH, GRANTED_TIMES, PIECE_BYTES
from trmcloud.core.candidates import HOURS_PER_MONTH
from trmcloud.core.errors import TrmcloudError
from trmcloud.core.memory import checkpoint_bytes
from trmcloud.core.money import Usd
from trmcloud.core.plan import Plan
from trmcloud.core.run_state import RunState
from trmcloud.core.safekeeping import owes_sweep


def granted_file_bytes(plan: Plan) -> Mapping[str, int]:
    """By phase, what one file of a checkpoint may hold: far more than the plan expects."""
    most: dict[str, int] = {}
    for candidate in plan.candidates:
        for phase in candidate.phases:
            size = max(2 * PIECE_BYTES, GRANTED_TIMES * checkpoint_bytes(phase.settings))
            most[phase.name] = max(size, most.get(phase.name, 0))
    return most


def beyond_grants(world: World, run: RunState) -> tuple[tuple[str, int], ...] | None:
    """(key, bytes) of what the run's pods have stored beyond their grants; None where it is not due
    to look, or the bucket does not let itself be asked: then the next command tries."""
    if not owes_sweep(run, world.wall()) or run.bucket in world.unswept:
        return None
    try:
        bucket = bucket_at(world, run.bucket)
        return bucket.oversized(run.run_id, granted_file_bytes(plan_of(world, run)))
    except TrmcloudError:
        world.unswept.add(run.bucket)
        return None


def swept(run: RunState, found: Sequence[tuple[str, int]], now: float) -> ev.BucketSwept:
    """That so much was found. It is put on record before it is deleted: whoever dies in between
    leaves it to be found again, and never a bill that is on no record."""
    size_bytes = sum(size for _, size in found)
    # When each of them came nobody knows: not before the first pod was asked for.
    began_at = run.generations[0].intended_at
    amount = rent(size_bytes, (now - began_at) / 3600)
    return ev.BucketSwept(run.generations[-1].number, size_bytes, amount)


def drop_beyond(world: World, run: RunState, found: Sequence[tuple[str, int]]) -> bool:
    """Delete it; whether the bucket did."""
    try:
        bucket = bucket_at(world, run.bucket)
        bucket.claim(run.run_id, world.ledger.ledger_id)
        bucket.drop([key for key, _ in found])
    except TrmcloudError:
        world.unswept.add(run.bucket)
        return False
    return True


def rent(size_bytes: int, hours: float) -> Usd:
    """What a bucket takes for holding so much for so long, rounded up."""
    micros = size_bytes * BUCKET_MICROS_PER_GB_MONTH * ceil(max(0.0, hours) * 3600)
    return Usd.from_micros(-(-micros // (HOURS_PER_MONTH * 3600 * 10**9)))
