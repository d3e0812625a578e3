"""Runs, plans, budgets and volumes as the documents of ``--json``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from trmcloud.core.catalog.providers import is_brokered, traits_of
from trmcloud.core.clock import utc_day
from trmcloud.core.contract.command import RECIPE, Command, own_facts
from trmcloud.core.contract.gate import verdict_from_json
from trmcloud.core.contract.manifest import CheckpointManifest, KnownCheckpoint, own_name
from trmcloud.core.contract.records import ContractError
from trmcloud.core.control.billing import awaiting_bill
from trmcloud.core.control.budget import LedgerState, Line
from trmcloud.core.control.grants import OWNER
from trmcloud.core.control.ledger_facts import Hold, Quarantine, due_volumes, holds
from trmcloud.core.control.reason import Reason
from trmcloud.core.control.report import DRIFT_ALARM, RunReport
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.control.waiting import failed_boots, is_waiting, spent_on_boots
from trmcloud.core.durations import duration
from trmcloud.core.money import Usd, total
from trmcloud.core.reported import POD
from trmcloud.core.spec.spec import DELETE, DELETE_FETCHED, KEEP
from trmcloud.core.text import one_line
from trmcloud.operations import views
from trmcloud.operations.context import Context, is_unasked
from trmcloud.operations.curves.symptoms import (
    advice_of,
    evidence_text,
    loss_text,
    remedy_text,
    trouble_text,
)
from trmcloud.operations.curves.trainings import (
    find_symptoms,
    formats_of,
    judge_target,
    recoveries_of,
    verdicts_of,
)
from trmcloud.operations.driving.reap import did_line
from trmcloud.operations.encoding import facts_in
from trmcloud.operations.plans.kill_layers import home_of
from trmcloud.operations.reasons import low_balance, sentence
from trmcloud.operations.run_queries import (
    by_hand,
    data_progress_text,
    is_driven,
    last_report,
    link_trouble,
    mark_reported,
    waits_for,
)
from trmcloud.operations.runs.conditions import (
    BOOT_LOG,
    BUCKET,
    LINK,
    conditions_of,
    low_balance_of,
    meaning_of,
    waiting_words,
)
from trmcloud.operations.runs.run_facts import Run, facts_of, money_of, report_run
from trmcloud.operations.views import filled, note

if TYPE_CHECKING:
    from trmcloud.operations.checkpoints.fetching import FetchedCheckpoint
    from trmcloud.operations.checkpoints.saving import Place
    from trmcloud.operations.driving.ending import NamedPodEnds
    from trmcloud.operations.narration import Told

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
    from trmcloud.core.sweep import verdict
    from trmcloud.operations.sweeps.sweep_facts import sweep_of
    from trmcloud.operations.sweeps.sweep_priors import priors_of

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
            filled(
                views.SweepTrial,
                trial,
                trial=trial.number,
                state=trial.state.value,
                rung=trial.rung + 1,
                spent_usd=trial.spent if paid else None,
                spent_s=trial.seconds,
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


_Account = TypeVar("_Account", bound=views.RunAccount)
_View = TypeVar("_View", bound=views.RunView)


def _account(
    kind: type[_Account], context: Context, run: RunState, report: RunReport, **others: Any
) -> _Account:
    """Return the view of ``kind``, whose other fields are ``others``."""
    chosen, hours, seconds = run.chosen, report.planned_hours, report.seconds
    machine = run.generation or chosen
    account = {
        "run": run.run_id,
        "name": run.name or None,
        "tags": dict(run.tags),
        "principal": run.creator or None,
        "project": run.project,
        "provider": machine.provider if machine is not None else None,
        "state": state_of(run),
        "live": run.live,
        "cap_usd": report.budget,
        "per_centibpb_usd": report.usd_per_centibpb,
        "parts_s": dict(seconds),
        "planned_s": None if hours is None else hours * 3600.0,
        "planned_tokens_per_second": report.planned_tokens_per_s,
        "tokens_per_second": report.tokens_per_s,
        "data": views.DataWait(
            waited_s=seconds.get("data", 0.0),
            waited_usd=report.data_usd,
            planned_s=report.planned_data_s,
            planned_usd=report.planned_data_usd,
        ),
        "steps": report.steps_done,
        "trained_here": run.trained_here,
        "best": _checkpoint(run, report.best),
        "bucket": report.bucket or None,
        "measured": pace_document(run),
        "volumes": volume_holds(context.ledger.read(), context.wall(), run.run_id),
        "goal": _judged(report) if report.goal is not None else None,
        "verdict": judge_target(run, report.best, seconds.get("training", 0.0)),
    }
    return filled(kind, report, **{**account, **others})


def _checkpoint(run: RunState, made: KnownCheckpoint | None) -> views.RunCheckpoint | None:
    if made is None:
        return None
    command = run.spec.command
    return views.RunCheckpoint(
        checkpoint=made.label,
        name=own_name(made) or None,
        step=made.step,
        evaluated=made.val_bpb is not None,
        val_bpb=made.val_bpb if command is None else None,
        metric=own_metric(command, made.val_bpb),
        sha256=made.sha256,
        reported_by=mark_reported(run, made).source,
    )


def _judged(report: RunReport) -> views.JudgedGoal:
    assert report.goal is not None
    goal, value = report.goal.goal, report.goal.value
    return views.JudgedGoal(
        **{name: getattr(goal, name) for name in ("name", "metric", "threshold", "higher")},
        value=value,
        checkpoint=report.goal.label or None,
        reached=report.goal.is_reached if value is not None else None,
        reported_by=None if report.here or value is None else POD,
        message=report.goal.words,
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


def run_account(context: Context, run: RunState, report: RunReport) -> views.RunAccount:
    return _account(views.RunAccount, context, run, report)


def run_reported(context: Context, run: RunState, report: RunReport) -> views.RunReported:
    return _account(views.RunReported, context, run, report, sweep=_sweep(context, run))


def run_row(context: Context, run: RunState) -> views.RunRow:
    """Return the row of a run; ``run_view`` has all that is known of it."""
    report = report_run(context, run)
    return _account(views.RunRow, context, run, report, **_row(run, facts_of(context, run)))


def run_view(context: Context, run: RunState) -> views.RunView:
    return _view(views.RunView, context, run)


def run_ended(context: Context, run: RunState) -> views.RunEnded:
    return _view(views.RunEnded, context, run)


def statuses(context: Context, runs: Sequence[RunState], did: Sequence[Any]) -> views.Statuses:
    return views.Statuses(
        runs=tuple(run_view(context, run) for run in runs),
        damaged=tuple(map(damaged_run, context.ledger.read().quarantined.values())),
        done=tuple(map(done_note, did)),
    )


def _row(run: RunState, facts: Run) -> dict[str, Any]:
    command, beat, generation = run.spec.command, facts.training, run.generation
    score = beat.val_bpb if beat is not None else None
    via = traits_of(generation.provider).route.via if generation is not None else ""
    overspend = facts.max_overspend
    return {
        "at_most_usd": facts.money.at_most,
        "spent_usd": facts.money.proven,
        "step": beat.step if beat is not None else None,
        "val_bpb": score if command is None else None,
        "metric": own_metric(command, score),
        "reported_by": mark_reported(run, beat).source if beat is not None else None,
        "via": via or None,
        "unasked": facts.unasked,
        "guards": tuple(filled(views.Guard, x, message=x.detail) for x in facts.layers),
        "max_overspend_usd": overspend.amount if run.live else None,
        "fetched": tuple(filled(views.FetchedTo, each) for each in run.fetched),
        "notes": (note("max_overspend", overspend.text),) if run.live else (),
    }


def _view(kind: type[_View], context: Context, run: RunState) -> _View:
    facts, report = facts_of(context, run), report_run(context, run)
    row, beat = _row(run, facts), facts.training
    low = low_balance_of(context, run)
    verdicts = {
        phase: gate_verdict(run, phase, told) for phase, told in verdicts_of(context, run).items()
    }
    notes = [*_money_notes(context, run, facts), *_machine_notes(context, run)]
    notes += [
        note("unread_verdict", "its verdict cannot be read", phase=phase)
        for phase, verdict in verdicts.items()
        if verdict is None
    ]
    notes += [note("resumed", text, what=name) for name, text in resumed_rows(run)]
    if facts.clock:
        notes.append(note("clock", facts.clock))
    view = {
        "notes": (*row.pop("notes"), *notes),
        "rate_per_hour_usd": facts.money.rate,
        "lands_at": facts.lands_at,
        "hard_stop_at": facts.killed_at,
        "training": None if beat is None else filled(views.Beat, beat, heard_at=beat.at),
        "next_usd_buys_bpb": beat.next_usd_buys if beat is not None else None,
        "next_hour_buys_bpb": beat.next_hour_buys if beat is not None else None,
        "reason": reason_note(run.reason),
        "waits_for": reason_note(facts.waits_for),
        "waits_until_at": facts.waits_until,
        "balance": None if low is None else filled(views.LowBalance, low),
        "failed_boots": len(failed_boots(run)),
        "failed_boots_usd": spent_on_boots(run),
        "latest": _checkpoint(run, report.latest),
        "own_best": _checkpoint(run, report.own_best),
        "verdicts": tuple(filter(None, verdicts.values())),
        "health": symptoms(context, run),
        "precision": formats_of(context, run),
        "recoveries": _recoveries(context, run),
        "sweep": _sweep(context, run),
    }
    return _account(kind, context, run, report, **row, **view)


def resumed_rows(run: RunState) -> list[tuple[str, str]]:
    """Return rows: the settings with which a reopened run continues, and accepted changes."""
    if run.resumed is None:
        return []
    rows = [
        (f"{phase} from here", ", ".join(f"{key} = {value}" for key, value in settings.items()))
        for phase, settings in run.resumed.settings.items()
    ]
    if run.resumed.processes:
        rows.append(("processes", f"{run.resumed.processes} from here on"))
    if run.resumed.accepted:
        changes = (f"{key} {was} → {now}" for key, (was, now) in run.resumed.accepted.items())
        rows.append(("accepted", f"{', '.join(changes)}: a different training from here on"))
    return rows


def _money_notes(context: Context, run: RunState, facts: Run) -> Iterator[views.Note]:
    """Yield notes on whose money it is, how it ended, and why it may cost more."""
    if run.creator or run.payer.principal:
        pays = f", resumed by {run.payer.principal or OWNER}, who pays for it"
        resumed = run.payer.principal != run.creator
        yield note("principal", (run.creator or OWNER) + (pays if resumed else ""))
    if run.outcome is not None:
        yield note("meaning", meaning_of(run, run.outcome))
    if facts.money.at_most > facts.money.proven:
        yield note("unproven", _why_unproven(context, run))
    yield from volume_notes(context.ledger.read(), context.wall(), run.run_id)
    if any(is_brokered(generation.provider) for generation in run.generations):
        yield note("estimate", "an estimate from catalogue prices and time, not a provider's bill")


def _why_unproven(context: Context, run: RunState) -> str:
    """Return why a run may have cost more than is proven."""
    strays = context.ledger.read().strays_of(run.run_id)
    pods = [f"{stray.pod_id}, an orphaned pod" for stray in strays if stray.billed is None]
    if awaiting_bill(run) or run.state is State.SETTLING:
        pods.insert(0, "its pod")
    if pods:
        return f"until the bill is final of {' and '.join(pods)}"
    return "counted from the request for its pod"


def _machine_notes(context: Context, run: RunState) -> Iterator[views.Note]:
    """Yield notes on a run's machine: what is in its way, its pace, and how to reach it."""
    now, generation = context.wall(), run.generation
    via = traits_of(generation.provider).route.via if generation is not None else ""
    driver = context.ledger.driver(run.run_id)
    if run.live and is_unasked(context, run):
        report = last_report(context, run)
        heard = "it has not reported yet"
        if report is not None:
            heard = f"last report {duration(max(0.0, now - report.at))} ago"
        yield note("not_asked", f"{via} and the pod; {heard}: status --live")
    if run.live and (place := home_of(context, run, driver)):
        yield note("home", f"{place}; its files are there")
    waiting = waits_for(context, run)
    if waiting is not None:
        yield note("waits", waiting_words(waiting, now))
    if is_waiting(run) and not is_driven(context, driver):
        yield note("asks", f"only the guard asks now; trmcloud logs -f {run.run_id}")
    link = link_trouble(context, run)
    for each in conditions_of(context, run, now):
        if each.name in _IN_THE_WAY:
            more = link.next_step if link is not None and each.name == LINK else ""
            yield note(_IN_THE_WAY[each.name], each.text, more)
    if low := low_balance_of(context, run):
        yield note("balance", low_balance(low, now))
    if generation is not None and (board := reason_note(generation.board)) is not None:
        yield board
    if run.paces:
        from trmcloud.operations.narration import pace_lines  # a table of runs needs none

        first, *more_lines = pace_lines(run, run.paces[-1])
        yield note("measured", first)
        yield from (note("slow", line) for line in more_lines)
    if told := data_progress_text(context, run):
        yield note("data", told)
    if run.live and via:
        yield note("host_key", f"the pod's key is pinned; {via}'s first hop is not")
    if run.live and generation is not None and is_brokered(generation.provider):
        if told := context.machines.computes[generation.provider].on_machine(generation.pod_name):
            yield note("on_machine", told)
        yield from (note("by_hand", line) for line in by_hand(context, run))
    if run.stop is not None and run.live:
        yield note("end" if run.stop.at_once else "land", sentence(run.stop.reason))
    for label, why in context.files.damaged(run.run_id):
        yield note("damaged_checkpoint", why, checkpoint=label)


