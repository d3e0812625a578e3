"""Receipts: their sources, and the account that follows from these alone. Pure."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Annotated, Any

from trmcloud.core import codec
from trmcloud.core.catalog.goals import Goal, judge_goal
from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract.gate import number_of
from trmcloud.core.contract.manifest import CheckpointManifest, KnownCheckpoint
from trmcloud.core.contract.pod_contract import CheckpointRef
from trmcloud.core.contract.records import (
    ContractError,
    Instant,
    Label,
    Sha256,
    finite,
    formed,
    instant,
    parse,
    record_of,
)
from trmcloud.core.control import events as ev
from trmcloud.core.control.billing import awaiting_bill, hours_at, spent_at
from trmcloud.core.control.budget import LedgerState, fold_ledger
from trmcloud.core.control.ledger_facts import holds_of
from trmcloud.core.control.ledger_records import Link, event_from_json, text_sha256
from trmcloud.core.control.reason import Reason
from trmcloud.core.control.report import report_on
from trmcloud.core.control.run_state import Generation, RunState, State
from trmcloud.core.errors import CheckpointError, ReceiptError
from trmcloud.core.money import Usd, total
from trmcloud.core.sweep.state import state_in
from trmcloud.core.values import Value

# The points of a receipt's curves, from lines of metrics. Pure.

MOST_POINTS = 400
"""Of one phase and kind: a curve that is drawn needs no more."""
TRAIN, EVAL, SAVE, SCORE = "train", "eval", "save", "score"
_VALUE = {TRAIN: "loss", EVAL: "val_bpb", SAVE: ""}


class Point(Value):
    """One logged number. ``value``: nats a token of a training step, bits per byte of an
    evaluation, of a score the metric of the run's goal, None of a save; ``steps``: nats a token
    after each supervision step. ``at`` is epoch seconds by the trainer's clock."""

    phase: str
    kind: str
    step: int
    at: float
    value: float | None = None
    steps: tuple[float, ...] = ()


def points_of(
    phase: str, lines: Iterable[Mapping[str, Any]], metric: str = ""
) -> tuple[Point, ...]:
    """A phase's curve from its lines of metrics, thinned out evenly; the lines may be hostile.
    ``metric``: that of the run's goal, if evaluations log it.

    A training that went back to a checkpoint has logged some steps twice: the later word counts.
    """
    kinds: dict[str, dict[int, Point]] = {kind: {} for kind in (*_VALUE, SCORE)}
    for line in lines:
        kind, step, at = line.get("kind"), line.get("step"), instant(line.get("at"))
        score = number_of(line.get(metric)) if metric and kind in (EVAL, SCORE) else None
        if score is not None and type(step) is int and at is not None:
            kinds[SCORE].pop(step, None)
            kinds[SCORE][step] = Point(phase, SCORE, step, at, score)
        if kind == SCORE:
            continue
        if kind not in kinds or type(step) is not int or at is None:
            continue
        value = number_of(line.get(_VALUE[kind])) if _VALUE[kind] else None
        if value is None and kind != SAVE:
            continue
        losses = line.get("val_step_losses") if kind == EVAL else ()
        steps = tuple(filter(None, map(number_of, losses))) if isinstance(losses, list) else ()
        kinds[kind].pop(step, None)
        kinds[kind][step] = Point(phase, kind, step, at, value, steps)
    kept = [point for rows in kinds.values() for point in _thinned(list(rows.values()))]
    return tuple(sorted(kept, key=lambda point: (point.at, point.step, point.kind)))


def _thinned(rows: Sequence[Point]) -> Sequence[Point]:
    if len(rows) <= MOST_POINTS:
        return rows
    last = len(rows) - 1
    return [rows[round(n * last / (MOST_POINTS - 1))] for n in range(MOST_POINTS)]


# What a receipt is made of: a run's records with their place in the ledger's chain, manifests,
# points of its curves, what was mended. Pure; nothing of it is believed before it was checked.


class ChainedRecord(Value):
    """A ``Link`` whose body is JSON as it is."""

    seq: int
    run_id: str
    n: int
    epoch: int
    at: float
    kind: str
    body: Mapping[str, Any]
    before: Sha256
    sha256: Sha256

    @property
    def link(self) -> Link:
        """As the ledger keeps it: its JSON is what the same writer writes again."""
        text = json.dumps(self.body, allow_nan=False)
        chained = self.before, self.sha256
        return Link(self.seq, self.run_id, self.n, self.epoch, self.at, self.kind, text, *chained)


