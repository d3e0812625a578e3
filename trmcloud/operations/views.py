"""The documents that commands print with ``--json``, one class each.

``schema`` names a document and its version; a version stays as it is but for fields that are added.
Keys bear their unit: ``…_usd`` is money, a decimal string; ``…_at`` an instant, RFC 3339 in UTC;
``…_s`` a number of seconds. Text for people stands in ``message`` and ``next`` alone, beside a
``code``. docs/json/ holds the JSON Schema that ``scripts/json_schemas.py`` makes of these classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar, dataclass_transform

from trmcloud.core.money import ZERO, Usd
from trmcloud.core.values import dataclass

_Document = TypeVar("_Document")
_UNITS = ("_per_hour_usd", "_usd", "_at", "_s")
_NONE = object()


@dataclass_transform(frozen_default=True, kw_only_default=True)
class View:
    """The base of documents and of their parts: frozen, and made by the names of their fields. A
    document is a subclass with a ``schema``."""

    schema: ClassVar[str]

    def __init_subclass__(cls, schema: str | None = None) -> None:
        super().__init_subclass__()
        dataclass(frozen=True, kw_only=True)(cls)
        if schema is not None:
            cls.schema = schema


def filled(kind: type[_Document], source: Any, /, **others: Any) -> _Document:
    """Make a document of ``others`` and, for each of its other fields, of the attribute of
    ``source`` by that name, or by that name without its unit."""
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name not in others:
            others[field.name] = _value_of(source, field.name)
    return kind(**others)


def _value_of(source: Any, name: str) -> Any:
    """
    Raises:
        AttributeError: the source has it by neither name.
    """
    stems = [name.removesuffix(unit) for unit in _UNITS if name.endswith(unit)]
    values = (getattr(source, each, _NONE) for each in (name, *stems))
    value = next((each for each in values if each is not _NONE), _NONE)
    if value is _NONE:
        raise AttributeError(f"{type(source).__name__} has no {name}")
    return value


# -- parts of documents ----------------------------------------------------------------------------


class Note(View):
    """Something that is said about a value: ``code`` is its stable word, ``message`` a sentence for
    people, ``facts`` what the sentence is made of, ``next`` what to do."""

    code: str
    message: str
    facts: Mapping[str, Any]
    next: str | None = None


def note(code: str, message: str, /, next_step: str = "", **facts: Any) -> Note:
    return Note(code=code, message=message, facts=facts, next=next_step or None)


class Spread(View):
    """A prediction: its 10th, 50th and 90th percentile, in the unit of its key."""

    p10: float
    p50: float
    p90: float


class Guard(View):
    """A kill layer. ``state``: verified, armed, silent or absent."""

    name: str
    state: str
    message: str
    heard_at: float | None


class OwnMetric(View):
    """A command's own metric, as it logged it; ``val_bpb`` beside it is null then."""

    name: str
    value: float | None


class RunCheckpoint(View):
    """``reported_by``: whose word it is, null where this machine measured it; ``name``: its name by
    a script that calls it its best."""

    checkpoint: str
    name: str | None
    step: int
    evaluated: bool
    val_bpb: float | None
    metric: OwnMetric | None
    sha256: str
    reported_by: str | None


class FetchedTo(View):
    """A checkpoint of a run that was copied to ``path``."""

    phase: str
    step: int
    path: str


class Beat(View):
    """The trainer's last heartbeat. ``passes``: nats a token after each supervision step."""

    phase: str
    state: str
    step: int
    steps: int
    heard_at: float
    passes: tuple[float, ...]


class DataWait(View):
    """The time that training waited for its data, and what was planned for it."""

    waited_s: float
    waited_usd: Usd
    planned_s: float
    planned_usd: Usd


class MeasuredPace(View):
    """A machine's measured pace, and the run's time and money by it. ``doubt`` is null where it is
    believed; ``slow`` is the cost of a slower machine, ``follows`` what is done."""

    generation: int
    phase: str
    steps: int
    step_s: float
    fast_s: float
    slow_s: float
    planned_step_s: float
    run_s: Spread
    run_usd: Usd
    planned_run_s: float | None
    planned_run_usd: Usd | None
    steps_fit: int
    torch: str
    board: str
    doubt: Note | None
    slow: Note | None
    follows: str | None
    reported_by: str | None


class VolumeHold(View):
    """A network volume that a run's budget pays for. ``then``: keep, delete-fetched or delete."""

    run: str
    provider: str
    data_centre: str
    size_gb: float
    per_day_usd: Usd
    reserved_usd: Usd
    accrued_usd: Usd
    reserved_until_at: float
    then: str
    deleted_at: float | None
    uncapped_since_at: float | None
    uncapped_usd: Usd


