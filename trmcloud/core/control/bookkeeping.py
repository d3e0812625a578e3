"""The rules for writing to a ledger, whatever its storage, and for the whole ledger's
budgets. Pure.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from trmcloud.core.catalog.providers import TRAITS, find_traits, traits_of
from trmcloud.core.clock import DatedFact, Maybe
from trmcloud.core.contract.pod_contract import PodName, parse_pod_name
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import (
    LEVELS,
    PROJECT_MONTH,
    LedgerState,
    Line,
    Refusal,
    admit,
    extend_ledger,
    is_owned,
    overdrawn,
    owned_pods,
    with_run_event,
)
from trmcloud.core.control.grants import (
    MOST_A_DAY,
    MOST_OPEN,
    allows_less,
    day_of,
    is_principal,
    raised,
    refuse_by_grant,
)
from trmcloud.core.control.ledger_facts import Grant, LedgerFacts, Quarantine, StrayPod
from trmcloud.core.control.observation import PodSeen
from trmcloud.core.control.reason import Reason, ReasonKind, make_reason
from trmcloud.core.control.run_book import KEY, find_runs, present_runs
from trmcloud.core.control.run_state import Generation, IllegalTransition, RunState, State
from trmcloud.core.errors import (
    BudgetRefused,
    ConflictError,
    GrantRefused,
    NotFoundError,
    RunQuarantined,
    StaleEpoch,
    UsageError,
)
from trmcloud.core.money import ZERO, Usd, affordable_seconds, cost
from trmcloud.core.values import Value, replace

if TYPE_CHECKING:
    from trmcloud.core.control.observation import Bill

# Budgets of the whole ledger, and pods that no run owns: their costs and their end. Pure.

# Pods of this ledger that no generation of it owns, and what they cost. Pure.
#
# A provider may make two pods for one create, or one long after it said no; a ledger restored
# from a backup has forgotten some. Their money is real: it is charged to every budget that it
# belongs to at the most that it can be, and corrected when the provider's bill is final.

AHEAD_S = 600.0
"""So far ahead a pod that still lives is charged, so that not every look writes a record."""
_LONGEST_S = 30 * 86_400.0
"""No pod is taken to be older, where a ledger that knows nothing at all was restored."""


def make_charges(
    ledger: LedgerFacts,
    provider: str,
    pods: Collection[PodSeen],
    now: float,
    ending: Collection[str] = (),
) -> tuple[ev.StrayCharged, ...]:
    """Make the charges for pods that ``provider`` lists and no run here owns.

    Those that are gone count too, as long as they are listed: they were made, and are billed.
    ``ending`` are ids of pods that are ended now. One of them that bears an awaited name may be
    its run's; where that comes to own it, the charge is dropped, and where it comes to own
    another of the name, nobody would see this one again. The same holds for a pod of a run in
    quarantine, unless a record that can be read says that the run owns it.
    """
    known = owned_pods(ledger.runs, (pod.pod_id for pod in pods))
    if all(pod.pod_id in known for pod in pods):
        return ()
    latest = (g for run in present_runs(ledger.runs) if run.live for g in run.open_generations)
    awaited = {g.pod_name for g in latest if g.pod_id is None}
    made = []
    for pod in pods:
        if pod.pod_id in known or (pod.name in awaited and pod.pod_id not in ending):
            continue
        name = parse_pod_name(pod.name)
        if name is None or name.ledger != ledger.ledger_id:
            continue
        hurt = _quarantine_of(ledger, name)
        if hurt is not None and (pod.pod_id in hurt.pods or pod.pod_id not in ending):
            continue  # what its run has reserved holds the money for it
        charge = _charge(ledger, provider, pod, name, now)
        if charge is not None:
            made.append(charge)
    return tuple(made)


def _charge(
    ledger: LedgerFacts, provider: str, pod: PodSeen, name: PodName, now: float
) -> ev.StrayCharged | None:
    before = ledger.strays.get((provider, pod.pod_id))
    if before is not None and before.billed is not None:
        return None
    run_id = _run_named(ledger, name)
    since = before.since if before is not None else _made_since(ledger, pod, run_id, now)
    gone = pod.gone
    until = pod.ended_at if pod.ended_at is not None else now
    spent_s = max(0.0, until - since) + traits_of(provider).kill_latency_s
    rate = pod.rate + pod.disk_rate
    if before is not None and cost(rate, spent_s) <= before.amount:
        return None
    amount = cost(rate, spent_s if gone else spent_s + AHEAD_S)
    if not amount:
        return None
    return ev.StrayCharged(provider, pod.pod_id, pod.name, run_id, since, amount)


def _made_since(ledger: LedgerFacts, pod: PodSeen, run_id: str, now: float) -> float:
    """The earliest that a pod can have been made: its intent came first, wherever that is."""
    if pod.made_at is not None:
        return pod.made_at
    run = ledger.runs.get(run_id)
    for generation in run.generations if run is not None else ():
        if generation.pod_name == pod.name:
            return generation.intended_at
    if ledger.restored is not None:
        return max(ledger.restored.since, now - _LONGEST_S)
    if run_id in ledger.quarantined:
        return ledger.quarantined[run_id].created_at or now
    return run.created_at if run is not None else now


def _run_named(ledger: LedgerFacts, name: PodName) -> str:
    """The id of the run that a pod's name names; empty where it is not known. A name is without
    the run id's hyphen, which stands after its first letter in every id that is made here."""
    likely = f"{name.run_id[:1]}-{name.run_id[1:]}"
    if likely in ledger.runs:
        return likely
    ours = (*ledger.runs, *ledger.quarantined)
    return next((run_id for run_id in ours if run_id.replace("-", "") == name.run_id), "")


