"""Facts of a ledger: its runs, caps and charges, and the volumes that outlive their pods. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field

from trmcloud.core.catalog.offers import DAY_S
from trmcloud.core.contract.bucket import CachedFile
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import TERMINATE
from trmcloud.core.control.reason import Reason, ReasonKind, make_reason
from trmcloud.core.control.run_book import present_runs
from trmcloud.core.control.run_state import Generation, Payer, RunState
from trmcloud.core.money import Usd, cost
from trmcloud.core.spec.spec import DELETE, DELETE_FETCHED
from trmcloud.core.values import Value, replace

# What a ledger says, as data: its runs, caps and charges. What follows from it for a budget
# stands in ``budget``, for volumes in ``kept_volumes``, for pods that no run owns in
# ``orphan_costs``. Pure.


class StrayPod(Value):
    """The charge for one such pod. ``run_id`` is empty where no run here is of its name; ``since``
    is the earliest that it can have been made, ``at`` when it was first charged and ``charged_at``
    when last."""

    provider: str
    pod_id: str
    pod_name: str
    run_id: str
    since: float
    at: float
    amount: Usd
    billed: Usd | None = None
    charged_at: float = 0.0

    @property
    def cost(self) -> Usd:
        return self.amount if self.billed is None else self.billed


class RestoredCopy(Value):
    """An older copy of the ledger was accepted at ``at``: it knows nothing after ``since``. Until
    ``reconciled_at`` nothing is reserved."""

    at: float
    since: float
    reconciled_at: float | None = None


class LostRecord(Value):
    """Record ``seq`` is not what was written. ``run_id`` is empty where it is of the whole ledger,
    ``kind`` where it cannot be told."""

    seq: int
    kind: str
    run_id: str

    @property
    def name(self) -> str:
        return f"#{self.seq}"


class Quarantine(Value):
    """A run of whose records ``read`` are whole and those numbered ``lost`` are not.

    ``most``: what it may have cost at the most, None where that is not known. ``project`` and
    ``reserved_at`` are None where they are not known: then every project, every month bears it.
    ``settled``: what a user has said that it cost, at ``settled_at``. ``created_at``: the time of
    the first record that can be read, 0 where none can. ``pods``: ids of the pods that it owns, as
    far as that can be read.
    """

    run_id: str
    read: int
    lost: tuple[int, ...]
    most: Usd | None
    project: str | None = None
    reserved_at: float | None = None
    settled: Usd | None = None
    settled_at: float = 0.0
    created_at: float = 0.0
    pods: tuple[str, ...] = ()
    principals: tuple[str, ...] | None = None
    """Those whose grants may have paid for it; None: that is not known, and all bear it."""
    may_live: bool = True
    """Whether it may not have ended."""

    @property
    def is_open(self) -> bool:
        """Whether nothing can be reserved before somebody says what it cost."""
        return self.most is None and self.settled is None

    @property
    def words(self) -> str:
        return f"its records are damaged; {self.read} of {self.read + len(self.lost)} could be read"


class Grant(Value):
    """A principal's grant, the ``number``-th of theirs, as it stands: what it allows, since when
    and by whom; ``revoked_at``: nothing is reserved under it since then."""

    principal: str
    number: int
    terms: ev.GrantTerms
    given_at: float
    by: str = ""
    revoked_at: float | None = None
    ends_at_once: bool = False
    """Whether its runs end without landing."""

    @property
    def payer(self) -> Payer:
        return Payer(self.principal, self.number)


class Approval(Value):
    """A principal's request for more under their grant of that number; ``is_given`` is None until
    it is answered."""

    asked: ev.ApprovalAsked
    asked_at: float
    grant: int
    is_given: bool | None = None
    answered_at: float = 0.0
    by: str = ""

    @property
    def id(self) -> str:
        return self.asked.id


class LedgerFacts(Value):
    """Everything that the records of a ledger add up to."""

    ledger_id: str
    runs: Mapping[str, RunState] = field(default_factory=dict)
    caps: Mapping[tuple[str, str], Usd] = field(default_factory=dict)
    cap_history: tuple[ev.Record, ...] = ()
    verified: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """(provider, kill layer) → when it was last seen to work, epoch s."""
    strays: Mapping[tuple[str, str], StrayPod] = field(default_factory=dict)
    """By (provider, pod id)."""
    restored: RestoredCopy | None = None
    deleted_volumes: Mapping[tuple[str, str], tuple[float, ...]] = field(default_factory=dict)
    """By (provider, place): when the ledger's network volume there was deleted, epoch s."""
    tokens: Mapping[tuple[str, str], tuple[CachedFile, ...]] = field(default_factory=dict)
    """By (bucket, key): files of token caches as they were first seen, oldest first."""
    data: Mapping[str, ev.DataPinned] = field(default_factory=dict)
    """By source: the revision of a data set that was pinned last."""
    quarantined: Mapping[str, Quarantine] = field(default_factory=dict)
    """Runs with damaged records, which are not among ``runs``."""
    unread: tuple[LostRecord, ...] = ()
    """Damaged records of the whole ledger that stop reservations."""
    low_balances: Mapping[str, ev.BalanceLow] = field(default_factory=dict)
    """By provider: the last warning of an account's balance, until it lasts again."""
    grants: Mapping[str, Grant] = field(default_factory=dict)
    """By principal: their latest grant."""
    approvals: Mapping[str, Approval] = field(default_factory=dict)
    """By id, the earliest first."""
    grant_history: tuple[ev.Record, ...] = ()


