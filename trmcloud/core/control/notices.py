"""Which notices follow from a ledger and from what is seen beside it. Pure.

Facts of the ledger are told once they are on record, from a cursor on; what is a matter of how
things stand now (a cap that is nearly used up, a reaper that is silent, what agents report) follows
anew at each look, under the same id as long as it is the same fact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.contract.command import shown_metric
from trmcloud.core.contract.notices import (
    TROUBLE_PATH,
    UNFIT,
    Fact,
    Notice,
    NoticeKind,
    notices_of,
    run_fact_id,
)
from trmcloud.core.contract.pod_contract import AgentReport
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import PROJECT_MONTH, LedgerState, counts_towards, project_month
from trmcloud.core.control.continuing import continues
from trmcloud.core.control.controller import foreseen_end
from trmcloud.core.control.grants import money_of, month_of
from trmcloud.core.control.observation import POD
from trmcloud.core.control.reason import ReasonKind, kind_of
from trmcloud.core.control.report import spent_so_far
from trmcloud.core.control.run_book import present_runs
from trmcloud.core.control.run_state import RunState, State, apply_event
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.values import dataclass

SHARES = (95, 80, 50)
"""Percent of a cap at which a notification is sent, the highest first: after 95 % there is none
of 50 %."""
MISSED_VISITS = 3
"""A reaper that has missed so many of its rounds is silent."""
MOST_TROUBLES = 24
"""Of one machine: its agent's report may be hostile, and must not flood a destination."""


@dataclass(frozen=True)
class ReaperVisit:
    """When a reaper came by last (epoch s), how often it should (s), and on which machine."""

    at: float
    every_s: float
    machine: str


@dataclass(frozen=True)
class TrainingFinding:
    """A finding of ``core.health`` about the phase that a run trains now."""

    run_id: str
    phase: str
    rule: str
    step: int


@dataclass(frozen=True)
class NoticeInputs:
    """Observations beside the ledger: agents' last reports by their pods' names, a reaper's last
    visit, and findings in the numbers of running trainings."""

    reports: Mapping[str, AgentReport] = field(default_factory=dict)
    visit: ReaperVisit | None = None
    symptoms: tuple[TrainingFinding, ...] = ()


def due_notices(
    ledger: LedgerState,
    records: Sequence[ev.Record],
    after_seq: int,
    observed: NoticeInputs,
    now: float,
) -> tuple[Notice, ...]:
    """Every notice that follows now: those of records after ``after_seq``, and how things stand.

    Args:
        records: all of the ledger's.
        now: epoch s.
    """
    new = [record for record in records if record.seq > after_seq]
    told = [*_of_records(ledger, records, new)]
    touched = {record.run_id for record in new}
    live = [run for run in present_runs(ledger.runs) if run.live or run.run_id in touched]
    at_rest = touched - {run.run_id for run in live}
    live += [ledger.runs[run_id] for run_id in sorted(at_rest) if run_id in ledger.runs]
    for run in live:
        told += _of_report(ledger, run, observed)
    told += _of_symptoms(ledger, observed.symptoms, now)
    told += _of_caps(ledger, live, now)
    told += _of_reaper(ledger, observed.visit, now)
    return tuple({notice.id: notice for notice in reversed(told)}.values())[::-1]


# -- facts of the ledger --------------------------------------------------------------------------
def _of_records(
    ledger: LedgerState, records: Sequence[ev.Record], new: Sequence[ev.Record]
) -> Iterable[Notice]:
    fresh = {record.seq for record in new}
    seen: set[tuple[str, str]] = set()
    runs = {record.run_id: RunState(record.run_id) for record in new if record.run_id}
    for record in records:
        event = record.event
        if isinstance(event, ev.StrayCharged):
            pod = event.provider, event.pod_id
            if record.seq in fresh and pod not in seen:
                yield _orphan(ledger, event, record.at)
            seen.add(pod)
        elif isinstance(event, ev.ApprovalAsked):
            asked = ledger.approvals.get(event.id)
            if record.seq in fresh and asked is not None and asked.is_given is None:
                yield _approval(ledger, event, record.at)
        elif isinstance(event, ev.BalanceLow):
            if record.seq in fresh and event.hours:
                yield _low_balance(ledger, event, record)
        elif record.run_id in runs:
            before = runs[record.run_id]
            after = runs[record.run_id] = apply_event(before, record)
            if record.seq in fresh:
                yield from _of_event(ledger, before, after, record)