def _quarantine_of(ledger: LedgerFacts, name: PodName) -> Quarantine | None:
    """The quarantine of the run that a pod's name names, if it is in one."""
    hurt = ledger.quarantined.items()
    return next((each for run_id, each in hurt if run_id.replace("-", "") == name.run_id), None)


def orphans_awaiting_bill(ledger: LedgerFacts) -> tuple[StrayPod, ...]:
    """Those whose final bill is not in yet."""
    return tuple(stray for stray in ledger.strays.values() if stray.billed is None)


def orphan_bill(stray: StrayPod, bill: Bill | None) -> ev.StrayBilled | None:
    if bill is None or not bill.final or bill.pod_id != stray.pod_id:
        return None
    return ev.StrayBilled(stray.provider, stray.pod_id, bill.amount)


def is_charge_pending(ledger: LedgerFacts) -> bool:
    """Whether an older copy was accepted, and what it has forgotten is not accounted for yet."""
    return ledger.restored is not None and ledger.restored.reconciled_at is None


def is_orphan_reconciled(
    ledger: LedgerFacts, listed: Mapping[str, Iterable[PodSeen]], orphans: int, now: float
) -> bool:
    """Whether a restored ledger knows all that lives again.

    ``listed`` holds every provider that could have a pod of ours, ``orphans`` how many of those
    are nobody's: each is to be ended first. Until a pod that was asked for before the restoration
    must have appeared, a list proves nothing; nor does one that lacks a stray which may only be
    missing from it.
    """
    restored = ledger.restored
    if restored is None or restored.reconciled_at is not None or orphans:
        return False
    if any(_may_live(stray, now) for stray in orphans_awaiting_bill(ledger)):
        return False
    settled_s = max((traits_of(name).create_settle_s for name in listed), default=0.0)
    return now >= restored.at + settled_s


def _may_live(stray: StrayPod, now: float) -> bool:
    """Whether one without a final bill may still be there, though no list shows it.

    One that is listed is charged ahead, again and again. So where it is charged no more, and what
    it was charged ahead with is over, it has been missing from all lists since.
    """
    absent_s = traits_of(stray.provider).absence.missing_s
    return absent_s > 0 and now < stray.charged_at + AHEAD_S + absent_s


# Budgets at all levels and pods nobody owns: what the ledger as a whole asks for. Pure.

_LANDABLE = (State.RESERVED, State.RENTING, State.BOOTING, State.RUNNING)


class Orphan(Value):
    """A pod of ours that no live run owns."""

    pod: PodSeen
    reason: Reason


