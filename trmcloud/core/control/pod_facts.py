"""Facts about pods for the ledger: the end of a pod that no list shows, and reports of
agents. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from trmcloud.core.catalog.providers import ProviderTraits
from trmcloud.core.clock import DatedFact
from trmcloud.core.contract.pod_contract import AgentReport, Orders, PhaseState
from trmcloud.core.contract.trainer_contract import CLEAN, DONE
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import (
    CREATE,
    NOTHING,
    TERMINATE,
    Decision,
    action_key,
    current_generation,
)
from trmcloud.core.control.billing import has_failed_to_boot
from trmcloud.core.control.events import FailureKind
from trmcloud.core.control.observation import Observation, PodSeen
from trmcloud.core.control.reason import Reason, ReasonKind, make_reason, quoted_reason
from trmcloud.core.control.run_state import Absence, ActionState, Generation, RunState
from trmcloud.core.errors import Outcome
from trmcloud.core.spec.plan import Plan
from trmcloud.core.values import replace

# When a pod that no list shows has ended: absence is proven, never assumed. Pure.

LAST_REPORTS_S = 10.0
"""The time for which an agent may report while its pod, in no list any more, is being ended."""
_SOON_GONE_S = 60.0
"""A deletion that was taken shows in the list by then."""
_SOON_GONE_TWICE_S = 30.0
"""The time after which a later deletion counts too, of a pod that never booted."""


def proven_end(
    run: RunState, seen: Observation, generation: Generation, traits: ProviderTraits
) -> float | None:
    """When the pod ended, once that is proven; None while it may still be spending."""
    if not isinstance(seen.pods, DatedFact):
        return None
    pod = find_pod(seen, generation)
    if pod is not None:
        if pod.gone:
            return pod.ended_at if pod.ended_at is not None else seen.pods.at
        return None
    if not is_absent(run, seen, generation, traits):
        return None
    absence = generation.absence
    if absence is None or _is_heard_though_missed(seen, generation):
        return seen.pods.at  # beyond its hard stop, one that has lived on is billed until now
    if any(_has_failed_since(end, absence.since) for end in run.tries(generation, TERMINATE)):
        # Whoever cannot ask for its end has no lists either: it may have lived on unseen.
        return seen.pods.at
    return absence.since


def _has_failed_since(action: ActionState, missed_at: float) -> bool:
    ended_at = action.ended_at
    return action.failed_kind is not None and ended_at is not None and ended_at >= missed_at


def is_absent(
    run: RunState, seen: Observation, generation: Generation, traits: ProviderTraits
) -> bool:
    """Whether the pod's absence from fresh lists proves that it is gone.

    Where lists lag, absence must have lasted: commands that look once each are enough for that,
    and a list that flickers for a while is not.
    """
    if not isinstance(seen.pods, DatedFact) or find_pod(seen, generation) is not None:
        return False
    if not traits.absence.missing_s:
        return seen.absent_lists >= traits.absence.lists
    if generation.absence is None:
        return False
    return _missing_s(seen, generation.absence) >= absence_needed_s(run, traits)


def _missing_s(seen: Observation, absence: Absence) -> float:
    """For how long the newest list has lacked the pod: a clock that was set proves nothing."""
    assert isinstance(seen.pods, DatedFact)
    if seen.clock is None:
        return seen.pods.at - absence.since
    age_s = max(0.0, seen.clock.wall - seen.pods.at)
    return seen.clock.since(absence.began) - age_s


def absence_needed_s(run: RunState, traits: ProviderTraits) -> float:
    """Return the time that the run's present pod must be missing from lagging lists before it
    counts as gone: less, where that began when its deletion had just been accepted.

    Until it was listed once, a list may lack it since it is new; an absence that was there before
    is not the deletion's. Where a second one was taken too, the first may have done nothing: then
    the list alone proves no more than without any.

    A pod of which its provider's log says that it cannot boot is the exception: nothing runs on it
    that could have asked for its end as well, and each minute with it is lost. There a deletion
    that was asked for since it is missing, and answered by "there is none", makes up for the
    second one. The list is read before a deletion is decided, so one of that same instant is later.
    """
    generation = current_generation(run)
    tried = run.tries(generation, TERMINATE)
    taken = [a for a in tried if a.taken]
    if not taken or taken[0].ended_at is None or generation.up_at is None:
        return traits.absence.missing_s
    absence = generation.absence
    missed_at = absence.since if absence is not None else taken[0].ended_at
    took_s = missed_at - taken[0].ended_at
    if has_failed_to_boot(run, generation):
        soon = took_s < _SOON_GONE_TWICE_S
        before = [a for a in tried if a.started_at < missed_at]
        later = [a for a in tried if a.started_at >= missed_at and a.finished]
        sure = len(taken) == 1 or (soon and bool(later) and not any(a.taken for a in later))
    else:
        before = [a for a in tried if a.started_at <= missed_at]
        sure = len(taken) == 1
    # Told that there is no such pod while the list still holds it: whose word counts is unknown.
    its_own = 0.0 <= took_s <= _SOON_GONE_S and all(a.taken for a in before)
    return traits.absence.deleted_s if its_own and sure else traits.absence.missing_s


def note_absence(seen: Observation, generation: Generation, traits: ProviderTraits) -> Decision:
    """A fact for the ledger: the pod is missed from now on, or is there again.

    One that no list has and whose agent reports is there too. That is noted from the middle of the
    time that its absence needs: were it asked at the end alone, one report that could not be read
    then would give a pod up that was heard a moment before.
    """
    if not traits.absence.missing_s or not isinstance(seen.pods, DatedFact):
        return NOTHING
    absence = generation.absence
    present = find_pod(seen, generation) is not None
    if not present and absence is not None and has_reported_since(seen, generation):
        present = _missing_s(seen, absence) >= traits.absence.missing_s / 2
    if present and absence is not None:
        return Decision(events=(ev.PodFound(generation.number),))
    if not present and absence is None:
        report = own_report(seen, generation)
        heard_at = report.at if report is not None else 0.0
        return Decision(events=(ev.PodMissed(generation.number, heard_at=heard_at),))
    return NOTHING


def has_reported_since(seen: Observation, generation: Generation) -> bool:
    """Whether the agent of a missed pod has reported since, so that the pod lives and its absence
    from the lists begins anew.

    Beyond the hard stop a report proves nothing: a hostile host could send them for ever. See
    ``is_owed_an_end``.
    """
    if not isinstance(seen.pods, DatedFact) or seen.pods.at >= generation.hard_stop_at:
        return False
    return _is_heard_though_missed(seen, generation)


def is_owed_an_end(run: RunState, seen: Observation, generation: Generation) -> bool:
    """Whether a missed pod that reports beyond its hard stop was not yet asked to end with an
    answer of its provider: such a pod may run on unlisted, and is not given up before that. What
    its host sends can put this off no further."""
    if not isinstance(seen.pods, DatedFact) or seen.pods.at < generation.hard_stop_at:
        return False
    answered = any(tried.finished for tried in run.tries(generation, TERMINATE))
    return not answered and _is_heard_though_missed(seen, generation)


def _is_heard_though_missed(seen: Observation, generation: Generation) -> bool:
    report = own_report(seen, generation)
    if report is None or generation.absence is None:
        return False
    return is_new_report(report.at, generation.absence.heard_at, generation.absence.since)


def is_new_report(at: float, heard_at: float, missed_at: float) -> bool:
    """Whether a report dated ``at`` was written since a pod is missed (``missed_at``); ``heard_at``
    is the date of the report that was at hand then (0: none was).

    Both dates of reports are by the pod's clock, which need not agree with ours and may be set
    back meanwhile. The last report of a pod that is gone keeps its date.
    """
    if heard_at:
        return abs(at - heard_at) > LAST_REPORTS_S
    return at > missed_at + LAST_REPORTS_S


def own_report(seen: Observation, generation: Generation) -> AgentReport | None:
    """The report of the generation's own agent; None where none, or another's, is at hand."""
    report = seen.report.value if isinstance(seen.report, DatedFact) else None
    return report if report is not None and report.pod_name == generation.pod_name else None


def find_pod(seen: Observation, generation: Generation) -> PodSeen | None:
    """The generation's pod: by its id once that is known, for a provider may make two of a name."""
    pods: Sequence[PodSeen] = seen.pods.value if isinstance(seen.pods, DatedFact) else ()
    mine = [pod for pod in pods if pod.name == generation.pod_name]
    if generation.pod_id is not None:
        return next((pod for pod in mine if pod.pod_id == generation.pod_id), None)
    return next((pod for pod in mine if not pod.gone), mine[0] if mine else None)


