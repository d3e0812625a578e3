"""Selection of a run's next machine, and the lease that its agent gets. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.catalog.providers import (
    HANG_AFTER_S,
    LOCAL_HANG_AFTER_S,
    ProviderTraits,
    find_traits,
)
from trmcloud.core.clock import DatedFact, Instant
from trmcloud.core.contract.command import Command
from trmcloud.core.contract.gate import StopRules
from trmcloud.core.contract.pod_contract import BUDGET, HOURS, Lease, PhaseLease, PodName
from trmcloud.core.contract.trainer_contract import DONE
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import CREATE, Action, Decision, action_key, current_generation
from trmcloud.core.control.continuing import (
    cheapest_first,
    continues,
    hours_left_s,
    limit_s,
    lost_machines,
)
from trmcloud.core.control.events import FailureKind
from trmcloud.core.control.observation import Observation
from trmcloud.core.control.pod_facts import failed_late, find_pod, is_absent, note_absence
from trmcloud.core.control.reason import Reason, ReasonKind, make_reason, quoted_reason
from trmcloud.core.control.run_state import Generation, RunState
from trmcloud.core.control.waiting import (
    NO_OTHERS,
    OtherWaits,
    allows_waiting,
    ask_rate,
    came_to_nothing,
    candidates_left,
    create_failure,
    due_candidate,
    end_of_wait,
    failed_boots,
    is_over,
)
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO, Usd, affordable_seconds, cost
from trmcloud.core.spec.overrides import recoverable
from trmcloud.core.spec.plan import Candidate, PhasePlan, Plan
from trmcloud.core.values import Value

# The lease an agent is given: the Plan's promise, in the words the pod understands.

_FIRST_PHASE_SLACK = 1.5
_LEAST_OF_A_COMMAND_S = 1.0
"""Nothing is known of how long its step takes."""
_LEAST_READY_S = 900.0
"""Environment, code and data get at least as long to arrive as a pod gets to boot."""


def phases_to_run(run: RunState, candidate: Candidate) -> tuple[PhasePlan, ...]:
    """The candidate's phases that have not finished yet, in order; none on an errand."""
    done = {name for name, account in run.phases.items() if account.outcome in DONE}
    return tuple(phase for phase in candidate.phases if phase.name not in done)