_IN_THE_WAY = {LINK: "link", BOOT_LOG: "boot", BUCKET: "bucket"}
"""Conditions that are noted, and the codes of their notes."""


def symptoms(context: Context, run: RunState) -> tuple[views.Symptom, ...]:
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
            notes=(
                note("trouble", trouble_text(each)),
                note("remedy", remedy_text(each)),
                note("lost", loss_text(each)),
            ),
        )
        for each in recoveries_of(context, run)
    )


def launched(
    context: Context, run: RunState, *, detached: bool, existing: bool = False
) -> views.Launched:
    generation, chosen, money = run.generation, run.chosen, money_of(context, run)
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
        spent_usd=money.proven,
        rate_per_hour_usd=money.rate,
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


def gate_verdict(run: RunState, phase: str, told: Mapping[str, Any]) -> views.GateVerdict | None:
    """Return a gate's verdict; None where it cannot be read: an earlier version kept whatever a pod
    called its verdict."""
    try:
        verdict = verdict_from_json(told)
    except ContractError:
        return None
    return views.GateVerdict(
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


def saved_view(run: RunState, place: Place) -> views.Saved:
    """Return a checkpoint that was asked for."""
    made, command = place.kept, run.spec.command
    return views.Saved(
        run=run.run_id,
        checkpoint=place.label,
        val_bpb=made.val_bpb if command is None else None,
        metric=own_metric(command, made.val_bpb),
        sha256=made.sha256,
        size_bytes=made.size_bytes,
        place=place.at.where or place.at.kind,
        safe=place.is_here,
        kept=place.final,
        reported_by=mark_reported(run, made).source,
    )


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
        "unsure": why_unsure(fetched),
        "rivals": tuple(
            views.FetchedRival(
                checkpoint=rival.manifest.label,
                name=rival.own.path.name if rival.own is not None else "",
                metric=metric_in(rival.manifest),
                sha256=rival.manifest.sha256,
                folder=str(rival.folder),
            )
            for rival in fetched.rivals
        ),
    }


