"""Runs, plans, budgets and volumes as the documents of ``--json``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from trmcloud.app import views
from trmcloud.app.context import Context, is_unasked
from trmcloud.app.encoding import facts_in
from trmcloud.app.ending import NamedPodEnds
from trmcloud.app.kill_layers import guards_of
from trmcloud.app.narration import Told
from trmcloud.app.reap import did_line
from trmcloud.app.reasons import sentence
from trmcloud.app.run_facts import gains_of, report_run, spending
from trmcloud.app.run_queries import (
    boot_trouble,
    bucket_trouble,
    data_progress_text,
    link_trouble,
    mark_reported,
    waits_for,
)
from trmcloud.app.symptoms import advice_of, evidence_text, remedy_text, trouble_text
from trmcloud.app.trainings import (
    TargetResult,
    find_symptoms,
    formats_of,
    recoveries_of,
    verdicts_of,
)
from trmcloud.app.views import filled, note
from trmcloud.core.contract.command import RECIPE, Command, own_facts
from trmcloud.core.contract.gate import verdict_from_json
from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.contract.records import ContractError
from trmcloud.core.control.budget import LedgerState, Line
from trmcloud.core.control.events import BalanceLow
from trmcloud.core.control.ledger_facts import Hold, Quarantine, due_volumes, holds
from trmcloud.core.control.reason import Reason
from trmcloud.core.control.report import MonthReport, RunReport, Share
from trmcloud.core.control.run_state import RunState
from trmcloud.core.money import Usd
from trmcloud.core.reported import POD
from trmcloud.core.text import one_line

if TYPE_CHECKING:
    from trmcloud.app.checkpoints.fetching import FetchedCheckpoint

# -- runs ------------------------------------------------------------------------------------------


def reason_note(reason: Reason | None) -> views.Note | None:
    if reason is None:
        return None
    facts = facts_in(reason.facts)
    if reason.more is not None and (more := reason_note(reason.more)) is not None:
        facts["because"] = {"code": more.code, "facts": dict(more.facts)}
    return note(reason.kind.value, sentence(reason), **facts)


def state_of(run: RunState) -> str:
    """Return the word that screens show: the outcome of a run that has ended, else its state."""
    return run.outcome.value if run.outcome is not None else run.state.value


def _sweep(context: Context, run: RunState) -> views.SweepProgress | None:
    """The trials of a sweep; the modules that read them are of no use to other runs."""
    if run.spec.sweep is None:
        return None
    from trmcloud.app.sweep_facts import sweep_of
    from trmcloud.app.sweep_priors import priors_of
    from trmcloud.core.sweep import verdict

    found = sweep_of(context, run)
    if found is None:
        return None
    terms, state = found.terms, found.state
    paid = terms.unit == "usd"
    best, judged = found.best, verdict.judge(state, terms)
    priors = priors_of(run.plan, terms)
    refused, sizes = priors.memory.refused if priors.memory is not None else (None, None)
    is_measured = found.own_share is not None
    return views.SweepProgress(
        metric=terms.metric,
        goal=terms.goal.value,
        slots=terms.slots,
        rungs=tuple(
            views.SweepRung(
                rung=number, spent_usd=each if paid else None, trained_s=terms.seconds(each)
            )
            for number, each in enumerate(terms.rungs, 1)
        ),
        reserved_usd=terms.winner_usd + terms.confirm_usd if paid else None,
        idle_usd=state.idle if paid else None,
        best_trial=best.number if best is not None else None,
        trials=tuple(
            views.SweepTrial(
                trial=trial.number,
                state=trial.state.value,
                rung=trial.rung + 1,
                metric=trial.metric,
                spent_usd=trial.spent if paid else None,
                spent_s=trial.seconds,
                seed=trial.seed,
                repeats=trial.repeats or None,
                settings=dict(trial.point),
                error=trial.error or None,
            )
            for trial in found.ranked()
        ),
        best_so_far=tuple(
            views.SweepPoint(spent_usd=spent if paid else None, metric=metric, trial=number)
            for spent, metric, number in verdict.best_so_far(state, terms)
        ),
        quarters=tuple(
            views.SweepPoint(
                spent_usd=each.spent if paid else None, metric=each.best, trial=each.trial
            )
            for each in verdict.quarters(state, terms)
        ),
        verdict=filled(
            views.SweepVerdict, judged, finding=judged.finding.value, rung=judged.rung + 1
        ),
        importance={each.name: each.share for each in verdict.importance(state, terms)},
        next_usd=verdict.NEXT_USD if paid else None,
        next_usd_gain=verdict.expected_gain(state, terms) if paid else None,
        first=tuple(
            views.SweepFirst(
                run=each.run_id,
                trial=each.trial,
                settings=dict(each.point),
            )
            for each in priors.first
        ),
        earlier_trials={each.run_id: len(each.trials) for each in priors.earlier},
        sizes=sizes,
        sizes_refused=refused,
        own_cpu_s=found.own_cpu_s if is_measured else None,
        trials_cpu_s=found.trials_cpu_s if is_measured else None,
    )


def _account(context: Context, run: RunState, report: RunReport) -> dict[str, Any]:
    chosen, best, command = run.chosen, report.best, run.spec.command
    provider = run.generation.provider if run.generation is not None else None
    provider = provider or (chosen.provider if chosen is not None else None)
    planned_h = report.planned_hours
    return {
        "run": run.run_id,
        "name": run.name or None,
        "tags": dict(run.tags),
        "principal": run.creator or None,
        "recipe": report.recipe,
        "project": run.project,
        "hardware": report.hardware,
        "provider": provider,
        "state": state_of(run),
        "outcome": report.outcome,
        "live": run.live,
        "created_at": report.created_at,
        "cap_usd": report.budget,
        "planned_usd": report.planned,
        "accrued_usd": report.accrued,
        "billed_usd": report.billed,
        "at_most_usd": report.at_most,
        "reserved_usd": report.reserved,
        "per_centibpb_usd": report.usd_per_centibpb,
        "drift": report.drift,
        "paid_s": report.paid_s,
        "parts_s": dict(report.seconds),
        "planned_s": None if planned_h is None else planned_h * 3600.0,
        "planned_tokens_per_second": report.planned_tokens_per_s,
        "tokens_per_second": report.tokens_per_s,
        "useful_fraction": report.useful_fraction,
        "data": views.DataWait(
            waited_s=report.seconds.get("data", 0.0),
            waited_usd=report.data_usd,
            planned_s=report.planned_data_s,
            planned_usd=report.planned_data_usd,
        ),
        "steps": report.steps_done,
        "best": None
        if best is None
        else views.BestCheckpoint(
            checkpoint=best.label,
            val_bpb=best.val_bpb if command is None else None,
            metric=own_metric(command, best.val_bpb),
            sha256=best.sha256,
            reported_by=None if report.here else POD,
        ),
        "sweep": _sweep(context, run),
        "bucket": report.bucket or None,
        "on_volume": report.on_volume,
        "measured": pace_document(run),
        "volumes": volume_holds(context.ledger.read(), context.wall(), run.run_id),
        "goal": _judged(report) if report.goal is not None else None,
    }


def _judged(report: RunReport) -> views.JudgedGoal:
    assert report.goal is not None
    goal, value = report.goal.goal, report.goal.value
    return views.JudgedGoal(
        **{name: getattr(goal, name) for name in ("name", "metric", "threshold", "higher")},
        value=value,
        checkpoint=report.goal.label or None,
        reached=report.goal.is_reached if value is not None else None,
        reported_by=None if report.here or value is None else POD,
    )


def pace_document(run: RunState) -> views.MeasuredPace | None:
    """The newest measurement, and what followed."""
    if not run.paces:
        return None
    pace = run.paces[-1]
    candidate = run.candidate(run.generations[pace.generation - 1].candidate_id)
    hours = (pace.least_hours, pace.hours, pace.most_hours)
    p10, p50, p90 = (each * 3600.0 for each in hours)
    return filled(
        views.MeasuredPace,
        pace,
        planned_step_s=pace.planned_s,
        run_s=views.Spread(p10=p10, p50=p50, p90=p90),
        run_usd=pace.usd,
        planned_run_s=candidate.hours.p50 * 3600.0 if candidate is not None else None,
        planned_run_usd=candidate.cost_p50 if candidate is not None else None,
        doubt=reason_note(pace.doubt),
        slow=reason_note(pace.slow),
        follows=pace.follows or None,
        reported_by=mark_reported(run, pace).source,
    )


def run_reported(
    context: Context, run: RunState, report: RunReport, verdict: TargetResult | None
) -> views.RunReported:
    made = None
    if verdict is not None:
        why = [note("not_reached", text) for text in verdict.target.why_not]
        why += [note("not_comparable", verdict.other)] if verdict.other else []
        made = views.TargetVerdict(
            passed=verdict.passed,
            checkpoint=verdict.label,
            nats_per_token=verdict.nats,
            bits_per_byte=verdict.bits_per_byte,
            trained_s=verdict.hours * 3600.0,
            target_nats_per_token=verdict.target.nats,
            target_s=verdict.target.hours * 3600.0,
            notes=tuple(why),
        )
    return views.RunReported(**_account(context, run, report), verdict=made)


def run_status(context: Context, run: RunState) -> views.RunStatus:
    return views.RunStatus(**_status(context, run))


def run_ended(context: Context, run: RunState) -> views.RunEnded:
    return views.RunEnded(**_status(context, run))


def statuses(context: Context, runs: Sequence[RunState], did: Sequence[Any]) -> views.Statuses:
    return views.Statuses(
        runs=tuple(run_status(context, run) for run in runs),
        damaged=tuple(map(damaged_run, context.ledger.read().quarantined.values())),
        done=tuple(map(done_note, did)),
    )


def _status(context: Context, run: RunState) -> dict[str, Any]:
    guards, spent = guards_of(context, run), spending(context, run)
    beat, generation = guards.beat, run.generation
    rented = generation if run.live and generation is not None and generation.open else None
    waiting = waits_for(context, run)
    usd, hour = gains_of(run, beat) if beat is not None else (None, None)
    low, command = _low_balance(context, run), run.spec.command
    account = _account(context, run, report_run(context, run))
    return {
        **account,
        "at_most_usd": spent.at_most,
        "spent_usd": spent.proven,
        "rate_per_hour_usd": (rented.billed_rate or rented.rate) if rented is not None else None,
        "lands_at": rented.soft_stop_at if rented is not None else None,
        "hard_stop_at": rented.hard_stop_at if rented is not None else None,
        "step": beat.step if beat is not None else None,
        "val_bpb": beat.val_bpb if beat is not None and command is None else None,
        "metric": own_metric(command, beat.val_bpb if beat is not None else None),
        "reported_by": mark_reported(run, beat).source if beat is not None else None,
        "next_usd_buys_bpb": usd,
        "next_hour_buys_bpb": hour,
        "reason": reason_note(run.reason),
        "waits_for": reason_note(waiting.what) if waiting is not None else None,
        "waits_until_at": waiting.until_at if waiting is not None else None,
        "unasked": run.live and is_unasked(context, run),
        "guards": tuple(
            views.Guard(name=x.name, state=x.state, message=x.detail, heard_at=x.heard_at)
            for x in guards.layers
        ),
        "max_overspend_usd": guards.overshoot.amount if run.live else None,
        "balance": None if low is None else filled(views.LowBalance, low),
        "verdicts": tuple(_verdicts(context, run)),
        "health": _health(context, run),
        "precision": precision_of(context, run),
        "recoveries": _recoveries(context, run),
        "notes": _notes(context, run, guards.overshoot.text),
    }


def _notes(context: Context, run: RunState, overspend: str) -> tuple[views.Note, ...]:
    """Return the troubles of a run, its machine's word, and its bounds."""
    said: list[views.Note | None] = [note("max_overspend", overspend) if run.live else None]
    if (link := link_trouble(context, run)) is not None:
        said.append(note("link", str(link), link.next_step))
    for code, text in (
        ("boot", boot_trouble(context, run)),
        ("bucket", bucket_trouble(context, run)),
        ("data", data_progress_text(context, run)),
    ):
        said.append(note(code, text) if text else None)
    board = run.generation.board if run.generation is not None else None
    said.append(reason_note(board))
    if run.stop is not None and run.live:
        said.append(note("end" if run.stop.at_once else "land", sentence(run.stop.reason)))
    for label, why in context.files.damaged(run.run_id):
        said.append(note("damaged_checkpoint", why, checkpoint=label))
    return tuple(each for each in said if each is not None)


