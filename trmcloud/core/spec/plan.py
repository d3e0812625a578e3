"""The Plan: frozen data that says what will happen and the most it can cost. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

from trmcloud.core import codec
from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.errors import UsageError
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.spec.settings import PhaseRecipe
from trmcloud.core.spec.spec import RunSpec
from trmcloud.core.values import Value, replace

# The Plan: frozen data that says what will happen and the most it can cost.
#
# ``planning.make_plan`` makes it; ``launch`` carries it out without planning again.

PLAN_VERSION = 14
"""Raised with any field that is new or gone, which a test holds.

1  2026-11-21  the first
2  2026-11-22  settings say how data becomes rows
3  2026-11-22  settings say what a dense model is made of, and how its rates go
4  2026-11-23  each reason says what it is about
5  2026-11-23  settings say who takes float8's products
6  2026-11-23  settings say how blocks are made again and when the clock saves; or a command is run
7  2026-11-24  each candidate says its disks' size and price
8  2026-11-26  what follows where a provider's balance will not last
8  2026-11-26  for how long a run waits for a machine, at what price; for which saving it moves
10 2026-11-27  the goal that it is to reach
11 2026-11-27  a sweep: the settings that it searches
12 2026-11-27  a sweep: the points that it begins with, and the trials of earlier ones
13 2026-11-29  no wish has last rungs, the least gain of a dollar, a strict gate or moves
14 2026-12-01  a stop that is moved where the work needs it; whether it may be
"""

TRAINER = "trainer"
"""Among a plan's limits: that there is none for its recipe, which cannot be launched."""
LIVE_PRICES = "live prices"
"""Among a plan's limits: whose prices are of the moment at which it was made."""
GOAL = "goal"
"""Among a plan's limits: the published result that it is to reach."""
FITTED = "fit balance"
"""Among a plan's limits: that its budget is what a provider's balance leaves free."""
SET_ASIDE = "set aside"
"""Among a plan's limits: old quotes far below other sellers', which are not planned with."""
UNPRICED = "no price"
"""Among a plan's limits: GPUs that no seller in the price table offers."""
TEST_SETTINGS = "test settings"
"""Among a plan's limits: settings that a test has put in place of the recipe's."""


class Interval(Value):
    """A prediction: its 10th, 50th and 90th percentile, in the unit the field's name gives."""

    p10: float
    p50: float
    p90: float

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.p10 + other.p10, self.p50 + other.p50, self.p90 + other.p90)

    def scaled(self, factor: float) -> Interval:
        return Interval(self.p10 * factor, self.p50 * factor, self.p90 * factor)

    def each(self, change: Callable[[float], float]) -> Interval:
        return Interval(change(self.p10), change(self.p50), change(self.p90))

    def to_json(self) -> dict[str, float]:
        return {"p10": self.p10, "p50": self.p50, "p90": self.p90}

    @classmethod
    def from_json(cls, data: Mapping[str, float]) -> Interval:
        return codec.from_json(cls, data)


class RemarkTopic(str, Enum):
    """The subject of a reason; its value is the word in JSON."""

    NEED = "need"
    """The need that would have to be more, or less, for it to fit."""
    WARNING = "warning"
    """It would train, and teach little."""
    SETTINGS = "settings"
    RANGE = "range"
    """Why its range is wider than another's."""
    PUBLISHED = "published"
    """Whose report its time follows."""
    DATA = "data"
    PRICE = "price"
    PLACE = "place"
    STORAGE = "storage"
    STOCK = "stock"
    """The outcome of earlier creates."""
    OFFER = "offer"
    """Which kind of offer was taken: a detail."""
    OTHER = "other"
    """The subject in a version that did not record it."""


class Remark(NamedTuple):
    """A reason: why a candidate is ranked as it is, or why it cannot be used."""

    about: RemarkTopic
    text: str