class Governance(Value):
    """The ledger's demands as a whole, each part computed when it is asked for."""

    ledger: LedgerState
    pods: Maybe[tuple[PodSeen, ...]]
    now: float

    @property
    def drive(self) -> tuple[str, ...]:
        """Runs that somebody has to drive."""
        return tuple(run.run_id for run in present_runs(self.ledger.runs) if run.live)

    @property
    def land(self) -> tuple[tuple[str, Reason], ...]:
        """Runs whose budget, at any level, is below what it holds: (run id, reason)."""
        land = []
        for run in present_runs(self.ledger.runs):
            if run.state not in _LANDABLE:
                continue
            revoked = _revocation(self.ledger, run)
            if revoked is not None:
                land.append((run.run_id, revoked))
                continue
            if run.stop is not None:
                continue
            for line in overdrawn(self.ledger, run, self.now):
                why = _why_land(run, line, self.now)
                if why is not None:
                    land.append((run.run_id, why))
                    break
        return tuple(land)

    @property
    def orphans(self) -> tuple[Orphan, ...]:
        """Pods to end: ours by name, and nobody's, or past their own hard stop.

        A live run ends its pod itself. Where that has come to nothing once all the time is over
        that was reserved for it, the pod is ended all the same, whatever the run is thought of.
        """
        if not isinstance(self.pods, DatedFact):
            return ()
        owned: dict[str, Generation] = {}
        for run in present_runs(self.ledger.runs):
            if run.live:
                owned |= {each.pod_name: each for each in run.open_generations}
        kept = {run_id.replace("-", "") for run_id in self.ledger.quarantined}
        orphans = []
        for pod in self.pods.value:
            if pod.gone:
                continue
            name = parse_pod_name(pod.name)
            if name is None:
                continue
            owner = owned.get(pod.name)
            if owner is not None:
                if owner.pod_id not in (None, pod.pod_id):
                    orphans.append(Orphan(pod, make_reason(ReasonKind.NAME_TWICE)))
                elif self.now > owner.hard_stop_at + _kill_latency_s(owner.provider):
                    orphans.append(Orphan(pod, make_reason(ReasonKind.OUTLIVED_HARD_STOP)))
            elif name.ledger == self.ledger.ledger_id and name.run_id in kept:
                # Its run cannot be read: it has the time that was reserved for it, and no more.
                # By whom it was rented stands in what cannot be read.
                latest_s = max(traits.kill_latency_s for traits in TRAITS.values())
                if self.now > name.hard_stop_at + latest_s:
                    orphans.append(Orphan(pod, make_reason(ReasonKind.HARD_STOP_PASSED)))
            elif name.ledger == self.ledger.ledger_id:
                orphans.append(Orphan(pod, make_reason(ReasonKind.NO_OWNER)))
            elif self.now > name.hard_stop_at:
                orphans.append(Orphan(pod, make_reason(ReasonKind.HARD_STOP_PASSED)))
        return tuple(orphans)


def _revocation(ledger: LedgerState, run: RunState) -> Reason | None:
    """Why a run lands, or ends at once, whose grant is revoked; None where it is not, or the run
    was told to already."""
    grant = ledger.grants.get(run.payer.principal) if run.payer.principal else None
    if grant is None or (run.payer == grant.payer and grant.revoked_at is None):
        return None
    at_once = run.payer == grant.payer and grant.ends_at_once
    if run.stop is not None and (run.stop.at_once or not at_once):
        return None
    kind = ReasonKind.GRANT_REVOKED_NOW if at_once else ReasonKind.GRANT_REVOKED
    return make_reason(kind, principal=run.payer.principal)


def _kill_latency_s(provider: str) -> float:
    traits = find_traits(provider)
    return traits.kill_latency_s if traits is not None else 0.0


def _why_land(run: RunState, line: Line, now: float) -> Reason | None:
    """Why a run lands now that holds more than ``line`` allows; None while it may go on.

    Where only pods that nobody asked for have used up what it holds, it gives up the end of its
    time: as much as costs what they did.
    """
    if line.over > line.strays:
        return make_reason(ReasonKind.BUDGET_CUT, level=line.level, cap_usd=line.cap or ZERO)
    generation = run.generation
    if run.state is State.RESERVED or generation is None:
        return None
    if now < generation.soft_stop_at - affordable_seconds(line.over, generation.rate):
        return None
    return make_reason(ReasonKind.ORPHANS_COST, level=line.level, orphans_usd=line.strays)