def _low_balance(context: Context, run: RunState) -> BalanceLow | None:
    """Return the warning on record of the balance that a live run's machine is paid from."""
    generation = run.generation
    if not run.live or generation is None or not generation.open:
        return None
    return context.ledger.read().low_balances.get(generation.provider)


def _health(context: Context, run: RunState) -> tuple[views.Symptom, ...]:
    return tuple(
        views.Symptom(
            phase=phase,
            step=finding.step,
            code=finding.rule.value,
            message=evidence_text(finding),
            next=advice_of(finding, run) or None,
            facts=facts_in(finding.facts),
        )
        for phase, found in find_symptoms(context, run).items()
        for finding in found
    )


def precision_of(context: Context, run: RunState) -> tuple[views.Precision, ...]:
    return tuple(
        views.Precision(
            phase=each.phase,
            step=each.step,
            taken=each.taken or None,
            notes=(
                *((note("taken", each.why),) if each.why else ()),
                *(note("left", why, what=what) for what, why in each.left),
            ),
        )
        for each in formats_of(context, run)
    )


def _recoveries(context: Context, run: RunState) -> tuple[views.Recovery, ...]:
    return tuple(
        filled(
            views.Recovery,
            each.recovery,
            generation=each.generation,
            phase=each.phase,
            happened_at=each.recovery.at,
            code=each.recovery.what,
            changed=dict(each.recovery.changed),
            lost_usd=each.lost,
            message=f"{trouble_text(each)}; {remedy_text(each)}",
        )
        for each in recoveries_of(context, run)
    )


