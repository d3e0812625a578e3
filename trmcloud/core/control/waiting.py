"""A run that waits for a machine: which candidate it asks for next, and when. Pure.

A run waits since its user asked for that (``WaitStarted``), until an instant that does not move.
Its reservation is held meanwhile, and nothing is rented. Each question is a create like any other:
a generation that is put on record, and then not made. When the next one is due follows from the
record alone, so that whichever process looks next, this one, one after a restart or the guard,
comes to the same instant.

A provider is asked every eight minutes, give or take a fifth, whatever the number of candidates
there; their first ones are tried at once. One that says that it is asked too often is asked half
as often each time it says so, and never before the time that it names.

Runs of one home that wait at the same provider share this pace, whatever their number: one of N
asks N times as rarely, and none within eight minutes of another one's question.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field

from trmcloud.core.clock import Instant
from trmcloud.core.control.actions import CREATE
from trmcloud.core.control.continuing import cheapest_first
from trmcloud.core.control.events import FailureKind
from trmcloud.core.control.reason import Reason, ReasonKind, make_reason
from trmcloud.core.control.run_state import ActionState, Generation, RunState, State
from trmcloud.core.money import ZERO, Usd, total
from trmcloud.core.spec.boots import ASK_EVERY_S, boot_cost
from trmcloud.core.spec.plan import Candidate, Plan
from trmcloud.core.values import Value

_JITTER = 0.2
_LONGEST_PAUSE_S = 1800.0
"""Between two questions to a provider that goes on saying that it is asked too often."""
_LONGEST_TOLD_S = 6 * 3600.0
"""No longer pause that a provider asks for is kept."""
AT_ONCE = 3
"""So many candidates of a provider are tried one after the other when the wait begins."""


class OtherWaits(Value):
    """The other runs of a home that wait for a machine. ``count``: their number; ``at``: how many
    of them wait at each provider; ``until``: by provider, when their questions of before allow the
    next one (epoch s)."""

    count: int = 0
    at: Mapping[str, int] = field(default_factory=dict)
    until: Mapping[str, float] = field(default_factory=dict)


NO_OTHERS = OtherWaits()


def is_waiting(run: RunState) -> bool:
    """Whether the run holds its reservation and no machine, and may still be given one."""
    return run.state is State.RESERVED and allows_waiting(run)


def allows_waiting(run: RunState) -> bool:
    """Whether its user wants it to wait where no machine can be had."""
    return run.wait is not None and run.stop is None and run.errand is None


def is_over(run: RunState, now: float, clock: Instant | None = None) -> bool:
    """Whether the time has passed for which it waits: by the wall clock, or by the one that cannot
    be set. A clock that is set back does not make it longer."""
    wait = run.wait
    if wait is None:
        return False
    passed_s = 0.0
    if clock is not None:
        passed_s = clock.since(Instant(run.wait_at, wait.boot, wait.boot_id))
    return max(now, run.wait_at + passed_s) >= wait.until_at


def ask_rate(run: RunState, candidate: Candidate) -> Usd:
    """USD/h that a pod of ``candidate`` may be billed at: what is reserved, or what the user named
    for this wait."""
    most = run.wait.most_rate if run.wait is not None else None
    return most if most is not None else candidate.reserved_rate


def candidates_left(run: RunState, plan: Plan) -> tuple[Candidate, ...]:
    """The candidates that a waiting run may ask for, the next one first: those that failed to boot
    least often, of these those that were asked for least often.

    A provider that refuses for good (no money, a wrong key) is not asked again, nor is one of which
    a boot that fails would cost more than what is left of the boot budget.
    """
    wait, asked = run.wait, asks(run)
    if wait is None:
        return ()
    refused = {g.provider for g in asked if create_failure(run, g) is FailureKind.FINAL}
    left = wait.boot_usd - spent_on_boots(run)
    found = [
        candidate
        for candidate in map(plan.candidate, plan.launchable)
        if candidate.provider not in refused and _most_for_boot(run, candidate) <= left
    ]
    failed = [g.candidate_id for g in failed_boots(run)]
    tried = [g.candidate_id for g in asked]
    ordered = cheapest_first(run, plan, found)
    return tuple(sorted(ordered, key=lambda c: (failed.count(c.id), tried.count(c.id))))


def other_waits(runs: Iterable[RunState], run_id: str, now: float) -> OtherWaits:
    """Return the runs among ``runs``, but for ``run_id``, that share its pace at ``now``."""
    count, at, until = 0, Counter[str](), dict[str, float]()
    for run in runs:
        states = (State.RESERVED, State.RENTING)
        if run.run_id == run_id or run.state not in states or not allows_waiting(run):
            continue
        if is_over(run, now):
            continue
        count += 1
        with suppress(ValueError, KeyError, TypeError):  # a plan that this version cannot read
            at.update({candidate.provider for candidate in candidates_left(run, run.plan)})
        last = {asked.provider: asked for asked in asks(run)}
        for asked in last.values():
            pause_s = _jittered(run, asked, ASK_EVERY_S)
            left_s = _left_s(run, asked, pause_s, now)
            until[asked.provider] = max(until.get(asked.provider, 0.0), now + left_s)
    return OtherWaits(count, at, until)


def due_candidate(
    run: RunState, plan: Plan, now: float, others: OtherWaits = NO_OTHERS
) -> Candidate | None:
    """The candidate to ask for now; None while each provider is left alone."""
    due = (c for c in candidates_left(run, plan) if _pause_left_s(run, c, now, others) <= 0.0)
    return next(due, None)


def idle_s(run: RunState, plan: Plan, now: float, others: OtherWaits = NO_OTHERS) -> float:
    """Seconds until a waiting run asks next, or its time has passed; 0: now."""
    pauses = [_pause_left_s(run, c, now, others) for c in candidates_left(run, plan)]
    if run.wait is None or not pauses:
        return 0.0
    return max(0.0, min(run.wait.until_at - now, *pauses))


def asks(run: RunState) -> tuple[Generation, ...]:
    """Its generations since it was opened, or reopened, but for those that stood by in vain."""
    recent = run.generations[run.first_generation - 1 :]
    return tuple(g for g in recent if not g.legacy.stands_by)


def failed_boots(run: RunState) -> tuple[Generation, ...]:
    """Those of them whose pod ended before it could train: silent, or not what was rented."""
    return tuple(g for g in asks(run) if came_to_nothing(g))


def came_to_nothing(generation: Generation) -> bool:
    """Whether its pod ended before it could train: silent, or not what was rented."""
    silent = generation.agent_at is None and generation.ended_at is not None
    return silent or generation.unfit is not None


def spent_on_boots(run: RunState) -> Usd:
    """The most that its boots that failed have cost."""
    return total(g.settled for g in failed_boots(run) if g.settled is not None)


def _most_for_boot(run: RunState, candidate: Candidate) -> Usd:
    """The most that one boot that fails costs. A reservation smaller than that is the boot budget,
    and ends the pod earlier, by its hard stop."""
    most = boot_cost(candidate, ask_rate(run, candidate))
    return min(most, run.wait.boot_usd) if run.wait is not None else most


def end_of_wait(run: RunState, plan: Plan, now: float) -> Reason:
    """Why a run that waited has no machine."""
    wait, boots, spent = run.wait, len(failed_boots(run)), spent_on_boots(run)
    another = [_most_for_boot(run, c) for c in map(plan.candidate, plan.launchable)]
    if wait is not None and spent + min(another, default=ZERO) > wait.boot_usd:
        return make_reason(
            ReasonKind.BOOTS_SPENT, boots=boots, spent_usd=spent, budget_usd=wait.boot_usd
        )
    waited_s = max(0.0, min(now, wait.until_at) - run.wait_at) if wait is not None else 0.0
    return make_reason(
        ReasonKind.WAIT_OVER, _last_refusal(run),
        waited_s=float(waited_s), asked=len(asks(run)), boots=boots, spent_usd=spent,
    )  # fmt: skip


def _last_refusal(run: RunState) -> Reason | None:
    said = (g.not_made for g in reversed(asks(run)) if g.not_made is not None)
    return next(said, None)


def create_failure(run: RunState, generation: Generation) -> FailureKind | None:
    """How the request for a generation's pod failed; None where it did not, or is not known."""
    create = _create(run, generation)
    return create.failed_kind if create is not None else None