class PhasePlan(Value):
    """One phase on one candidate: exact settings, and where its seconds go.

    ``parts_s`` holds P50 seconds by name: training, evaluation, saving, compile, landing.
    """

    name: str
    settings: PhaseRecipe
    tokens: int
    flops: float
    """Training FLOPs of the whole phase, all GPUs, forward and backward."""
    step_s: Interval
    seconds: Interval
    parts_s: Mapping[str, float]


class Candidate(Value):
    """One way to carry the spec out: hardware from a seller at a rate.

    Stops are seconds after the pod exists: the trainer lands at ``soft_stop_s``, everything is
    killed at ``hard_stop_s``. ``worst_case`` = ``reserved_rate`` × (hard stop + kill latency) +
    storage, the most it can cost.
    """

    id: str
    hardware: str
    sku: str
    gpus: int
    provider: str
    region: str
    rate: Usd
    """USD per hour for all GPUs together."""
    spot: bool
    priced_at: float
    source: str
    startup_s: Interval
    """Boot, environment and sending code and data, before any training process starts."""
    phases: tuple[PhasePlan, ...]
    hours: Interval
    cost_p10: Usd
    cost_p50: Usd
    cost_p90: Usd
    memory_need_gb: float
    memory_gb: float
    fits_memory: bool
    within_budget: bool
    """P90 cost, landing reserve included, is within the budget (True where there is none)."""
    soft_stop_s: float
    hard_stop_s: float
    landing_s: float
    worst_case: Usd
    reasons: tuple[Remark, ...]
    planned_rate: Usd | None = None
    """USD/h that costs and stops were computed with: the quote, dearer where it is old."""
    most_rate: Usd | None = None
    """USD/h that it may be billed at, as far as is known: what is reserved."""
    storage: Usd = ZERO
    """The price of disks while the run lasts (P50), and of checkpoints for seven days after it, or
    for as long as a network volume is kept."""
    volume_rate: Usd = ZERO
    """USD/h of the network volume that it keeps its checkpoints on; of this, ``worst_case`` holds
    what it costs until its day."""
    volume_gb: int = 0
    work_gb: int = 0
    """GB of the work disk of each machine, or of the volume in its place; 0 in older plans."""
    disk_rate: Usd = ZERO
    """USD/h of a running pod's own disks, which come on top of its rate; 0 in older plans."""
    memory_least_gb: float = 0.0
    memory_most_gb: float = 0.0
    """The ends of the range of ``memory_need_gb``; 0 in older plans, and where nothing is known."""
    nodes: int = 1
    """Machines, of ``gpus`` each; every figure is of all of them together."""
    limit_s: float = 0.0
    """Seconds to the hard stop that the budget buys, where ``hard_stop_s`` is an earlier one that
    is moved if the work needs it; 0: it is not moved."""
    limit: Usd = ZERO
    """The most that it can cost then: ``worst_case`` at ``limit_s``."""

    @property
    def reserved_rate(self) -> Usd:
        """USD/h that stops, reservation and bill are reckoned with."""
        return self.most_rate or self.planned_rate or self.rate

    @property
    def expected_s(self) -> float:
        """Seconds until its work is done (P50), or until its hard stop ends it."""
        return min(self.hours.p50 * 3600.0, self.hard_stop_s)

    @property
    def world_size(self) -> int:
        """GPUs, or processes, that train together."""
        return self.gpus * self.nodes


class Plan(Value):
    """A frozen plan of a run. ``candidates`` stand best first; ``launchable`` are tried in order,
    and ``reservation`` is the largest worst case among them."""

    id: str
    created_at: float
    expires_at: float
    spec: RunSpec
    cap: Usd | None
    """The run's budget: the user's, else the worst case; None where nothing can be launched."""
    candidates: tuple[Candidate, ...]
    launchable: tuple[str, ...]
    recommended_id: str | None
    reservation: Usd
    survives: str
    """The place where checkpoints outlive the pod: "this machine's disk", a volume, a bucket."""
    limits: Mapping[str, str]
    """Every limit and switch by name, as a user reads it, "off" included."""
    offers_total: int = 0
    version: int = PLAN_VERSION

    def candidate(self, candidate_id: str) -> Candidate:
        return next(c for c in self.candidates if c.id == candidate_id)

    @property
    def recommended(self) -> Candidate | None:
        return self.candidate(self.recommended_id) if self.recommended_id else None