def launched(
    context: Context, run: RunState, *, detached: bool, existing: bool = False
) -> views.Launched:
    generation, chosen = run.generation, run.chosen
    rented = generation if run.live and generation is not None and generation.open else None
    worst = chosen if chosen is not None else run.plan.recommended
    return filled(
        views.Launched,
        run,
        run=run.run_id,
        name=run.name or None,
        tags=dict(run.tags),
        idempotency_key=run.key or None,
        existing=existing,
        principal=run.creator or None,
        plan=run.plan.id,
        recipe=run.spec.recipe,
        hardware=chosen.hardware if chosen is not None else "?",
        provider=generation.provider if generation is not None else None,
        region=chosen.region if chosen is not None else None,
        state=state_of(run),
        outcome=run.outcome.value if run.outcome is not None else None,
        detached=detached,
        worst_case_usd=worst.worst_case if worst is not None else run.cap,
        spent_usd=spending(context, run).proven,
        rate_per_hour_usd=(rented.billed_rate or rented.rate) if rented is not None else None,
        lands_at=rented.soft_stop_at if rented is not None else None,
        hard_stop_at=rented.hard_stop_at if rented is not None else None,
        hard_stop_s=worst.hard_stop_s if worst is not None else 0.0,
        reason=reason_note(run.reason),
    )


