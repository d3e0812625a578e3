"""Budgets at all levels and pods nobody owns: what the ledger as a whole asks for. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from trmcloud.core.budget import LedgerState, overdrawn
from trmcloud.core.clock import Maybe, Seen
from trmcloud.core.observation import PodSeen
from trmcloud.core.pod_contract import parse_pod_name
from trmcloud.core.run_state import State

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
        """Runs whose budget, at any level, was cut below what it holds: (run id, reason)."""
        land = []
        for run in self.ledger.runs.values():
            if run.stop is not None or run.state not in _LANDABLE:
                continue
            line = overdrawn(self.ledger, run, self.now)
            if line is not None:
                land.append((run.run_id, f"the {line.level} budget was cut to {line.cap}"))
        return tuple(land)

    @property
    def orphans(self) -> tuple[Orphan, ...]:
        """Pods to end: ours by name, and nobody's, or past their own hard stop."""
        if not isinstance(self.pods, Seen):
            return ()
        owned: dict[str, str | None] = {}
        for run in self.ledger.runs.values():
            generation = run.generation
            if run.live and generation is not None and generation.open:
                owned[generation.pod_name] = generation.pod_id
        orphans = []
        for pod in self.pods.value:
            if pod.status == "gone":
                continue
            name = parse_pod_name(pod.name)
            if name is None:
                continue
            if pod.name in owned:
                if owned[pod.name] not in (None, pod.pod_id):
                    orphans.append(Orphan(pod, "its run has another pod of this name"))
            elif name.ledger == self.ledger.ledger_id:
                orphans.append(Orphan(pod, "no live run of this ledger owns it"))
            elif self.now > name.hard_stop_at:
                orphans.append(Orphan(pod, "its hard stop has passed"))
        return tuple(orphans)


def govern(ledger: LedgerState, pods: Maybe[tuple[PodSeen, ...]], now: float) -> Governance:
    """Budgets at all levels, and pods nobody owns.

    A pod is only ever called an orphan when its name is one of ours and either it bears this
    ledger's id and no open generation here owns it, or its own hard stop has passed. ``pods``
    must have been listed *before* the ledger was read: a run launched in between would seem to
    be nobody's.
    """
    return Governance(ledger, pods, now)