class LedgerPart(Value):
    """``head_seq`` and ``head_sha256``: the newest record that the ledger had then."""

    ledger_id: Annotated[str, formed(r"[0-9a-f]{8}")]
    head_seq: int
    head_sha256: Sha256
    records: tuple[ChainedRecord, ...]


class RecoveredTrouble(Value):
    """Trouble of a phase that was mended, as its machine's agent told it."""

    generation: int
    phase: Label
    what: Label
    rung: Label
    step: int
    at: Instant
    changed: Mapping[str, Any]
    times: int
    lost_steps: int
    lost_s: float
    why: str


class Sources(Value):
    """Everything that an account is made of."""

    ledger: LedgerPart
    checkpoints: tuple[Mapping[str, Any], ...]
    """Manifests, as JSON."""
    curves: tuple[Point, ...]
    mended: tuple[RecoveredTrouble, ...] = ()
    reported: tuple[CheckpointRef, ...] = ()
    """Checkpoints in the run's bucket whose manifests were not read here."""


def records_of(sources: Sources) -> list[ev.Record]:
    """
    Raises:
        ReceiptError: one of them is no event that this version knows.
    """
    made = []
    for row in sources.ledger.records:
        try:
            event = event_from_json(row.kind, row.body)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise ReceiptError(f"its record {row.seq} cannot be read: {error}") from None
        made.append(ev.Record(row.seq, row.run_id, row.epoch, row.at, event))
    return made


def broken_link(sources: Sources, genesis: str, masked: Container[int] = ()) -> str:
    """Return the first fault in the chain, of which only the run's own records are here; '' where
    there is none. ``genesis`` is what the ledger's first record follows; ``masked`` are the numbers
    of records from which a token was removed: they are not what their hashes are of."""
    before: ChainedRecord | None = None
    for row in sources.ledger.records:
        if not row.link.is_whole and row.seq not in masked:
            return f"record {row.seq} ({row.kind}) was changed after it was written"
        follows = before.sha256 if before is not None and row.seq == before.seq + 1 else row.before
        if row.seq == 1:
            follows = genesis
        if row.before != follows or (before is not None and row.seq <= before.seq):
            return f"record {row.seq} ({row.kind}) does not follow the one before it"
        before = row
    head = sources.ledger
    if before is not None and before.seq >= head.head_seq:
        at_head = before.seq == head.head_seq and before.sha256 == head.head_sha256
        return (
            ""
            if at_head
            else "its last record is not the newest of the ledger, contrary to its claim"
        )
    return ""


def others_between(sources: Sources) -> int:
    """Records of other runs that stand between its own, and are not here."""
    rows = sources.ledger.records
    return rows[-1].seq - rows[0].seq + 1 - len(rows) if rows else 0


def manifests_of(sources: Sources) -> list[CheckpointManifest]:
    """
    Raises:
        ReceiptError: one is none.
    """
    try:
        return [mf.from_json(json.dumps(row), "receipt") for row in sources.checkpoints]
    except CheckpointError as error:
        raise ReceiptError(f"one of its checkpoints cannot be read: {error}") from None


# A run's receipt: what a ledger, its checkpoints and its metrics say of it, and the account that
# follows from them. Pure.
#
# ``sources`` are what was written while the run went on. ``account`` follows from them alone, so
# that it can be computed again from a receipt. Each part has a hash.

RECEIPT_VERSION = 3
"""Of its form and of the account's arithmetic: raised with either. The first lacks ``reported``;
both before the third have a ``seal``, a hash of the whole, which is not checked any more, and no
hash of their ``head``."""
MOST_BYTES = 64 << 20
_MOST_ITEMS = 1 << 17
_LAST_SEALED = 2
HEAD = ("receipt", "run", "made_at", "made_by")
SOURCES = ("ledger", "checkpoints", "curves", "mended", "reported")


class Receipt(Value):
    """A receipt file's content. ``data`` is its JSON; ``sources`` the part that all follows
    from."""

    run_id: str
    made_at: float
    made_by: str
    sources: Sources
    data: Mapping[str, Any]

    @property
    def account(self) -> Mapping[str, Any]:
        account: Mapping[str, Any] = self.data["account"]
        return account

    @property
    def is_sealed(self) -> bool:
        """Whether an earlier version sealed it."""
        return "seal" in self.data

    @property
    def text(self) -> str:
        """As a file of its own."""
        return canonical(self.data) + "\n"


