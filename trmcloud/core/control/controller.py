"""``decide``: the events and actions that follow for one run, and the reason why a run
waits. Pure.
"""

from __future__ import annotations

from trmcloud.core.catalog.offers import DAY_S
from trmcloud.core.catalog.providers import ProviderTraits
from trmcloud.core.clock import DatedFact, Maybe
from trmcloud.core.contract.bucket import RENEW_BEFORE_S
from trmcloud.core.contract.pod_contract import AgentReport, CheckpointRef, parse_pod_name
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import (
    CREATE,
    EXTEND,
    LAND,
    NOTHING,
    PULL,
    SAVE,
    TERMINATE,
    Action,
    Decision,
    action_key,
    current_generation,
    is_held,
    is_pulled,
    last_try,
    next_attempt,
    next_long,
    pull_name,
    unsaved,
)
from trmcloud.core.control.billing import has_failed_to_boot, settle, settle_unbilled
from trmcloud.core.control.boards import board_events, wrong_board
from trmcloud.core.control.continuing import continues, revision
from trmcloud.core.control.events import FailureKind
from trmcloud.core.control.observation import Observation, PodSeen, PodStatus
from trmcloud.core.control.pod_facts import (
    absence_needed_s,
    failed_late,
    find_pod,
    forgotten_saves,
    has_reported_since,
    is_owed_an_end,
    last_word,
    moving_reason,
    note_absence,
    own_report,
    phases_ended,
    proven_end,
    result_of,
)
from trmcloud.core.control.reason import Reason, ReasonKind, make_reason, quoted_reason
from trmcloud.core.control.renting import (
    await_pod,
    intend,
    next_candidate,
    phases_to_run,
    storage_beside_disks,
    try_next,
)
from trmcloud.core.control.run_state import GRANT, STAGE, Generation, RunState, State
from trmcloud.core.control.waiting import (
    NO_OTHERS,
    OtherWaits,
    allows_waiting,
    asks,
    came_to_nothing,
    end_of_wait,
    is_waiting,
)
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.spec.plan import Candidate, Plan
from trmcloud.core.values import Value, replace

# What a run that does nothing is waiting for, and until when: told wherever it is looked at.
# Pure.
#
# It follows ``decide``: each answer here is a place where that answers with nothing to do.


class WaitState(Value):
    """``until_at`` is the epoch second at which the wait ends of itself; None where only an answer
    of the provider's ends it."""

    what: Reason
    until_at: float | None = None


def waits_for(
    run: RunState, traits: ProviderTraits, pods: Maybe[tuple[PodSeen, ...]]
) -> WaitState | None:
    """``pods`` is what the provider's list said last."""
    generation = run.generation
    if is_waiting(run) and run.wait is not None:
        chosen = run.chosen
        hardware = chosen.hardware if chosen is not None else ""
        what = make_reason(ReasonKind.AWAITS_CAPACITY, asked=len(asks(run)), hardware=hardware)
        return WaitState(what, run.wait.until_at)
    if generation is None:
        return None
    if run.state is State.RESERVED:
        return _before_renting(run, generation, pods)
    if run.state is State.RENTING:
        return _while_renting(run, generation, traits, pods)
    if run.state is State.BOOTING:
        up_at = generation.up_at or generation.intended_at
        return WaitState(make_reason(ReasonKind.AWAITS_AGENT), up_at + traits.boot_deadline_s)
    return None


def _before_renting(
    run: RunState, generation: Generation, pods: Maybe[tuple[PodSeen, ...]]
) -> WaitState:
    name = generation.provider
    if isinstance(pods, DatedFact):
        return WaitState(make_reason(ReasonKind.AWAITS_EARLIER_POD))
    stopping = run.stop is not None
    kind = ReasonKind.AWAITS_LIST_TO_STOP if stopping else ReasonKind.AWAITS_LIST_TO_RENT
    return WaitState(
        make_reason(kind, quoted_reason(ReasonKind.LIST_FAILED, pods.why), provider=name)
    )