def make_lease(
    run: RunState,
    candidate: Candidate,
    generation: Generation,
    *,
    epoch: int,
    granted_at: float,
    hold: bool = False,
    uploads: bool = False,
    stop: StopRules | None = None,
    set_by_hand: Collection[str] = (),
    command: Command | None = None,
    most_s: float = 0.0,
) -> Lease:
    """Make the lease of a generation's agent: its permissions and their end.

    Where two phases share the time, the first may take 1.5 × its P90, or what is left beside the
    second's P90 if that is more; where the budget ends before the recipe, each gets its share of
    the time as the Plan's P50 divide it. Where the last phase fills the time, those before it get
    1.5 × their P90, as far as that leaves the others half of theirs.

    ``hold`` and ``uploads``: see ``Lease``;
    ``stop``: the rule by which a phase no longer pays; ``set_by_hand``: see ``recoverable``;
    ``command``: what is run in place of a recipe's trainer, for at most ``most_s`` seconds from its
    start; 0: as long as the lease lasts.
    """
    rented = candidate.provider != LOCAL
    # A clock set back since the intent must not grant more time than was reserved.
    granted_at = max(granted_at, generation.intended_at)
    phases = phases_to_run(run, candidate)
    available_s = generation.soft_stop_at - granted_at - candidate.startup_s.p50
    expected_s = sum(phase.seconds.p50 for phase in phases)
    fits = candidate.within_budget and sum(p.seconds.p90 for p in phases) <= available_s
    shares = []
    for index, phase in enumerate(phases):
        allowed_s = most_s if command is not None else 0.0
        if index + 1 < len(phases):
            rest_s = sum(p.seconds.p90 for p in phases[index + 1 :])
            slack_s = _FIRST_PHASE_SLACK * phase.seconds.p90
            share_s = available_s * phase.seconds.p50 / expected_s
            allowed_s = max(slack_s, available_s - rest_s) if fits else share_s
            if not fits and run.recorded_plan is not None and run.spec.fills:
                least_s = sum(p.seconds.p50 for p in phases[index + 1 :]) / 2
                allowed_s = max(share_s, min(slack_s, available_s - least_s))
        shares.append(
            PhaseLease(
                phase.name,
                allowed_s,
                _trained_s(phase),
                phase.flops,
                settings=recoverable(phase.settings, set_by_hand),
                stop=stop or StopRules(),
            )
        )
    # An exported script carries no provider's traits.
    traits = find_traits(candidate.provider)
    default_s = HANG_AFTER_S if rented else LOCAL_HANG_AFTER_S
    hang_after_s = traits.hang_after_s if traits is not None else default_s
    # A trainer that failed is not started again on one node alone: the others are gone by then.
    max_restarts = Lease.max_restarts if candidate.nodes == 1 else -1
    if command is not None:
        hang_after_s = command.silent_s
        # One that cannot go on from a checkpoint would pay for the same steps again.
        max_restarts = max_restarts if command.resume else -1
    return Lease(
        run_id=run.run_id,
        pod_name=generation.pod_name,
        epoch=epoch,
        granted_at=granted_at,
        soft_stop_at=generation.soft_stop_at,
        hard_stop_at=generation.hard_stop_at,
        landing_s=generation.hard_stop_at - generation.soft_stop_at,
        phases=tuple(shares),
        fits_budget=fits,
        min_useful_s=least_useful_s(phases, of_command=command is not None),
        hang_after_s=hang_after_s,
        hold=hold,
        uploads=uploads,
        ready_within_s=ready_within_s(candidate) if rented else 0.0,
        max_restarts=max_restarts,
        ends_by=ends_by(run, candidate, generation),
        limit_at=generation.limit_at,
    )


def ends_by(run: RunState, candidate: Candidate, generation: Generation) -> str:
    """What stops a generation's training in time: ``hours`` where the run's limit on them does, and
    ``budget`` in all other cases."""
    left_s = hours_left_s(run, run.plan) if run.recorded_plan is not None else inf
    allowed_s = generation.soft_stop_at - generation.intended_at
    return HOURS if allowed_s >= candidate.startup_s.p50 + left_s else BUDGET


def least_useful_s(phases: Sequence[PhasePlan], *, of_command: bool) -> float:
    """Seconds of training without which none of these phases is worth a start."""
    if of_command:
        return _LEAST_OF_A_COMMAND_S
    useful = (p.parts_s.get("compile", 0.0) + max(5.0, 3 * p.step_s.p50) for p in phases)
    return max(useful, default=0.0)


def ready_within_s(candidate: Candidate) -> float:
    """Seconds from its agent's start within which a rented machine must be ready to train."""
    return max(_LEAST_READY_S, 3 * candidate.startup_s.p90)


def _trained_s(phase: PhasePlan) -> float:
    """P50 seconds of a phase but for its wait for data, which says nothing about the next one."""
    return phase.seconds.p50 - phase.parts_s.get("data", 0.0)


LEAST_EXTENSION_S = 60.0
"""A stop that could be moved by less is not moved at all."""

# Of ``decide``: which machine a run tries next, until when, and whether it was made at all.

HOUR_S = 3600.0
NOT_MADE = (
    *(FailureKind.REFUSED, FailureKind.NO_CAPACITY, FailureKind.FINAL),
    FailureKind.THROTTLED,
)
"""The failures of a create after which no pod can appear any more."""