def at_limit(plan: Plan) -> Plan:
    """``plan`` as it is carried out where nobody stays to move a stop: each is where the budget
    ends, and the reservation follows."""
    candidates = tuple(
        replace(
            each,
            soft_stop_s=each.soft_stop_s + each.limit_s - each.hard_stop_s,
            hard_stop_s=each.limit_s,
            worst_case=each.limit,
            limit_s=0.0,
            limit=ZERO,
        )
        if each.limit_s
        else each
        for each in plan.candidates
    )
    worst = [each.worst_case for each in candidates if each.id in plan.launchable]
    made = replace(plan, candidates=candidates, reservation=max(worst, default=plan.reservation))
    return replace(made, limits={**plan.limits, **stop_limits(made.recommended)})


def stop_limits(candidate: Candidate | None) -> dict[str, str]:
    """The stops among a plan's limits, as a user reads them."""
    if candidate is None:
        return {}
    limits = {
        "lands at": f"{candidate.soft_stop_s:,.0f} s after start",
        "hard stop": f"{candidate.hard_stop_s:,.0f} s after start",
    }
    if candidate.limit_s:
        limits["hard stop"] += f", moved up to {candidate.limit_s:,.0f} s if the work needs it"
    return limits


class RecordedPlan:
    """A plan as a ledger has it. What is asked of it is read from its JSON then, and once: a
    ledger may hold hundreds, of which a command looks at the candidates of one.

    Each of its members raises ``ValueError``, ``KeyError`` or ``TypeError`` where the JSON is none.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = data
        self._candidates: dict[str, Candidate] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordedPlan) and self._data == other._data

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def plan(self) -> Plan:
        return plan_from_json(self._data)

    @cached_property
    def spec(self) -> RunSpec:
        return RunSpec.from_json(self._data["spec"])

    @property
    def recommended_id(self) -> str | None:
        return self._data["recommended_id"]  # type: ignore[no-any-return]

    @property
    def launchable(self) -> tuple[str, ...]:
        """Ids of the candidates that are tried, one after the other."""
        return tuple(self._data["launchable"])

    def candidate(self, candidate_id: str) -> Candidate | None:
        """None where it has none of that id."""
        if candidate_id not in self._candidates:
            row = next((r for r in self._data["candidates"] if r["id"] == candidate_id), None)
            if row is None:
                return None
            self._candidates[candidate_id] = _candidate_from_json(row)
        return self._candidates[candidate_id]

    def with_errand(self, candidate: Mapping[str, Any]) -> RecordedPlan:
        """The same plan, of which nothing but ``candidate``, as JSON, is launched from now on."""
        candidates = [*self._data["candidates"], candidate]
        more = {"candidates": candidates, "launchable": [candidate["id"]]}
        return RecordedPlan({**self._data, **more})

    def with_settings(
        self, changed: Mapping[str, Mapping[str, Any]], processes: int = 0
    ) -> RecordedPlan:
        """The same plan, whose phases are trained with what ``changed`` says of them, on the user's
        own machine by so many ``processes``; 0: by as many as before. Time and FLOPs are those of
        as many tokens. Prices and stops stay what they were."""
        candidates = []
        for row in self._data["candidates"]:
            now = processes if processes and row["provider"] == LOCAL else row["gpus"]
            more = now / row["gpus"]
            phases = [_changed(each, changed.get(each["name"]), more) for each in row["phases"]]
            candidates.append({**row, "gpus": now, "phases": phases})
        return RecordedPlan({**self._data, "candidates": candidates})


class PlanTooNew(ValueError):
    """A plan that a newer version wrote."""


#: Fields that JSON has under their own names, as they are.
_PLAN_FIELDS = ("id", "created_at", "expires_at", "recommended_id", "survives", "offers_total")
_FIELDS = (
    "id", "hardware", "sku", "gpus", "provider", "region", "spot", "priced_at", "source",
    "memory_need_gb", "memory_gb", "fits_memory", "within_budget", "soft_stop_s", "hard_stop_s",
    "landing_s",
)  # fmt: skip
_PHASE_FIELDS = ("name", "tokens", "flops")
_INTERVALS = ("startup_s", "hours")
_PERCENTILES = ("p10", "p50", "p90")
#: Amounts, which JSON has as text under ``NAME_usd``.
_AMOUNTS = ("rate", "storage", "worst_case")
#: What plans of the first versions lack, and is 0 there; ``nodes`` is 1.
_LATER_AMOUNTS = ("volume_rate", "disk_rate", "limit")
_LATER_COUNTS = ("volume_gb", "work_gb", "nodes", "memory_least_gb", "memory_most_gb", "limit_s")


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """The JSON object that is printed, saved, and read back by ``plan_from_json``."""
    recommended = plan.recommended
    return {
        "version": plan.version,
        **{name: getattr(plan, name) for name in _PLAN_FIELDS},
        "recipe": plan.spec.recipe,
        "budget_usd": float(plan.spec.budget) if plan.spec.budget is not None else None,
        "cap_usd": plan.cap.plain() if plan.cap is not None else None,
        "reservation_usd": plan.reservation.plain(),
        "recommended": recommended.hardware if recommended else None,
        "launchable": list(plan.launchable),
        "limits": dict(plan.limits),
        "candidates": [candidate_to_json(candidate) for candidate in plan.candidates],
        "spec": plan.spec.to_json(),
    }


def plan_from_json(data: Mapping[str, Any]) -> Plan:
    """The Plan a JSON object stands for.

    Raises:
        PlanTooNew: where a newer version wrote it.
        ValueError, KeyError, TypeError: where it is no plan that this version or one before wrote.
    """
    version = data["version"]
    if type(version) is not int or version < 1:
        raise ValueError(f"plan version {version!r:.80} does not exist")
    if version > PLAN_VERSION:
        raise PlanTooNew(f"plan version {version} is newer than {PLAN_VERSION}")
    return Plan(
        **{name: data[name] for name in _PLAN_FIELDS},
        spec=RunSpec.from_json(data["spec"]),
        cap=Usd(data["cap_usd"]) if data["cap_usd"] is not None else None,
        candidates=tuple(_candidate_from_json(row) for row in data["candidates"]),
        launchable=tuple(data["launchable"]),
        reservation=Usd(data["reservation_usd"]),
        limits=dict(data["limits"]),
    )


def candidate_to_json(candidate: Candidate) -> dict[str, Any]:
    """One of a plan's ``candidates``."""
    return {
        **{name: getattr(candidate, name) for name in (*_FIELDS, *_LATER_COUNTS)},
        "rate_usd_per_hour": float(candidate.rate),
        **{f"{n}_usd": getattr(candidate, n).plain() for n in (*_AMOUNTS, *_LATER_AMOUNTS)},
        "planned_rate_usd": (candidate.planned_rate or candidate.rate).plain(),
        "most_rate_usd": candidate.reserved_rate.plain(),
        **{name: getattr(candidate, name).to_json() for name in _INTERVALS},
        "phases": [
            {
                **{name: getattr(phase, name) for name in _PHASE_FIELDS},
                "steps": phase.settings.steps,
                "step_s": phase.step_s.to_json(),
                "seconds": phase.seconds.to_json(),
                "parts_s": dict(phase.parts_s),
                "settings": phase.settings.to_json(),
            }
            for phase in candidate.phases
        ],
        # As numbers: exact to the micro-dollar for any amount below 10⁹ USD.
        "cost_usd": {p: float(getattr(candidate, f"cost_{p}")) for p in _PERCENTILES},
        "reasons": [remark.text for remark in candidate.reasons],
        "reasons_about": [remark.about.value for remark in candidate.reasons],
    }


