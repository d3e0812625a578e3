"""Files that a home keeps about its runs beside the ledger."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trmcloud.core.contract.pod_contract import RUNS_DIR
from trmcloud.core.errors import DataError
from trmcloud.io.files import write_atomic

if TYPE_CHECKING:
    from trmcloud.core.contract.pod_contract import AgentReport
    from trmcloud.core.control import events as ev
    from trmcloud.core.control.run_state import RunState

LAUNCH_NAME = "launch.json"


class HomeNotes:
    """``RunNotes`` of the home at ``home``."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def launch(self, run_id: str) -> Mapping[str, Any]:
        path = self._home / RUNS_DIR / run_id / LAUNCH_NAME
        try:
            note = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            note = None
        if not isinstance(note, dict) or not {"data_dir", "initial_weights"} <= set(note):
            raise DataError(
                f"the note of {run_id} is missing or damaged: the place of its data is not known",
                where=str(path),
                next_step="launch a new run from these weights with --from",
            )
        return note

    def put_launch(self, run_id: str, note: Mapping[str, Any]) -> None:
        folder = self._home / RUNS_DIR / run_id
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / LAUNCH_NAME, json.dumps(note))

    def drop_launch(self, run_id: str) -> None:
        shutil.rmtree(self._home / RUNS_DIR / run_id, ignore_errors=True)

    def add_machine(self, run: RunState, report: AgentReport) -> None:
        from trmcloud.operations.runs.machine_history import note_machine

        note_machine(self._home, run, report)

    def add_creates(self, run: RunState | None, events: Iterable[ev.RunEvent], now: float) -> None:
        from trmcloud.operations.plans.stock import note_outcomes

        note_outcomes(self._home, run, events, now)