def intend(
    run: RunState,
    plan: Plan,
    ledger_id: str,
    traits: ProviderTraits,
    now: float,
    clock: Instant | None,
    *,
    attended: bool,
    others: OtherWaits = NO_OTHERS,
) -> Decision:
    """Decide on a run without a machine. ``attended`` and ``others``: see ``decide``; only a
    process that stays rents for one that waits."""
    lost = lost_machines(run, plan)
    if run.stop is not None:
        kind = ReasonKind.STOPPED_UNREPORTED if lost else ReasonKind.STOPPED_UNRENTED
        return Decision(events=(ev.Closed(Outcome.STOPPED.value, make_reason(kind)),))
    waits, over = allows_waiting(run), is_over(run, now, clock)
    if waits and not over and candidates_left(run, plan):
        candidate = due_candidate(run, plan, now, others) if attended else None
        if candidate is None:
            return Decision()
    elif waits and (over or failed_boots(run)) and not lost:
        return _end_without_a_machine(run, plan, now)
    else:
        candidate = _untried_candidate(run, plan)
    if candidate is None:
        if lost:
            return _end_after_a_loss(run)
        why: Reason | None = make_reason(ReasonKind.NO_CANDIDATE)
        if run.generations:
            why = run.generations[-1].not_made
        return Decision(events=(ev.Closed(Outcome.NOT_STARTED.value, why),))
    traits = find_traits(candidate.provider) or traits
    hard_stop_s = hard_stop_within(candidate, run, traits)
    latency_s = traits.kill_latency_s
    hard_stop_s = min(hard_stop_s, limit_s(run, plan, candidate, now, kill_latency_s=latency_s))
    too_short = hard_stop_s <= candidate.startup_s.p50 + candidate.landing_s
    if too_short and lost:  # its deadline is too near by now
        return _end_after_a_loss(run)
    if too_short and waits:
        return _end_without_a_machine(run, plan, now)
    number = len(run.generations) + 1
    hard_stop_at = now + hard_stop_s
    limit_at = 0.0
    if candidate.limit_s:
        left_s = limit_s(run, plan, candidate, now, kill_latency_s=latency_s)
        latest_s = min(candidate.limit_s, left_s, _affordable_s(run, candidate, traits))
        limit_at = now + latest_s if latest_s >= hard_stop_s + LEAST_EXTENSION_S else 0.0
    name = PodName(ledger_id, run.run_id, number, int(max(limit_at, hard_stop_at)))
    intent = ev.PodIntended(
        generation=number,
        pod_name=str(name),
        provider=candidate.provider,
        candidate_id=candidate.id,
        rate=ask_rate(run, candidate),
        soft_stop_at=min(now + _longest_training_s(candidate), hard_stop_at - candidate.landing_s),
        hard_stop_at=hard_stop_at,
        limit_at=limit_at,
    )
    return Decision(events=(intent,))


def _affordable_s(run: RunState, candidate: Candidate, traits: ProviderTraits) -> float:
    """Seconds until the hard stop that the rest of the run's whole budget buys; 0 for a run that
    was reopened, which has reserved all of it."""
    if run.first_generation > 1:
        return 0.0
    for_rent = run.cap - run.settled - storage_beside_disks(candidate)
    rate = ask_rate(run, candidate) + candidate.disk_rate + candidate.volume_rate
    return affordable_seconds(for_rent, rate) - traits.kill_latency_s if rate else 0.0


def _end_without_a_machine(run: RunState, plan: Plan, now: float) -> Decision:
    why = end_of_wait(run, plan, now)
    return Decision(events=(ev.Closed(Outcome.NO_MACHINE.value, why),))


def _end_after_a_loss(run: RunState) -> Decision:
    why = make_reason(ReasonKind.NO_OTHER_MACHINE, run.generations[-1].not_made)
    return Decision(events=(ev.Closed(Outcome.UNREPORTED.value, why),))


def next_candidate(run: RunState, plan: Plan) -> Candidate | None:
    """The next candidate; of a run that waits, the one that it asks for next."""
    if allows_waiting(run):
        return next(iter(candidates_left(run, plan)), None)
    return _untried_candidate(run, plan)


