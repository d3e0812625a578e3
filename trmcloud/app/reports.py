"""Gathering what ``status`` and ``report`` show."""

from __future__ import annotations

from dataclasses import replace

from trmcloud.app.watching import data_told, last_report
from trmcloud.app.world import World
from trmcloud.core.clock import Seen
from trmcloud.core.kept_volumes import holds_of, is_deleted
from trmcloud.core.money import total
from trmcloud.core.report import RunReport, Spending, report_on, spending_of
from trmcloud.core.run_state import RunState


def first_bpb(world: World, run_id: str, phase: str) -> float | None:
    for line in world.files.metrics(run_id, phase):
        value = line.get("val_bpb")
        if line.get("kind") == "eval" and isinstance(value, float):
            return value
    return None


def report_run(world: World, run: RunState) -> RunReport:
    """One run's report, with the live phase's seconds where it is being trained."""
    manifests = list(world.files.manifests(run.run_id))
    if run.bucket:
        from trmcloud.app.bucket_checkpoints import known_there

        manifests += known_there(world, run)
    phases = world.files.phases(run.run_id)
    last = phases[-1] if phases else None
    live = None
    if run.live and last is not None:
        beat = world.files.heartbeat(run.run_id, last)
        accounted = {account.phase for account in run.phase_accounts}
        if beat is not None and last not in accounted:
            live = beat.seconds
    best_phase = [m for m in manifests if m.phase == last] or list(manifests)
    ledger = world.ledger.read()
    report = report_on(
        run,
        best_phase,
        world.wall(),
        live_seconds=live,
        first_bpb=first_bpb(world, run.run_id, last) if last is not None else None,
        strays=ledger.strays_of(run.run_id),
        data_told=data_told(world, run),
    )
    gone = report.on_volume and is_deleted(ledger, run.run_id)
    return replace(report, on_volume=False) if gone else report


def spending(world: World, run: RunState) -> Spending:
    """What the run has cost by now: as far as it is proven, and at most."""
    now = world.wall()
    ledger = world.ledger.read()
    strays = ledger.strays_of(run.run_id)
    spent = spending_of(run, now, shown_at=_shown_at(world, run, now), strays=strays)
    rent = total(hold.accrued(now) for hold in holds_of(ledger, run.run_id))
    return Spending(spent.proven + rent, spent.at_most + rent)


def _shown_at(world: World, run: RunState, now: float) -> float | None:
    """When the run's present pod was last seen: in a list of this process, or by its own word."""
    generation = run.generation
    if generation is None:
        return None
    listed = world.listed.get(generation.provider)
    if isinstance(listed, Seen):
        return listed.at
    report = last_report(world, run)
    heard_at = report.at if report is not None else 0.0
    return max(min(heard_at, now), generation.agent_at or 0.0, generation.up_at or 0.0)