def govern(ledger: LedgerState, pods: Maybe[tuple[PodSeen, ...]], now: float) -> Governance:
    """Budgets at all levels, and pods nobody owns.

    A pod is only ever called an orphan when its name is one of ours and either it bears this
    ledger's id and no open generation here owns it, or its own hard stop has passed. ``pods``
    must have been listed *before* the ledger was read: a run launched in between would seem to
    be nobody's.
    """
    return Governance(ledger, pods, now)


# The rules for writing to a ledger, whatever its storage.
#
# Pure: every ledger asks here, under its own lock, and then stores the records it is given. Money
# cannot be reserved past a cap by any way of writing, since each ``Reserved`` is judged here.

_MONTH = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])")
_WISHES = (ev.StopRequested, ev.SaveRequested, ev.Fetched)


def add_events(
    ledger: LedgerState,
    last_seq: int,
    run_id: str,
    epoch: int,
    events: Sequence[ev.RunEvent],
    at: float,
) -> tuple[LedgerState, tuple[ev.Record, ...]]:
    """The state after ``events`` of one run, and the records to be stored: all or none.

    Raises:
        IllegalTransition: an event that cannot happen.
        BudgetRefused: a reservation that a level has no money for.
    """
    records: list[ev.Record] = []
    run = ledger.runs.get(run_id) or RunState(run_id)
    for event in events:
        record = ev.Record(last_seq + len(records) + 1, run_id, epoch, at, event)
        moved = with_run_event(ledger, record)
        if isinstance(event, ev.Reserved):
            require_money(ledger, run, event.amount, at)
        elif isinstance(event, ev.Extended):
            # In the month in which its money was reserved, where all of it counts.
            require_money(ledger, run, event.amount, run.reserved_at)
        ledger, run = moved, moved.runs[run_id]
        records.append(record)
    return ledger, tuple(records)


def add_cap(
    ledger: LedgerState, last_seq: int, event: ev.CapSet, at: float
) -> tuple[LedgerState, ev.Record]:
    """
    Raises:
        UsageError: an unknown level, a key that names no budget, or a cap below zero.
    """
    if event.level == "run":
        raise UsageError(
            "the cap of a run cannot be set separately",
            next_step="give --budget to trmcloud launch or trmcloud resume",
        )
    if event.level not in LEVELS:
        raise UsageError(
            f"{event.level!r} is not a budget level", next_step=f"use {', '.join(LEVELS[:-1])}"
        )
    if event.level == "account" and event.key:
        raise UsageError(
            f"there is only one account: {event.key!r} is not one", next_step="leave out the name"
        )
    if event.level == "month" and event.key and not _MONTH.fullmatch(event.key):
        raise UsageError(f"{event.key!r} is not a month", next_step="write it as 2026-11")
    if event.level == "project" and not event.key:
        raise UsageError("the cap of a project needs its name")
    if event.level == PROJECT_MONTH and not event.key.strip():
        raise UsageError("the cap of a project's month needs the project's name")
    if event.cap is not None and event.cap < ZERO:
        raise UsageError(
            f"a cap of {event.cap} is below zero", next_step="use 0 to stop all spending"
        )
    record = ev.Record(last_seq + 1, "", 0, at, event)
    return extend_ledger(ledger, (record,)), record


def add_grant(
    ledger: LedgerState, last_seq: int, event: ev.GrantEvent, at: float
) -> tuple[LedgerState, ev.Record]:
    """Give, raise or revoke a grant; ask for approval, or answer.

    Raises:
        UsageError: no such terms, or no such name. ConflictError: the grant, or the request, is not
            one that this can be done to. NotFoundError: there is none.
        GrantRefused: the principal has asked too often.
    """
    if isinstance(event, ev.GrantGiven):
        require_principal(event.principal)
        _require_terms(event.terms, at)
        mine = ledger.grants.get(event.principal)
        if mine is not None and mine.revoked_at is None:
            raise ConflictError(
                f"{event.principal} has a grant of {mine.terms.total} already",
                next_step=f"trmcloud grant raise {event.principal} USD, or trmcloud grant revoke "
                f"{event.principal} first",
            )
    elif isinstance(event, ev.GrantRaised):
        mine = _require_grant(ledger, event.principal)
        _require_terms(event.terms, at)
        less = allows_less(event.terms, mine.terms)
        if less:
            raise UsageError(
                f"a grant is only ever raised: {less} would allow less than before",
                next_step=f"trmcloud grant revoke {event.principal}, then give another",
            )
    elif isinstance(event, ev.GrantRevoked):
        mine = ledger.grants.get(event.principal)
        if mine is None:
            _require_grant(ledger, event.principal)
        elif mine.revoked_at is not None and (mine.ends_at_once or not event.at_once):
            raise ConflictError(f"the grant of {event.principal} is revoked already")
    elif isinstance(event, ev.ApprovalAsked):
        _require_request(ledger, event, at)
    else:
        _require_open(ledger, event.id)
    record = ev.Record(last_seq + 1, "", 0, at, event)
    return extend_ledger(ledger, (record,)), record