def failed_late(
    run: RunState, seen: Observation, generation: Generation
) -> tuple[ev.RunEvent, ...]:
    """Return the events of a create that the provider accepted and could not fulfil later: it
    counts as if it had been refused.

    Where some machines may have been there until others were not found, which a rate says, the
    refusal alone goes on record: the end and the bill are those of any pod.
    """
    pod = find_pod(seen, generation)
    if pod is None or not pod.gone or not pod.never_made:
        return ()
    key = action_key(run, CREATE, 1)
    known = run.actions.get(key)
    failed = known is not None and known.failed_kind is FailureKind.NO_CAPACITY
    late = ev.ActionFailed(str(key), CREATE, FailureKind.NO_CAPACITY, pod.never_made)
    refused = () if failed else (late,)
    why = make_reason(ReasonKind.PROVIDER_SAID, text=pod.never_made)
    return refused if pod.rate else (*refused, ev.PodNotMade(generation.number, why))


# Conversion of an agent's report of phases and of the end into facts for the ledger. Pure.


def phases_ended(
    run: RunState, plan: Plan, generation: Generation, report: AgentReport, *, final: bool
) -> list[ev.RunEvent]:
    """Accounts of phases that are over; one that crashed is not, while its agent may try again.

    Phases that the plan does not know are passed over: a report may come from a hostile machine.
    """
    planned = {phase.name for phase in plan.candidate(generation.candidate_id).phases}
    events: list[ev.RunEvent] = []
    number = generation.number
    accounted = {a.phase for a in run.phase_accounts if a.generation == number}
    for phase in report.phases:
        if phase.name not in planned:
            continue
        over = phase.state is PhaseState.ENDED and (final or phase.outcome in CLEAN)
        if over and phase.name not in accounted:
            events.append(
                ev.PhaseEnded(
                    generation=number,
                    phase=phase.name,
                    outcome=phase.outcome or "lost",
                    step=phase.step,
                    val_bpb=phase.val_bpb,
                    seconds=dict(phase.seconds),
                    attempts=phase.attempts,
                )
            )
        known = run.gates.get(phase.name)
        if phase.gate is not None and (known is None or known.generation != number):
            judged = phase.gate.to_json()
            events.append(ev.GateJudged(number, phase.name, phase.gate.passed, judged))
    return events