class LowBalance(View):
    provider: str
    balance_usd: Usd
    spending_per_hour_usd: Usd
    read_at: float
    ends_at: float


class Symptom(View):
    """A fault of a training that its own numbers show."""

    phase: str
    step: int
    code: str
    message: str
    next: str | None
    facts: Mapping[str, Any]


class Precision(View):
    """The number format that a phase took; ``left``: what it could not take."""

    phase: str
    step: int
    taken: str | None
    notes: tuple[Note, ...]


class Recovery(View):
    """Trouble of a training that was mended. ``notes``: trouble, remedy and lost."""

    generation: int
    phase: str
    step: int
    happened_at: float
    code: str
    rung: str
    changed: Mapping[str, Any]
    times: int
    lost_steps: int
    lost_s: float
    lost_usd: Usd
    message: str
    notes: tuple[Note, ...]


class JudgedGoal(View):
    """A run's goal. ``value`` is the best of its checkpoints in the goal's metric, null where none
    was measured, as is ``reached`` then; ``reported_by``: as in ``RunCheckpoint``."""

    name: str
    metric: str
    threshold: float
    higher: bool
    value: float | None
    checkpoint: str | None
    reached: bool | None
    reported_by: str | None
    message: str


class SweepTrial(View):
    """A trial of a sweep. ``rung`` is that of its newest checkpoint, from 1 on, 0 for none;
    ``repeats`` the trial whose settings it has with another seed. ``spent_usd`` is null where the
    machine has no rate; ``spent_s`` are seconds of its slot."""

    trial: int
    state: str
    rung: int
    metric: float | None
    spent_usd: Usd | None
    spent_s: float
    seed: int
    repeats: int | None
    settings: Mapping[str, Any]
    error: str | None


class SweepPoint(View):
    """The best metric once so much was spent, free slots included."""

    spent_usd: Usd | None
    metric: float | None
    trial: int | None


class SweepRung(View):
    """Cost and training time of one trial when it reaches a rung; no amount where
    the machine has no rate."""

    rung: int
    spent_usd: Usd | None
    trained_s: float


class SweepFirst(View):
    """Settings that were tried first, and the trial of another sweep that they are from."""

    run: str
    trial: int
    settings: Mapping[str, Any]


class SweepVerdict(View):
    """The winner against the default: ``gain`` is by how much its metric is better, between ``low``
    and ``high`` with 95 % confidence; ``rung`` is where they are compared, 0 where nowhere."""

    finding: str
    winner: int | None
    rung: int
    gain: float | None
    low: float | None
    high: float | None
    noise: float | None
    seeds: int


class SweepProgress(View):
    """A sweep's trials, the best first behind those that run. ``rungs`` are cumulative, of one
    trial; ``best_so_far`` has a point for each time that the best got better, ``quarters`` the best
    at the end of each quarter of what is spent. ``importance`` is the share of the ranks' variance
    that a setting explains alone; ``next_usd_gain`` extrapolates what ``next_usd`` may gain.
    ``first`` are tried behind the default; ``earlier_trials`` is how many of each earlier sweep are
    used; ``sizes_refused`` of ``sizes`` need more memory than there is, and are never started.
    ``own_cpu_s`` is the processor time of the sweep itself beside ``trials_cpu_s`` of trials that
    ended, null while unknown."""

    metric: str
    goal: str
    slots: int
    rungs: tuple[SweepRung, ...]
    reserved_usd: Usd | None
    idle_usd: Usd | None
    best_trial: int | None
    trials: tuple[SweepTrial, ...]
    best_so_far: tuple[SweepPoint, ...]
    quarters: tuple[SweepPoint, ...]
    verdict: SweepVerdict
    importance: Mapping[str, float]
    next_usd: Usd | None
    next_usd_gain: float | None
    first: tuple[SweepFirst, ...]
    earlier_trials: Mapping[str, int]
    sizes: int | None
    sizes_refused: int | None
    own_cpu_s: float | None
    trials_cpu_s: float | None


class TargetVerdict(View):
    """A recipe's promise, and whether this run kept it; null where that cannot be said."""

    passed: bool | None
    checkpoint: str
    nats_per_token: float
    bits_per_byte: float | None
    trained_s: float
    target_nats_per_token: float
    target_s: float
    reported_by: str | None
    notes: tuple[Note, ...]