def require_principal(name: str) -> None:
    """
    Raises:
        UsageError: no principal has such a name.
    """
    if not is_principal(name):
        raise UsageError(
            f"{name[:80]!r} is no name of a principal",
            next_step="up to 64 letters, digits and ._@-: research-agent; owner is taken",
        )


def _require_terms(terms: ev.GrantTerms, at: float) -> None:
    amounts = (terms.total, terms.per_run, terms.per_day, terms.per_month)
    if any(amount is not None and amount < ZERO for amount in amounts):
        raise UsageError("an amount of a grant is below zero", next_step="use 0 to allow nothing")
    if terms.runs_at_once < 0:
        raise UsageError("the number of runs at once is below zero", next_step="0 allows any")
    if not 0 <= terms.idle_s < float("inf"):
        raise UsageError(f"{terms.idle_s:g} seconds is no time without a step")
    if terms.expires_at is not None and terms.expires_at <= at:
        raise UsageError("the grant would have expired already", next_step="--expires 7d")
    for name in terms.providers:
        if find_traits(name) is None:
            known = ", ".join(sorted(name for name in TRAITS if TRAITS[name].route.can_be_named))
            raise UsageError(f"there is no provider {name[:80]!r}", next_step=f"one of: {known}")


def _require_grant(ledger: LedgerState, principal: str) -> Grant:
    mine = ledger.grants.get(principal)
    if mine is None or mine.revoked_at is not None:
        state = "has no grant" if mine is None else "has no grant any more: it is revoked"
        raise NotFoundError(
            f"{principal[:80]} {state}", next_step=f"trmcloud grant give {principal[:80]} USD"
        )
    return mine


def _require_request(ledger: LedgerState, event: ev.ApprovalAsked, at: float) -> None:
    mine = _require_grant(ledger, event.principal)
    asked = replace(event, id="", why="", principal="", by="")
    if asked == ev.ApprovalAsked("", "") or raised(mine.terms, event) == mine.terms:
        raise UsageError(
            "the request asks for nothing that the grant does not allow",
            next_step="ask for more money, for example: 2.50",
        )
    amounts = (event.more, event.per_run, event.per_day, event.per_month)
    if any(amount is not None and amount < ZERO for amount in amounts) or event.runs_at_once < 0:
        raise UsageError("a request for approval asks for less than nothing")
    earlier = [
        each for each in ledger.approvals.values() if each.asked.principal == event.principal
    ]
    waiting = [each.id for each in earlier if each.is_given is None and each.grant == mine.number]
    today = [each for each in earlier if day_of(each.asked_at) == day_of(at)]
    if len(waiting) >= MOST_OPEN or len(today) >= MOST_A_DAY:
        raise GrantRefused(
            f"{event.principal} has asked for approval {len(today)} times today, and "
            f"{len(waiting)} requests are open",
            next_step=f"wait for an answer to {waiting[0]}" if waiting else "ask again tomorrow",
        )


def _require_open(ledger: LedgerState, approval_id: str) -> None:
    asked = ledger.approvals.get(approval_id)
    if asked is None:
        raise NotFoundError(
            f"there is no request {approval_id[:80]!r}", next_step="trmcloud grant list"
        )
    if asked.is_given is not None:
        answer = "approved" if asked.is_given else "denied"
        raise ConflictError(f"{approval_id} was {answer} already")
    mine = ledger.grants.get(asked.asked.principal)
    if mine is None or mine.revoked_at is not None or mine.number != asked.grant:
        raise ConflictError(
            f"the grant that {approval_id} is about is revoked",
            next_step=f"trmcloud grant give {asked.asked.principal} USD",
        )