def _while_renting(
    run: RunState,
    generation: Generation,
    traits: ProviderTraits,
    pods: Maybe[tuple[PodSeen, ...]],
) -> WaitState | None:
    create = run.actions.get(action_key(run, CREATE, 1))
    if create is None or _is_listed(generation, pods):
        return None
    name = generation.provider
    answer = make_reason(ReasonKind.CREATE_UNANSWERED)
    if create.ended_at is not None:
        told = quoted_reason(ReasonKind.PROVIDER_SAID, create.error)
        answer = told or make_reason(ReasonKind.CREATE_TAKEN)
    if not isinstance(pods, DatedFact):
        answer = replace(answer, more=quoted_reason(ReasonKind.LIST_FAILED, pods.why))
        return WaitState(make_reason(ReasonKind.AWAITS_LIST_OF_POD, answer, provider=name))
    if generation.absence is not None:
        until = generation.absence.since + absence_needed_s(run, traits)
    else:
        since = create.ended_at or create.started_at
        until = since + traits.create_settle_s + traits.absence.missing_s
    return WaitState(make_reason(ReasonKind.AWAITS_POD, answer, provider=name), until)


def _is_listed(generation: Generation, pods: Maybe[tuple[PodSeen, ...]]) -> bool:
    return isinstance(pods, DatedFact) and any(
        pod.name == generation.pod_name for pod in pods.value
    )


# ``decide``: what follows for one run, and what is to be done about it.
#
# Pure and level-triggered: it looks at what is recorded and what is observed now, and says which
# facts follow (``events``, to be appended first) and what is to be done (``actions``). It runs
# live, after a crash, in the reaper and in the simulator; nothing else decides. What it issues
# may be issued again.

_RESTAGE_S, _LOST_S = 30.0, 150.0
"""The least age of files when the agent says that it lacks them, for its report to count: by the
pod's clock, which may be hours behind; or by our own clock."""
_STRANGER_S = 60.0
"""An address may lead to its last tenant for a moment; for longer, it is not the pod's."""
_UNHEARD_TRIES = 3
"""A machine that never answered, and was so often asked to land in vain, has nothing to save: it is
ended, and does not cost its landing and the grace after it."""
_ANYWHERE = ("", "any")


def decide(
    run: RunState,
    plan: Plan,
    ledger_id: str,
    traits: ProviderTraits,
    seen: Observation,
    now: float,
    *,
    attended: bool = True,
    others: OtherWaits = NO_OTHERS,
) -> Decision:
    """Return the events of one run, and the actions that they need.

    The caller appends ``events`` and asks again until none are left, then carries out
    ``actions``. ``now`` is epoch seconds; ``attended``: whether the caller stays with the run;
    ``others``: the other runs that wait for a machine.
    """
    if run.state is State.RESERVED:
        if run.generations and _previous_pod_may_exist(run, ledger_id, seen):
            return Decision()
        clock = seen.clock
        return intend(run, plan, ledger_id, traits, now, clock, attended=attended, others=others)
    if run.state is State.RENTING:
        return await_pod(run, traits, seen, now)
    if run.state in (State.BOOTING, State.RUNNING, State.ENDING):
        return _watch(run, plan, traits, seen, now)
    if run.state is State.SETTLING:
        generation = current_generation(run)
        late = last_word(run, plan, generation, seen.word)
        if late:
            return Decision(events=late)
        may_wait = seen.bucket_failed and attended and now < generation.hard_stop_at
        if may_wait and continues(run, plan):
            # The agent's last report may be in the bucket; another machine cannot continue without.
            return Decision()
        storage, volume = _storage(plan, generation, traits)
        disks = plan.candidate(generation.candidate_id).disk_rate
        rent = max(run.held_for(generation) - volume, ZERO)
        known = (generation, rent, seen.bill, traits.kill_latency_s, storage)
        settled = settle(*known, now, disks)
        if settled is None and has_failed_to_boot(run, generation):
            # Only where that rents the next one sooner: else the bill, which is exact, has its time
            settled = settle_unbilled(*known, disks)
            if settled is None or try_next(run, plan, traits, settled.amount) is None:
                return Decision()
        if settled is not None and settled.billed is None and not _is_unlisted(seen, generation):
            return Decision()  # what is listed again is no estimate's matter: it is swept first
        return Decision(events=(settled,) if settled is not None else ())
    if run.state is State.SETTLED:
        if run.standby_usd is not None:
            return Decision()  # what stands by ends first: see ``end_standby``
        again = try_next(run, plan, traits, attended=attended)
        following = next_candidate(run, plan)
        if again is None or following is None:
            return Decision(events=(_closing(run, plan, now),))
        return Decision(events=(again, *revision(run, plan, following)))
    return Decision()