def _untried_candidate(run: RunState, plan: Plan) -> Candidate | None:
    """The next candidate that has not failed to give a machine fit to train on.

    Since the run was opened, or reopened, or has lost a machine: it may find again what was out of
    stock then. A provider that refuses for good (no money, a wrong key, a request that it does not
    understand) is not asked for its others.
    """
    lost = lost_machines(run, plan)
    since = lost[-1].number if lost else run.first_generation - 1
    recent = tuple(g for g in run.generations[since:] if not g.legacy.stands_by)
    tried = {g.candidate_id for g in recent if g.not_made is not None or came_to_nothing(g)}
    refused = {g.provider for g in recent if _is_refused_for_good(run, g)}
    left = (plan.candidate(name) for name in plan.launchable if name not in tried)
    ordered = cheapest_first(run, plan, [c for c in left if c.provider not in refused])
    return ordered[0] if ordered else None


def _is_refused_for_good(run: RunState, generation: Generation) -> bool:
    return create_failure(run, generation) in (FailureKind.FINAL, FailureKind.THROTTLED)


def try_next(
    run: RunState,
    plan: Plan,
    traits: ProviderTraits,
    settled: Usd | None = None,
    *,
    attended: bool = True,
) -> ev.Reserved | None:
    """Reserve the rest of the reservation for the next candidate; None where the run is over.

    ``settled``: what the last generation would be settled at, where it is not yet; ``attended``:
    whether a command stays that would see to another machine after one that trained.
    """
    generation = current_generation(run)
    candidate = next_candidate(run, plan)
    goes_on = came_to_nothing(generation) or (attended and continues(run, plan))
    if candidate is None or run.stop is not None or not goes_on:
        return None
    traits = find_traits(candidate.provider) or traits
    left = run.reservation - (settled or generation.settled or ZERO)
    enough_s = candidate.startup_s.p50 + candidate.landing_s
    rate = ask_rate(run, candidate) + candidate.disk_rate
    if affordable_seconds(left - storage_beside_disks(candidate), rate) <= (
        enough_s + traits.kill_latency_s
    ):
        return None
    since = generation.gone_at if generation.gone_at is not None else generation.intended_at
    left_s = limit_s(run, plan, candidate, since, kill_latency_s=traits.kill_latency_s)
    if left_s <= enough_s:
        return None
    return ev.Reserved(left)


def storage_beside_disks(candidate: Candidate) -> Usd:
    """Return what the plan keeps for storage without the pod's own disks, which are paid by the
    hour as long as it runs."""
    planned_s = candidate.expected_s
    return max(candidate.storage - cost(candidate.disk_rate, planned_s), ZERO)


def hard_stop_within(candidate: Candidate, run: RunState, traits: ProviderTraits) -> float:
    """Seconds until the hard stop: what the reservation buys beside storage.

    Not beyond the plan's own stop, unless the run was reopened: then the rest of its budget is all
    that bounds it.
    """
    for_rent = run.reserved - storage_beside_disks(candidate)
    rate = ask_rate(run, candidate) + candidate.disk_rate
    if run.first_generation > 1:
        rate += candidate.volume_rate  # a stop of the plan's own has that in it
    bought = affordable_seconds(for_rent, rate) - traits.kill_latency_s
    if run.first_generation > 1 and bought != inf:
        return max(0.0, bought)
    return max(0.0, min(candidate.hard_stop_s, bought))


class TimeLeft(Value):
    """The time until a machine's hard stop, and the time that start-up, the least useful training
    and landing need, in seconds. ``by``: what bounds it, ``hours`` or ``budget``. ``at_most`` is
    what may be spent in the first, ``least`` what is reserved for the second."""

    has_s: float
    needs_s: float
    by: str
    at_most: Usd
    least: Usd

    @property
    def is_enough(self) -> bool:
        return self.has_s >= self.needs_s