def _of_event(
    ledger: LedgerState, before: RunState, after: RunState, record: ev.Record
) -> Iterable[Notice]:
    """Make the notices of one event of a run, from the run's states before and after it."""
    event, at, generation = record.event, record.at, after.generation
    number = generation.number if generation is not None else 0

    def made(kind: NoticeKind, path: str, /, **facts: Fact | Usd) -> Notice:
        kept = {k: v.plain() if isinstance(v, Usd) else v for k, v in facts.items()}
        fact_id = run_fact_id(ledger.ledger_id, after.run_id, number, path)
        return Notice(fact_id, kind, after.run_id, at, kept)

    if before.errand is not None:
        return  # a machine that only brings checkpoints home
    if isinstance(event, ev.PodUp):
        planned = after.generations[event.generation - 1].rate
        if event.rate > planned:
            rates = {"planned_usd_per_hour": planned, "billed_usd_per_hour": event.rate}
            yield made(NoticeKind.PRICE, "price", **rates)
    elif isinstance(event, ev.PlanRevised):
        earlier, later = before.chosen, after.chosen
        if event.reason.kind is ReasonKind.MACHINE_LOST and later is not None:
            goes_on = {"continues_at": later.provider, "hardware": later.hardware}
            yield made(NoticeKind.LOST, "lost", **_lost_facts(after, at), **goes_on)
        if earlier is not None and later is not None and later.rate != earlier.rate:
            yield made(
                NoticeKind.PRICE,
                f"price/{event.candidate_id}",
                planned_usd_per_hour=earlier.rate,
                billed_usd_per_hour=later.rate,
                hardware=later.hardware,
            )
    elif isinstance(event, ev.PaceMeasured) and event.slow is not None:
        what = event.slow.kind.value  # one notice for each, as of a training's health
        said: dict[str, Fact] = {"phase": event.phase, "what": what, "step": event.step}
        yield made(
            NoticeKind.TROUBLE,
            f"{TROUBLE_PATH}/{event.phase}/{what}",
            **said,
            mended=False,
            **_by_pod(after),
        )
    elif isinstance(event, ev.GateJudged):
        told: dict[str, Fact] = {"phase": event.phase, "passed": event.passed}
        yield made(NoticeKind.GATE, f"gate/{event.phase}", **told, **_by_pod(after))
    elif isinstance(event, ev.ResultKnown):
        if after.move is not None and generation is not None and continues(after, after.plan):
            return  # it has landed for another machine: the run has not ended
        if event.result == Outcome.UNFIT.value:
            yield made(NoticeKind.TROUBLE, UNFIT, what=UNFIT, mended=False, **_by_pod(after))
        else:
            yield made(NoticeKind.ENDED, "ended", **_end_facts(after, event.result, at))
    elif isinstance(event, ev.PodGone) and after.result is None:
        if _foreseen(after) in _LOST:
            yield made(NoticeKind.LOST, "lost", **_lost_facts(after, at))
    elif isinstance(event, ev.Closed):
        if event.outcome in _LOST:
            yield made(NoticeKind.LOST, "lost", **_lost_facts(after, at))
        else:
            yield made(NoticeKind.ENDED, "ended", **_end_facts(after, event.outcome, at))


_LOST = (Outcome.LOST.value, Outcome.UNREPORTED.value)


def _foreseen(run: RunState) -> str:
    """Return the outcome expected once its bill is final; '' while that is open."""
    generation = run.generation
    if generation is None:
        return ""
    end = foreseen_end(run, run.plan, traits_of(generation.provider))
    return end.outcome if end is not None else ""