class RunAccount(View):
    """One run: what it is, what it costs, what it bought. ``state`` is the word that screens show:
    the outcome of a run that has ended. ``planned_usd`` is the plan's P50, ``accrued_usd`` rate ×
    time, ``billed_usd`` the provider's word, null while it is unknown; ``at_most_usd`` holds until
    every bill is final. ``principal``: who launched it; null: the ledger's owner.
    ``trained_here``: no rented machine had a part in it."""

    run: str
    name: str | None
    tags: Mapping[str, str]
    principal: str | None
    recipe: str
    project: str
    hardware: str
    provider: str | None
    state: str
    outcome: str | None
    live: bool
    created_at: float
    cap_usd: Usd
    planned_usd: Usd
    accrued_usd: Usd
    billed_usd: Usd | None
    at_most_usd: Usd
    reserved_usd: Usd
    per_centibpb_usd: float | None
    drift: float | None
    paid_s: float
    parts_s: Mapping[str, float]
    planned_s: float | None
    planned_tokens_per_second: float | None
    tokens_per_second: float | None
    useful_fraction: float | None
    data: DataWait
    steps: int
    trained_here: bool
    best: RunCheckpoint | None
    bucket: str | None
    on_volume: bool
    measured: MeasuredPace | None
    volumes: tuple[VolumeHold, ...]
    goal: JudgedGoal | None
    verdict: TargetVerdict | None


class GateCheck(View):
    code: str
    passed: bool | None
    blocking: bool
    message: str


class GateVerdict(View):
    phase: str
    passed: bool
    reported_by: str | None
    checks: tuple[GateCheck, ...]


class RunRow(RunAccount):
    """One run as a table of runs shows it. ``spent_usd`` is proven; ``via`` is the service between
    this machine and the run's provider, which ``unasked`` says was left alone; ``fetched`` are
    copies of its checkpoints here."""

    spent_usd: Usd
    step: int | None
    val_bpb: float | None
    metric: OwnMetric | None
    reported_by: str | None
    via: str | None
    unasked: bool
    guards: tuple[Guard, ...]
    max_overspend_usd: Usd | None
    fetched: tuple[FetchedTo, ...]
    notes: tuple[Note, ...]


class RunView(RunRow):
    """One run as it stands now; ``hard_stop_at`` is when its machine is ended whatever happens.
    ``latest`` is its newest checkpoint, ``own_best`` the script's own best, where no metric judges
    any; ``failed_boots_usd`` is the most that failed boots cost."""

    rate_per_hour_usd: Usd | None
    lands_at: float | None
    hard_stop_at: float | None
    training: Beat | None
    next_usd_buys_bpb: float | None
    next_hour_buys_bpb: float | None
    reason: Note | None
    waits_for: Note | None
    waits_until_at: float | None
    balance: LowBalance | None
    failed_boots: int
    failed_boots_usd: Usd
    latest: RunCheckpoint | None
    own_best: RunCheckpoint | None
    verdicts: tuple[GateVerdict, ...]
    health: tuple[Symptom, ...]
    precision: tuple[Precision, ...]
    recoveries: tuple[Recovery, ...]
    sweep: SweepProgress | None


class PlannedPhase(View):
    """``settings`` are the recipe's, by their names there."""

    name: str
    steps: int
    tokens: int
    flops: float
    step_s: Spread
    duration_s: Spread
    parts_s: Mapping[str, float]
    settings: Mapping[str, Any]


class PlannedMachine(View):
    """One candidate of a plan. Stops count from the moment at which the machine exists.

    ``limit_s``: the latest hard stop that its budget allows where the measured pace needs more
    than ``hard_stop_s``, and ``limit_usd`` the most that it can cost then; null where the stop is
    not moved.
    """

    id: str
    hardware: str
    sku: str
    gpus: int
    nodes: int
    provider: str
    region: str
    spot: bool
    priced_at: float
    source: str
    rate_per_hour_usd: Usd
    planned_rate_per_hour_usd: Usd
    most_rate_per_hour_usd: Usd
    disk_rate_per_hour_usd: Usd
    volume_rate_per_hour_usd: Usd
    storage_usd: Usd
    cost_p10_usd: Usd
    cost_p50_usd: Usd
    cost_p90_usd: Usd
    worst_case_usd: Usd
    limit_usd: Usd | None
    duration_s: Spread
    startup_s: Spread
    soft_stop_s: float
    hard_stop_s: float
    limit_s: float | None
    landing_s: float
    memory_need_gb: float
    memory_least_gb: float
    memory_most_gb: float
    memory_gb: float
    fits_memory: bool
    within_budget: bool
    volume_gb: int
    work_gb: int
    phases: tuple[PlannedPhase, ...]
    notes: tuple[Note, ...]


class PlanBalance(View):
    """The balance that a plan's first machine is paid from, and what live runs hold of it."""

    provider: str
    balance_usd: Usd
    held_usd: Mapping[str, Usd]
    free_usd: Usd
    worst_case_usd: Usd
    missing_usd: Usd


