"""``decide``: what follows for one run, and what is to be done about it.

Pure and level-triggered: it looks at what is recorded and what is observed now, and says which
facts follow (``events``, to be appended first) and what is to be done (``actions``). It runs live,
after a crash, in the reaper and in the simulator; nothing else decides. What it issues may be
issued again.
"""

from __future__ import annotations

from math import inf

from trmcloud.core import events as ev
from trmcloud.core.absence import failed_late, find_pod, is_absent, note_absence, proven_end
from trmcloud.core.accounts import last_word, phases_ended, result_of
from trmcloud.core.actions import (
    CREATE,
    FINAL,
    LAND,
    NO_CAPACITY,
    PULL,
    SAVE,
    SAVED,
    TERMINATE,
    Action,
    Decision,
    current_generation,
    last_try,
    name_action,
    next_attempt,
    next_long,
)
from trmcloud.core.billing import settle
from trmcloud.core.bucket import RENEW_BEFORE_S
from trmcloud.core.clock import Instant, Seen
from trmcloud.core.money import ZERO, Usd, affordable_seconds, cost
from trmcloud.core.observation import Observation, PodSeen
from trmcloud.core.offers import DAY_S
from trmcloud.core.outcome import Outcome
from trmcloud.core.plan import Candidate, Plan
from trmcloud.core.pod_contract import AgentReport, PodName, parse_pod_name
from trmcloud.core.providers import ProviderTraits
from trmcloud.core.run_state import GRANT, STAGE, Generation, RunState, State
from trmcloud.core.safekeeping import is_held, is_pulled, pull_name, unsaved

_RESTAGE_S = 30.0
"""How old the agent's word that it lacks files must at least be younger than their arrival."""
_STRANGER_S = 60.0
"""An address may lead to its last tenant for a moment; for longer, it is not the pod's."""
_ANYWHERE = ("", "any")
HOUR_S = 3600.0


def decide(
    run: RunState,
    plan: Plan,
    ledger_id: str,
    traits: ProviderTraits,
    seen: Observation,
    now: float,
) -> Decision:
    """What follows for one run, and what is to be done about it.

    The caller appends ``events`` and asks again until none are left, then carries out
    ``actions``. ``now`` is epoch seconds.
    """
    if run.state is State.RESERVED:
        if run.generations and _may_haunt(run, ledger_id, seen):
            return Decision()
        return _rent(run, plan, ledger_id, traits, now)
    if run.state is State.RENTING:
        return _await_pod(run, traits, seen, now)
    if run.state in (State.BOOTING, State.RUNNING, State.ENDING):
        return _watch(run, plan, traits, seen, now)
    if run.state is State.SETTLING:
        generation = current_generation(run)
        late = last_word(run, plan, generation, seen.word)
        if late:
            return Decision(events=late)
        storage, volume = _storage(plan, generation, traits)
        rent = max(run.reserved - volume, ZERO)
        settled = settle(generation, rent, seen.bill, traits.kill_latency_s, storage, now)
        if settled is not None and settled.billed is None and not _is_unlisted(seen, generation):
            return Decision()  # what is listed again is no estimate's matter: it is swept first
        return Decision(events=(settled,) if settled is not None else ())
    if run.state is State.SETTLED:
        again = _try_next(run, plan, traits)
        return Decision(events=(again if again is not None else _closing(run),))
    return Decision()


def _storage(plan: Plan, generation: Generation, traits: ProviderTraits) -> tuple[Usd, Usd]:
    """What the plan keeps for disks that are billed on after the pod's end; and for a network
    volume, which has bills of its own and is held apart from the pod: see ``kept_volumes``."""
    candidate = plan.candidate(generation.candidate_id)
    if not candidate.volume_rate:
        return candidate.storage, ZERO
    after_s = plan.spec.volume_days * DAY_S
    planned_s = min(candidate.hours.p50 * HOUR_S, candidate.hard_stop_s)
    lasts_s = generation.hard_stop_at - generation.intended_at + traits.kill_latency_s
    other = candidate.storage - cost(candidate.volume_rate, planned_s + after_s)
    return max(other, ZERO), cost(candidate.volume_rate, lasts_s + after_s)


def _is_unlisted(seen: Observation, generation: Generation) -> bool:
    pod = find_pod(seen, generation)
    return isinstance(seen.pods, Seen) and (pod is None or pod.status == "gone")


def _may_haunt(run: RunState, ledger_id: str, seen: Observation) -> bool:
    """Whether a pod of an earlier generation may live: nothing is reserved for it any more, so the
    next is not rented before the sweep has ended it."""
    if not isinstance(seen.pods, Seen):
        return True
    names = (parse_pod_name(pod.name) for pod in seen.pods.value if pod.status != "gone")
    mine = run.run_id.replace("-", "")
    return any(n is not None and (n.ledger, n.run_id) == (ledger_id, mine) for n in names)


