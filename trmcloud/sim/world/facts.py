"""Plain records of a simulated world: what faults turn, what is true of a run, what was said."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trmcloud.core.contract.pod_contract import AgentReport, PhaseState
from trmcloud.core.contract.trainer_contract import DONE
from trmcloud.core.spec.plan import Plan
from trmcloud.core.spec.settings import PhaseRecipe
from trmcloud.core.values import Value
from trmcloud.ports.compute import PodRequest
from trmcloud.sim.world.trainer import Shape, TrainerFault

START_AT = 1_767_225_600.0
"""2026-01-01 00:00 UTC."""


@dataclass
class FaultSettings:
    """Settings that faults change. Instants are true epoch s; empty, zero and False are healthy."""

    latest_create_s: float = 600.0
    next_creates: list[str] = field(default_factory=list)
    price_at_boot: float = 1.0
    wrong_gpus: bool = False
    other_boards: int = 0
    """So many pods made from now on have GPUs on slower boards than were rented."""
    other_board: str = ""
    """The name that nvidia-smi gives to these GPUs."""
    silent_board: bool = False
    """Their agent says what board it is and refuses none."""
    board_factor: float = 1.0
    """So many times as long a step takes on these."""
    never_boots: str = ""
    boots_failing: int = 0
    """So many pods made from now on stay up and never start, which their provider's log says."""
    silent_boots: int = 0
    """So many pods made from now on are billed and never start, and nothing says so."""
    sold_out_until: float = 0.0
    most_machines: int = 0
    """So many machines are there in all for runs that wait for one; 0: any number."""
    price_now: float = 1.0
    """Of the quoted rate, what a machine costs to who waits for one."""
    creates_throttled_until: float = 0.0
    retry_after_s: float = 0.0
    list_omits_s: float = 0.0
    list_flickers: bool = False
    flicker: bool = False
    lists_dead_s: float = 0.0
    statuses_unknown: bool = False
    no_capacity_until: float = 0.0
    deletes_ignored_until: float = 0.0
    next_deletes: list[str] = field(default_factory=list)
    outage_until: float = 0.0
    throttled_until: float = 0.0
    garbage_until: float = 0.0
    key_revoked_until: float = 0.0
    pod_api_down_until: float = 0.0
    bucket_down_until: float = 0.0
    pod_key_useless: bool = False
    self_end_stops: bool = False
    """A pod's own key can stop it and not destroy it."""
    bill_lag_s: float = 0.0
    storage_tail_micros: int = 0
    link_down_until: float = 0.0
    garbled_reports: bool = False
    crossed_reports: bool = False
    lies: list[Callable[[AgentReport], AgentReport | None]] = field(default_factory=list)
    """Change a report on its way from a hostile pod."""
    turns: list[Callable[[Any], None]] = field(default_factory=list)
    """Acts of a hostile host, once its pod has been given the right to upload."""
    ledger_locked_until: float = 0.0
    ledger_damaged_until: float = 0.0
    ledger_too_new_until: float = 0.0
    disk_full_until: float = 0.0
    pod_disk_full: bool = False
    pod_skew_s: float = 0.0
    restart_wipes: bool = False
    slow_factor: float = 1.0
    nan_scores: bool = False
    fetch_fails: list[str] = field(default_factory=list)
    next_damages: list[str] = field(default_factory=list)
    outage_fault: str = "24"

    @property
    def deaf_until(self) -> float:
        """Until when no provider answers a controller."""
        outage, throttled = self.outage_until, self.throttled_until
        return max(outage, throttled, self.key_revoked_until, self.garbage_until)

    @property
    def unheard(self) -> bool:
        """Whether what a pod says need not be what its agent has said."""
        return self.garbled_reports or bool(self.lies)

    def pod_api_works(self, now: float) -> bool:
        return now >= max(self.pod_api_down_until, self.outage_until) and not self.pod_key_useless


@dataclass
class Trap:
    """Springs once, when a process of one of ``kinds`` passes a point: kills it, or stops it for a
    while."""

    fault: str
    point: str
    kind: str
    sleep_s: float = 0.0
    stops_machine: bool = False
    skip: int = 0
    then: Callable[[], None] | None = None
    kinds: tuple[str, ...] = ("launch",)