class OwnMachine(View):
    """Hardware of one's own, held against renting."""

    hardware: str
    watts: int
    per_kwh_usd: Usd
    per_hour_usd: Usd
    power_usd: Usd
    duration_s: Spread
    rented_hardware: str | None
    dearer_usd: Usd | None
    sooner_s: float | None
    worth_from_per_hour_usd: Usd | None
    rent_per_own_hour_usd: Usd | None


class SentFiles(View):
    """The files of the working tree that ``run`` sends."""

    files: int
    size_bytes: int


# -- planning --------------------------------------------------------------------------------------


class GoalEvidence(View):
    """A run that reached a goal; ``value`` is in the goal's metric."""

    value: float
    hardware: str
    duration_s: float
    cost_usd: Usd | None
    by: str
    source: str
    day: str


class PlannedGoal(View):
    """A published result; ``higher``: whether a larger value of ``metric`` is a better one."""

    name: str
    title: str
    metric: str
    threshold: float
    higher: bool
    evidence: tuple[GoalEvidence, ...]
    not_shown: tuple[str, ...]


class Planned(View, schema="plan/1"):
    """A plan. ``fits``: whether anything can be launched; ``recommended`` and ``launchable`` are
    ids of ``candidates``, which stand best first. ``limits`` are the plan's limits and switches as
    notes."""

    id: str
    created_at: float
    expires_at: float
    recipe: str
    phases: tuple[str, ...]
    command: tuple[str, ...] | None
    data: str
    objective: str
    deadline_at: float | None
    budget_usd: Usd | None
    cap_usd: Usd | None
    reservation_usd: Usd
    fits: bool
    recommended: str | None
    hardware: str | None
    launchable: tuple[str, ...]
    candidates: tuple[PlannedMachine, ...]
    offers_total: int
    limits: tuple[Note, ...]
    notes: tuple[Note, ...]
    balance: PlanBalance | None = None
    own: OwnMachine | None = None
    sent: SentFiles | None = None
    goal: PlannedGoal | None = None


class RecipeOffer(View):
    recipe: str
    hardware: str
    duration_s: Spread
    cost_p50_usd: Usd
    cost_p90_usd: Usd
    reached: str


class RecipeOffers(View, schema="recipes/1"):
    """The part of each recipe that a budget buys."""

    recipes: tuple[RecipeOffer, ...]


class FinetuneMachine(View):
    hardware: str
    sku: str
    provider: str
    region: str
    rate_per_hour_usd: Usd
    cost_p50_usd: Usd
    cost_p90_usd: Usd
    duration_s: Spread
    memory_gb: float
    need_gb: Mapping[str, float]
    fits_for_certain: bool
    batch: int
    spot: bool
    preemptions: float


class FinetunePlanned(View, schema="finetune-plan/1"):
    """Machines, time and money for training a Hugging Face model further."""

    name: str
    model: Mapping[str, Any]
    finetuning: Mapping[str, Any]
    tokens: int
    recommended: str
    candidates: tuple[FinetuneMachine, ...]
    too_small: tuple[str, ...]


class OfferRow(View):
    sku: str
    gpus: int
    provider: str
    region: str
    instance: str
    rate_per_hour_usd: Usd
    spot: bool
    priced_at: float
    stale: bool
    source: str
    vcpus: int
    ram_gb: float
    community: bool
    own: bool


class Offers(View, schema="prices/1"):
    """Offers that plans are made from; ``gpu`` is the one that was asked about."""

    gpu: str | None
    offers: tuple[OfferRow, ...]


class GuidePrice(View):
    hardware: str
    phase: str
    rate_per_hour_usd: Usd
    batch: int
    accumulation: int
    steps: int
    least_s: float
    most_s: float
    least_usd: float
    most_usd: float


class GuidePrices(View, schema="guide-prices/1"):
    """The guides' historic prices, which no plan is made with."""

    prices: tuple[GuidePrice, ...]


class PriceMove(View):
    """``before_per_hour_usd`` is null for an offer that is new."""

    sku: str
    gpus: int
    provider: str
    region: str
    instance: str
    rate_per_hour_usd: Usd
    before_per_hour_usd: Usd | None


class PriceMoves(View, schema="price-moves/1"):
    """Prices that differ from those before. ``path``: the snapshot, null where none was written."""

    path: str | None
    offers: int
    moved: tuple[PriceMove, ...]
    notes: tuple[Note, ...]


class DataSetRow(View):
    name: str
    title: str
    layout: str
    licence: str
    page: str
    address: str
    tokens: int
    size_bytes: int
    shards: int
    validation: str
    hashes: int
    recipes: tuple[str, ...]