def _storage(plan: Plan, generation: Generation, traits: ProviderTraits) -> tuple[Usd, Usd]:
    """Return the price of storage that is billed after the pod's end; and that of a network volume,
    which has bills of its own and is reserved apart from the pod: see ``kept_volumes``."""
    candidate = plan.candidate(generation.candidate_id)
    beside = storage_beside_disks(candidate)
    if not candidate.volume_rate:
        return beside, ZERO
    after_s = plan.spec.volume_days * DAY_S
    planned_s = candidate.expected_s
    lasts_s = generation.hard_stop_at - generation.intended_at + traits.kill_latency_s
    other = beside - cost(candidate.volume_rate, planned_s + after_s)
    return max(other, ZERO), cost(candidate.volume_rate, lasts_s + after_s)


def _is_unlisted(seen: Observation, generation: Generation) -> bool:
    pod = find_pod(seen, generation)
    return isinstance(seen.pods, DatedFact) and (pod is None or pod.gone)


def _previous_pod_may_exist(run: RunState, ledger_id: str, seen: Observation) -> bool:
    """Whether a pod of an earlier generation may live: nothing is reserved for it any more, so the
    next is not rented before the sweep has ended it."""
    if not isinstance(seen.pods, DatedFact):
        return True
    names = (parse_pod_name(pod.name) for pod in seen.pods.value if not pod.gone)
    mine = run.run_id.replace("-", "")
    return any(n is not None and (n.ledger, n.run_id) == (ledger_id, mine) for n in names)


def foreseen_end(run: RunState, plan: Plan, traits: ProviderTraits) -> ev.Closed | None:
    """Return the closing event of a run whose pod is gone and whose bill is not final yet.

    None where it is elsewhere in its life, or another candidate may be tried once the bill is in.
    """
    if run.state is not State.SETTLING or run.standby_usd is not None:
        return None
    if try_next(run, plan, traits) is not None:
        return None
    return _closing(run, plan, run.updated_at)


def _watch(
    run: RunState, plan: Plan, traits: ProviderTraits, seen: Observation, now: float
) -> Decision:
    generation = current_generation(run)
    candidate = plan.candidate(generation.candidate_id)
    report = own_report(seen, generation)
    if report is not None:
        if run.state is State.BOOTING:
            return Decision(events=(ev.AgentUp(generation.number),))
        final = report.result is not None
        accounts = phases_ended(run, plan, generation, report, final=final)
        if accounts:
            return Decision(events=tuple(accounts))
        if run.state is State.RUNNING and (forgotten := forgotten_saves(generation, report)):
            return Decision(events=forgotten)
        boards = board_events(run, plan, generation, phases_to_run(run, candidate), report)
        if boards and report.result is None:
            return Decision(events=boards)
        if report.result is not None and run.state is not State.ENDING:
            known = result_of(run, report.result, report.message)
            if report.result == Outcome.UNFIT.value:
                known = replace(known, reason=wrong_board(plan, generation, report, known.reason))
            return Decision(events=(known,))
    elif run.state is State.RUNNING and (left := last_word(run, plan, generation, seen.word)):
        return Decision(events=left)
    if run.state is State.RUNNING and (why := _why_not_sent(run)) is not None:
        return Decision(events=(ev.ResultKnown(Outcome.FAILED.value, why),))
    if run.state is State.BOOTING and (late := failed_late(run, seen, generation)):
        return Decision(events=late)
    gone = _proven_end(run, seen, generation, traits)
    if gone is not None and _lives_unlisted(seen, generation):
        return Decision(events=(ev.PodFound(generation.number),))
    if gone is not None and report is not None:
        accounts = phases_ended(run, plan, generation, report, final=True)
        if accounts:
            return Decision(events=tuple(accounts))
    if gone is not None:
        return Decision(events=(ev.PodGone(generation.number, gone),))
    noted = note_absence(seen, generation, traits)
    if noted.events:
        return noted
    pod_id = generation.pod_id or ""
    errand = None
    wanted: tuple[CheckpointRef, ...] = ()
    if report is not None:
        wanted = unsaved(run, report) if is_pulled(run, plan, generation) else ()
        errand = _errand(run, plan, generation, report, seen, now, wanted)
    held = is_held(run, plan, generation)
    owed = held and (report is None or bool(wanted))
    reason = _why_terminate(
        run, generation, candidate, traits, seen, report, now, held=held, owed=owed
    )
    if reason is not None:
        action = next_attempt(run, TERMINATE, generation, pod_id, reason, now)
        return Decision(actions=(action,) if action else ())
    lands = run.stop.reason if run.stop is not None else None
    if generation.legacy.hands_over and lands is None:
        lands = moving_reason(run)
    if lands is None and now >= generation.soft_stop_at and _is_unaware(generation, report):
        lands = make_reason(ReasonKind.STOP_LOWERED)
    if lands is not None and run.state in (State.BOOTING, State.RUNNING):
        action = next_attempt(run, LAND, generation, pod_id, lands, now, once=True)
        return Decision(actions=tuple(a for a in (action, errand) if a))
    save = _save(run, generation, report, pod_id, now)
    later = _extend(run, generation, report, pod_id, now)
    actions = tuple(a for a in (save, later, errand) if a)
    return Decision(actions=actions) if actions else NOTHING


