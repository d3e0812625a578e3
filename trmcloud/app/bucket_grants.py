"""Giving a pod what it may do in the bucket: one object, one verb each, until its hard stop."""

from __future__ import annotations

from trmcloud.app.world import World, bucket_at
from trmcloud.core.bucket import dump_grants
from trmcloud.core.errors import NotSupported
from trmcloud.core.hardware import LOCAL
from trmcloud.core.plan import Plan
from trmcloud.core.run_state import Generation, RunState
from trmcloud.ports import GrantingLink, GrantRequest, Progress

_AFTER_HARD_STOP_S = 60.0
"""A pod's clock may be slow, and its last answer late; nothing runs there any more by then."""


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
    folders = [] if generation.provider == LOCAL else list(world.bucket_items(run))
    for item in folders:
        bucket.send(item, progress)
    candidate = plan.candidate(generation.candidate_id)
    grants = bucket.grant(
        GrantRequest(
            run_id=run.run_id,
            pod_name=generation.pod_name,
            generation=generation.number,
            phases={phase.name: phase.settings.keep_best for phase in candidate.phases},
            until=generation.hard_stop_at + _AFTER_HARD_STOP_S,
            folders=folders,
        )
    )
    link.grant(generation.pod_name, dump_grants(grants))