class DataSets(View, schema="data-sets/1"):
    data_sets: tuple[DataSetRow, ...]


class DataReady(View, schema="data/1"):
    """Data that is ready on this machine."""

    name: str
    train_tokens: int
    validation_tokens: int
    folder: str


class CheckRow(View):
    """One check. ``passed`` is null where nothing could be said."""

    code: str
    passed: bool | None
    message: str
    next: str | None = None


class DataChecked(View, schema="data-check/1"):
    source: str
    passed: bool
    checks: tuple[CheckRow, ...]


class BudgetLine(View):
    """A cap and what stands against it. ``cap_usd`` and ``remaining_usd`` are null without one."""

    level: str
    key: str
    cap_usd: Usd | None
    settled_usd: Usd
    reserved_usd: Usd
    remaining_usd: Usd | None
    strays_usd: Usd
    unproven_usd: Usd
    volumes_usd: Usd
    quarantined_usd: Usd


class Budgets(View, schema="budget/1"):
    """The lines that were asked for, or changed."""

    budgets: tuple[BudgetLine, ...]


class CapChange(View):
    changed_at: float
    level: str
    key: str
    cap_usd: Usd | None
    by: str


class CapHistory(View, schema="budget-history/1"):
    changes: tuple[CapChange, ...]


class GrantLine(View):
    """A principal's grant and what stands against it. ``state``: standing, expired or revoked.
    ``left_usd``: the most that a new run can reserve now. ``per_run_usd``, ``per_day_usd`` and
    ``per_month_usd`` are null without such a limit, ``runs_at_once`` is 0 for any number; no
    ``hardware`` or ``providers``: any. ``buckets``: beside the one that this machine is configured
    with."""

    principal: str
    state: str
    total_usd: Usd
    settled_usd: Usd
    reserved_usd: Usd
    left_usd: Usd
    per_run_usd: Usd | None
    per_day_usd: Usd | None
    settled_today_usd: Usd
    reserved_today_usd: Usd
    runs_at_once: int
    live_runs: tuple[str, ...]
    hardware: tuple[str, ...]
    providers: tuple[str, ...]
    expires_at: float | None
    idle_s: float
    given_at: float
    given_by: str
    revoked_at: float | None = None
    per_month_usd: Usd | None = None
    settled_this_month_usd: Usd = ZERO
    reserved_this_month_usd: Usd = ZERO
    buckets: tuple[str, ...] = ()


class ApprovalLine(View):
    """A request for more. ``state``: open, approved or denied; what is null, 0 or empty was not
    asked for."""

    id: str
    principal: str
    state: str
    why: str
    more_usd: Usd
    per_run_usd: Usd | None
    per_day_usd: Usd | None
    runs_at_once: int
    hardware: tuple[str, ...]
    providers: tuple[str, ...]
    expires_at: float | None
    asked_at: float
    answered_at: float | None = None
    answered_by: str = ""
    per_month_usd: Usd | None = None
    asked_by: str = ""


class Grants(View, schema="grant/1"):
    """The grants that were asked for, or changed, and the open requests."""

    grants: tuple[GrantLine, ...]
    requests: tuple[ApprovalLine, ...] = ()


class GrantChange(View):
    """``kind``: given, raised, revoked, asked, approved or denied; ``total_usd`` is what the grant
    allows in total from then on, and null where that does not change."""

    changed_at: float
    kind: str
    principal: str
    total_usd: Usd | None
    request: str
    by: str


class GrantHistory(View, schema="grant-history/1"):
    changes: tuple[GrantChange, ...]


class DamagedRecord(View):
    seq: int
    kind: str | None
    run: str | None


class DamagedRun(View):
    """A run whose records are damaged, and what it counts as."""

    run: str
    records_read: int
    damaged: tuple[int, ...]
    at_most_usd: Usd | None
    settled_usd: Usd | None


class LedgerChecked(View, schema="ledger-check/1"):
    ledger: str
    records: int
    damaged: tuple[DamagedRecord, ...]
    quarantined: tuple[DamagedRun, ...]
    backup: Note | None


class BackupRow(View):
    """``trouble`` is null where the backup is whole."""

    number: int
    path: str
    up_to_seq: int
    made_at: float
    trouble: Note | None


class Backups(View, schema="ledger-backups/1"):
    backups: tuple[BackupRow, ...]


class LedgerRestored(View, schema="ledger-restore/1"):
    """``mended`` are records that were put back one by one; ``backup`` is the one that took the
    ledger's place, null where none did."""

    mended: tuple[int, ...]
    backup: int | None
    up_to_seq: int | None
    newest_known_seq: int | None
    complete: bool
    aside: str | None
    forgotten_runs: tuple[str, ...]


