"""Facts of one run for status, report and programs: its money, training and guards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from trmcloud.core.catalog.goals import OF_CHECKPOINTS, Scores
from trmcloud.core.clock import DatedFact
from trmcloud.core.contract.command import shown_metric
from trmcloud.core.contract.gate import gain_per_usd, gain_soon
from trmcloud.core.contract.manifest import KnownCheckpoint, of_last_phase
from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.core.control.ledger_facts import holds_of, is_deleted
from trmcloud.core.control.reason import Reason
from trmcloud.core.control.receipt import points_of, scores_of
from trmcloud.core.control.report import PARTS, RunReport, Spending, report_on, spending_of
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO, Usd, total
from trmcloud.core.text import one_line
from trmcloud.core.values import Value, replace
from trmcloud.operations.checkpoints.sources import known_in_bucket
from trmcloud.operations.context import Context, is_unasked
from trmcloud.operations.plans.kill_layers import Layer, MaxOverspend, guards_of
from trmcloud.operations.run_queries import (
    bucket_trouble,
    data_progress_text,
    is_driven,
    last_report,
    link_trouble,
    waits_for,
)
from trmcloud.operations.runs.conditions import clock_words
from trmcloud.operations.views import filled


class Money(Value):
    """A run's cost of its ``cap``: ``proven`` by bills and by what is known of its pods,
    ``at_most`` while that is not final. ``reserved`` is held for what may still come; ``left`` is
    what of the cap cannot have been spent yet."""

    cap: Usd
    proven: Usd
    at_most: Usd
    reserved: Usd
    rate: Usd | None
    """USD per hour of its present pod; None where it has none."""

    @property
    def left(self) -> Usd:
        return max(ZERO, self.cap - self.at_most)


class Training(Value):
    """The trainer's last heartbeat, of ``at`` (epoch s). ``loss`` and ``passes`` (after each
    supervision step) are nats a token, ``next_usd_buys`` and ``next_hour_buys`` bits per byte."""

    phase: str
    state: str
    step: int
    steps: int
    at: float
    tokens: int
    loss: float | None
    passes: tuple[float, ...]
    val_bpb: float | None
    best_bpb: float | None
    best_step: int | None
    saved_step: int | None
    step_s: float | None
    landing_s: float | None
    tokens_per_s: float | None
    next_usd_buys: float | None
    next_hour_buys: float | None
    trained_here: bool = False
    """Whether this machine measured it; a rented pod said it otherwise."""
    metric: str | None = None
    """The name of a command's own metric, empty where it has none; None: ``val_bpb``, of a recipe.
    ``value`` and ``best`` are the metric as it was logged. ``val_bpb`` and ``best_bpb`` of a
    command are its score, by which checkpoints are compared: less is better."""
    value: float | None = None
    best: float | None = None


class Run(Value):
    """One run. ``layers`` are those that would end its pod, empty where it has none; ``trouble``
    says why its pod or its bucket cannot be reached; times are epoch seconds."""

    id: str
    recipe: str
    hardware: str
    provider: str
    project: str
    state: str
    outcome: Outcome | None
    reason: Reason | None
    live: bool
    created_at: float
    updated_at: float
    money: Money
    training: Training | None
    layers: tuple[Layer, ...]
    max_overspend: MaxOverspend
    driven: bool
    """Whether some process drives it now; a pod runs, and ends, without one."""
    landing: bool
    """Whether it was told to land, or to end."""
    lands_at: float | None
    killed_at: float | None
    waits_for: Reason | None
    waits_until: float | None
    trouble: str
    unasked: bool
    """Whether its provider was left alone: what is known is what was heard."""
    name: str = ""
    """The user's own name for it; empty for none."""
    tags: Mapping[str, str] = field(default_factory=dict)
    principal: str = ""
    """Who launched it; empty: the ledger's owner."""
    metric: str | None = None
    """As in ``Training``."""
    clock: str = ""
    """When it is asked to stop, by which limit, and when it is killed; empty without a machine."""


def gains_of(run: RunState, beat: Heartbeat) -> tuple[float | None, float | None]:
    """Return the bits per byte that the next dollar is expected to buy, and the next hour."""
    curve, left = beat.curve, beat.steps - beat.step
    if curve is None or beat.state == "ended":
        return None, None
    rate = float(run.generation.rate) if run.generation is not None else 0.0
    return gain_per_usd(curve, left, rate), gain_soon(curve, left)


