"""Giving a pod what it may do in the bucket: one object, one verb each, until its hard stop."""

from __future__ import annotations

from collections.abc import Iterable

from trmcloud.app.checkpoints.bucket_limits import granted_file_bytes, granted_shards
from trmcloud.app.checkpoints.token_pins import pinned_request
from trmcloud.app.context import Context, bucket_at
from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.bucket import dump_grants
from trmcloud.core.contract.bucket_layout import AFTER_HARD_STOP_S
from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.contract.trainer_contract import DONE
from trmcloud.core.control.run_state import Generation, RunState
from trmcloud.core.spec.plan import Plan
from trmcloud.ports.bucket import GrantRequest, Shelf, Stored
from trmcloud.ports.work import Progress

_GO_ON_FROM = 2


def to_go_on_from(run: RunState, shelf: Shelf) -> tuple[Stored, ...]:
    """Of each phase that has not finished the furthest checkpoints in the bucket, the furthest
    first."""
    done = {name for name, account in run.phases.items() if account.outcome in DONE}
    wanted = furthest(s.manifest for s in shelf.whole if s.manifest.phase not in done)
    return tuple(s for manifest in wanted for s in shelf.whole if s.manifest == manifest)


def furthest(manifests: Iterable[CheckpointManifest]) -> tuple[CheckpointManifest, ...]:
    """What a new pod goes on from: of each phase the latest step that has its optimizer's state,
    after it the one before, for where the store has not got the first as it was promised, and what
    was saved before the cooldown that the latest is in."""
    by_phase: dict[str, dict[int, CheckpointManifest]] = {}
    for made in manifests:
        steps = by_phase.setdefault(made.phase, {})
        known = steps.get(made.step)
        later = known is None or made.created_at > known.created_at
        if later and any(file.kind == "optimizer" for file in made.files):
            steps[made.step] = made
    found: list[CheckpointManifest] = []
    for steps in by_phase.values():
        newest = [steps[step] for step in sorted(steps, reverse=True)]
        found += newest[:_GO_ON_FROM]
        found += [m for m in newest[_GO_ON_FROM:] if mf.is_before_cooldown(m, newest[0])]
    return tuple(found)


def _place_on_pod(root: str, manifest: CheckpointManifest) -> str:
    """Where its own trainer would have kept it."""
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
    link = context.links[generation.provider]
    bucket = bucket_at(context, plan.spec.bucket)
    bucket.claim(run.run_id, context.ledger.ledger_id)
    local = generation.provider == LOCAL
    folders = [] if local else list(context.bucket_items(run))
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
            until=generation.hard_stop_at + AFTER_HARD_STOP_S,
            folders=folders,
            go_on_from=[
                (stored, _place_on_pod(root, stored.manifest))
                for stored in to_go_on_from(run, bucket.checkpoints(run.run_id, file_bytes))
            ],
            file_bytes=file_bytes,
            shards=granted_shards(candidate),
            cache=None
            if local or plan.spec.volume
            else pinned_request(context, bucket, run, candidate),
        )
    )
    link.grant(generation.pod_name, dump_grants(grants))