def _create(run: RunState, generation: Generation) -> ActionState | None:
    tries = run.tries(generation, CREATE)
    return tries[-1] if tries else None


def _pause_left_s(run: RunState, candidate: Candidate, now: float, others: OtherWaits) -> float:
    """Seconds for which the candidate's provider is still left alone."""
    provider = candidate.provider
    there = [g for g in asks(run) if g.provider == provider]
    if there and there[-1].not_made is None:
        return 0.0  # what boots and fails is followed at once: the boot budget bounds that
    others_s = max(0.0, others.until.get(provider, 0.0) - now)
    number = others.at.get(provider, 0)
    if not there:
        return others_s
    throttled = any(_throttled(run, there))
    first_round = len(there) < AT_ONCE and candidate.id not in {g.candidate_id for g in there}
    if first_round and not throttled and not number:
        return others_s
    return max(others_s, pause_left_s(run, there, now, (1 + number) * ASK_EVERY_S))


def pause_left_s(run: RunState, there: Sequence[Generation], now: float, every_s: float) -> float:
    """Seconds for which a provider is still left alone that was asked for the machines ``there``,
    the last of which it did not give: ``every_s`` and jitter, longer where it asks for that."""
    last, create = there[-1], _create(run, there[-1])
    throttled = sum(1 for _ in _throttled(run, there))
    pause_s = _jittered(run, last, every_s)
    pause_s = min(pause_s * 2**throttled, max(_LONGEST_PAUSE_S, pause_s))
    if create is not None:
        pause_s = max(pause_s, min(create.retry_s, _LONGEST_TOLD_S))
    return _left_s(run, last, pause_s, now)


def _left_s(run: RunState, asked: Generation, pause_s: float, now: float) -> float:
    """Seconds that are left at ``now`` of a pause that began with the answer to a question."""
    create = _create(run, asked)
    ended_at = create.ended_at if create is not None else None
    passed_s = now - (ended_at if ended_at is not None else asked.intended_at)
    # A clock that was set back must not put off the next question until it has caught up.
    return pause_s - passed_s if -pause_s < passed_s else 0.0


def _throttled(run: RunState, there: Sequence[Generation]) -> Iterator[Generation]:
    """The newest of the questions to a provider that it answered by asking for time, in a row."""
    for generation in reversed(there):
        if create_failure(run, generation) is not FailureKind.THROTTLED:
            return
        yield generation


def _jittered(run: RunState, asked: Generation, every_s: float) -> float:
    return every_s * (1 - _JITTER + 2 * _JITTER * _fraction(run, asked))


def _fraction(run: RunState, generation: Generation) -> float:
    """A number from 0 to 1 that differs between runs and questions, and not between processes."""
    text = f"{run.run_id} {generation.number}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 2**32