def require_other_role(ledger: LedgerState, event: ev.GrantEvent) -> None:
    """
    Raises:
        GrantRefused: the role that asked for more would approve it.
    """
    if not isinstance(event, ev.ApprovalGiven):
        return
    asked = ledger.approvals.get(event.id)
    if asked is not None and asked.is_given is None and asked.asked.by == event.by:
        raise GrantRefused(
            f"{event.id} was asked for by the role {event.by}, which cannot approve it",
            next_step=f"a person with another role of the database types: trmcloud grant approve "
            f"{event.id}",
        )


def add_verified(
    ledger: LedgerState, last_seq: int, event: ev.LayerVerified, at: float
) -> tuple[LedgerState, ev.Record]:
    """
    Raises:
        UsageError: the provider has no such kill layer.
    """
    layers = traits_of(event.provider).layers.independent
    if event.layer not in layers:
        raise UsageError(
            f"{event.provider} has no kill layer {event.layer!r}",
            next_step=f"one of: {', '.join(layers) or 'none'}",
        )
    record = ev.Record(last_seq + 1, "", 0, at, event)
    return extend_ledger(ledger, (record,)), record


def add_note(
    ledger: LedgerState, last_seq: int, event: ev.Note | ev.LedgerRestored, at: float
) -> tuple[LedgerState, ev.Record]:
    """
    Raises:
        IllegalTransition: somebody else has noted it already, or a run owns what was a stray.
    """
    if isinstance(event, ev.StrayCharged) and is_owned(ledger.runs, event.pod_id):
        raise IllegalTransition(f"{event.pod_id} is a run's own by now")
    record = ev.Record(last_seq + 1, "", 0, at, event)
    return extend_ledger(ledger, (record,)), record


class KeyUsed(ConflictError):
    """An idempotency key was used before: by the run ``run_id``."""

    def __init__(self, key: str, run_id: str) -> None:
        super().__init__(
            f"the idempotency key {key!r} belongs to {run_id}",
            next_step=f"see it with: trmcloud status {run_id}",
        )
        self.run_id = run_id


def require_new(ledger: LedgerState, run_id: str, planned: ev.RunPlanned) -> None:
    """
    Raises:
        ConflictError: there is a run of that id, or a live one of that name.
        KeyUsed: there is one of that key. RunQuarantined: there may be one.
    """
    require_whole(ledger, run_id)
    if run_id in ledger.runs:
        raise ConflictError(
            f"run {run_id} exists already", next_step=f"see it with: trmcloud status {run_id}"
        )
    require_unused(ledger, planned.key)
    if planned.name:
        require_free_name(ledger, planned.name, planned.principal)


def require_unused(ledger: LedgerState, key: str) -> None:
    """
    Raises:
        KeyUsed: a run was launched, or reopened, with that key. RunQuarantined: one may have been.
    """
    if (mine := run_of_key(ledger, key)) is not None:
        raise KeyUsed(key, mine.run_id)


def run_of_key(ledger: LedgerState, key: str) -> RunState | None:
    """Return the run that was launched, or reopened, with an idempotency key; None for none.

    Raises:
        RunQuarantined: records are damaged that may hold the key.
    """
    if not key:
        return None
    mine = next((run for run in find_runs(ledger.runs, KEY, key) if key in run.keys), None)
    if mine is None and ledger.quarantined:
        names = ", ".join(sorted(ledger.quarantined))
        raise RunQuarantined(
            f"the idempotency key {key!r} may belong to {names}, whose records are damaged",
            next_step="trmcloud admin ledger restore, or launch with another key",
        )
    return mine


def require_free_name(ledger: LedgerState, name: str, principal: str = "") -> None:
    """
    Raises:
        ConflictError: a live run has that name. A ``principal`` is not told which, where it is
            another's.
    """
    for run in present_runs(ledger.runs):
        if run.live and run.name == name:
            if principal and principal not in (run.payer.principal, run.creator):
                raise ConflictError(f"the name {name!r} is taken", next_step="use another --name")
            raise ConflictError(
                f"{run.run_id} is live and has the name {name!r}",
                next_step=f"use another --name, or trmcloud stop {run.run_id}",
            )