def foreseen_end(run: RunState, plan: Plan, traits: ProviderTraits) -> ev.Closed | None:
    """How a run will be closed whose pod is gone and whose bill is not final yet.

    None where it is elsewhere in its life, or another candidate may be tried once the bill is in.
    """
    if run.state is not State.SETTLING or _try_next(run, plan, traits) is not None:
        return None
    return _closing(run)


def worst_case(rate: Usd, hard_stop_s: float, traits: ProviderTraits) -> Usd:
    """The most a pod can cost that is killed at ``hard_stop_s``: rate × (stop + kill latency)."""
    return cost(rate, hard_stop_s + traits.kill_latency_s)


def _rent(
    run: RunState, plan: Plan, ledger_id: str, traits: ProviderTraits, now: float
) -> Decision:
    if run.stop is not None:
        return Decision(events=(ev.Closed(Outcome.STOPPED.value, "before anything was rented"),))
    candidate = None if _is_refused_for_good(run) else _untried(run, plan)
    if candidate is None:
        why = run.generations[-1].not_made if run.generations else "the plan has no candidate"
        return Decision(events=(ev.Closed(Outcome.NOT_STARTED.value, why or ""),))
    hard_stop_s = hard_stop_within(candidate, run, traits)
    landing_s = min(candidate.landing_s, hard_stop_s / 2)
    number = len(run.generations) + 1
    hard_stop_at = now + hard_stop_s
    name = PodName(ledger_id, run.run_id, number, int(hard_stop_at))
    intent = ev.PodIntended(
        generation=number,
        pod_name=str(name),
        provider=candidate.provider,
        candidate_id=candidate.id,
        rate=candidate.reserved_rate,
        soft_stop_at=min(now + _longest_training_s(candidate), hard_stop_at - landing_s),
        hard_stop_at=hard_stop_at,
    )
    return Decision(events=(intent,))


def _untried(run: RunState, plan: Plan) -> Candidate | None:
    """The next candidate that has not failed to give a machine fit to train on.

    Since the run was opened, or reopened: it may find again what was out of stock then.
    """
    recent = run.generations[run.first_generation - 1 :]
    tried = {g.candidate_id for g in recent if g.not_made is not None or _came_to_nothing(g)}
    return next((plan.candidate(name) for name in plan.launchable if name not in tried), None)


def _is_refused_for_good(run: RunState) -> bool:
    """Whether the last create, since the run was opened or reopened, was refused in a way that no
    other candidate would mend: no money, a wrong key, a request that is not understood."""
    if len(run.generations) < run.first_generation:
        return False
    create = run.actions.get(name_action(run, CREATE, 1))
    return create is not None and create.failed_kind == FINAL


def _came_to_nothing(generation: Generation) -> bool:
    """Whether its pod ended before it could train: silent, or not what was rented."""
    unheard = generation.agent_at is None and generation.ended_at is not None
    return unheard or bool(generation.unfit)


def _try_next(run: RunState, plan: Plan, traits: ProviderTraits) -> ev.Reserved | None:
    """What is left of the reservation, for the next candidate; None where the run is over."""
    generation = current_generation(run)
    candidate = _untried(run, plan)
    if candidate is None or run.stop is not None or not _came_to_nothing(generation):
        return None
    left = run.reservation - (generation.settled or ZERO)
    enough_s = candidate.startup_s.p50 + candidate.landing_s
    if affordable_seconds(left - candidate.storage, candidate.reserved_rate) <= (
        enough_s + traits.kill_latency_s
    ):
        return None
    return ev.Reserved(left)


def hard_stop_within(candidate: Candidate, run: RunState, traits: ProviderTraits) -> float:
    """Seconds until the hard stop: what the reservation buys beside storage.

    Not beyond the plan's own stop, unless the run was reopened: then the rest of its budget is all
    that bounds it.
    """
    for_rent = run.reserved - candidate.storage
    rate = candidate.reserved_rate
    if run.first_generation > 1:
        rate += candidate.volume_rate  # a stop of the plan's own has that in it
    bought = affordable_seconds(for_rent, rate) - traits.kill_latency_s
    if run.first_generation > 1 and bought != inf:
        return max(0.0, bought)
    return max(0.0, min(candidate.hard_stop_s, bought))


def _longest_training_s(candidate: Candidate) -> float:
    """A limit on hours shows as a soft stop that lies before hard stop less landing."""
    limited = candidate.soft_stop_s + candidate.landing_s < candidate.hard_stop_s - 1.0
    return candidate.soft_stop_s if limited else inf


