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
    UNHEARD = "unheard"
    NOT_STARTED = "not_started"
    UNFIT = "unfit"

    @property
    def exit_code(self) -> int:
        return _EXIT_CODES[self]

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]


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
    Outcome.UNHEARD: 29,
}
_MEANINGS = {
    Outcome.FINISHED: "every step was trained",
    Outcome.LANDED: "landed at its budget or time limit, evaluated and saved",
    Outcome.STOPPED: "stopped on request, evaluated and saved",
    Outcome.GATE_FAILED: "the gate after the fast phase failed",
    Outcome.NEXT_PHASE_REFUSED: "the next phase no longer fitted the rest of the budget",
    Outcome.FAILED: "training failed and could not be restarted",
    Outcome.KILLED: "killed at the hard stop; the last checkpoint stands",
    Outcome.LOST: "the machine was lost; the last checkpoint stands",
    Outcome.NOT_STARTED: "nothing could be rented; nothing was spent",
    Outcome.UNHEARD: "its machine ended while nobody was there to hear; what it kept outlives it",
    Outcome.UNFIT: "no machine that came was fit for the run",
}