def time_left(
    run: RunState, plan: Plan, candidate: Candidate, traits: ProviderTraits, now: float
) -> TimeLeft:
    """Return the time that ``run``, with its reservation, has on a machine that is rented now."""
    bought_s = hard_stop_within(candidate, run, traits)
    left_s = limit_s(run, plan, candidate, now, kill_latency_s=traits.kill_latency_s)
    of_command = plan.spec.command is not None or plan.spec.sweep is not None
    useful_s = least_useful_s(phases_to_run(run, candidate), of_command=of_command)
    needs_s = candidate.startup_s.p50 + useful_s + candidate.landing_s
    if hours_left_s(run, plan) < useful_s:
        left_s = 0.0  # what is left beside it is for start-up and landing
    has_s = min(bought_s, left_s)
    rate = ask_rate(run, candidate) + candidate.disk_rate + candidate.volume_rate
    storage, latency_s = storage_beside_disks(candidate), traits.kill_latency_s

    def paid(seconds: float) -> Usd:
        return storage + cost(rate, seconds + latency_s) if rate else ZERO

    at_most = min(run.reserved, paid(has_s)) if rate else ZERO
    by = HOURS if left_s < bought_s else BUDGET
    return TimeLeft(has_s, needs_s, by, at_most, paid(needs_s))


def _longest_training_s(candidate: Candidate) -> float:
    """A limit on hours shows as a soft stop that lies before hard stop less landing."""
    limited = candidate.soft_stop_s + candidate.landing_s < candidate.hard_stop_s - 1.0
    return candidate.soft_stop_s if limited else inf


def await_pod(run: RunState, traits: ProviderTraits, seen: Observation, now: float) -> Decision:
    """Asks for the pod that was put on record, once; and finds out what came of it."""
    generation = current_generation(run)
    if late := failed_late(run, seen, generation):
        return Decision(events=late)
    pod = find_pod(seen, generation)
    if pod is not None:
        # One that is gone again too, whatever the answer to its creation was: it has a bill.
        return Decision(events=(ev.PodUp(generation.number, pod.pod_id, pod.rate),))
    create_key = action_key(run, CREATE, 1)
    create = run.actions.get(create_key)
    if create is None:
        intended = Instant(generation.intended_at, generation.boot, generation.boot_id)
        passed_s = seen.clock.since(intended) if seen.clock is not None else 0.0
        latest = max(now, generation.intended_at + passed_s)  # a clock may have been set back
        if run.stop is not None or latest >= generation.soft_stop_at:
            why = make_reason(ReasonKind.NOT_ASKED_FOR)
            return Decision(events=(ev.PodNotMade(generation.number, why),))
        return Decision(actions=(Action(create_key),))
    if create.failed_kind in NOT_MADE:
        why = make_reason(ReasonKind.PROVIDER_SAID, text=create.error)
        return Decision(events=(ev.PodNotMade(generation.number, why),))
    asked_at = create.ended_at or create.started_at
    waited = _waited_s(seen, generation, asked_at) >= traits.create_settle_s
    if create_key not in seen.in_flight and waited and is_absent(run, seen, generation, traits):
        if isinstance(seen.bill, DatedFact) and seen.bill.value.amount:
            # It lived and died while nobody looked. What it cost is not nothing.
            bill = seen.bill.value
            return Decision(events=(ev.PodUp(generation.number, bill.pod_id, generation.rate),))
        if not seen.unbilled and generation.absence is not None:
            return Decision()  # a bill that cannot be asked for is not one of nothing
        told = quoted_reason(ReasonKind.PROVIDER_SAID, create.error)
        why = told or make_reason(ReasonKind.NEVER_APPEARED)
        return Decision(events=(ev.PodNotMade(generation.number, why),))
    if waited and create_key not in seen.in_flight:
        return note_absence(seen, generation, traits)
    return Decision()


def _waited_s(seen: Observation, generation: Generation, asked_at: float) -> float:
    """Return the age of the newest list since its create was sent: no longer than since the intent,
    by a clock that cannot be set."""
    if not isinstance(seen.pods, DatedFact):
        return -inf
    by_wall = seen.pods.at - asked_at
    if seen.clock is None:
        return by_wall
    intended = Instant(generation.intended_at, generation.boot, generation.boot_id)
    return min(by_wall, seen.clock.since(intended))
