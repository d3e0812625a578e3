"""Measured steps of runs and commands, and probes: they replace the planner's prior."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from trmcloud.core.catalog.hardware import GPUS, LOCAL, Gpu
from trmcloud.core.contract.command_terms import MEASURED, MeasuredSteps
from trmcloud.core.contract.gate import number_of
from trmcloud.core.contract.pod_contract import GPU_NOTE, GpuWindow, window_from
from trmcloud.core.contract.records import ContractError, finite, record_of
from trmcloud.core.planner.command_outlook import MEMORY_ROOM, CommandProbe
from trmcloud.core.planner.roofline import MeasuredSpeed
from trmcloud.core.planner.speed import rented_machine, step_seconds
from trmcloud.core.spec.plan import Candidate, PhasePlan
from trmcloud.core.text import one_line
from trmcloud.core.values import Value
from trmcloud.io.files import write_atomic
from trmcloud.operations.home import make_home

if TYPE_CHECKING:
    from trmcloud.core.control.run_state import RunState
    from trmcloud.operations.context import Context

# A plan reads the probes alone: what reads runs is imported where it is used, for that takes 40 ms
# of the 180 that a plan's imports took.

# Probes: what steps really took on a machine, kept to replace the planner's prior.

PROBES_NAME = "probes.json"
_FAR = 1e11
"""Epoch s that no record bears, and seconds that no step takes."""
_LONGEST_ID = 80
_KEPT = 64


def load_probes(home: Path) -> list[MeasuredSpeed]:
    """The probes kept under ``home``, newest first; a damaged file counts as none, and a row above
    its chip's peak as well."""
    try:
        rows = json.loads((home / PROBES_NAME).read_text(encoding="utf-8"))
        found = [MeasuredSpeed(**row) for row in rows]
    except (OSError, ValueError, TypeError):
        return []
    return [probe for probe in found if _sane(probe)]


def record_probe(home: Path, probe: MeasuredSpeed) -> None:
    """Keeps ``probe``, in place of an older one of the same kind of machine and torch."""
    kept = [probe, *(old for old in load_probes(home) if _kind(old) != _kind(probe))][:_KEPT]
    make_home(home)
    write_atomic(home / PROBES_NAME, json.dumps([old._asdict() for old in kept], indent=1))


def _kind(probe: MeasuredSpeed) -> tuple[object, ...]:
    """The facts that must be the same for a newer measurement to replace an older one."""
    return probe.sku, probe.gpus, probe.provider, probe.torch


def _sane(probe: MeasuredSpeed) -> bool:
    numbers = (probe.step_s, probe.tokens_per_step, probe.flops_per_token, probe.gpus, probe.steps)
    since = (probe.predicted_s, probe.at)
    return (
        all(_is_number(n) and n > 0 for n in numbers)
        and all(_is_number(n) and 0 <= n < _FAR for n in since)
        and isinstance(probe.run_id, str)
        and len(probe.run_id) <= _LONGEST_ID
        and all(
            isinstance(text, str) and len(text) <= _LONGEST_ID
            for text in (probe.provider, probe.torch, probe.board, probe.code)
        )
        and isinstance(probe.sku, str)
        and probe.is_possible
    )


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and abs(value) < float("inf")  # type: ignore[arg-type]


# What a run's steps really took: against what was planned, and for the plans to come.

LEAST_ROWS = 20
"""Logged steps, of which the first two warm up."""


class Pace(NamedTuple):
    """Medians over the logged steps of one phase."""

    phase: PhasePlan
    rows: int
    step_s: float

    @property
    def tokens(self) -> float:
        """Of one step, each GPU's."""
        return float(self.phase.settings.tokens_per_step(1))


class Speeds(NamedTuple):
    """Tokens a second of the whole machine: planned (P50), and as they were."""

    planned: float
    measured: float


def pace_of(context: Context, run: RunState) -> Pace | None:
    """Of the last phase of which enough was logged; None where there is none."""
    from trmcloud.operations.curves.trainings import planned_phases

    for phase in reversed(planned_phases(run)):
        seconds = _seconds(context.files.metrics(run.run_id, phase.name))
        if len(seconds) >= LEAST_ROWS:
            return Pace(phase, len(seconds), median(seconds))
    return None


def speeds_of(context: Context, run: RunState) -> Speeds | None:
    candidate, pace = _candidate(run), pace_of(context, run)
    if candidate is None or pace is None:
        return None
    tokens = pace.tokens * candidate.world_size
    return Speeds(tokens / pace.phase.step_s.p50, tokens / pace.step_s)


def note_measured(context: Context, run: RunState) -> None:
    """Keep what the steps of a run that is over took, for plans on the same hardware.

    One whose settings were changed on the way, or that was on machines of two kinds, tells of
    neither; and one that says it was faster than its chip can be tells of nothing.

    Raises:
        OSError: the home cannot be written.
    """
    found = measured_in(context, run)
    kept = load_probes(context.home) if found is not None else ()
    if found is not None and all(m.at < found.at for m in kept if _kind(m) == _kind(found)):
        record_probe(context.home, found)


