"""A run's move to another machine while its own works, in words and as JSON."""

from __future__ import annotations

from trmcloud.core.control.report import MoveAccount
from trmcloud.core.control.run_state import Move, RunState, State
from trmcloud.core.money import ZERO

_STAGES = {
    State.RESERVED: "was requested",
    State.RENTING: "was requested",
    State.BOOTING: "boots",
    State.RUNNING: "gets ready",
    State.SETTLING: "has ended",
}


def moving_words(run: RunState) -> str:
    """How far a move has come, what is reserved for it and what it saves; empty where none is
    under way."""
    move = run.move
    if move is None or not move.number:
        return ""
    there, started = run.generations[move.number - 1], move.started
    return (
        f"a machine at {there.provider} {_stage(run, move)} · {started.amount} reserved for it ·"
        f" saves {started.saves} of {started.stays}"
    )


def _stage(run: RunState, move: Move) -> str:
    mine = run.generation
    if mine is not None and mine.hands_over and move.state is State.RUNNING:
        return "is ready: training stops here first and saves"
    return _STAGES.get(move.state, "is ended")


def moved_words(move: MoveAccount) -> str:
    """What a completed move has saved, or what the rest of the run has cost so far."""
    told = f"to generation {move.generation} at {move.provider}"
    if not move.ended:
        return f"{told} · {move.since} since then; staying would have cost {move.stays}"
    if move.saved < ZERO:
        return f"{told} · cost {-move.saved} more than staying: {move.stays}"
    return f"{told} · saved {move.saved} of the {move.stays} that staying would have cost"
