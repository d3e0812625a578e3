"""How much a run's pods may upload, and what is done about more.

A presigned PUT binds an exact length or none: what is not known when it is signed has no limit that
a store would keep. What is larger than was granted is therefore found by a list, is never fetched,
and is deleted once nothing that was signed is good any more; its rent is counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from trmcloud.app.context import Context, bucket_at
from trmcloud.core.contract.bucket_layout import (
    BUCKET_MICROS_PER_GB_MONTH,
    GRANTED_TIMES,
    PIECE_BYTES,
)
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import owes_sweep
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import TrmcloudError
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.planner.memory import checkpoint_bytes
from trmcloud.core.spec.plan import Candidate, Plan
from trmcloud.core.storage import HOURS_PER_MONTH

_ASK_AGAIN_S = 600.0


def granted_file_bytes(plan: Plan) -> Mapping[str, int]:
    """By phase, what one file of a checkpoint may hold: far more than the plan expects."""
    most: dict[str, int] = {}
    for candidate in plan.candidates:
        for phase in candidate.phases:
            size = max(2 * PIECE_BYTES, GRANTED_TIMES * checkpoint_bytes(phase.settings))
            most[phase.name] = max(size, most.get(phase.name, 0))
    return most


def granted_shards(candidate: Candidate) -> Mapping[str, int]:
    """By phase whose weights are shared out, into how many shards it saves: one a process."""
    processes = candidate.world_size
    return {
        phase.name: processes
        for phase in candidate.phases
        if phase.settings.sharding == "fsdp" and processes > 1
    }


def beyond_grants(context: Context, run: RunState) -> tuple[tuple[str, int], ...] | None:
    """(key, bytes) of what the run's pods have stored beyond their grants; None where it is not due
    to look, or the bucket does not let itself be asked: then it is tried again in a while."""
    if not owes_sweep(run, context.wall()):
        return None
    asked_at = context.unswept.get(run.bucket)
    if asked_at is not None and 0 <= context.wall() - asked_at < _ASK_AGAIN_S:
        return None
    try:
        bucket = bucket_at(context, run.bucket)
        found = bucket.oversized(run.run_id, granted_file_bytes(run.plan))
    except TrmcloudError:
        context.unswept[run.bucket] = context.wall()
        return None
    context.unswept.pop(run.bucket, None)
    return found


def swept(run: RunState, found: Sequence[tuple[str, int]], now: float) -> ev.BucketSwept:
    """That so much was found. It is put on record before it is deleted: whoever dies in between
    leaves it to be found again, and never a bill that is on no record."""
    size_bytes, number = sum(size for _, size in found), run.generations[-1].number
    # When each of them came nobody knows: not before the first pod was asked for. What was found
    # before, and is there still since whoever found it died, is counted up to then.
    began_at = max(run.generations[0].intended_at, run.swept_at)
    _, counted = run.oversized.get(number, (0, ZERO))
    amount = counted + rent(size_bytes, (now - began_at) / 3600) if found else ZERO
    return ev.BucketSwept(number, size_bytes, amount)


def drop_beyond(context: Context, run: RunState, found: Sequence[tuple[str, int]]) -> bool:
    """Delete it; whether the bucket did."""
    try:
        bucket = bucket_at(context, run.bucket)
        bucket.claim(run.run_id, context.ledger.ledger_id)
        bucket.drop([key for key, _ in found])
    except TrmcloudError:
        context.unswept[run.bucket] = context.wall()
        return False
    return True


def rent(size_bytes: int, hours: float) -> Usd:
    """What a bucket takes for holding so much for so long, rounded up."""
    micros = size_bytes * BUCKET_MICROS_PER_GB_MONTH * ceil(max(0.0, hours) * 3600)
    return Usd.from_micros(-(-micros // (HOURS_PER_MONTH * 3600 * 10**9)))
