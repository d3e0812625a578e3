"""Room for another run: the money that a working machine holds and most likely does not need. Pure.

A launch reserves all that its machine may cost until its hard stop, which by default is the whole
budget. Where another launch lacks that money, the stop of the working machine is made earlier:
never before P95 of its plan and its landing. Three steps, each on record: ``StopLowering`` has the
machine told of its earlier stop; once its agent reports that, ``StopKnown`` makes it the stop of
controllers and reapers; a layer that does not depend on the machine is seen to enforce it, and
``StopLowered`` frees the money. Between these steps too much is reserved, never too little.

Today one layer can be such: the reaper of another machine, which reads this ledger. Limits that a
provider was given with the machine stand where they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.catalog.providers import ProviderTraits, find_traits
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import LedgerState, admit, counts_towards
from trmcloud.core.control.reason import Reason, ReasonKind, make_reason
from trmcloud.core.control.renting import storage_beside_disks
from trmcloud.core.control.run_book import changed_copy, present_runs
from trmcloud.core.control.run_state import Generation, RunState, State
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.spec.plan import Candidate
from trmcloud.core.values import replace

if TYPE_CHECKING:
    from trmcloud.core.contract.pod_contract import AgentReport

_P95_OF_P90 = 1.6449 / 1.2816
"""P95 lies so many times as far above P50 as P90 does, in the logarithm of the time: quantiles of
the standard normal distribution."""
_NOTICE_S = 900.0
"""The least time from now to an earlier soft stop: for several looks of every layer."""
_TOLD_BEFORE_S = 120.0
"""Before its soft stop a machine must know of it."""
_WORTH = Usd.from_micros(10_000)
"""Less is not worth an earlier stop."""
_HOUR_S = 3600.0


class Lowering(NamedTuple):
    """One run's part: ``frees`` USD if the hard stop of its machine is at ``hard_stop_at`` (epoch
    s); ``keeps`` USD stay reserved for it."""

    run_id: str
    provider: str
    pod_name: str
    generation: int
    hard_stop_at: float
    was_at: float
    keeps: Usd
    frees: Usd
    is_asked: bool
    """Whether its machine is being told."""
    is_known: bool
    """Whether it knows, so that the money waits only for a layer that enforces the stop."""

    @property
    def event(self) -> ev.StopLowering:
        return ev.StopLowering(self.generation, self.hard_stop_at, "room for another run")

    def lowered(self, layer: str) -> ev.StopLowered:
        return ev.StopLowered(self.generation, self.keeps, layer)


class Room(NamedTuple):
    """``lowerings`` make room for ``asked`` USD. Where they are empty there is none, and ``why``
    says for each run that holds the money why it keeps it."""

    asked: Usd
    lowerings: tuple[Lowering, ...]
    why: Mapping[str, Reason]


def find_room(
    ledger: LedgerState,
    project: str,
    asked: Usd,
    at: float,
    enforced: Mapping[str, float],
) -> Room | None:
    """Return how room is made for a new run of ``project`` that reserves ``asked`` at ``at`` (epoch
    s); None where no cap is in the way.

    ``enforced``: by provider where a layer apart from the machine would end it, the seconds after a
    hard stop within which that does.
    """
    new = RunState("", project=project, cap=asked)
    refusal = admit(ledger, new, asked, at)
    if refusal is None:
        return None
    found: list[Lowering] = []
    why: dict[str, Reason] = {}
    for run in present_runs(ledger.runs):
        if not run.live or not counts_towards(run, refusal.line.level, refusal.line.key):
            continue
        made = lowering_of(run, at, enforced)
        if isinstance(made, Lowering):
            found.append(made)
        elif made is not None:
            why[run.run_id] = made
    taken: list[Lowering] = []
    for each in sorted(found, key=lambda one: one.frees, reverse=True):
        taken.append(each)
        if admit(_as_lowered(ledger, taken), new, asked, at) is None:
            return Room(asked, tuple(taken), why)
    return Room(asked, (), why)


def _as_lowered(ledger: LedgerState, lowerings: Sequence[Lowering]) -> LedgerState:
    runs = changed_copy(ledger.runs)
    for each in lowerings:
        runs[each.run_id] = replace(runs[each.run_id], reserved=each.keeps)
    return replace(ledger, runs=runs)


def lowering_of(
    run: RunState, now: float, enforced: Mapping[str, float]
) -> Lowering | Reason | None:
    """Return what the run can give, or why it can give nothing; None where it holds no more than it
    may need."""
    generation = run.generation
    candidate = run.candidate(generation.candidate_id) if generation is not None else None
    if generation is None or candidate is None or run.state is not State.RUNNING:
        return make_reason(ReasonKind.HOLDS_UNTIL_IT_TRAINS)
    why = _why_it_keeps_all(run, generation, candidate, enforced)
    if why is not None:
        return why
    stop_at = earliest_stop(run, generation, candidate, now)
    is_known, asked_at = generation.first_stop_at is not None, generation.lower_to
    landing_s = generation.hard_stop_at - generation.soft_stop_at
    is_asked = asked_at is not None and now < asked_at - landing_s - _TOLD_BEFORE_S
    if is_known:
        stop_at = generation.hard_stop_at  # once is enough
    elif is_asked and asked_at is not None:
        stop_at = asked_at
    late_s = enforced[generation.provider]
    keeps = most_until(run, generation, stop_at + late_s)
    frees = run.reserved - keeps
    if frees < _WORTH or not (is_known or stop_at < generation.hard_stop_at):
        return None
    return Lowering(
        run_id=run.run_id,
        provider=generation.provider,
        pod_name=generation.pod_name,
        generation=generation.number,
        hard_stop_at=stop_at,
        was_at=generation.hard_stop_at,
        keeps=keeps,
        frees=frees,
        is_asked=is_asked,
        is_known=is_known,
    )


def _why_it_keeps_all(
    run: RunState, generation: Generation, candidate: Candidate, enforced: Mapping[str, float]
) -> Reason | None:
    spec = run.spec
    fills = spec.fills or spec.hours is not None or not candidate.within_budget
    if fills or spec.sweep is not None or (spec.command is not None and not candidate.phases):
        return make_reason(ReasonKind.TRAINS_TO_ITS_STOP)
    special = candidate.nodes != 1 or bool(candidate.volume_rate) or run.errand is not None
    if special or run.move is not None or run.stop is not None or generation.hands_over:
        return make_reason(ReasonKind.STOP_CANNOT_BE_LOWERED)
    if generation.provider == LOCAL or generation.provider not in enforced:
        return make_reason(ReasonKind.NO_LAYER_APART, provider=generation.provider)
    return None


def earliest_stop(run: RunState, generation: Generation, candidate: Candidate, now: float) -> float:
    """The hard stop (epoch s) before which P95 of the plan ends and lands. A run that was resumed,
    or lost a machine, has the whole plan's time again."""
    hours = candidate.hours
    p95_s = hours.p50 * _HOUR_S
    if hours.p90 > hours.p50 > 0:
        p95_s *= (hours.p90 / hours.p50) ** _P95_OF_P90
    landing_s = generation.hard_stop_at - generation.soft_stop_at
    return max(generation.intended_at + p95_s, now + _NOTICE_S) + landing_s