def _changed(
    phase: Mapping[str, Any], changed: Mapping[str, Any] | None, more: float
) -> Mapping[str, Any]:
    """A phase's JSON, as it is with other settings and ``more`` times as many processes."""
    if not changed and more == 1.0:
        return phase
    settings = {**phase["settings"], **(changed or {})}
    before, after = (PhaseRecipe.from_json(each) for each in (phase["settings"], settings))
    # Of tokens; each process is as fast as it was, so that time is a process's share of them.
    share = (after.steps * after.tokens_per_step(1)) / (before.steps * before.tokens_per_step(1))
    factor = share * more
    trained_s = phase["parts_s"].get("training", 0.0)
    return {
        **phase,
        "steps": after.steps,
        "tokens": round(phase["tokens"] * factor),
        "flops": phase["flops"] * factor,
        "seconds": {k: s + (share - 1.0) * trained_s for k, s in phase["seconds"].items()},
        "parts_s": {**phase["parts_s"], "training": trained_s * share},
        "settings": settings,
    }


def _candidate_from_json(row: Mapping[str, Any]) -> Candidate:
    texts = row["reasons"]
    abouts = row.get("reasons_about") or [RemarkTopic.OTHER.value] * len(texts)
    values: dict[str, Any] = {
        **{name: row[name] for name in _FIELDS},
        **{name: row[name] for name in _LATER_COUNTS if name in row},
        **{name: Usd(row[f"{name}_usd"]) for name in _AMOUNTS},
        **{name: Usd(row.get(f"{name}_usd", "0")) for name in _LATER_AMOUNTS},
        **{f"cost_{p}": Usd.from_micros(round(row["cost_usd"][p] * 1e6)) for p in _PERCENTILES},
        **{name: Interval.from_json(row[name]) for name in _INTERVALS},
    }
    return Candidate(
        **values,
        phases=tuple(
            PhasePlan(
                **{name: phase[name] for name in _PHASE_FIELDS},
                settings=PhaseRecipe.from_json(phase["settings"]),
                step_s=Interval.from_json(phase["step_s"]),
                seconds=Interval.from_json(phase["seconds"]),
                parts_s=dict(phase["parts_s"]),
            )
            for phase in row["phases"]
        ),
        reasons=tuple(Remark(RemarkTopic(a), text) for a, text in zip(abouts, texts, strict=True)),
        planned_rate=Usd(row["planned_rate_usd"]),
        most_rate=Usd(row.get("most_rate_usd", row["planned_rate_usd"])),
    )


# A plan for one machine as several carry it out. Pure; no pod needs it.


def divide_among_nodes(candidate: Candidate, count: int) -> Candidate:
    """``candidate`` as ``count`` nodes like the one it was planned for carry it out: the same most
    that it may cost, so their time is divided; the same global batch where it can be divided.

    Raises:
        UsageError: two phases, of which only node 0 could judge the first; or too little time.
    """
    if count == 1:
        return candidate
    if len(candidate.phases) > 1:
        raise UsageError(
            "several nodes train one phase at a time", next_step="export --phase fast, then extreme"
        )
    hard_stop_s = candidate.hard_stop_s / count
    if hard_stop_s <= 2 * candidate.landing_s:
        raise UsageError(
            f"the budget buys {hard_stop_s:.0f} s of {count} nodes: too little to train",
            next_step="fewer nodes, or export with more budget",
        )
    [phase] = candidate.phases
    fewer = math.ceil(phase.settings.accumulation / count)
    return replace(
        candidate,
        nodes=count,
        rate=candidate.rate * count,
        phases=(replace(phase, settings=replace(phase.settings, accumulation=fewer)),),
        soft_stop_s=hard_stop_s - candidate.landing_s,
        hard_stop_s=hard_stop_s,
    )