# Network volumes that outlive their pods: until when their rent is reserved, and what then. Pure.
#
# A volume is the ledger's own, one for each provider and data centre, and is billed by the hour
# until it is deleted. A run that keeps its checkpoints there reserves that rent, from its own
# reservation on, until a stated day. After that the reaper deletes it if every run that used it
# agreed to that; else its rent continues beyond every budget, which is shown beside all money.

ERRAND = "fetch"
"""The prefix of candidates' ids that are rented to fetch checkpoints."""


class Hold(Value):
    """The rent of a volume for one pod of a run: reserved from ``since`` to ``until`` (epoch s),
    apart from what another run reserves for the same time. ``deleted_at``: when it was deleted."""

    run_id: str
    provider: str
    place: str
    size_gb: int
    rate: Usd
    since: float
    until: float
    then: str
    fetched: bool
    deleted_at: float | None = None
    payer: Payer = field(default_factory=Payer)
    """The pod's."""

    @property
    def amount(self) -> Usd:
        """The amount that it takes of the budgets: all until its day, or until its deletion before
        that."""
        end = self.until if self.deleted_at is None else min(self.until, self.deleted_at)
        return cost(self.rate, max(0.0, end - self.since))

    def accrued(self, now: float) -> Usd:
        """Of that, what it has cost by ``now``."""
        return min(self.amount, cost(self.rate, max(0.0, now - self.since)))

    @property
    def per_day(self) -> Usd:
        return cost(self.rate, DAY_S)

    @property
    def may_be_deleted(self) -> bool:
        """Whether its run agreed, and what was asked for first is done."""
        return self.then == DELETE or (self.then == DELETE_FETCHED and self.fetched)


class DueVolume(Value):
    """A volume whose day has come. ``why_kept`` says why it is not deleted; None where it is."""

    provider: str
    place: str
    per_day: Usd
    since: float
    why_kept: Reason | None

    def beyond(self, now: float) -> Usd:
        """Return its cost since its day, beyond every budget."""
        return Usd.from_micros(round(self.per_day.micros * max(0.0, now - self.since) / DAY_S))


def holds(ledger: LedgerFacts) -> tuple[Hold, ...]:
    """Every pod's of every run, the earliest first; what two reserve for the same hour of a volume
    counts once, and what nobody reserved, between one's day and the next pod, not at all."""
    found: list[Hold] = []
    ends: dict[tuple[str, str], float] = {}
    mine = [hold for run in present_runs(ledger.runs) for hold in _holds_of(run)]
    for hold in sorted(mine, key=lambda each: (each.since, each.run_id)):
        place = hold.provider, hold.place
        deleted = ledger.deleted_volumes.get(place, ())
        hold = replace(hold, deleted_at=next((at for at in deleted if at >= hold.since), None))
        since = max(hold.since, ends.get(place, hold.since))
        hold = replace(hold, since=min(since, hold.until))
        ends[place] = max(ends.get(place, 0.0), hold.until)
        if hold.deleted_at is not None:
            ends[place] = min(ends[place], hold.deleted_at)
        found.append(hold)
    return tuple(found)


def holds_of(ledger: LedgerFacts, run_id: str) -> tuple[Hold, ...]:
    if not _keeps(ledger.runs[run_id]):
        return ()
    return tuple(hold for hold in holds(ledger) if hold.run_id == run_id)