def _is_unaware(generation: Generation, report: AgentReport | None) -> bool:
    """Whether an earlier version has lowered its hard stop, and its agent does not report that."""
    if generation.legacy.first_stop_at is None:
        return False
    return report is None or report.hard_stop_at > generation.hard_stop_at + 1.0


def _proven_end(
    run: RunState, seen: Observation, generation: Generation, traits: ProviderTraits
) -> float | None:
    """When the pod ended; None while that is not proven, or its end has yet to be asked for."""
    gone = proven_end(run, seen, generation, traits)
    unlisted = gone is not None and find_pod(seen, generation) is None
    return None if unlisted and is_owed_an_end(run, seen, generation) else gone


def _lives_unlisted(seen: Observation, generation: Generation) -> bool:
    """Whether a pod that no list has still reports."""
    return find_pod(seen, generation) is None and has_reported_since(seen, generation)


def end_standby(
    run: RunState, plan: Plan, traits: ProviderTraits, seen: Observation, now: float
) -> Decision:
    """Return the events and the actions by which a machine is ended and settled that an earlier
    version had stand by while another one works: no run moves to it any more.

    ``seen`` is of that machine, ``traits`` are of its provider.
    """
    standby = run.standby
    if standby is None:
        return Decision()
    generation, why = current_generation(standby), make_reason(ReasonKind.MOVE_CALLED_OFF)
    standby = replace(standby, stop=ev.StopRequested("move", why), stop_at=now)
    if standby.state is State.RENTING:
        return await_pod(standby, traits, seen, now)
    if standby.state is State.SETTLING:
        storage, _ = _storage(plan, generation, traits)
        disks = plan.candidate(generation.candidate_id).disk_rate
        known = (generation, standby.reserved, seen.bill, traits.kill_latency_s, storage)
        settled = settle(*known, now, disks)
        if settled is not None and settled.billed is None and not _is_unlisted(seen, generation):
            return Decision()
        return Decision(events=(settled,) if settled is not None else ())
    if standby.state is State.BOOTING and (late := failed_late(standby, seen, generation)):
        return Decision(events=late)
    gone = _proven_end(standby, seen, generation, traits)
    if gone is not None and _lives_unlisted(seen, generation):
        return Decision(events=(ev.PodFound(generation.number),))
    if gone is not None:
        return Decision(events=(ev.PodGone(generation.number, gone),))
    noted = note_absence(seen, generation, traits)
    if noted.events:
        return noted
    pod_id = generation.pod_id or ""
    action = next_attempt(standby, TERMINATE, generation, pod_id, why, now)
    return Decision(actions=(action,)) if action is not None else NOTHING


def _save(
    run: RunState, generation: Generation, report: AgentReport | None, pod_id: str, now: float
) -> Action | None:
    """Pass a request for a checkpoint on, once; a pod that is told to land saves by that."""
    asked = generation.saves_asked
    answered = report.saves.answered if report is not None and report.saves is not None else 0
    if run.state is not State.RUNNING or asked <= answered:
        return None
    return next_attempt(run, SAVE, generation, pod_id, None, now, once=True, item=str(asked))


