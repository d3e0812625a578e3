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
    """What the ledger as a whole asks for: runs to be driven, runs to be landed, pods to end."""

    drive: tuple[str, ...]
    land: tuple[tuple[str, str], ...]
    """(run id, reason)"""
    orphans: tuple[Orphan, ...]


def govern(ledger: LedgerState, pods: Maybe[tuple[PodSeen, ...]], now: float) -> Governance:
    """Budgets at all levels, and pods nobody owns.

    A pod is only ever called an orphan when its name is one of ours and either it bears this
    ledger's id and no open generation here owns it, or its own hard stop has passed. ``pods``
    must have been listed *before* the ledger was read: a run launched in between would seem to
    be nobody's.
    """
    drive, land = [], []
    owned: dict[str, str | None] = {}
    for run in ledger.runs.values():
        if not run.live:
            continue
        drive.append(run.run_id)
        generation = run.generation
        if generation is not None and generation.open:
            owned[generation.pod_name] = generation.pod_id
        line = overdrawn(ledger, run, now)
        if line is not None and run.stop is None and run.state in _LANDABLE:
            land.append((run.run_id, f"the {line.level} budget was cut to {line.cap}"))
    orphans = []
    for pod in pods.value if isinstance(pods, Seen) else ():
        name = parse_pod_name(pod.name)
        if name is None or pod.status == "gone":
            continue
        if pod.name in owned:
            if owned[pod.name] not in (None, pod.pod_id):
                orphans.append(Orphan(pod, "its run has another pod of this name"))
        elif name.ledger == ledger.ledger_id:
            orphans.append(Orphan(pod, "no live run of this ledger owns it"))
        elif now > name.hard_stop_at:
            orphans.append(Orphan(pod, "its hard stop has passed"))
    return Governance(tuple(drive), tuple(land), tuple(orphans))
