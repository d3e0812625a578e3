"""What a run that does nothing is waiting for, and until when: told wherever it is looked at. Pure.

It follows ``decide``: each answer here is a place where that answers with nothing to do.
"""

from __future__ import annotations

from dataclasses import dataclass

from trmcloud.core.absence import absence_needed_s
from trmcloud.core.actions import CREATE, name_action
from trmcloud.core.clock import Maybe, Seen
from trmcloud.core.observation import PodSeen
from trmcloud.core.providers import ProviderTraits
from trmcloud.core.run_state import Generation, RunState, State


@dataclass(frozen=True)
class Waiting:
    """``until_at`` is the epoch second at which the wait ends of itself, and ``then`` what follows;
    None where only an answer of the provider's ends it."""

    what: str
    until_at: float | None = None
    then: str = ""


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
        return Waiting(
            "the first word of its agent", up_at + traits.boot_deadline_s, "the pod is ended"
        )
    return None


def _before_renting(
    run: RunState, generation: Generation, pods: Maybe[tuple[PodSeen, ...]]
) -> Waiting:
    name = generation.provider
    if isinstance(pods, Seen):
        return Waiting("an earlier pod of this run to be gone: it is ended first")
    why = f": {pods.why}" if pods.why else ""
    until = "nothing is rented" if run.stop is None else "the run is not stopped"
    return Waiting(f"{name}'s list: {until} before it shows that no earlier pod is left{why}")


def _while_renting(
    run: RunState,
    generation: Generation,
    traits: ProviderTraits,
    pods: Maybe[tuple[PodSeen, ...]],
) -> Waiting | None:
    create = run.actions.get(name_action(run, CREATE, 1))
    if create is None or _is_listed(generation, pods):
        return None
    name = generation.provider
    asked = "was asked for, and the answer is not on record"
    if create.ended_at is not None:
        asked = f"was asked for: {create.error}" if create.error else "was asked for, and made"
    if not isinstance(pods, Seen):
        why = f": {pods.why}" if pods.why else ""
        return Waiting(f"{name}'s list, to find the pod that {asked}{why}")
    if generation.missed_at is not None:
        until = generation.missed_at + absence_needed_s(run, traits)
    else:
        until = (create.ended_at or create.started_at) + traits.create_settle_s + traits.absent_s
    return Waiting(f"{name} to list the pod that {asked}", until, "it counts as never made")


def _is_listed(generation: Generation, pods: Maybe[tuple[PodSeen, ...]]) -> bool:
    return isinstance(pods, Seen) and any(pod.name == generation.pod_name for pod in pods.value)
