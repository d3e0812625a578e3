"""Gathering what ``status`` and ``report`` show."""

from __future__ import annotations

from trmcloud.app.checkpoints.fetching import of_last_phase
from trmcloud.app.context import Context
from trmcloud.app.run_queries import data_told, last_report
from trmcloud.core.clock import Seen
from trmcloud.core.control.ledger_facts import holds_of, is_deleted
from trmcloud.core.control.report import RunReport, Spending, report_on, spending_of
from trmcloud.core.control.run_state import RunState
from trmcloud.core.money import total
from trmcloud.core.values import replace


def first_bpb(context: Context, run_id: str, phase: str) -> float | None:
    for line in context.files.metrics(run_id, phase):
        value = line.get("val_bpb")
        if line.get("kind") == "eval" and isinstance(value, float):
            return value
    return None


def report_run(
    context: Context, run: RunState, speeds: tuple[float, float] | None = None
) -> RunReport:
    """One run's report, with the live phase's seconds where it is being trained. ``speeds``:
    tokens a second, planned and measured."""
    manifests = list(context.files.manifests(run.run_id))
    if run.bucket:
        from trmcloud.app.checkpoints.in_bucket import known_there

        manifests += known_there(context, run)
    phases = context.files.phases(run.run_id)
    last = phases[-1] if phases else None
    live = None
    if run.live and last is not None:
        beat = context.files.heartbeat(run.run_id, last)
        accounted = {account.phase for account in run.phase_accounts}
        if beat is not None and last not in accounted:
            live = beat.seconds
    ledger = context.ledger.read()
    report = report_on(
        run,
        of_last_phase(manifests),
        context.wall(),
        live_seconds=live,
        first_bpb=first_bpb(context, run.run_id, last) if last is not None else None,
        strays=ledger.strays_of(run.run_id),
        data_told=data_told(context, run),
        tokens_per_s=speeds,
    )
    gone = report.on_volume and is_deleted(ledger, run.run_id)
    return replace(report, on_volume=False) if gone else report


def spending(context: Context, run: RunState) -> Spending:
    """What the run has cost by now: as far as it is proven, and at most."""
    now = context.wall()
    ledger = context.ledger.read()
    strays = ledger.strays_of(run.run_id)
    spent = spending_of(run, now, shown_at=_shown_at(context, run, now), strays=strays)
    rent = total(hold.accrued(now) for hold in holds_of(ledger, run.run_id))
    return Spending(spent.proven + rent, spent.at_most + rent)


def _shown_at(context: Context, run: RunState, now: float) -> float | None:
    """When the run's present pod was last seen: in a list of this process, or by its own word."""
    generation = run.generation
    if generation is None:
        return None
    listed = context.listed.get(generation.provider)
    if isinstance(listed, Seen):
        return listed.at
    report = last_report(context, run)
    heard_at = report.at if report is not None else 0.0
    return max(min(heard_at, now), generation.agent_at or 0.0, generation.up_at or 0.0)