def why_unsure(fetched: FetchedCheckpoint) -> str | None:
    """Return why a fetched checkpoint may not be the best; None where it is known to be."""
    if not fetched.rivals:
        return None
    told = fetched.manifest.own_metric
    name = one_line(told[0])[:40] if told else "its metric"
    if fetched.manifest.is_sure:
        return f"another checkpoint may have the better {name}: its value is a guess"
    return f"{name} was matched to it by the order of log lines and files, which is a guess"


# -- money -----------------------------------------------------------------------------------------


def volume_holds(ledger: LedgerState, now: float, run_id: str = "") -> tuple[views.VolumeHold, ...]:
    """The network volumes of a run, or of all runs."""
    ended = {(over.provider, over.place): over for over in due_volumes(ledger, now)}
    return tuple(
        _hold(hold, ended.get((hold.provider, hold.place)), now)
        for hold in holds(ledger)
        if run_id in ("", hold.run_id)
    )


_THEN = {
    KEEP: "then it is kept, beyond every budget",
    DELETE_FETCHED: "then it is deleted if best and latest were fetched",
    DELETE: "then it is deleted with everything on it",
}


def volume_notes(ledger: LedgerState, now: float, run_id: str = "") -> list[views.Note]:
    """Return a note on each volume, of one run's or of all: its reservation and its end; where that
    day has passed, its cost since then, why it is kept, and the command that deletes it."""
    mine: dict[tuple[str, str, str], list[Hold]] = {}
    for hold in holds(ledger):
        if hold.deleted_at is None and hold.rate and run_id in ("", hold.run_id):
            mine.setdefault((hold.run_id, hold.provider, hold.place), []).append(hold)
    lines = [_reserved(each, now) for each in mine.values() if now < _until(each)]
    places = {(hold.provider, hold.place) for hold in holds(ledger) if hold.run_id == run_id}
    for over in due_volumes(ledger, now):
        if not over.per_day or (run_id and (over.provider, over.place) not in places):
            continue
        why = sentence(over.why_kept) or "it is about to be deleted"
        lines.append(
            f"network volume in {over.place}: {over.per_day} a day beyond every budget since"
            f" {utc_day(over.since)}, {over.beyond(now)} so far: {why};"
            f" trmcloud admin volumes delete {over.place}"
        )
    return [note("volume", line) for line in lines]