def training_of(run: RunState, beat: Heartbeat) -> Training:
    usd, hour = gains_of(run, beat)
    command = run.spec.command
    return filled(
        Training,
        beat,
        passes=beat.step_losses,
        step_s=beat.step_seconds,
        landing_s=beat.landing_seconds,
        tokens_per_s=beat.tokens_per_second,
        next_usd_buys=usd,
        next_hour_buys=hour,
        trained_here=run.trained_here,
        metric=command.metric_name if command is not None else None,
        value=shown_metric(command, beat.val_bpb),
        best=shown_metric(command, beat.best_bpb),
    )


def money_of(context: Context, run: RunState) -> Money:
    spent, generation = spending(context, run), run.generation
    rents = run.live and generation is not None and generation.open
    rate = generation.charged_rate if rents and generation is not None else None
    return Money(run.cap, spent.proven, spent.at_most, run.reserved, rate)


def facts_of(context: Context, run: RunState) -> Run:
    """Looks at its files, its pod and the ledger, as ``status`` does."""
    guards = guards_of(context, run)
    generation, chosen = run.generation, run.chosen
    beat = guards.beat
    waiting = waits_for(context, run)
    rented = generation if run.live and generation is not None and generation.open else None
    link = link_trouble(context, run)
    trouble = str(link) if link is not None else bucket_trouble(context, run)
    return filled(
        Run,
        run,
        id=run.run_id,
        recipe=run.spec.recipe,
        hardware=chosen.hardware if chosen is not None else "?",
        provider=generation.provider if generation is not None else "",
        state=run.state.value,
        money=money_of(context, run),
        training=training_of(run, beat) if beat is not None else None,
        layers=guards.layers,
        max_overspend=guards.overshoot,
        driven=is_driven(context, context.ledger.driver(run.run_id)),
        landing=run.live and run.stop is not None,
        lands_at=rented.soft_stop_at if rented is not None else None,
        killed_at=rented.hard_stop_at if rented is not None else None,
        clock=clock_words(run, beat, context.wall()),
        waits_for=waiting.what if waiting is not None else None,
        waits_until=waiting.until_at if waiting is not None else None,
        trouble=trouble,
        unasked=run.live and is_unasked(context, run),
        tags=dict(run.tags),
        principal=run.creator,
        metric=run.spec.command.metric_name if run.spec.command is not None else None,
    )


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
    known: list[KnownCheckpoint] = list(context.files.manifests(run.run_id))
    if run.bucket:
        known += known_in_bucket(context, run)
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
        of_last_phase(known),
        context.wall(),
        live_seconds=live,
        first_bpb=first_bpb(context, run.run_id, last) if last is not None else None,
        strays=ledger.strays_of(run.run_id),
        data_told=data_progress_text(context, run),
        tokens_per_s=speeds,
        scores=_scores(context, run),
    )
    gone = report.on_volume and is_deleted(ledger, run.run_id)
    return replace(report, on_volume=False) if gone else report


def _scores(context: Context, run: RunState) -> Scores | None:
    goal = run.spec.goal
    if goal is None or goal.metric in OF_CHECKPOINTS:
        return None
    phase = run.spec.phases[-1]
    return scores_of(points_of(phase, context.files.metrics(run.run_id, phase), goal.metric))


def spending(context: Context, run: RunState) -> Spending:
    """Return the run's cost by now: the proven part, and the most."""
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
    listed = context.machines.lists.last(generation.provider)
    if isinstance(listed, DatedFact):
        return listed.at
    report = last_report(context, run)
    heard_at = report.at if report is not None else 0.0
    return max(min(heard_at, now), generation.agent_at or 0.0, generation.up_at or 0.0)


_CSV = (
    "run", "hardware", "recipe", "state", "outcome", "budget_usd", "planned_usd", "accrued_usd",
    "billed_usd", "at_most_usd", "reserved_usd", "paid_seconds", "useful_fraction", "steps",
)  # fmt: skip
CSV_COLUMNS = (*_CSV, *(f"{name}_s" for name in PARTS), "best_bpb", "sha256", "metric", "best")


def csv_row(report: RunReport) -> tuple[object, ...]:
    """Return the values of ``CSV_COLUMNS``."""
    amounts = (
        *(report.budget, report.planned, report.accrued),
        *(report.billed, report.at_most, report.reserved),
    )
    best, command = report.best, report.command
    found: tuple[object, ...] = ("", "", "", "")
    if best is not None:
        name = command.metric_name if command is not None else "val_bpb"
        bits = best.val_bpb if command is None else ""
        found = (bits, best.sha256, one_line(name), report.best_metric)
    return (
        *(report.run_id, report.hardware, report.recipe, report.state, report.outcome),
        *(None if amount is None else float(amount) for amount in amounts),
        *(report.paid_s, report.useful_fraction, report.steps_done),
        *(f"{report.seconds[name]:.3f}" for name in PARTS),
        *found,
    )