def finished_on(run: RunState, generation: Generation) -> tuple[str, ...]:
    """Phases that were finished on the generation's pod, or before the run moved to it, and need
    not be trained there again. One whose gate failed is not among them: what follows from that its
    agent has still to say."""
    return tuple(
        account.phase
        for account in run.phase_accounts
        if (account.generation == generation.number or generation.legacy.adopted)
        and account.outcome in DONE
        and not _gate_failed(run, account)
    )


def orders_for(run: RunState, generation: Generation, epoch: int) -> Orders:
    """All that is asked of the generation's agent now: its orders replace those before.

    Why it shall land is none of its business: see ``result_of``, which knows.
    """
    moved = generation.is_extended or generation.legacy.first_stop_at is not None
    return Orders(
        epoch=epoch,
        land=run.stop is not None or generation.legacy.hands_over,
        finished=finished_on(run, generation),
        save=generation.saves_asked,
        hard_stop_at=generation.hard_stop_at if moved else 0.0,
    )


def _gate_failed(run: RunState, account: ev.PhaseEnded) -> bool:
    judged = run.gates.get(account.phase)
    return judged is not None and judged.generation == account.generation and not judged.passed


def result_of(run: RunState, name: str, message: str) -> ev.ResultKnown:
    """Convert the agent's result, which may be of a newer version or hostile. One that was told to
    stop did it for the reason that is on record, whatever it adds."""
    known = {outcome.value for outcome in Outcome}
    told = quoted_reason(ReasonKind.AGENT_SAID, message)
    if name not in known:
        why = make_reason(ReasonKind.UNKNOWN_RESULT, told, result=ascii(name[:80])[1:-1])
        return ev.ResultKnown(Outcome.FAILED.value, why)
    if name == Outcome.STOPPED.value and run.stop is None and _hands_over(run):
        return ev.ResultKnown(name, moving_reason(run, told))
    if name == Outcome.STOPPED.value and run.stop is not None:
        why = run.stop.reason
        # An earlier version told it the reason, which it says back.
        echoed = message == why.facts.get("text")
        return ev.ResultKnown(name, why if echoed else replace(why, more=told))
    return ev.ResultKnown(name, told)


