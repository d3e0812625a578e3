"""Budgets at all levels and pods nobody owns: what the ledger as a whole asks for. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from trmcloud.core.budget import LedgerState, Line, overdrawn
from trmcloud.core.clock import Maybe, Seen
from trmcloud.core.money import affordable_seconds
from trmcloud.core.observation import PodSeen
from trmcloud.core.pod_contract import parse_pod_name
from trmcloud.core.providers import TRAITS
from trmcloud.core.run_state import Generation, RunState, State

_LANDABLE = (State.RESERVED, State.RENTING, State.BOOTING, State.RUNNING)


@dataclass(frozen=True)
class Orphan:
    """A pod of ours that no live run owns."""

    pod: PodSeen
    reason: str


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
    def land(self) -> tuple[tuple[str, str], ...]:
        """Runs whose budget, at any level, is below what it holds: (run id, reason)."""
        land = []
        for run in self.ledger.runs.values():
            if run.stop is not None or run.state not in _LANDABLE:
                continue
            for line in overdrawn(self.ledger, run, self.now):
                why = _why_land(run, line, self.now)
                if why:
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
        orphans = []
        for pod in self.pods.value:
            if pod.status == "gone":
                continue
            name = parse_pod_name(pod.name)
            if name is None:
                continue
            owner = owned.get(pod.name)
            if owner is not None:
                if owner.pod_id not in (None, pod.pod_id):
                    orphans.append(Orphan(pod, "its run has another pod of this name"))
                elif self.now > owner.hard_stop_at + _kill_latency_s(owner.provider):
                    orphans.append(Orphan(pod, "it has outlived its hard stop"))
            elif name.ledger == self.ledger.ledger_id:
                orphans.append(Orphan(pod, "no live run of this ledger owns it"))
            elif self.now > name.hard_stop_at:
                orphans.append(Orphan(pod, "its hard stop has passed"))
        return tuple(orphans)


def _kill_latency_s(provider: str) -> float:
    traits = TRAITS.get(provider)
    return traits.kill_latency_s if traits is not None else 0.0


def _why_land(run: RunState, line: Line, now: float) -> str:
    """Why a run lands now that holds more than ``line`` allows; empty while it may go on.

    Where only pods that nobody asked for have used up what it holds, it gives up the end of its
    time: as much as costs what they did.
    """
    if line.over > line.strays:
        return f"the {line.level} budget was cut to {line.cap}"
    generation = run.generation
    if run.state is State.RESERVED or generation is None:
        return ""
    if now < generation.soft_stop_at - affordable_seconds(line.over, generation.rate):
        return ""
    return f"pods that nobody asked for have cost {line.strays} of the {line.level} budget"


def govern(ledger: LedgerState, pods: Maybe[tuple[PodSeen, ...]], now: float) -> Governance:
    """Budgets at all levels, and pods nobody owns.

    A pod is only ever called an orphan when its name is one of ours and either it bears this
    ledger's id and no open generation here owns it, or its own hard stop has passed. ``pods``
    must have been listed *before* the ledger was read: a run launched in between would seem to
    be nobody's.
    """
    return Governance(ledger, pods, now)