_HEAVY = ("plan", "candidate", "verdict", "metrics")
"""Fields of events that are documents of their own."""


def run_event(told: Told) -> views.RunEvent:
    record, run = told.record, told.run
    command = run.spec.command if run.recorded_plan is not None else None
    facts = own_facts(command, facts_in(record.event))
    for name in _HEAVY:
        held = facts.get(name)
        if isinstance(held, dict):
            facts[name] = {"id": held.get("id", "")}
    return views.RunEvent(
        run=record.run_id,
        id=record.seq,
        happened_at=record.at,
        kind=type(record.event).__name__,
        severity=told.severity.name.lower(),
        message=told.line,
        facts=facts,
    )


def damaged_run(hurt: Quarantine) -> views.DamagedRun:
    return views.DamagedRun(
        run=hurt.run_id,
        records_read=hurt.read,
        damaged=tuple(hurt.lost),
        at_most_usd=hurt.most,
        settled_usd=hurt.settled,
    )


def done_note(did: Any) -> views.Note:
    """Return the findings and deeds of a command before its own work."""
    if isinstance(did, str):
        return note("done", did)
    reason = reason_note(did.orphan.reason)
    because = {"reason": reason.code} if reason is not None else {}
    pod = did.orphan.pod.name
    return note("ended_pod", did_line(did), provider=did.provider, pod=pod, **because)


def named_ends(ended: NamedPodEnds, *, run: str = "", ledger: str = "") -> views.Reaped:
    """Pods that were ended by their names, or would be."""
    why = {(provider, name): said for provider, name, said in ended.failed}
    asked = set(ended.asked)
    rates = {(each.provider, each.pod.name): each.pod.rate for each in ended.listed.pods}
    rows = []
    for provider, name in dict.fromkeys((*rates, *ended.asked, *why)):
        said = why.get((provider, name))
        rows.append(
            views.EndedPod(
                provider=provider,
                pod=name,
                rate_per_hour_usd=rates.get((provider, name)),
                asked=(provider, name) in asked,
                reason=note("not_ended", said) if said else None,
            )
        )
    return views.Reaped(
        run=run or None,
        ledger=ledger or None,
        orphans=tuple(rows),
        done=(),
        unreachable=unreachable(ended.listed.unreachable),
        reconciled=None,
        recorded=ended.recorded,
    )


