"""A receipt's account: all that it says of a run, from its sources alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trmcloud.core import codec
from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.control import events as ev
from trmcloud.core.control.billing import awaiting_bill
from trmcloud.core.control.budget import LedgerState, fold_ledger
from trmcloud.core.control.curve_points import Point
from trmcloud.core.control.kept_volumes import holds_of
from trmcloud.core.control.paid_time import hours_at, spent_at
from trmcloud.core.control.reason import Reason
from trmcloud.core.control.receipt_sources import Sources, manifests_of, records_of
from trmcloud.core.control.report import report_on
from trmcloud.core.control.run_state import Generation, RunState, State
from trmcloud.core.errors import ReceiptError
from trmcloud.core.money import Usd, total


def account_of(run_id: str, sources: Sources, made_at: float) -> dict[str, Any]:
    """All that a receipt says of a run at ``made_at`` (epoch s), from its sources alone.

    Raises:
        ReceiptError, ValueError: the sources contradict one another.
    """
    records = records_of(sources)
    ledger = fold_ledger(sources.ledger.ledger_id, records)
    run = ledger.runs.get(run_id)
    if run is None or run.recorded_plan is None:
        raise ReceiptError(f"its records do not say what {run_id} was to be")
    manifests = manifests_of(sources)
    return {
        "run": run_id,
        "project": run.project,
        "state": run.state.value,
        "final": run.state is State.CLOSED and not awaiting_bill(run),
        "asked": codec.to_json(run.spec),
        "planned": _planned(run),
        "money": _money(ledger, run, manifests, made_at),
        "machines": [_machine(run, generation, made_at) for generation in run.generations],
        "ended": _ended(run, records),
        "phases": [codec.to_json(account) for account in run.phase_accounts],
        "gates": {name: dict(judged.verdict) for name, judged in run.gates.items()},
        "timeline": [_moment(run, record) for record in records if _is_told(record)],
        "curves": [_drawn(run, point) for point in sources.curves],
        "checkpoints": _checkpoints(manifests),
    }


def _planned(run: RunState) -> dict[str, Any]:
    plan, chosen = run.plan, run.chosen
    made: dict[str, Any] = {
        "plan": plan.id,
        "made_at": plan.created_at,
        "cap_usd": run.cap.plain(),
        "reservation_usd": plan.reservation.plain(),
        "checkpoints_in": plan.survives,
    }
    if chosen is None:
        return made
    return made | {
        "hardware": chosen.hardware,
        "sku": chosen.sku,
        "provider": chosen.provider,
        "region": chosen.region,
        "rate_usd_per_hour": chosen.rate.plain(),
        "most_rate_usd_per_hour": chosen.reserved_rate.plain(),
        "cost_usd": {"p50": chosen.cost_p50.plain(), "p90": chosen.cost_p90.plain()},
        "worst_case_usd": chosen.worst_case.plain(),
        "hours": chosen.hours.to_json(),
        "soft_stop_s": chosen.soft_stop_s,
        "hard_stop_s": chosen.hard_stop_s,
        "phases": [
            {"phase": p.name, "steps": p.settings.steps, "tokens": p.tokens} for p in chosen.phases
        ],
    }


def _money(
    ledger: LedgerState, run: RunState, manifests: Sequence[CheckpointManifest], now: float
) -> dict[str, Any]:
    strays = ledger.strays_of(run.run_id)
    report = report_on(run, manifests, now, strays=strays)
    rent = total(hold.amount for hold in holds_of(ledger, run.run_id))
    return {
        "planned_usd": report.planned.plain(),
        "cap_usd": run.cap.plain(),
        "reserved_usd": run.reservation.plain(),
        "held_usd": run.reserved.plain(),
        "accrued_usd": report.accrued.plain(),
        "billed_usd": None if report.billed is None else report.billed.plain(),
        "settled_usd": run.settled.plain(),
        "at_most_usd": report.at_most.plain(),
        "unproven_usd": run.unbilled.plain(),
        "orphans_usd": total(stray.cost for stray in strays).plain(),
        "volumes_usd": rent.plain(),
        "bucket_usd": run.oversized_rent.plain(),
        "drift": report.drift,
        "paid_seconds": report.paid_s,
        "seconds": dict(report.seconds),
    }


def _machine(run: RunState, generation: Generation, now: float) -> dict[str, Any]:
    candidate = run.candidate(generation.candidate_id)
    until = generation.ended_at if generation.ended_at is not None else now
    return {
        "generation": generation.number,
        "pod": generation.pod_name,
        "provider": generation.provider,
        "region": candidate.region if candidate is not None else "",
        "hardware": candidate.hardware if candidate is not None else "",
        "rate_usd_per_hour": generation.rate.plain(),
        "billed_rate_usd_per_hour": _plain(generation.billed_rate),
        "asked_for_at": generation.intended_at,
        "ended_at": generation.ended_at,
        "seconds": 0.0 if generation.not_made else max(0.0, until - generation.intended_at),
        "settled_usd": _plain(generation.settled),
        "billed_usd": _plain(generation.billed),
        "not_made": _reason(generation.not_made),
        "unfit": _reason(generation.unfit),
    }


def _ended(run: RunState, records: Sequence[ev.Record]) -> dict[str, Any]:
    stop = run.stop
    closed_at = [record.at for record in records if isinstance(record.event, ev.Closed)]
    return {
        "outcome": run.outcome.value if run.outcome is not None else None,
        "at": closed_at[-1] if closed_at and run.state is State.CLOSED else None,
        "reason": _reason(run.reason),
        "asked_by": stop.by if stop is not None else None,
        "asked_why": _reason(stop.reason) if stop is not None else None,
    }


_TOLD = (
    ev.Reserved, ev.PodIntended, ev.PodUp, ev.PodNotMade, ev.AgentUp, ev.PhaseEnded, ev.GateJudged,
    ev.StopRequested, ev.SaveRequested, ev.ResultKnown, ev.PodGone, ev.Settled, ev.Billed,
    ev.PlanRevised, ev.Reopened, ev.Fetched, ev.Closed, ev.PodMissed, ev.PodFound, ev.StrayCharged,
)  # fmt: skip


def _is_told(record: ev.Record) -> bool:
    return isinstance(record.event, _TOLD)


def _moment(run: RunState, record: ev.Record) -> dict[str, Any]:
    event = record.event
    made = {
        "at": record.at,
        "what": type(event).__name__,
        "usd": spent_at(run, record.at).plain(),
        "seq": record.seq,
    }
    for name in ("phase", "generation", "amount", "rate", "passed", "outcome", "result", "by"):
        value = getattr(event, name, None)
        if value is not None:
            made[name] = value.plain() if isinstance(value, Usd) else value
    return made


def _drawn(run: RunState, point: Point) -> dict[str, Any]:
    return {
        "phase": point.phase,
        "kind": point.kind,
        "step": point.step,
        "hours": round(hours_at(run, point.at), 6),
        "usd": spent_at(run, point.at).plain(),
        "value": point.value,
        "steps": list(point.steps),
    }


def _checkpoints(manifests: Sequence[CheckpointManifest]) -> dict[str, Any]:
    latest = mf.pick_latest(manifests)
    best = mf.pick_best([m for m in manifests if latest is not None and m.phase == latest.phase])
    named = {"best": best, "latest": latest}
    return {
        "all": [_checkpoint(m) for m in sorted(manifests, key=lambda m: (m.created_at, m.label))],
        **{name: m.label if m is not None else None for name, m in named.items()},
    }


def _checkpoint(made: CheckpointManifest) -> dict[str, Any]:
    about = made.extra.get(mf.PROVENANCE)
    return {
        "checkpoint": made.label,
        "step": made.step,
        "val_bpb": made.val_bpb,
        "weights_sha256": made.sha256,
        "size_bytes": made.size_bytes,
        "files": {file.name: file.sha256 for file in made.files},
        "data_sha256": made.data_sha256,
        "tokenizer_sha256": made.tokenizer_sha256,
        "provenance": dict(about) if isinstance(about, Mapping) else None,
    }


def _reason(reason: Reason | None) -> dict[str, Any] | None:
    return None if reason is None else codec.to_json(reason)


def _plain(amount: Usd | None) -> str | None:
    return None if amount is None else amount.plain()