def make_receipt(run_id: str, sources: Sources, made_at: float, made_by: str) -> Receipt:
    """Return the receipt of a run at ``made_at`` (epoch s), with a hash of each part.

    Raises:
        ValueError: the sources are not those of one run.
    """
    said = finite(sources)
    data = {
        "receipt": RECEIPT_VERSION,
        "run": run_id,
        "made_at": made_at,
        "made_by": made_by,
        "account": account_of(run_id, sources, made_at),
        "sources": said,
    }
    data["sha256"] = _hashes(data)
    return Receipt(run_id, made_at, made_by, sources, data)


def read_receipt(text: str | bytes) -> Receipt:
    """Read a receipt from its JSON; nothing of it has been checked yet.

    Raises:
        ReceiptError: it is no receipt, or one of a newer version.
    """
    try:
        data = parse(text, MOST_BYTES, _MOST_ITEMS)
        version = data.get("receipt") if isinstance(data, dict) else None
        if type(version) is not int:
            raise ContractError("it is not marked as one")
        if version > RECEIPT_VERSION:
            raise ReceiptError(
                f"this receipt has version {version}, but {RECEIPT_VERSION} is the newest known",
                next_step="read it with a newer trmcloud",
            )
        head = record_of(_Head, data)
        sources = record_of(Sources, data["sources"])
        return Receipt(head.run, head.made_at, head.made_by, sources, data)
    except (ContractError, KeyError) as error:
        raise ReceiptError(f"this is not a receipt: {error}") from None


class _Head(Value):
    run: Label
    made_at: Instant
    made_by: str
    account: Mapping[str, Any]
    sha256: Mapping[str, str]


def canonical(data: Any) -> str:
    """The one text of some JSON, its keys in their order: records are hashed in theirs."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def changed_parts(receipt: Receipt) -> tuple[str, ...]:
    """Return the names of the parts that are not what their hash says."""
    said = receipt.data["sha256"]
    now = _hashes(receipt.data)
    return tuple(name for name in dict.fromkeys((*now, *said)) if said.get(name) != now.get(name))


def _hashes(data: Mapping[str, Any]) -> dict[str, str]:
    sources = data["sources"]
    parts = {name: sources[name] for name in SOURCES if name in sources}
    parts = {"account": data["account"], **parts}
    if data["receipt"] > _LAST_SEALED:
        parts["head"] = {name: data[name] for name in HEAD}
    return {name: text_sha256(canonical(part)) for name, part in parts.items()}


# A receipt's account: all that it says of a run, from its sources alone. Pure.


def account_of(run_id: str, sources: Sources, made_at: float) -> dict[str, Any]:
    """All that a receipt says of a run at ``made_at`` (epoch s), from its sources alone.

    Raises:
        ReceiptError, ValueError: the sources contradict one another.
    """
    records = records_of(sources)
    ledger = fold_ledger(sources.ledger.ledger_id, records)
    run = ledger.runs.get(run_id)
    if run is None or run.recorded_plan is None:
        raise ReceiptError(f"its records do not contain {run_id}")
    manifests = manifests_of(sources)
    known: list[KnownCheckpoint] = [*manifests, *sources.reported]
    goal = run.spec.goal
    return {
        "run": run_id,
        "project": run.project,
        **({"principal": run.creator} if run.creator else {}),
        "state": run.state.value,
        "final": run.state is State.CLOSED and not awaiting_bill(run),
        "asked": codec.to_json(run.spec),
        "planned": _planned(run),
        "money": _money(ledger, run, known, made_at),
        "machines": [_machine(run, generation, made_at) for generation in run.generations],
        "ended": _ended(run, records),
        "phases": [codec.to_json(account) for account in run.phase_accounts],
        "gates": {name: dict(judged.verdict) for name, judged in run.gates.items()},
        "timeline": [_moment(run, record) for record in records if isinstance(record.event, _TOLD)],
        "curves": [_drawn(run, point) for point in sources.curves],
        "checkpoints": _checkpoints(known),
        **({"sweep": _swept(run, manifests)} if run.spec.sweep is not None else {}),
        **({"goal": _goal(goal, run, sources, known)} if goal is not None else {}),
    }


def scores_of(points: Iterable[Point]) -> dict[tuple[str, int], float]:
    """Return the logged values of a goal's metric, by phase and step."""
    scored = (point for point in points if point.kind == SCORE)
    return {(p.phase, p.step): p.value for p in scored if p.value is not None}