def is_deleted(ledger: LedgerFacts, run_id: str) -> bool:
    """Whether the volume that the run's last pod saved on is no more."""
    mine = holds_of(ledger, run_id)
    return bool(mine) and max(mine, key=lambda hold: hold.until).deleted_at is not None


def due_volumes(ledger: LedgerFacts, now: float) -> tuple[DueVolume, ...]:
    """Volumes whose last stated day is over, and that nothing lives on."""
    if ledger.quarantined:
        return ()  # a run that cannot be read may have saved there
    by_place: dict[tuple[str, str], list[Hold]] = {}
    for hold in holds(ledger):
        if hold.deleted_at is None:
            by_place.setdefault((hold.provider, hold.place), []).append(hold)
    found = []
    for (provider, place), mine in by_place.items():
        until = max(hold.until for hold in mine)
        if now < until or _in_use(ledger, provider, place):
            continue
        per_day = max(hold.per_day for hold in mine)
        found.append(DueVolume(provider, place, per_day, until, _why_kept(mine)))
    return tuple(found)


def _why_kept(mine: Iterable[Hold]) -> Reason | None:
    kept = [hold for hold in mine if not hold.may_be_deleted]
    unfetched = [hold for hold in kept if hold.then == DELETE_FETCHED]
    if not kept:
        return None
    kind = ReasonKind.NOT_FETCHED if unfetched else ReasonKind.NOT_AGREED
    return make_reason(
        kind, runs=", ".join(dict.fromkeys(hold.run_id for hold in unfetched or kept))
    )


def rents_volume(run: RunState) -> bool:
    """Whether the run's plan reserves the rent of a volume."""
    return _keeps(run) and any(candidate.volume_rate for candidate in run.plan.candidates)


def _keeps(run: RunState) -> bool:
    return run.recorded_plan is not None and run.spec.volume


def _holds_of(run: RunState) -> list[Hold]:
    """One for each of its settled pods, or of the creates for one."""
    if not _keeps(run):
        return []
    found = []
    for generation in run.generations:
        candidate, ended_at = run.candidate(generation.candidate_id), _ended_at(run, generation)
        if candidate is None or ended_at is None or generation.candidate_id.startswith(ERRAND):
            continue
        hold = Hold(
            run_id=run.run_id,
            provider=generation.provider,
            place=candidate.region,
            size_gb=candidate.volume_gb,
            # A plan of an earlier version reserved none; its run has agreed to no end either.
            rate=candidate.volume_rate,
            since=generation.intended_at,
            until=ended_at + run.spec.volume_days * DAY_S,
            then=run.spec.volume_then,
            fetched=_is_fetched(run),
            payer=generation.payer,
        )
        found.append(hold)
    return found


def _ended_at(run: RunState, generation: Generation) -> float | None:
    """When its reservation was given up: from then on the rent is held apart."""
    if generation.not_made is not None:
        # A volume is made before its pod is asked for, and stays where none is had.
        return generation.intended_at if run.tries(generation) else None
    if generation.settled is None or generation.ended_at is None:
        return None
    absence, gone_at = generation.absence, generation.gone_at
    if absence is None or gone_at is None or generation.ended_at > absence.since:
        return generation.ended_at
    # From lists that lacked it, which they may have done for as long as it was allowed to live.
    return max(generation.ended_at, min(gone_at, generation.hard_stop_at))


def _is_fetched(run: RunState) -> bool:
    """Whether a machine that was rented for it brought home all that is best and latest there,
    verified, after the last one that trained; or none ever did."""
    trained = [
        generation.number
        for generation in run.generations
        if generation.agent_at is not None and not generation.candidate_id.startswith(ERRAND)
    ]
    if not trained:
        return True
    if not run.pulled or run.live:
        return False
    return any(
        action.verb == TERMINATE and action.reason == make_reason(ReasonKind.SAVED_HERE)
        for generation in run.generations
        if generation.number > trained[-1]
        for action in run.tries(generation)
    )


def _in_use(ledger: LedgerFacts, provider: str, place: str) -> bool:
    """Whether a live run keeps, or is about to keep, what it saves there."""
    for run in present_runs(ledger.runs):
        if not run.live or not _keeps(run):
            continue
        if any((c.provider, c.region) == (provider, place) for c in run.plan.candidates):
            return True
    return False