def _end_facts(run: RunState, outcome: str, at: float) -> dict[str, Fact | Usd]:
    facts: dict[str, Fact | Usd] = {
        "outcome": outcome,
        "spent_usd": spent_so_far(run, at),
        "cap_usd": run.cap,
    }
    last = run.phase_accounts[-1] if run.phase_accounts else None
    if last is not None:
        facts["phase"] = last.phase
        if last.step is not None:
            facts["step"] = last.step
        command = run.spec.command if run.recorded_plan is not None else None
        if command is not None:
            facts["kind"] = kind_of(run.spec)
        value = shown_metric(command, last.val_bpb)
        if value is not None:
            facts["val_bpb" if command is None else "value"] = value
        if command is not None and command.metric_name:
            facts["metric"] = command.metric_name
        facts |= _by_pod(run)
    return facts


def _by_pod(run: RunState) -> dict[str, Fact]:
    """Return the source of a fact that the pod reported; empty where the run trained on this
    machine."""
    return {} if run.trained_here else {"reported_by": POD}


def _lost_facts(run: RunState, at: float) -> dict[str, Fact | Usd]:
    generation = run.generation
    return {
        "pod": generation.pod_name if generation is not None else "",
        "provider": generation.provider if generation is not None else "",
        "spent_usd": spent_so_far(run, at),
        "cap_usd": run.cap,
    }


def _orphan(ledger: LedgerState, event: ev.StrayCharged, at: float) -> Notice:
    facts: dict[str, Fact] = {
        "provider": event.provider,
        "pod": event.pod_name,
        "pod_id": event.pod_id,
        "at_most_usd": event.amount.plain(),
    }
    fact_id = f"{ledger.ledger_id}/orphan/{event.provider}/{event.pod_id}"
    return Notice(fact_id, NoticeKind.ORPHAN, event.run_id, at, facts)


def _low_balance(ledger: LedgerState, event: ev.BalanceLow, record: ev.Record) -> Notice:
    facts: dict[str, Fact] = {
        "provider": event.provider,
        "hours": event.hours,
        "balance_usd": event.balance.plain(),
        "spending_usd_per_hour": event.spending.plain(),
        "left_s": round(max(0.0, event.ends_at - record.at)),
    }
    fact_id = f"{ledger.ledger_id}/balance/{event.provider}/{record.seq}"
    return Notice(fact_id, NoticeKind.BALANCE, "", record.at, facts)


def _approval(ledger: LedgerState, event: ev.ApprovalAsked, at: float) -> Notice:
    grant = ledger.grants.get(event.principal)
    held = money_of(ledger, grant).whole if grant is not None else ZERO
    wider = {
        "per_run_usd": event.per_run.plain() if event.per_run is not None else "",
        "per_day_usd": event.per_day.plain() if event.per_day is not None else "",
        "per_month_usd": event.per_month.plain() if event.per_month is not None else "",
        "hardware": ", ".join(event.hardware),
        "providers": ", ".join(event.providers),
    }
    facts: dict[str, Fact] = {
        "request": event.id,
        "principal": event.principal,
        "why": event.why,
        "more_usd": event.more.plain(),
        "total_usd": grant.terms.total.plain() if grant is not None else "0",
        "spent_or_reserved_usd": held.plain(),
        "runs_at_once": event.runs_at_once,
        **{name: text for name, text in wider.items() if text},
    }
    return Notice(f"{ledger.ledger_id}/approval/{event.id}", NoticeKind.APPROVAL, "", at, facts)


# -- how things stand -----------------------------------------------------------------------------
def _of_report(ledger: LedgerState, run: RunState, observed: NoticeInputs) -> Iterable[Notice]:
    """Make the notices of its present pod's report: only about this run and this pod."""
    generation = run.generation
    report = observed.reports.get(generation.pod_name) if generation is not None else None
    if generation is None or report is None or run.errand is not None:
        return
    if (report.pod_name, report.run_id) != (generation.pod_name, run.run_id):
        return
    mine = run_fact_id(ledger.ledger_id, run.run_id, generation.number, "")
    for notice in notices_of(report):
        # How a run ended is on record before it is told: there it has its price.
        if notice.id.startswith(mine) and notice.kind is not NoticeKind.ENDED:
            facts = {**notice.facts, **_by_pod(run)}
            yield Notice(notice.id, notice.kind, notice.run_id, notice.at, facts)