@dataclass
class TimelineEntry:
    """One line of the timeline."""

    at: float
    text: str


class TruePaces(Value):
    """How fast a run's machines are, and what they say of it.

    ``factors``: the time of a step, relative to the run's shapes, on its first machine, its second
    one, …; the last holds for all that follow. ``first``: the time of an attempt's ``first_steps``,
    relative to its others. ``lie``: the reported pace, relative to the true one.
    """

    factors: tuple[float, ...] = (1.0,)
    first: float = 1.0
    first_steps: int = 20
    lie: float = 1.0

    def factor(self, generation: int) -> float:
        return self.factors[min(generation, len(self.factors)) - 1]


class ToldPace(Value):
    """A pace that a machine has told, beside the true one; seconds a step."""

    true_s: float
    told_s: float
    steps: int


@dataclass
class TrueCourse:
    """The true course of a run's training on this seed."""

    plan: Plan
    shapes: Mapping[str, Shape]
    illnesses: list[TrainerFault] = field(default_factory=list)
    paces: TruePaces | None = None
    """None: its machines are as fast as the shapes say, and time no steps."""
    told: dict[tuple[str, str], list[ToldPace]] = field(default_factory=dict)
    """By pod and phase."""

    def settings_of(self, phase: str) -> PhaseRecipe:
        """Those that it is trained with where nothing is overridden."""
        planned = {each.name: each.settings for each in self.plan.candidates[0].phases}
        return planned.get(phase) or PhaseRecipe(recipe="trm", family="trm", phase=phase)


class Violation(Exception):
    """An invariant does not hold."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name


class KeptVolume:
    """A network volume as it is billed: from when it was made until it is deleted."""

    def __init__(
        self, volume_id: str, place: str, size_gb: int, rate_micros: int, at: float
    ) -> None:
        self.volume_id, self.place, self.size_gb = volume_id, place, size_gb
        self.rate_micros = rate_micros
        self.created_at = at
        self.ended_at: float | None = None
        self.users: set[str] = set()
        """Runs that had it made, or found it there, before they asked for a pod."""

    def micros(self, until: float) -> int:
        """Return its cost by ``until`` in micro-dollars."""
        end = until if self.ended_at is None else min(until, self.ended_at)
        return math.ceil(self.rate_micros * max(0.0, end - self.created_at) / 3600)


class FutileCreate:
    """A create that was taken, and for which no machine is found: nothing is ever billed.

    Until true epoch second ``over_at``, or until it is called off, it is looked for, and
    ``listed`` meanwhile as if it were being made, or not.
    """

    def __init__(self, request: PodRequest, over_at: float, listed: bool) -> None:
        self.name, self.rate = request.name, request.rate
        self.over_at, self.listed = over_at, listed
        self.called_off = False

    def goes_on(self, now: float) -> bool:
        return not self.called_off and now < self.over_at


class PodStatements:
    """Everything that a pod's own agent has ever said, written or not."""

    def __init__(self) -> None:
        self.results: set[str] = set()
        self.finished: set[str] = set()
        self._phases: set[tuple[str, str, int | None]] = set()
        self._gates: set[tuple[str, bool]] = set()
        self._last: object = None
        self.uploaded: dict[str, float] = {}
        """Of each phase the best that was ever told to be in the bucket."""

    def hear(self, report: AgentReport) -> None:
        for kept in report.uploaded:
            if kept.val_bpb is not None:
                best = min(kept.val_bpb, self.uploaded.get(kept.phase, kept.val_bpb))
                self.uploaded[kept.phase] = best
        if report.result is not None:
            self.results.add(report.result)
        if report.phases is self._last:
            return
        self._last = report.phases
        for phase in report.phases:
            if phase.state is PhaseState.ENDED:
                self._phases.add((phase.name, phase.outcome or "lost", phase.step))
                if phase.outcome in DONE:
                    self.finished.add(phase.name)
            if phase.gate is not None:
                self._gates.add((phase.name, phase.gate.passed))

    def has_phase(self, name: str, outcome: str, step: int | None) -> bool:
        return (name, outcome, step) in self._phases

    def has_gate(self, name: str, passed: bool) -> bool:
        return (name, passed) in self._gates