def _await_pod(run: RunState, traits: ProviderTraits, seen: Observation, now: float) -> Decision:
    generation = current_generation(run)
    if late := failed_late(run, seen, generation):
        return Decision(events=late)
    pod = find_pod(seen, generation)
    if pod is not None:
        # One that is gone again too, whatever the answer to its creation was: it has a bill.
        return Decision(events=(ev.PodUp(generation.number, pod.pod_id, pod.rate),))
    create_id = name_action(run, CREATE, 1)
    create = run.actions.get(create_id)
    if create is None:
        if run.stop is not None or now >= generation.soft_stop_at:
            reason = "stopped before it was asked for"
            return Decision(events=(ev.PodNotMade(generation.number, reason),))
        return Decision(actions=(Action(create_id, CREATE, generation.number),))
    if create.failed_kind in ("refused", NO_CAPACITY, FINAL):
        return Decision(events=(ev.PodNotMade(generation.number, create.error),))
    asked_at = create.ended_at or create.started_at
    waited = _waited_s(seen, generation, asked_at) >= traits.create_settle_s
    if create_id not in seen.in_flight and waited and is_absent(run, seen, generation, traits):
        if isinstance(seen.bill, Seen) and seen.bill.value.amount:
            # It lived and died while nobody looked. What it cost is not nothing.
            bill = seen.bill.value
            return Decision(events=(ev.PodUp(generation.number, bill.pod_id, generation.rate),))
        if not seen.unbilled and generation.missed_at is not None:
            return Decision()  # a bill that cannot be asked for is not one of nothing
        return Decision(
            events=(ev.PodNotMade(generation.number, create.error or "it never appeared"),)
        )
    if waited and create_id not in seen.in_flight:
        return note_absence(seen, generation, traits)
    return Decision()


def _waited_s(seen: Observation, generation: Generation, asked_at: float) -> float:
    """How long after its create was sent the newest list was taken: no longer than since the
    intent, by a clock that nobody sets."""
    if not isinstance(seen.pods, Seen):
        return -inf
    by_wall = seen.pods.at - asked_at
    if seen.clock is None:
        return by_wall
    intended = Instant(generation.intended_at, generation.boot, generation.boot_id)
    return min(by_wall, seen.clock.since(intended))


def _watch(
    run: RunState, plan: Plan, traits: ProviderTraits, seen: Observation, now: float
) -> Decision:
    generation = current_generation(run)
    report = seen.report.value if isinstance(seen.report, Seen) else None
    if report is not None and report.pod_name != generation.pod_name:
        report = None
    if report is not None:
        if run.state is State.BOOTING:
            return Decision(events=(ev.AgentUp(generation.number),))
        final = report.result is not None
        accounts = phases_ended(run, plan, generation, report, final=final)
        if accounts:
            return Decision(events=tuple(accounts))
        if report.result is not None and run.state is not State.ENDING:
            return Decision(events=(result_of(report.result, report.message),))
    elif run.state is State.RUNNING and (left := last_word(run, plan, generation, seen.word)):
        return Decision(events=left)
    if run.state is State.BOOTING and (late := failed_late(run, seen, generation)):
        return Decision(events=late)
    gone = proven_end(run, seen, generation, traits)
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
    candidate = plan.candidate(generation.candidate_id)
    errand = None
    if report is not None:
        errand = _errand(run, plan, generation, report, seen, now)
    held = is_held(run, plan, generation)
    owed = held and (report is None or bool(unsaved(run, report)))
    reason = _why_terminate(
        run, generation, candidate, traits, seen, report, now, held=held, owed=owed
    )
    if reason:
        action = next_attempt(run, TERMINATE, generation, pod_id, reason, now)
        return Decision(actions=(action,) if action else ())
    if run.stop is not None and run.state in (State.BOOTING, State.RUNNING):
        action = next_attempt(run, LAND, generation, pod_id, run.stop.reason, now, once=True)
        return Decision(actions=tuple(a for a in (action, errand) if a))
    save = _save(run, generation, report, pod_id, now)
    return Decision(actions=tuple(a for a in (save, errand) if a))


def _save(
    run: RunState, generation: Generation, report: AgentReport | None, pod_id: str, now: float
) -> Action | None:
    """Pass a request for a checkpoint on, once; a pod that is told to land saves by that."""
    asked = generation.saves_asked
    answered = report.saves.answered if report is not None and report.saves is not None else 0
    if run.state is not State.RUNNING or asked <= answered:
        return None
    name = f"{SAVE}-{asked}"
    return next_attempt(run, SAVE, generation, pod_id, "", now, once=True, name=name)