class LedgerMoved(View, schema="ledger-move/1"):
    """``source`` and ``target`` are a file or a URL without its password; ``source`` is null where
    the home had no records."""

    ledger: str
    records: int
    source: str | None
    target: str


class LedgerMigrated(View, schema="ledger-migrate/1"):
    version_before: int
    version_now: int


class DamageCounted(View, schema="ledger-settle/1"):
    name: str
    cost_usd: Usd


class Diagnosis(View, schema="doctor/1"):
    """``checks`` of this machine and its accounts; ``passed`` is null for a warning."""

    passed: bool
    checks: tuple[CheckRow, ...]


class BundleWritten(View, schema="bundle-written/1"):
    """A diagnostic bundle of a run: a file here; nothing was sent."""

    run_id: str
    path: str
    files: tuple[str, ...]
    exchanges: int
    size_bytes: int


class Measured(View, schema="measured/1"):
    """The values that a command of the trainer measured: scores, answers, speeds, by its names."""

    of: str
    values: Mapping[str, Any]


class ScoredTask(View):
    """The score of one task. ``centred`` is (accuracy − b) / (1 − b), b being the accuracy of
    guessing; ``cropped`` and ``not_asked`` count examples that do not fit in the model's sequence.
    """

    name: str
    shots: int
    accuracy: float
    centred: float
    examples: int
    correct: int
    cropped: int
    not_asked: int


class UnscoredTask(View):
    name: str
    message: str


class PublishedScore(View):
    model: str
    score: float
    source: str


class SuiteScore(View, schema="suite-score/1"):
    """A checkpoint's score on a suite of tasks, or on one of them. ``label`` is what the score may
    be called: the suite's name only where it is ``complete``. ``limit``: 0 for all examples."""

    suite: str
    label: str
    score: float | None
    complete: bool
    limit: int
    checkpoint: str
    run: str
    phase: str
    step: int
    sha256: str
    tasks: tuple[ScoredTask, ...]
    left_out: tuple[UnscoredTask, ...]
    reference: PublishedScore | None


class SmokeStep(View, schema="smoke-step/1"):
    """One step of a smoke run; ``passed`` is null where nothing is judged."""

    elapsed_s: float
    spent_usd: Usd
    code: str
    passed: bool | None
    message: str


class SmokeEnded(View, schema="smoke/1"):
    """``verified``: the kill layers that were seen to work for this account."""

    provider: str
    hardware: str
    region: str
    rate_per_hour_usd: Usd
    reservation_usd: Usd
    verified: tuple[str, ...]


class TrainingCheck(View):
    """One check of a trainer on a machine. ``passed`` is null where it cannot be made there."""

    name: str
    passed: bool | None
    message: str
    elapsed_s: float
    measured: Mapping[str, float]


class TrainingChecked(View, schema="smoke-train/1"):
    """``taught``: whether plans use the step that was timed."""

    run_id: str
    hardware: str
    recipe: str
    spent_usd: Usd
    is_miniature: bool
    taught: bool
    checks: tuple[TrainingCheck, ...]


class GuardStatus(View, schema="guard/1"):
    """The guard of this machine. ``installed``: systemd or cron; null for none."""

    installed: str | None
    every_s: float | None
    last_visit_at: float | None
    machine: str | None
    reached: tuple[str, ...]
    notes: tuple[Note, ...]


class NoticeTarget(View):
    """A destination of notifications. Of its address the host alone is shown."""

    name: str
    way: str
    where: str
    only: tuple[str, ...]
    on_pod: bool
    last_told_at: float | None
    waiting: int
    trouble: Note | None
    gave_up: str | None


class NoticeTargets(View, schema="notify/1"):
    """``secret`` is that of a webhook that was just made, and is shown once."""

    destinations: tuple[NoticeTarget, ...]
    secret: str | None = None


class NoticesTried(View, schema="notify-test/1"):
    passed: bool
    checks: tuple[CheckRow, ...]


class Amounts(View):
    """A distribution of money over plays."""

    min_usd: Usd
    p50_usd: Usd
    p90_usd: Usd
    max_usd: Usd


class TimelineEntry(View):
    after_s: float
    message: str
    code: str


class BrokenPlay(View):
    seed: int
    code: str
    message: str


class Rehearsed(View, schema="rehearsal/1"):
    """A planned run, played in a simulated world. ``launch_refused``: why a launch of it would be
    refused."""

    plan: str
    plays: int
    cap_usd: Usd | None
    spent: Amounts
    outcomes: Mapping[str, int]
    ended_by: Mapping[str, int]
    steps_saved: Mapping[str, float]
    habits: Mapping[str, int]
    plays_without_checkpoint: int | None
    training_kept_s: Mapping[str, float]
    over_budget_exposed_usd: float
    exposed_s: float
    faults_felt: Mapping[str, int]
    violations: tuple[BrokenPlay, ...]
    timeline: tuple[TimelineEntry, ...]
    launch_refused: Note | None


