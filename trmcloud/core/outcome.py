"""How a run can end, in one word, one sentence and one exit code."""

from __future__ import annotations

from enum import Enum


class Outcome(str, Enum):
    """How a run ended, and the exit code that ``launch``, ``resume`` and ``stop`` give for it."""

    FINISHED = "finished"
    LANDED = "landed"
    STOPPED = "stopped"
    GATE_FAILED = "gate_failed"
    NEXT_PHASE_REFUSED = "next_phase_refused"
    FAILED = "failed"
    KILLED = "killed"
    LOST = "lost"
    UNREPORTED = "unreported"
    NOT_STARTED = "not_started"
    UNFIT = "unfit"

    @property
    def exit_code(self) -> int:
        return _EXIT_CODES[self]


_EXIT_CODES = {
    Outcome.FINISHED: 0,
    Outcome.LANDED: 20,
    Outcome.STOPPED: 21,
    Outcome.GATE_FAILED: 22,
    Outcome.NEXT_PHASE_REFUSED: 23,
    Outcome.FAILED: 24,
    Outcome.KILLED: 25,
    Outcome.LOST: 26,
    Outcome.NOT_STARTED: 27,
    Outcome.UNFIT: 28,
    Outcome.UNREPORTED: 29,
}
