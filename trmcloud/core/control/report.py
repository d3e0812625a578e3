"""What a run cost and what it bought, as a function of events and checkpoints alone. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from trmcloud.core.catalog.goals import GoalResult, Scores, judge_goal
from trmcloud.core.contract.command import RECIPE, Command, shown_metric
from trmcloud.core.contract.manifest import (
    KnownCheckpoint,
    is_before_cooldown,
    own_bests,
    pick_best,
    pick_latest,
)
from trmcloud.core.control.actions import PULL
from trmcloud.core.control.ledger_facts import StrayPod
from trmcloud.core.control.run_state import GRANT, STAGE, Generation, RunState
from trmcloud.core.money import ZERO, Usd, cost, total
from trmcloud.core.values import Value

#: Where paid seconds go, in the order they are shown; what no part accounts for is "other":
#: the pod before and after its trainer, and the time between two attempts.
PARTS = ("training", "startup", "data", "compile", "evaluating", "saving", "landing", "other")
DRIFT_ALARM = 0.02


class RunReport(Value):
    """One run's line. Money in USD, times in seconds.

    ``planned`` is the Plan's P50, or the cap where that ends the run first; ``accrued`` rate × time
    by our clock; ``billed`` what the provider says, None while unknown: both with what pods are
    billed that were made in the run's name and that it never owned. ``at_most`` is ``accrued`` and
    what those can have cost whose bill is not final. ``drift`` = billed ÷ accrued − 1.
    """

    run_id: str
    hardware: str
    recipe: str
    state: str
    outcome: str | None
    created_at: float
    budget: Usd
    planned: Usd
    accrued: Usd
    at_most: Usd
    billed: Usd | None
    reserved: Usd
    paid_s: float
    seconds: Mapping[str, float]
    best: KnownCheckpoint | None
    latest: KnownCheckpoint | None
    """The best may be none while this is not evaluated."""
    first_bpb: float | None
    steps_done: int
    bucket: str = ""
    """s3://… of the folder in which what it uploaded lies; '' for none."""
    on_volume: bool = False
    """Its files are on its network volume; their content is unknown here until they are fetched."""
    planned_data_s: float = 0.0
    """P50 of the wait for data, where that was planned."""
    planned_hours: float | None = None
    planned_tokens_per_s: float | None = None
    tokens_per_s: float | None = None
    """Of the whole machine; None where nothing was chosen yet, or too little was logged."""
    data_told: str = ""
    """The last pod's note about the data that it made; '' where it made none, or said nothing."""
    before_cooldown: KnownCheckpoint | None = None
    """With what the cooldown began that the latest is in."""
    own_best: KnownCheckpoint | None = None
    """The script's own best of a command; the best, where no metric judges any."""
    here: bool = False
    """It trained on this machine alone."""
    command: Command | None = None
    """What it trains; None: a recipe."""
    goal: GoalResult | None = None
    """Whether its best checkpoint reaches its goal; None where it has none."""

    @property
    def best_metric(self) -> float | None:
        """The best's metric: a recipe's bits per byte, a command's own as it logged it."""
        return shown_metric(self.command, self.best.val_bpb) if self.best is not None else None

    @property
    def data_usd(self) -> Usd:
        """The cost of the seconds in which training waited for its data."""
        return self._share(self.seconds.get("data", 0.0))

    @property
    def planned_data_usd(self) -> Usd:
        """The same of the seconds that were planned for it, at the rate that was paid."""
        return self._share(self.planned_data_s)

    def _share(self, seconds: float) -> Usd:
        if self.paid_s <= 0:
            return ZERO
        return Usd.from_micros(round(self.accrued.micros * seconds / self.paid_s))

    @property
    def useful_fraction(self) -> float | None:
        """Time in training steps ÷ paid time; None while nothing was paid."""
        return self.seconds.get("training", 0.0) / self.paid_s if self.paid_s > 0 else None

    @property
    def drift(self) -> float | None:
        if self.billed is None or not self.accrued:
            return None
        return self.billed.micros / self.accrued.micros - 1

    @property
    def usd_per_centibpb(self) -> float | None:
        """Dollars spent for each hundredth of a bit per byte gained since the first evaluation.
        None of a command: its metric is another."""
        spent = float(self.billed if self.billed is not None else self.accrued)
        if self.best is None or self.best.val_bpb is None or self.first_bpb is None:
            return None
        if self.recipe == RECIPE:
            return None
        gained = self.first_bpb - self.best.val_bpb
        return spent / (gained * 100) if gained > 0 and spent > 0 else None


