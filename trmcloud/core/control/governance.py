"""Budgets at all levels and pods nobody owns: what the ledger as a whole asks for. Pure."""

from __future__ import annotations

from trmcloud.core.catalog.providers import TRAITS, find_traits
from trmcloud.core.clock import Maybe, Seen
from trmcloud.core.contract.pod_contract import parse_pod_name
from trmcloud.core.control.budget import LedgerState, Line, overdrawn
from trmcloud.core.control.observation import PodSeen
from trmcloud.core.control.reason import Reason, ReasonKind, because
from trmcloud.core.control.run_state import Generation, RunState, State
from trmcloud.core.money import ZERO, affordable_seconds
from trmcloud.core.values import dataclass

_LANDABLE = (State.RESERVED, State.RENTING, State.BOOTING, State.RUNNING)


@dataclass(frozen=True)
class Orphan:
    """A pod of ours that no live run owns."""

    pod: PodSeen
    reason: Reason


@dataclass(frozen=True)
class Governance:
    """What the ledger as a whole asks for, each part worked out where it is asked for."""

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
                    orphans.append(Orphan(pod, because(ReasonKind.NAME_TWICE)))
                elif self.now > owner.hard_stop_at + _kill_latency_s(owner.provider):
                    orphans.append(Orphan(pod, because(ReasonKind.OUTLIVED_HARD_STOP)))
            elif name.ledger == self.ledger.ledger_id and name.run_id in kept:
                # Its run cannot be read: it has the time that was reserved for it, and no more.
                # By whom it was rented stands in what cannot be read.
                latest_s = max(traits.kill_latency_s for traits in TRAITS.values())
                if self.now > name.hard_stop_at + latest_s:
                    orphans.append(Orphan(pod, because(ReasonKind.HARD_STOP_PASSED)))
            elif name.ledger == self.ledger.ledger_id:
                orphans.append(Orphan(pod, because(ReasonKind.NO_OWNER)))
            elif self.now > name.hard_stop_at:
                orphans.append(Orphan(pod, because(ReasonKind.HARD_STOP_PASSED)))
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
        return because(ReasonKind.BUDGET_CUT, level=line.level, cap_usd=line.cap or ZERO)
    generation = run.generation
    if run.state is State.RESERVED or generation is None:
        return None
    if now < generation.soft_stop_at - affordable_seconds(line.over, generation.rate):
        return None
    return because(ReasonKind.ORPHANS_COST, level=line.level, orphans_usd=line.strays)


def govern(ledger: LedgerState, pods: Maybe[tuple[PodSeen, ...]], now: float) -> Governance:
    """Budgets at all levels, and pods nobody owns.

    A pod is only ever called an orphan when its name is one of ours and either it bears this
    ledger's id and no open generation here owns it, or its own hard stop has passed. ``pods``
    must have been listed *before* the ledger was read: a run launched in between would seem to
    be nobody's.
    """
    return Governance(ledger, pods, now)
