"""What each outcome means, in words for people: apart from the outcomes, for no pod needs them."""

from __future__ import annotations

from collections.abc import Mapping

from trmcloud.core.outcome import Outcome

MEANINGS: Mapping[Outcome, str] = {
    Outcome.FINISHED: "every step was trained",
    Outcome.LANDED: "landed at its budget or time limit, evaluated and saved",
    Outcome.STOPPED: "stopped on request, evaluated and saved",
    Outcome.GATE_FAILED: "the gate after the fast phase failed",
    Outcome.NEXT_PHASE_REFUSED: "the next phase no longer fitted the rest of the budget",
    Outcome.FAILED: "training failed and could not be restarted",
    Outcome.KILLED: "killed at the hard stop; the last checkpoint stands",
    Outcome.LOST: "the machine was lost; the last checkpoint stands",
    Outcome.NOT_STARTED: "nothing could be rented; nothing was spent",
    Outcome.UNREPORTED: "its machine ended before reporting; stored checkpoints are safe",
    Outcome.UNFIT: "every machine failed the hardware check",
}