def unreachable(rows: Sequence[tuple[str, str]]) -> tuple[views.Unreachable, ...]:
    return tuple(views.Unreachable(provider=provider, message=why) for provider, why in rows)


def _verdicts(context: Context, run: RunState) -> Iterator[views.GateVerdict]:
    for phase, told in verdicts_of(context, run).items():
        with suppress(ContractError):  # an earlier version kept whatever a pod called its verdict
            verdict = verdict_from_json(told)
            yield views.GateVerdict(
                phase=phase,
                passed=verdict.passed,
                reported_by=mark_reported(run, verdict).source,
                checks=tuple(
                    views.GateCheck(
                        code=one_line(check.name), passed=check.passed, blocking=check.blocking,
                        message=one_line(check.detail),
                    )
                    for check in verdict.checks
                ),
            )  # fmt: skip


def own_metric(command: Command | None, score: float | None) -> views.OwnMetric | None:
    """A command's metric for a document; None of a recipe, or where it names none."""
    if command is None or not command.metric_name:
        return None
    return views.OwnMetric(name=one_line(command.metric_name), value=command.shown(score))


def metric_in(manifest: CheckpointManifest) -> views.OwnMetric | None:
    """Return a checkpoint's own metric for a document; None of a recipe's."""
    own = manifest.own_metric
    return views.OwnMetric(name=one_line(own[0]), value=own[1]) if own is not None else None


def fetched_fields(fetched: FetchedCheckpoint) -> dict[str, Any]:
    """The fields of a checkpoint that was copied here."""
    manifest = fetched.manifest
    return {
        "run": manifest.run_id,
        "checkpoint": manifest.label,
        "val_bpb": manifest.val_bpb if manifest.recipe != RECIPE else None,
        "metric": metric_in(manifest),
        "sha256": manifest.sha256,
        "folder": str(fetched.folder),
        "already_there": fetched.already_there,
    }


# -- money -----------------------------------------------------------------------------------------


def volume_holds(ledger: LedgerState, now: float, run_id: str = "") -> tuple[views.VolumeHold, ...]:
    """The network volumes of a run, or of all runs."""
    ended = {(over.provider, over.place): over for over in due_volumes(ledger, now)}
    return tuple(
        _hold(hold, ended.get((hold.provider, hold.place)), now)
        for hold in holds(ledger)
        if run_id in ("", hold.run_id)
    )


def _hold(hold: Hold, over: Any, now: float) -> views.VolumeHold:
    return filled(
        views.VolumeHold,
        hold,
        run=hold.run_id,
        data_centre=hold.place,
        reserved_usd=hold.amount,
        accrued_usd=hold.accrued(now),
        reserved_until_at=hold.until,
        uncapped_since_at=over.since if over is not None else None,
        uncapped_usd=over.beyond(now) if over is not None else Usd(0),
    )


def budget_lines(lines: Sequence[Line]) -> views.Budgets:
    return views.Budgets(budgets=tuple(filled(views.BudgetLine, line) for line in lines))


def month_document(report: MonthReport, html: str) -> views.Month:
    def line(budget: Line) -> dict[str, Any]:
        return {
            "cap_usd": budget.cap,
            "spent_usd": budget.settled,
            "reserved_usd": budget.reserved,
            "left_usd": budget.remaining,
            "unproven_usd": budget.unproven,
        }

    def share(row: Share) -> views.MonthShare:
        return filled(views.MonthShare, row, unproven_usd=row.at_most)

    counts = {row.name: row.runs for row in report.projects}
    return views.Month(
        month=report.month,
        budget=views.MonthLine(**line(report.line)),
        account=views.MonthLine(**line(report.account)),
        projects=tuple(map(share, report.projects)),
        providers=tuple(map(share, report.providers)),
        kinds=tuple(map(share, report.kinds)),
        runs=tuple(report.runs),
        grown=tuple(views.SpentBy(until_at=at, spent_usd=spent) for at, spent in report.grown),
        html=html or None,
        project_months=tuple(
            views.MonthShare(name=name, runs=counts.get(name, 0), **line(budget))
            for name, budget in report.project_months
        ),
    )
