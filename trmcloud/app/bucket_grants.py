"""Giving a pod what it may do in the bucket: one object, one verb each, until its hard stop."""

from __future__ import annotations

from trmcloud.app.bucket_limits import granted_file_bytes
from trmcloud.app.jobs import tokens_of
from trmcloud.app.world import World, bucket_at
from trmcloud.core import manifest as mf
from trmcloud.core import pod_contract as contract
from trmcloud.core.bucket import AFTER_HARD_STOP_S, dump_grants, furthest
from trmcloud.core.errors import NotSupported
from trmcloud.core.hardware import LOCAL
from trmcloud.core.manifest import CheckpointManifest
from trmcloud.core.plan import Plan
from trmcloud.core.run_state import Generation, RunState
from trmcloud.ports.bucket import GrantRequest, Shelf, Stored
from trmcloud.ports.link import GrantingLink
from trmcloud.ports.work import Progress


def to_go_on_from(run: RunState, shelf: Shelf) -> tuple[Stored, ...]:
    """Of each phase that has not finished the furthest checkpoints in the bucket, the furthest
    first."""
    done = {name for name, account in run.phases.items() if account.outcome == "finished"}
    wanted = furthest(s.manifest for s in shelf.whole if s.manifest.phase not in done)
    return tuple(s for manifest in wanted for s in shelf.whole if s.manifest == manifest)


def _place_on_pod(root: str, manifest: CheckpointManifest) -> str:
    """Where its own trainer would have kept it."""
    phase = f"{root}/{contract.RUNS_DIR}/{manifest.run_id}/{manifest.phase}"
    return f"{phase}/{contract.CHECKPOINTS_DIR}/{mf.step_dir_name(manifest.step)}"


def give_grants(
    world: World, run: RunState, plan: Plan, generation: Generation, progress: Progress
) -> None:
    """
    Raises:
        ConflictError: the run's folder in the bucket is another ledger's. LinkError: the pod is out
            of reach. AuthError, ProviderError: the bucket does not allow it.
    """
    link = world.links[generation.provider]
    if not isinstance(link, GrantingLink):
        raise NotSupported(f"pods at {generation.provider} cannot upload by themselves yet")
    bucket = bucket_at(world, plan.spec.bucket)
    bucket.claim(run.run_id, world.ledger.ledger_id)
    local = generation.provider == LOCAL
    folders = [] if local else list(world.bucket_items(run))
    for item in folders:
        bucket.send(item, progress)
    root = str(world.home) if local else contract.POD_ROOT
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
            cache=None if local or plan.spec.volume else tokens_of(world, run, candidate),
        )
    )
    link.grant(generation.pod_name, dump_grants(grants))