def _errand(
    run: RunState,
    plan: Plan,
    generation: Generation,
    report: AgentReport,
    seen: Observation,
    now: float,
) -> Action | None:
    """What a worker should carry now: files to a pod that waits for them, checkpoints from one."""
    if report.waiting == "files" and run.stop is None and report.result is None:
        sent_at = generation.staged_at
        if sent_at is None or report.at > sent_at + _RESTAGE_S:
            return next_long(run, STAGE, STAGE, generation, "", seen, now)
    if plan.spec.pod_uploads and _lacks_grants(run, generation, report, now):
        return next_long(run, GRANT, GRANT, generation, "", seen, now)
    if is_pulled(run, plan, generation):
        for kept in unsaved(run, report):
            name = f"{PULL}-{pull_name(kept)}"
            reason = f"{kept.phase}/{kept.step}"
            if any(f"/{PULL}-" in action_id for action_id in seen.in_flight):
                return None
            return next_long(run, name, PULL, generation, reason, seen, now)
    return None


def _lacks_grants(run: RunState, generation: Generation, report: AgentReport, now: float) -> bool:
    """Whether the agent waits for the right to upload, or will soon have none."""
    if report.result is not None:
        return False
    _, last = last_try(run, GRANT)
    sent_at = last.ended_at if last is not None and last.finished else None
    if sent_at is not None and report.at <= sent_at + _RESTAGE_S:
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
) -> str:
    """``held``: its agent leaves the end to us; ``owed``: it has what nobody has a copy of yet."""
    if now >= generation.hard_stop_at:
        return "hard stop"
    if run.state is State.ENDING and not owed:
        if held:
            return SAVED
        # Not since the last event: each attempt to end it is one, and would put off the next.
        since = run.result_at if run.result_at is not None else run.updated_at
        # An end that was begun, for whatever reason, is gone on with.
        if now >= since + traits.end_grace_s or last_try(run, TERMINATE)[1] is not None:
            return "its work is done"
    if run.state is State.BOOTING:
        up_at = generation.up_at or generation.intended_at
        if report is None and now >= up_at + traits.boot_deadline_s:
            why = f": {seen.line}" if seen.line else ""
            return f"no agent within {traits.boot_deadline_s:.0f} s{why}"
        if report is None and seen.stranger_s >= _STRANGER_S:
            return "another machine answers at its address: the host key is not the run's"
    stopping = run.stop is not None and run.state is not State.ENDING
    uploads = report is not None and report.uploading
    if stopping and run.stop_at is not None and not uploads:
        # Where hours were limited, far more than the landing lies between the two stops.
        patience_s = min(candidate.landing_s, generation.hard_stop_at - generation.soft_stop_at)
        if now >= run.stop_at + patience_s + traits.end_grace_s:
            return "it did not land when told to"
    # What the list says now: a price may rise after boot, too.
    pod = find_pod(seen, generation)
    billed_rate = pod.rate if pod is not None else generation.billed_rate
    if billed_rate is not None:
        tolerated = generation.rate.micros * (1 + traits.rate_tolerance)
        if billed_rate.micros > tolerated:
            return f"billed {billed_rate}/h, planned {generation.rate}/h"
    if pod is not None and _is_misplaced(pod, candidate.region):
        return f"it stands in {pod.region}, and {candidate.region} was asked for"
    return ""


def _is_misplaced(pod: PodSeen, wanted: str) -> bool:
    """Whether it stands in another data centre than was asked for: what a region was chosen for,
    a network volume, the law or the distance, does not hold there."""
    return bool(pod.region) and wanted.casefold() not in (*_ANYWHERE, pod.region.casefold())


def _closing(run: RunState) -> ev.Closed:
    if run.result is not None:
        return ev.Closed(run.result, run.message)
    generation = current_generation(run)
    if generation.unfit:
        return ev.Closed(Outcome.UNFIT.value, generation.unfit)
    if generation.ended_at is not None and generation.ended_at >= generation.hard_stop_at - 1:
        return ev.Closed(Outcome.KILLED.value, "the hard stop came before the trainer had landed")
    if run.stop is not None:
        return ev.Closed(Outcome.STOPPED.value, "ended before it reported")
    ended = run.actions.get(name_action(run, TERMINATE, 1))
    if ended is not None and ended.detail:
        return ev.Closed(Outcome.LOST.value, f"the pod was ended: {ended.detail}")
    created = run.actions.get(name_action(run, CREATE, 1))
    if generation.agent_at is None and created is not None and created.failed_kind == NO_CAPACITY:
        return ev.Closed(Outcome.LOST.value, created.error)
    spec = run.plan.get("spec", {})
    if generation.agent_at is not None and spec.get("volume"):
        why = "what it saved, and how it ended, is on its network volume: fetch-best brings both"
        return ev.Closed(Outcome.UNHEARD.value, why)
    if generation.agent_at is not None and spec.get("bucket") and not spec.get("bucket_relayed"):
        why = f"no last word of it was found; its uploads are in {spec['bucket']}: fetch-best"
        return ev.Closed(Outcome.UNHEARD.value, why)
    return ev.Closed(Outcome.LOST.value, "the pod ended without a word from its agent")