def _of_symptoms(
    ledger: LedgerState, symptoms: Iterable[TrainingFinding], now: float
) -> Iterable[Notice]:
    for symptom in symptoms:
        run = ledger.runs.get(symptom.run_id)
        number = run.generation.number if run is not None and run.generation is not None else 0
        path = f"{TROUBLE_PATH}/{symptom.phase}/{symptom.rule}"
        fact_id = run_fact_id(ledger.ledger_id, symptom.run_id, number, path)
        facts: dict[str, Fact] = {
            "phase": symptom.phase,
            "what": symptom.rule,
            "step": symptom.step,
            "mended": False,
            **(_by_pod(run) if run is not None else {}),
        }
        yield Notice(fact_id, NoticeKind.TROUBLE, symptom.run_id, now, facts)


def _of_caps(ledger: LedgerState, live: Sequence[RunState], now: float) -> Iterable[Notice]:
    """Of each cap that a live run counts towards, the highest share that is spent of it."""
    for run in live:
        yield from _of_cap(ledger, "run", run.run_id, run.cap, spent_so_far(run, now), now)
    months = {month_of(run.reserved_at) for run in live if run.reserved_at}
    lines = [("account", "")] if live else []
    lines += [("month", month) for month in sorted(months)]
    lines += [("project", name) for name in sorted({run.project for run in live})]
    lines += [
        (PROJECT_MONTH, key)
        for key in sorted(
            {project_month(r.project, month_of(r.reserved_at)) for r in live if r.reserved_at}
        )
    ]
    for level, key in lines:
        cap = ledger.cap_of(level, key)
        if cap is None:
            continue
        spent = ledger.line(level, key).settled
        for run in present_runs(ledger.runs):
            if run.live and counts_towards(run, level, key):
                spent += spent_so_far(run, now) - run.settled
        yield from _of_cap(ledger, level, key, cap, spent, now)


def _of_cap(
    ledger: LedgerState, level: str, key: str, cap: Usd, spent: Usd, now: float
) -> Iterable[Notice]:
    reached = next((s for s in SHARES if cap > ZERO and spent.micros * 100 >= cap.micros * s), 0)
    if not reached:
        return
    # One that is raised is another cap.
    fact_id = f"{ledger.ledger_id}/cap/{level}/{key or 'all'}/{cap.plain()}/{reached}"
    facts: dict[str, Fact] = {
        "level": level,
        "key": key,
        "percent": reached,
        "spent_usd": spent.plain(),
        "cap_usd": cap.plain(),
    }
    yield Notice(fact_id, NoticeKind.CAP, key if level == "run" else "", now, facts)


def _of_reaper(ledger: LedgerState, visit: ReaperVisit | None, now: float) -> Iterable[Notice]:
    """One that ran by its timer and does so no more, while something is rented."""
    rents = any(
        run.live and run.generation is not None and run.generation.open
        and run.generation.provider != LOCAL
        for run in present_runs(ledger.runs)
    )  # fmt: skip
    if visit is None or not rents or now - visit.at <= MISSED_VISITS * visit.every_s:
        return
    fact_id = f"{ledger.ledger_id}/reaper/{visit.machine}/{int(visit.at)}"
    facts: dict[str, Fact] = {
        "machine": visit.machine,
        "silent_s": round(now - visit.at),
        "every_s": round(visit.every_s),
    }
    yield Notice(fact_id, NoticeKind.REAPER, "", now, facts)


def trains_now(run: RunState) -> bool:
    """Whether its numbers are worth a look."""
    return run.state is State.RUNNING and run.errand is None