def report_on(
    run: RunState,
    checkpoints: Iterable[KnownCheckpoint],
    now: float,
    *,
    live_seconds: Mapping[str, float] | None = None,
    first_bpb: float | None = None,
    strays: Sequence[StrayPod] = (),
    data_told: str = "",
    tokens_per_s: tuple[float, float] | None = None,
    scores: Scores | None = None,
) -> RunReport:
    """The report on one run at ``now`` (epoch s).

    ``live_seconds`` is the running phase's account so far, where there is one; ``first_bpb`` the
    run's first evaluation; ``strays`` are pods that were made in its name and that it never owned;
    ``data_told`` is its last pod's own word of the data that it made; ``tokens_per_s`` are planned
    and measured; ``scores`` are logged values of its goal's metric.
    """
    made = [g for g in run.generations if g.not_made is None]
    paid = {g.number: paid_seconds(g, now) for g in made}
    seconds = dict.fromkeys(PARTS, 0.0)
    for account in run.phase_accounts:
        _add(seconds, account.seconds)
    _add(seconds, live_seconds or {})
    whole = sum(paid.values())
    seconds["other"] += max(0.0, whole - sum(seconds.values()))
    chosen = run.chosen
    every = tuple(checkpoints)
    latest = pick_latest(every)
    billed = run.billed if made else ZERO
    if billed is not None:
        unbilled = any(stray.billed is None for stray in strays)
        billed = None if unbilled else billed + total(stray.cost for stray in strays)
    accrued = total(cost(run.hourly_rate(g), paid[g.number]) for g in made)
    accrued += total(stray.billed for stray in strays if stray.billed is not None)
    unbilled_strays = total(stray.cost for stray in strays if stray.billed is None)
    return RunReport(
        run_id=run.run_id,
        hardware=chosen.hardware if chosen is not None else "?",
        recipe=run.spec.recipe,
        state=run.state.value,
        outcome=run.outcome.value if run.outcome else None,
        created_at=run.created_at,
        budget=run.cap,
        planned=min(chosen.cost_p50 if chosen is not None else ZERO, run.cap),
        accrued=accrued,
        at_most=accrued + unbilled_strays,
        billed=billed,
        reserved=run.reserved,
        paid_s=whole,
        seconds=seconds,
        best=pick_best(every),
        latest=latest,
        own_best=next(iter(own_bests(every)), None),
        before_cooldown=next((m for m in every if is_before_cooldown(m, latest)), None),
        first_bpb=first_bpb,
        steps_done=max((m.step for m in every), default=0),
        bucket=f"{run.bucket}/runs/{run.run_id}" if run.bucket else "",
        on_volume=run.spec.volume and any(g.agent_at is not None for g in made),
        planned_data_s=sum(p.parts_s.get("data", 0.0) for p in (chosen.phases if chosen else ())),
        data_told=data_told,
        planned_hours=chosen.expected_s / 3600.0 if chosen is not None else None,
        planned_tokens_per_s=tokens_per_s[0] if tokens_per_s else None,
        tokens_per_s=tokens_per_s[1] if tokens_per_s else None,
        here=run.trained_here,
        command=run.spec.command,
        goal=judge_goal(run.spec.goal, every, scores) if run.spec.goal is not None else None,
    )


class Spending(Value):
    """A run's cost: ``proven`` by final bills and by what is known of its pod's life, and
    ``at_most`` while a bill is not final, or the start of a pod's cost is unknown."""

    proven: Usd
    at_most: Usd

    @property
    def unproven(self) -> Usd:
        return self.at_most - self.proven


def spending_of(
    run: RunState, now: float, *, shown_at: float | None = None, strays: Sequence[StrayPod] = ()
) -> Spending:
    """Return the cost by ``now`` (epoch s) of the run and of pods that were made in its name.

    ``shown_at`` is when its present pod was last seen; None: now.
    """
    at_most = run.settled + _open_at_most(run, now) + total(stray.cost for stray in strays)
    proven = total(stray.billed for stray in strays if stray.billed is not None)
    for generation in run.generations:
        proven += _proven(run, generation, now if shown_at is None else shown_at)
    return Spending(min(proven, at_most), at_most)


def _open_at_most(run: RunState, now: float) -> Usd:
    """Return the most that its present generation can have cost while it is not settled.

    A pod that no list shows any more may live on unseen, but not beyond its hard stop, where its
    own guard ends it: what is counted ends at the later of the two.
    """
    return total(_at_most(run, generation, now) for generation in run.unsettled)


def _at_most(run: RunState, generation: Generation, now: float) -> Usd:
    if generation.ended_at is not None:
        return run.held_for(generation)
    rate = max(generation.rate, generation.charged_rate)
    if generation.absence is not None:
        now = min(now, max(generation.absence.since, generation.hard_stop_at))
    return cost(rate + run.disk_rate(generation), paid_seconds(generation, now))


def _proven(run: RunState, generation: Generation, shown_at: float) -> Usd:
    """Its final bill, or its rate for as long as it is known to have been there: from the first
    list that showed it to the newest, or, where it is not listed any more, to the last time that
    something was brought there or from there."""
    if generation.billed is not None:
        return generation.billed
    if generation.up_at is None:
        return ZERO
    until = shown_at
    if generation.absence is not None or generation.ended_at is not None:
        until = _last_contact(run, generation)
    rate = min(generation.rate, generation.charged_rate)
    seen = cost(rate + run.disk_rate(generation), max(0.0, until - generation.up_at))
    return seen if generation.settled is None else min(seen, generation.settled)


def _last_contact(run: RunState, generation: Generation) -> float:
    """When its agent was last reached, as far as that is on record."""
    reached = [generation.agent_at or 0.0]
    for action in run.tries(generation):
        if action.verb in (STAGE, GRANT, PULL) and action.finished:
            reached.append(action.ended_at or 0.0)
    return max(reached)


def spent_so_far(run: RunState, now: float) -> Usd:
    """Settled, and what the open generations have accrued by our clock."""
    return run.settled + total(
        cost(generation.rate + run.disk_rate(generation), paid_seconds(generation, now))
        for generation in run.unsettled
    )


def paid_seconds(generation: Generation, now: float) -> float:
    """Return the seconds from a generation's order to its end, or to ``now`` (epoch s)."""
    until = generation.ended_at if generation.ended_at is not None else now
    return max(0.0, until - generation.intended_at)


def _add(seconds: dict[str, float], more: Mapping[str, float]) -> None:
    for name, value in more.items():
        seconds[name if name in seconds else "other"] += value