def _extend(
    run: RunState, generation: Generation, report: AgentReport | None, pod_id: str, now: float
) -> Action | None:
    """Tell its agent the later stop until it reports that one: nothing else is proof."""
    if not generation.is_extended or run.state is not State.RUNNING or report is None:
        return None
    if report.result is not None or report.hard_stop_at >= generation.hard_stop_at - 1.0:
        return None
    return next_attempt(run, EXTEND, generation, pod_id, None, now)


def _errand(
    run: RunState,
    plan: Plan,
    generation: Generation,
    report: AgentReport,
    seen: Observation,
    now: float,
    wanted: tuple[CheckpointRef, ...],
) -> Action | None:
    """Return the transfer that a worker should do now: files to a pod that waits for them, or the
    first of the checkpoints that are ``wanted`` from it."""
    if report.waiting == "files" and run.stop is None and report.result is None:
        sent_at = generation.staged_at
        if sent_at is None or _has_lost(report, sent_at, now):
            return next_long(run, STAGE, generation, seen, now)
    if plan.spec.pod_uploads and _lacks_grants(run, generation, report, now):
        return next_long(run, GRANT, generation, seen, now)
    if not wanted or any(key.verb == PULL for key in seen.in_flight):
        return None
    return next_long(run, PULL, generation, seen, now, item=pull_name(wanted[0]))


def _has_lost(report: AgentReport, sent_at: float, now: float) -> bool:
    """Whether an agent that lacks what it was sent does not only say so from before."""
    return report.at > sent_at + _RESTAGE_S or now > sent_at + _LOST_S


def _lacks_grants(run: RunState, generation: Generation, report: AgentReport, now: float) -> bool:
    """Whether the agent waits for the right to upload, or will soon have none."""
    if report.result is not None:
        return False
    _, last = last_try(run, GRANT)
    sent_at = last.ended_at if last is not None and last.finished else None
    if sent_at is not None and not _has_lost(report, sent_at, now):
        return False
    until = report.granted_until
    if until is None:
        return report.waiting in ("", "grants") and run.stop is None
    return until < min(generation.hard_stop_at, now + RENEW_BEFORE_S)


def _why_terminate(
    run: RunState,
    generation: Generation,
    candidate: Candidate,
    traits: ProviderTraits,
    seen: Observation,
    report: AgentReport | None,
    now: float,
    *,
    held: bool,
    owed: bool,
) -> Reason | None:
    """``held``: its agent leaves the end to us; ``owed``: it has what nobody has a copy of yet."""
    if now >= generation.hard_stop_at:
        return make_reason(ReasonKind.HARD_STOP)
    if run.stop is not None and run.stop.at_once:
        return replace(run.stop.reason, more=None)
    if (why := _why_not_sent(run)) is not None:
        return why
    pod = find_pod(seen, generation)
    if pod is not None and pod.status is PodStatus.STOPPED and report is None:
        return make_reason(ReasonKind.HOST_STOPPED)
    unfit = generation.unfit
    if unfit is not None and unfit.kind is ReasonKind.WRONG_BOARD:
        return unfit  # its agent may not know, and would train there
    if run.state is State.ENDING and not owed:
        if held:
            return make_reason(ReasonKind.SAVED_HERE)
        # Not since the last event: each attempt to end it is one, and would put off the next.
        since = run.result_at if run.result_at is not None else run.updated_at
        # An end that was begun, for whatever reason, is gone on with.
        if now >= since + traits.end_grace_s or last_try(run, TERMINATE)[1] is not None:
            return make_reason(ReasonKind.WORK_DONE)
    if run.state is State.BOOTING:
        up_at = generation.up_at or generation.intended_at
        if report is None and now >= up_at + traits.boot_deadline_s:
            line = quoted_reason(ReasonKind.LINK_FAILED, seen.line)
            if seen.boot_trouble is not None:
                line = make_reason(ReasonKind.PROVIDER_SAID, text=seen.boot_trouble.text)
            within_s = float(traits.boot_deadline_s)
            return make_reason(ReasonKind.NO_AGENT, line, boot_deadline_s=within_s)
        if report is None and seen.boot_trouble is not None and seen.boot_trouble.fatal:
            return make_reason(ReasonKind.BOOT_FAILED, text=seen.boot_trouble.text)
        if report is None and seen.stranger_s >= _STRANGER_S:
            return make_reason(ReasonKind.STRANGER_ANSWERS)
        tries, last = last_try(run, LAND)
        unheard = last is not None and last.failed_kind is not None and tries >= _UNHEARD_TRIES
        if report is None and run.stop is not None and unheard:
            return replace(run.stop.reason, more=None)
    uploads = report is not None and report.uploading
    told = run.actions.get(action_key(run, LAND, 1))
    if run.state is not State.ENDING and told is not None and not uploads:
        # From when it was first told: whoever was to tell it may have slept since the wish.
        # Where hours were limited, far more than the landing lies between the two stops.
        patience_s = min(candidate.landing_s, generation.hard_stop_at - generation.soft_stop_at)
        if now >= told.started_at + patience_s + traits.end_grace_s:
            return make_reason(ReasonKind.DID_NOT_LAND)
    # What the list says now: a price may rise after boot, too.
    billed_rate = pod.rate if pod is not None else generation.billed_rate
    if billed_rate is not None:
        tolerated = generation.rate.micros * (1 + traits.prices.rate_tolerance)
        if billed_rate.micros > tolerated:
            return make_reason(
                ReasonKind.BILLED_ABOVE_RATE,
                billed_usd_per_hour=billed_rate,
                planned_usd_per_hour=generation.rate,
            )
    if pod is not None and _is_misplaced(pod, candidate.region):
        wanted = candidate.region
        return make_reason(ReasonKind.MISPLACED, region=pod.region, wanted_region=wanted)
    return None


