"""Budgets of the whole ledger, and pods that no run owns: their costs and their end. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from trmcloud.core.catalog.providers import TRAITS, find_traits, traits_of
from trmcloud.core.clock import Maybe, Seen
from trmcloud.core.contract.pod_contract import PodName, parse_pod_name
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import LedgerState, Line, overdrawn
from trmcloud.core.control.ledger_facts import LedgerFacts, StrayPod
from trmcloud.core.control.observation import PodSeen
from trmcloud.core.control.reason import Reason, ReasonKind, make_reason
from trmcloud.core.control.run_state import Generation, RunState, State
from trmcloud.core.money import ZERO, affordable_seconds, cost
from trmcloud.core.values import dataclass

if TYPE_CHECKING:
    from trmcloud.core.control.observation import Bill

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
    another of the name, nobody would see this one again.
    """
    known = {g.pod_id for run in ledger.runs.values() for g in run.generations}
    if all(pod.pod_id in known for pod in pods):
        return ()
    latest = (run.generation for run in ledger.runs.values() if run.live)
    awaited = {g.pod_name for g in latest if g is not None and g.open and g.pod_id is None}
    made = []
    for pod in pods:
        if pod.pod_id in known or (pod.name in awaited and pod.pod_id not in ending):
            continue
        name = parse_pod_name(pod.name)
        if name is None or name.ledger != ledger.ledger_id:
            continue
        if any(run_id.replace("-", "") == name.run_id for run_id in ledger.quarantined):
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
    run_id = next((r for r in ledger.runs if r.replace("-", "") == name.run_id), "")
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
    return run.created_at if run is not None else now


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
    absent_s = traits_of(stray.provider).absent_s
    return absent_s > 0 and now < stray.charged_at + AHEAD_S + absent_s


# Budgets at all levels and pods nobody owns: what the ledger as a whole asks for. Pure.

_LANDABLE = (State.RESERVED, State.RENTING, State.BOOTING, State.RUNNING)


@dataclass(frozen=True)
class Orphan:
    """A pod of ours that no live run owns."""

    pod: PodSeen
    reason: Reason


@dataclass(frozen=True)
class Governance:
    """The ledger's demands as a whole, each part computed when it is asked for."""

    ledger: LedgerState
    pods: Maybe[tuple[PodSeen, ...]]
    now: float

    @property
    def drive(self) -> tuple[str, ...]:
        """Runs that somebody has to drive."""
        return tuple(run.run_id for run in self.ledger.runs.values() if run.live)

    @property
    def land(self) -> tuple[tuple[str, Reason], ...]:
        """Runs whose budget, at any level, is below what it holds: (run id, reason)."""
        land = []
        for run in self.ledger.runs.values():
            if run.stop is not None or run.state not in _LANDABLE:
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
        if not isinstance(self.pods, Seen):
            return ()
        owned: dict[str, Generation] = {}
        for run in self.ledger.runs.values():
            generation = run.generation
            if run.live and generation is not None and generation.open:
                owned[generation.pod_name] = generation
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