def _hands_over(run: RunState) -> bool:
    return run.generation is not None and run.generation.legacy.hands_over


def moving_reason(run: RunState, more: Reason | None = None) -> Reason:
    """Why a machine lands that an earlier version told to, for another one that stood by."""
    after = run.generations[-1]
    return make_reason(ReasonKind.MOVING, more, provider=after.provider)


_MOST_SAVES_FORGOTTEN = 100
"""A hostile pod could claim to have answered ever more requests: so many are put on record."""


def forgotten_saves(generation: Generation, report: AgentReport) -> tuple[ev.RunEvent, ...]:
    """Return requests for a checkpoint that the pod has answered and that the ledger does not know,
    since it was restored from a backup: the agent ignores the next one if it has their number."""
    answered = report.saves.answered if report.saves is not None else 0
    missing = min(answered, _MOST_SAVES_FORGOTTEN) - generation.saves_asked
    return tuple(ev.SaveRequested(generation.number, "pod") for _ in range(missing))


def last_word(
    run: RunState, plan: Plan, generation: Generation, word: AgentReport | None
) -> tuple[ev.RunEvent, ...]:
    """Return the events from a report that an agent left in the bucket: none where it is another's,
    or says what is known.

    One without a result may be a minute old: what had crashed by then may have been tried again.
    """
    if word is None or (word.pod_name, word.run_id) != (generation.pod_name, run.run_id):
        return ()
    accounts = phases_ended(run, plan, generation, word, final=word.result is not None)
    if word.result is None or run.result is not None:
        return tuple(accounts)
    return (*accounts, result_of(run, word.result, word.message))


def unreported(run: RunState) -> Generation | None:
    """The machine whose agent's last report was not read, while another one is on its volume."""
    if run.errand is None or run.errand.outcome not in (Outcome.UNREPORTED, Outcome.LOST):
        return None
    before = [g for g in run.generations[: run.first_generation - 1] if g.agent_at is not None]
    return before[-1] if before else None


def late_report(
    run: RunState, plan: Plan, generation: Generation, report: AgentReport
) -> tuple[ev.RunEvent, ...]:
    """Return the events from the report, found on its volume, of a machine that is gone.

    Nothing where it had not ended by itself: then it was lost indeed.
    """
    if (report.pod_name, report.run_id) != (generation.pod_name, run.run_id):
        return ()
    if report.result is None:
        return ()
    known = result_of(run, report.result, report.message)
    accounts = phases_ended(run, plan, generation, report, final=True)
    return (*accounts, ev.LateReport(generation.number, known.result, known.reason))
