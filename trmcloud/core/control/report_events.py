"""Conversion of an agent's report of phases and of the end into facts for the ledger. Pure.
Pure."""

from __future__ import annotations

from trmcloud.core.contract.pod_contract import AgentReport, Orders, PhaseState
from trmcloud.core.contract.trainer_contract import CLEAN, DONE
from trmcloud.core.control import events as ev
from trmcloud.core.control.reason import ReasonKind, make_reason, quoted_reason
from trmcloud.core.control.run_state import Generation, RunState
from trmcloud.core.errors import Outcome
from trmcloud.core.spec.plan import Plan
from trmcloud.core.values import replace


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
    """Phases that were finished on the generation's pod and need not be trained there again. One
    whose gate failed is not among them: what follows from that its agent has still to say."""
    return tuple(
        account.phase
        for account in run.phase_accounts
        if account.generation == generation.number
        and account.outcome in DONE
        and not _gate_failed(run, account)
    )


def orders_for(run: RunState, generation: Generation, epoch: int) -> Orders:
    """All that is asked of the generation's agent now: its orders replace those before.

    Why it shall land is none of its business: see ``result_of``, which knows.
    """
    return Orders(
        epoch=epoch,
        land=run.stop is not None,
        finished=finished_on(run, generation),
        save=generation.saves_asked,
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
    if name == Outcome.STOPPED.value and run.stop is not None:
        why = run.stop.reason
        # An earlier version told it the reason, which it says back.
        echoed = message == why.facts.get("text")
        return ev.ResultKnown(name, why if echoed else replace(why, more=told))
    return ev.ResultKnown(name, told)


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
    if run.errand is None or run.kept_outcome not in (Outcome.UNREPORTED, Outcome.LOST):
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