def measured_in(context: Context, run: RunState) -> MeasuredSpeed | None:
    from trmcloud.core.control.run_state import State
    from trmcloud.operations.curves.trainings import recoveries_of

    candidate = _candidate(run)
    if run.state is not State.CLOSED or candidate is None:
        return None
    if any(each.recovery.changed for each in recoveries_of(context, run)):
        return None
    told, pace = run.paces[-1] if run.paces else None, pace_of(context, run)
    if told is not None:
        # Timed by the trainer, and judged as it came: what is not believed teaches nothing, and
        # neither do the lines that the same machine has logged.
        phase = next((p for p in candidate.phases if p.name == told.phase), None)
        if any(each.doubt for each in run.paces) or phase is None or not told.tokens:
            return None
        pace = Pace(phase, told.steps, told.step_s)
    if pace is None:
        return None
    settings = pace.phase.settings
    predicted_s = 0.0
    if candidate.provider != LOCAL:
        machine = rented_machine(
            candidate.sku, candidate.world_size // candidate.nodes, nodes=candidate.nodes
        )
        predicted_s = step_seconds(settings, machine)
    found = MeasuredSpeed(
        sku=candidate.sku,
        gpus=candidate.world_size,
        step_s=pace.step_s,
        steps=pace.rows,
        tokens_per_step=settings.tokens_per_step(candidate.world_size),
        flops_per_token=settings.work().train_flops,
        predicted_s=predicted_s,
        at=run.updated_at,
        run_id=run.run_id,
        provider=candidate.provider,
        torch=one_line(told.torch)[:_LONGEST_ID] if told is not None else "",
        board=one_line(told.board)[:_LONGEST_ID] if told is not None else "",
        code=one_line(told.code)[:_LONGEST_ID] if told is not None else "",
    )
    return found if found.is_possible else None


def _candidate(run: RunState) -> Candidate | None:
    """The kind of machine that all of the run was trained on."""
    made = [g.candidate_id for g in run.generations if g.agent_at is not None]
    if not made:
        return None
    candidates = [run.plan.candidate(each) for each in made]
    kinds = {(c.sku, c.world_size, c.nodes) for c in candidates}
    return candidates[-1] if len(kinds) == 1 else None


def _seconds(lines: Iterable[Mapping[str, object]]) -> list[float]:
    """Of every logged step but the first two; what is no number was not measured."""
    told = [number_of(line.get("step_seconds")) for line in lines if line.get("kind") == "train"]
    return [each for each in told[2:] if each is not None and each > 0]


# What probes measured of commands: read from their runs, kept for the plans of the same words.

KEPT_NAME = "command_probes.json"


class KeptProbe(Value):
    """The latest probe of a command, by its words."""

    words: tuple[str, ...]
    at: float
    """Epoch s at which its run was over."""
    probed: CommandProbe


def probed_in(context: Context, run: RunState) -> CommandProbe | None:
    """Return the measurements of ``run``'s command; None where it was no probe, or saw too few
    steps."""
    from trmcloud.operations.run_queries import last_report

    command, candidate = run.spec.command, run.chosen
    if command is None or not command.probe_steps or candidate is None:
        return None
    measured = _measured(context, run)
    if measured is None:
        return None
    report = last_report(context, run)
    window = window_from(report.notes.get(GPU_NOTE, "")) if report is not None else None
    busy, used_gb = _gpus(window, GPUS.get(candidate.sku))
    here = candidate.provider == LOCAL
    return CommandProbe(run.run_id, candidate.sku, candidate.gpus, here, measured, busy, used_gb)


def note_probed(context: Context, run: RunState) -> None:
    """Keeps what ``run`` measured, in place of an older probe of the same words.

    Raises:
        OSError: the home cannot be written.
    """
    found = probed_in(context, run)
    if found is None or run.spec.command is None:
        return
    words, kept = run.spec.command.words, _load(context.home)
    if any(each.words == words and each.at >= run.updated_at for each in kept):
        return
    others = [each for each in kept if each.words != words]
    rows = [KeptProbe(words, run.updated_at, found), *others][:_KEPT]
    make_home(context.home)
    write_atomic(context.home / KEPT_NAME, json.dumps(finite(rows), indent=1))


def probe_of(home: Path, words: Sequence[str]) -> CommandProbe | None:
    """The latest probe of the command with exactly these words: another word may be another
    training."""
    return next((each.probed for each in _load(home) if each.words == tuple(words)), None)


def _load(home: Path) -> list[KeptProbe]:
    """Newest first; a damaged file counts as none."""
    try:
        rows = json.loads((home / KEPT_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    found = []
    for row in rows if isinstance(rows, list) else ():
        with suppress(ContractError):  # one that is no probe takes no other with it
            found.append(record_of(KeptProbe, row))
    return found


def _measured(context: Context, run: RunState) -> MeasuredSteps | None:
    for phase in run.phases:
        for line in reversed(context.files.metrics(run.run_id, phase)):
            if line.get("kind") == MEASURED:
                said = {k: v for k, v in line.items() if k not in ("kind", "step", "at")}
                try:
                    found = record_of(MeasuredSteps, said)
                except ContractError:
                    return None
                return found if 0 < found.fast_s <= found.step_s <= found.slow_s else None
    return None


def _gpus(window: GpuWindow | None, gpu: Gpu | None) -> tuple[float | None, float | None]:
    """(busy share, GB in use of the fullest): a pod tells them, who may say anything, and no more
    than there is counts. None for what is not known of a GPU of the catalogue."""
    if window is None or gpu is None:
        return None, None
    busy = [min(1.0, g.busy_percent / 100) for g in window.gpus if g.busy_percent is not None]
    used = [g.used_mib * 2**20 / 1e9 for g in window.gpus if g.used_mib is not None]
    used_gb = min(max(used), gpu.memory_gb / MEMORY_ROOM) if used else None
    return sum(busy) / len(busy) if busy else None, used_gb
