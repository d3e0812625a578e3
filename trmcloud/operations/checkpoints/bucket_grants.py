"""Grants for a pod in the bucket, their limits, and the pinned hashes of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from math import ceil

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.bucket import dump_grants
from trmcloud.core.contract.bucket_layout import (
    AFTER_HARD_STOP_S,
    BUCKET_MICROS_PER_GB_MONTH,
    GRANTED_TIMES,
    PIECE_BYTES,
)
from trmcloud.core.contract.command import PHASE, RECIPE
from trmcloud.core.contract.command_objects import granted_bytes_of_command
from trmcloud.core.contract.command_resuming import checkpoints_to_put_back
from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.contract.trainer_contract import DONE
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import owes_sweep
from trmcloud.core.control.run_book import POD_NAME, terms_in_use
from trmcloud.core.control.run_state import Generation, IllegalTransition, RunState
from trmcloud.core.errors import LedgerError, TrmcloudError
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.planner.memory import checkpoint_bytes
from trmcloud.core.spec.plan import Candidate, Plan
from trmcloud.core.storage import HOURS_PER_MONTH
from trmcloud.core.sweep.events import about_trial
from trmcloud.core.values import replace
from trmcloud.operations.context import Context
from trmcloud.operations.pod_request import tokens_of
from trmcloud.ports.bucket import (
    Bucket,
    BucketCheckpoints,
    CacheRequest,
    GrantRequest,
    StoredCheckpoint,
)
from trmcloud.ports.machine import Progress

# The hashes of the token files that pods stored in a bucket, pinned in the ledger.


def pinned_request(
    context: Context, bucket: Bucket, run: RunState, candidate: Candidate
) -> CacheRequest | None:
    """Return the request for the tokens that a rented machine makes and keeps in the run's bucket,
    with the hashes of all that earlier pods of this ledger stored; None where it makes none.

    Raises:
        AuthError, ProviderError: the bucket cannot be read.
    """
    wanted = tokens_of(context, run, candidate)
    if wanted is None:
        return None
    at = run.plan.spec.bucket, wanted.key
    state = context.ledger.read()
    pods = terms_in_use(state.runs, POD_NAME)
    found = bucket.stored_tokens(wanted.key, pods, state.tokens.get(at, ()))
    if found:
        with suppress(LedgerError, IllegalTransition):  # then they are not offered
            context.ledger.note(ev.TokensPinned(*at, found), context.wall())
    return replace(wanted, pins=context.ledger.read().tokens.get(at, ()))


def pin_tokens(context: Context, run: RunState) -> None:
    """Pin what an ended run's pods stored, before any later pod is made. What cannot be read now
    is pinned with the next grants."""
    generation = run.generation
    if generation is None or not run.bucket or run.plan.spec.volume:
        return
    with suppress(TrmcloudError, OSError, KeyError, ValueError):
        candidate = run.plan.candidate(generation.candidate_id)
        pinned_request(context, context.buckets.at(run.bucket), run, candidate)


# How much a run's pods may upload, and what is done about more.
#
# A presigned PUT binds an exact length or none: what is not known when it is signed has no limit
# that a store would keep. What is larger than was granted is therefore found by a list, is never
# fetched, and is deleted once nothing that was signed is good any more; its rent is counted.

_ASK_AGAIN_S = 600.0


def granted_file_bytes(plan: Plan) -> Mapping[str, int]:
    """By phase, what one file of a checkpoint may hold: far more than the plan expects. Of a user's
    command, what a whole checkpoint may."""
    if plan.spec.command is not None:
        return {PHASE: granted_bytes_of_command(plan.spec.command.checkpoint_bytes)}
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


def oversized_objects(context: Context, run: RunState) -> tuple[tuple[str, int], ...] | None:
    """(key, bytes) of what the run's pods have stored beyond their grants; None where it is not due
    to look, or the bucket does not let itself be asked: then it is tried again in a while."""
    if not owes_sweep(run, context.wall()):
        return None
    if context.buckets.has_failed(run.bucket, context.wall(), _ASK_AGAIN_S):
        return None
    try:
        bucket = context.buckets.at(run.bucket)
        found = bucket.oversized(run.run_id, granted_file_bytes(run.plan))
    except TrmcloudError:
        context.buckets.fail(run.bucket, context.wall())
        return None
    context.buckets.succeed(run.bucket)
    return found


def sweep_event(run: RunState, found: Sequence[tuple[str, int]], now: float) -> ev.BucketSwept:
    """Return the record of excess objects that were found. It is put on record before it is
    deleted: after a crash in between it is found again, and no bill is without a record."""
    size_bytes, number = sum(size for _, size in found), run.generations[-1].number
    # When each of them came is not known: not before the first pod was asked for. What an earlier
    # sweep found and did not delete is counted up to then.
    began_at = max(run.generations[0].intended_at, run.swept.at)
    _, counted = run.swept.of(number)
    amount = counted + storage_rent(size_bytes, (now - began_at) / 3600) if found else ZERO
    return ev.BucketSwept(number, size_bytes, amount)


def delete_oversized(context: Context, run: RunState, found: Sequence[tuple[str, int]]) -> bool:
    """Delete it; whether the bucket did."""
    try:
        bucket = context.buckets.at(run.bucket)
        bucket.claim(run.run_id, context.ledger.ledger_id)
        bucket.drop([key for key, _ in found])
    except TrmcloudError:
        context.buckets.fail(run.bucket, context.wall())
        return False
    return True


def storage_rent(size_bytes: int, hours: float) -> Usd:
    """Return the price of holding so much in a bucket for so long, rounded up."""
    micros = size_bytes * BUCKET_MICROS_PER_GB_MONTH * ceil(max(0.0, hours) * 3600)
    return Usd.from_micros(-(-micros // (HOURS_PER_MONTH * 3600 * 10**9)))


# Giving a pod what it may do in the bucket: one object, one verb each, until its hard stop.

_GO_ON_FROM = 2


def checkpoints_to_resume(run: RunState, shelf: BucketCheckpoints) -> tuple[StoredCheckpoint, ...]:
    """Of each phase that has not finished the furthest checkpoints in the bucket, the furthest
    first."""
    done = {name for name, account in run.phases.items() if account.outcome in DONE}
    wanted = latest_resumable(s.manifest for s in shelf.whole if s.manifest.phase not in done)
    return tuple(s for manifest in wanted for s in shelf.whole if s.manifest == manifest)


def latest_resumable(manifests: Iterable[CheckpointManifest]) -> tuple[CheckpointManifest, ...]:
    """Return the checkpoints that a new pod continues from: of each phase the latest step that has
    its optimizer's state, or is a command's; after it the one before, for where the store has not
    got the first as it was promised; the last one before the cooldown that the latest is in; and
    those of a command that are put back beside it."""
    by_phase: dict[str, dict[int, CheckpointManifest]] = {}
    for made in manifests:
        steps = by_phase.setdefault(made.phase, {})
        known = steps.get(made.step)
        later = known is None or made.created_at > known.created_at
        goes_on = any(file.kind == "optimizer" for file in made.files) or (
            made.recipe == RECIPE and not made.is_output
        )
        if later and goes_on:
            steps[made.step] = made
    found: list[CheckpointManifest] = []
    for steps in by_phase.values():
        newest = [steps[step] for step in sorted(steps, reverse=True)]
        # Of a sweep each may be the one that a trial continues from.
        found += newest if any(about_trial(m.extra) for m in newest) else newest[:_GO_ON_FROM]
        rest = [m for m in newest[_GO_ON_FROM:] if m not in found]
        found += [m for m in rest if mf.is_before_cooldown(m, newest[0])]
        found += [m for m in _of_command(newest) if m not in found]
    return tuple(found)


def _of_command(made: Sequence[CheckpointManifest]) -> list[CheckpointManifest]:
    return checkpoints_to_put_back(m for m in made if m.recipe == RECIPE)


def _place_on_pod(root: str, manifest: CheckpointManifest) -> str:
    """Return the folder where its own trainer would have kept it."""
    phase = f"{root}/{contract.RUNS_DIR}/{manifest.run_id}/{manifest.phase}"
    return f"{phase}/{contract.CHECKPOINTS_DIR}/{mf.step_dir_name(manifest.step)}"


def give_grants(
    context: Context, run: RunState, plan: Plan, generation: Generation, progress: Progress
) -> None:
    """
    Raises:
        ConflictError: the run's folder in the bucket is another ledger's. LinkError: the pod is out
            of reach. AuthError, ProviderError: the bucket does not allow it.
    """
    link = context.machines.links[generation.provider]
    bucket = context.buckets.at(plan.spec.bucket)
    bucket.claim(run.run_id, context.ledger.ledger_id)
    local = generation.provider == LOCAL
    folders = [] if local else list(context.pods.items(run).fetched)
    for item in folders:
        bucket.send(item, progress)
    root = str(context.home) if local else contract.POD_ROOT
    candidate = plan.candidate(generation.candidate_id)
    file_bytes = granted_file_bytes(plan)
    grants = bucket.grant(
        GrantRequest(
            run_id=run.run_id,
            pod_name=generation.pod_name,
            generation=generation.number,
            phases={phase.name: phase.settings.keep_best for phase in candidate.phases},
            until=generation.latest_stop_at + AFTER_HARD_STOP_S,
            folders=folders,
            go_on_from=[
                (stored, _place_on_pod(root, stored.manifest))
                for stored in checkpoints_to_resume(run, bucket.checkpoints(run.run_id, file_bytes))
            ],
            file_bytes=file_bytes,
            shards=granted_shards(candidate),
            of_command=plan.spec.command is not None,
            cache=None
            if local or plan.spec.volume
            else pinned_request(context, bucket, run, candidate),
        )
    )
    link.grant(generation.pod_name, dump_grants(grants))
