"""Which notices follow from how things stand: a cap that is nearly used up, a reaper that is
silent, what agents report. Pure.

They follow anew at each look, under the same id as long as it is the same fact. The ledger's events
have theirs in ``operations/narration.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.contract.notices import (
    TROUBLE_PATH,
    Fact,
    Notice,
    NoticeKind,
    notices_of,
    run_fact_id,
)
from trmcloud.core.contract.pod_contract import AgentReport
from trmcloud.core.control.budget import PROJECT_MONTH, LedgerState, counts_towards, project_month
from trmcloud.core.control.grants import month_of
from trmcloud.core.control.report import spent_so_far
from trmcloud.core.control.run_book import present_runs
from trmcloud.core.control.run_state import RunState
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.reported import POD
from trmcloud.core.values import Value

SHARES = (95, 80, 50)
"""Percent of a cap at which a notification is sent, the highest first: after 95 % there is none
of 50 %."""
MISSED_VISITS = 3
"""A reaper that has missed so many of its rounds is silent."""
MOST_TROUBLES = 24
"""Of one machine: its agent's report may be hostile, and must not flood a destination."""


class ReaperVisit(Value):
    """When a reaper came by last (epoch s), how often it should (s), and on which machine."""

    at: float
    every_s: float
    machine: str


class NoticeInputs(Value):
    """Observations beside the ledger: agents' last reports by their pods' names, a reaper's last
    visit, and notices of findings in the numbers of running trainings."""

    reports: Mapping[str, AgentReport] = field(default_factory=dict)
    visit: ReaperVisit | None = None
    findings: tuple[Notice, ...] = ()


def standing_notices(
    ledger: LedgerState, runs: Sequence[RunState], observed: NoticeInputs, now: float
) -> Iterable[Notice]:
    """The notices of how things stand.

    Args:
        runs: those that are live, or have changed since the last look.
        now: epoch s.
    """
    for run in runs:
        yield from _of_report(ledger, run, observed)
    # They were found a moment ago: a run that has ended since has none.
    yield from (each for each in observed.findings if ledger.runs[each.run_id].live)
    yield from _of_caps(ledger, runs, now)
    yield from _of_reaper(ledger, observed.visit, now)


def may_follow_again(notice_id: str, ledger: LedgerState, visit: ReaperVisit | None) -> bool:
    """Whether ``standing_notices`` may return the notice of this id once more: as long as a cap is
    the same, a reaper has not been back, or something may still happen to a run."""
    _, kind, rest = (*notice_id.split("/", 2), "", "")[:3]
    if kind == "reaper":
        return visit is not None and rest == _visit_path(visit)
    present = {run.run_id for run in present_runs(ledger.runs)}
    if kind != "cap":
        return kind in present
    level, _, place = rest.partition("/")
    key, _, amount = place.rpartition("/")[0].rpartition("/")
    if level == "run" and key not in present:
        return False
    cap = ledger.cap_of(level, "" if level == "account" else key)
    return cap is not None and cap.plain() == amount


def _visit_path(visit: ReaperVisit) -> str:
    return f"{visit.machine}/{int(visit.at)}"


def finding_notice(
    ledger_id: str, run: RunState, phase: str, what: str, step: int, at: float
) -> Notice:
    """The notice of something that is wrong with a phase's training: one for each ``what``."""
    number = run.generation.number if run.generation is not None else 0
    path = f"{TROUBLE_PATH}/{phase}/{what}"
    facts: dict[str, Fact] = {"phase": phase, "what": what, "step": step, "mended": False}
    fact_id = run_fact_id(ledger_id, run.run_id, number, path)
    return Notice(fact_id, NoticeKind.TROUBLE, run.run_id, at, {**facts, **by_pod(run)})


def by_pod(run: RunState) -> dict[str, Fact]:
    """Return the source of a fact that the pod reported; empty where the run trained on this
    machine."""
    return {} if run.trained_here else {"reported_by": POD}


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
            facts = {**notice.facts, **by_pod(run)}
            yield Notice(notice.id, notice.kind, notice.run_id, notice.at, facts)


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
    fact_id = f"{ledger.ledger_id}/reaper/{_visit_path(visit)}"
    facts: dict[str, Fact] = {
        "machine": visit.machine,
        "silent_s": round(now - visit.at),
        "every_s": round(visit.every_s),
    }
    yield Notice(fact_id, NoticeKind.REAPER, "", now, facts)
