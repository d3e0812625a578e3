"""What probes measured of commands: read from their runs, kept for the plans of the same words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trmcloud.app.context import Context
from trmcloud.app.home import make_home
from trmcloud.app.run_queries import last_report
from trmcloud.core.catalog.hardware import GPUS, LOCAL, Gpu
from trmcloud.core.contract.command_terms import MEASURED, MeasuredSteps
from trmcloud.core.contract.pod_contract import GPU_NOTE, GpuWindow, window_from
from trmcloud.core.contract.records import ContractError, finite, record_of
from trmcloud.core.control.run_state import RunState
from trmcloud.core.planner.command_outlook import MEMORY_ROOM, Probed
from trmcloud.core.values import dataclass
from trmcloud.io.files import write_atomic

KEPT_NAME = "command_probes.json"
_KEPT = 64


@dataclass(frozen=True)
class KeptProbe:
    """The latest probe of a command, by its words."""

    words: tuple[str, ...]
    at: float
    """Epoch s at which its run was over."""
    probed: Probed


def probed_in(context: Context, run: RunState) -> Probed | None:
    """What ``run`` measured of its command; None where it was no probe, or saw too few steps."""
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
    return Probed(run.run_id, candidate.sku, candidate.gpus, here, measured, busy, used_gb)


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


def probe_of(home: Path, words: Sequence[str]) -> Probed | None:
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
