"""What a run that does nothing is waiting for, and until when: told wherever it is looked at. Pure.

It follows ``decide``: each answer here is a place where that answers with nothing to do.
"""

from __future__ import annotations

from trmcloud.core.catalog.providers import ProviderTraits
from trmcloud.core.clock import Maybe, Seen
from trmcloud.core.control.actions import CREATE, action_key
from trmcloud.core.control.observation import PodSeen
from trmcloud.core.control.pod_liveness import absence_needed_s
from trmcloud.core.control.reason import Reason, ReasonKind, because, said
from trmcloud.core.control.run_state import Generation, RunState, State
from trmcloud.core.values import dataclass, replace


@dataclass(frozen=True)
class Waiting:
    """``until_at`` is the epoch second at which the wait ends of itself; None where only an answer
    of the provider's ends it."""

    what: Reason
    until_at: float | None = None


def waits_for(
    run: RunState, traits: ProviderTraits, pods: Maybe[tuple[PodSeen, ...]]
) -> Waiting | None:
    """``pods`` is what the provider's list said last."""
    generation = run.generation
    if generation is None:
        return None
    if run.state is State.RESERVED:
        return _before_renting(run, generation, pods)
    if run.state is State.RENTING:
        return _while_renting(run, generation, traits, pods)
    if run.state is State.BOOTING:
        up_at = generation.up_at or generation.intended_at
        return Waiting(because(ReasonKind.AWAITS_AGENT), up_at + traits.boot_deadline_s)
    return None


def _before_renting(
    run: RunState, generation: Generation, pods: Maybe[tuple[PodSeen, ...]]
) -> Waiting:
    name = generation.provider
    if isinstance(pods, Seen):
        return Waiting(because(ReasonKind.AWAITS_EARLIER_POD))
    stopping = run.stop is not None
    kind = ReasonKind.AWAITS_LIST_TO_STOP if stopping else ReasonKind.AWAITS_LIST_TO_RENT
    return Waiting(because(kind, said(ReasonKind.LIST_FAILED, pods.why), provider=name))


def _while_renting(
    run: RunState,
    generation: Generation,
    traits: ProviderTraits,
    pods: Maybe[tuple[PodSeen, ...]],
) -> Waiting | None:
    create = run.actions.get(action_key(run, CREATE, 1))
    if create is None or _is_listed(generation, pods):
        return None
    name = generation.provider
    answer = because(ReasonKind.CREATE_UNANSWERED)
    if create.ended_at is not None:
        told = said(ReasonKind.PROVIDER_SAID, create.error)
        answer = told or because(ReasonKind.CREATE_TAKEN)
    if not isinstance(pods, Seen):
        answer = replace(answer, more=said(ReasonKind.LIST_FAILED, pods.why))
        return Waiting(because(ReasonKind.AWAITS_LIST_OF_POD, answer, provider=name))
    if generation.missed_at is not None:
        until = generation.missed_at + absence_needed_s(run, traits)
    else:
        until = (create.ended_at or create.started_at) + traits.create_settle_s + traits.absent_s
    return Waiting(because(ReasonKind.AWAITS_POD, answer, provider=name), until)


def _is_listed(generation: Generation, pods: Maybe[tuple[PodSeen, ...]]) -> bool:
    return isinstance(pods, Seen) and any(pod.name == generation.pod_name for pod in pods.value)