def most_until(run: RunState, generation: Generation, until: float) -> Usd:
    """The most that the generation costs where it is ended by ``until`` (epoch s), its storage
    included, by the rates that were reserved."""
    traits = find_traits(generation.provider)
    candidate = run.candidate(generation.candidate_id)
    latency_s = traits.kill_latency_s if traits is not None else 0.0
    lasts_s = until - generation.intended_at + latency_s
    beside = storage_beside_disks(candidate) if candidate is not None else ZERO
    return cost(generation.rate + run.disk_rate(generation), lasts_s) + beside


def is_told(generation: Generation, report: AgentReport | None) -> bool:
    """Whether the machine itself, by its agent's word, ends as early as it is to."""
    if generation.lower_to is None:
        return True
    return report is not None and report.hard_stop_at <= generation.lower_to + 1.0


def knows_earlier_stop(generation: Generation, report: AgentReport) -> bool:
    """Whether it does so for the first time."""
    asked = generation.lower_to is not None and generation.first_stop_at is None
    return asked and is_told(generation, report)


def may_be_told(generation: Generation, report: AgentReport | None, now: float) -> bool:
    """Whether the machine is to be told its earlier stop now: not once it would have no time left
    to land."""
    if generation.lower_to is None or report is None or is_told(generation, report):
        return False
    landing_s = generation.hard_stop_at - generation.soft_stop_at
    return now < generation.lower_to - landing_s - _TOLD_BEFORE_S


def require_cover(run: RunState, event: ev.StopLowered) -> str:
    """Why so little must not stay reserved; '' where it may: checked wherever it is written."""
    generation = run.generation
    if generation is None or generation.first_stop_at is None:
        return "its stop was not set earlier"
    least = most_until(run, generation, generation.hard_stop_at)
    return "" if event.amount >= least else f"it may cost {least} until its earlier stop"


def reaper_late_s(traits: ProviderTraits, every_s: float) -> float:
    """Within so many seconds of a hard stop a reaper that comes ``every_s`` has ended a machine."""
    return every_s + traits.kill_latency_s + traits.end_grace_s