def _reserved(mine: Sequence[Hold], now: float) -> str:
    """Return the line of one run's pods on one volume."""
    accrued, amount = total(hold.accrued(now) for hold in mine), total(hold.amount for hold in mine)
    until, then = utc_day(_until(mine)), _THEN.get(mine[-1].then, _THEN[KEEP])
    return (
        f"network volume in {mine[-1].place}: {accrued} of {amount} reserved until {until},"
        f" {mine[-1].per_day} a day; {then}"
    )


def _until(mine: Sequence[Hold]) -> float:
    return max(hold.until for hold in mine)


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


class Totals(NamedTuple):
    """Sums over runs. ``billed`` is of those whose bill is known; ``unbilled`` are the others.
    ``drift``: of the known bills, against what was accrued; None where nothing was."""

    planned: Usd
    accrued: Usd
    billed: Usd
    at_most: Usd
    unbilled: int
    drift: float | None

    @property
    def is_open(self) -> bool:
        return self.at_most > self.accrued

    @property
    def is_alarming(self) -> bool:
        return self.drift is not None and abs(self.drift) > DRIFT_ALARM


def totals_of(accounts: Sequence[views.RunAccount]) -> Totals:
    known = [each for each in accounts if each.billed_usd is not None]
    billed = total(each.billed_usd for each in known if each.billed_usd is not None)
    counted, accrued = (total(each.accrued_usd for each in some) for some in (known, accounts))
    return Totals(
        planned=total(each.planned_usd for each in accounts),
        accrued=accrued,
        billed=billed,
        at_most=total(each.at_most_usd for each in accounts),
        unbilled=len(accounts) - len(known),
        drift=billed.micros / counted.micros - 1 if counted else None,
    )
