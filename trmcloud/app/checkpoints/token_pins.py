"""The hashes of the token files that pods stored in a bucket, pinned in the ledger."""

from __future__ import annotations

from contextlib import suppress

from trmcloud.app.context import Context, bucket_at
from trmcloud.app.pod_request import tokens_of
from trmcloud.core.control import events as ev
from trmcloud.core.control.run_state import IllegalTransition, RunState
from trmcloud.core.errors import LedgerError, TrmcloudError
from trmcloud.core.spec.plan import Candidate
from trmcloud.core.values import replace
from trmcloud.ports.bucket import Bucket, CacheRequest


def pinned_request(
    context: Context, bucket: Bucket, run: RunState, candidate: Candidate
) -> CacheRequest | None:
    """What a rented machine is to keep in the run's bucket of the tokens it makes, with the hashes
    of all that earlier pods of this ledger stored; None where it makes none.

    Raises:
        AuthError, ProviderError: the bucket cannot be read.
    """
    wanted = tokens_of(context, run, candidate)
    if wanted is None:
        return None
    at = run.plan.spec.bucket, wanted.key
    state = context.ledger.read()
    pods = {g.pod_name for each in state.runs.values() for g in each.generations}
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
        pinned_request(context, bucket_at(context, run.bucket), run, candidate)