class TrialCheck(View):
    """``result``: passed, failed or unknown."""

    code: str
    result: str
    message: str
    next: str | None
    details: tuple[Note, ...]


class Tried(View, schema="trial/1"):
    """A command that was run here for a minute. ``run_command`` is the line that rents for it."""

    code_sha256: str
    command: tuple[str, ...]
    tried_at: float
    ran_for_s: float
    passed: bool
    checks: tuple[TrialCheck, ...]
    run_command: str | None
    not_contained: tuple[Note, ...]
    differences: tuple[Note, ...]


# -- running ---------------------------------------------------------------------------------------


class Launched(View, schema="launch/1"):
    """A run that was launched, or resumed. ``existing``: the same idempotency key was used before,
    and this is the run of that use. ``hard_stop_at`` is null before there is a machine."""

    run: str
    name: str | None
    tags: Mapping[str, str]
    idempotency_key: str | None
    existing: bool
    principal: str | None
    plan: str
    recipe: str
    project: str
    hardware: str
    provider: str | None
    region: str | None
    state: str
    outcome: str | None
    live: bool
    detached: bool
    created_at: float
    cap_usd: Usd
    reserved_usd: Usd
    worst_case_usd: Usd
    spent_usd: Usd
    rate_per_hour_usd: Usd | None
    lands_at: float | None
    hard_stop_at: float | None
    hard_stop_s: float
    reason: Note | None


class RunEvent(View, schema="event/1"):
    """One event on record of a run. ``facts`` are those of its kind in the ledger, ``message`` says
    it in a sentence; ``severity``: record, mark, news or alert, each more urgent than the one
    before."""

    run: str
    id: int
    happened_at: float
    kind: str
    severity: str
    message: str
    facts: Mapping[str, Any]


class RunEnded(RunView, schema="run/1"):
    """The last line about a run that was followed; it may still be live where it was left."""


class Statuses(View, schema="status/1"):
    """Runs, the oldest first. ``damaged`` are runs whose records cannot be read; ``done`` is what
    this command did before: pods that it ended, events that it caught up with."""

    runs: tuple[RunView, ...]
    damaged: tuple[DamagedRun, ...]
    done: tuple[Note, ...]


class ExportedFiles(View, schema="export/1"):
    """Files that stand by themselves, and what they may cost."""

    form: str
    files: tuple[str, ...]
    hardware: str | None
    duration_s: Spread | None
    cost_p50_usd: Usd | None
    worst_case_usd: Usd | None
    hard_stop_s: float | None
    notes: tuple[Note, ...]


class Serving(View, schema="serving/1"):
    """A server that answers at ``url`` from now on. ``run`` is what was named, null for the
    newest, or all; ``token`` is what each request needs, null for none."""

    of: str
    run: str | None
    url: str
    token: str | None


class FocusWritten(View, schema="focus-written/1"):
    """A month's charges as a CSV file of FOCUS 1.0."""

    month: str
    path: str
    rows: int
    billed_usd: Usd
    size_bytes: int


class LogLine(View, schema="log/1"):
    """One line of a run's training log."""

    run: str
    phase: str
    text: str


class Login(View, schema="ssh/1"):
    """The command that logs in to a run's pod, with the key that was made for it."""

    run: str
    pod: str
    provider: str
    argv: tuple[str, ...]


class Saved(View, schema="save/1"):
    """A checkpoint that was asked for; null fields where it was not waited for."""

    run: str
    checkpoint: str | None
    val_bpb: float | None
    metric: OwnMetric | None
    sha256: str | None
    size_bytes: int | None
    place: str | None
    safe: bool
    kept: bool
    reported_by: str | None


class Stopped(View, schema="stop/1"):
    """A run that was told to end, and not waited for. ``asked``: land or end."""

    run: str
    asked: str
    state: str
    live: bool


class EndedPod(View):
    """``asked``: whether its provider took the request to end it."""

    provider: str
    pod: str
    rate_per_hour_usd: Usd | None
    asked: bool
    reason: Note | None


class Unreachable(View):
    provider: str
    message: str
    code: str = "no_list"


class Reaped(View, schema="reap/1"):
    """Pods that no live run owns, or those of a name. ``reconciled``: whether the ledger accounts
    for all that may exist."""

    run: str | None
    ledger: str | None
    orphans: tuple[EndedPod, ...]
    done: tuple[Note, ...]
    unreachable: tuple[Unreachable, ...]
    reconciled: bool | None
    recorded: bool | None