def _goal(
    goal: Goal, run: RunState, sources: Sources, known: Sequence[KnownCheckpoint]
) -> dict[str, Any]:
    last = [m for m in known if m.phase == run.spec.phases[-1]]
    result = judge_goal(goal, last, scores_of(sources.curves))
    return {
        "goal": goal.name,
        "metric": goal.metric,
        "threshold": goal.threshold,
        "higher": goal.higher,
        "value": result.value,
        "checkpoint": result.label or None,
        "reached": result.is_reached if result.value is not None else None,
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
        **{name: getattr(chosen, name) for name in ("hardware", "sku", "provider", "region")},
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
    ledger: LedgerState, run: RunState, known: Sequence[KnownCheckpoint], now: float
) -> dict[str, Any]:
    strays = ledger.strays_of(run.run_id)
    report = report_on(run, known, now, strays=strays)
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
        "bucket_usd": run.swept.rent.plain(),
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
    ev.Reserved, ev.PodIntended, ev.Extended, ev.PodUp, ev.PodNotMade, ev.AgentUp, ev.PhaseEnded,
    ev.GateJudged, ev.StopRequested, ev.SaveRequested, ev.ResultKnown, ev.PodGone, ev.Settled,
    ev.Billed, ev.PlanRevised, ev.Reopened, ev.Fetched, ev.Closed, ev.PodMissed, ev.PodFound,
    ev.StrayCharged, ev.BoardFound,
)  # fmt: skip


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
        **{name: getattr(point, name) for name in ("phase", "kind", "step")},
        "hours": round(hours_at(run, point.at), 6),
        "usd": spent_at(run, point.at).plain(),
        "value": point.value,
        "steps": list(point.steps),
    }


def _checkpoints(known: Sequence[KnownCheckpoint]) -> dict[str, Any]:
    named = {"best": mf.pick_best(mf.of_last_phase(known)), "latest": mf.pick_latest(known)}
    return {
        "all": [_checkpoint(m) for m in sorted(known, key=lambda m: (mf.saved_at(m), m.label))],
        **{name: m.label if m is not None else None for name, m in named.items()},
    }


def _swept(run: RunState, manifests: Sequence[CheckpointManifest]) -> dict[str, Any]:
    """Every trial, by the longest journal that the checkpoints have; amounts are of its slot."""
    assert run.spec.sweep is not None
    state = state_in([made.extra for made in manifests])
    return {
        "space": list(run.spec.sweep.space),
        "trials": [
            {
                "trial": trial.number,
                "settings": dict(trial.point),
                "seed": trial.seed,
                "state": trial.state.value,
                "rung": trial.rung + 1,
                "metric": trial.metric,
                "spent_usd": _plain(trial.spent),
                "spent_s": trial.seconds,
                "repeats": trial.repeats or None,
                "error": trial.error or None,
            }
            for trial in (state.trials.values() if state is not None else ())
        ],
    }


def _checkpoint(made: KnownCheckpoint) -> dict[str, Any]:
    """What is known of a checkpoint: of a reported one neither its files nor its data."""
    told = {
        "checkpoint": made.label,
        "step": made.step,
        "val_bpb": made.val_bpb,
        "weights_sha256": made.sha256,
        "size_bytes": made.size_bytes,
    }
    if isinstance(made, CheckpointRef):
        return told | dict.fromkeys(("files", "data_sha256", "tokenizer_sha256", "provenance"))
    about = made.extra.get(mf.PROVENANCE)
    return told | {
        "files": {file.name: file.sha256 for file in made.files},
        "data_sha256": made.data_sha256,
        "tokenizer_sha256": made.tokenizer_sha256,
        "provenance": dict(about) if isinstance(about, Mapping) else None,
    }


def _reason(reason: Reason | None) -> dict[str, Any] | None:
    return None if reason is None else codec.to_json(reason)


def _plain(amount: Usd | None) -> str | None:
    return None if amount is None else amount.plain()