def _why_not_sent(run: RunState) -> Reason | None:
    """Why the files that the run's machine waits for will never arrive; None where they may."""
    _, last = last_try(run, STAGE)
    if last is None or last.failed_kind is not FailureKind.FINAL:
        return None
    return make_reason(ReasonKind.LINK_FAILED, text=last.error)


def _is_misplaced(pod: PodSeen, wanted: str) -> bool:
    """Whether it stands in another data centre than was asked for: what a region was chosen for,
    a network volume, the law or the distance, does not hold there."""
    return bool(pod.region) and wanted.casefold() not in (*_ANYWHERE, pod.region.casefold())


def _closing(run: RunState, plan: Plan, now: float) -> ev.Closed:
    generation = current_generation(run)
    if allows_waiting(run) and came_to_nothing(generation):
        return ev.Closed(Outcome.NO_MACHINE.value, end_of_wait(run, plan, now))
    if run.result is not None:
        return ev.Closed(run.result, run.reason)
    if generation.unfit is not None:
        return ev.Closed(Outcome.UNFIT.value, generation.unfit)
    if generation.ended_at is not None and generation.ended_at >= generation.hard_stop_at - 1:
        return ev.Closed(Outcome.KILLED.value, make_reason(ReasonKind.KILLED_BEFORE_LANDING))
    if run.stop is not None:
        unreported = make_reason(ReasonKind.STOPPED_UNREPORTED)
        why = replace(run.stop.reason, more=None) if run.stop.at_once else unreported
        return ev.Closed(Outcome.STOPPED.value, why)
    ended = run.actions.get(action_key(run, TERMINATE, 1))
    if ended is not None and ended.reason is not None:
        return ev.Closed(Outcome.LOST.value, make_reason(ReasonKind.POD_ENDED, ended.reason))
    created = run.actions.get(action_key(run, CREATE, 1))
    if (
        generation.agent_at is None
        and created is not None
        and created.failed_kind is FailureKind.NO_CAPACITY
    ):
        return ev.Closed(Outcome.LOST.value, quoted_reason(ReasonKind.PROVIDER_SAID, created.error))
    if generation.agent_at is not None and run.spec.volume:
        return ev.Closed(Outcome.UNREPORTED.value, make_reason(ReasonKind.ON_VOLUME))
    if generation.agent_at is not None and run.spec.pod_uploads:
        why = make_reason(ReasonKind.IN_BUCKET, bucket=run.bucket)
        return ev.Closed(Outcome.UNREPORTED.value, why)
    return ev.Closed(Outcome.LOST.value, make_reason(ReasonKind.ENDED_SILENT))