class VolumeRow(View):
    id: str
    name: str
    provider: str
    data_centre: str
    size_gb: float
    per_month_usd: Usd
    per_day_usd: Usd


class Volumes(View, schema="volumes/1"):
    """Network volumes of this ledger; ``deleted``: whether they were deleted just now."""

    volumes: tuple[VolumeRow, ...]
    deleted: bool = False


class MetricsSent(View, schema="metrics-sent/1"):
    run: str
    where: str
    lines: int


# -- after -----------------------------------------------------------------------------------------


class Sampled(View, schema="sample/1"):
    checkpoint: str
    text: str


class FetchedRival(View):
    """A fetched checkpoint that may be better than the one called best. ``name``: its script's."""

    checkpoint: str
    name: str
    metric: OwnMetric | None
    sha256: str
    folder: str


class Fetched(View, schema="fetched/1"):
    """A checkpoint on this machine's disk, every hash verified. ``unsure`` says why it may not be
    the best, and is null where it is; ``rivals`` are fetched, too."""

    run: str
    checkpoint: str
    val_bpb: float | None
    metric: OwnMetric | None
    sha256: str
    folder: str
    already_there: bool
    unsure: str | None
    rivals: tuple[FetchedRival, ...]


class Exported(View, schema="exported/1"):
    """A checkpoint in another format. ``verified_by``: the software that computed its logits, and
    its version; ``largest_difference`` of one from the trainer's. Without either, ``not_verified``
    says why."""

    folder: str
    format: str
    architecture: str
    size_bytes: int
    verified_by: str | None
    largest_difference: float | None
    not_verified: str | None


class Adopted(Fetched, schema="adopted/1"):
    """An exported script's training, and its cost by its own account; its bill is not
    known."""

    recipe: str
    hardware: str
    outcome: str | None
    starts: int
    used_s: float
    rate_per_hour_usd: Usd
    accounted_usd: Usd
    planned_usd: Usd
    worst_case_usd: Usd


class PrunedPlace(View):
    """``place``: here, pod or bucket. ``drop_optimizer``: checkpoints that lose their optimizer's
    state alone."""

    place: str
    delete: tuple[str, ...]
    keep: tuple[str, ...]
    drop_optimizer: tuple[str, ...]
    freed_bytes: int


class Pruned(View, schema="prune/1"):
    """The checkpoints of a run that go and stay; ``deleted``: whether it was done, or is what
    ``-y`` would do."""

    run: str
    deleted: bool
    freed_bytes: int
    places: tuple[PrunedPlace, ...]


class RunReported(RunAccount):
    sweep: SweepProgress | None


class Reports(View, schema="report/1"):
    runs: tuple[RunReported, ...]


class MonthLine(View):
    cap_usd: Usd | None
    spent_usd: Usd
    reserved_usd: Usd
    left_usd: Usd | None
    unproven_usd: Usd


class MonthShare(MonthLine):
    name: str
    runs: int


class SpentBy(View):
    until_at: float
    spent_usd: Usd


class Month(View, schema="month/1"):
    """A month's money; ``html`` is the page that was written."""

    month: str
    budget: MonthLine
    account: MonthLine
    projects: tuple[MonthShare, ...]
    providers: tuple[MonthShare, ...]
    kinds: tuple[MonthShare, ...]
    runs: tuple[str, ...]
    grown: tuple[SpentBy, ...]
    html: str | None
    project_months: tuple[MonthShare, ...] = ()
    """Of the projects that have a cap for the month."""


class ReceiptWritten(View, schema="receipt/1"):
    """A receipt. ``receipt`` is its data in the receipt's own format, which ``report --verify``
    reads."""

    run: str
    path: str
    size_bytes: int
    final: bool
    receipt: Mapping[str, Any]


class VerifyCheck(View):
    """``verdict``: matches, broken or open."""

    code: str
    verdict: str
    message: str


class Verified(View, schema="verify/1"):
    run: str
    matches: bool
    checks: tuple[VerifyCheck, ...]


# -- errors ----------------------------------------------------------------------------------------


class Failure(View, schema="error/1"):
    """A command that failed: ``code`` is a stable word, ``next`` what to do."""

    code: str
    exit_code: int
    message: str
    next: str | None


def all_documents() -> dict[str, type[Any]]:
    """Return every document by its ``schema``, in the order of this file."""
    found = {}
    for kind in globals().values():
        if isinstance(kind, type) and isinstance(name := vars(kind).get("schema"), str):
            found[name] = kind
    return found


STREAMS = ("event/1", "log/1", "smoke-step/1")
"""Documents that are lines of a stream, beside the one that the command is about."""