def require_run(ledger: LedgerState, run_id: str) -> RunState:
    require_whole(ledger, run_id)
    run = ledger.runs.get(run_id)
    if run is None:
        raise NotFoundError(
            f"the ledger has no run {run_id}", next_step="list the runs with: trmcloud status"
        )
    return run


def require_whole(ledger: LedgerFacts, run_id: str) -> None:
    """
    Raises:
        RunQuarantined: the run has damaged records: nothing is written to it.
    """
    hurt = ledger.quarantined.get(run_id)
    if hurt is not None:
        raise RunQuarantined(
            f"run {run_id} is in quarantine: {hurt.words}",
            next_step="restore its records from a backup: trmcloud admin ledger restore; or "
            f"enter its cost: trmcloud admin ledger settle {run_id} USD",
        )


def require_closed(ledger: LedgerState, run_id: str) -> RunState:
    run = require_run(ledger, run_id)
    if run.state is not State.CLOSED:
        raise ConflictError(
            f"run {run_id} has not ended: it is {run.state.value}",
            next_step=f"end it first with: trmcloud stop {run_id}",
        )
    return run


def require_epoch(run_id: str, epoch: int, newest: int) -> None:
    """
    Raises:
        StaleEpoch: ``epoch`` is not the run's newest.
    """
    if epoch != newest:
        raise StaleEpoch(
            f"another controller has taken over run {run_id}: epoch {epoch} is not {newest}",
            next_step=f"see its controller with: trmcloud status {run_id}",
        )


def require_wish(event: ev.RunEvent) -> None:
    """Only a wish may be written by somebody who does not drive the run."""
    if not isinstance(event, _WISHES):
        raise IllegalTransition(f"only the run's controller may do this: {type(event).__name__}")


def require_money(ledger: LedgerState, run: RunState, amount: Usd, at: float) -> None:
    """
    Raises:
        BudgetRefused: ``amount`` cannot be reserved for ``run`` at ``at`` (epoch s).
        GrantRefused: the grant of its principal does not pay for that.
        UsageError: it is below zero.
    """
    if amount < ZERO:
        raise UsageError(f"a reservation of {amount} is below zero")
    for hurt in ledger.quarantined.values():
        if hurt.is_open:
            raise BudgetRefused(
                f"the cost of run {hurt.run_id} is not known: {hurt.words}",
                next_step="trmcloud admin ledger restore, or enter its cost: trmcloud admin "
                f"ledger settle {hurt.run_id} USD",
            )
    for lost in ledger.unread:
        is_cap = lost.kind == "CapSet"
        what = "which sets a cap" if is_cap else "of the whole ledger"
        if lost.kind == "GrantRevoked":
            raise BudgetRefused(
                f"record {lost.seq}, which revokes a grant, is damaged",
                next_step="trmcloud admin ledger restore; or revoke the grant again (trmcloud "
                f"grant list), then trmcloud admin ledger settle {lost.name} 0",
            )
        raise BudgetRefused(
            f"record {lost.seq}, {what}, is damaged: the money that may be spent is not known",
            next_step="trmcloud admin ledger restore; or check trmcloud budget show, and set "
            "the missing cap again"
            if is_cap
            else f"trmcloud admin ledger restore, or trmcloud admin ledger settle {lost.name} USD",
        )
    if is_charge_pending(ledger):
        raise BudgetRefused(
            "the ledger was restored from a backup: the cost of its pods since then is not known "
            "yet",
            next_step="repeat trmcloud admin reap --yes until it reports that the ledger is "
            "reconciled",
        )
    by_grant = refuse_by_grant(ledger, run, amount, at)
    if by_grant is not None:
        raise GrantRefused(by_grant.why, next_step=by_grant.allowed)
    refusal = admit(ledger, run, amount, at)
    if refusal is not None:
        raise BudgetRefused(str(refusal), next_step=_raise_hint(refusal))


def _raise_hint(refusal: Refusal) -> str:
    line = refusal.line
    need = (line.settled + line.reserved + refusal.asked).plain()
    if line.level == "run":
        return f"give it a larger budget: --budget {need}"
    if line.level == "project":
        return f"trmcloud budget raise project {need} --for {shlex.quote(line.key)}"
    if line.level == PROJECT_MONTH:
        return f"trmcloud budget raise {PROJECT_MONTH} {need} --for {shlex.quote(line.key)}"
    return f"trmcloud budget raise {line.level} {need}"
