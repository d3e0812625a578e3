"""A run's figures for programs that are not ours, told from its ``metrics.jsonl`` on this machine
as they grow: no key of theirs is needed where it trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trmcloud.core import codec
from trmcloud.core.contract.metric_names import PAID_HOURS, SPENT_USD, figures_of
from trmcloud.core.contract.pod_contract import METRICS_NAME
from trmcloud.core.contract.records import instant
from trmcloud.core.control.billing import paid_by
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.errors import NotFoundError
from trmcloud.operations.context import Context, run_by_id
from trmcloud.operations.curves.curves import MetricsLines
from trmcloud.ports.notices import Board

MOST_NAMES = 512
"""A trainer has some dozens; one that makes up more is not followed in that."""
_MOST_STEP = 10**12


class BoardFeed:
    """Tells a board what it has not been told yet."""

    def __init__(self, context: Context, run_id: str, board: Board) -> None:
        self._context, self._run_id, self._board = context, run_id, board
        self._files: dict[str, MetricsLines] = {}
        self._last_steps: dict[str, int] = {}
        self._names: set[str] = set()

    def look(self) -> int:
        """Send new lines to the board and return their number."""
        run = run_by_id(self._context, self._run_id)
        folder, told = Path(self._context.files.folder(run.run_id)), 0
        for phase in self._context.files.phases(run.run_id):
            file = self._files.setdefault(phase, MetricsLines(folder / phase / METRICS_NAME))
            for lines in file.read_on():
                if file.is_first_slice:
                    self._last_steps[phase] = 0
                    self._board.begin(phase, _first_step(lines))
                told += self._take(run, phase, lines)
        if told:
            self._board.flush()
        return told

    def _take(self, run: RunState, phase: str, lines: Sequence[Mapping[str, Any]]) -> int:
        known = [(line, at) for line in lines if (at := _logged_at(line)) is not None]
        hours, dollars = paid_by(run, [at for _, at in known])
        earlier = 0
        for name in self._context.files.phases(run.run_id):
            if name == phase:
                break
            earlier += self._last_steps.get(name, 0)
        for (line, at), paid_h, paid_usd in zip(known, hours, dollars, strict=True):
            values = self._bounded(dict(figures_of(line["kind"], line)))
            if not values:
                continue
            step = int(line["step"])
            self._last_steps[phase] = max(self._last_steps.get(phase, 0), step)
            values |= {SPENT_USD: paid_usd, PAID_HOURS: paid_h}
            self._board.tell(phase, step, earlier + step, at, values)
        return len(known)

    def _bounded(self, values: dict[str, float]) -> dict[str, float]:
        for name in values:
            if len(self._names) < MOST_NAMES:
                self._names.add(name)
        return {name: value for name, value in values.items() if name in self._names}


def _logged_at(line: Mapping[str, Any]) -> float | None:
    """None where it is no line of a step."""
    step = line.get("step")
    if type(step) is not int or not 0 <= step <= _MOST_STEP or type(line.get("kind")) is not str:
        return None
    return instant(line.get("at"))


def _first_step(lines: Sequence[Mapping[str, Any]]) -> int:
    return next((int(line["step"]) for line in lines if _logged_at(line) is not None), 0)


def need_metrics(context: Context, run: RunState) -> None:
    """
    Raises:
        NotFoundError: there are none here, and none will come.
    """
    folder = Path(context.files.folder(run.run_id))
    if not run.live and not any(folder.glob(f"*/{METRICS_NAME}")):
        raise NotFoundError(
            f"{run.run_id} has no metrics on this machine",
            where=str(folder / "*" / METRICS_NAME),
            next_step=f"trmcloud status {run.run_id}, trmcloud report {run.run_id}",
        )


def board_facts(run: RunState) -> dict[str, Any]:
    """Return the run's facts for a board beside its figures: the request and the rented
    hardware."""
    told: dict[str, Any] = {
        "run": run.run_id,
        "project": run.project,
        "cap_usd": float(run.cap),
        "asked": codec.to_json(run.spec),
    }
    chosen = run.chosen
    if chosen is not None:
        told |= {
            "hardware": chosen.hardware,
            "provider": chosen.provider,
            "rate_usd_per_hour": float(chosen.rate),
            "phases": {phase.name: codec.to_json(phase.settings) for phase in chosen.phases},
        }
    return told


def logs_no_more(run: RunState) -> bool:
    """Whether its machine is gone: nothing more is logged."""
    return not run.live or run.state in (State.SETTLING, State.SETTLED)
